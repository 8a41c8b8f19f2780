//! Copies the bytes of a stream in both directions. A side that closes its half leaves the other direction open.

use std::task::{Context, Poll};
use std::time::Duration;

use weir_plugin::{BareExchange, Exchange, Stop};

use super::StreamClient;
use crate::answer::tunnel::{BrokenEnd, Direction, moved_bytes};
use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::endpoint::pool::StreamConnection;
use crate::message::sides::Pipe;
use crate::message::turn::ConnectionTurn;

/// The bytes between two connections.
pub(super) struct StreamRelay {
    up: Direction,
    down: Direction,
    /// How long nothing may come from either side.
    idle_ns: u64,
    last_ns: u64,
}

impl StreamRelay {
    /// `received`: the first bytes of the client.
    pub(super) fn new(received: Vec<u8>, idle: Duration, now_ns: u64) -> StreamRelay {
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let (up, down) = (Direction::new(received, false), Direction::new(Vec::new(), false));
        StreamRelay { up, down, idle_ns, last_ns: now_ns }
    }

    /// Ready without an error when both sides have closed.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        worker: &WorkerContext,
        client: &mut impl StreamClient,
        upstream: &mut StreamConnection<'_>,
        exchange: &mut BareExchange,
    ) -> Poll<Result<(), Stop>> {
        let now_ns = worker.wake_up();
        let mut turn = ConnectionTurn::default();
        loop {
            let up_moved = self.up.poll(context, &worker.buffers, client, upstream);
            let down_moved = self.down.poll(context, &worker.buffers, upstream, client);
            match (&up_moved, &down_moved) {
                (Poll::Ready(Err(BrokenEnd::Sender)), _) | (_, Poll::Ready(Err(BrokenEnd::Receiver))) => {
                    return Poll::Ready(Err(Stop::ClientGone));
                }
                (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => return Poll::Ready(Err(Stop::UpstreamAborted)),
                _ => {}
            }
            if down_moved.is_ready() && exchange.upstream.header_ns == 0 {
                exchange.upstream.header_ns = now_ns; // of the first byte
            }
            if self.is_over(client, upstream) {
                return Poll::Ready(Ok(()));
            }
            if up_moved.is_pending() && down_moved.is_pending() {
                break;
            }
            self.last_ns = now_ns;
            if turn.ends_with_bytes(context, moved_bytes(&up_moved).max(moved_bytes(&down_moved)) as usize) {
                break;
            }
        }
        let leave_ns = client.service().leave_ns(exchange.client.connection);
        let idle_end_ns = self.last_ns.saturating_add(self.idle_ns);
        if client.service().phase() == WorkerPhase::Stopping || now_ns >= leave_ns {
            return Poll::Ready(Err(Stop::Shutdown));
        }
        if now_ns >= idle_end_ns {
            return Poll::Ready(Err(Stop::IdleTimeout));
        }
        client.set_deadline(idle_end_ns.min(leave_ns).min(upstream.watch_peer(now_ns)));
        Poll::Pending
    }

    /// Whether both sides have closed, and have got everything. The connections are dropped next: to a side that has closed its own
    /// half, that says the same as closing the other half, and saves the system call.
    fn is_over(&self, client: &impl Pipe, upstream: &impl Pipe) -> bool {
        let is_done =
            |direction: &Direction, to_closes: bool| direction.is_shut() || direction.is_drained() && to_closes;
        is_done(&self.up, upstream.is_plain()) && is_done(&self.down, client.is_plain())
    }

    /// Records what was carried.
    pub(super) fn finish(mut self, worker: &WorkerContext, exchange: &mut Exchange) {
        (exchange.request_bytes, exchange.upstream.bytes_sent) = self.up.bytes();
        (exchange.upstream.bytes_received, exchange.response_bytes) = self.down.bytes();
        exchange.upstream.ended_ns = worker.now_ns();
        self.up.release(&worker.buffers);
        self.down.release(&worker.buffers);
    }
}
