//! What tells a sink's task to end.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Default)]
pub struct SinkSignals {
    /// Nothing uses the sink any more.
    closed: AtomicBool,
    /// The process ends, and waits no longer.
    given_up: AtomicBool,
    /// One of the two has changed.
    pub changed: Notify,
}

impl SinkSignals {
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
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
