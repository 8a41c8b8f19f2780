//! HTTP/2: connections with several streams each.

use std::rc::Rc;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use tokio::sync::Mutex;
use tokio::task::spawn_local;

use super::dial::dial;
use super::slots::{self, Exchanges};
use super::{Answered, PreparedStreams, StreamExchange, StreamsState, all};
use crate::engine::clock::now_ns;
use crate::engine::job::Job;
use crate::engine::prepare::{PreparedLoad, PreparedRequest};
use crate::engine::recorder::Cause;

/// The flow-control window, large enough not to limit the throughput.
const WINDOW: u32 = 16 * 1024 * 1024;

pub(super) async fn run(job: Job, streams: usize) {
    let lobby = PreparedStreams::new(job.prepared.clone());
    let clients = job.clients.clone();
    let requests: Vec<Request<()>> = job.prepared.requests.iter().map(|request| head(&job.prepared, request)).collect();
    let http2 = Rc::new(Http2Clients {
        lobby: lobby.clone(),
        streams,
        first_client: clients.start,
        origins: job.prepared.origins.len(),
        senders: (0..clients.len() * job.prepared.origins.len()).map(|_| Mutex::default()).collect(),
        bodies: job.prepared.requests.iter().map(|request| Bytes::from(request.body.clone())).collect(),
        requests,
    });
    if job.prepared.origins.len() == 1 {
        // Failed connections are opened again when they are needed.
        all(0..clients.len(), async |client| drop(http2.sender(client, 0).await)).await;
    }
    let Some(shared) = StreamsState::start(job, lobby) else { return };
    let slots = clients.len() * streams;
    let tasks = slots::run(&shared, slots, streams, &http2);
    shared.conclude(tasks).await;
}

struct Http2Clients {
    lobby: Rc<PreparedStreams>,
    streams: usize,
    first_client: usize,
    origins: usize,
    /// The connection of each client to each origin, once it is open.
    senders: Vec<Mutex<Option<SendRequest<Bytes>>>>,
    requests: Vec<Request<()>>,
    bodies: Vec<Bytes>,
}

impl Http2Clients {
    /// A connection of the client that can accept a request: the current one, or a new one.
    async fn sender(&self, client: usize, request: usize) -> Result<SendRequest<Bytes>, Cause> {
        let origin = self.lobby.prepared.requests[request].origin;
        let mut place = self.senders[client * self.origins + origin].lock().await;
        if let Some(sender) = &*place {
            // An error means that the connection has ended.
            if let Ok(sender) = sender.clone().ready().await {
                return Ok(sender);
            }
            *place = None;
        }
        let _turn = self.lobby.dialing.acquire().await;
        let since = now_ns();
        let connected = async {
            let stream = dial(&self.lobby, self.first_client + client, request).await?;
            let mut builder = h2::client::Builder::new();
            builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
            builder.handshake::<_, Bytes>(stream).await.map_err(|_| Cause::Protocol)
        };
        let (sender, connection) = connected.await.inspect_err(|cause| self.lobby.refused(*cause))?;
        self.lobby.opened(since);
        let lobby = self.lobby.clone();
        spawn_local(async move {
            // The error is ignored here, because the streams report it.
            let _ = connection.await;
            lobby.closed();
        });
        *place = Some(sender.clone());
        sender.ready().await.map_err(|error| cause(&error))
    }
}

impl Exchanges for Http2Clients {
    async fn exchange(&self, slot: usize, exchange: StreamExchange) -> Result<Answered, Cause> {
        let mut sender = self.sender(slot / self.streams, exchange.request).await?;
        let body = &self.bodies[exchange.request];
        let (response, mut send) = sender
            .send_request(self.requests[exchange.request].clone(), body.is_empty())
            .map_err(|error| cause(&error))?;
        if !body.is_empty() {
            send.send_data(body.clone(), true).map_err(|error| cause(&error))?;
        }
        let response = response.await.map_err(|error| cause(&error))?;
        let status = response.status().as_u16();
        let mut content = response.into_body();
        let mut received = 0;
        while let Some(data) = content.data().await {
            let data = data.map_err(|error| cause(&error))?;
            received += data.len() as u64;
            content.flow_control().release_capacity(data.len()).map_err(|error| cause(&error))?;
        }
        content.trailers().await.map_err(|error| cause(&error))?;
        Ok(Answered { status: Some(status), sent: body.len() as u64, received })
    }
}

/// The head of a request, without connection-specific fields, which HTTP/2 forbids (RFC 9113 §8.2.2).
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

fn cause(error: &h2::Error) -> Cause {
    match error {
        error if error.is_reset() || error.is_io() => Cause::Reset,
        error if error.is_go_away() => Cause::Closed,
        _ => Cause::Protocol,
    }
}
