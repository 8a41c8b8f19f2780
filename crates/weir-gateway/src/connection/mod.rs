//! Client connections: whatever their protocol, they produce exchanges.

pub(crate) mod accepted;
pub(crate) mod announced;
pub(crate) mod begin;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod h3;
mod heads;
mod left_streams;
pub(crate) mod secure;
pub(crate) mod sessions;
pub(crate) mod stream;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::context::frame::own_waker;
use crate::context::lifecycle::{WaitsFor, WorkerPhase};
use crate::worker::TaskGuard;

/// Makes a connection end with a reset when it is dropped, so that it leaves no `TIME_WAIT` state behind.
pub(crate) fn reset(tcp: &TcpStream) {
    // If the option cannot be set, the connection is closed already.
    let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}

/// Awaits what must precede a client's first request. `None` if it takes too long, or if its
/// listener is stopping.
async fn within_timeout<T>(
    worker: &TaskGuard,
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
            Some(until_ns) if worker.service().phase() != WorkerPhase::Stopping => {
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
