//! Copies the bytes of a stream in both directions. A side that closes its half leaves the other direction open.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use weir_plugin::{Exchange, Stop};

use super::StreamClient;
use crate::answer::tunnel::{BrokenEnd, Direction};
use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::message::sides::Pipe;
use crate::message::turn::ConnectionTurn;

/// Ends without an error when both sides have closed. `idle`: how long nothing may come from either side.
pub(super) async fn both_ways(
    worker: &WorkerContext,
    client: &mut impl StreamClient,
    upstream: &mut impl Pipe,
    exchange: &mut Exchange,
    idle: Duration,
) -> Result<(), Stop> {
    let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
    let mut up = Direction::new(client.take_received(), false);
    let mut down = Direction::new(Vec::new(), false);
    let mut last_ns = worker.now_ns();
    let end = poll_fn(|context| {
        let now_ns = worker.wake_up();
        let mut turn = ConnectionTurn::default();
        loop {
            let up_moved = up.poll(context, worker, client, upstream);
            let down_moved = down.poll(context, worker, upstream, client);
            match (up_moved, down_moved) {
                (Poll::Ready(Err(BrokenEnd::Sender)), _) | (_, Poll::Ready(Err(BrokenEnd::Receiver))) => {
                    return Poll::Ready(Err(Stop::ClientGone));
                }
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => return Poll::Ready(Err(Stop::UpstreamAborted)),
                _ if up.is_shut() && down.is_shut() => return Poll::Ready(Ok(())),
                (Poll::Pending, Poll::Pending) => break,
                (_, down_moved) => {
                    last_ns = now_ns;
                    if down_moved.is_ready() && exchange.upstream.header_ns == 0 {
                        exchange.upstream.header_ns = now_ns; // of the first byte
                    }
                    if turn.ends_with_piece(context) {
                        break;
                    }
                }
            }
        }
        let leave_ns = client.service().leave_ns(exchange.client.connection);
        let idle_end_ns = last_ns.saturating_add(idle_ns);
        if client.service().phase() == WorkerPhase::Stopping || now_ns >= leave_ns {
            return Poll::Ready(Err(Stop::Shutdown));
        }
        if now_ns >= idle_end_ns {
            return Poll::Ready(Err(Stop::IdleTimeout));
        }
        client.set_deadline(idle_end_ns.min(leave_ns));
        Poll::Pending
    })
    .await;
    (exchange.request_bytes, exchange.upstream.bytes_sent) = up.bytes();
    (exchange.upstream.bytes_received, exchange.response_bytes) = down.bytes();
    up.release(&worker.buffers);
    down.release(&worker.buffers);
    end
}
