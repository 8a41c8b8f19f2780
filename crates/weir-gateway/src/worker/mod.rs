//! One worker: a thread with its own runtime, listeners, connections, pools and numbers. Workers share nothing on the
//! path of a request.

mod accept;
pub mod commands;
pub mod meter;
pub mod progress;
pub mod rebalance;
pub mod snapshot;
pub mod thread;
mod tick;

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Notify;
use weir_net::clock::Clock;
use weir_net::timer::Wheel;
use weir_plugin::Exchange;
use weir_telemetry::metrics::WorkerMetrics;

use crate::access_log::AccessLogWriter;
use crate::endpoint::pool::Pools;
use crate::worker::meter::Meter;
use crate::worker::snapshot::WorkerSnapshot;

/// Bytes read from a socket at once.
pub const READ_BYTES: usize = 64 * 1024;
/// Exchanges and buffers kept for the next user; more are given back to the allocator.
const KEEP: usize = 512;
/// An exchange that has grown larger than this, in bytes, is not kept: few are, and somebody might make all of them so.
const KEPT_EXCHANGE: usize = 32 * 1024;

/// What everything on one thread shares. Only this thread touches it.
pub struct Worker {
    clock: Clock,
    now_ns: Cell<u64>,
    /// A timer for each client connection. All are woken when the phase changes.
    pub wheel: Wheel,
    pub pools: Pools,
    pub metrics: Arc<WorkerMetrics>,
    pub access_log: Option<AccessLogWriter>,
    pub meter: Meter,
    current: RefCell<Rc<WorkerSnapshot>>,
    read_buffer: RefCell<Box<[u8]>>,
    write_buffer: RefCell<Vec<u8>>,
    // Boxed, since they are handed out: moving an exchange would copy half a kilobyte.
    #[allow(clippy::vec_box)]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    buffers: RefCell<Vec<Vec<u8>>>,
    date: RefCell<Date>,
    phase: Cell<WorkerPhase>,
    phase_since_ns: Cell<u64>,
    phase_change: Notify,
    tasks: Cell<usize>,
    next_connection: Cell<u64>,
    index: usize,
}

#[derive(Default)]
struct Date {
    text: String,
    until_ns: u64,
}

/// Where the worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerPhase {
    Serving,
    /// Accepts nothing new, ends connections when their exchange ends.
    Draining,
    /// Ends every exchange now.
    Stopping,
}

impl Worker {
    pub fn new(
        index: usize,
        clock: Clock,
        metrics: Arc<WorkerMetrics>,
        access_log: Option<AccessLogWriter>,
        pools: Pools,
        current: WorkerSnapshot,
    ) -> Worker {
        let meter = Meter::default();
        meter.measure_one_in(current.snapshot.price_every);
        Worker {
            clock,
            now_ns: Cell::new(clock.now_ns()),
            wheel: Wheel::new(clock.now_ns()),
            pools,
            metrics,
            access_log,
            meter,
            current: RefCell::new(Rc::new(current)),
            read_buffer: RefCell::new(vec![0; READ_BYTES].into_boxed_slice()),
            write_buffer: RefCell::new(Vec::with_capacity(2 * READ_BYTES)),
            exchanges: RefCell::default(),
            buffers: RefCell::default(),
            date: RefCell::default(),
            phase: Cell::new(WorkerPhase::Serving),
            phase_since_ns: Cell::new(0),
            phase_change: Notify::new(),
            tasks: Cell::new(0),
            next_connection: Cell::new(0),
            index,
        }
    }

    /// The time of the last look at the clock. A task looks when it wakes up; what it does until it waits again happens
    /// at that time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    /// Looks at the clock.
    pub fn wake_up(&self) -> u64 {
        let now_ns = self.clock.now_ns();
        self.now_ns.set(now_ns);
        now_ns
    }

    /// The configuration new exchanges see.
    pub fn current(&self) -> Rc<WorkerSnapshot> {
        Rc::clone(&self.current.borrow())
    }

