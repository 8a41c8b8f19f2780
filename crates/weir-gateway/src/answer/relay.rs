//! One exchange between a client and an upstream: both directions at once; only bytes that a peer does not take are held.
//!
//! The two directions are independent: a response may come before the request is complete, and either side may close its
//! half. Each wake-up moves what can be moved, through the worker's buffers, from one socket to the other.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::{Limits, Tolerance};
use weir_proto::{Framing, Trailers};

use crate::context::WorkerContext;
use crate::context::kept_content::{MOST_KEPT, ResentContent};
use crate::context::lifecycle::WorkerPhase;
use crate::context::served_exchange::ServedExchange;
use crate::endpoint::persistence::StickySessions;
use crate::message::AfterExchange;
use crate::message::body::{BodyTransfer, PausedBody};
use crate::message::deadlines;
use crate::message::forward::HopFraming;
use crate::message::sides::{ClientSide, RequestTerms, UpstreamSide};
use crate::message::turn::ConnectionTurn;
use crate::plugins::chain::Plugins;
use crate::plugins::content;
use crate::snapshot::{ClientSettings, Endpoint, PassHost, Persistence, Timeouts};

mod paced;
mod request;
mod response;

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayOutcome {
    /// The response is complete, and all of it has been passed to the client's connection.
    Complete { client: AfterExchange, upstream_reusable: bool },
    /// The upstream has accepted a protocol upgrade: from here on a tunnel takes over.
    Tunnel,
}

/// What a relay needs from the configuration.
pub(crate) struct RelayTerms<'a> {
    pub plugins: Plugins<'a>,
    pub clients: &'a ClientSettings,
    pub timeouts: &'a Timeouts,
    pub tolerance: Tolerance,
    pub response_limits: &'a Limits,
    /// Decides which responses are not for the client, since another attempt follows; `None` if every response is.
    pub status_retry: Option<&'a dyn StatusRetryRule>,
    /// The gateway's name for `Via` of the response; `None` if it is not configured, or if a responder makes the response.
    pub via: Option<&'a str>,
    pub pass_host: &'a PassHost,
    pub endpoint: &'a Endpoint,
    pub persistence: Option<PersistenceCookie<'a>>,
}

impl RelayTerms<'_> {
    fn request(&self) -> RequestTerms<'_> {
        RequestTerms { pass_host: self.pass_host, endpoint: self.endpoint, limits: self.response_limits }
    }
}

/// Decides, when the head of a response has come, whether another attempt follows it.
pub(crate) trait StatusRetryRule {
    /// Whether a response with this status is followed by another attempt, if the request can be sent again.
    fn follows(&self, exchange: &Exchange, status: u16, now_ns: u64) -> bool;
}

/// The persistence cookie that leads the client back to this endpoint.
#[derive(Clone, Copy)]
pub(crate) struct PersistenceCookie<'a> {
    pub persistence: &'a Persistence,
    pub sessions: &'a StickySessions,
    /// The endpoints of the upstream.
    pub endpoints: &'a [Endpoint],
    /// The number of this one among them.
    pub endpoint: usize,
}

/// Sends the request to the upstream and its response to the client. Not an `async fn`, whose future would keep the
/// arguments beside the `Relay` built from them.
pub(crate) fn both_ways<'a, C: ClientSide, U: UpstreamSide>(
    worker: &'a WorkerContext,
    client: &'a mut C,
    upstream: &'a mut U,
    exchange: &'a mut ServedExchange,
    terms: &'a RelayTerms<'a>,
) -> impl Future<Output = Result<RelayOutcome, Stop>> + use<'a, C, U> {
    let mut relay = Relay::new(worker, client, upstream, exchange, terms);
    poll_fn(move |context| {
        let end = ready!(relay.poll(context));
        if U::MARKS_END && end == Err(Stop::NotProcessed) {
            relay.give_content_back();
        }
        relay.release_buffers();
        Poll::Ready(end)
    })
}

