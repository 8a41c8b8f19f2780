//! Coarse deadlines for many connections: one timer wheel per worker, and one timer per connection.
//!
//! Moving a deadline later, which happens with every exchange, is one store. Only a deadline earlier than the slot that holds
//! the timer inserts it again. A timer whose slot comes up before its deadline is inserted into a later slot.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use slab::Slab;

/// Length of a tick. A task is woken at most two ticks after its deadline.
pub const TICK_NS: u64 = 20_000_000;
/// Number of slots: the wheel covers ten seconds. A timer with a later deadline is inserted again after that time.
const SLOTS: u64 = 512;

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// A task's timer in a worker's wheel, from [`Wheel::add`] until [`Wheel::remove`].
#[derive(Debug)]
pub struct Timer(u32);

#[derive(Debug)]
struct TimerEntry {
    waker: Waker,
    deadline_ns: u64,
    /// The tick of the earliest slot that contains this timer; `NEVER` if none does.
    slot_tick: u64,
}

/// The timers of one worker.
#[derive(Debug)]
pub struct Wheel {
    timers: RefCell<Slab<TimerEntry>>,
    /// The timers to check in each tick. A slot may contain the key of a timer that was removed, or of another one that reuses
    /// its key: the entry's own `slot_tick` and deadline decide.
    slots: Box<[RefCell<Vec<u32>>]>,
    /// All slots up to this tick have been processed.
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

    /// Adds a timer without a task and without a deadline.
    pub fn add(&self) -> Timer {
        let entry = TimerEntry { waker: Waker::noop().clone(), deadline_ns: NEVER, slot_tick: NEVER };
        let key = self.timers.borrow_mut().insert(entry);
        Timer(u32::try_from(key).expect("a process has fewer than 2^32 descriptors"))
    }

    /// Sets the task that the timer wakes.
    pub fn watch(&self, timer: &Timer, waker: Waker) {
        self.timers.borrow_mut()[timer.0 as usize].waker = waker;
    }

    /// Removes the timer and drops its waker.
    pub fn remove(&self, timer: &Timer) {
        let removed = self.timers.borrow_mut().remove(timer.0 as usize);
        drop(removed); // after the borrow has ended: dropping the last waker drops the task
    }

    /// Sets the deadline, at which the task is woken.
    pub fn set(&self, timer: &Timer, deadline_ns: u64) {
        let entry = &mut self.timers.borrow_mut()[timer.0 as usize];
        entry.deadline_ns = deadline_ns;
        if deadline_ns != NEVER && tick_of(deadline_ns) < entry.slot_tick {
            self.file(timer.0, entry);
        }
    }

    fn file(&self, key: u32, entry: &mut TimerEntry) {
        let next = self.done_tick.get() + 1;
        let tick = tick_of(entry.deadline_ns).clamp(next, next + SLOTS - 1);
        if tick >= entry.slot_tick {
            return; // a deadline that has passed; the next slot holds the timer already
        }
        entry.slot_tick = tick;
        self.slots[(tick % SLOTS) as usize].borrow_mut().push(key);
    }

    /// Wakes the tasks whose deadlines have passed. To be called about every [`TICK_NS`].
    pub fn advance(&self, now_ns: u64) {
        let now_tick = now_ns / TICK_NS;
        // After a long pause each slot is processed once; a second round would find nothing.
        let first = (self.done_tick.get() + 1).max(now_tick.saturating_sub(SLOTS - 1));
        for tick in first..=now_tick {
            self.done_tick.set(tick);
            let due = std::mem::take(&mut *self.slots[(tick % SLOTS) as usize].borrow_mut());
            for key in due {
                self.expire_slot_entry(key, tick, now_ns);
            }
        }
    }

    fn expire_slot_entry(&self, key: u32, tick: u64, now_ns: u64) {
        let mut timers = self.timers.borrow_mut();
        let Some(entry) = timers.get_mut(key as usize).filter(|entry| entry.slot_tick <= tick) else { return };
        entry.slot_tick = NEVER;
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

/// The tick in which a deadline is due: one after the deadline's own, so that it has passed when the slot is processed.
fn tick_of(deadline_ns: u64) -> u64 {
    deadline_ns / TICK_NS + 1
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

    /// Advances the wheel tick by tick and returns the time of the first wake-up.
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
    fn a_deadline_that_is_set_again_takes_no_more_memory() {
        let (wheel, timer, _) = setup();
        wheel.advance(10 * TICK_NS);
        for deadline in [15 * TICK_NS, 700 * TICK_NS, 3 * TICK_NS] {
            wheel.set(&timer, deadline);
            let filed = || wheel.slots.iter().map(|slot| slot.borrow().len()).sum::<usize>();
            let before = filed();
            (0..100).for_each(|_| wheel.set(&timer, deadline));
            assert_eq!(filed(), before, "{deadline}");
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