    pub fn replace(&self, current: WorkerSnapshot) {
        self.meter.measure_one_in(current.snapshot.price_every);
        self.current.replace(Rc::new(current));
    }

    /// Reads into the worker's buffer; it must not be held across a wait.
    pub fn with_read_buffer<T>(&self, read: impl FnOnce(&mut [u8]) -> T) -> T {
        read(&mut self.read_buffer.borrow_mut())
    }

    /// Lends an empty buffer to write into; it must not be held across a wait.
    pub fn with_write_buffer<T>(&self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut buffer = self.write_buffer.borrow_mut();
        buffer.clear();
        write(&mut buffer)
    }

    pub fn take_exchange(&self) -> Box<Exchange> {
        self.exchanges.borrow_mut().pop().unwrap_or_default()
    }

    pub fn give_exchange(&self, mut exchange: Box<Exchange>) {
        exchange.clear();
        let mut exchanges = self.exchanges.borrow_mut();
        if exchanges.len() < KEEP && exchange.capacity() <= KEPT_EXCHANGE {
            exchanges.push(exchange);
        }
    }

    /// Puts bytes aside that a peer does not take yet, or that are not understood yet.
    pub fn stash(&self, stash: &mut Vec<u8>, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if stash.capacity() == 0
            && let Some(buffer) = self.buffers.borrow_mut().pop()
        {
            *stash = buffer;
        }
        stash.extend_from_slice(bytes);
    }

    /// Takes the first `count` bytes out of a stash. Empty, it gives its memory back: idle connections own no buffer.
    pub fn consume(&self, stash: &mut Vec<u8>, count: usize) {
        if count < stash.len() {
            stash.drain(..count);
            return;
        }
        self.release(stash);
    }

    pub fn release(&self, stash: &mut Vec<u8>) {
        if stash.capacity() == 0 {
            return;
        }
        let mut buffer = std::mem::take(stash);
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < KEEP && buffer.capacity() <= 2 * READ_BYTES {
            buffer.clear();
            buffers.push(buffer);
        }
    }

    /// The `Date` of an answer made here (RFC 9110 §6.6.1), formatted ten times a second at most.
    pub fn with_date<T>(&self, now_ns: u64, use_it: impl FnOnce(&str) -> T) -> T {
        let mut date = self.date.borrow_mut();
        if now_ns >= date.until_ns {
            date.until_ns = now_ns + 100_000_000;
            date.text = httpdate::fmt_http_date(SystemTime::now());
        }
        use_it(&date.text)
    }

    /// A number for a client connection, unique in this process.
    pub fn number_connection(&self) -> u64 {
        let number = self.next_connection.get() + 1;
        self.next_connection.set(number);
        number << 8 | self.index as u64
    }

    /// Counts something that has to end before the worker can, until the guard is dropped.
    pub fn task(self: &Rc<Worker>) -> TaskGuard {
        self.tasks.set(self.tasks.get() + 1);
        self.metrics.connections_held.set(self.tasks.get() as u64);
        TaskGuard(Rc::clone(self))
    }

    /// Connections and whatever else must end before the worker can.
    pub fn tasks(&self) -> usize {
        self.tasks.get()
    }

    pub fn index(&self) -> usize {
        self.index
    }

    /// Completes when a later phase is entered.
    pub async fn phase_change(&self) {
        self.phase_change.notified().await;
    }

    pub fn phase(&self) -> WorkerPhase {
        self.phase.get()
    }

    /// When the phase began; 0 for the first.
    pub fn phase_since_ns(&self) -> u64 {
        self.phase_since_ns.get()
    }

    /// Enters a later phase and wakes every connection.
    pub fn enter(&self, phase: WorkerPhase) {
        if phase > self.phase.get() {
            self.phase.set(phase);
            self.phase_since_ns.set(self.wake_up());
            self.phase_change.notify_waiters();
            self.wheel.wake_all();
        }
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
        self.0.tasks.set(self.0.tasks.get() - 1);
        self.0.metrics.connections_held.set(self.0.tasks.get() as u64);
    }
}
