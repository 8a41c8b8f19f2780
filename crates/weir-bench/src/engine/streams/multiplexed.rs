//! Protocols with several exchanges at a time on each connection.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use tokio::sync::Mutex;

use super::slots::{self, Exchanges};
use super::{Answered, PreparedStreams, StreamExchange, StreamsState, all};
use crate::engine::clock::now_ns;
use crate::engine::flow::{AnswerVerdict, CapturedAnswer, LoadFlow, RenderedRequest};
use crate::engine::grpc::PreparedCall;
use crate::engine::job::Job;
use crate::engine::prepare::{LoadOrigin, PreparedLoad, PreparedRequest};
use crate::engine::recorder::Cause;

/// The flow-control window of a stream and of a connection, large enough not to limit the throughput.
pub(super) const WINDOW: u32 = 16 * 1024 * 1024;

/// How often a request is sent that the server gives back unprocessed, as it does with those that it gets after it has said
/// that the connection will end.
const ATTEMPTS: usize = 3;

/// A connection of such a protocol.
pub(super) trait Multiplexed: Sized + 'static {
    /// A request whose head has been sent.
    type Sent;

    /// Opens a connection for a request of the plan. `client` is numbered over the whole run.
    async fn open(lobby: &Rc<PreparedStreams>, client: usize, request: usize) -> Result<Self, Cause>;

    /// Sends the head of a request. After an error, the connection is not used for further ones.
    async fn send(&mut self, request: &MultiplexedRequest) -> Result<Self::Sent, Cause>;

    /// Sends the body, and receives the answer; `None` if the server says that it has not processed the request.
    async fn answer(
        sent: Self::Sent,
        request: &MultiplexedRequest,
        capture: &mut CapturedAnswer,
    ) -> Result<Option<Answered>, Cause>;

    /// Ends a connection without requests in progress.
    async fn close(self) {}
}

/// A request as libraries accept it.
pub(super) struct MultiplexedRequest {
    pub(super) head: Request<()>,
    pub(super) body: Bytes,
    /// The call that it is, of gRPC.
    pub(super) call: Option<Arc<PreparedCall>>,
}

pub(super) async fn run<C: Multiplexed>(job: Job, streams: usize) {
    let lobby = PreparedStreams::of_requests(&job, streams);
    let prepared = &job.prepared;
    let clients = job.clients.clone();
    let requests = prepared.requests.iter().map(|request| fixed(prepared, request));
    let multiplexed = Rc::new(MultiplexedClients::<C> {
        lobby: lobby.clone(),
        streams,
        first_client: clients.start,
        origins: prepared.origins.len(),
        connections: (0..clients.len() * prepared.origins.len()).map(|_| Mutex::default()).collect(),
        requests: requests.collect(),
    });
    if prepared.origins.len() == 1 {
        // Failed connections are opened again when they are needed.
        all(0..clients.len(), async |client| {
            let opened = multiplexed.open(client, 0).await.ok();
            *multiplexed.connections[client].lock().await = opened;
        })
        .await;
    }
    let Some(shared) = StreamsState::start(job, lobby) else { return };
    let slots = clients.len() * streams;
    let tasks = slots::run(&shared, slots, streams, &multiplexed);
    shared.conclude(tasks).await;
    multiplexed.close().await;
}

struct MultiplexedClients<C> {
    lobby: Rc<PreparedStreams>,
    streams: usize,
    first_client: usize,
    origins: usize,
    /// The connection of each client to each origin, once it is open.
    connections: Vec<Mutex<Option<C>>>,
    /// The error is that of a request that cannot be sent.
    requests: Vec<Result<MultiplexedRequest, Cause>>,
}

impl<C: Multiplexed> MultiplexedClients<C> {
    async fn open(&self, client: usize, request: usize) -> Result<C, Cause> {
        let _turn = self.lobby.dialing.acquire().await;
        let since = now_ns();
        let opened = C::open(&self.lobby, self.first_client + client, request).await;
        let connection = opened.inspect_err(|cause| self.lobby.refused(*cause))?;
        self.lobby.opened(since);
        Ok(connection)
    }

    /// Sends the head of a request on the connection of the client, or on a new one if that has ended. `number` is that of the
    /// request in the plan.
    async fn send(&self, client: usize, number: usize, request: &MultiplexedRequest) -> Result<C::Sent, Cause> {
        let origin = self.lobby.prepared.requests[number].origin;
        let mut place = self.connections[client * self.origins + origin].lock().await;
        if let Some(connection) = &mut *place
            && let Ok(sent) = connection.send(request).await
        {
            return Ok(sent);
        }
        *place = None;
        let connection = place.insert(self.open(client, number).await?);
        connection.send(request).await
    }

    /// Sends a request, and receives its answer.
    async fn ask(
        &self,
        slot: usize,
        number: usize,
        request: &MultiplexedRequest,
        capture: &mut CapturedAnswer,
    ) -> Result<Answered, Cause> {
        for _ in 0..ATTEMPTS {
            let sent = self.send(slot / self.streams, number, request).await?;
            if let Some(answered) = C::answer(sent, request, capture).await? {
                return Ok(answered);
            }
        }
        Err(Cause::Reset)
    }

