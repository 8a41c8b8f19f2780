//! The tunnel after a 101: bytes go both ways, until both sides have closed or nothing has moved for too long. In a
//! WebSocket the frame boundaries are tracked, so that close frames can be sent to both sides when the gateway drains.

mod direction;

use std::future::poll_fn;
use std::task::Poll;

use weir_plugin::{Exchange, Stop};
use weir_proto::Known;
use weir_proto::websocket;

use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::message::AfterExchange;
use crate::message::sides::{ClientSide, Pipe};
use crate::message::turn::ConnectionTurn;
pub(crate) use direction::{BrokenEnd, Direction};

/// A tunnel in which nothing moves for this long is closed. WebSocket pings keep one open.
const IDLE_NS: u64 = 3600 * 1_000_000_000;

/// The same, once one side has closed, and the other has taken all of its bytes but not the end.
const LEAVING_NS: u64 = 30 * 1_000_000_000;

/// The close frame 1001 for a server: clients must mask what they send (RFC 6455 §5.3), and a mask of zeros changes
/// nothing.
const GOING_AWAY_MASKED: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

/// How often a tunnel that is due to close checks whether a frame has ended.
const LEAVING_STEP_NS: u64 = 10_000_000;

/// `early`: bytes of the upstream that were received together with its 101.
pub(crate) async fn run(
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
    up.has_ended = client.ended();
    let mut down = Direction::new(early, is_websocket);
    let (mut has_left, mut last_ns) = (false, worker.now_ns());
    poll_fn(|context| {
        let now_ns = worker.wake_up();
        let mut turn = ConnectionTurn::default();
        loop {
            let client = client.pipe();
            let up_moved = up.poll(context, &worker.buffers, client, upstream);
            let down_moved = down.poll(context, &worker.buffers, upstream, client);
            exchange.request_bytes += moved_bytes(&up_moved);
            exchange.response_bytes += moved_bytes(&down_moved);
            match (up_moved, down_moved) {
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => return Poll::Ready(()),
                _ if up.is_shut() && down.is_shut() => return Poll::Ready(()),
                (Poll::Pending, Poll::Pending) => break,
                _ => {
                    last_ns = now_ns;
                    if turn.ends_with_piece(context) {
                        break;
                    }
                }
            }
        }
        let leave_ns = client.service().leave_ns(exchange.client.connection);
        let is_stopping = client.service().phase() == WorkerPhase::Stopping;
        if (is_stopping || now_ns >= leave_ns) && down.is_between_frames() && client.pipe().is_flushed() {
            has_left = true;
            down.leave(context, client.pipe(), &websocket::GOING_AWAY);
            if up.is_between_frames() {
                up.leave(context, upstream, &GOING_AWAY_MASKED);
            }
            return Poll::Ready(());
        }
        let idle_ns = idle_ns(last_ns, [&up, &down]);
        if is_stopping || now_ns >= idle_ns {
            note_silence(exchange, is_stopping || up.is_leaving() || down.is_leaving());
            return Poll::Ready(());
        }
        client.set_deadline(idle_ns.min(leave_ns.max(now_ns + LEAVING_STEP_NS)));
        Poll::Pending
    })
    .await;
    up.release(&worker.buffers);
    down.release(&worker.buffers);
    worker.metrics.tunnels_closed.increment();
    // A stream of HTTP/2 that both sides have ended must not be reset: its last frame may not have been sent yet.
    if has_left || up.is_shut() && down.is_shut() { AfterExchange::Close } else { AfterExchange::Abort }
}

/// Notes that a tunnel ends because nothing has moved, unless it was ending anyway.
fn note_silence(exchange: &mut Exchange, was_ending: bool) {
    if !was_ending {
        exchange.end_by(Stop::IdleTimeout);
    }
}

/// How many bytes a direction has moved, by the result of its poll.
pub(crate) fn moved_bytes(moved: &Poll<Result<usize, BrokenEnd>>) -> u64 {
    if let Poll::Ready(Ok(count)) = moved { *count as u64 } else { 0 }
}

/// When a tunnel is closed in which nothing has moved since `last_ns`.
fn idle_ns(last_ns: u64, directions: [&Direction; 2]) -> u64 {
    let is_leaving = directions.iter().any(|direction| direction.is_leaving());
    last_ns + if is_leaving { LEAVING_NS } else { IDLE_NS }
}
