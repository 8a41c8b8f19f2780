//! The limit of exchanges in flight, and the queues of those that wait for a permit under it.
//!
//! A limit that is configured belongs to one endpoint of one upstream. The limit of `auto` is a finding about the machine: how
//! many exchanges it works on without having them wait. All upstreams with `auto` share it, since two that looked for the limit
//! of one machine side by side would each take throughput from the other, and count that as a gain.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use super::SharedQueue;
use super::queue::WaitQueue;
use super::queue_order::{LimitedQueue, QueueKey, QueueOrder};
use crate::endpoint::concurrency::{ConcurrencyLimiter, LimiterGroup};
use crate::snapshot::Concurrency;

pub(super) struct AdmissionLimit {
    /// Exchanges that hold a permit, with or without a connection yet.
    in_use: Cell<u32>,
    /// Exchanges that wait for a permit of one endpoint under this limit.
    waiting: Cell<u32>,
    limiter: ConcurrencyLimiter,
    /// The queues of single endpoints that have waiters, or had some at the last tick.
    queues: RefCell<Vec<Rc<WaitQueue>>>,
    /// The same of shared queues, with the endpoint's seat in each.
    shared_queues: RefCell<Vec<(Rc<SharedQueue>, usize)>>,
    /// The queues in these two lists.
    listed: RefCell<HashSet<QueueKey>>,
    /// Those of them that have waiters, in the order in which these are served.
    order: QueueOrder,
    /// Whether there are any of these queues. Then it is in [`super::Pools::waited_for`].
    is_waited_for: Cell<bool>,
}

/// Counts an exchange as waiting until it is dropped.
pub(super) struct WaitCount<'a>(&'a AdmissionLimit);

impl Drop for WaitCount<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl AdmissionLimit {
    pub(super) fn new(setting: Concurrency, workers: u32) -> AdmissionLimit {
        AdmissionLimit {
            in_use: Cell::new(0),
            waiting: Cell::new(0),
            limiter: ConcurrencyLimiter::new(setting, workers),
            queues: RefCell::default(),
            shared_queues: RefCell::default(),
            listed: RefCell::default(),
            order: QueueOrder::default(),
            is_waited_for: Cell::new(false),
        }
    }

    pub(super) fn limiter(&self) -> &ConcurrencyLimiter {
        &self.limiter
    }

    /// Whether a permit is free, so that one more exchange need not wait.
    pub(super) fn has_room(&self) -> bool {
        self.in_use.get() < self.limiter.limit()
    }

    /// Takes a permit; `false` if none is free.
    pub(super) fn take(&self) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.in_use.set(self.in_use.get() + 1);
        }
        has_room
    }

    pub(super) fn in_use(&self) -> u32 {
        self.in_use.get()
    }

    pub(super) fn waiting(&self) -> u32 {
        self.waiting.get()
    }

    pub(super) fn count_waiting(&self) -> WaitCount<'_> {
        self.waiting.set(self.waiting.get() + 1);
        WaitCount(self)
    }

    /// Returns a permit, and grants it to the exchange that has waited longest, as far as the limit allows.
    pub(super) fn release(&self, now_ns: u64) {
        self.in_use.set(self.in_use.get() - 1);
        self.admit(now_ns);
    }

    /// Called when the endpoint of an upstream has answered an exchange that got its permit at `since_ns`.
    pub(super) fn completed(&self, group: &LimiterGroup, since_ns: u64, now_ns: u64) {
        self.limiter.completed(group, since_ns, now_ns, self.has_work_waiting(now_ns));
    }

    /// Registers a queue that an exchange enters. Returns whether the limit must be added to those that are checked at every
    /// tick.
    pub(super) fn register_queue(&self, queue: &Rc<WaitQueue>) -> bool {
        let listed = LimitedQueue::Own(Rc::clone(queue));
        if self.listed.borrow_mut().insert(listed.key()) {
            self.queues.borrow_mut().push(Rc::clone(queue));
        }
        self.order.add(listed);
        !self.is_waited_for.replace(true)
    }

    /// The same for a shared queue, with the endpoint's seat.
    pub(super) fn register_shared_queue(&self, queue: &Rc<SharedQueue>, seat: usize) -> bool {
        let listed = LimitedQueue::Shared(Rc::clone(queue), seat);
        if self.listed.borrow_mut().insert(listed.key()) {
            self.shared_queues.borrow_mut().push((Rc::clone(queue), seat));
        }
        self.order.add(listed);
        !self.is_waited_for.replace(true)
    }

    /// Whether an exchange waits that this endpoint could serve.
    fn has_work_waiting(&self, now_ns: u64) -> bool {
        self.is_waited_for.get() && self.order.has_work(now_ns)
    }

    /// Grants permits to the exchanges that have waited longest in any of the queues, as far as the limit allows.
    fn admit(&self, now_ns: u64) {
        while self.is_waited_for.get() && self.has_room() && self.order.grant(now_ns) {
            self.in_use.set(self.in_use.get() + 1);
        }
    }

    /// Called with every tick while exchanges wait: raises a limit that is too low, and ends waits that have lasted too
    /// long. Returns whether it must be called again.
    pub(super) fn on_queue_tick(&self, now_ns: u64) -> bool {
        let mut listed = self.listed.borrow_mut();
        let mut stays = |queue: LimitedQueue| {
            let stays = !queue.is_empty();
            if !stays {
                listed.remove(&queue.key());
            }
            stays
        };
        self.shared_queues.borrow_mut().retain(|(queue, seat)| stays(LimitedQueue::Shared(Rc::clone(queue), *seat)));
        if self.has_work_waiting(now_ns) {
            // An endpoint with free permits is not stalled; it just has nothing to do.
            if !self.has_room() {
                self.limiter.raise_if_too_low(self.others_completed_ns(now_ns), now_ns);
            }
            self.admit(now_ns);
        }
        self.queues.borrow_mut().retain(|queue| {
            queue.look(now_ns);
            stays(LimitedQueue::Own(Rc::clone(queue)))
        });
        self.order.tidy();
        let is_waited_for = !self.queues.borrow().is_empty() || !self.shared_queues.borrow().is_empty();
        self.is_waited_for.set(is_waited_for);
        is_waited_for
    }

    /// If exchanges wait in shared queues only: when an endpoint of the upstream that has been served least recently last
    /// completed an exchange.
    fn others_completed_ns(&self, now_ns: u64) -> Option<u64> {
        if self.queues.borrow().iter().any(|queue| !queue.is_empty()) {
            return None;
        }
        let shared_queues = self.shared_queues.borrow();
        let waits = shared_queues.iter().filter(|(queue, seat)| !queue.is_empty() && queue.is_for(*seat, now_ns));
        waits.map(|(queue, _)| queue.last_completed_ns()).min()
    }
}
