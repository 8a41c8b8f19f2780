//! The response on its way to the client.

use std::io;
use std::task::{Context, Poll};

use weir_net::timer::NEVER;
use weir_plugin::Stop;
use weir_proto::h1::{BadResponse, parse_response};
use weir_proto::h2::ErrorCode;
use weir_proto::head::{MAX_INTERIM_BYTES, MAX_INTERIM_RESPONSES};
use weir_proto::{Framing, Method, Trailers};

use super::{END_PATIENCE_NS, PersistenceCookie, Relay, ResponseSide, StatusRetryRule, ns};
use crate::context::lifecycle::WorkerPhase;
use crate::message::body::{self, BodyTransfer, TransferProgress};
use crate::message::forward::{self, HopFraming};
use crate::message::sides::{ClientSide, NOT_PROCESSED, Received, StreamLoss, UpstreamSide};
use crate::plugins::{content, events, messages};

/// Servers round the time-out of a call, and start it a little later than the gateway: a `CANCEL` counts as the deadline
/// this long before it.
const DEADLINE_TOLERANCE_NS: u64 = 5_000_000;

impl<C: ClientSide, U: UpstreamSide> Relay<'_, C, U> {
    /// Moves the response towards the client. Ready when something has moved.
    pub(super) fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.client.is_blocked() {
            return match self.client.poll_flush(context) {
                Poll::Ready(Ok(count)) if self.client.is_blocked() => {
                    if count > 0 {
                        self.renew_write_timeout();
                    }
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(Ok(_)) => {
                    self.response.client_deadline_ns = NEVER;
                    self.renew_read_timeout();
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::ClientGone)),
                Poll::Pending => match self.upstream.poll_unread(context) {
                    Ok(()) => Poll::Pending,
                    Err(stop) => Poll::Ready(Err(stop)),
                },
            };
        }
        let (worker, mut room) = (self.worker, self.client.room());
        if self.response.head_done && self.response.body.is_done_or_paused() {
            match self.poll_pace(context, room) {
                Poll::Ready(Ok(most @ 1..)) => room = most,
                moved => return moved.map_ok(|_| ()),
            }
        }
        worker.buffers.with_read_buffer(|buffer| {
            match self.upstream.poll_receive(context, &mut buffer[..room], &mut self.exchange.response) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(Received::Head(parsed))) => Poll::Ready(self.received_head(context, parsed)),
                Poll::Ready(Ok(Received::End)) => Poll::Ready(self.upstream_closed(context)),
                Poll::Ready(Ok(Received::Bytes(count))) => {
                    self.exchange.upstream.bytes_received += count as u64;
                    worker.metrics.upstream_bytes_received.add(count as u64);
                    let done = self.received(context, &buffer[..count]);
                    self.renew_read_timeout();
                    Poll::Ready(done)
                }
                // All content has come, so the response is complete without its end.
                Poll::Ready(Err(_)) if U::MARKS_END && self.response.body.end_deadline_ns() != NEVER => {
                    Poll::Ready(self.end_response_unmarked(context))
                }
                Poll::Ready(Err(error)) if error.kind() == NOT_PROCESSED => Poll::Ready(Err(Stop::NotProcessed)),
                Poll::Ready(Err(error)) => {
                    Poll::Ready(Err(self.upstream.stop().unwrap_or_else(|| self.upstream_failed(&error))))
                }
            }
        })
    }

    /// The error may concern one stream of an HTTP/2 connection that goes on.
    fn upstream_failed(&self, error: &io::Error) -> Stop {
        match error.get_ref().and_then(|cause| cause.downcast_ref::<StreamLoss>()) {
            // At the deadline of a call, and not earlier by the server's own decision: no fault of the endpoint.
            Some(StreamLoss::Reset(ErrorCode::CANCEL)) if self.is_call_over() => Stop::CallTimeout,
            Some(StreamLoss::Reset(code)) => Stop::UpstreamReset(*code),
            Some(StreamLoss::Failed(_)) => Stop::BadResponseBody,
            _ => self.upstream_lost(),
        }
    }

    /// The deadline of the call has come, for the client or its server.
    fn is_call_over(&self) -> bool {
        self.client.call_deadline_ns().saturating_sub(DEADLINE_TOLERANCE_NS) <= self.now_ns
    }

    /// The upstream's connection broke: before the first byte of a response, or in the middle of it.
    fn upstream_lost(&self) -> Stop {
        match (self.exchange.upstream.bytes_received, self.response.head_done) {
            (0, _) => Stop::UpstreamClosed,
            (_, false) => Stop::UpstreamHeadAborted,
            (_, true) => Stop::UpstreamAborted,
        }
    }

    fn upstream_closed(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        if !self.response.head_done {
            return Err(self.upstream_lost());
        }
        self.response.upstream_reusable = false;
        self.worker.buffers.with_write_buffer(|out| {
            self.response.body.close(self.upstream.take_trailers()).map_err(|_| Stop::UpstreamAborted)?;
            self.end_response(out)?;
            self.send_to_client(context, out)
        })?;
        self.send_held(context)
    }

    /// Handles a head that came parsed: of an upstream of HTTP/2, or a responder.
    fn received_head(&mut self, context: &mut Context<'_>, parsed: Result<(), BadResponse>) -> Result<(), Stop> {
        parsed.map_err(Stop::BadResponse)?;
        let head_bytes = self.exchange.response.head.bytes().len() as u64;
        self.exchange.upstream.bytes_received += head_bytes;
        self.worker.metrics.upstream_bytes_received.add(head_bytes);
        self.upstream.note_told(self.exchange);
        self.worker.buffers.with_write_buffer(|out| {
            self.take_head(out)?;
            self.renew_read_timeout();
            if self.response.head_done && self.response.body.is_done() && !self.response.tunnel {
                self.end_response(out)?;
            }
            self.send_to_client(context, out)
        })?;
        self.send_held(context)
    }

    /// Parses bytes from the upstream, and sends the result on to the client.
    fn received(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Result<(), Stop> {
        self.worker.buffers.with_write_buffer(|out| {
            let done = match self.response.stash.is_empty() {
                true => self.take_response(bytes, out),
                false => {
                    self.worker.buffers.append_unread(&mut self.response.stash, bytes);
                    let mut stash = std::mem::take(&mut self.response.stash);
                    let done = self.take_response(&stash, out);
                    self.worker.buffers.release(&mut stash);
                    done
                }
            };
            // What was parsed before an error is sent all the same: an interim response, the valid part of a body.
            done.and(self.send_to_client(context, out))
        })?;
        self.send_held(context)
    }

    fn take_response(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        while !self.response.head_done {
            self.exchange.response.clear();
            let limits = self.terms.response_limits;
            let (tolerance, method) = (self.terms.tolerance, self.exchange.request.method);
            let parsed = parse_response(bytes, limits, tolerance, method, &mut self.exchange.response);
            match parsed.map_err(Stop::BadResponse)? {
                None => {
                    self.worker.buffers.append_unread(&mut self.response.stash, bytes);
                    return Ok(());
                }
                Some(length) => bytes = &bytes[length..],
            }
            self.take_head(out)?;
        }
        if self.response.tunnel {
            self.worker.buffers.append_unread(&mut self.exchange.early, bytes);
            return Ok(());
        }
        let moved = match &self.response.content {
            None => {
                let moved = self.response.body.transfer(bytes, self.response.coding, out);
                let moved = moved.map_err(|_| Stop::BadResponseBody)?;
                if self.response.coding != HopFraming::None {
                    self.exchange.body_bytes += moved.content;
                }
                moved
            }
            Some(_) => self.take_content(bytes, out)?,
        };
        self.meet_end();
        self.exchange.upstream.body_bytes += moved.content;
        if moved.consumed < bytes.len() {
            // Bytes after the end of the response could be taken for the response to the connection's next request.
            self.response.upstream_reusable = false;
        }
        if self.response.body.is_done() {
            self.end_response(out)?;
        }
        Ok(())
    }

    /// Moves content of the response through its filters.
    fn take_content(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<TransferProgress, Stop> {
        let ResponseSide { content, body, coding, .. } = &mut self.response;
        let content = content.as_mut().expect("the caller has checked it");
        if content.only_observes() {
            let observe = |piece: &[u8]| content.observe(piece);
            let moved = body.transfer_observed(bytes, (*coding, out), observe, Stop::BadResponseBody)?;
            self.exchange.body_bytes += moved.content;
            return Ok(moved);
        }
        let (mut plain, mut passed) = (Vec::new(), Vec::new());
        let moved = body.transfer(bytes, HopFraming::Plain, &mut plain).map_err(|_| Stop::BadResponseBody)?;
        content.piece(self.exchange, &plain, &mut passed)?;
        let passed = content.paced(self.now_ns, passed);
        let is_over = content.is_over();
        self.write_content(&passed, out);
        if is_over {
            self.end_content();
        }
        self.pause();
        Ok(moved)
    }

    /// Ends the response where a filter has ended its content.
    #[cold]
    fn end_content(&mut self) {
        self.response.body = BodyTransfer::Done(Trailers::default());
        (self.response.client_reusable, self.response.upstream_reusable) = (false, false);
        if let Some(end) = self.response.content.as_ref().and_then(|content| content.early_end()) {
            messages::note_early_end(end, self.exchange);
        }
    }

    /// When the response is ended because the gateway drains. Only an event stream is: it has no end of its own, and its
    /// client reconnects for what it has not received (the HTML standard, §9.2). Any other content would be truncated.
    pub(super) fn leave_ns(&self) -> u64 {
        let can_end = matches!(self.response.coding, HopFraming::Chunked | HopFraming::UntilClose)
            && !self.exchange.is_subrequest;
        if self.client.service().phase() == WorkerPhase::Serving || !can_end || self.response.body.is_done() {
            return NEVER;
        }
        match events::is_event_stream(self.exchange) && self.is_request_sent() && !self.client.is_blocked() {
            true if self.client.service().phase() == WorkerPhase::Stopping => 0,
            true => self.client.service().leave_ns(self.exchange.client.connection),
            false => NEVER,
        }
    }

    pub(super) fn should_end_stream(&self) -> bool {
        self.leave_ns() <= self.now_ns
    }

    /// Ends an event stream as if its upstream had ended it.
    pub(super) fn end_stream(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        self.response.body = BodyTransfer::Done(Trailers::default());
        (self.response.client_reusable, self.response.upstream_reusable) = (false, false);
        let now_ns = self.now_ns;
        let waiting = self.response.content.as_mut().map(|content| content.lift_pace(now_ns)).unwrap_or_default();
        self.worker.buffers.with_write_buffer(|out| {
            self.write_content(&waiting, out);
            self.end_response(out)?;
            self.send_to_client(context, out)
        })?;
        self.send_held(context)
    }

    /// Once all content has come: completes the response if its end has come, too, or begins to wait for it.
    fn meet_end(&mut self) {
        if U::MARKS_END && self.response.body.lacks_end() {
            self.response.body = match self.upstream.has_ended() {
                true => BodyTransfer::Done(self.upstream.take_trailers()),
                false => BodyTransfer::AwaitsEnd { until_ns: self.now_ns.saturating_add(END_PATIENCE_NS) },
            };
        }
    }

    /// Ends a response of which all content has come, and the end has not.
    pub(super) fn end_response_unmarked(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        self.upstream.give_up_end();
        self.upstream_closed(context)
    }

    pub(super) fn write_content(&mut self, content: &[u8], out: &mut Vec<u8>) {
        body::write(out, self.response.coding, content);
        self.exchange.body_bytes += content.len() as u64;
    }

    pub(super) fn end_response(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        if let Some(content) = &mut self.response.content {
            if content.is_held() {
                return Ok(());
            }
            let mut rest = Vec::new();
            let trailers = self.response.body.trailers_mut().expect("all of it was there");
            content.end(self.exchange, trailers, &mut rest)?;
            let rest = content.paced(self.now_ns, rest);
            let is_waiting = content.is_waiting();
            self.write_content(&rest, out);
            if is_waiting {
                self.response.pause();
                return Ok(());
            }
        }
        let trailers = self.response.body.trailers().filter(|_| self.exchange.request.takes_trailers);
        self.client.end(out, self.response.coding, trailers);
        Ok(())
    }

    /// Sends content that a plugin holds back, so that the client does not wait for it until the next piece, and what a plugin
    /// sends by the clock. Returns whether a plugin has ended the response.
    pub(super) fn flush_content(&mut self, context: &mut Context<'_>) -> Result<bool, Stop> {
        let Some(content) = &mut self.response.content else { return Ok(false) };
        if content.is_waiting() {
            self.response.pause();
            return Ok(false);
        }
        let mut kept = Vec::new();
        content.flush(self.now_ns, &mut kept)?;
        let ends = content.is_over() && !self.response.body.is_done();
        let kept = content.paced(self.now_ns, kept);
        self.pause();
        if kept.is_empty() && !ends {
            return Ok(false);
        }
        if ends {
            self.end_content();
        }
        self.worker.buffers.with_write_buffer(|out| {
            self.write_content(&kept, out);
            if ends {
                self.end_response(out)?;
            }
            self.send_to_client(context, out)
        })?;
        Ok(ends)
    }

    /// Sends a response that plugins wanted whole, once it is complete and they have processed it.
    fn send_held(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let is_due = |content: &mut Box<content::ResponseContent<'_>>| content.is_held();
        if !self.response.head_done || !self.response.body.is_done() {
            return Ok(());
        }
        let Some(mut content) = self.response.content.take_if(is_due) else { return Ok(()) };
        let mut body = Vec::new();
        let trailers = self.response.body.trailers_mut().expect("all of it was there");
        content.end(self.exchange, trailers, &mut body)?;
        // A plugin that has seen the content may have changed the status to one that has none.
        forward::correct_response_framing(self.exchange);
        if self.exchange.response.framing == Framing::None {
            body.clear();
        }
        self.worker.buffers.with_write_buffer(|out| {
            self.begin_response(out);
            self.send_to_client(context, out)
        })?;
        let body = content.paced_whole(self.exchange, self.now_ns, body);
        self.exchange.body_bytes += body.len() as u64;
        self.send_to_client(context, &body)?;
        if content.is_waiting() {
            self.response.pause();
            self.response.content = Some(content);
            return Ok(());
        }
        self.worker.buffers.with_write_buffer(|out| {
            self.end_response(out)?;
            self.send_to_client(context, out)
        })
    }

    fn take_head(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        let status = self.exchange.response.status;
        if status == 101 {
            if !self.exchange.request.upgrade || !forward::switches_as_asked(self.exchange) {
                return Err(Stop::BadInterim);
            }
            messages::check_agreed_extensions(self.exchange)?;
            messages::answer_protocol(self.exchange)?;
            forward::add_date(self.worker, &mut self.exchange.response.head);
            self.upstream_answers(status);
            self.response.head_done = true;
            self.response.tunnel = true;
            self.exchange.response_begun = true;
            self.client.upgrade_head(out, self.exchange);
            return Ok(());
        }
        if status < 200 {
            return self.take_interim_head(status, out);
        }
        // RFC 8441 §5: for a client of HTTP/2 a 2xx means that its WebSocket is established, which this upstream did not
        // agree to.
        if status < 300 && self.exchange.request.client_method() == Method::Connect {
            return Err(Stop::BadResponse(BadResponse::Syntax));
        }
        if status >= 400 && self.is_retried(status) {
            return Err(Stop::UpstreamStatus(status));
        }
        self.upstream_answers(status);
        self.response.upstream_reusable = self.exchange.response.keep_alive;
        let (framing, trailer_limit) = (self.exchange.response.framing, self.terms.response_limits.head_bytes);
        self.response.body = match U::MARKS_END {
            true => BodyTransfer::with_marked_end(framing, trailer_limit),
            false => BodyTransfer::new(framing, trailer_limit),
        };
        self.meet_end();
        forward::add_date(self.worker, &mut self.exchange.response.head);
        if let Some(via) = self.terms.via {
            let version = self.exchange.response.version;
            forward::add_via(&mut self.exchange.response.head, version, via);
        }
        if status >= 500 && self.exchange.refused_by().is_empty() {
            forward::set_upstream_status_field(self.exchange, status);
        }
        self.terms.plugins.on_response(self.exchange)?;
        forward::correct_response_framing(self.exchange);
        let plugins = self.terms.plugins;
        if plugins.see_response_bodies(self.exchange) || plugins.see_messages(self.exchange) {
            self.response.content = content::ResponseContent::new(plugins, self.exchange, self.now_ns)?;
            if U::MARKS_END {
                self.pause_after_head();
            }
        }
        self.response.head_done = true;
        if !self.response.content.as_ref().is_some_and(|content| content.is_held()) {
            self.begin_response(out);
        }
        Ok(())
    }

    /// The content comes apart from the head.
    fn pause_after_head(&mut self) {
        if self.response.content.as_ref().is_some_and(|content| content.is_slow()) {
            self.upstream.keep_window();
        }
        self.pause();
    }

    fn take_interim_head(&mut self, status: u16, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.response.interim_bytes += self.exchange.response.head.bytes().len();
        if self.response.interim_bytes > MAX_INTERIM_BYTES {
            return Err(Stop::BadInterim);
        }
        // A 100 answers `Expect: 100-continue`, and is passed on once.
        if status == 100 {
            self.invite_content();
            if !std::mem::take(&mut self.exchange.request.expects_continue) {
                return Ok(());
            }
        }
        // A server may send any number of them (RFC 9110 §15.2), and a client may ignore them. Those that are beyond what
        // clients expect are not passed on.
        if self.response.interim < MAX_INTERIM_RESPONSES {
            self.response.interim += 1;
            self.client.interim_head(out, self.exchange);
        }
        Ok(())
    }

    /// Another attempt follows a response with this status; the request can be sent again.
    #[cold]
    fn is_retried(&mut self, status: u16) -> bool {
        let follows = |retry: &dyn StatusRetryRule| retry.follows(self.exchange, status, self.now_ns);
        let is_retried = !self.exchange.is_content_lost() && self.terms.status_retry.is_some_and(follows);
        if is_retried {
            (self.exchange.upstream.status, self.exchange.upstream.header_ns) = (status, self.now_ns);
        }
        is_retried
    }

    /// Writes the head of the final response: from here on no other response is possible.
    fn begin_response(&mut self, out: &mut Vec<u8>) {
        self.response.coding = forward::response_coding(self.exchange);
        self.response.client_reusable = self.exchange.request.keep_alive
            && self.response.coding != HopFraming::UntilClose
            && self.request.body.is_done()
            && self.client.may_ask_again(0)
            && self.client.service().phase() == WorkerPhase::Serving
            && self.terms.clients.keepalive_requests.is_none_or(|most| self.exchange.client.connection_requests < most);
        self.exchange.response_begun = true;
        self.client.response_head(out, self.exchange, self.response.coding, !self.response.client_reusable);
    }

    fn upstream_answers(&mut self, status: u16) {
        self.exchange.upstream.status = status;
        self.exchange.upstream.header_ns = self.now_ns;
        if U::MARKS_END {
            self.request.kept = None;
        }
        self.upstream.answered();
        if let Some(PersistenceCookie { persistence, sessions, endpoints, endpoint }) = self.terms.persistence {
            persistence.answered(self.exchange, sessions, (endpoints, endpoint), self.now_ns);
        }
    }

    pub(super) fn send_to_client(&mut self, context: &mut Context<'_>, out: &[u8]) -> Result<(), Stop> {
        self.exchange.response_bytes += out.len() as u64;
        self.client.send(context, out).map_err(|_| Stop::ClientGone)?;
        if self.client.is_blocked() {
            self.renew_write_timeout();
        }
        Ok(())
    }

    /// The client has taken bytes, or is sent the first ones that it does not take.
    fn renew_write_timeout(&mut self) {
        self.response.client_deadline_ns = self.now_ns.saturating_add(ns(self.terms.clients.write_timeout));
    }
}
