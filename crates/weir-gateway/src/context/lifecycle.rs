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
    change: Notify,
    tasks: Cell<usize>,
    is_full: Cell<bool>,
    full_said_ns: Cell<u64>,
}

/// While there is no room for another connection, one on which nothing was ever sent is closed after this long,
const FULL_FIRST_BYTE_NS: u64 = 1_000_000_000;
/// and one that waits for its next request after this long.
const FULL_IDLE_NS: u64 = 30_000_000_000;
/// While that lasts, idle connections are told once in this long.
const FULL_AGAIN_NS: u64 = 1_000_000_000;

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            phase: Cell::new(WorkerPhase::Serving),
            since_ns: Cell::new(0),
            change: Notify::new(),
            tasks: Cell::new(0),
            is_full: Cell::new(false),
            full_said_ns: Cell::new(0),
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
    pub(super) fn set_full(&self, is_full: bool, now_ns: u64) -> bool {
        self.is_full.set(is_full);
        let is_due = is_full && now_ns >= self.full_said_ns.get() + FULL_AGAIN_NS;
        if is_due {
            self.full_said_ns.set(now_ns);
        }
        is_due
    }

    /// How long a connection may wait for a request where no room is left for others; it is the longest-waiting that goes,
    /// and before those that have been of use those that never were.
    pub fn patience_ns(&self, has_sent: bool) -> u64 {
        match (self.is_full.get(), has_sent) {
            (false, _) => u64::MAX,
            (true, false) => FULL_FIRST_BYTE_NS,
            (true, true) => FULL_IDLE_NS,
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
