//! Requests that a responder sends to the upstream of its route.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use weir_net::timer::Timer;
use weir_plugin::{
    AnswerWriter, AttemptRecord, ClientFacts, ContentReader, Credential, Exchange, ForwardedContent, MatchedRoute,
    ReplyHead, RouteUpstream, Stop, UpstreamAnswer,
};
use weir_proto::{Framing, RequestHead, Trailers, Version};

use super::proxy;
use crate::answer::page::PageUpstreams;
use crate::answer::responder::{ForwardedAttempt, ResponderUpstream};
use crate::context::WorkerContext;
use crate::context::lifecycle::ServicePhase;
use crate::context::served_exchange::ServedExchange;
use crate::message::forward::HopFraming;
use crate::message::sides::{ClientSide, Pipe, Sending};
use crate::snapshot::Target;
use crate::worker::Worker;
use crate::worker::snapshot::WorkerSnapshot;

/// The most bytes of a response that are read from the upstream at once.
const ROOM: usize = 16 * 1024;

/// The upstream that a responder can send requests to: the one that would have served the exchange without it.
pub(super) fn upstream(
    worker: &Rc<Worker>,
    current: &Rc<WorkerSnapshot>,
    exchange: &ServedExchange,
    target: &Target,
) -> Option<ResponderUpstream> {
    let Target::Upstream(upstream) = *target else { return None };
    let route = Some(exchange.route.as_ref().map(MatchedRoute::number)?);
    let timeouts = current.snapshot.upstreams[upstream].timeouts;
    let (worker, current, client) = (Rc::clone(worker), Rc::clone(current), exchange.client);
    let (identity, forwarded) = (exchange.identity.clone(), ForwardedAttempt::default());
    let noted = Rc::clone(&forwarded);
    let target = Rc::new(SubrequestTarget { worker, current, route, upstream, client, identity, forwarded: noted });
    Some(ResponderUpstream { target, forwarded, timeouts })
}

struct SubrequestTarget {
    worker: Rc<Worker>,
    current: Rc<WorkerSnapshot>,
    /// The route's number in the snapshot; `None` if the upstream is not that of a route.
    route: Option<usize>,
    /// The upstream's number in the snapshot.
    upstream: usize,
    /// The client of the exchange that the responder answers.
    client: ClientFacts,
    /// The consumer of that exchange, by which an endpoint may be chosen.
    identity: Option<Arc<Credential>>,
    forwarded: ForwardedAttempt,
}

impl RouteUpstream for SubrequestTarget {
    fn name(&self) -> &str {
        &self.current.snapshot.upstreams[self.upstream].name
    }

    fn send(&self, mut request: RequestHead) -> UpstreamAnswer {
        request.head.withhold(b"X-Forwarded-Port"); // the gateway has addressed no port
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let client = ClientFacts { peer, addr: peer.ip(), ..ClientFacts::default() };
        self.begin(request, ForwardedContent::Nothing, client, None)
    }

    fn forward(&self, mut request: RequestHead, content: ForwardedContent) -> UpstreamAnswer {
        // Whether they reach a client is decided where its response ends.
        request.takes_trailers = true;
        self.begin(request, content, self.client, Some(Rc::clone(&self.forwarded)))
    }
}

/// Sends requests for pages: to an upstream with its own time-outs, whatever route the exchange has.
pub(super) struct Pages<'a> {
    pub worker: &'a Rc<Worker>,
    pub current: &'a Rc<WorkerSnapshot>,
}

impl PageUpstreams for Pages<'_> {
    fn send(&self, upstream: u32, request: RequestHead, client: ClientFacts) -> UpstreamAnswer {
        let (worker, current) = (Rc::clone(self.worker), Rc::clone(self.current));
        let (upstream, forwarded) = (upstream as usize, ForwardedAttempt::default());
        let target = SubrequestTarget { worker, current, route: None, upstream, client, identity: None, forwarded };
        target.begin(request, ForwardedContent::Nothing, client, None)
    }
}

impl SubrequestTarget {
    fn begin(
        &self,
        request: RequestHead,
        content: ForwardedContent,
        client: ClientFacts,
        forwarded: Option<ForwardedAttempt>,
    ) -> UpstreamAnswer {
        let (writer, answer) = AnswerWriter::new();
        let mut exchange = self.worker.buffers.take_exchange();
        exchange.is_subrequest = true;
        exchange.started_ns = self.worker.now_ns();
        exchange.client = client;
        exchange.identity = self.identity.clone().filter(|_| forwarded.is_some());
        exchange.request = request;
        exchange.request.upgrade = false;
        exchange.request.expects_continue = false;
        let pieces = place_content(content, &mut exchange);
        // As HTTP/2, the content is passed to the responder without framing; its end is signalled separately.
        exchange.request.version = Version::Http2;
        let (worker, current) = (Rc::clone(&self.worker), Rc::clone(&self.current));
        let (route, upstream) = (self.route, self.upstream);
        tokio::task::spawn_local(async move {
            let mut client = SubrequestClient::new(worker.context(), writer, Vec::new());
            client.forwarded = forwarded;
            client.pieces = pieces;
            client.watch().await;
            let route = route.map(|route| &current.snapshot.routes[route]);
            let timeouts = route.and_then(|route| route.timeouts.as_ref());
            let end = proxy(&worker, &current, timeouts, upstream, &mut client, &mut exchange).await;
            client.note(&exchange);
            client.end(end.map(drop));
            worker.buffers.recycle_exchange(exchange);
        });
        answer
    }
}

