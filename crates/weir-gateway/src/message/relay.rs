//! One exchange between a client and an upstream: both directions at once, nothing held but what a peer does not take.
//!
//! The two directions are independent: an answer may come before the request is complete, and either side may close its
//! half. Each wake-up moves what can be moved, through the worker's buffers, straight from one socket to the other.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use weir_net::timer::NEVER;
use weir_plugin::Stop;
use weir_proto::Trailers;
use weir_proto::h1::Tolerance;

use crate::context::WorkerContext;
use crate::context::lifecycle::WorkerPhase;
use crate::context::served_exchange::ServedExchange;
use crate::endpoint::persistence::{Persistence, StickySessions};
use crate::message::forward::Coding;
use crate::message::sides::{ClientSide, RequestTerms, UpstreamSide};
use crate::plugins::chain::Plugins;
use crate::plugins::content;
use crate::snapshot::{ClientSettings, Endpoint, PassHost, Timeouts};

pub mod body;
mod request;
mod response;

use body::BodyTransfer;

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayOutcome {
    /// The response is complete on its way to the client.
    Complete { client_reusable: bool, upstream_reusable: bool },
    /// The upstream has agreed to another protocol: from here on bytes go both ways unread.
    Tunnel,
}

/// What a relay needs to know of the configuration.
pub struct RelayTerms<'a> {
    pub plugins: Plugins<'a>,
    pub clients: &'a ClientSettings,
    pub timeouts: Timeouts,
    pub tolerance: Tolerance,
    /// What we call ourselves in `Via`, where the response comes from elsewhere and that is wanted.
    pub via: Option<&'a str>,
    pub pass_host: &'a PassHost,
    pub endpoint: &'a Endpoint,
    pub persistence: Option<PersistenceCookie<'a>>,
}

impl RelayTerms<'_> {
    fn request(&self) -> RequestTerms<'_> {
        RequestTerms { pass_host: self.pass_host, endpoint: self.endpoint, limits: &self.clients.limits }
    }
}

/// How the client is to find the endpoint again.
#[derive(Clone, Copy)]
pub struct PersistenceCookie<'a> {
    pub persistence: &'a Persistence,
    pub sessions: &'a StickySessions,
    /// Its number in the upstream.
    pub endpoint: usize,
}

