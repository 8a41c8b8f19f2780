//! The queues under one limit, in the order in which their exchanges are served: by how long the oldest of each has waited.
//!
//! The limit of `auto` has the queues of all upstreams that use its machine, which may be thousands. So neither a new exchange nor a
//! permit looks at all of them: they are in a heap. What it knows of a queue may be old, and is corrected when the queue comes to the
//! top: exchanges leave a queue without telling its limits.

use std::cell::RefCell;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};
use std::rc::Rc;

use super::SharedQueue;
use super::queue::WaitQueue;

/// A queue under a limit.
#[derive(Clone)]
pub(super) enum LimitedQueue {
    /// That of a single endpoint.
    Own(Rc<WaitQueue>),
    /// The shared queue of an upstream, with the seat of the limit's endpoint.
    Shared(Rc<SharedQueue>, usize),
}

/// Identifies a queue while it exists.
pub(super) type QueueKey = (usize, usize);

impl LimitedQueue {
    pub(super) fn key(&self) -> QueueKey {
        match self {
            LimitedQueue::Own(queue) => (Rc::as_ptr(queue) as usize, 0),
            // Two nodes may be the same endpoint, which then has a seat for each.
            LimitedQueue::Shared(queue, seat) => (Rc::as_ptr(queue) as usize, *seat),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            LimitedQueue::Own(queue) => queue.is_empty(),
            LimitedQueue::Shared(queue, _) => queue.is_empty(),
        }
    }

    /// When the exchange that has waited longest began to wait.
    fn oldest_ns(&self) -> Option<u64> {
        match self {
            LimitedQueue::Own(queue) => queue.oldest_ns(),
            LimitedQueue::Shared(queue, _) => queue.oldest_ns(),
        }
    }

    /// Whether the limit's endpoint could serve its exchanges.
    fn is_for_endpoint(&self, now_ns: u64) -> bool {
        match self {
            LimitedQueue::Own(_) => true,
            LimitedQueue::Shared(queue, seat) => queue.is_for(*seat, now_ns),
        }
    }

    /// Whether the limit's endpoint serves the next exchange.
    fn is_served(&self, now_ns: u64) -> bool {
        match self {
            LimitedQueue::Own(_) => true,
            LimitedQueue::Shared(queue, seat) => queue.is_for(*seat, now_ns) && queue.has_share(*seat, now_ns),
        }
    }

    fn grant(&self) -> bool {
        match self {
            LimitedQueue::Own(queue) => queue.grant(0),
            LimitedQueue::Shared(queue, seat) => queue.grant(*seat),
        }
    }
}

/// A queue with its place in the order.
struct OrderedQueue {
    /// When its oldest exchange began to wait, as far as is known.
    oldest_ns: u64,
    /// Of two queues with the same time the one that was added first is served first.
    number: u64,
    queue: LimitedQueue,
}

impl OrderedQueue {
    fn rank(&self) -> (u64, bool, u64) {
        (self.oldest_ns, matches!(self.queue, LimitedQueue::Shared(..)), self.number)
    }
}

