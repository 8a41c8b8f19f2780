//! One HTTP/1.x client connection. Between requests it owns no buffer: when its socket becomes readable, it reads into the
//! worker's buffer.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::{Reject, chunked, parse_request};
use weir_proto::h2::PREFACE;
use weir_proto::{Trailers, Version};

use super::accepted::Accepted;
use super::h2;
use crate::context::WorkerContext;
use crate::context::buffers::READ_BYTES;
use crate::context::frame::{Frame, boxed, own_waker};
use crate::context::lifecycle::{ServicePhase, WaitsFor, WorkerPhase};
use crate::context::served_exchange::ServedExchange;
use crate::message::AfterExchange;
use crate::message::forward::{self, HopFraming};
use crate::message::sides::{ClientSide, Sending};
use crate::message::unsent::UnsentBytes;
use crate::serve::serve;
use crate::snapshot::ClientSettings;

/// How long an idle connection may still send a request once draining has begun: a request already on its way is answered
/// (with `Connection: close`) instead of reset.
const DRAIN_IDLE_NS: u64 = 5_000_000_000;

/// The first line of the HTTP/2 preface, which parses as an HTTP/1 request line with an unknown version.
const PRIOR_KNOWLEDGE: &[u8] = PREFACE.split_at(16).0;

/// The most bytes that are read ahead while a request is answered: pipelined requests wait in the socket beyond that.
const MAX_AHEAD: usize = 16 * 1024;

/// The most pipelined requests of a connection that are answered before the worker looks at its other connections.
const PIPELINED_TURN: u32 = 16;

/// The client side of the exchanges of a connection. Most connections are idle, so it is kept small.
pub(crate) struct H1Client {
    /// Its stash holds a partial head, the start of a body, or pipelined requests.
    connection: Accepted,
    unsent: UnsentBytes,
    requests: u64,
    /// When the client closed its sending side; 0 if it has not.
    ended_ns: u64,
}

/// Serves one connection from accept to close. Not an `async fn`, whose future would keep the argument beside the
/// `H1Client` built from it for as long as the connection lives.
pub(crate) fn run(connection: Accepted) -> impl Future<Output = ()> {
    let mut client = H1Client { connection, unsent: UnsentBytes::default(), requests: 0, ended_ns: 0 };
    Frame::new(async move {
        client.connection.watch(own_waker().await);
        let worker = Rc::clone(&client.connection.worker);
        let mut pipelined = 0_u32;
        while let Some(exchange) = client.next().await {
            // Boxed for the duration of the exchange: the state of serving is twice as large as that of an idle connection,
            // and most connections are idle. Costs some hundred instructions.
            match boxed(|| serve(&worker, &mut client, exchange)).await {
                AfterExchange::KeepAlive if !client.connection.stash.is_empty() => {
                    // Such a request may be answered without waiting for anything.
                    pipelined += 1;
                    if pipelined.is_multiple_of(PIPELINED_TURN) {
                        tokio::task::yield_now().await;
                    }
                }
                AfterExchange::KeepAlive => {}
                AfterExchange::Close | AfterExchange::Finish if client.ended() => return,
                AfterExchange::Finish if client.connection.is_finished() => return,
                AfterExchange::Close | AfterExchange::Finish => return Box::pin(client.connection.linger()).await,
                AfterExchange::Abort => return,
                AfterExchange::Reset => return client.connection.stream.reset_on_drop(),
            }
        }
        if client.begins_http2() {
            return h2::spawn(client.connection);
        }
        client.connection.stream.send_close_notify();
    })
}

