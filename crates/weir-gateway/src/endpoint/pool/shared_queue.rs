//! Exchanges that wait for a permit of any endpoint of an upstream.
//!
//! With round robin any endpoint may serve an exchange, so it must not wait for a particular one: endpoints become slower
//! and faster, and with a queue for each, exchanges would not be served in the order in which they came.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::queue::{Ticket, WaitQueue, WorkingSet};
use crate::endpoint::balance::BalancerRandom;
use crate::endpoint::concurrency::LimiterGroup;
use crate::endpoint::state::Health;
use crate::snapshot;
use crate::snapshot::seats::by_priority;

/// The shared queue of one upstream at one worker. It is kept when settings of the upstream change, unless its endpoints do.
pub(crate) struct SharedQueue {
    queue: WaitQueue,
    terms: RefCell<QueueTerms>,
    dice: BalancerRandom,
    /// Whether it is in [`super::Pools::shared_queues`].
    pub(super) is_checked: Cell<bool>,
}

/// Which endpoint may serve the waiting exchanges.
struct QueueTerms {
    seats: QueueSeats,
    slow_start: Option<Duration>,
    /// What the upstream has completed.
    group: Rc<LimiterGroup>,
}

/// The seats of an upstream's endpoints, by their numbers; `None` for an endpoint of weight 0.
pub(crate) struct QueueSeats(Vec<Option<QueueSeat>>);

impl QueueSeats {
    /// `health` has the same indices as `endpoints`.
    pub(crate) fn new(endpoints: &[snapshot::Endpoint], health: &[Arc<Health>]) -> QueueSeats {
        let mut seats: Vec<_> = endpoints.iter().map(|_| None).collect();
        for (tier, members) in by_priority(endpoints).into_iter().enumerate() {
            for member in members {
                let health = Arc::clone(&health[member.endpoint]);
                seats[member.endpoint] = Some(QueueSeat { tier, health });
            }
        }
        QueueSeats(seats)
    }

    fn multiplied(&self, snapshot::Queue { size, timeout }: snapshot::Queue) -> snapshot::Queue {
        snapshot::Queue { size: size.saturating_mul(self.0.iter().flatten().count()), timeout }
    }
}

struct QueueSeat {
    /// 0 for the highest priority; endpoints of a higher tier are reserves.
    tier: usize,
    health: Arc<Health>,
}

impl SharedQueue {
    /// `queue` is the setting for one endpoint: the size is multiplied by the number of endpoints with a seat. All endpoints of the
    /// upstream have the same `group`.
    pub(crate) fn new(
        seats: QueueSeats,
        queue: snapshot::Queue,
        slow_start: Option<Duration>,
        group: &Rc<LimiterGroup>,
    ) -> SharedQueue {
        SharedQueue {
            queue: WaitQueue::new(seats.multiplied(queue)),
            terms: RefCell::new(QueueTerms { seats, slow_start, group: Rc::clone(group) }),
            dice: BalancerRandom::from_entropy(),
            is_checked: Cell::new(false),
        }
    }

    /// Changes the settings. The seats must be of the same endpoints as before.
    pub(crate) fn configure(
        &self,
        seats: QueueSeats,
        queue: snapshot::Queue,
        slow_start: Option<Duration>,
        group: &Rc<LimiterGroup>,
    ) {
        self.queue.configure(seats.multiplied(queue));
        self.terms.replace(QueueTerms { seats, slow_start, group: Rc::clone(group) });
    }

    /// When an endpoint of the upstream last completed an exchange.
    pub(super) fn last_completed_ns(&self) -> u64 {
        self.terms.borrow().group.last_completed_ns()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn enter(
        &self,
        patience: Duration,
        since_ns: u64,
        now_ns: u64,
        working_set: WorkingSet,
    ) -> Option<Rc<Ticket>> {
        self.queue.enter(patience, since_ns, now_ns, working_set)
    }

    /// When the exchange that has waited longest began to wait.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.queue.oldest_ns()
    }

    /// Grants a permit of the endpoint to the exchange that has waited longest; `false` if none waits.
    pub(super) fn grant(&self, seat: usize) -> bool {
        self.queue.grant(seat)
    }

    /// Whether this endpoint may serve the waiting exchanges. A reserve may not while an endpoint of a lower tier takes its
    /// whole share.
    pub(super) fn is_for(&self, seat: usize, now_ns: u64) -> bool {
        let terms = self.terms.borrow();
        terms.seats.0[seat].as_ref().is_some_and(|own| terms.takes(own, now_ns))
    }

    /// Whether an endpoint in slow start may take the next exchange: it does so at random, by its share, while others take
    /// exchanges too.
    pub(super) fn has_share(&self, seat: usize, now_ns: u64) -> bool {
        let terms = self.terms.borrow();
        let (Some(ramp), Some(own)) = (terms.slow_start, &terms.seats.0[seat]) else { return true };
        let share = own.health.share(ramp, now_ns);
        let takes_all = |other: &QueueSeat| terms.is_warm(other, now_ns) && terms.takes(other, now_ns);
        share >= 1.0 || self.dice.is_chosen_with_probability(share) || !terms.seats().any(takes_all)
    }

