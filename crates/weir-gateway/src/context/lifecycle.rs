//! Where a worker is in its life, and what has to end before it can.

use std::cell::Cell;

use tokio::sync::Notify;

/// Where the worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerPhase {
    Serving,
    /// Accepts nothing new, ends connections when their exchange ends.
    Draining,
    /// Ends every exchange now.
    Stopping,
}

pub struct Lifecycle {
    phase: Cell<WorkerPhase>,
    since_ns: Cell<u64>,
    /// When everything will be ended; `u64::MAX` while that is not known.
    end_ns: Cell<u64>,
    change: Notify,
    tasks: Cell<usize>,
    is_full: Cell<bool>,
    full_said_ns: Cell<u64>,
    /// When the log was told, 0 if never.
    full_logged_ns: Cell<u64>,
}

/// The longest time over which streams leave.
const LONGEST_LEAVING_NS: u64 = 10_000_000_000;

/// The log is told of a shortage once in this long.
const FULL_LOG_NS: u64 = 60_000_000_000;

/// What a connection that carries no exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Its client has sent nothing worth an answer yet.
    FirstByte,
    /// A head or a handshake has begun.
    RestOfHead,
    NextRequest,
}

/// While there is no room for another connection, one on which nothing was ever sent is closed after this long,
const FULL_FIRST_BYTE_NS: u64 = 1_000_000_000;
/// one whose head or handshake is not complete after this long,
const FULL_HEAD_NS: u64 = 3_000_000_000;
/// and one that waits for its next request after this long.
const FULL_IDLE_NS: u64 = 30_000_000_000;
/// While that lasts, idle connections are told once in this long.
const FULL_AGAIN_NS: u64 = 1_000_000_000;

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            phase: Cell::new(WorkerPhase::Serving),
            since_ns: Cell::new(0),
            end_ns: Cell::new(u64::MAX),
            change: Notify::new(),
            tasks: Cell::new(0),
            is_full: Cell::new(false),
            full_said_ns: Cell::new(0),
            full_logged_ns: Cell::new(0),
        }
    }
}

impl Lifecycle {
    #[inline]
    pub fn phase(&self) -> WorkerPhase {
        self.phase.get()
    }

    /// When the phase began; 0 for the first.
    pub fn phase_since_ns(&self) -> u64 {
        self.since_ns.get()
    }

    pub(super) fn set_end(&self, end_ns: u64) {
        self.end_ns.set(end_ns);
    }

    /// When a stream without an end of its own is to leave, so that clients do not come back all at once: in the last quarter
    /// of draining, 10 s at most. `number` is that of its connection.
    pub fn leave_ns(&self, number: u64) -> u64 {
        let end_ns = self.end_ns.get();
        if self.phase.get() == WorkerPhase::Serving || end_ns == u64::MAX {
            return u64::MAX;
        }
        let window_ns = (end_ns.saturating_sub(self.since_ns.get()) / 4).min(LONGEST_LEAVING_NS);
        // Numbers in a row, spread evenly (Fibonacci hashing); the last tenth is for what has to be sent.
        let share = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        end_ns - window_ns + ((u128::from(window_ns) * 9 / 10 * u128::from(share)) >> 32) as u64
    }

    /// Completes when a later phase is entered.
    pub async fn phase_change(&self) {
        self.change.notified().await;
    }

    /// Enters a later phase; `false` if that phase, or a later one, was entered before.
    pub(super) fn enter(&self, phase: WorkerPhase, now_ns: u64) -> bool {
        let is_later = phase > self.phase.get();
        if is_later {
            self.phase.set(phase);
            self.since_ns.set(now_ns);
            self.change.notify_waiters();
        }
        is_later
    }

    /// There is room for another connection, or there is none. `true` if those that wait should be told now.
    pub(super) fn set_connections_full(&self, is_full: bool, now_ns: u64) -> bool {
        self.is_full.set(is_full);
        let is_due = is_full && now_ns >= self.full_said_ns.get() + FULL_AGAIN_NS;
        if is_due {
            self.full_said_ns.set(now_ns);
        }
        is_due
    }

    /// Whether the log is to be told that there is no room.
    pub(super) fn is_new_shortage(&self) -> bool {
        let (now_ns, logged_ns) = (self.full_said_ns.get(), self.full_logged_ns.get());
        let is_due = logged_ns == 0 || now_ns >= logged_ns + FULL_LOG_NS;
        if is_due {
            self.full_logged_ns.set(now_ns.max(1));
        }
        is_due
    }

    /// How long a connection may wait where no room is left for others; it is the longest-waiting that goes, and before
    /// those that have been of use those that never were.
    pub(super) fn patience_ns(&self, waits_for: WaitsFor) -> u64 {
        match waits_for {
            _ if !self.is_full.get() => u64::MAX,
            WaitsFor::FirstByte => FULL_FIRST_BYTE_NS,
            WaitsFor::RestOfHead => FULL_HEAD_NS,
            WaitsFor::NextRequest => FULL_IDLE_NS,
        }
    }

    /// Connections and whatever else must end before the worker can.
    pub fn tasks(&self) -> usize {
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
