//! Exchanges that wait for a permit of an endpoint: first come, first served, limited in number and time. An exchange that
//! would probably not get a permit in time is refused at once, and not only when its time is over.
//!
//! A configured time-out is meant for bursts. If the queue has not been empty for that long, there is no burst but more
//! load than the endpoint can take, and longer waits serve no more exchanges: then a tenth of the time-out applies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use weir_net::prefetch::MemoryRegion;

use crate::snapshot;

/// The time constant of the mean rate of grants.
const PACE_NS: f64 = 500e6;
/// The fraction of a configured time-out that applies outside a burst (one in 10),
const STANDING: u32 = 10;
/// and its lower bound, so that the queue does not run dry between two ticks.
const STANDING_LEAST: Duration = Duration::from_millis(20);

pub(super) struct WaitQueue {
    waiting: RefCell<VecDeque<Rc<Ticket>>>,
    terms: Cell<snapshot::Queue>,
    pace: Cell<GrantRate>,
    /// When the queue last became non-empty.
    since_ns: Cell<u64>,
}

/// The memory that a waiting exchange needs when it goes on. It is prefetched when the permit is granted.
pub(super) type WorkingSet = [MemoryRegion; 4];

/// The first bytes of a task's memory: the runtime's header, and the frame of the future or a part of it.
const TASK_BYTES: usize = 448;

/// The place of an exchange in the queue.
pub(super) struct Ticket {
    state: Cell<Turn>,
    since_ns: u64,
    /// When its wait ends without a permit.
    until_ns: u64,
    waker: RefCell<Waker>,
    working_set: WorkingSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Waiting,
    Ended(WaitOutcome),
    Left,
}

/// How a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// The endpoint with this seat has granted a permit.
    Granted(usize),
    /// The wait took too long.
    Expired,
    /// No endpoint may serve the exchange any more; it has to pick one again.
    Again,
}

/// The rate of grants, while exchanges wait.
#[derive(Clone, Copy, Default)]
struct GrantRate {
    /// Grants since the last tick.
    turns: u32,
    /// The time of the last tick; 0 if no exchange waited then.
    looked_ns: u64,
    /// Grants per nanosecond; 0 while unknown.
    rate: f64,
}

impl WaitQueue {
    pub(super) fn new(terms: snapshot::Queue) -> WaitQueue {
        WaitQueue {
            waiting: RefCell::default(),
            terms: Cell::new(terms),
            pace: Cell::default(),
            since_ns: Cell::new(0),
        }
    }

    pub(super) fn configure(&self, terms: snapshot::Queue) {
        self.terms.set(terms);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Enters the queue; `None` if it is full, or if a permit would probably come too late. `patience` applies if no
    /// time-out is configured.
    pub(super) fn enter(
        &self,
        patience: Duration,
        since_ns: u64,
        now_ns: u64,
        working_set: WorkingSet,
    ) -> Option<Rc<Ticket>> {
        let terms = self.terms.get();
        let patience_ns = terms.timeout.unwrap_or(patience).as_nanos() as u64;
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            self.since_ns.set(now_ns);
        }
        let longest_ns = match terms.timeout {
            Some(timeout) if now_ns - self.since_ns.get() > patience_ns => {
                (timeout / STANDING).max(STANDING_LEAST).min(timeout).as_nanos() as u64
            }
            _ => patience_ns,
        };
        let rate = self.pace.get().rate;
        let too_late = rate > 0.0 && waiting.len() as f64 > rate * longest_ns as f64;
        if waiting.len() >= terms.size || too_late {
            return None;
        }
        let ticket = Rc::new(Ticket {
            state: Cell::new(Turn::Waiting),
            since_ns,
            until_ns: since_ns.saturating_add(patience_ns),
            waker: RefCell::new(Waker::noop().clone()),
            working_set,
        });
        waiting.push_back(Rc::clone(&ticket));
        Some(ticket)
    }

