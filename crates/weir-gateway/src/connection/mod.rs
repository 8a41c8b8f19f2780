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
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::context::WorkerContext;
use crate::context::frame::own_waker;
use crate::context::lifecycle::{WaitsFor, WorkerPhase};

/// What a connection does after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExchange {
    KeepAlive,
    /// The client has its answer; close so that it can read it to the end.
    Close,
    /// The client has gone, or the response was cut short: close without a graceful end.
    Abort,
    /// The same where only a reset shows that the response was cut short: its end is the end of the connection.
    Reset,
}

/// Has a connection end at once when it is dropped, without a state that outlives it.
pub fn reset(tcp: &TcpStream) {
    // If the option cannot be set the connection is gone already.
    let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}

/// What a client owes before its first request. `None` if it takes too long, or the worker must end.
async fn in_time<T>(
    worker: &WorkerContext,
    waits_for: WaitsFor,
    deadline_ns: u64,
    task: impl Future<Output = T>,
) -> Option<T> {
    let since_ns = worker.now_ns();
    let timer = worker.wheel.add();
    worker.wheel.watch(&timer, own_waker().await);
    let mut task = pin!(task);
    let outcome = poll_fn(|context| {
        if let Poll::Ready(outcome) = task.as_mut().poll(context) {
            return Poll::Ready(Some(outcome));
        }
        worker.wake_up();
        match worker.wait_until_ns(waits_for, since_ns, deadline_ns) {
            Some(until_ns) if worker.phase() != WorkerPhase::Stopping => {
                worker.wheel.set(&timer, until_ns);
                Poll::Pending
            }
            _ => Poll::Ready(None),
        }
    })
    .await;
    worker.wheel.remove(&timer);
    outcome
}
