//! What all connections of one worker share: the current snapshot, pools, metrics. Workers share nothing on the path of a request.

pub(crate) mod client_connections;
pub(crate) mod snapshot;

use std::cell::{Cell, OnceCell, RefCell};
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use weir_plugin::HeldBudget;

use crate::context::WorkerContext;
use crate::context::lifecycle::ServicePhase;
use crate::endpoint::pool::Pools;
use client_connections::{ClientConnectionPermit, ClientConnections};
use snapshot::WorkerSnapshot;

/// The state that all connections of one thread share. Only this thread uses it.
pub(crate) struct Worker {
    context: Rc<WorkerContext>,
    pub pools: Rc<Pools>,
    current: RefCell<Rc<WorkerSnapshot>>,
    next_connection: Cell<u64>,
    index: usize,
    clients: Arc<ClientConnections>,
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        context: Rc<WorkerContext>,
        pools: Rc<Pools>,
        current: WorkerSnapshot,
        clients: Arc<ClientConnections>,
    ) -> Worker {
        context.meter.measure_one_in(current.snapshot.price_every);
        context.identities.replace(&current.snapshot.identities);
        HeldBudget::of_process().set_limits(current.snapshot.clients.held);
        let current = RefCell::new(Rc::new(current));
        Worker { context, pools, current, next_connection: Cell::new(0), index, clients }
    }

    pub(crate) fn context(&self) -> &Rc<WorkerContext> {
        &self.context
    }

    /// The snapshot that new exchanges use.
    pub(crate) fn current(&self) -> Rc<WorkerSnapshot> {
        Rc::clone(&self.current.borrow())
    }

    pub(crate) fn replace(&self, current: WorkerSnapshot) {
        self.meter.measure_one_in(current.snapshot.price_every);
        if self.identities.replace(&current.snapshot.identities) {
            self.wheel.wake_all();
        }
        HeldBudget::of_process().set_limits(current.snapshot.clients.held);
        self.current.replace(Rc::new(current));
    }

    /// A number for a client connection, unique in this process.
    pub(crate) fn number_connection(&self) -> u64 {
        let number = self.next_connection.get() + 1;
        self.next_connection.set(number);
        number << 8 | self.index as u64
    }

    /// Counts a task that has to end before the worker can, until the guard is dropped. `service` is the phase of the
    /// listener that the task belongs to.
    pub(crate) fn task(self: &Rc<Worker>, service: &Rc<ServicePhase>) -> TaskGuard {
        self.metrics.connections_held.set(self.lifecycle.add_task() as u64);
        TaskGuard { worker: Rc::clone(self), service: Rc::clone(service), place: OnceCell::new() }
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

impl Deref for Worker {
    type Target = Rc<WorkerContext>;

    fn deref(&self) -> &Rc<WorkerContext> {
        &self.context
    }
}

/// Keeps a worker running: it ends only after all its guards have been dropped.
pub(crate) struct TaskGuard {
    worker: Rc<Worker>,
    service: Rc<ServicePhase>,
    place: OnceCell<ClientConnectionPermit>,
}

impl TaskGuard {
    /// The phase of the listener that the task belongs to.
    pub(crate) fn service(&self) -> &Rc<ServicePhase> {
        &self.service
    }

    /// Counts the connection among those of a client, once; `false` if the client has as many as it may.
    pub(crate) fn claim(&self, client: IpAddr) -> bool {
        let current = self.worker.current();
        let clients = &self.worker.clients;
        let Some(most) = current.snapshot.clients.connection_limit(client, clients.room()) else { return true };
        if self.place.get().is_some() {
            return true;
        }
        let Some(place) = clients.claim(client, most) else {
            self.worker.metrics.connections_over_share.increment();
            if clients.should_log(self.worker.now_ns()) {
                tracing::warn!(
                    "new connections of {client} are closed: the limit of {most} connections for one client address is \
                     reached; if the client is a load balancer, add it to trusted_addresses, or set client_max_connections"
                );
            }
            return false;
        };
        self.place.set(place).is_ok()
    }
}

impl Deref for TaskGuard {
    type Target = Rc<Worker>;

    fn deref(&self) -> &Rc<Worker> {
        &self.worker
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.worker.metrics.connections_held.set(self.worker.lifecycle.end_task() as u64);
    }
}
