//! The phases of a worker, and the tasks that must end before the worker can.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use tokio::sync::Notify;

/// A worker's phase. Phases are entered in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkerPhase {
    Serving,
    /// Accepts no connections, and closes each one when its exchange ends.
    Draining,
    /// Ends every exchange at once.
    Stopping,
}

/// The number of a listener in this process, from 1. A later one has a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// The phase of the connections of one listener: that of the worker, or a later one after the listener was closed.
#[derive(Debug)]
pub(crate) struct ServicePhase {
    listener: ListenerId,
    /// The local address of its connections, if it is known to be the same for all.
    local: Cell<Option<SocketAddr>>,
    phase: Cell<WorkerPhase>,
    since_ns: Cell<u64>,
    /// When draining ends and stopping begins; `u64::MAX` if not known.
    end_ns: Cell<u64>,
    change: Notify,
}

impl ServicePhase {
    fn new(listener: ListenerId) -> ServicePhase {
        ServicePhase {
            listener,
            local: Cell::new(None),
            phase: Cell::new(WorkerPhase::Serving),
            since_ns: Cell::new(0),
            end_ns: Cell::new(u64::MAX),
            change: Notify::new(),
        }
    }

    pub(crate) fn listener(&self) -> ListenerId {
        self.listener
    }

    /// The listener is open. `local`: the local address of all its connections.
    pub(crate) fn open_at(&self, local: Option<SocketAddr>) {
        self.local.set(local.map(canonical));
    }

    /// The local address of a connection. The socket is `asked` only if it is not known. A connection without one has been reset.
    pub(crate) fn local_addr(&self, asked: impl FnOnce() -> io::Result<SocketAddr>) -> Option<SocketAddr> {
        self.local.get().or_else(|| asked().ok().map(canonical))
    }

    #[inline]
    pub(crate) fn phase(&self) -> WorkerPhase {
        self.phase.get()
    }

    /// When the phase began; 0 for the first.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns.get()
    }

    /// When a stream without an end of its own should be ended. The times are spread over the last quarter of draining, 10
    /// s at most, so that clients do not all reconnect at once. `number` is that of its connection.
    pub(crate) fn leave_ns(&self, number: u64) -> u64 {
        let end_ns = self.end_ns.get();
        if self.phase.get() == WorkerPhase::Serving || end_ns == u64::MAX {
            return u64::MAX;
        }
        let window_ns = (end_ns.saturating_sub(self.since_ns.get()) / 4).min(LONGEST_LEAVING_NS);
        // Consecutive numbers are spread evenly (Fibonacci hashing); the last tenth is left for sending the rest.
        let share = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        end_ns - window_ns + ((u128::from(window_ns) * 9 / 10 * u128::from(share)) >> 32) as u64
    }

    /// Completes when a later phase is entered.
    pub(crate) async fn change(&self) {
        self.change.notified().await;
    }

    /// Enters a later phase; `false` if that phase, or a later one, was entered before.
    fn enter(&self, phase: WorkerPhase, now_ns: u64) -> bool {
        let is_later = phase > self.phase.get();
        if is_later {
            self.phase.set(phase);
            self.since_ns.set(now_ns);
            self.change.notify_waiters();
        }
        is_later
    }
}

/// A dual-stack listener reports addresses of IPv4 as `::ffff:192.0.2.1`; they are turned into `192.0.2.1`.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

pub(crate) struct Lifecycle {
    /// That of the worker itself.
    service: ServicePhase,
    /// Those of its listeners, open or closed, as long as one of their connections is open.
    services: RefCell<Vec<Weak<ServicePhase>>>,
    tasks: Cell<usize>,
    /// Sessions of datagrams, on all sockets; they are tasks, too.
    pub sessions: Cell<usize>,
    /// Until when the present shortage of connections lasts, if the limit is not reached again.
    full_until_ns: Cell<u64>,
    /// When the next second of a shortage may be counted.
    next_full_second_ns: Cell<u64>,
    /// When the shortage was last logged; 0 if never.
    full_logged_ns: Cell<u64>,
}

/// The longest interval over which the ends of long streams are spread.
const LONGEST_LEAVING_NS: u64 = 10_000_000_000;

/// The least time between two log messages about a shortage of connections.
const FULL_LOG_NS: u64 = 60_000_000_000;

/// What a connection that carries no exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The client has sent nothing yet that needs an answer.
    FirstByte,
    /// A head or a handshake has begun.
    RestOfHead,
    NextRequest,
}

/// While the worker is at its connection limit, a connection on which nothing was ever sent is closed after this long: a client sends
/// its first bytes right after the packet that completes the connection. Clients that wait to be accepted wait for several rounds of it,
/// if those before them are silent.
const FULL_FIRST_BYTE_NS: u64 = 120_000_000;
/// one whose head or handshake is not complete after this long,
const FULL_HEAD_NS: u64 = 3_000_000_000;
/// and one that waits for its next request after this long.
const FULL_IDLE_NS: u64 = 30_000_000_000;
/// A shortage ends when the limit was not reached for this long. Connections that are accepted in between have its time limits, too.
const SHORTAGE_NS: u64 = 200_000_000;
/// While the shortage lasts, idle connections are woken to check these limits at most once in this time.
const FULL_AGAIN_NS: u64 = 1_000_000_000;

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            service: ServicePhase::new(ListenerId::default()),
            services: RefCell::default(),
            tasks: Cell::new(0),
            sessions: Cell::new(0),
            full_until_ns: Cell::new(0),
            next_full_second_ns: Cell::new(0),
            full_logged_ns: Cell::new(0),
        }
    }
}

