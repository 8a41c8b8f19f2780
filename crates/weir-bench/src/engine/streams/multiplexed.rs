//! Protocols with several exchanges at a time on each connection.

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use tokio::sync::Mutex;

use super::slots::{self, Exchanges};
use super::{Answered, PreparedStreams, StreamExchange, StreamsState, all};
use crate::engine::clock::now_ns;
use crate::engine::job::Job;
use crate::engine::prepare::{PreparedLoad, PreparedRequest};
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
    async fn answer(sent: Self::Sent, request: &MultiplexedRequest) -> Result<Option<Answered>, Cause>;

    /// Ends a connection without requests in progress.
    async fn close(self) {}
}

/// A request as libraries accept it.
pub(super) struct MultiplexedRequest {
    pub(super) head: Request<()>,
    pub(super) body: Bytes,
}

pub(super) async fn run<C: Multiplexed>(job: Job, streams: usize) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    let prepared = &job.prepared;
    let clients = job.clients.clone();
    let requests = prepared
        .requests
        .iter()
        .map(|request| MultiplexedRequest { head: head(prepared, request), body: Bytes::from(request.body.clone()) });
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
    requests: Vec<MultiplexedRequest>,
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

    /// Sends the head of a request on the connection of the client, or on a new one if that has ended.
    async fn send(&self, client: usize, request: usize) -> Result<C::Sent, Cause> {
        let origin = self.lobby.prepared.requests[request].origin;
        let mut place = self.connections[client * self.origins + origin].lock().await;
        if let Some(connection) = &mut *place
            && let Ok(sent) = connection.send(&self.requests[request]).await
        {
            return Ok(sent);
        }
        *place = None;
        let connection = place.insert(self.open(client, request).await?);
        connection.send(&self.requests[request]).await
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
        for _ in 0..ATTEMPTS {
            let sent = self.send(slot / self.streams, exchange.request).await?;
            if let Some(answered) = C::answer(sent, &self.requests[exchange.request]).await? {
                return Ok(answered);
            }
        }
        Err(Cause::Reset)
    }
}

/// The head of a request, without connection-specific fields, which HTTP/2 and HTTP/3 forbid (RFC 9113 §8.2.2, RFC 9114
/// §4.2).
fn head(prepared: &PreparedLoad, request: &PreparedRequest) -> Request<()> {
    let origin = &prepared.origins[request.origin];
    let scheme = if origin.tls.is_some() { "https" } else { "http" };
    let named = |wanted: &str| {
        request
            .template
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.as_str())
    };
    let authority = named("host").unwrap_or(&origin.authority);
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(request.target.as_str()).build();
    let mut head = Request::new(());
    *head.method_mut() = Method::from_bytes(request.template.method.as_bytes()).expect("the plan's check took it");
    *head.uri_mut() = uri.unwrap_or_default();
    for (name, value) in &request.template.headers {
        let of_connection = ["host", "connection", "keep-alive", "transfer-encoding", "upgrade"];
        if of_connection.iter().any(|other| name.eq_ignore_ascii_case(other)) {
            continue;
        }
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str())) {
            head.headers_mut().append(name, value);
        }
    }
    head
}
