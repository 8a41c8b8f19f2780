//! One worker: a thread with its own runtime, listeners, connections, pools and metrics. Workers share nothing on the
//! path of a request.

mod accept;
pub mod commands;
pub mod progress;
pub mod rebalance;
pub mod snapshot;
mod start_connection;
pub mod thread;
mod tick;

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use weir_plugin::HeldBudget;

use crate::context::WorkerContext;
use crate::endpoint::pool::Pools;
use snapshot::WorkerSnapshot;

/// What is behind every connection of one thread. Only this thread touches it.
pub struct Worker {
    context: Rc<WorkerContext>,
    pub pools: Rc<Pools>,
    current: RefCell<Rc<WorkerSnapshot>>,
    next_connection: Cell<u64>,
    index: usize,
}

impl Worker {
    pub fn new(index: usize, context: Rc<WorkerContext>, pools: Rc<Pools>, current: WorkerSnapshot) -> Worker {
        context.meter.measure_one_in(current.snapshot.price_every);
        HeldBudget::of_process().set_limits(current.snapshot.clients.held);
        Worker { context, pools, current: RefCell::new(Rc::new(current)), next_connection: Cell::new(0), index }
    }

    pub fn context(&self) -> &Rc<WorkerContext> {
        &self.context
    }

    /// The configuration new exchanges see.
    pub fn current(&self) -> Rc<WorkerSnapshot> {
        Rc::clone(&self.current.borrow())
    }

    pub fn replace(&self, current: WorkerSnapshot) {
        self.meter.measure_one_in(current.snapshot.price_every);
        HeldBudget::of_process().set_limits(current.snapshot.clients.held);
        self.current.replace(Rc::new(current));
    }

    /// A number for a client connection, unique in this process.
    pub fn number_connection(&self) -> u64 {
        let number = self.next_connection.get() + 1;
        self.next_connection.set(number);
        number << 8 | self.index as u64
    }

    /// Counts something that has to end before the worker can, until the guard is dropped.
    pub fn task(self: &Rc<Worker>) -> TaskGuard {
        self.metrics.connections_held.set(self.lifecycle.add_task() as u64);
        TaskGuard(Rc::clone(self))
    }

    pub fn index(&self) -> usize {
        self.index
    }
}

impl Deref for Worker {
    type Target = Rc<WorkerContext>;

    fn deref(&self) -> &Rc<WorkerContext> {
        &self.context
    }
}

/// A hold on a worker by something that must end before it can.
pub struct TaskGuard(Rc<Worker>);

impl Deref for TaskGuard {
    type Target = Rc<Worker>;

    fn deref(&self) -> &Rc<Worker> {
        &self.0
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.metrics.connections_held.set(self.0.lifecycle.end_task() as u64);
    }
}