impl PartialEq for OrderedQueue {
    fn eq(&self, other: &OrderedQueue) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for OrderedQueue {}

impl PartialOrd for OrderedQueue {
    fn partial_cmp(&self, other: &OrderedQueue) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedQueue {
    fn cmp(&self, other: &OrderedQueue) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// The queues with exchanges that wait, and some that are empty since recently.
#[derive(Default)]
pub(super) struct QueueOrder(RefCell<OrderedQueues>);

#[derive(Default)]
struct OrderedQueues {
    heap: BinaryHeap<Reverse<OrderedQueue>>,
    /// Those in the heap.
    known: HashSet<QueueKey>,
    next: u64,
}

impl OrderedQueues {
    fn push(&mut self, queue: LimitedQueue, oldest_ns: u64, number: u64) {
        self.heap.push(Reverse(OrderedQueue { oldest_ns, number, queue }));
    }

    /// Puts a queue back after an exchange has left it; one without exchanges is forgotten.
    fn put_back(&mut self, OrderedQueue { number, queue, .. }: OrderedQueue) {
        match queue.oldest_ns() {
            Some(oldest_ns) => self.push(queue, oldest_ns, number),
            None => _ = self.known.remove(&queue.key()),
        }
    }
}

impl QueueOrder {
    /// Adds a queue that an exchange has entered, or is about to enter.
    pub(super) fn add(&self, queue: LimitedQueue) {
        let mut queues = self.0.borrow_mut();
        if queues.known.insert(queue.key()) {
            let (oldest_ns, number) = (queue.oldest_ns().unwrap_or(0), queues.next);
            queues.next += 1;
            queues.push(queue, oldest_ns, number);
        }
    }

    /// Grants a permit to the exchange that has waited longest of those that the endpoint serves; `false` if there is none.
    pub(super) fn grant(&self, now_ns: u64) -> bool {
        let mut queues = self.0.borrow_mut();
        let mut passed_over = Vec::new();
        let granted = loop {
            let Some(Reverse(first)) = queues.heap.pop() else { break false };
            match first.queue.oldest_ns() {
                Some(oldest_ns) if oldest_ns <= first.oldest_ns => {}
                // Its oldest exchange has left: another queue may be first.
                _ => {
                    queues.put_back(first);
                    continue;
                }
            }
            if first.queue.is_served(now_ns) {
                let granted = first.queue.grant();
                queues.put_back(first);
                break granted;
            }
            passed_over.push(Reverse(first));
        };
        queues.heap.extend(passed_over);
        granted
    }

    /// Whether an exchange waits that the endpoint could serve.
    pub(super) fn has_work(&self, now_ns: u64) -> bool {
        let mut queues = self.0.borrow_mut();
        while let Some(Reverse(first)) = queues.heap.peek() {
            if !first.queue.is_empty() {
                break;
            }
            let key = first.queue.key();
            queues.heap.pop();
            queues.known.remove(&key);
        }
        // Usually it is the first.
        let is_first = queues.heap.peek().is_some_and(|Reverse(first)| first.queue.is_for_endpoint(now_ns));
        let waits = |queue: &LimitedQueue| !queue.is_empty() && queue.is_for_endpoint(now_ns);
        is_first || queues.heap.iter().any(|Reverse(one)| waits(&one.queue))
    }

    /// Forgets the queues without exchanges.
    pub(super) fn tidy(&self) {
        let OrderedQueues { heap, known, .. } = &mut *self.0.borrow_mut();
        heap.retain(|Reverse(one)| {
            let stays = !one.queue.is_empty();
            if !stays {
                known.remove(&one.queue.key());
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::queue::{Ticket, WorkingSet};
    use super::*;
    use crate::snapshot;

    fn queue() -> Rc<WaitQueue> {
        Rc::new(WaitQueue::new(snapshot::Queue { size: 100, timeout: Some(Duration::from_secs(1)) }))
    }

    fn enter(order: &QueueOrder, queue: &Rc<WaitQueue>, since_ns: u64) -> Rc<Ticket> {
        let ticket = queue.enter(Duration::ZERO, since_ns, since_ns, WorkingSet::default()).expect("there is room");
        order.add(LimitedQueue::Own(Rc::clone(queue)));
        ticket
    }

    fn has_turn(ticket: &Ticket) -> bool {
        ticket.leave().is_some()
    }

    #[test]
    fn exchanges_of_many_queues_are_served_in_the_order_in_which_they_came() {
        let order = QueueOrder::default();
        let queues: Vec<_> = (0..500).map(|_| queue()).collect();
        // A number that is prime to that of the queues: each queue has exchanges of different times.
        let mut tickets: Vec<_> =
            (1..=2_000_u64).map(|time| enter(&order, &queues[(time as usize * 7) % queues.len()], time)).collect();
        assert_eq!(order.0.borrow().heap.len(), queues.len());
        // Some leave without a turn.
        tickets.iter().skip(3).step_by(5).for_each(|ticket| assert!(!has_turn(ticket)));
        let mut at = 0;
        tickets.retain(|_| {
            at += 1;
            (at - 1) % 5 != 3
        });
        for ticket in &tickets {
            assert!(order.has_work(1) && order.grant(1));
            assert!(has_turn(ticket), "the next one in the order of time");
        }
        assert!(!order.grant(1) && !order.has_work(1));
        assert!(order.0.borrow().known.is_empty(), "nothing of them is kept");
    }

    #[test]
    fn a_queue_with_exchanges_stays_listed_once_and_an_empty_one_can_be_listed_again() {
        let (order, waited_for, left) = (QueueOrder::default(), queue(), queue());
        let (first, gone) = (enter(&order, &waited_for, 1), enter(&order, &left, 2));
        assert!(!has_turn(&gone));
        left.look(3);
        order.tidy();
        let second = enter(&order, &waited_for, 3);
        assert_eq!(order.0.borrow().heap.len(), 1);
        let third = enter(&order, &left, 4);
        for ticket in [&first, &second, &third] {
            assert!(order.grant(5) && has_turn(ticket));
        }
        assert!(!order.grant(5));
    }

    #[test]
    fn a_queue_that_was_empty_takes_part_again() {
        let (order, first, second) = (QueueOrder::default(), queue(), queue());
        let left = enter(&order, &first, 1);
        assert!(!has_turn(&left));
        let (later, latest) = (enter(&order, &second, 2), enter(&order, &first, 3));
        assert!(order.grant(4) && has_turn(&later));
        assert!(order.grant(4) && has_turn(&latest));
        assert!(!order.has_work(4));
        let again = enter(&order, &first, 5);
        assert!(order.has_work(6) && order.grant(6) && has_turn(&again));
        order.tidy();
        assert!(order.0.borrow().heap.is_empty() && order.0.borrow().known.is_empty());
    }
}