    /// Called with every tick. If no endpoint may serve the waiting exchanges any more, they have to pick an endpoint
    /// again.
    pub(super) fn look(&self, now_ns: u64) {
        let terms = self.terms.borrow();
        if !self.queue.is_empty() && !terms.seats().any(|seat| terms.takes(seat, now_ns)) {
            self.queue.send_back();
        }
        self.queue.look(now_ns);
    }
}

impl QueueTerms {
    fn seats(&self) -> impl Iterator<Item = &QueueSeat> {
        self.seats.0.iter().flatten()
    }

    fn takes(&self, own: &QueueSeat, now_ns: u64) -> bool {
        let is_before =
            |other: &QueueSeat| other.tier < own.tier && other.health.is_up(now_ns) && self.is_warm(other, now_ns);
        own.health.is_proven() && (own.tier == 0 || !self.seats().any(is_before))
    }

    /// Whether the endpoint is not, or no longer, limited by slow start.
    fn is_warm(&self, seat: &QueueSeat, now_ns: u64) -> bool {
        self.slow_start.is_none_or(|ramp| seat.health.share(ramp, now_ns) >= 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::WaitOutcome;
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// Two endpoints that share the load, a reserve, and one without a weight.
    fn shared_queue(slow_start: Option<Duration>) -> (SharedQueue, Vec<Arc<Health>>) {
        let endpoints = [(1, 0), (1, 0), (1, -1), (0, 0)].map(|(weight, priority)| snapshot::Endpoint {
            name: "".into(),
            addr: ([127, 0, 0, 1], 1).into(),
            weight,
            priority,
            host: "".into(),
            checks: None,
        });
        let health: Vec<_> = endpoints.iter().map(|endpoint| Arc::new(Health::new(endpoint.addr))).collect();
        let seats = QueueSeats::new(&endpoints, &health);
        (SharedQueue::new(seats, snapshot::Queue::default(), slow_start, &Rc::default()), health)
    }

    fn enter(shared_queue: &SharedQueue) -> Rc<Ticket> {
        shared_queue.enter(LONG, 1, 1, WorkingSet::default()).expect("there is room")
    }

    /// Which endpoints may serve its exchanges.
    fn takers(shared_queue: &SharedQueue) -> [bool; 4] {
        [0, 1, 2, 3].map(|seat| shared_queue.is_for(seat, 2))
    }

    #[test]
    fn only_endpoints_in_rotation_take_part_and_reserves_last() {
        let (shared_queue, health) = shared_queue(None);
        assert_eq!(takers(&shared_queue), [true, true, false, false]);
        health[0].checked_down(LONG, &"checks fail", 2);
        assert_eq!(takers(&shared_queue), [false, true, false, false]);
        health[1].checked_down(LONG, &"checks fail", 2);
        assert_eq!(takers(&shared_queue), [false, false, true, false]);
    }

    #[test]
    fn endpoint_that_has_just_come_back_takes_only_its_share_beside_others() {
        let (shared_queue, health) = shared_queue(Some(1000 * LONG));
        let back_ns = 2 * LONG.as_nanos() as u64;
        health[0].checked_down(LONG, &"checks fail", 2);
        health[0].checked_up(back_ns);
        let taken = (0..1000).filter(|_| shared_queue.has_share(0, back_ns)).count();
        assert!((10..200).contains(&taken), "{taken} of a thousand, where a twentieth is due");
        assert!(shared_queue.has_share(1, back_ns));
        health[1].checked_down(LONG, &"checks fail", back_ns);
        assert!(shared_queue.is_for(2, back_ns), "the reserve goes on until it is warm");
        let taken = (0..1000).filter(|_| shared_queue.has_share(0, back_ns)).count();
        assert!((10..200).contains(&taken), "{taken} of a thousand, beside a reserve");
        health[2].checked_down(LONG, &"checks fail", back_ns);
        assert!((0..1000).all(|_| shared_queue.has_share(0, back_ns)), "nobody else could take what it leaves");
    }

    #[test]
    fn waiting_exchange_picks_again_when_no_endpoint_is_left() {
        let (shared_queue, health) = shared_queue(None);
        let ticket = enter(&shared_queue);
        shared_queue.look(2);
        assert!(!shared_queue.is_empty());
        health.iter().for_each(|health| health.checked_down(LONG, &"checks fail", 2));
        shared_queue.look(3);
        assert!(shared_queue.is_empty());
        let mut outcome = std::pin::pin!(ticket.turn());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert_eq!(outcome.as_mut().poll(&mut context), std::task::Poll::Ready(WaitOutcome::Again));
    }
}
