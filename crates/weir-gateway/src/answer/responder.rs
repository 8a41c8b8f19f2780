//! A responder as the upstream side of an exchange.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use weir_plugin::responder::{Responder, ResponderCall};
use weir_plugin::{AttemptRecord, ClientGateway, Exchange, RouteUpstream, Stop};
use weir_proto::h1::{Limits, Tolerance};
use weir_proto::h2::response_head;
use weir_proto::limits::MAX_FIELDS;
use weir_proto::{Method, ResponseHead, Trailers};

use super::relay::{self, RelayOutcome, RelayTerms};
use super::upgrade::tunneled;
use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::message::AfterExchange;
use crate::message::forward::HopFraming;
use crate::message::sides::{ClientSide, Pipe, Received, RequestTerms, Sending, UpstreamSide};
use crate::message::websocket_handshake::{asks_for_websocket, websocket_accept};
use crate::plugins::chain::Plugins;
use crate::plugins::guard::guarded;
use crate::snapshot::{Endpoint, PassHost, Route, Timeouts};
use crate::worker::snapshot::WorkerSnapshot;

/// A placeholder, since a relay's terms name an endpoint and a responder has none.
static NO_ENDPOINT: LazyLock<Endpoint> = LazyLock::new(|| Endpoint {
    name: "responder".into(),
    addr: NOWHERE,
    weight: 1,
    priority: 0,
    host: "".into(),
    checks: None,
});
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The last attempt at an upstream in the name of the client, by the responder of its exchange.
pub(crate) type ForwardedAttempt = Rc<Cell<Option<AttemptRecord>>>;

/// Where a responder can send requests of its own, and what became of the one for its client.
pub(crate) struct ResponderUpstream {
    pub target: Rc<dyn RouteUpstream>,
    pub forwarded: ForwardedAttempt,
    /// The times of an attempt at it, unless the route has its own.
    pub timeouts: Timeouts,
}

/// What a responder can use to answer.
#[derive(Default)]
pub(crate) struct ResponderMeans {
    pub upstream: Option<ResponderUpstream>,
    pub gateway: Option<Rc<dyn ClientGateway>>,
}

/// Limits of the heads of responders. A head may be that of an upstream's response, which has limits of its own, with fields that
/// the responder has added.
const RESPONSE_LIMITS: Limits = Limits { head_bytes: 2 << 20, fields: 2 * MAX_FIELDS, ..Limits::DEFAULT };

/// Lets a responder answer the request in place of an upstream.
pub(crate) async fn answer(
    worker: &Rc<WorkerContext>,
    current: &WorkerSnapshot,
    route: &Route,
    (responder, means): (&Arc<dyn Responder>, ResponderMeans),
    client: &mut impl ClientSide,
    exchange: &mut ServedExchange,
) -> Result<AfterExchange, Stop> {
    let timeouts = outer_timeouts(route, means.upstream.as_ref());
    let terms = RelayTerms {
        plugins: Plugins::of(worker, current, exchange),
        clients: &current.snapshot.clients,
        timeouts: &timeouts,
        pass_host: &PassHost::Pass,
        endpoint: &NO_ENDPOINT,
        persistence: None,
        tolerance: Tolerance::default(),
        response_limits: &RESPONSE_LIMITS,
        status_retry: None,
        via: None,
    };
    exchange.upstream.attempts = 1;
    exchange.upstream.started_ns = worker.now_ns();
    let ResponderMeans { upstream, gateway } = means;
    let (upstream, forwarded) = upstream.map(|upstream| (upstream.target, upstream.forwarded)).unzip();
    let (method, accept, invites) = (Method::Get, None, exchange.request.expects_continue);
    let mut side =
        ResponderSide { responder, upstream, gateway, call: None, ends: false, accept, method, invites, stop: None };
    let outcome = relay::both_ways(worker, client, &mut side, exchange, &terms).await;
    exchange.upstream.ended_ns = worker.now_ns();
    let attempt = forwarded.and_then(|forwarded| forwarded.get());
    let is_refused = side.call.as_ref().is_some_and(|call| call.refused_by().is_some());
    match attempt {
        Some(attempt) => note_attempt(exchange, attempt),
        // No upstream has been asked.
        None if is_refused => exchange.upstream = AttemptRecord::default(),
        None => {}
    }
    let after = match outcome {
        Ok(RelayOutcome::Complete { client, .. }) => Ok(client),
        Ok(RelayOutcome::Tunnel) => Ok(tunneled(worker, client, &mut side, exchange).await),
        Err(stop) => Err(stop),
    };
    if let Some(call) = &mut side.call {
        note_told(call, terms.plugins, exchange);
    }
    after
}

