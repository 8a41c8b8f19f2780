//! The request on its way to the upstream.

use std::io;
use std::task::{Context, Poll};

use weir_net::timer::NEVER;
use weir_plugin::Stop;
use weir_proto::Framing;

use super::{END_PATIENCE_NS, Relay, RequestSide, ns};
use crate::context::kept_content::ResentContent;
use crate::context::served_exchange::ContentTaken;
use crate::message::body::{self, BodyTransfer, TransferProgress};
use crate::message::forward::HopFraming;
use crate::message::sides::{ClientSide, UpstreamSide};

/// The most bytes of a buffered request body that are handed to an upstream at a time.
const PIECE: usize = 64 * 1024;

impl<C: ClientSide, U: UpstreamSide> Relay<'_, C, U> {
    /// Moves the request towards the upstream. Ready when something has moved.
    pub(super) fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if !self.request.head_sent {
            self.send_head(context)?;
            return Poll::Ready(Ok(()));
        }
        if self.upstream.is_blocked() {
            return self.flush_request(context);
        }
        if self.is_request_sent() {
            return Poll::Pending;
        }
        if let Some(held) = self.exchange.take_request_body() {
            // These bytes were counted when they were read from the client, so the counts are restored afterwards.
            let known = (self.exchange.request_bytes, self.exchange.body_taken);
            let piece = &held[self.request.buffered_body_sent..];
            let moved = self.move_request(context, &piece[..piece.len().min(PIECE)]);
            (self.exchange.request_bytes, self.exchange.body_taken) = known;
            self.exchange.set_request_body(held);
            self.request.buffered_body_sent += moved?;
            return Poll::Ready(Ok(()));
        }
        if !self.client.unread_bytes().is_empty() {
            let stash = std::mem::take(self.client.unread_bytes());
            let moved = self.move_request(context, &stash);
            *self.client.unread_bytes() = stash;
            self.worker.buffers.consume(self.client.unread_bytes(), moved?);
            return Poll::Ready(Ok(()));
        }
        let worker = self.worker;
        worker.buffers.with_read_buffer(|buffer| match self.client.poll_read(context, buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(count)) if count > 0 => {
                let used = self.move_request(context, &buffer[..count])?;
                worker.buffers.append_unread(self.client.unread_bytes(), &buffer[used..count]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(_)) => Poll::Ready(self.client_ended(context)),
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::ClientGone)),
        })
    }

    /// Sends the head, together with what has been received of the body.
    fn send_head(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let worker = self.worker;
        self.request.head_sent = true;
        worker.buffers.with_write_buffer(|out| {
            self.request.coding = self.write_request_head(out);
            if self.request.body.is_done() {
                self.end_request(out)?;
            } else if let Some(kept) = self.exchange.kept_content.take() {
                self.take_again(&kept, out)?;
                self.request.kept = U::MARKS_END.then_some(kept);
            } else if self.exchange.request_body().is_none() && !self.client.unread_bytes().is_empty() {
                let stash = std::mem::take(self.client.unread_bytes());
                let moved = self.take_body(&stash, out);
                *self.client.unread_bytes() = stash;
                worker.buffers.consume(self.client.unread_bytes(), moved?);
            }
            self.send(context, out)
        })
    }

    fn write_request_head(&mut self, out: &mut Vec<u8>) -> HopFraming {
        if self.exchange.request_filters.only_observe() {
            return self.upstream.write_request_head(out, self.exchange, &self.terms.request());
        }
        // Filters may change the length of the content, so it is sent without a `Content-Length`.
        let framing = std::mem::replace(&mut self.exchange.request.framing, Framing::Chunked);
        let coding = self.upstream.write_request_head(out, self.exchange, &self.terms.request());
        self.exchange.request.framing = framing;
        coding
    }

    fn end_request(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        if !self.exchange.request_filters.is_empty() {
            let mut rest = Vec::new();
            let trailers = self.request.body.trailers_mut().expect("all of it was there");
            self.exchange.request_filters.end(b"", trailers, &mut rest)?;
            body::write(out, self.request.coding, &rest);
        }
        let trailers = self.request.body.trailers().filter(|_| self.exchange.request.takes_trailers);
        self.upstream.end(out, self.request.coding, trailers);
        Ok(())
    }

    /// The client has closed its side: the end of a body that is delimited by the close, a truncation of any other.
    pub(super) fn client_ended(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        self.request.body.close(self.client.take_trailers()).map_err(|_| Stop::ClientGone)?;
        self.exchange.body_taken = ContentTaken::All;
        self.worker.buffers.with_write_buffer(|out| {
            self.end_request(out)?;
            self.send(context, out)
        })
    }

    /// Moves part of the body on; returns how many bytes of `received` belong to it.
    fn move_request(&mut self, context: &mut Context<'_>, received: &[u8]) -> Result<usize, Stop> {
        self.worker.buffers.with_write_buffer(|out| {
            let used = self.take_body(received, out)?;
            self.send(context, out)?;
            Ok(used)
        })
    }

    fn take_body(&mut self, received: &[u8], out: &mut Vec<u8>) -> Result<usize, Stop> {
        self.exchange.body_taken = ContentTaken::Part;
        self.invite_content();
        let begin = out.len();
        let moved = self.transfer_request(received, out)?;
        if U::MARKS_END {
            self.keep_content(&out[begin..]);
        }
        if C::MARKS_END && self.request.body.lacks_end() {
            self.request.body = match self.client.has_ended() {
                true => BodyTransfer::Done(self.client.take_trailers()),
                false => BodyTransfer::AwaitsEnd { until_ns: self.now_ns.saturating_add(END_PATIENCE_NS) },
            };
        }
        self.request.content += moved.content;
        self.renew_call();
        if self.request.body.is_done() {
            self.exchange.body_taken = ContentTaken::All;
            self.end_request(out)?;
        }
        self.exchange.request_bytes += moved.consumed as u64;
        match self.request.content > self.exchange.body_limit {
            true => Err(Stop::BodyTooLarge),
            false => Ok(moved.consumed),
        }
    }

    /// Sends content again that an earlier attempt has read from the client, where it was counted.
    #[cold]
    fn take_again(&mut self, kept: &ResentContent, out: &mut Vec<u8>) -> Result<(), Stop> {
        let (bytes, taken) = (self.exchange.request_bytes, self.exchange.body_taken);
        self.take_body(kept.bytes(), out)?;
        self.exchange.request_bytes = bytes;
        if taken == ContentTaken::All {
            self.exchange.body_taken = taken;
        }
        Ok(())
    }

    /// Keeps content that is sent, as long as it may be kept.
    fn keep_content(&mut self, content: &[u8]) {
        if self.request.kept.as_mut().is_some_and(|kept| !kept.keep(content)) {
            self.request.kept = None;
        }
    }

    /// The upstream has not processed the request: the next attempt begins with the content that has been kept, and goes on with what
    /// the client still sends. Trailers that have been read are gone, and so is the place in a chunk that has been read in part.
    #[cold]
    pub(super) fn give_content_back(&mut self) {
        let Some(kept) = self.request.kept.take() else { return };
        let is_lost = match self.request.body.trailers() {
            Some(trailers) => !trailers.is_empty(),
            None => self.exchange.request.framing == Framing::Chunked,
        };
        if is_lost || self.exchange.body_taken == ContentTaken::Nothing {
            return;
        }
        if self.exchange.request.framing == Framing::Chunked {
            self.exchange.request.framing = Framing::Sized(kept.bytes().len() as u64);
        }
        self.exchange.kept_content = Some(kept);
    }

    fn transfer_request(&mut self, received: &[u8], out: &mut Vec<u8>) -> Result<TransferProgress, Stop> {
        let RequestSide { body, coding, .. } = &mut self.request;
        let filters = &mut self.exchange.request_filters;
        if filters.is_empty() {
            return body.transfer(received, *coding, out).map_err(|_| Stop::BadRequestBody);
        }
        if filters.only_observe() {
            let observe = |content: &[u8]| filters.observe(content);
            return body.transfer_observed(received, (*coding, out), observe, Stop::BadRequestBody);
        }
        let (mut content, mut passed) = (Vec::new(), Vec::new());
        let moved = body.transfer(received, HopFraming::Plain, &mut content).map_err(|_| Stop::BadRequestBody)?;
        filters.piece(&content, &mut passed)?;
        body::write(out, *coding, &passed);
        Ok(moved)
    }

    /// Sends what the upstream takes of `bytes` and keeps the rest.
    fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Result<(), Stop> {
        match self.upstream.send(context, bytes) {
            Ok(sent) => self.count_sent(sent),
            Err(error) => return self.handle_upstream_send_error(error),
        }
        if self.upstream.is_blocked() {
            self.request.blocked_since_ns = self.now_ns;
            self.request.upstream_deadline_ns = self.now_ns.saturating_add(ns(self.terms.timeouts.send));
        } else if self.request.body.is_done() {
            self.request_sent();
        } else if self.awaits_invitation() {
            self.expect_response();
        }
        Ok(())
    }

    fn flush_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match self.upstream.poll_flush(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(self.handle_upstream_send_error(error)),
            Poll::Ready(Ok(count)) => {
                self.count_sent(count);
                if self.upstream.is_blocked() {
                    self.request.upstream_deadline_ns = self.now_ns.saturating_add(ns(self.terms.timeouts.send));
                } else if self.request.body.is_done() {
                    self.request_sent();
                } else if self.awaits_invitation() {
                    self.expect_response();
                } else {
                    // The time in which the gateway did not read does not count against the client's minimum rate.
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

    /// The whole request has been sent: the upstream's read time-out begins.
    fn request_sent(&mut self) {
        self.exchange.upstream.sent_ns = self.now_ns;
        self.expect_response();
    }

    /// The client sends no content before the upstream answers its `Expect: 100-continue` (RFC 9110 §10.1.1), so the upstream
    /// is waited for, and not the client.
    pub(super) fn awaits_invitation(&self) -> bool {
        self.exchange.request.expects_continue && self.request.content == 0 && !self.request.body.is_done()
    }

    /// The client begins to send its content, or is asked to: from now on the minimum rate of the body counts, and the upstream
    /// need not answer before it has the whole request.
    pub(super) fn invite_content(&mut self) {
        if self.awaits_invitation() && !self.upstream.is_blocked() {
            self.request.body_since_ns = self.now_ns;
            self.request.upstream_deadline_ns = NEVER;
        }
    }

    /// Called when the upstream has sent something, or can go on: its read time-out begins anew. It does not run while the
    /// upstream waits for the rest of the request and has sent no final response.
    pub(super) fn renew_read_timeout(&mut self) {
        self.renew_call();
        let has_answered = self.response.head_done && !self.upstream.is_blocked();
        if has_answered || self.is_request_sent() || self.awaits_invitation() {
            self.expect_response();
        }
    }

    /// A message of a call, in either direction, shows that it is in use.
    fn renew_call(&mut self) {
        if self.request.is_call {
            self.request.body_since_ns = self.now_ns;
        }
    }

    fn expect_response(&mut self) {
        self.request.upstream_deadline_ns = self.now_ns.saturating_add(ns(self.terms.timeouts.read));
    }

    /// The upstream does not take the request. It may have answered before it closed, so its response is read to the end.
    fn handle_upstream_send_error(&mut self, error: io::Error) -> Result<(), Stop> {
        tracing::debug!("send to {}: {error}", self.upstream.addr());
        self.request.refused = true;
        self.expect_response();
        Ok(())
    }
}
