//! Coarse deadlines for many connections: one wheel per worker, and a number per connection.
//!
//! Moving a deadline later, which happens with every exchange, is one store. Only a deadline earlier than the slot a
//! timer waits in puts it into the wheel again. A timer that comes up before its deadline is simply filed once more.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use slab::Slab;

/// Deadlines are met within two ticks.
pub const TICK_NS: u64 = 20_000_000;
/// The wheel reaches ten seconds ahead; what is further away is looked at again then.
const SLOTS: u64 = 512;

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// One task's place among the timers of a worker, from [`Wheel::add`] until [`Wheel::remove`].
#[derive(Debug)]
pub struct Timer(u32);

#[derive(Debug)]
struct TimerEntry {
    waker: Waker,
    deadline_ns: u64,
    /// The tick of the earliest slot that holds this timer; `NEVER` if none does.
    filed_tick: u64,
}

/// The timers of one worker.
#[derive(Debug)]
pub struct Wheel {
    timers: RefCell<Slab<TimerEntry>>,
    /// Which timers to look at in which tick. A slot may name a timer that is gone, or another one in its place: what
    /// counts is what the timer itself says.
    slots: Box<[RefCell<Vec<u32>>]>,
    /// Every slot up to this tick has been emptied.
    done_tick: Cell<u64>,
}

impl Wheel {
    pub fn new(now_ns: u64) -> Wheel {
        Wheel {
            timers: RefCell::default(),
            slots: (0..SLOTS).map(|_| RefCell::default()).collect(),
            done_tick: Cell::new(now_ns / TICK_NS),
        }
    }

    /// A timer that has neither a task nor a deadline yet.
    pub fn add(&self) -> Timer {
        let entry = TimerEntry { waker: Waker::noop().clone(), deadline_ns: NEVER, filed_tick: NEVER };
        let key = self.timers.borrow_mut().insert(entry);
        Timer(u32::try_from(key).expect("a process has fewer than 2^32 descriptors"))
    }

    /// Says whose task the timer wakes.
    pub fn watch(&self, timer: &Timer, waker: Waker) {
        self.timers.borrow_mut()[timer.0 as usize].waker = waker;
    }

    /// Forgets the timer, and its task with it.
    pub fn remove(&self, timer: &Timer) {
        let removed = self.timers.borrow_mut().remove(timer.0 as usize);
        drop(removed); // once nothing is borrowed: this may be the last that holds the task
    }

    /// Sets the time at which the task is woken.
    pub fn set(&self, timer: &Timer, deadline_ns: u64) {
        let entry = &mut self.timers.borrow_mut()[timer.0 as usize];
        entry.deadline_ns = deadline_ns;
        if deadline_ns != NEVER && deadline_ns / TICK_NS < entry.filed_tick {
            self.file(timer.0, entry);
        }
    }

    fn file(&self, key: u32, entry: &mut TimerEntry) {
        let next = self.done_tick.get() + 1;
        // A tick after the deadline's own, so that it has passed when the slot comes up.
        let tick = (entry.deadline_ns / TICK_NS + 1).clamp(next, next + SLOTS - 1);
        entry.filed_tick = tick;
        self.slots[(tick % SLOTS) as usize].borrow_mut().push(key);
    }

    /// Wakes the tasks whose deadline has passed. To be called about every [`TICK_NS`].
    pub fn advance(&self, now_ns: u64) {
        let now_tick = now_ns / TICK_NS;
        // After a long pause every slot is due once; going round more often would find nothing.
        let first = (self.done_tick.get() + 1).max(now_tick.saturating_sub(SLOTS - 1));
        for tick in first..=now_tick {
            self.done_tick.set(tick);
            let due = std::mem::take(&mut *self.slots[(tick % SLOTS) as usize].borrow_mut());
            for key in due {
                self.come_up(key, tick, now_ns);
            }
        }
    }

    fn come_up(&self, key: u32, tick: u64, now_ns: u64) {
        let mut timers = self.timers.borrow_mut();
        let Some(entry) = timers.get_mut(key as usize).filter(|entry| entry.filed_tick <= tick) else { return };
        entry.filed_tick = NEVER;
        if entry.deadline_ns <= now_ns {
            entry.waker.wake_by_ref();
        } else if entry.deadline_ns != NEVER {
            self.file(key, entry);
        }
    }