/// What a responder has said of its service, also where the exchange is cut.
fn note_told(call: &mut ResponderCall, plugins: Plugins<'_>, exchange: &mut ServedExchange) {
    call.cut();
    match (call.failed_plugin(), call.refused_by()) {
        (Some(plugin), _) => plugins.count_failure_of(plugin, exchange),
        (None, Some(plugin)) => plugins.count_refusal_of(plugin, exchange),
        (None, None) => {}
    }
    set_refused_by(call, exchange);
    set_processor_metadata(call, exchange);
}

fn set_refused_by(call: &ResponderCall, exchange: &mut Exchange) {
    if let Some(plugin) = call.refused_by() {
        exchange.set_refused_by(plugin);
    }
}

fn set_processor_metadata(call: &mut ResponderCall, exchange: &mut Exchange) {
    for (name, value) in call.take_processor_metadata() {
        exchange.set_processor_metadata(&name, &value);
    }
}

/// The times for a responder. One that forwards a request waits for an attempt, which has times of its own, and perhaps for another
/// service: so that those of the attempt decide, this one waits for longer.
fn outer_timeouts(route: &Route, upstream: Option<&ResponderUpstream>) -> Timeouts {
    let Some(upstream) = upstream else { return route.timeouts.unwrap_or_default() };
    let of_attempt = route.timeouts.unwrap_or(upstream.timeouts);
    let read = of_attempt.read.saturating_mul(2).saturating_add(of_attempt.connect);
    let send = of_attempt.send.saturating_mul(2).saturating_add(of_attempt.connect);
    Timeouts { read, send, ..of_attempt }
}

/// The attempt that the responder has made for its client is that of the exchange, in logs and records; unless the response had
/// begun before, which then came from somewhere else.
fn note_attempt(exchange: &mut ServedExchange, attempt: AttemptRecord) {
    let own = exchange.upstream;
    let known_ns = if attempt.header_ns == 0 { attempt.ended_ns } else { attempt.header_ns };
    if own.header_ns == 0 || known_ns != 0 && known_ns <= own.header_ns {
        let ended_ns = if attempt.ended_ns == 0 { own.ended_ns } else { attempt.ended_ns };
        exchange.upstream = AttemptRecord { ended_ns, ..attempt };
    }
}

struct ResponderSide<'a> {
    responder: &'a Arc<dyn Responder>,
    /// Where the responder can send requests of its own.
    upstream: Option<Rc<dyn RouteUpstream>>,
    /// Where it can have requests served.
    gateway: Option<Rc<dyn ClientGateway>>,
    /// Created with the request's head.
    call: Option<ResponderCall>,
    /// The request's content is complete after the next [`Sending::send`].
    ends: bool,
    /// The value of `Sec-WebSocket-Accept`, if the request asks for a WebSocket over HTTP/1.1.
    accept: Option<String>,
    method: Method,
    /// The client waits for a 100 before it sends content. It gets one when the responder waits for content.
    invites: bool,
    /// Why the responder ended the exchange.
    stop: Option<Stop>,
}

impl ResponderSide<'_> {
    fn poll_responder(&mut self, context: &mut Context<'_>) -> Option<&mut ResponderCall> {
        let call = self.call.as_mut()?;
        let polled = guarded(|| {
            call.poll(context);
            Ok(())
        });
        if let Err(stop) = polled {
            call.fail(stop);
        }
        Some(call)
    }

    /// Polls a responder whose client does not read, so that it can end the exchange.
    fn poll_beside(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let end = self.poll_responder(context).and_then(|call| call.end());
        end.unwrap_or(Ok(())).inspect_err(|stop| self.stop = Some(*stop))
    }

    fn failed(&mut self, stop: Stop) -> Poll<io::Result<Received>> {
        self.stop = Some(stop);
        Poll::Ready(Err(io::ErrorKind::Other.into()))
    }
}

