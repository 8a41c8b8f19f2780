//! What tells a sink's task to end.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Default)]
pub struct SinkSignals {
    /// Nothing uses the sink any more.
    closed: AtomicBool,
    /// The process ends, and waits no longer.
    given_up: AtomicBool,
    /// No more records should come; see [`crate::SinkWriter::is_full`].
    full: AtomicBool,
    /// One of the first two has changed.
    pub changed: Notify,
}

impl SinkSignals {
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Says whether more records should come; `true` if that has changed.
    pub fn set_full(&self, is_full: bool) -> bool {
        self.full.swap(is_full, Ordering::Relaxed) != is_full
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}
