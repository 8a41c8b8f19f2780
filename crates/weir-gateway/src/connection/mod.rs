//! Client connections: whatever the protocol, they yield exchanges.

pub mod accepted;
pub mod announced;
pub mod h1;
pub mod h2;
pub mod listener;
pub mod secure;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;

/// What a connection does after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    KeepAlive,
    /// The client has its answer; close so that it can read it to the end.
    Close,
    /// The client has gone, or the response was cut short: close without a graceful end.
    Abort,
    /// The same where only a reset shows that the response was cut short: its end is the end of the connection.
    Reset,
}

/// `None` if it takes too long, or the worker must end.
async fn in_time<T>(worker: &WorkerContext, timeout_ns: u64, task: impl Future<Output = T>) -> Option<T> {
    let deadline_ns = worker.now_ns().saturating_add(timeout_ns);
    let timer = worker.wheel.add();
    worker.wheel.watch(&timer, poll_fn(|context| Poll::Ready(context.waker().clone())).await);
    worker.wheel.set(&timer, deadline_ns);
    let mut task = pin!(task);
    let outcome = poll_fn(|context| match task.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending if worker.wake_up() >= deadline_ns || worker.phase() == WorkerPhase::Stopping => {
            Poll::Ready(None)
        }
        Poll::Pending => Poll::Pending,
    })
    .await;
    worker.wheel.remove(&timer);
    outcome
}