impl H1Client {
    /// Waits for the next request. A request that was refused while it was read carries the reason in `stop`. `None` when
    /// the connection is over, or begins HTTP/2.
    async fn next(&mut self) -> Option<Box<ServedExchange>> {
        let worker = Rc::clone(&self.connection.worker);
        let waiting_since_ns = worker.now_ns();
        let mut head_since_ns = begins_head(&self.connection.stash).then_some(waiting_since_ns);
        let mut parse_stash = !self.connection.stash.is_empty();
        poll_fn(|context| {
            // Looked up at each wake-up: an idle connection must not keep an old snapshot alive.
            let current = worker.current();
            let settings = &current.snapshot.clients;
            loop {
                if parse_stash {
                    let exchange = self.parse_buffered(settings, head_since_ns.unwrap_or(waiting_since_ns));
                    if exchange.is_some() {
                        return Poll::Ready(exchange);
                    }
                    parse_stash = false;
                }
                let read = worker.buffers.with_read_buffer(|buffer| {
                    let count = match self.poll_read(context, buffer) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok(count)) if count > 0 => count,
                        Poll::Ready(_) => return Poll::Ready(None),
                    };
                    let received = &buffer[..count];
                    let now_ns = worker.wake_up();
                    if !self.connection.stash.is_empty() {
                        parse_stash = memchr::memchr(b'\n', received).is_some()
                            || self.connection.stash.len() + count > settings.limits.target_bytes;
                        worker.buffers.append_unread(&mut self.connection.stash, received);
                        let begins = begins_head(&self.connection.stash);
                        head_since_ns = begins.then(|| head_since_ns.unwrap_or(now_ns));
                        return Poll::Ready(Some(None));
                    }
                    head_since_ns = begins_head(received).then_some(now_ns);
                    let (exchange, used) = self.parse(received, settings, now_ns);
                    worker.buffers.append_unread(&mut self.connection.stash, &received[used..]);
                    Poll::Ready(Some(exchange))
                });
                match read {
                    Poll::Ready(Some(Some(exchange))) => return Poll::Ready(Some(exchange)),
                    Poll::Ready(Some(None)) if settings.http2 && self.begins_http2() => return Poll::Ready(None),
                    Poll::Ready(Some(None)) => {}
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Pending => return self.wait(settings, waiting_since_ns, head_since_ns),
                }
            }
        })
        .await
    }

    /// Nothing to read: sets the deadline, or ends the wait if it has passed.
    fn wait(
        &mut self,
        settings: &ClientSettings,
        waiting_since_ns: u64,
        head_since_ns: Option<u64>,
    ) -> Poll<Option<Box<ServedExchange>>> {
        let worker = &self.connection.worker;
        let phase = worker.service().phase();
        if phase == WorkerPhase::Stopping {
            return Poll::Ready(None);
        }
        let (waits_for, timeout) = match head_since_ns {
            Some(_) => (WaitsFor::RestOfHead, settings.header_timeout),
            None => settings.idle_patience(self.requests),
        };
        let since_ns = head_since_ns.unwrap_or(waiting_since_ns);
        let mut deadline_ns = since_ns + timeout.as_nanos() as u64;
        if phase == WorkerPhase::Draining && head_since_ns.is_none() {
            deadline_ns = deadline_ns.min(since_ns.max(worker.service().since_ns()) + DRAIN_IDLE_NS);
        }
        if let Some(until_ns) = worker.wait_until_ns(waits_for, since_ns, deadline_ns) {
            self.set_deadline(until_ns);
            return Poll::Pending;
        }
        Poll::Ready(head_since_ns.map(|since_ns| {
            let mut exchange = self.exchange(since_ns);
            exchange.end_by(Stop::HeadTimeout);
            exchange
        }))
    }

    fn parse_buffered(&mut self, settings: &ClientSettings, now_ns: u64) -> Option<Box<ServedExchange>> {
        let stash = std::mem::take(&mut self.connection.stash);
        let (exchange, used) = self.parse(&stash, settings, now_ns);
        self.connection.stash = stash;
        self.connection.worker.buffers.consume(&mut self.connection.stash, used);
        exchange
    }

    /// Tries to parse a request head from `received`; returns how many bytes belong to it.
    fn parse(
        &mut self,
        received: &[u8],
        settings: &ClientSettings,
        now_ns: u64,
    ) -> (Option<Box<ServedExchange>>, usize) {
        let mut exchange = self.connection.worker.buffers.take_exchange();
        match parse_request(received, &settings.limits, &mut exchange.request) {
            Ok(None) => {
                self.connection.worker.buffers.recycle_exchange(exchange);
                (None, 0)
            }
            Ok(Some(length)) => {
                self.describe(&mut exchange, now_ns);
                exchange.request_bytes = length as u64;
                (Some(exchange), length)
            }
            Err(Reject::Version) if settings.http2 && self.may_begin_http2(received) => {
                self.connection.worker.buffers.recycle_exchange(exchange);
                (None, 0)
            }
            Err(reject) => {
                self.describe(&mut exchange, now_ns);
                exchange.request_bytes = received.len() as u64;
                exchange.request.keep_alive = false;
                exchange.end_by(Stop::Rejected(reject));
                (Some(exchange), received.len())
            }
        }
    }

    /// Whether the connection may begin HTTP/2 by prior knowledge (RFC 9113 §3.3). Only without TLS, where ALPN decides.
    fn may_begin_http2(&self, received: &[u8]) -> bool {
        self.requests == 0 && self.connection.tls.is_none() && received.starts_with(PRIOR_KNOWLEDGE)
    }

    /// The same, for bytes that were put back into the stash.
    fn begins_http2(&self) -> bool {
        self.may_begin_http2(&self.connection.stash)
    }

    /// An exchange for a connection that has sent no complete request.
    fn exchange(&mut self, now_ns: u64) -> Box<ServedExchange> {
        let mut exchange = self.connection.worker.buffers.take_exchange();
        self.describe(&mut exchange, now_ns);
        exchange
    }

    fn describe(&mut self, exchange: &mut ServedExchange, now_ns: u64) {
        self.requests += 1;
        if self.ended() {
            self.ended_ns = self.connection.worker.now_ns(); // the half-close time-out of this exchange starts now
        }
        self.connection.describe(exchange, self.requests, now_ns);
    }
}

