//! Endpoints that speak HTTP/2: exchanges share few connections, each in a stream of its own.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_net::stream::Stream as ByteStream;
use weir_plugin::{Exchange, Stop};
use weir_proto::h1::Limits;
use weir_proto::h2::{self, Bounds, ErrorCode, Event, FieldWriter, Lent, Role};
use weir_proto::{ResponseHead, Trailers};

use super::{EndpointPool, Freshness, Permit, in_time};
use crate::context::WorkerContext;
use crate::http2::{Handler, Session, State, fields};
use crate::message::forward::{self, Coding};
use crate::message::sides::{Lost, NOT_PROCESSED, Received, RequestTerms, Sending, UpstreamSide};
use crate::snapshot::Timeouts;

/// Exchanges on one connection before another is made: one connection is one window.
const MOST_STREAMS: usize = 100;
/// Content an endpoint may send on one stream, and on all of a connection, before its clients have taken it.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// One connection and how it is used. What is dropped from the pool closes with its last stream.
pub(super) struct Shared {
    session: Rc<Session<ByteStream>>,
    carried: Cell<u64>,
    idle_since_ns: Cell<u64>,
}

impl Shared {
    /// Nobody uses it, and nobody has for long enough.
    pub(super) fn is_over(&self, now_ns: u64, patience_ns: u64) -> bool {
        let state = self.session.state();
        let idle = state.len() == 0 && now_ns.saturating_sub(self.idle_since_ns.get()) >= patience_ns;
        state.is_over() || idle
    }

    fn can_take_more(&self) -> bool {
        let state = self.session.state();
        !state.is_over() && !state.is_leaving() && state.len() < MOST_STREAMS && state.protocol.may_request()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.session.state().close();
        self.session.wake_driver();
    }
}

/// One stream: the upstream's side of one exchange.
pub struct Stream<'w> {
    permit: Permit<'w>,
    connection: Rc<Shared>,
    key: usize,
    reused: bool,
    /// The head has been sent.
    has_asked: bool,
    /// The final head has come, so that content follows.
    has_head: bool,
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
                let made = in_time(worker, timeouts.connect, connecting).await?;
                self.endpoint.note_connection();
                made
            }
        };
        if reused {
            worker.metrics.upstream_reuses.increment();
        }
        connection.carried.set(connection.carried.get() + 1);
        if connection.carried.get() >= endpoint.keepalive.get().requests {
            endpoint.multiplexed.borrow_mut().retain(|shared| !Rc::ptr_eq(shared, &connection));
        }
        let key = connection.session.state().add(0, false);
        let stream = Stream { permit: self, connection, key, reused, has_asked: false, has_head: false };
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        stream.connection.session.watch(key, waker);
        Ok(stream)
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
        let bounds = Bounds {
            limits: Limits { head_bytes, ..Limits::default() },
            streams: 0,
            stream_window: STREAM_WINDOW,
            connection_window: CONNECTION_WINDOW,
        };
        let protocol = h2::Connection::new(Role::Client, bounds, worker.now_ns());
        let session = Rc::new(Session::new(Rc::clone(worker), stream, protocol));
        let shared = Rc::new(Shared {
            session: Rc::clone(&session),
            carried: Cell::new(0),
            idle_since_ns: Cell::new(worker.now_ns()),
        });
        tokio::task::spawn_local(drive(session, self.addr));
        let mut all = self.multiplexed.borrow_mut();
        all.retain(|other| !other.session.state().is_over()); // an endpoint that ends each soon would leave many until the next sweep
        all.push(Rc::clone(&shared));
        drop(all);
        Ok(shared)
    }
}

/// Reads and writes for all streams of a connection, until it is over.
async fn drive(session: Rc<Session<ByteStream>>, addr: SocketAddr) {
    let worker = Rc::clone(&session.worker);
    let mut answers = Answers::default();
    poll_fn(|context| {
        worker.wake_up();
        session.begin_turn(context);
        let mut state = session.state();
        match state.poll_receive(context, &mut answers) {
            Poll::Pending => {}
            Poll::Ready(Ok(Err(code))) => {
                tracing::debug!("HTTP/2 with {addr}: {}", code.name());
                state.protocol().fail(code);
                let _ = state.poll_send(context); // as far as it is taken at once
                return Poll::Ready(());
            }
            Poll::Ready(_) => return Poll::Ready(()),
        }
        let sent = state.poll_send(context);
        if matches!(sent, Poll::Ready(Err(_))) || state.len() == 0 && (state.is_closed() || state.is_leaving()) {
            return Poll::Ready(());
        }
        session.end_turn();
        Poll::Pending
    })
    .await;
    let mut state = session.state();
    state.lose_all(Lost::Connection);
    state.pipe.send_close_notify();
    worker.metrics.upstream_connections_closed.increment();
}