    /// When the exchange that has waited longest began to wait.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        let mut waiting = self.waiting.borrow_mut();
        while waiting.front()?.state.get() != Turn::Waiting {
            waiting.pop_front();
        }
        waiting.front().map(|ticket| ticket.since_ns)
    }

    /// Grants a permit of endpoint `by` to the exchange that has waited longest; `false` if none waits.
    pub(super) fn grant(&self, by: usize) -> bool {
        loop {
            let Some(ticket) = self.waiting.borrow_mut().pop_front() else { return false };
            if ticket.state.get() == Turn::Waiting {
                let pace = self.pace.get();
                self.pace.set(GrantRate { turns: pace.turns + 1, ..pace });
                ticket.end(WaitOutcome::Granted(by));
                return true;
            }
        }
    }

    /// Ends all waits; each exchange has to pick an endpoint again.
    pub(super) fn send_back(&self) {
        let waiting = self.waiting.take();
        waiting
            .iter()
            .filter(|ticket| ticket.state.get() == Turn::Waiting)
            .for_each(|ticket| ticket.end(WaitOutcome::Again));
    }

    /// Called with every tick: ends waits that have lasted too long, and updates the rate of grants.
    pub(super) fn look(&self, now_ns: u64) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|ticket| {
            let waits = ticket.state.get() == Turn::Waiting;
            if waits && ticket.until_ns <= now_ns {
                ticket.end(WaitOutcome::Expired);
            }
            waits && ticket.until_ns > now_ns
        });
        self.pace.set(if waiting.is_empty() { GrantRate::default() } else { self.pace.get().at(now_ns) });
    }
}

impl GrantRate {
    fn at(self, now_ns: u64) -> GrantRate {
        let passed = now_ns.saturating_sub(self.looked_ns) as f64;
        let rate = match (self.looked_ns, self.rate) {
            (0, _) => 0.0,
            (_, 0.0) => f64::from(self.turns) / passed.max(1.0),
            (_, rate) => rate + (f64::from(self.turns) / passed.max(1.0) - rate) * passed / (passed + PACE_NS),
        };
        GrantRate { turns: 0, looked_ns: now_ns, rate }
    }
}

impl Ticket {
    fn end(&self, outcome: WaitOutcome) {
        self.state.set(Turn::Ended(outcome));
        let waker = self.waker.borrow();
        MemoryRegion::new(waker.data(), TASK_BYTES).prefetch();
        waker.wake_by_ref();
        self.working_set.into_iter().for_each(MemoryRegion::prefetch);
    }

    /// Waits for the outcome. Must not be called after [`Ticket::leave`].
    pub(super) async fn turn(&self) -> WaitOutcome {
        std::future::poll_fn(|context| match self.state.get() {
            Turn::Ended(outcome) => Poll::Ready(outcome),
            Turn::Waiting | Turn::Left => {
                self.waker.borrow_mut().clone_from(context.waker());
                Poll::Pending
            }
        })
        .await
    }