/// Sends the request to the upstream and its response to the client. Not an `async fn`, which would keep its arguments beside
/// the relay that is made of them.
pub fn both_ways<'a, C: ClientSide, U: UpstreamSide>(
    worker: &'a WorkerContext,
    client: &'a mut C,
    upstream: &'a mut U,
    exchange: &'a mut ServedExchange,
    terms: &'a RelayTerms<'a>,
) -> impl Future<Output = Result<RelayOutcome, Stop>> + use<'a, C, U> {
    let mut relay = Relay::new(worker, client, upstream, exchange, terms);
    poll_fn(move |context| {
        let end = ready!(relay.poll(context));
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
    coding: Coding,
    head_sent: bool,
    /// The upstream takes no more; what it has to say may still come.
    refused: bool,
    content: u64,
    /// How much was taken of content that was read before.
    held_taken: usize,
    /// When reading the body began, moved by the time in which it was not the client's fault that nothing came.
    body_since_ns: u64,
    blocked_since_ns: u64,
    /// By when the upstream must have taken something, or answered something.
    upstream_deadline_ns: u64,
}

/// The response on its way to the client.
struct ResponseSide<'a> {
    /// Received from the upstream and not understood yet: part of a head.
    stash: Vec<u8>,
    body: BodyTransfer,
    coding: Coding,
    /// On its way through plugins, if any want it.
    content: Option<Box<content::ResponseContent<'a>>>,
    head_done: bool,
    interim: u8,
    client_reusable: bool,
    upstream_reusable: bool,
    tunnel: bool,
    /// By when the client must have taken something.
    client_deadline_ns: u64,
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
        let request = RequestSide {
            body: BodyTransfer::new(exchange.request.framing, terms.clients.limits.head_bytes),
            coding: Coding::None,
            head_sent: false,
            refused: false,
            content: 0,
            held_taken: 0,
            body_since_ns: now_ns,
            blocked_since_ns: 0,
            upstream_deadline_ns: NEVER,
        };
        let response = ResponseSide {
            stash: Vec::new(),
            body: BodyTransfer::Done(Trailers::default()),
            coding: Coding::None,
            content: None,
            head_done: false,
            interim: 0,
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
        // The first poll comes in the wake-up that brought the request.
        self.now_ns = if self.request.head_sent { self.worker.wake_up() } else { self.worker.now_ns() };
        loop {
            // Once the request is out, the answer comes first: most of the time it is all there is left to do.
            let waits_for_answer = self.request_is_out();
            let begins = !self.request.head_sent;
            let request = if waits_for_answer { Poll::Pending } else { self.poll_request(context)? };
            if begins && self.request_is_out() {
                continue; // nothing can have been answered yet
            }
            let response = self.poll_response(context)?;
            if let Some(outcome) = self.outcome() {
                return Poll::Ready(Ok(outcome));
            }
            if request.is_pending() && response.is_pending() {
                // What the client does now is send the next request, or go away.
                if waits_for_answer && self.client.poll_ahead(context)?.is_ready() {
                    continue;
                }
                if self.response.content.is_some() && !self.client.is_blocked() {
                    self.flush_content(context)?;
                }
                if self.is_to_leave() {
                    self.end_stream(context)?;
                    continue;
                }
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
        // RFC 9112 §9.5: an answer to an incomplete request ends the connection, on both sides.
        let request_complete = self.request_is_out() && !self.request.refused;
        Some(RelayOutcome::Complete {
            client_reusable: response.client_reusable && request_complete,
            upstream_reusable: response.upstream_reusable && request_complete,
        })
    }

    /// Nothing of the request is left to be sent, or the upstream takes no more.
    fn request_is_out(&self) -> bool {
        let request = &self.request;
        request.head_sent && !self.upstream.is_blocked() && (request.body.is_done() || request.refused)
    }

    /// Nothing moves: has anybody run out of time?
    fn keep_deadlines(&mut self) -> Result<(), Stop> {
        if self.worker.phase() == WorkerPhase::Stopping {
            return Err(Stop::Shutdown);
        }
        let waits_for_client = self.client.is_blocked();
        // While the client does not take the response, the upstream is not to blame for its silence.
        let upstream =
            if waits_for_client && !self.upstream.is_blocked() { NEVER } else { self.request.upstream_deadline_ns };
        let client = if waits_for_client { self.response.client_deadline_ns } else { NEVER };
        let body = match self.request.body.is_done() || self.request.refused || self.upstream.is_blocked() {
            true => NEVER,
            // Messages of a call come when there is something to say.
            false if self.exchange.request.is_grpc() => NEVER,
            false => self.terms.clients.body_deadline_ns(self.request.body_since_ns, self.request.content),
        };
        let half_close = self.client.half_close_deadline_ns(self.terms.clients);
        // What is complete and only has to be taken is not late.
        let is_answered = self.response.head_done && self.response.body.is_done();
        let call = if is_answered { NEVER } else { self.client.call_deadline_ns() };
        let now_ns = self.now_ns;
        if client <= now_ns {
            return Err(Stop::ClientStalled);
        }
        if half_close <= now_ns {
            return Err(Stop::ClientGone);
        }
        if call <= now_ns {
            return Err(Stop::CallTimeout);
        }
        if body <= now_ns {
            return Err(Stop::BodyTimeout);
        }
        if upstream <= now_ns {
            return Err(if self.upstream.is_blocked() { Stop::SendTimeout } else { Stop::ReadTimeout });
        }
        let leave = self.leave_ns();
        self.client.set_deadline(upstream.min(client).min(body).min(half_close).min(call).min(leave));
        Ok(())
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
