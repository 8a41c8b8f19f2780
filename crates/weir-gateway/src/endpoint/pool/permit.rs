//! Permits of an endpoint: one for each exchange it should have in flight. An exchange that finds none waits.

use std::rc::Rc;
use std::time::Duration;

use weir_plugin::Stop;

use super::queue::{Ticket, WaitOutcome, WorkingSet};
use super::{EndpointPool, Pools, SharedQueue};
use crate::context::WorkerContext;

/// The permit of one exchange in flight at an endpoint.
pub(crate) struct Permit<'w> {
    pub(super) worker: &'w Rc<WorkerContext>,
    pub(super) endpoint: Rc<EndpointPool>,
    /// When the permit was granted; `None` after the endpoint has answered.
    since_ns: Option<u64>,
}

impl EndpointPool {
    /// A permit, if one is free: fewer than the limit are granted.
    pub(crate) fn try_permit<'w>(self: &Rc<EndpointPool>, worker: &'w Rc<WorkerContext>) -> Option<Permit<'w>> {
        self.limit.take().then(|| Permit::granted(worker, Rc::clone(self)))
    }

    /// A permit for a stream, which is in flight as long as it is open. A limit that is found by measuring requests says nothing about
    /// streams, so they are not held to it.
    pub(crate) fn try_stream_permit<'w>(self: &Rc<EndpointPool>, worker: &'w Rc<WorkerContext>) -> Option<Permit<'w>> {
        if !self.limit.limiter().is_found() {
            return self.try_permit(worker);
        }
        let mut permit = Permit::granted(worker, Rc::clone(self));
        permit.since_ns = None;
        Some(permit)
    }

    /// Waits until one of the streams that are open has ended.
    pub(crate) async fn wait_for_stream_permit<'w>(
        self: &Rc<EndpointPool>,
        worker: &'w Rc<WorkerContext>,
        since_ns: u64,
        patience: Duration,
    ) -> Result<Permit<'w>, Stop> {
        self.wait_for_permit(worker, since_ns, patience, WorkingSet::default()).await
    }

    /// Waits for a permit: until `patience` after `since_ns`, unless the queue has a timeout of its own.
    pub(crate) async fn wait_for_permit<'w>(
        self: &Rc<EndpointPool>,
        worker: &'w Rc<WorkerContext>,
        since_ns: u64,
        patience: Duration,
        working_set: WorkingSet,
    ) -> Result<Permit<'w>, Stop> {
        let ticket = self.queue.enter(patience, since_ns, worker.now_ns(), working_set).ok_or(Stop::Overloaded)?;
        let _waits = self.limit.count_waiting();
        if self.limit.register_queue(&self.queue) {
            self.worker_pools().check_queues_each_tick(&self.limit);
        }
        match (Queued { worker, endpoints: std::slice::from_ref(self), ticket: &ticket }).turn().await {
            WaitOutcome::Granted(_) => Ok(Permit::granted(worker, Rc::clone(self))),
            WaitOutcome::Expired | WaitOutcome::Again => Err(Stop::Overloaded),
        }
    }

    fn worker_pools(&self) -> Rc<Pools> {
        self.machine.pools.upgrade().expect("the worker's pools outlive its exchanges")
    }
}

impl SharedQueue {
    /// Waits for a permit of the first endpoint that has one, and returns it with the endpoint's number; `None` if the
    /// exchange has to pick an endpoint again.
    pub(crate) async fn wait<'w>(
        self: &Rc<SharedQueue>,
        endpoints: &[Rc<EndpointPool>],
        worker: &'w Rc<WorkerContext>,
        since_ns: u64,
        patience: Duration,
        working_set: WorkingSet,
    ) -> Result<Option<(usize, Permit<'w>)>, Stop> {
        if self.is_empty()
            && let Some(endpoint) = endpoints.first()
        {
            endpoint.worker_pools().register_waiters(self, endpoints);
        }
        let ticket = self.enter(patience, since_ns, worker.now_ns(), working_set).ok_or(Stop::Overloaded)?;
        match (Queued { worker, endpoints, ticket: &ticket }).turn().await {
            WaitOutcome::Granted(seat) => Ok(Some((seat, Permit::granted(worker, Rc::clone(&endpoints[seat]))))),
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
            self.endpoints[seat].limit.release(self.worker.now_ns());
        }
    }
}

impl<'w> Permit<'w> {
    /// The permit of an exchange that the limit has counted already.
    fn granted(worker: &'w Rc<WorkerContext>, endpoint: Rc<EndpointPool>) -> Permit<'w> {
        let in_flight = &endpoint.machine.in_flight;
        in_flight.set(in_flight.get() + 1);
        Permit { worker, endpoint, since_ns: Some(worker.now_ns()) }
    }

    pub(crate) fn worker(&self) -> &'w Rc<WorkerContext> {
        self.worker
    }

    pub(crate) fn endpoint(&self) -> &Rc<EndpointPool> {
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
            let EndpointPool { machine, limit, group, records_latency, .. } = &*self.endpoint;
            limit.completed(group, since_ns, now_ns);
            if *records_latency {
                machine.latency.record(now_ns.saturating_sub(since_ns), now_ns);
            }
            limit.release(now_ns);
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let EndpointPool { machine, limit, .. } = &*self.endpoint;
        if self.since_ns.is_some() {
            limit.release(self.worker.now_ns());
        }
        machine.in_flight.set(machine.in_flight.get() - 1);
    }
}
