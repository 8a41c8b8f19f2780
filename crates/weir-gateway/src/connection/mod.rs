//! Client connections: whatever the protocol, they yield exchanges.

pub mod h1;
pub mod secure;

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use weir_plugin::Stop;

/// Waits for somebody other than the client, as long as there is a point in it: see [`h1::Client::poll_leave`].
pub async fn unless_left<T>(
    waiting: impl Future<Output = Result<T, Stop>>,
    mut poll_leave: impl FnMut(&mut Context<'_>) -> Poll<Stop>,
) -> Result<T, Stop> {
    let mut waiting = pin!(waiting);
    poll_fn(|context| match waiting.as_mut().poll(context) {
        Poll::Pending => poll_leave(context).map(Err),
        done => done,
    })
    .await
}