    /// Sends a request that is made of data, and those that redirects ask for.
    async fn follow(&self, flow: &RefCell<LoadFlow>, slot: usize, exchange: StreamExchange) -> Result<Answered, Cause> {
        let StreamExchange { request: number, due, .. } = exchange;
        flow.borrow_mut().begin(slot, number);
        let (mut sent, mut received) = (0, 0);
        loop {
            let request = rendered(&self.lobby.prepared, number, flow.borrow_mut().render(slot, number))?;
            // Taken out, since a flow is not borrowed while others use it.
            let mut capture = std::mem::take(flow.borrow_mut().answer(slot));
            let answered = self.ask(slot, number, &request, &mut capture).await;
            let mut flow = flow.borrow_mut();
            *flow.answer(slot) = capture;
            let answered = answered?;
            (sent, received) = (sent + answered.sent, received + answered.received);
            if let Some(at) = answered.first_byte {
                flow.received(slot, at);
            }
            let status = answered.status.unwrap_or_default();
            if let AnswerVerdict::Done(judged) = flow.answered(slot, number, status, due, now_ns()) {
                let first_byte = flow.first_byte(slot);
                return Ok(Answered { sent, received, first_byte, judged: Some(judged), ..answered });
            }
        }
    }

    async fn close(&self) {
        all(0..self.connections.len(), async |index| {
            let connection = self.connections[index].lock().await.take();
            if let Some(connection) = connection {
                connection.close().await;
            }
        })
        .await;
    }
}

impl<C: Multiplexed> Exchanges for MultiplexedClients<C> {
    async fn exchange(&self, slot: usize, exchange: StreamExchange) -> Result<Answered, Cause> {
        match &self.lobby.flow {
            Some(flow) => self.follow(flow, slot, exchange).await,
            None => {
                let request = self.requests[exchange.request].as_ref().map_err(|cause| *cause)?;
                self.ask(slot, exchange.request, request, &mut CapturedAnswer::default()).await
            }
        }
    }
}

/// Takes the fields of an answer whose head has come. The time is that of its first byte, of plans that measure it.
pub(super) fn captured_head(capture: &mut CapturedAnswer, status: StatusCode, fields: &HeaderMap) -> Option<u64> {
    if !capture.is_used() {
        return None;
    }
    let now = now_ns();
    capture.restart(status.as_u16());
    fields.iter().for_each(|(name, value)| capture.field(name.as_str(), value.as_bytes()));
    Some(now)
}

/// A request that is always the same.
fn fixed(prepared: &PreparedLoad, request: &PreparedRequest) -> Result<MultiplexedRequest, Cause> {
    let template = &request.template;
    let fields = template.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let head = head(&prepared.origins[request.origin], &template.method, &request.target, fields)?;
    let body = body(request.call.as_deref(), request.body.clone())?;
    Ok(MultiplexedRequest { head, body, call: request.call.clone() })
}

/// A request that has been made of data.
fn rendered(prepared: &PreparedLoad, number: usize, request: RenderedRequest<'_>) -> Result<MultiplexedRequest, Cause> {
    let RenderedRequest { method, target, fields, body, .. } = request;
    let fields = fields.iter().map(|(name, value)| (*name, value.as_str()));
    let asked = &prepared.requests[number];
    let head = head(&prepared.origins[asked.origin], method, &target, fields)?;
    Ok(MultiplexedRequest { head, body: self::body(asked.call.as_deref(), body)?, call: asked.call.clone() })
}

/// The body as it is sent. A message that its values have made unfit for its call is a local error.
fn body(call: Option<&PreparedCall>, body: Vec<u8>) -> Result<Bytes, Cause> {
    match call {
        None => Ok(Bytes::from(body)),
        Some(call) => call.body(&body).map(Bytes::from).map_err(|_| Cause::Local),
    }
}

/// The head of a request, without connection-specific fields, which HTTP/2 and HTTP/3 forbid (RFC 9113 §8.2.2, RFC 9114
/// §4.2). A request that cannot be built, such as one with a target that is too long, is a local error.
fn head<'a>(
    origin: &LoadOrigin,
    method: &str,
    target: &str,
    fields: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Result<Request<()>, Cause> {
    let scheme = if origin.tls.is_some() { "https" } else { "http" };
    let host = fields.clone().find(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, value)| value);
    let authority = host.unwrap_or(&origin.authority);
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build();
    let mut head = Request::new(());
    *head.method_mut() = Method::from_bytes(method.as_bytes()).expect("the plan's check took it");
    *head.uri_mut() = uri.map_err(|_| Cause::Local)?;
    for (name, value) in fields {
        let of_connection = ["host", "connection", "keep-alive", "transfer-encoding", "upgrade"];
        if of_connection.iter().any(|other| name.eq_ignore_ascii_case(other)) {
            continue;
        }
        let name = HeaderName::try_from(name).map_err(|_| Cause::Local)?;
        head.headers_mut().append(name, HeaderValue::try_from(value).map_err(|_| Cause::Local)?);
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_cannot_be_built_is_a_local_error() {
        let address = "127.0.0.1:1".parse().expect("an address");
        let origin = LoadOrigin { address, authority: "a".to_owned(), tls: None };
        let built = |target: &str, fields: &[(&'static str, &'static str)]| {
            head(&origin, "GET", target, fields.iter().copied()).map(|head| head.uri().to_string())
        };
        assert_eq!(built("/b", &[("X-A", "b\tc")]).ok().as_deref(), Some("http://a/b"));
        assert_eq!(built(&format!("/{}", "b".repeat(70_000)), &[]), Err(Cause::Local));
        assert_eq!(built("/", &[("X-A", "b\u{1b}")]), Err(Cause::Local));
    }
}
