//! The tasks of the streams of HTTP/2.

use std::future::Future;
use std::sync::Arc;

use hyper::rt::Executor;
use tokio::sync::Notify;

tokio::task_local! {
    static RESET: StreamReset;
}

/// Resets one stream of HTTP/2: its task ends, and with it the stream.
#[derive(Clone, Default)]
pub(crate) struct StreamReset(Arc<Notify>);

impl StreamReset {
    /// The reset of the stream whose task calls this; `None` over HTTP/1.
    pub(crate) fn current() -> Option<StreamReset> {
        RESET.try_with(StreamReset::clone).ok()
    }

    pub(crate) fn reset(&self) {
        self.0.notify_one();
    }
}

/// Runs each stream as a task that can be ended alone.
#[derive(Clone)]
pub(super) struct StreamExecutor;

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let reset = StreamReset::default();
        let is_reset = Arc::clone(&reset.0);
        tokio::spawn(RESET.scope(reset, async move {
            tokio::select! {
                biased;
                () = is_reset.notified() => {}
                _ = stream => {}
            }
        }));
    }
}
