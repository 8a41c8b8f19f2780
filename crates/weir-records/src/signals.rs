//! Signals to and from a sink's task.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct SinkSignals {
    /// The last user of the sink has dropped it.
    closed: AtomicBool,
    /// The process ends, and waits no longer for the sink.
    given_up: AtomicBool,
    /// Writers should stop; see [`crate::SinkWriter::is_full`].
    full: AtomicBool,
    /// Notified when one of the first two changes.
    pub changed: Notify,
}

impl SinkSignals {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Sets whether writers should stop; returns whether that has changed.
    pub(crate) fn set_full(&self, is_full: bool) -> bool {
        self.full.swap(is_full, Ordering::Relaxed) != is_full
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}
