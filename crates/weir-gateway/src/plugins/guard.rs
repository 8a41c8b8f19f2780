//! Calls into plugins. A plugin that panics takes its own exchange with it and nothing else: the request is answered with
//! 500, never let through.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use weir_plugin::{Stop, Waiting};

/// Calls a plugin; a panic is [`Stop::Internal`].
pub fn guarded<T>(call: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Stop::Internal))
}

/// The same for what a plugin waits for.
pub async fn guarded_wait(mut waiting: Waiting<'_>) -> Result<(), Stop> {
    poll_fn(|context| guarded(|| Ok(waiting.as_mut().poll(context))).unwrap_or_else(|stop| Poll::Ready(Err(stop))))
        .await
}