/// Whether these bytes, received between two requests, begin a head. Some clients send a CRLF after a body, which does not
/// (RFC 9112 §2.2).
fn begins_head(received: &[u8]) -> bool {
    !received.is_empty() && received != b"\r\n"
}

impl Sending for H1Client {
    fn end(&mut self, out: &mut Vec<u8>, coding: HopFraming, trailers: Option<&Trailers>) {
        if coding == HopFraming::Chunked {
            chunked::write_end(out, trailers);
        }
    }

    fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.unsent.send(&self.connection.worker, &mut self.connection.stream, context, bytes)?;
        self.connection.worker.metrics.client_bytes_sent.add(sent as u64);
        Ok(sent)
    }

    fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let sent = self.unsent.poll_flush(&self.connection.worker, &mut self.connection.stream, context);
        if let Poll::Ready(Ok(count)) = sent {
            self.connection.worker.metrics.client_bytes_sent.add(count as u64);
        }
        sent
    }
}

impl ClientSide for H1Client {
    type Pipe = Accepted;

    fn context(&self) -> Rc<WorkerContext> {
        Rc::clone(self.connection.worker.context())
    }

    fn service(&self) -> &ServicePhase {
        self.connection.worker.service()
    }

    fn set_deadline(&self, deadline_ns: u64) {
        self.connection.set_deadline(deadline_ns);
    }

    fn unread_bytes(&mut self) -> &mut Vec<u8> {
        &mut self.connection.stash
    }

    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.connection.poll_read(context, buffer);
        if let Poll::Ready(Ok(0)) = read {
            self.ended_ns = self.connection.worker.now_ns();
        }
        read
    }

    fn take_trailers(&mut self) -> Trailers {
        Trailers::default()
    }

    fn room(&self) -> usize {
        READ_BYTES
    }

    /// Reads what the client sends ahead, up to a limit: only to notice when the client goes away.
    fn poll_read_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.ended() || self.connection.stash.len() >= MAX_AHEAD {
            return Poll::Pending;
        }
        let worker = self.context();
        worker.buffers.with_read_buffer(|buffer| match self.poll_read(context, &mut buffer[..MAX_AHEAD]) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(count)) => {
                worker.buffers.append_unread(&mut self.connection.stash, &buffer[..count]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::ClientGone)),
        })
    }

    fn ended(&self) -> bool {
        self.ended_ns != 0
    }

    fn half_close_deadline_ns(&self, settings: &ClientSettings) -> u64 {
        match self.ended_ns {
            0 => NEVER,
            ended_ns => ended_ns + settings.half_close_timeout.as_nanos() as u64,
        }
    }

    fn waiting_half_close_deadline_ns(&self) -> u64 {
        match self.ended() {
            true => self.half_close_deadline_ns(&self.connection.worker.current().snapshot.clients),
            false => NEVER,
        }
    }

    fn response_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange, coding: HopFraming, close: bool) {
        forward::response_head(out, exchange, coding, close);
    }

    fn interim_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange) {
        // RFC 9110 §15.2: a client of HTTP/1.0 gets no interim responses.
        if exchange.request.version > Version::Http10 {
            forward::interim_head(out, exchange);
        }
    }

    fn upgrade_head(&mut self, out: &mut Vec<u8>, exchange: &mut Exchange) {
        forward::upgrade_head(out, exchange);
    }

    fn pipe(&mut self) -> &mut Accepted {
        &mut self.connection
    }
}
