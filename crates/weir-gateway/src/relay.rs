//! One exchange between a client and an upstream: both directions at once, nothing held but what a peer does not take.
//!
//! The two directions are independent: an answer may come before the request is complete, and either side may close its
//! half. Each wake-up moves what can be moved, through the worker's buffers, straight from one socket to the other.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Stop, Taken};
use weir_proto::h1::{BadResponse, parse_response};
use weir_proto::{Framing, Trailers};

use crate::chain::Plugins;
use crate::content;
use crate::forward::{self, Coding};
use crate::persistence::{Persistence, Sessions};
use crate::sides::{ClientSide, NOT_PROCESSED, Received, UpstreamSide};
use crate::snapshot::{ClientSettings, Endpoint, PassHost, Timeouts};
use crate::worker::{Phase, Worker};

pub mod body;

use body::{Body, Moved};

/// Interim responses let through for one request; more are a storm.
const MAX_INTERIM: u8 = 8;

/// How much of content that was read before is handed to an upstream at a time.
const PIECE: usize = 64 * 1024;

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response is complete on its way to the client.
    Complete { client_reusable: bool, upstream_reusable: bool },
    /// The upstream has agreed to another protocol: from here on bytes go both ways unread.
    Tunnel,
}

/// What a relay needs to know of the configuration.
pub struct Terms<'a> {
    pub plugins: Plugins<'a>,
    pub clients: &'a ClientSettings,
    pub timeouts: Timeouts,
    pub pass_host: &'a PassHost,
    pub endpoint: &'a Endpoint,
    pub persistence: Option<Persisting<'a>>,
}

/// How the client is to find the endpoint again.
#[derive(Clone, Copy)]
pub struct Persisting<'a> {
    pub persistence: &'a Persistence,
    pub sessions: &'a Sessions,
    /// Its number in the upstream.
    pub endpoint: usize,
}

/// Sends the request to the upstream and its response to the client.
pub async fn both_ways(
    worker: &Worker,
    client: &mut impl ClientSide,
    upstream: &mut impl UpstreamSide,
    exchange: &mut Exchange,
    terms: &Terms<'_>,
) -> Result<Outcome, Stop> {
    let mut relay = Relay::new(worker, client, upstream, exchange, terms);
    let end = poll_fn(|context| relay.poll(context)).await;
    relay.release();
    end
}

struct Relay<'a, C, U> {
    worker: &'a Worker,
    client: &'a mut C,
    upstream: &'a mut U,
    exchange: &'a mut Exchange,
    terms: &'a Terms<'a>,
    request: RequestSide,
    response: ResponseSide<'a>,
    now_ns: u64,
}

