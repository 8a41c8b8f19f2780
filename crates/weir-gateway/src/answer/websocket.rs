//! The tunnel after a 101 if plugins want to see messages: the frames of the WebSocket are parsed, checked against RFC 6455
//! and shown to the plugins. Frames are passed on unchanged; only a message that a plugin wants whole is sent as a single
//! frame.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_net::timer::NEVER;
use weir_plugin::{Exchange, MessageSource, Stop, StreamClose};
use weir_proto::websocket::{CloseCode, Opcode};

use crate::context::WorkerContext;
use crate::context::identity_watch::IdentityGuard;
use crate::context::lifecycle::WorkerPhase;
use crate::context::served_exchange::WebSocketOpening;
use crate::message::AfterExchange;
use crate::message::sides::{ClientSide, Pipe};
use crate::message::turn::ConnectionTurn;
use crate::plugins::messages::{self, MessagePolicies};

mod direction;
mod inflation;

use direction::{DirectionContext, DirectionTerms, MessageDirection, MessageEnd};

/// A WebSocket on which nothing moves for this long is closed, as a tunnel is, unless a plugin sets another time.
const IDLE_NS: u64 = 3600 * 1_000_000_000;
/// How long both sides have to take what is left and the close frame.
const CLOSING_NS: u64 = 5 * 1_000_000_000;
/// How often a WebSocket that needs a frame of the gateway checks whether the sender's current frame has ended.
const STEP_NS: u64 = 10_000_000;

/// `early`: bytes of the upstream that were received together with its 101.
pub(crate) async fn run(
    worker: &WorkerContext,
    client: &mut impl ClientSide,
    upstream: &mut impl Pipe,
    exchange: &mut Exchange,
    opening: WebSocketOpening,
    early: Vec<u8>,
) -> AfterExchange {
    worker.metrics.tunnels_opened.increment();
    let mut tunnel = MessageTunnel::new(worker, exchange, opening);
    tunnel.up.early = std::mem::take(client.unread_bytes());
    tunnel.down.early = early;
    tunnel.up.has_ended = client.ended();
    poll_fn(|context| tunnel.poll(context, client, upstream, exchange)).await;
    tunnel.up.finish(worker);
    tunnel.down.finish(worker);
    worker.metrics.tunnels_closed.increment();
    // A stream of HTTP/2 that both sides have ended must not be reset: its last frame may not have been sent yet.
    let is_over = tunnel.closing_ns.is_some() || tunnel.is_shut();
    if is_over { AfterExchange::Close } else { AfterExchange::Abort }
}

struct MessageTunnel<'a> {
    worker: &'a WorkerContext,
    policies: MessagePolicies,
    up: MessageDirection,
    down: MessageDirection,
    /// When the WebSocket has to end because a plugin limits its duration.
    ends_ns: u64,
    /// Set if it has to end when its client's identity is revoked.
    identity: Option<IdentityGuard>,
    /// Pings sent so far, which number them; `pinged_ns` is when the last one was sent.
    pings: u64,
    pinged_ns: Option<u64>,
    /// Set once the gateway is closing the WebSocket: the time by which that must be done.
    closing_ns: Option<u64>,
}

