//! One stream of an HTTP/2 connection to an endpoint.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_plugin::{Exchange, Stop};
use weir_proto::h2::{ErrorCode, FieldWriter};
use weir_proto::{ResponseHead, Trailers};

use super::{FIRST_STREAM_WINDOW, STREAM_WINDOW, SharedConnection};
use crate::context::frame::own_waker;
use crate::endpoint::pool::{Freshness, Permit, within_timeout};
use crate::message::fields;
use crate::message::forward::{self, HopFraming};
use crate::message::sides::{NOT_PROCESSED, Pipe, Received, RequestTerms, Sending, StreamLoss, UpstreamSide};
use crate::message::websocket_handshake::{asks_for_websocket, websocket_accept};
use crate::snapshot::Timeouts;

/// A stream as the upstream side of one exchange.
pub(crate) struct UpstreamStream<'w> {
    permit: Permit<'w>,
    connection: Rc<SharedConnection>,
    key: usize,
    reused: bool,
    /// The request's head has been sent.
    has_asked: bool,
    /// Bytes of that head which the next [`Sending::send`] has to report.
    head_bytes: usize,
    /// The final head has been received, so that content follows.
    has_head: bool,
    /// All content of the response has been received, but not its end.
    has_content: bool,
    /// Bytes to read before the endpoint may send more ahead; `None` if that is so already, or never will be.
    before_widening: Option<u32>,
    /// Set for a WebSocket (RFC 8441): the value of `Sec-WebSocket-Accept`, which a client of HTTP/1.1 expects.
    websocket: Option<Option<String>>,
}

impl<'w> Permit<'w> {
    /// Opens a stream for the exchange's request.
    pub(crate) async fn open_stream(
        self,
        freshness: Freshness,
        timeouts: Timeouts,
        head_bytes: usize,
        exchange: &mut Exchange,
    ) -> Result<UpstreamStream<'w>, Stop> {
        let (worker, endpoint) = (self.worker, &*self.endpoint);
        let ready =
            if freshness == Freshness::New { None } else { endpoint.with_room(freshness, &exchange.request, 0) };
        let (connection, reused) = match ready {
            Some(connection) => (connection, true),
            None => {
                let connecting = endpoint.join_or_connect(worker, freshness, (timeouts.send, head_bytes), exchange);
                let made = within_timeout(worker, timeouts.connect, connecting).await?;
                self.endpoint.machine.register_connection();
                made
            }
        };
        if reused {
            worker.metrics.upstream_reuses.increment();
        }
        connection.allow(timeouts.send);
        connection.carried.set(connection.carried.get() + 1);
        if connection.carried.get() >= endpoint.connections.keepalive.requests {
            endpoint.connections.multiplexed.borrow_mut().retain(|shared| !Rc::ptr_eq(shared, &connection));
        }
        let key = connection.session.state().add(0, false);
        let mut stream = UpstreamStream {
            permit: self,
            connection,
            key,
            reused,
            has_asked: false,
            head_bytes: 0,
            has_head: false,
            has_content: false,
            before_widening: Some(FIRST_STREAM_WINDOW / 2),
            websocket: None,
        };
        let waker = own_waker().await;
        stream.connection.session.watch(key, waker);
        if asks_for_websocket(exchange) {
            let connection = Rc::clone(&stream.connection);
            // RFC 8441 §3: only after the endpoint's SETTINGS have allowed it.
            let known = async {
                poll_fn(|_| connection.has_begun()).await;
                Ok(connection.session.state().protocol.peer().connect_protocol)
            };
            if within_timeout(worker, timeouts.connect, known).await? {
                stream.websocket = Some(websocket_accept(exchange));
            }
        }
        Ok(stream)
    }
}

