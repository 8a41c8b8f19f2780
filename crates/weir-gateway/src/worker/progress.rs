//! What workers report about themselves, for callers that wait for it.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// What workers report, for those who wait for facts.
#[derive(Debug)]
pub struct WorkerProgress {
    pub revisions: Vec<AtomicU64>,
    pub running: AtomicUsize,
    pub changed: Condvar,
    pub lock: Mutex<()>,
}

impl WorkerProgress {
    pub fn announce(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Waits until `done`, or the deadline; says whether it is done.
    pub fn wait(&self, deadline: Instant, done: impl Fn(&WorkerProgress) -> bool) -> bool {
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
