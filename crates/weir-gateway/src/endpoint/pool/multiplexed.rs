//! Endpoints that speak HTTP/2: exchanges share few connections, each in a stream of its own.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::Request;
use http::uri::Scheme;
use weir_net::stream::Stream as ByteStream;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::Limits;
use weir_proto::h2::response_head;
use weir_proto::{Method, ResponseHead, Trailers};

use super::{EndpointPool, Freshness, Permit, in_time};
use crate::context::WorkerContext;
use crate::message::forward::{self, Coding};
use crate::message::sides::{NOT_PROCESSED, Received, RequestTerms, Sending, UpstreamSide};
use crate::multiplexed::{Io, Outgoing, broken, fields};
use crate::snapshot::Timeouts;

/// Exchanges on one connection before another is made: one connection is one lock and one window.
const MOST_STREAMS: usize = 100;
/// Content an endpoint may send on one stream, and on all of a connection, before its clients have taken it.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
const SEND_BUFFER: usize = 64 * 1024;

/// One connection and how it is used.
pub(super) struct Shared {
    requests: RefCell<SendRequest<Bytes>>,
    streams: Cell<usize>,
    carried: Cell<u64>,
    idle_since_ns: Cell<u64>,
    /// Its task has ended.
    closed: Cell<bool>,
}

impl Shared {
    /// Nobody uses it, and nobody has for long enough. What is dropped from the pool closes with its last stream.
    pub(super) fn is_over(&self, now_ns: u64, patience_ns: u64) -> bool {
        let idle = self.streams.get() == 0 && now_ns.saturating_sub(self.idle_since_ns.get()) >= patience_ns;
        self.closed.get() || idle
    }

    fn can_take_more(&self) -> bool {
        let mut requests = self.requests.borrow_mut();
        let most = MOST_STREAMS.min(requests.current_max_send_streams());
        // Not ready is as bad as gone: a new connection is quicker than a stream on this one.
        let mut without_waiting = Context::from_waker(Waker::noop());
        !self.closed.get()
            && self.streams.get() < most
            && matches!(requests.poll_ready(&mut without_waiting), Poll::Ready(Ok(())))
    }
}

/// One stream: the upstream's side of one exchange.
pub struct Stream<'w> {
    permit: Permit<'w>,
    connection: Rc<Shared>,
    reused: bool,
    /// A head that leaves with what follows it.
    head: Option<Request<()>>,
    outgoing: Outgoing,
    answer: Option<ResponseFuture>,
    receiving: Option<RecvStream>,
    /// Content that was received and not read yet.
    piece: Bytes,
    trailers: Trailers,
    method: Method,
    limits: Limits,
}

impl<'w> Permit<'w> {
    /// A stream for the exchange's request.
    pub async fn open_stream(
        self,
        freshness: Freshness,
        timeouts: Timeouts,
        head_bytes: usize,
        exchange: &Exchange,
    ) -> Result<Stream<'w>, Stop> {
        let (worker, endpoint) = (self.worker, &*self.endpoint);
        let ready = if freshness == Freshness::New { None } else { endpoint.with_room() };
        let (connection, reused) = match ready {
            Some(connection) => (connection, true),
            None => {
                let connecting = endpoint.join_or_connect(worker, freshness, (timeouts.send, head_bytes), exchange);
                in_time(worker, timeouts.connect, connecting).await?
            }
        };
        if reused {
            worker.metrics.upstream_reuses.increment();
        }
        connection.streams.set(connection.streams.get() + 1);
        connection.carried.set(connection.carried.get() + 1);
        if connection.carried.get() >= endpoint.keepalive.get().requests {
            endpoint.multiplexed.borrow_mut().retain(|shared| !Rc::ptr_eq(shared, &connection));
        }
        Ok(Stream {
            permit: self,
            connection,
            reused,
            head: None,
            outgoing: Outgoing::default(),
            answer: None,
            receiving: None,
            piece: Bytes::new(),
            trailers: Trailers::default(),
            method: Method::Get,
            limits: Limits::default(),
        })
    }
}

impl EndpointPool {
    fn with_room(&self) -> Option<Rc<Shared>> {
        self.multiplexed.borrow().iter().find(|shared| shared.can_take_more()).cloned()
    }

    /// A connection, and whether it was there already. One is made at a time: who comes meanwhile shares it.
    async fn join_or_connect(
        &self,
        worker: &Rc<WorkerContext>,
        freshness: Freshness,
        (send_timeout, head_bytes): (Duration, usize),
        exchange: &Exchange,
    ) -> Result<(Rc<Shared>, bool), Stop> {
        let _turn = self.connecting.lock().await;
        if freshness != Freshness::New
            && let Some(shared) = self.with_room()
        {
            return Ok((shared, true));
        }
        Ok((self.connect_multiplexed(worker, (send_timeout, head_bytes), exchange).await?, false))
    }