struct Relay<'a, C, U> {
    worker: &'a WorkerContext,
    client: &'a mut C,
    upstream: &'a mut U,
    exchange: &'a mut ServedExchange,
    terms: &'a RelayTerms<'a>,
    request: RequestSide,
    response: ResponseSide<'a>,
    now_ns: u64,
}

/// The request on its way to the upstream.
struct RequestSide {
    body: BodyTransfer,
    coding: HopFraming,
    head_sent: bool,
    /// The upstream accepts no more of the request; its response is still read.
    refused: bool,
    content: u64,
    /// Bytes already forwarded of a body that was buffered for plugins.
    buffered_body_sent: usize,
    /// The content as it has been sent, until the upstream answers: one of HTTP/2 may say that it has not processed the request.
    /// `None` if it is not kept, as for every upstream of HTTP/1.
    kept: Option<Box<ResentContent>>,
    /// Start of the clock for the minimum rate of the body: when reading began, plus the time in which the gateway did not
    /// read.
    body_since_ns: u64,
    /// A call of gRPC over HTTP/2 on both sides: its client sends a message whenever it has one.
    is_call: bool,
    blocked_since_ns: u64,
    /// When the upstream times out: it must take bytes by then, or send some once the whole request has been sent.
    upstream_deadline_ns: u64,
}

/// The response on its way to the client.
struct ResponseSide<'a> {
    /// Bytes received from the upstream that are not a complete head yet.
    stash: Vec<u8>,
    body: BodyTransfer,
    paused: PausedBody,
    coding: HopFraming,
    /// The filters that plugins put on the content, if any.
    content: Option<Box<content::ResponseContent<'a>>>,
    head_done: bool,
    /// Interim responses that were passed on, and the bytes of all that were received.
    interim: u8,
    interim_bytes: usize,
    client_reusable: bool,
    upstream_reusable: bool,
    tunnel: bool,
    /// When the client times out: it must take bytes by then.
    client_deadline_ns: u64,
}

impl ResponseSide<'_> {
    fn pause(&mut self) {
        self.paused.pause(&mut self.body);
    }

    fn resume(&mut self) {
        self.paused.resume(&mut self.body);
    }

    fn is_paused_at_end(&self) -> bool {
        self.paused.is_at_end(&self.body)
    }
}