impl Sending for ResponderSide<'_> {
    fn end(&mut self, _: &mut Vec<u8>, _: HopFraming, trailers: Option<&Trailers>) {
        self.ends = true;
        if let (Some(call), Some(trailers)) = (&mut self.call, trailers) {
            call.set_incoming_trailers(trailers);
        }
    }

    fn send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        if let Some(call) = &mut self.call {
            call.push(bytes, self.ends, context);
        }
        Ok(bytes.len())
    }

    fn is_blocked(&self) -> bool {
        self.call.as_ref().is_some_and(ResponderCall::is_full)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_responder(context);
        if self.is_blocked() { Poll::Pending } else { Poll::Ready(Ok(0)) }
    }
}

/// After a 101 what the client sends is the responder's content, and what the responder sends goes to the client.
impl Pipe for ResponderSide<'_> {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(call) = self.poll_responder(context) else { return Poll::Ready(Ok(0)) };
        match (call.read_content(buffer, context), call.end()) {
            (0, None) => Poll::Pending,
            (0, Some(Err(stop))) => self.failed(stop).map_ok(|_| 0),
            (count, _) => Poll::Ready(Ok(count)),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_blocked() {
            self.poll_responder(context);
        }
        match &mut self.call {
            Some(call) if call.is_full() => Poll::Pending,
            Some(call) => {
                call.push(bytes, false, context);
                Poll::Ready(Ok(bytes.len()))
            }
            None => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(call) = &mut self.call {
            call.end_tunnel(context);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_unread(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.poll_beside(context).map_err(|_| io::ErrorKind::Other.into())
    }
}

impl UpstreamSide for ResponderSide<'_> {
    fn addr(&self) -> SocketAddr {
        NOWHERE
    }

    fn write_request_head(&mut self, _: &mut Vec<u8>, exchange: &Exchange, _: &RequestTerms<'_>) -> HopFraming {
        self.method = exchange.request.method;
        self.accept = asks_for_websocket(exchange).then(|| websocket_accept(exchange)).flatten();
        let request = exchange.responder_request(self.upstream.take(), self.gateway.take());
        match guarded(|| Ok(ResponderCall::new(self.responder, request))) {
            Ok(call) => self.call = Some(call),
            Err(stop) => self.stop = Some(stop),
        }
        if exchange.request.framing.has_body() { HopFraming::Plain } else { HopFraming::None }
    }

    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
        response: &mut ResponseHead,
    ) -> Poll<io::Result<Received>> {
        let (method, invites) = (self.method, self.invites);
        let Some(call) = self.poll_responder(context) else {
            return self.failed(Stop::Internal);
        };
        if invites && call.is_reading() {
            self.invites = false;
            response.clear();
            response.set_status(100);
            return Poll::Ready(Ok(Received::Head(Ok(()))));
        }
        if let Some(head) = call.take_head() {
            response.clear();
            // A head is made as one of HTTP/2, which has no 101; for a WebSocket it has 2xx (RFC 8441 §5).
            let switches = head.status() == 101;
            let status = if switches { 200 } else { head.status() };
            // A gRPC status in the head counts if the head is the end, too.
            let ended = call.ends_with_head() && !head.fields().any(|(name, _)| name == b"content-length");
            if response_head(status, head.fields(), ended, &RESPONSE_LIMITS, method, response).is_err() {
                return self.failed(Stop::Internal);
            }
            if switches {
                response.set_status(101);
                let accept =
                    self.accept.as_deref().map(|accept| response.head.set(b"sec-websocket-accept", accept.as_bytes()));
                accept.transpose().expect("base64 is a valid value");
            }
            return Poll::Ready(Ok(Received::Head(Ok(()))));
        }
        let count = call.read_content(buffer, context);
        if count > 0 {
            return Poll::Ready(Ok(Received::Bytes(count)));
        }
        match call.end() {
            None => Poll::Pending,
            Some(Ok(())) => Poll::Ready(Ok(Received::End)),
            Some(Err(stop)) => self.failed(stop),
        }
    }

    fn poll_unread(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        self.poll_beside(context)
    }

    fn note_told(&mut self, exchange: &mut Exchange) {
        if let Some(call) = &mut self.call {
            set_processor_metadata(call, exchange);
            set_refused_by(call, exchange);
        }
    }

    fn take_trailers(&mut self) -> Trailers {
        self.call.as_mut().map(ResponderCall::take_trailers).unwrap_or_default()
    }

    fn answered(&mut self) {}

    fn stop(&self) -> Option<Stop> {
        self.stop
    }
}