impl UpstreamStream<'_> {
    /// Whether the connection had carried a request before this one.
    pub(crate) fn is_reused(&self) -> bool {
        self.reused
    }

    /// Whether the connection itself was lost, which does not show whether the endpoint has processed the request.
    pub(crate) fn has_lost_connection(&self) -> bool {
        self.connection.session.lost(self.key) == Some(StreamLoss::Connection)
    }

    fn read_content(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.connection.session.poll_read(self.key, buffer);
        if let (Poll::Ready(Ok(count)), Some(before)) = (&read, self.before_widening) {
            self.before_widening = before.checked_sub(*count as u32).filter(|left| *left > 0);
            if self.before_widening.is_none() {
                self.connection.session.widen(self.key, STREAM_WINDOW);
            }
        }
        read
    }

    /// Ready with the next head, interim or final.
    fn poll_head(&mut self, response: &mut ResponseHead) -> Poll<io::Result<Received>> {
        if !self.has_asked {
            // The connection accepts no more streams.
            return Poll::Ready(Err(NOT_PROCESSED.into()));
        }
        let mut answer = std::task::ready!(self.connection.session.poll_answer(self.key))?;
        std::mem::swap(response, &mut answer.head);
        self.has_head = response.status >= 200;
        if let Some(accept) = self.websocket.as_ref().filter(|_| (200..300).contains(&response.status)) {
            // RFC 8441 §5: a 2xx means what 101 means in HTTP/1.1.
            response.set_status(101);
            let accept = accept.as_deref().unwrap_or_default();
            if !accept.is_empty() {
                response.head.set(b"sec-websocket-accept", accept.as_bytes()).expect("base64 is a valid value");
            }
        }
        Poll::Ready(Ok(Received::Head(answer.parsed)))
    }
}

impl Sending for UpstreamStream<'_> {
    fn end(&mut self, _: &mut Vec<u8>, _: HopFraming, trailers: Option<&Trailers>) {
        // The stream of a WebSocket stays open after its head.
        if self.websocket.is_none() {
            self.connection.session.end(self.key, trailers);
        }
    }

    fn send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        match self.has_asked {
            true => Ok(self.connection.session.send(self.key, bytes)? + std::mem::take(&mut self.head_bytes)),
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

impl UpstreamSide for UpstreamStream<'_> {
    const MARKS_END: bool = true;

    fn addr(&self) -> SocketAddr {
        self.permit.endpoint.addr()
    }

    fn write_request_head(&mut self, out: &mut Vec<u8>, exchange: &Exchange, terms: &RequestTerms<'_>) -> HopFraming {
        let scheme: &[u8] = if self.permit.endpoint.is_secured() { b"https" } else { b"http" };
        let host = forward::host(exchange, terms.pass_host, terms.endpoint);
        let mut state = self.connection.session.state();
        state.writable_protocol().set_limits(*terms.limits);
        let target = fields::RequestTarget { scheme, host, is_websocket: self.websocket.is_some() };
        let write = |writer: &mut FieldWriter<'_>| fields::request(writer, exchange, &target, out);
        let asked = state.writable_protocol().request(self.key, exchange.request.method, false, write);
        drop(state);
        if let Some((id, sent)) = asked {
            self.connection.session.state().set_id(self.key, id);
            self.connection.session.head_sent(self.key, sent);
            (self.has_asked, self.head_bytes) = (true, sent.bytes);
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
        let read = self.read_content(buffer);
        read.map_ok(|count| if count == 0 { Received::End } else { Received::Bytes(count) })
    }

    fn take_trailers(&mut self) -> Trailers {
        self.connection.session.take_trailers(self.key)
    }

    fn has_ended(&self) -> bool {
        self.connection.session.has_ended(self.key)
    }

    fn give_up_end(&mut self) {
        self.has_content = true;
    }

    fn keep_window(&mut self) {
        self.before_widening = None;
    }

    fn answered(&mut self) {
        self.permit.answered();
    }
}

/// A tunnel within the stream (RFC 8441).
impl Pipe for UpstreamStream<'_> {
    fn poll_read(&mut self, _: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.read_content(buffer)
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.connection.session.poll_write(self.key, bytes)
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.session.end(self.key, None);
        Poll::Ready(self.connection.session.send(self.key, b"").map(|_| ()))
    }
}

impl Drop for UpstreamStream<'_> {
    fn drop(&mut self) {
        self.connection.idle_since_ns.set(self.permit.worker.now_ns());
        // An endpoint that has sent all content, and not its end, is only told to stop.
        let complete = if self.has_content { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL };
        self.connection.session.forget(self.key, ErrorCode::CANCEL, complete);
    }
}