impl<'a> MessageTunnel<'a> {
    fn new(worker: &'a WorkerContext, exchange: &Exchange, opening: WebSocketOpening) -> MessageTunnel<'a> {
        let now_ns = worker.now_ns();
        let policies = MessagePolicies::of(opening.filters);
        let reads = policies.terms.reads;
        let direction = |source| {
            let of_direction = DirectionTerms { source, compression: opening.compression, reads: reads.of(source) };
            MessageDirection::new(of_direction, exchange.client.addr, now_ns)
        };
        let left_ns = policies.time_left().map(|left| u64::try_from(left.as_nanos()).unwrap_or(NEVER));
        let identity = policies.watch_identity(worker, exchange);
        MessageTunnel {
            worker,
            policies,
            up: direction(MessageSource::Client),
            down: direction(MessageSource::Upstream),
            ends_ns: left_ns.map_or(NEVER, |left_ns| now_ns.saturating_add(left_ns)),
            identity,
            pings: 0,
            pinged_ns: None,
            closing_ns: None,
        }
    }

    fn is_shut(&self) -> bool {
        self.up.is_shut && self.down.is_shut
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        client: &mut impl ClientSide,
        upstream: &mut impl Pipe,
        exchange: &mut Exchange,
    ) -> Poll<()> {
        let now_ns = self.worker.wake_up();
        loop {
            if let Some(closing_ns) = self.closing_ns {
                return self.poll_closing(context, client, upstream, closing_ns);
            }
            match self.move_messages(context, client.pipe(), upstream, exchange) {
                Ok(()) if self.is_shut() => return Poll::Ready(()),
                Ok(()) => {}
                Err(MessageEnd::Broken) => return Poll::Ready(()),
                Err(MessageEnd::Close(close)) => {
                    self.close(&close, exchange, now_ns);
                    continue;
                }
            }
            let leave_ns = client.service().leave_ns(exchange.client.connection);
            if let Some(close) = self.due(now_ns, client.service().phase(), leave_ns) {
                self.close(&close, exchange, now_ns);
            } else if !self.ping(now_ns) {
                client.set_deadline(self.deadline_ns(now_ns, leave_ns));
                return Poll::Pending;
            }
        }
    }

    /// Moves messages both ways until nothing moves, or the turn is over.
    fn move_messages(
        &mut self,
        context: &mut Context<'_>,
        client: &mut impl Pipe,
        upstream: &mut impl Pipe,
        exchange: &mut Exchange,
    ) -> Result<(), MessageEnd> {
        let mut passage = DirectionContext { worker: self.worker, policies: &mut self.policies };
        let mut turn = ConnectionTurn::default();
        loop {
            let up = self.up.poll(context, &mut passage, client, upstream)?;
            let down = self.down.poll(context, &mut passage, upstream, client)?;
            if up.is_pending() && down.is_pending() {
                return Ok(());
            }
            let count = |moved| if let Poll::Ready(count) = moved { count as u64 } else { 0 };
            let (up, down) = (count(up), count(down));
            exchange.request_bytes += up;
            exchange.response_bytes += down;
            if self.up.is_shut && self.down.is_shut || turn.ends_with_piece(context) {
                return Ok(());
            }
        }
    }

    /// The reason to close the WebSocket now, if there is one.
    fn due(&self, now_ns: u64, phase: WorkerPhase, leave_ns: u64) -> Option<StreamClose> {
        let is_stopping = phase == WorkerPhase::Stopping;
        if is_stopping || now_ns >= leave_ns && self.down.is_between_frames() {
            return Some(StreamClose::new(CloseCode::GOING_AWAY, ""));
        }
        if now_ns >= self.ends_ns {
            return Some(messages::expired());
        }
        if self.identity.as_ref().is_some_and(IdentityGuard::is_revoked) {
            return Some(messages::revoked());
        }
        if now_ns >= self.idle_ns() {
            let silent = StreamClose::new(CloseCode::GOING_AWAY, "nothing was sent for too long");
            return Some(StreamClose { stop: Some(Stop::IdleTimeout), ..silent });
        }
        let is_lost = self.pinged_ns.is_some_and(|pinged_ns| {
            let timeout = self.policies.terms.ping.map_or(0, |ping| ping.timeout.as_nanos() as u64);
            self.up.received_ns < pinged_ns && now_ns >= pinged_ns + timeout
        });
        is_lost.then(|| StreamClose {
            stop: Some(Stop::ClientGone),
            ..StreamClose::new(CloseCode::INTERNAL, "a ping was not answered")
        })
    }

    /// When the WebSocket will have been idle for too long.
    fn idle_ns(&self) -> u64 {
        let (received_ns, message_ns) =
            (self.up.received_ns.max(self.down.received_ns), self.up.message_ns.max(self.down.message_ns));
        idle_ends_ns(self.policies.terms.idle_timeout, received_ns, message_ns)
    }

    /// When the next ping is due, or the time-out of the last one.
    fn ping_ns(&self) -> u64 {
        match (self.policies.terms.ping, self.pinged_ns) {
            (None, _) => NEVER,
            (Some(ping), Some(pinged_ns)) if self.up.received_ns < pinged_ns => {
                pinged_ns + ping.timeout.as_nanos() as u64
            }
            (Some(ping), _) => self.up.received_ns + ping.interval.as_nanos() as u64,
        }
    }

    /// Sends a ping if one is due; returns whether it did.
    fn ping(&mut self, now_ns: u64) -> bool {
        if now_ns < self.ping_ns() || !self.down.is_between_frames() || !self.down.is_flushed() {
            return false;
        }
        self.pings += 1;
        let content = self.pings.to_be_bytes();
        self.down.add(Opcode::Ping, &content);
        self.up.pinged = Some(content);
        self.pinged_ns = Some(now_ns);
        true
    }

    fn deadline_ns(&self, now_ns: u64, leave_ns: u64) -> u64 {
        let waits = leave_ns.min(self.ping_ns()).max(now_ns + STEP_NS);
        waits.min(self.idle_ns()).min(self.ends_ns)
    }

    /// Queues a close frame for both sides, where the sender's frames leave room for one.
    fn close(&mut self, close: &StreamClose, exchange: &mut Exchange, now_ns: u64) {
        messages::note_early_end(self.policies.early_end(close, self.worker), exchange);
        let content = close.code.content(&close.reason);
        self.down.add(Opcode::Close, &content);
        self.up.add(Opcode::Close, &content);
        self.closing_ns = Some(now_ns + CLOSING_NS);
    }

    /// Sends what is left, and closes both halves.
    fn poll_closing(
        &mut self,
        context: &mut Context<'_>,
        client: &mut impl ClientSide,
        upstream: &mut impl Pipe,
        closing_ns: u64,
    ) -> Poll<()> {
        let worker = self.worker;
        let is_down = poll_end(&mut self.down, context, worker, client.pipe()).is_ready();
        let is_up = poll_end(&mut self.up, context, worker, upstream).is_ready();
        let has_no_time = client.service().phase() == WorkerPhase::Stopping || worker.now_ns() >= closing_ns;
        if is_down && is_up || has_no_time {
            return Poll::Ready(());
        }
        client.set_deadline(closing_ns);
        Poll::Pending
    }
}

/// When a WebSocket will have been idle for too long, by the times of its last bytes and its last message.
fn idle_ends_ns(idle_timeout: Option<Duration>, received_ns: u64, message_ns: u64) -> u64 {
    match idle_timeout {
        None => received_ns + IDLE_NS,
        Some(idle) => message_ns + idle.as_nanos() as u64,
    }
}

/// Sends what is left of a direction, and closes it; ready when that is done, or has failed.
fn poll_end(
    direction: &mut MessageDirection,
    context: &mut Context<'_>,
    worker: &WorkerContext,
    to: &mut impl Pipe,
) -> Poll<()> {
    while !direction.is_flushed() {
        if std::task::ready!(direction.poll_flush(context, worker, to)).is_err() {
            return Poll::Ready(());
        }
    }
    if !direction.is_shut {
        direction.is_shut = std::task::ready!(to.poll_shutdown(context)).is_ok();
    }
    Poll::Ready(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_timeout_takes_the_place_of_the_usual_hour() {
        let (hour, received_ns, message_ns) = (Duration::from_secs(3600), 7, 5);
        let of = |idle_timeout: Option<Duration>| idle_ends_ns(idle_timeout, received_ns, message_ns);
        assert_eq!(of(None), 7 + IDLE_NS);
        assert_eq!(of(Some(Duration::from_secs(60))), 5 + IDLE_NS / 60, "pings do not count");
        assert_eq!(of(Some(hour * 24)), 5 + 24 * IDLE_NS, "longer than the hour");
    }
}
