//! What workers report about their progress, for threads that wait for it.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// The progress of all workers.
#[derive(Debug)]
pub(crate) struct WorkerProgress {
    pub revisions: Vec<AtomicU64>,
    /// How many changes of listeners each worker has carried out.
    pub listener_changes: Vec<AtomicU64>,
    pub running: AtomicUsize,
    pub changed: Condvar,
    pub lock: Mutex<()>,
}

impl WorkerProgress {
    pub(crate) fn announce(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Waits until `done` holds, or the deadline; returns whether it holds.
    pub(crate) fn wait(&self, deadline: Instant, done: impl Fn(&WorkerProgress) -> bool) -> bool {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if done(self) {
                return true;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            guard = self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
