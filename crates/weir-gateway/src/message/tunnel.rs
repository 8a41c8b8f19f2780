//! After a 101: bytes go both ways unread, until both sides have closed or nothing has moved for too long.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use weir_plugin::Exchange;

use crate::connection::After;
use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::endpoint::pool::UpstreamConnection;
use crate::message::sides::{ClientSide, Pipe};

/// A tunnel in which nothing moves for this long is taken for dead. WebSocket pings keep one alive.
const IDLE_NS: u64 = 3600 * 1_000_000_000;

/// Bytes from one side on their way to the other. At most one read is held, while the other side does not take it.
#[derive(Default)]
struct Direction {
    held: Vec<u8>,
    ended: bool,
    shut: bool,
}

pub async fn run(
    worker: &WorkerContext,
    client: &mut impl ClientSide,
    mut upstream: UpstreamConnection<'_>,
    exchange: &mut Exchange,
) -> After {
    worker.metrics.tunnels_opened.increment();
    let mut up = Direction { held: std::mem::take(client.stash()), ended: client.ended(), shut: false };
    let mut down = Direction::default();
    let mut last_ns = worker.now_ns();
    poll_fn(|context| {
        let now_ns = worker.wake_up();
        loop {
            let (client, upstream) = (client.pipe(), upstream.stream());
            let up_moved = up.poll(context, worker, client, upstream);
            let down_moved = down.poll(context, worker, upstream, client);
            match (up_moved, down_moved) {
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => return Poll::Ready(()),
                _ if up.shut && down.shut => return Poll::Ready(()),
                (Poll::Pending, Poll::Pending) => break,
                (up_moved, down_moved) => {
                    last_ns = now_ns;
                    let count = |moved| if let Poll::Ready(Ok(count)) = moved { count as u64 } else { 0 };
                    let (up_bytes, down_bytes) = (count(up_moved), count(down_moved));
                    exchange.request_bytes += up_bytes;
                    exchange.response_bytes += down_bytes;
                    worker.metrics.client_bytes_sent.add(down_bytes);
                    worker.metrics.upstream_bytes_sent.add(up_bytes);
                }
            }
        }
        if worker.phase() == WorkerPhase::Stopping || now_ns >= last_ns + IDLE_NS {
            return Poll::Ready(());
        }
        client.set_deadline(last_ns + IDLE_NS);
        Poll::Pending
    })
    .await;
    worker.buffers.release(&mut up.held);
    worker.buffers.release(&mut down.held);
    worker.metrics.tunnels_closed.increment();
    // A stream of HTTP/2 that both have ended must not be reset: its end may not have left.
    if up.shut && down.shut { After::Close } else { After::Abort }
}

impl Direction {
    /// Moves bytes on; ready with how many the receiver took. A closed sender closes the receiver's half.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        worker: &WorkerContext,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Poll<io::Result<usize>> {
        if !self.held.is_empty() {
            let count = std::task::ready!(to.poll_write(context, &self.held))?;
            worker.buffers.consume(&mut self.held, count);
            return Poll::Ready(Ok(count));
        }
        if self.shut {
            return Poll::Pending;
        }
        if self.ended {
            std::task::ready!(to.poll_shutdown(context))?;
            self.shut = true;
            return Poll::Ready(Ok(0));
        }
        worker.buffers.with_read_buffer(|buffer| {
            let count = std::task::ready!(from.poll_read(context, buffer))?;
            let bytes = &buffer[..count];
            self.ended = bytes.is_empty();
            let mut sent = 0;
            while sent < bytes.len() {
                match to.poll_write(context, &bytes[sent..])? {
                    Poll::Ready(count) => sent += count,
                    Poll::Pending => break,
                }
            }
            worker.buffers.stash(&mut self.held, &bytes[sent..]);
            Poll::Ready(Ok(sent))
        })
    }
}