/// Takes heads of responses.
#[derive(Default)]
struct Answers {
    next: ResponseHead,
}

impl Handler<ByteStream> for Answers {
    fn lend(&mut self) -> Lent<'_> {
        Lent::Response(&mut self.next)
    }

    fn answer(&mut self) -> ResponseHead {
        std::mem::take(&mut self.next)
    }

    fn event(&mut self, state: &mut State<ByteStream>, event: Event<'_>) {
        if let Event::Leaves { last, code } = event {
            // RFC 9113 §6.8: what began later was not looked at. One that ends in an error is not believed that much.
            let lost = if code == ErrorCode::NO_ERROR { Lost::NotProcessed } else { Lost::Reset(code) };
            state.leaves(last, lost);
        }
    }
}

impl Stream<'_> {
    /// The connection had carried a request before this one.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The connection has ended with the exchange, which says nothing about what the endpoint made of it.
    pub fn has_lost_connection(&self) -> bool {
        self.connection.session.lost(self.key) == Some(Lost::Connection)
    }

    /// Ready with the next head, interim or final.
    fn poll_head(&mut self, response: &mut ResponseHead) -> Poll<io::Result<Received>> {
        if !self.has_asked {
            // The connection takes no more streams.
            return Poll::Ready(Err(NOT_PROCESSED.into()));
        }
        let mut answer = std::task::ready!(self.connection.session.poll_answer(self.key))?;
        std::mem::swap(response, &mut answer.head);
        self.has_head = response.status >= 200;
        Poll::Ready(Ok(Received::Head(answer.parsed)))
    }
}

impl Sending for Stream<'_> {
    fn end(&mut self, _: &mut Vec<u8>, _: Coding, trailers: Option<&Trailers>) {
        self.connection.session.end(self.key, trailers);
    }

    fn send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        match self.has_asked {
            true => self.connection.session.send(self.key, bytes),
            false => Err(NOT_PROCESSED.into()),
        }
    }

    fn is_blocked(&self) -> bool {
        self.connection.session.is_blocked(self.key)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.connection.session.poll_flush(self.key)
    }
}

impl UpstreamSide for Stream<'_> {
    fn addr(&self) -> SocketAddr {
        self.permit.endpoint.addr
    }

    fn request_head(&mut self, out: &mut Vec<u8>, exchange: &Exchange, terms: &RequestTerms<'_>) -> Coding {
        let scheme: &[u8] = if self.permit.endpoint.is_secured() { b"https" } else { b"http" };
        let host = forward::host(exchange, terms.pass_host, terms.endpoint);
        let mut state = self.connection.session.state();
        state.protocol().set_limits(*terms.limits);
        let write = |writer: &mut FieldWriter<'_>| fields::request(writer, exchange, scheme, host, out);
        let asked = state.protocol().request(self.key, exchange.request.method, false, write);
        drop(state);
        if let Some((id, sent)) = asked {
            self.connection.session.state().set_id(self.key, id);
            self.connection.session.head_sent(self.key, sent);
            self.has_asked = true;
        }
        fields::request_coding(exchange)
    }

    fn poll_receive(
        &mut self,
        _: &mut Context<'_>,
        buffer: &mut [u8],
        response: &mut ResponseHead,
    ) -> Poll<io::Result<Received>> {
        if !self.has_head {
            return self.poll_head(response);
        }
        let read = self.connection.session.poll_read(self.key, buffer);
        read.map_ok(|count| if count == 0 { Received::End } else { Received::Bytes(count) })
    }

    fn take_trailers(&mut self) -> Trailers {
        self.connection.session.take_trailers(self.key)
    }

    fn answered(&mut self) {
        self.permit.answered();
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.connection.idle_since_ns.set(self.permit.worker.now_ns());
        self.connection.session.forget(self.key, ErrorCode::CANCEL, ErrorCode::CANCEL);
    }
}