/// Gives the exchange its content; returns what is still to come of it.
fn place_content(content: ForwardedContent, exchange: &mut Exchange) -> Option<ContentReader> {
    let (framing, pieces) = match content {
        ForwardedContent::Nothing => (Framing::None, None),
        ForwardedContent::Whole(whole) => {
            let framing = Framing::Sized(whole.len() as u64);
            exchange.set_request_body(whole);
            (framing, None)
        }
        ForwardedContent::Pieces(pieces, Some(length)) => (Framing::Sized(length), Some(pieces)),
        ForwardedContent::Pieces(pieces, None) => (Framing::UntilClose, Some(pieces)),
    };
    exchange.request.framing = framing;
    pieces
}

/// Takes the place of the client in an exchange that a responder began.
pub(super) struct SubrequestClient {
    worker: Rc<WorkerContext>,
    timer: Timer,
    /// `None` once the answer has ended.
    writer: Option<AnswerWriter>,
    /// Where the attempt is noted, if the request was forwarded for a client.
    forwarded: Option<ForwardedAttempt>,
    /// The content of the request that has not been taken yet: no more is received.
    stash: Vec<u8>,
    /// The content after that, as the responder writes it.
    pieces: Option<ContentReader>,
}

impl SubrequestClient {
    /// The client of a request with this content.
    pub(super) fn new(worker: &Rc<WorkerContext>, writer: AnswerWriter, content: Vec<u8>) -> SubrequestClient {
        let timer = worker.wheel.add();
        SubrequestClient {
            worker: Rc::clone(worker),
            timer,
            writer: Some(writer),
            forwarded: None,
            stash: content,
            pieces: None,
        }
    }

    /// Content has come after the head, with which the attempt was noted: the client may leave before the end.
    fn note_content(&self, bytes: usize) {
        if let Some(forwarded) = &self.forwarded
            && let Some(attempt) = forwarded.get()
        {
            forwarded.set(Some(AttemptRecord { body_bytes: attempt.body_bytes + bytes as u64, ..attempt }));
        }
    }

    fn note(&self, exchange: &Exchange) {
        if let Some(forwarded) = &self.forwarded {
            forwarded.set(Some(exchange.upstream));
        }
    }

    /// Registers the calling task to be woken by the timer. The reader of the answer wakes it through the `writer`.
    pub(super) async fn watch(&self) {
        poll_fn(|context| {
            self.worker.wheel.watch(&self.timer, context.waker().clone());
            Poll::Ready(())
        })
        .await;
    }

    pub(super) fn end(&mut self, end: Result<(), Stop>) {
        if let Some(writer) = self.writer.take() {
            writer.end(end);
        }
    }
}

impl Drop for SubrequestClient {
    fn drop(&mut self) {
        self.worker.wheel.remove(&self.timer);
    }
}

impl Sending for SubrequestClient {
    fn end(&mut self, _: &mut Vec<u8>, _: HopFraming, trailers: Option<&Trailers>) {
        if let (Some(writer), Some(trailers)) = (&self.writer, trailers) {
            writer.set_trailers(trailers);
        }
    }

    fn send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        if let Some(writer) = self.writer.as_ref().filter(|_| !bytes.is_empty()) {
            writer.write(bytes);
            self.note_content(bytes.len());
        }
        Ok(bytes.len())
    }

    fn is_blocked(&self) -> bool {
        self.writer.as_ref().is_some_and(AnswerWriter::is_full)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &self.writer {
            Some(writer) if writer.is_abandoned() => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Some(writer) if writer.is_full() => {
                writer.watch(context);
                Poll::Pending
            }
            _ => Poll::Ready(Ok(0)),
        }
    }
}

impl ClientSide for SubrequestClient {
    /// The client of the exchange that it belongs to has it.
    const HAS_MINIMUM_RATE: bool = false;

    /// The same: that exchange may also take the response slowly by itself, since its rate is limited.
    const HAS_WRITE_TIMEOUT: bool = false;

    type Pipe = SubrequestClient;

    fn context(&self) -> Rc<WorkerContext> {
        Rc::clone(&self.worker)
    }

    /// The exchange that it belongs to ends it: this is the worker's own phase.
    fn service(&self) -> &ServicePhase {
        self.worker.lifecycle.service()
    }

    fn set_deadline(&self, deadline_ns: u64) {
        self.worker.wheel.set(&self.timer, deadline_ns);
    }

    fn unread_bytes(&mut self) -> &mut Vec<u8> {
        &mut self.stash
    }

    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.pieces {
            Some(pieces) => pieces.poll_read(context, buffer),
            None => Poll::Ready(Ok(0)),
        }
    }

    fn take_trailers(&mut self) -> Trailers {
        self.pieces.as_mut().map(ContentReader::take_trailers).unwrap_or_default()
    }

    fn room(&self) -> usize {
        ROOM
    }

    fn poll_read_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match &self.writer {
            Some(writer) if !writer.is_abandoned() => {
                writer.watch(context);
                Poll::Pending
            }
            _ => Poll::Ready(Err(Stop::ClientGone)),
        }
    }

    fn response_head(&mut self, _: &mut Vec<u8>, exchange: &mut Exchange, _: HopFraming, _: bool) {
        self.note(exchange);
        let response = &exchange.response;
        let fields = response.head.fields().map(|(name, value)| (name.into(), value.into())).collect();
        if let Some(writer) = &self.writer {
            writer.begin(ReplyHead { status: response.status, fields });
        }
    }

    fn interim_head(&mut self, _: &mut Vec<u8>, _: &mut Exchange) {}

    fn upgrade_head(&mut self, _: &mut Vec<u8>, _: &mut Exchange) {}

    fn pipe(&mut self) -> &mut SubrequestClient {
        self
    }
}

/// Never used: a subrequest does not ask for an upgrade.
impl Pipe for SubrequestClient {
    fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(0))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
