//! Permits of an endpoint: one for each exchange it should have in flight. An exchange that finds none waits.

use std::rc::Rc;
use std::time::Duration;

use weir_plugin::Stop;

use super::queue::{Ticket, WaitOutcome, WorkingSet};
use super::{EndpointPool, SharedQueue};
use crate::context::WorkerContext;

/// The permit of one exchange in flight at an endpoint.
pub struct Permit<'w> {
    pub(super) worker: &'w Rc<WorkerContext>,
    pub(super) endpoint: Rc<EndpointPool>,
    /// When the permit was granted; `None` while the exchange waits, and after the endpoint has answered.
    since_ns: Option<u64>,
}

impl EndpointPool {
    /// A permit, if one is free: the endpoint has granted fewer than its limit.
    pub fn try_permit<'w>(self: &Rc<EndpointPool>, worker: &'w Rc<WorkerContext>) -> Option<Permit<'w>> {
        if !self.has_room() {
            return None;
        }
        self.in_use.set(self.in_use.get() + 1);
        self.in_flight.set(self.in_flight.get() + 1);
        Some(Permit { worker, endpoint: Rc::clone(self), since_ns: Some(worker.now_ns()) })
    }

    /// Waits for a permit: until `patience` after `since_ns`, unless the queue has a timeout of its own.
    pub async fn wait_for_permit<'w>(
        self: &Rc<EndpointPool>,
        worker: &'w Rc<WorkerContext>,
        since_ns: u64,
        patience: Duration,
        working_set: WorkingSet,
    ) -> Result<Permit<'w>, Stop> {
        // The exchange counts as in flight while it waits.
        self.in_flight.set(self.in_flight.get() + 1);
        let mut permit = Permit { worker, endpoint: Rc::clone(self), since_ns: None };
        let ticket = self.queue.enter(patience, since_ns, worker.now_ns(), working_set).ok_or(Stop::Overloaded)?;
        self.register_waiter();
        match (Queued { worker, endpoints: std::slice::from_ref(self), ticket: &ticket }).turn().await {
            WaitOutcome::Granted(_) => {
                permit.since_ns = Some(worker.now_ns());
                Ok(permit)
            }
            WaitOutcome::Expired | WaitOutcome::Again => Err(Stop::Overloaded),
        }
    }

    /// Whether a permit is free, so that one more exchange need not wait.
    pub fn has_room(&self) -> bool {
        self.in_use.get() < self.limiter.limit()
    }

    /// Whether an exchange waits that this endpoint could serve.
    fn is_waited_for(&self, now_ns: u64) -> bool {
        let waits = |(shared_queue, seat): &(Rc<SharedQueue>, usize)| {
            !shared_queue.is_empty() && shared_queue.is_for(*seat, now_ns)
        };
        !self.queue.is_empty() || self.shared_queues.borrow().iter().any(waits)
    }

    /// Returns a permit, and grants it to the exchange that has waited longest, as far as the limit allows.
    fn release(&self, now_ns: u64) {
        self.in_use.set(self.in_use.get() - 1);
        self.admit(now_ns);
    }

    fn admit(&self, now_ns: u64) {
        while self.has_waiters() && self.has_room() && self.grant(now_ns) {
            self.in_use.set(self.in_use.get() + 1);
        }
    }

    /// Whether an exchange waits in one of its queues, or did at the last tick.
    fn has_waiters(&self) -> bool {
        !self.queue.is_empty() || !self.shared_queues.borrow().is_empty()
    }

    /// Grants a permit to the exchange that has waited longest, in its own queue or a shared one; `false` if none waits.
    fn grant(&self, now_ns: u64) -> bool {
        let shared_queues = self.shared_queues.borrow();
        let serves = shared_queues
            .iter()
            .filter(|(shared_queue, seat)| shared_queue.is_for(*seat, now_ns) && shared_queue.has_share(*seat, now_ns));
        let longest = serves
            .filter_map(|(shared_queue, seat)| Some((shared_queue.oldest_ns()?, shared_queue, *seat)))
            .min_by_key(|one| one.0);
        match (longest, self.queue.oldest_ns()) {
            (Some((since_ns, shared_queue, seat)), own) if own.is_none_or(|own_ns| since_ns < own_ns) => {
                shared_queue.grant(seat)
            }
            (_, Some(_)) => self.queue.grant(0),
            (_, None) => false,
        }
    }

    /// Called with every tick while exchanges wait: raises a limit that is too low, and ends waits that have lasted too
    /// long. Returns whether it must be called again.
    pub(super) fn on_queue_tick(&self, now_ns: u64) -> bool {
        self.shared_queues.borrow_mut().retain(|(shared_queue, _)| !shared_queue.is_empty());
        if self.is_waited_for(now_ns) {
            // An endpoint with free permits is not stalled; it just has nothing to do.
            if !self.has_room() {
                self.limiter.raise_if_too_low(self.queue.is_empty(), now_ns);
            }
            self.admit(now_ns);
        }
        self.queue.look(now_ns);
        self.has_waiters()
    }
}