impl<'a, C: ClientSide, U: UpstreamSide> Relay<'a, C, U> {
    fn new(
        worker: &'a WorkerContext,
        client: &'a mut C,
        upstream: &'a mut U,
        exchange: &'a mut ServedExchange,
        terms: &'a RelayTerms<'a>,
    ) -> Relay<'a, C, U> {
        let now_ns = worker.now_ns();
        let kept = is_kept::<U>(exchange).then(|| Box::new(ResentContent::of(exchange.client.addr)));
        let request = RequestSide {
            body: request_body::<C, U>(exchange, terms.clients.limits.head_bytes),
            coding: HopFraming::None,
            head_sent: false,
            refused: false,
            content: 0,
            buffered_body_sent: 0,
            kept,
            body_since_ns: now_ns,
            is_call: C::MARKS_END && U::MARKS_END && exchange.request.framing.has_body() && exchange.request.is_grpc(),
            blocked_since_ns: 0,
            upstream_deadline_ns: NEVER,
        };
        let response = ResponseSide {
            stash: Vec::new(),
            body: BodyTransfer::Done(Trailers::default()),
            paused: PausedBody::default(),
            coding: HopFraming::None,
            content: None,
            head_done: false,
            interim: 0,
            interim_bytes: 0,
            client_reusable: false,
            upstream_reusable: false,
            tunnel: false,
            client_deadline_ns: NEVER,
        };
        Relay { worker, client, upstream, exchange, terms, request, response, now_ns }
    }

    fn release_buffers(&mut self) {
        self.worker.buffers.release(&mut self.response.stash);
        if let Some(content) = self.response.content.take() {
            self.exchange.broken_filters = content.into_filters();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<RelayOutcome, Stop>> {
        // The first poll runs in the wake-up that read the request, and needs no new reading of the clock.
        self.now_ns = if self.request.head_sent { self.worker.wake_up() } else { self.worker.now_ns() };
        let mut turn = ConnectionTurn::default();
        loop {
            // Once the request is sent, only the response is polled: in most wake-ups it is all that is left to move.
            let waits_for_answer = self.is_request_sent();
            let begins = !self.request.head_sent;
            let request = if waits_for_answer { Poll::Pending } else { self.poll_request(context)? };
            if begins && self.is_request_sent() {
                continue; // nothing can have been answered yet
            }
            let response = self.poll_response(context)?;
            if C::MARKS_END && U::MARKS_END && self.is_answered_before_end() {
                self.client_ended(context)?;
            }
            if let Some(outcome) = self.outcome() {
                return Poll::Ready(Ok(outcome));
            }
            if request.is_pending() && response.is_pending() {
                // The client may now send the next request, or close the connection.
                if waits_for_answer && self.client.poll_read_ahead(context)?.is_ready() {
                    continue;
                }
                if self.response.content.is_some() && !self.client.is_blocked() && self.flush_content(context)? {
                    continue;
                }
                if self.should_end_stream() {
                    self.end_stream(context)?;
                    continue;
                }
                if self.is_end_overdue() {
                    self.end_unmarked(context)?;
                    continue;
                }
                self.keep_deadlines()?;
                return Poll::Pending;
            }
            if turn.ends_with_piece(context) {
                self.keep_deadlines()?;
                return Poll::Pending;
            }
        }
    }

    fn outcome(&mut self) -> Option<RelayOutcome> {
        let response = &self.response;
        if !response.head_done || !response.body.is_done() || self.client.is_blocked() {
            return None;
        }
        if response.tunnel {
            return Some(RelayOutcome::Tunnel);
        }
        // RFC 9112 §9.5: a response to an incomplete request ends the connection, on both sides.
        let request_complete = self.is_request_sent() && !self.request.refused;
        let client = match request_complete {
            true if response.client_reusable => AfterExchange::KeepAlive,
            true if !self.exchange.request.keep_alive => AfterExchange::Finish,
            _ => AfterExchange::Close,
        };
        Some(RelayOutcome::Complete { client, upstream_reusable: response.upstream_reusable && request_complete })
    }

    /// The whole request has been sent, or the upstream accepts no more of it.
    fn is_request_sent(&self) -> bool {
        let request = &self.request;
        request.head_sent && !self.upstream.is_blocked() && (request.body.is_done() || request.refused)
    }

    /// When the end of a message that is otherwise complete is no longer waited for. A client that does not take the response
    /// does not need the end yet.
    fn end_deadline_ns(&self) -> u64 {
        let response = match U::MARKS_END && !self.client.is_blocked() {
            true => self.response.body.end_deadline_ns(),
            false => NEVER,
        };
        let request = if C::MARKS_END && U::MARKS_END { self.request.body.end_deadline_ns() } else { NEVER };
        response.min(request)
    }

    fn is_end_overdue(&self) -> bool {
        U::MARKS_END && self.end_deadline_ns() <= self.now_ns
    }

    /// Ends a message of which all content has come, and the end has not.
    fn end_unmarked(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        if self.request.body.end_deadline_ns() <= self.now_ns {
            return self.client_ended(context);
        }
        self.end_response_unmarked(context)
    }

    /// The response is complete, and of the request only the end has not come: it is ended, since the upstream has no use for
    /// a reset.
    fn is_answered_before_end(&self) -> bool {
        self.request.body.end_deadline_ns() != NEVER && self.response.head_done && self.response.body.is_done()
    }

    /// Checks all deadlines when nothing moves, and sets the timer to the earliest.
    fn keep_deadlines(&mut self) -> Result<(), Stop> {
        if self.client.service().phase() == WorkerPhase::Stopping {
            return Err(Stop::Shutdown);
        }
        let (waits_for_client, is_upstream_blocked) = (self.client.is_blocked(), self.upstream.is_blocked());
        // While the client does not take the response, the upstream is not to blame for its silence.
        let upstream = if waits_for_client && !is_upstream_blocked { NEVER } else { self.request.upstream_deadline_ns };
        let client = if waits_for_client && C::HAS_WRITE_TIMEOUT { self.response.client_deadline_ns } else { NEVER };
        let body = match self.request.body.is_done() || self.request.refused || is_upstream_blocked {
            true => NEVER,
            false if self.awaits_invitation() => NEVER,
            // The minimum rate of a body does not apply to a call, but it may not be silent in both directions.
            false if self.request.is_call => self.request.body_since_ns.saturating_add(ns(self.terms.timeouts.read)),
            false if C::MARKS_END && self.request.body.end_deadline_ns() != NEVER => NEVER,
            false if !C::HAS_MINIMUM_RATE => NEVER,
            false => self.terms.clients.body_deadline_ns(self.request.body_since_ns, self.request.content),
        };
        // The call's deadline does not end a complete response that only has to be taken by the client.
        let is_answered = self.response.head_done && self.response.body.is_done();
        let is_received = self.response.is_paused_at_end();
        let call = if is_answered || is_received { NEVER } else { self.client.call_deadline_ns() };
        // A client that has closed its side may have gone. Where the rate is limited, what it is sent shows that.
        let is_paced = self.response.content.as_ref().is_some_and(|content| content.is_paced());
        let half_close = if is_paced { NEVER } else { self.client.half_close_deadline_ns(self.terms.clients) };
        let earliest_ns = deadlines::earliest_ns(
            self.now_ns,
            [
                (client, Stop::ClientStalled),
                (half_close, Stop::ClientGone),
                (call, Stop::CallTimeout),
                (body, Stop::BodyTimeout),
                (upstream, if is_upstream_blocked { Stop::SendTimeout } else { Stop::ReadTimeout }),
            ],
        )?;
        let leave = self.leave_ns().min(self.end_deadline_ns());
        let flush = match &self.response.content {
            // At the deadline of its call, the rest of a complete response is sent at once.
            Some(content) if !waits_for_client && is_received => content.due_ns().min(self.client.call_deadline_ns()),
            Some(content) if !waits_for_client => content.due_ns(),
            _ => NEVER,
        };
        self.client.set_deadline(earliest_ns.min(leave).min(flush));
        Ok(())
    }
}

/// How long the end of a message, and its trailers, may come after the last byte of content that its length allows. Some
/// handlers send all content long before they end.
const END_PATIENCE_NS: u64 = 250_000_000;

/// Whether content that is sent to the upstream is kept: the upstream may refuse it unread, and filters of plugins could not pass it
/// again.
fn is_kept<U: UpstreamSide>(exchange: &ServedExchange) -> bool {
    U::MARKS_END
        && match exchange.request.framing {
            Framing::None => false,
            Framing::Sized(length) => length <= MOST_KEPT as u64,
            Framing::Chunked | Framing::UntilClose => true,
        }
        && exchange.request_body().is_none()
        && exchange.kept_content.is_none()
        && exchange.request_filters.is_empty()
}

/// How the request's body is read. Its end has to be looked for only where it can have trailers beside a length.
fn request_body<C: ClientSide, U: UpstreamSide>(exchange: &ServedExchange, trailer_limit: usize) -> BodyTransfer {
    let framing = exchange.request.framing;
    match framing {
        Framing::Sized(1..) if C::MARKS_END && U::MARKS_END && exchange.request_body().is_none() => {
            BodyTransfer::with_marked_end(framing, trailer_limit)
        }
        framing => BodyTransfer::new(framing, trailer_limit),
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