    /// Gives the place up. Returns the endpoint that had granted it a permit, if one had.
    pub(super) fn leave(&self) -> Option<usize> {
        match self.state.replace(Turn::Left) {
            Turn::Ended(WaitOutcome::Granted(by)) => Some(by),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 20_000_000;

    fn queue(size: usize, timeout_ms: u64) -> WaitQueue {
        WaitQueue::new(snapshot::Queue { size, timeout: Some(Duration::from_millis(timeout_ms)) })
    }

    #[test]
    fn it_has_a_size() {
        let queue = queue(2, 1_000);
        let tickets: Vec<_> = (0..3).map(|_| queue.enter(Duration::ZERO, 1, 1, WorkingSet::default())).collect();
        assert!(tickets[1].is_some() && tickets[2].is_none());
        assert!(queue.grant(0));
        assert!(tickets[0].as_ref().is_some_and(|first| first.leave().is_some()), "the first was first");
        assert!(queue.enter(Duration::ZERO, 1, 1, WorkingSet::default()).is_some());
    }

    #[test]
    fn ticket_that_has_left_gets_no_turn() {
        let queue = queue(10, 1_000);
        assert_eq!(queue.oldest_ns(), None);
        let (first, second) = (
            queue.enter(Duration::ZERO, 1, 1, WorkingSet::default()),
            queue.enter(Duration::ZERO, 1, 1, WorkingSet::default()),
        );
        assert!(first.expect("there is room").leave().is_none());
        assert!(queue.grant(0) && !queue.grant(0));
        assert_eq!(second.expect("there is room").leave(), Some(0));
    }

    #[test]
    fn ticket_waits_no_longer_than_its_patience() {
        let queue = WaitQueue::new(snapshot::Queue::default());
        let ticket = queue.enter(Duration::from_millis(5), 1, 1, WorkingSet::default()).expect("there is room");
        queue.look(5_000_000);
        assert!(!queue.is_empty());
        queue.look(5_000_001);
        assert!(queue.is_empty() && ticket.leave().is_none());
    }

    #[test]
    fn queue_refuses_at_once_what_would_wait_too_long() {
        // A hundred grants in each tick, five thousand a second, and three times as many arrivals.
        let queue = queue(100_000, 200);
        let (mut longest, mut refused, mut idle) = (0, 0, 0);
        for tick in 1..500 {
            let now_ns = tick * TICK_NS;
            let entered = (0..300)
                .filter(|_| queue.enter(Duration::ZERO, now_ns, now_ns, WorkingSet::default()).is_some())
                .count();
            refused += 300 - entered;
            idle += (0..100).filter(|_| !queue.grant(0)).count();
            queue.look(now_ns);
            longest = longest.max(queue.waiting.borrow().len());
        }
        assert_eq!(idle, 0, "nobody was refused for whom there was a turn");
        assert!(longest <= 1_300, "{longest} waited at once, a thousand can be served in time");
        assert!(refused >= 498 * 200 - 1_300, "{refused} were refused");
    }

    #[test]
    fn queue_allows_a_tenth_of_the_time_under_constant_overload() {
        // A hundred grants in each tick of 20 ms, and 105 arrivals.
        let queue = queue(100_000, 1_000);
        let (mut idle, mut refused, mut longest) = (0, 0, 0);
        for tick in 1..2_000 {
            let now_ns = tick * TICK_NS;
            refused += (0..105)
                .filter(|_| queue.enter(Duration::ZERO, now_ns, now_ns, WorkingSet::default()).is_none())
                .count();
            idle += (0..100).filter(|_| !queue.grant(0)).count();
            queue.look(now_ns);
            if tick > 1_000 {
                longest = longest.max(queue.waiting.borrow().len());
            }
        }
        assert_eq!(idle, 0, "nobody was refused for whom there was a turn");
        assert!(longest <= 510, "{longest} waited at once, 500 can be served in a tenth of the time");
        assert!(refused <= 2_000 * 5, "{refused} were refused");
        // It ends when the queue is empty.
        while queue.grant(0) {}
        queue.look(2_000 * TICK_NS);
        let burst = (0..1_000)
            .filter(|_| queue.enter(Duration::ZERO, 2_001 * TICK_NS, 2_001 * TICK_NS, WorkingSet::default()).is_some());
        assert_eq!(burst.count(), 1_000);
    }

    #[test]
    fn queue_forgets_its_rate_when_it_is_empty() {
        let queue = queue(100_000, 200);
        let enter = |now_ns| queue.enter(Duration::ZERO, now_ns, now_ns, WorkingSet::default());
        let waiting: Vec<_> = (0..50).map_while(|_| enter(TICK_NS)).collect();
        queue.look(TICK_NS);
        assert!(queue.grant(0));
        queue.look(2 * TICK_NS);
        assert!(enter(2 * TICK_NS).is_none(), "one turn in a tick, and fifty who wait");
        let turns = waiting.iter().filter_map(|ticket| ticket.leave()).count();
        assert_eq!(turns, 1);
        queue.look(3 * TICK_NS);
        assert!((0..50).all(|_| enter(4 * TICK_NS).is_some()));
    }
}