impl SharedQueue {
    /// Waits for a permit of the first endpoint that has one, and returns it with the endpoint's number; `None` if the
    /// exchange has to pick an endpoint again.
    pub async fn wait<'w>(
        self: &Rc<SharedQueue>,
        endpoints: &[Rc<EndpointPool>],
        worker: &'w Rc<WorkerContext>,
        since_ns: u64,
        patience: Duration,
        working_set: WorkingSet,
    ) -> Result<Option<(usize, Permit<'w>)>, Stop> {
        if self.is_empty() {
            let pools = endpoints.first().and_then(|endpoint| endpoint.pools.upgrade());
            pools.expect("the worker's pools outlive its exchanges").register_waiters(self, endpoints);
        }
        let ticket = self.enter(patience, since_ns, worker.now_ns(), working_set).ok_or(Stop::Overloaded)?;
        match (Queued { worker, endpoints, ticket: &ticket }).turn().await {
            WaitOutcome::Granted(seat) => {
                let endpoint = Rc::clone(&endpoints[seat]);
                endpoint.in_flight.set(endpoint.in_flight.get() + 1);
                Ok(Some((seat, Permit { worker, endpoint, since_ns: Some(worker.now_ns()) })))
            }
            WaitOutcome::Again => Ok(None),
            WaitOutcome::Expired => Err(Stop::Overloaded),
        }
    }
}

/// A place in a queue. It is left when dropped, also when the client has gone away in the meantime.
struct Queued<'a> {
    worker: &'a WorkerContext,
    /// The endpoints that may grant it a permit.
    endpoints: &'a [Rc<EndpointPool>],
    ticket: &'a Ticket,
}

impl Queued<'_> {
    async fn turn(self) -> WaitOutcome {
        self.worker.metrics.upstream_queued.increment();
        let outcome = self.ticket.turn().await;
        self.ticket.leave(); // the permit is taken over by the caller, so dropping this must not return it
        outcome
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.worker.metrics.upstream_queued.decrement();
        if let Some(seat) = self.ticket.leave() {
            self.endpoints[seat].release(self.worker.now_ns());
        }
    }
}

impl<'w> Permit<'w> {
    pub fn worker(&self) -> &'w Rc<WorkerContext> {
        self.worker
    }

    pub fn endpoint(&self) -> &Rc<EndpointPool> {
        &self.endpoint
    }

    /// Exchanges this permit for another at the same endpoint, behind the exchanges that wait already.
    pub(super) async fn again(self, patience: Duration) -> Result<Permit<'w>, Stop> {
        let (worker, endpoint) = (self.worker, Rc::clone(&self.endpoint));
        drop(self);
        match endpoint.try_permit(worker) {
            Some(permit) => Ok(permit),
            None => {
                let working_set = WorkingSet::default();
                Box::pin(endpoint.wait_for_permit(worker, worker.now_ns(), patience, working_set)).await
            }
        }
    }

    /// Returns the permit when the endpoint has answered: the rest of the response, however long, does not count as work in
    /// progress.
    pub(super) fn answered(&mut self) {
        if let Some(since_ns) = self.since_ns.take() {
            let now_ns = self.worker.now_ns();
            self.endpoint.limiter.completed(since_ns, now_ns, self.endpoint.is_waited_for(now_ns));
            if self.endpoint.goes_by_latency.get() {
                self.endpoint.latency.record(now_ns.saturating_sub(since_ns), now_ns);
            }
            self.endpoint.release(now_ns);
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.since_ns.is_some() {
            self.endpoint.release(self.worker.now_ns());
        }
        self.endpoint.in_flight.set(self.endpoint.in_flight.get() - 1);
    }
}
