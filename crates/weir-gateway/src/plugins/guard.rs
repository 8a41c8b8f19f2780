//! Calls into plugins. A plugin that panics ends only its own exchange: the request is answered with 500, and never passed
//! on as if the plugin had allowed it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use weir_plugin::{Stop, Waiting};

/// Calls a plugin; a panic becomes [`Stop::Internal`].
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Stop::Internal))
}

/// The same for the future of a plugin that waits.
pub(crate) async fn guarded_wait(mut waiting: Waiting<'_>) -> Result<(), Stop> {
    poll_fn(|context| guarded(|| Ok(waiting.as_mut().poll(context))).unwrap_or_else(|stop| Poll::Ready(Err(stop))))
        .await
}