    async fn connect_multiplexed(
        &self,
        worker: &Rc<WorkerContext>,
        (send_timeout, head_bytes): (Duration, usize),
        exchange: &Exchange,
    ) -> Result<Rc<Shared>, Stop> {
        let stream = self.connect(worker, send_timeout, exchange).await?;
        if stream.tls().is_some_and(|session| session.protocol() != Some(b"h2")) {
            tracing::error!("the endpoint {} did not agree to HTTP/2 in its TLS handshake (ALPN h2)", self.addr);
            return Err(Stop::UpstreamTls);
        }
        let io: Io<ByteStream> = Io::new(stream, Rc::clone(worker));
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(head_bytes as u32)
            .max_send_buffer_size(SEND_BUFFER)
            .handshake(io);
        let (requests, driver) = handshake.await.map_err(|error| {
            tracing::debug!("HTTP/2 with {}: {error}", self.addr);
            Stop::ConnectFailed
        })?;
        let shared = Rc::new(Shared {
            requests: RefCell::new(requests),
            streams: Cell::new(0),
            carried: Cell::new(0),
            idle_since_ns: Cell::new(worker.now_ns()),
            closed: Cell::new(false),
        });
        let (worker, seen) = (Rc::clone(worker), Rc::downgrade(&shared));
        tokio::task::spawn_local(async move {
            // Its streams are told what went wrong.
            let _ = driver.await;
            worker.metrics.upstream_connections_closed.increment();
            if let Some(shared) = seen.upgrade() {
                shared.closed.set(true);
            }
        });
        let mut all = self.multiplexed.borrow_mut();
        all.retain(|other| !other.closed.get()); // an endpoint that ends each soon would leave many until the next sweep
        all.push(Rc::clone(&shared));
        drop(all);
        Ok(shared)
    }
}

impl Stream<'_> {
    /// The connection had carried a request before this one.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Ready with the next head, interim or final.
    fn poll_head(&mut self, context: &mut Context<'_>, response: &mut ResponseHead) -> Poll<io::Result<Received>> {
        // Nothing was sent.
        let Some(answer) = &mut self.answer else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        response.clear();
        let interim = ready!(answer.poll_informational(context));
        let (head, ended) = match interim {
            Some(Ok(interim)) => (interim, true),
            Some(Err(error)) => return Poll::Ready(Err(failure(error))),
            None => {
                let (head, receiving) = ready!(Pin::new(answer).poll(context)).map_err(failure)?.into_parts();
                let ended = receiving.is_end_stream();
                self.receiving = Some(receiving);
                (http::Response::from_parts(head, ()), ended)
            }
        };
        let (status, pairs) = (head.status().as_u16(), fields::pairs(head.headers()));
        let parsed = response_head(status, pairs, ended, &self.limits, self.method, response);
        Poll::Ready(Ok(Received::Head(parsed)))
    }
}

/// RFC 9113 §8.7: what was refused, or began after the last stream an endpoint that leaves has named, was not looked at.
fn failure(error: h2::Error) -> io::Error {
    let leaves = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
    if leaves || error.reason() == Some(Reason::REFUSED_STREAM) {
        return io::Error::new(NOT_PROCESSED, error);
    }
    broken(error)
}

impl Sending for Stream<'_> {
    fn end(&mut self, _: &mut Vec<u8>, _: Coding, trailers: Option<&Trailers>) {
        self.outgoing.end(trailers);
    }

    fn send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        if let Some(head) = self.head.take() {
            let ends = self.outgoing.ends_with_head(bytes);
            let sent = self.connection.requests.borrow_mut().send_request(head, ends);
            let (answer, stream) = sent.map_err(broken)?;
            self.answer = Some(answer);
            self.outgoing.begin(stream);
        }
        if self.answer.is_none() && self.receiving.is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.outgoing.send(self.permit.worker, bytes)
    }

    fn is_blocked(&self) -> bool {
        self.outgoing.is_blocked()
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.outgoing.poll_flush(self.permit.worker, context)
    }
}

impl UpstreamSide for Stream<'_> {
    fn addr(&self) -> SocketAddr {
        self.permit.endpoint.addr
    }

    fn request_head(&mut self, out: &mut Vec<u8>, exchange: &Exchange, terms: &RequestTerms<'_>) -> Coding {
        (self.method, self.limits) = (exchange.request.method, *terms.limits);
        let scheme = if self.permit.endpoint.is_secured() { Scheme::HTTPS } else { Scheme::HTTP };
        let host = forward::host(exchange, terms.pass_host, terms.endpoint);
        match fields::request(exchange, scheme, host, out) {
            Ok((head, coding)) => {
                self.head = Some(head);
                coding
            }
            // Nothing is sent, so the endpoint seems to have gone.
            Err(error) => {
                tracing::debug!("a request that HTTP/2 cannot carry: {error}");
                Coding::None
            }
        }
    }

    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        response: &mut ResponseHead,
    ) -> Poll<io::Result<Received>> {
        let Some(receiving) = &mut self.receiving else { return self.poll_head(context, response) };
        while self.piece.is_empty() {
            match ready!(receiving.poll_data(context)) {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
                None => {
                    if let Some(trailers) = ready!(receiving.poll_trailers(context)).map_err(broken)? {
                        self.trailers = fields::read_trailers(&trailers);
                    }
                    return Poll::Ready(Ok(Received::End));
                }
            }
        }
        let count = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..count]);
        receiving.flow_control().release_capacity(count).map_err(broken)?;
        Poll::Ready(Ok(Received::Bytes(count)))
    }

    fn take_trailers(&mut self) -> Trailers {
        std::mem::take(&mut self.trailers)
    }

    fn answered(&mut self) {
        self.permit.answered();
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.outgoing.release(self.permit.worker);
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connection.idle_since_ns.set(self.permit.worker.now_ns());
    }
}
