//! Coarse deadlines for many connections: one wheel per worker, and a number per connection.
//!
//! Moving a deadline later, which happens with every exchange, is one store. Only a deadline earlier than the slot a
//! timer waits in puts it into the wheel again. A timer that comes up before its deadline is simply filed once more.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// Deadlines are met within two ticks.
pub const TICK_NS: u64 = 20_000_000;
/// The wheel reaches ten seconds ahead; what is further away is looked at again then.
const SLOTS: u64 = 512;

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// One task's deadline. Dropping it forgets the deadline.
#[derive(Debug)]
pub struct Timer {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    deadline_ns: Cell<u64>,
    /// The tick of the earliest slot that holds this timer; `NEVER` if none does.
    filed_tick: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

/// The timers of one worker.
#[derive(Debug)]
pub struct Wheel {
    slots: Box<[RefCell<Vec<Rc<Shared>>>]>,
    /// Every slot up to this tick has been emptied.
    done_tick: Cell<u64>,
    filed: Cell<usize>,
}

impl Wheel {
    pub fn new(now_ns: u64) -> Wheel {
        Wheel {
            slots: (0..SLOTS).map(|_| RefCell::default()).collect(),
            done_tick: Cell::new(now_ns / TICK_NS),
            filed: Cell::new(0),
        }
    }

    /// A timer that wakes `waker`'s task. It has no deadline yet.
    pub fn timer(&self, waker: Waker) -> Timer {
        let shared =
            Shared { deadline_ns: Cell::new(NEVER), filed_tick: Cell::new(NEVER), waker: RefCell::new(Some(waker)) };
        Timer { shared: Rc::new(shared) }
    }

    /// Sets the time from which [`Timer::expired`] is true; the task is woken then.
    pub fn set(&self, timer: &Timer, deadline_ns: u64) {
        timer.shared.deadline_ns.set(deadline_ns);
        if deadline_ns == NEVER || deadline_ns / TICK_NS >= timer.shared.filed_tick.get() {
            return;
        }
        self.file(&timer.shared);
    }

    fn file(&self, shared: &Rc<Shared>) {
        let next = self.done_tick.get() + 1;
        // A tick after the deadline's own, so that it has passed when the slot comes up.
        let tick = (shared.deadline_ns.get() / TICK_NS + 1).clamp(next, next + SLOTS - 1);
        shared.filed_tick.set(tick);
        self.slots[(tick % SLOTS) as usize].borrow_mut().push(Rc::clone(shared));
        self.filed.set(self.filed.get() + 1);
    }

    /// Wakes the tasks whose deadline has passed. To be called about every [`TICK_NS`].
    pub fn advance(&self, now_ns: u64) {
        let now_tick = now_ns / TICK_NS;
        // After a long pause every slot is due once; going round more often would find nothing.
        let first = (self.done_tick.get() + 1).max(now_tick.saturating_sub(SLOTS - 1));
        for tick in first..=now_tick {
            self.done_tick.set(tick);
            let due = std::mem::take(&mut *self.slots[(tick % SLOTS) as usize].borrow_mut());
            self.filed.set(self.filed.get() - due.len());
            for shared in due {
                self.come_up(&shared, tick, now_ns);
            }
        }
    }

    fn come_up(&self, shared: &Rc<Shared>, tick: u64, now_ns: u64) {
        if shared.filed_tick.get() > tick && shared.filed_tick.get() != NEVER {
            return; // filed again elsewhere since
        }
        shared.filed_tick.set(NEVER);
        if shared.deadline_ns.get() <= now_ns {
            if let Some(waker) = &*shared.waker.borrow() {
                waker.wake_by_ref();
            }
        } else if shared.deadline_ns.get() != NEVER {
            self.file(shared);
        }
    }

    /// Nothing is filed: `advance` has nothing to do until a deadline is set.
    pub fn is_empty(&self) -> bool {
        self.filed.get() == 0
    }
}

impl Timer {
    pub fn expired(&self, now_ns: u64) -> bool {
        self.shared.deadline_ns.get() <= now_ns
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The wheel may hold the shared part for a while; the task it would wake must not be held with it.
        self.shared.deadline_ns.set(NEVER);
        self.shared.waker.borrow_mut().take();
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

    fn setup() -> (Wheel, Timer, Arc<Count>) {
        let count = Arc::new(Count::default());
        let wheel = Wheel::new(1);
        let timer = wheel.timer(Waker::from(Arc::clone(&count)));
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
            assert!(timer.expired(at));
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
        assert!(wheel.is_empty());
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
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_dropped_timer_wakes_nobody_and_leaves_the_wheel() {
        let (wheel, timer, count) = setup();
        wheel.set(&timer, 4 * TICK_NS);
        drop(timer);
        assert_eq!(Arc::strong_count(&count), 1);
        wheel.advance(100 * TICK_NS);
        assert!(wheel.is_empty());
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