impl Lifecycle {
    #[inline]
    pub(crate) fn phase(&self) -> WorkerPhase {
        self.service.phase()
    }

    /// The worker's own phase, for what no listener has accepted.
    pub(crate) fn service(&self) -> &ServicePhase {
        &self.service
    }

    /// A new phase, for the connections of a listener. It follows that of the worker.
    pub(crate) fn begin_service(&self, listener: ListenerId) -> Rc<ServicePhase> {
        let service = Rc::new(ServicePhase::new(listener));
        service.phase.set(self.service.phase());
        service.since_ns.set(self.service.since_ns());
        service.end_ns.set(self.service.end_ns.get());
        let mut services = self.services.borrow_mut();
        services.retain(|known| known.upgrade().is_some());
        services.push(Rc::downgrade(&service));
        service
    }

    /// The phase of a listener's connections, if there are any, or it is open.
    pub(crate) fn service_of(&self, listener: ListenerId) -> Option<Rc<ServicePhase>> {
        self.services.borrow().iter().filter_map(Weak::upgrade).find(|service| service.listener == listener)
    }

    /// Begins to drain the connections of one listener until `end_ns`.
    pub(super) fn drain_service(&self, service: &ServicePhase, now_ns: u64, end_ns: u64) {
        service.end_ns.set(service.end_ns.get().min(end_ns));
        service.enter(WorkerPhase::Draining, now_ns);
    }

    /// Stops the connections of closed listeners whose time to drain is over; `true` if there were any. While the whole worker
    /// drains, its end is decided elsewhere.
    pub(super) fn stop_drained(&self, now_ns: u64) -> bool {
        if self.phase() != WorkerPhase::Serving {
            return false;
        }
        let services = self.services.borrow();
        let due = services
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|service| service.phase() == WorkerPhase::Draining && service.end_ns.get() <= now_ns);
        due.map(|service| service.enter(WorkerPhase::Stopping, now_ns)).fold(false, |any, is_later| any | is_later)
    }

    /// Sets the end of draining, for everything that the worker serves.
    pub(super) fn set_end(&self, end_ns: u64) {
        self.service.end_ns.set(end_ns);
        for service in self.services.borrow().iter().filter_map(Weak::upgrade) {
            service.end_ns.set(service.end_ns.get().min(end_ns));
        }
    }

    /// Enters a later phase; `false` if that phase, or a later one, was entered before.
    pub(super) fn enter(&self, phase: WorkerPhase, now_ns: u64) -> bool {
        for service in self.services.borrow().iter().filter_map(Weak::upgrade) {
            service.enter(phase, now_ns);
        }
        self.service.enter(phase, now_ns)
    }

    /// Notes that the worker is at its connection limit. `true` if idle connections should be woken now: at the beginning of a
    /// shortage, and once for each second of it.
    pub(super) fn note_shortage(&self, now_ns: u64) -> bool {
        let is_new = self.full_until_ns.replace(now_ns + SHORTAGE_NS) <= now_ns;
        is_new || now_ns >= self.next_full_second_ns.get()
    }

    /// Whether another second of shortage is to be counted.
    pub(super) fn is_counted_second(&self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.next_full_second_ns.get();
        if is_due {
            self.next_full_second_ns.set(now_ns + FULL_AGAIN_NS);
        }
        is_due
    }

    /// Whether the shortage should be logged now.
    pub(super) fn is_logged_shortage(&self, now_ns: u64) -> bool {
        let logged_ns = self.full_logged_ns.get();
        let is_due = logged_ns == 0 || now_ns >= logged_ns + FULL_LOG_NS;
        if is_due {
            self.full_logged_ns.set(now_ns.max(1));
        }
        is_due
    }

    pub(super) fn is_full(&self, now_ns: u64) -> bool {
        self.full_until_ns.get() > now_ns
    }

    /// How long a connection may wait while the worker is at its connection limit. Connections that have carried a request
    /// may wait longer than those that have not.
    pub(super) fn patience_ns(&self, waits_for: WaitsFor, now_ns: u64) -> u64 {
        match waits_for {
            _ if !self.is_full(now_ns) => u64::MAX,
            WaitsFor::FirstByte => FULL_FIRST_BYTE_NS,
            WaitsFor::RestOfHead => FULL_HEAD_NS,
            WaitsFor::NextRequest => FULL_IDLE_NS,
        }
    }

    /// The number of tasks (connections and others) that must end before the worker can.
    pub(crate) fn tasks(&self) -> usize {
        self.tasks.get()
    }

    pub(crate) fn add_task(&self) -> usize {
        self.tasks.set(self.tasks.get() + 1);
        self.tasks.get()
    }

    pub(crate) fn end_task(&self) -> usize {
        self.tasks.set(self.tasks.get() - 1);
        self.tasks.get()
    }
}
