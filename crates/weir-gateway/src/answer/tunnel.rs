//! The tunnel after a 101: bytes go both ways, until both sides have closed or nothing has moved for too long. In a
//! WebSocket the frame boundaries are tracked, so that close frames can be sent to both sides when the gateway drains.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use weir_plugin::Exchange;
use weir_proto::Known;
use weir_proto::websocket::{self, FrameBoundary};

use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::message::AfterExchange;
use crate::message::sides::{ClientSide, Pipe};
use crate::message::turn::ConnectionTurn;

/// A tunnel in which nothing moves for this long is closed. WebSocket pings keep one open.
const IDLE_NS: u64 = 3600 * 1_000_000_000;

/// The same, once one side has closed and the other does not take the rest.
const LEAVING_NS: u64 = 30 * 1_000_000_000;

/// The close frame 1001 for a server: clients must mask what they send (RFC 6455 §5.3), and a mask of zeros changes
/// nothing.
const GOING_AWAY_MASKED: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

/// How often a tunnel that is due to close checks whether a frame has ended.
const LEAVING_STEP_NS: u64 = 10_000_000;

/// Bytes from one side on their way to the other. At most one read is held, until the other side takes it.
#[derive(Default)]
struct Direction {
    held: Vec<u8>,
    ended: bool,
    shut: bool,
    /// The frame boundaries, if it is a WebSocket.
    frames: Option<FrameBoundary>,
}

/// `early`: bytes of the upstream that were received together with its 101.
pub async fn run(
    worker: &WorkerContext,
    client: &mut impl ClientSide,
    upstream: &mut impl Pipe,
    exchange: &mut Exchange,
    early: Vec<u8>,
) -> AfterExchange {
    worker.metrics.tunnels_opened.increment();
    let protocol = exchange.request.head.known(Known::Upgrade).unwrap_or_default();
    let is_websocket = protocol.eq_ignore_ascii_case(b"websocket");
    let mut up = Direction::new(std::mem::take(client.unread_bytes()), is_websocket);
    up.ended = client.ended();
    let mut down = Direction::new(early, is_websocket);
    let (mut has_left, mut last_ns) = (false, worker.now_ns());
    poll_fn(|context| {
        let now_ns = worker.wake_up();
        let mut turn = ConnectionTurn::default();
        loop {
            let client = client.pipe();
            let up_moved = up.poll(context, worker, client, upstream);
            let down_moved = down.poll(context, worker, upstream, client);
            match (up_moved, down_moved) {
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => return Poll::Ready(()),
                _ if up.shut && down.shut => return Poll::Ready(()),
                (Poll::Pending, Poll::Pending) => break,
                (up_moved, down_moved) => {
                    last_ns = now_ns;
                    let count = |moved| if let Poll::Ready(Ok(count)) = moved { count as u64 } else { 0 };
                    exchange.request_bytes += count(up_moved);
                    exchange.response_bytes += count(down_moved);
                    if turn.ends_with_piece(context) {
                        break;
                    }
                }
            }
        }
        let leave_ns = worker.lifecycle.leave_ns(exchange.client.connection);
        let is_stopping = worker.phase() == WorkerPhase::Stopping;
        if (is_stopping || now_ns >= leave_ns) && down.is_between_frames() {
            has_left = true;
            down.leave(context, client.pipe(), &websocket::GOING_AWAY);
            if up.is_between_frames() {
                up.leave(context, upstream, &GOING_AWAY_MASKED);
            }
            return Poll::Ready(());
        }
        let idle_ns = idle_ns(last_ns, [&up, &down]);
        if is_stopping || now_ns >= idle_ns {
            return Poll::Ready(());
        }
        client.set_deadline(idle_ns.min(leave_ns.max(now_ns + LEAVING_STEP_NS)));
        Poll::Pending
    })
    .await;
    worker.buffers.release(&mut up.held);
    worker.buffers.release(&mut down.held);
    worker.metrics.tunnels_closed.increment();
    // A stream of HTTP/2 that both sides have ended must not be reset: its last frame may not have been sent yet.
    if has_left || up.shut && down.shut { AfterExchange::Close } else { AfterExchange::Abort }
}

/// When a tunnel is closed in which nothing has moved since `last_ns`.
fn idle_ns(last_ns: u64, directions: [&Direction; 2]) -> u64 {
    let is_leaving = directions.iter().any(|direction| direction.is_leaving());
    last_ns + if is_leaving { LEAVING_NS } else { IDLE_NS }
}

impl Direction {
    /// `held`: bytes that were received before the tunnel began.
    fn new(held: Vec<u8>, is_websocket: bool) -> Direction {
        let mut frames = is_websocket.then(FrameBoundary::default);
        frames.iter_mut().for_each(|frames| frames.pass(&held));
        Direction { held, frames, ..Direction::default() }
    }

    /// Whether the sender has closed, and the receiver has not taken the rest.
    fn is_leaving(&self) -> bool {
        self.ended && !self.shut
    }

    /// Whether a frame of the gateway can be inserted here: all that was received has been sent, up to the end of a frame.
    fn is_between_frames(&self) -> bool {
        self.held.is_empty() && !self.ended && self.frames.is_some_and(|frames| frames.is_between_frames())
    }

    /// Sends a close frame and closes the receiver's half. What the receiver does not take at once is lost.
    fn leave(&mut self, context: &mut Context<'_>, to: &mut impl Pipe, word: &[u8]) {
        let _ = to.poll_write(context, word);
        let _ = to.poll_shutdown(context);
    }

    /// Moves bytes on; ready with how many the receiver took. When the sender has closed, the receiver's half is closed.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        worker: &WorkerContext,
        from: &mut impl Pipe,
        to: &mut impl Pipe,
    ) -> Poll<io::Result<usize>> {
        if !self.held.is_empty() {
            let Poll::Ready(count) = to.poll_write(context, &self.held)? else {
                from.poll_unread(context)?;
                return Poll::Pending;
            };
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
            self.frames.iter_mut().for_each(|frames| frames.pass(bytes));
            let mut sent = 0;
            while sent < bytes.len() {
                match to.poll_write(context, &bytes[sent..])? {
                    Poll::Ready(count) => sent += count,
                    Poll::Pending => break,
                }
            }
            worker.buffers.append_unread(&mut self.held, &bytes[sent..]);
            Poll::Ready(Ok(sent))
        })
    }
}
