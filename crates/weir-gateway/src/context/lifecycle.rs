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
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            phase: Cell::new(WorkerPhase::Serving),
            since_ns: Cell::new(0),
            change: Notify::new(),
            tasks: Cell::new(0),
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