/// The request on its way to the upstream.
struct RequestSide {
    body: Body,
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
    body: Body,
    coding: Coding,
    /// On its way through plugins, if any want it.
    content: Option<Box<content::Response<'a>>>,
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
        worker: &'a Worker,
        client: &'a mut C,
        upstream: &'a mut U,
        exchange: &'a mut Exchange,
        terms: &'a Terms<'a>,
    ) -> Relay<'a, C, U> {
        let now_ns = worker.now_ns();
        let request = RequestSide {
            body: Body::new(exchange.request.framing, terms.clients.limits.head_bytes),
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
            body: Body::Done(Trailers::default()),
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

    fn release(mut self) {
        self.worker.release(&mut self.response.stash);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Outcome, Stop>> {
        // The first poll comes in the wake-up that brought the request.
        self.now_ns = if self.request.head_sent { self.worker.wake_up() } else { self.worker.now_ns() };
        loop {
            // Once the request is out, the answer comes first: most of the time it is all there is left to do.
            let waits_for_answer = self.request_is_out();
            let request = if waits_for_answer { Poll::Pending } else { self.poll_request(context)? };
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
                self.keep_deadlines()?;
                return Poll::Pending;
            }
        }
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let response = &self.response;
        if !response.head_done || !response.body.is_done() || self.client.is_blocked() {
            return None;
        }
        if response.tunnel {
            return Some(Outcome::Tunnel);
        }
        // RFC 9112 §9.5: an answer to an incomplete request ends the connection, on both sides.
        let request_complete = self.request_is_out() && !self.request.refused;
        Some(Outcome::Complete {
            client_reusable: response.client_reusable && request_complete,
            upstream_reusable: response.upstream_reusable && request_complete,
        })
    }

    /// Nothing of the request is left to be sent, or the upstream takes no more.
    fn request_is_out(&self) -> bool {
        let request = &self.request;
        request.head_sent && !self.upstream.is_blocked() && (request.body.is_done() || request.refused)
    }

    /// Moves the request towards the upstream. Ready when something has moved.
    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if !self.request.head_sent {
            self.send_head(context)?;
            return Poll::Ready(Ok(()));
        }
        if self.upstream.is_blocked() {
            return self.flush_request(context);
        }
        if self.request_is_out() {
            return Poll::Pending;
        }
        if let Some(held) = self.exchange.request_body.take() {
            // What there is to know of the client was known when it was read.
            let known = (self.exchange.request_bytes, self.exchange.body_taken);
            let piece = &held[self.request.held_taken..];
            let moved = self.move_request(context, &piece[..piece.len().min(PIECE)]);
            (self.exchange.request_bytes, self.exchange.body_taken) = known;
            self.exchange.request_body = Some(held);
            self.request.held_taken += moved?;
            return Poll::Ready(Ok(()));
        }
        if !self.client.stash().is_empty() {
            let stash = std::mem::take(self.client.stash());
            let moved = self.move_request(context, &stash);
            *self.client.stash() = stash;
            self.worker.consume(self.client.stash(), moved?);
            return Poll::Ready(Ok(()));
        }
        let worker = self.worker;
        worker.with_read_buffer(|buffer| match self.client.poll_read(context, buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(count)) if count > 0 => {
                let used = self.move_request(context, &buffer[..count])?;
                worker.stash(self.client.stash(), &buffer[used..count]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(_)) => Poll::Ready(self.client_ended(context)),
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::ClientGone)),
        })
    }

    /// Sends the head, together with what is there of the body.
    fn send_head(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let worker = self.worker;
        self.request.head_sent = true;
        worker.with_write_buffer(|out| {
            self.request.coding = self.request_head(out);
            if self.request.body.is_done() {
                self.end_request(out)?;
            } else if self.exchange.request_body.is_none() && !self.client.stash().is_empty() {
                let stash = std::mem::take(self.client.stash());
                let moved = self.take_body(&stash, out);
                *self.client.stash() = stash;
                worker.consume(self.client.stash(), moved?);
            }
            self.send(context, out)
        })
    }

    fn request_head(&mut self, out: &mut Vec<u8>) -> Coding {
        if self.exchange.request_filters.is_empty() {
            return self.upstream.request_head(out, self.exchange, self.terms);
        }
        // Who filters does not know beforehand how much it will be.
        let framing = std::mem::replace(&mut self.exchange.request.framing, Framing::Chunked);
        let coding = self.upstream.request_head(out, self.exchange, self.terms);
        self.exchange.request.framing = framing;
        coding
    }

    fn end_request(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        if !self.exchange.request_filters.is_empty() {
            let mut rest = Vec::new();
            self.exchange.request_filters.end(b"", &mut rest)?;
            body::write(out, self.request.coding, &rest);
        }
        let trailers = self.request.body.trailers().filter(|_| self.exchange.request.takes_trailers);
        self.upstream.end(out, self.request.coding, trailers);
        Ok(())
    }

    /// Nothing more comes from the client: that ends a body that ends so, and any other is cut short.
    fn client_ended(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        self.request.body.close(self.client.take_trailers()).map_err(|_| Stop::ClientGone)?;
        self.exchange.body_taken = Taken::All;
        self.worker.with_write_buffer(|out| {
            self.end_request(out)?;
            self.send(context, out)
        })
    }

    /// Moves part of the body on; says how much of `received` belonged to it.
    fn move_request(&mut self, context: &mut Context<'_>, received: &[u8]) -> Result<usize, Stop> {
        self.worker.with_write_buffer(|out| {
            let used = self.take_body(received, out)?;
            self.send(context, out)?;
            Ok(used)
        })
    }

    fn take_body(&mut self, received: &[u8], out: &mut Vec<u8>) -> Result<usize, Stop> {
        self.exchange.body_taken = Taken::Part;
        let moved = self.transfer_request(received, out)?;
        self.request.content += moved.content;
        if self.request.body.is_done() {
            self.exchange.body_taken = Taken::All;
            self.end_request(out)?;
        }
        self.exchange.request_bytes += moved.consumed as u64;
        match self.request.content > self.exchange.body_limit {
            true => Err(Stop::BodyTooLarge),
            false => Ok(moved.consumed),
        }
    }

    fn transfer_request(&mut self, received: &[u8], out: &mut Vec<u8>) -> Result<Moved, Stop> {
        let RequestSide { body, coding, .. } = &mut self.request;
        if self.exchange.request_filters.is_empty() {
            return body.transfer(received, *coding, out).map_err(|_| Stop::BadRequestBody);
        }
        let (mut content, mut passed) = (Vec::new(), Vec::new());
        let moved = body.transfer(received, Coding::Plain, &mut content).map_err(|_| Stop::BadRequestBody)?;
        self.exchange.request_filters.piece(&content, &mut passed)?;
        body::write(out, *coding, &passed);
        Ok(moved)
    }

    /// Sends what the upstream takes of `bytes` and keeps the rest.
    fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Result<(), Stop> {
        match self.upstream.send(context, bytes) {
            Ok(sent) => self.count_sent(sent),
            Err(error) => return self.upstream_refuses(error),
        }
        if self.upstream.is_blocked() {
            self.request.blocked_since_ns = self.now_ns;
            self.request.upstream_deadline_ns = self.now_ns.saturating_add(ns(self.terms.timeouts.send));
        } else if self.request.body.is_done() {
            self.request_sent();
        }
        Ok(())
    }

    fn flush_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match self.upstream.poll_flush(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(self.upstream_refuses(error)),
            Poll::Ready(Ok(count)) => {
                self.count_sent(count);
                if self.upstream.is_blocked() {
                    self.request.upstream_deadline_ns = self.now_ns.saturating_add(ns(self.terms.timeouts.send));
                } else if self.request.body.is_done() {
                    self.request_sent();
                } else {
                    // The client is not to blame for the time in which we did not read.
                    self.request.body_since_ns += self.now_ns - self.request.blocked_since_ns;
                    self.request.upstream_deadline_ns = NEVER;
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    fn count_sent(&mut self, count: usize) {
        self.exchange.upstream.bytes_sent += count as u64;
        self.worker.metrics.upstream_bytes_sent.add(count as u64);
    }

    /// The whole request is on its way; now the upstream's time runs.
    fn request_sent(&mut self) {
        self.exchange.upstream.sent_ns = self.now_ns;
        self.expect_response();
    }

    fn expect_response(&mut self) {
        self.request.upstream_deadline_ns = self.now_ns.saturating_add(ns(self.terms.timeouts.read));
    }

    /// The upstream does not take the request. It may have answered before it closed, so its side is read to the end.
    fn upstream_refuses(&mut self, error: io::Error) -> Result<(), Stop> {
        tracing::debug!("send to {}: {error}", self.upstream.addr());
        self.request.refused = true;
        self.expect_response();
        Ok(())
    }

    /// Moves the response towards the client. Ready when something has moved.
    fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.client.is_blocked() {
            return match self.client.poll_flush(context) {
                Poll::Ready(Ok(_)) if self.client.is_blocked() => Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => {
                    self.response.client_deadline_ns = NEVER;
                    self.expect_response();
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::ClientGone)),
                Poll::Pending => Poll::Pending,
            };
        }
        if self.response.head_done && self.response.body.is_done() {
            return Poll::Pending;
        }
        let (worker, room) = (self.worker, self.client.room());
        worker.with_read_buffer(|buffer| {
            match self.upstream.poll_receive(context, &mut buffer[..room], &mut self.exchange.response) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(Received::Head(parsed))) => Poll::Ready(self.received_head(context, parsed)),
                Poll::Ready(Ok(Received::End)) => Poll::Ready(self.upstream_closed(context)),
                Poll::Ready(Ok(Received::Bytes(count))) => {
                    self.exchange.upstream.bytes_received += count as u64;
                    worker.metrics.upstream_bytes_received.add(count as u64);
                    if !self.upstream.is_blocked() {
                        self.expect_response();
                    }
                    Poll::Ready(self.received(context, &buffer[..count]))
                }
                Poll::Ready(Err(error)) if error.kind() == NOT_PROCESSED => Poll::Ready(Err(Stop::NotProcessed)),
                Poll::Ready(Err(_)) => Poll::Ready(Err(self.upstream_lost())),
            }
        })
    }

    /// The upstream's connection broke: before the first byte of an answer, or in the middle of one.
    fn upstream_lost(&self) -> Stop {
        match self.exchange.upstream.bytes_received == 0 {
            true => Stop::UpstreamClosed,
            false => Stop::UpstreamAborted,
        }
    }

    fn upstream_closed(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        if !self.response.head_done {
            return Err(self.upstream_lost());
        }
        self.response.upstream_reusable = false;
        self.worker.with_write_buffer(|out| {
            self.response.body.close(self.upstream.take_trailers()).map_err(|_| Stop::UpstreamAborted)?;
            self.end_response(out)?;
            self.send_to_client(context, out)
        })?;
        self.send_held(context)
    }

    /// A head came in one piece.
    fn received_head(&mut self, context: &mut Context<'_>, parsed: Result<(), BadResponse>) -> Result<(), Stop> {
        parsed.map_err(Stop::BadResponse)?;
        self.exchange.upstream.bytes_received += self.exchange.response.head.bytes().len() as u64;
        if !self.upstream.is_blocked() {
            self.expect_response();
        }
        self.worker.with_write_buffer(|out| {
            self.take_head(out)?;
            if self.response.head_done && self.response.body.is_done() {
                self.end_response(out)?;
            }
            self.send_to_client(context, out)
        })?;
        self.send_held(context)
    }

    /// Makes what it can of bytes from the upstream.
    fn received(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Result<(), Stop> {
        self.worker.with_write_buffer(|out| {
            let done = match self.response.stash.is_empty() {
                true => self.take_response(bytes, out),
                false => {
                    self.worker.stash(&mut self.response.stash, bytes);
                    let mut stash = std::mem::take(&mut self.response.stash);
                    let done = self.take_response(&stash, out);
                    self.worker.release(&mut stash);
                    done
                }
            };
            // What was said before a mistake has been said: an interim response, the good part of a body.
            done.and(self.send_to_client(context, out))
        })?;
        self.send_held(context)
    }

    fn take_response(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        while !self.response.head_done {
            self.exchange.response.clear();
            let limits = &self.terms.clients.limits;
            let parsed = parse_response(bytes, limits, self.exchange.request.method, &mut self.exchange.response);
            match parsed.map_err(Stop::BadResponse)? {
                None => {
                    self.worker.stash(&mut self.response.stash, bytes);
                    return Ok(());
                }
                Some(length) => bytes = &bytes[length..],
            }
            self.take_head(out)?;
        }
        if self.response.tunnel {
            out.extend_from_slice(bytes);
            return Ok(());
        }
        let moved = match &mut self.response.content {
            None => {
                let moved = self.response.body.transfer(bytes, self.response.coding, out);
                let moved = moved.map_err(|_| Stop::BadResponseBody)?;
                self.exchange.body_bytes += moved.content;
                moved
            }
            Some(content) => {
                let (mut plain, mut passed) = (Vec::new(), Vec::new());
                let moved = self.response.body.transfer(bytes, Coding::Plain, &mut plain);
                let moved = moved.map_err(|_| Stop::BadResponseBody)?;
                content.piece(&plain, &mut passed)?;
                self.write_content(&passed, out);
                moved
            }
        };
        self.exchange.upstream.body_bytes += moved.content;
        if moved.consumed < bytes.len() {
            // Bytes beyond the response could be taken for the answer to somebody else's request.
            self.response.upstream_reusable = false;
        }
        if self.response.body.is_done() {
            self.end_response(out)?;
        }
        Ok(())
    }

    fn write_content(&mut self, content: &[u8], out: &mut Vec<u8>) {
        body::write(out, self.response.coding, content);
        self.exchange.body_bytes += content.len() as u64;
    }

    fn end_response(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        if let Some(content) = &mut self.response.content {
            if content.is_held() {
                return Ok(());
            }
            let mut rest = Vec::new();
            content.end(self.exchange, &mut rest)?;
            self.write_content(&rest, out);
        }
        let trailers = self.response.body.trailers().filter(|_| self.exchange.request.takes_trailers);
        self.client.end(out, self.response.coding, trailers);
        Ok(())
    }

    /// Nobody is to wait for what a plugin keeps back.
    fn flush_content(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let Some(content) = &mut self.response.content else { return Ok(()) };
        let mut kept = Vec::new();
        content.flush(&mut kept)?;
        if kept.is_empty() {
            return Ok(());
        }
        self.worker.with_write_buffer(|out| {
            self.write_content(&kept, out);
            self.send_to_client(context, out)
        })
    }

    /// Sends a response that plugins wanted whole, once all of it is there and they have seen it.
    fn send_held(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let is_due = |content: &mut Box<content::Response<'_>>| content.is_held();
        if !self.response.head_done || !self.response.body.is_done() {
            return Ok(());
        }
        let Some(mut content) = self.response.content.take_if(is_due) else { return Ok(()) };
        let mut body = Vec::new();
        content.end(self.exchange, &mut body)?;
        self.worker.with_write_buffer(|out| {
            self.begin_response(out);
            self.send_to_client(context, out)
        })?;
        self.exchange.body_bytes += body.len() as u64;
        self.send_to_client(context, &body)?;
        self.worker.with_write_buffer(|out| {
            self.end_response(out)?;
            self.send_to_client(context, out)
        })
    }

    fn take_head(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        let status = self.exchange.response.status;
        if status == 101 {
            if !self.exchange.request.upgrade {
                return Err(Stop::BadInterim);
            }
            self.upstream_answers(status);
            self.response.head_done = true;
            self.response.tunnel = true;
            self.exchange.response_begun = true;
            self.client.upgrade_head(out, self.exchange);
            return Ok(());
        }
        if status < 200 {
            self.response.interim += 1;
            if self.response.interim > MAX_INTERIM {
                return Err(Stop::BadInterim);
            }
            // 100 is an answer to an expectation, and each has one answer.
            if status != 100 || std::mem::take(&mut self.exchange.request.expects_continue) {
                self.client.interim_head(out, self.exchange);
            }
            return Ok(());
        }
        self.upstream_answers(status);
        self.response.upstream_reusable = self.exchange.response.keep_alive;
        self.response.body = Body::new(self.exchange.response.framing, self.terms.clients.limits.head_bytes);
        self.terms.plugins.on_response(self.exchange)?;
        if self.terms.plugins.see_response_bodies(self.exchange) {
            self.response.content = content::Response::new(self.terms.plugins, self.exchange)?;
        }
        self.response.head_done = true;
        if !self.response.content.as_ref().is_some_and(|content| content.is_held()) {
            self.begin_response(out);
        }
        Ok(())
    }

    /// Writes the head of the final response: from here on there is no way back.
    fn begin_response(&mut self, out: &mut Vec<u8>) {
        self.response.coding = forward::response_coding(self.exchange);
        self.response.client_reusable = self.exchange.request.keep_alive
            && self.response.coding != Coding::UntilClose
            && self.request.body.is_done()
            && !self.client.ended()
            && self.worker.phase() == Phase::Serving
            && self.terms.clients.keepalive_requests.is_none_or(|most| self.exchange.client.connection_requests < most);
        self.exchange.response_begun = true;
        self.client.response_head(out, self.exchange, self.response.coding, !self.response.client_reusable);
    }

    fn upstream_answers(&mut self, status: u16) {
        self.exchange.upstream.status = status;
        self.exchange.upstream.header_ns = self.now_ns;
        self.upstream.answered();
        if let Some(Persisting { persistence, sessions, endpoint }) = self.terms.persistence {
            let endpoint = (endpoint, self.terms.endpoint.addr);
            persistence.answered(self.exchange, sessions, endpoint, self.now_ns);
        }
    }

    fn send_to_client(&mut self, context: &mut Context<'_>, out: &[u8]) -> Result<(), Stop> {
        self.exchange.response_bytes += out.len() as u64;
        self.client.send(context, out).map_err(|_| Stop::ClientGone)?;
        if self.client.is_blocked() {
            self.response.client_deadline_ns = self.now_ns.saturating_add(ns(self.terms.clients.write_timeout));
        }
        Ok(())
    }

    /// Nothing moves: has anybody run out of time?
    fn keep_deadlines(&mut self) -> Result<(), Stop> {
        if self.worker.phase() == Phase::Stopping {
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
        let now_ns = self.now_ns;
        if client <= now_ns {
            return Err(Stop::ClientStalled);
        }
        if half_close <= now_ns {
            return Err(Stop::ClientGone);
        }
        if body <= now_ns {
            return Err(Stop::BodyTimeout);
        }
        if upstream <= now_ns {
            return Err(if self.upstream.is_blocked() { Stop::SendTimeout } else { Stop::ReadTimeout });
        }
        self.client.set_deadline(upstream.min(client).min(body).min(half_close));
        Ok(())
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