    /// Wakes the tasks of all timers.
    pub fn wake_all(&self) {
        for (_, entry) in self.timers.borrow().iter() {
            entry.waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn timer(wheel: &Wheel, count: &Arc<Count>) -> Timer {
        let timer = wheel.add();
        wheel.watch(&timer, Waker::from(Arc::clone(count)));
        timer
    }

    fn is_empty(wheel: &Wheel) -> bool {
        wheel.slots.iter().all(|slot| slot.borrow().is_empty())
    }

    fn setup() -> (Wheel, Timer, Arc<Count>) {
        let count = Arc::new(Count::default());
        let wheel = Wheel::new(1);
        let timer = timer(&wheel, &count);
        (wheel, timer, count)
    }

    fn woken(count: &Count) -> usize {
        count.0.load(Ordering::Relaxed)
    }

    /// Turns the clock tick by tick and says when the first wake-up came.
    fn first_wake(wheel: &Wheel, count: &Count, until_ns: u64) -> Option<u64> {
        let before = woken(count);
        (1..=until_ns / TICK_NS).map(|tick| tick * TICK_NS).find(|&now| {
            wheel.advance(now);
            woken(count) > before
        })
    }

    #[test]
    fn wakes_within_two_ticks_after_the_deadline_near_and_far() {
        for deadline in [1, TICK_NS, 5 * TICK_NS + 3, 511 * TICK_NS, 513 * TICK_NS, 4000 * TICK_NS + 7] {
            let (wheel, timer, count) = setup();
            wheel.set(&timer, deadline);
            let at = first_wake(&wheel, &count, deadline + 10 * TICK_NS).expect("it wakes");
            assert!(at >= deadline && at <= deadline + 2 * TICK_NS, "deadline {deadline}, woken at {at}");
        }
    }

    #[test]
    fn a_deadline_moved_later_or_away_does_not_wake() {
        let (wheel, timer, count) = setup();
        wheel.set(&timer, 3 * TICK_NS);
        wheel.set(&timer, 50 * TICK_NS);
        assert_eq!(first_wake(&wheel, &count, 49 * TICK_NS), None);
        wheel.set(&timer, NEVER);
        assert_eq!(first_wake(&wheel, &count, 2000 * TICK_NS), None);
        assert!(is_empty(&wheel));
    }

    #[test]
    fn a_deadline_moved_earlier_wakes_in_time_and_once() {
        let (wheel, timer, count) = setup();
        wheel.set(&timer, 400 * TICK_NS);
        wheel.set(&timer, 4 * TICK_NS);
        let at = first_wake(&wheel, &count, 10 * TICK_NS).expect("it wakes");
        assert!(at <= 6 * TICK_NS);
        wheel.set(&timer, NEVER);
        for tick in 10..1000 {
            wheel.advance(tick * TICK_NS);
        }
        assert_eq!(woken(&count), 1);
        assert!(is_empty(&wheel));
    }

    #[test]
    fn a_removed_timer_wakes_nobody_and_leaves_the_wheel() {
        let (wheel, timer, count) = setup();
        wheel.set(&timer, 4 * TICK_NS);
        wheel.remove(&timer);
        assert_eq!(Arc::strong_count(&count), 1);
        wheel.advance(100 * TICK_NS);
        assert!(is_empty(&wheel));
    }

    #[test]
    fn a_timer_in_the_place_of_a_removed_one_keeps_its_own_time() {
        let (wheel, removed, _) = setup();
        wheel.set(&removed, 4 * TICK_NS);
        wheel.remove(&removed);
        let count = Arc::new(Count::default());
        let next = timer(&wheel, &count);
        wheel.set(&next, 50 * TICK_NS);
        assert_eq!(first_wake(&wheel, &count, 49 * TICK_NS), None);
        wheel.advance(52 * TICK_NS);
        assert_eq!(woken(&count), 1);
    }

    #[test]
    fn a_long_pause_loses_nothing() {
        let (wheel, timer, count) = setup();
        wheel.set(&timer, 4 * TICK_NS);
        wheel.advance(5000 * TICK_NS);
        assert_eq!(woken(&count), 1);
        wheel.set(&timer, 5003 * TICK_NS);
        wheel.advance(5005 * TICK_NS);
        assert_eq!(woken(&count), 2);
    }
}
