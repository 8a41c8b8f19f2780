//! The configuration, compiled: immutable, shared by all workers, replaced as a whole.

pub mod endpoint;
mod hashing;
mod listener;
pub(crate) mod persistence;
pub(crate) mod seats;

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_net::timer::NEVER;
use weir_net::tls::TlsConnector;
use weir_plugin::{HeldLimits, Identities, Plugin, Responder, RouteFacts, Stage};
use weir_proto::h1::{Limits, Tolerance};

use crate::context::lifecycle::WaitsFor;
use crate::route::StreamLookup;

pub use endpoint::{ActiveChecks, CheckIdentity, CheckKind, CheckRequest, CheckSpec, CheckTls, Endpoint};
pub use hashing::{HashKey, Hashing};
pub use listener::{ListenerProtocol, ListenerSettings, Transport};
pub use persistence::{Persistence, WhenEndpointGone};

pub use crate::certificates::{Admission, Certificate, Certificates, ChallengeCertificates, RequiredClientCertificate};
pub use crate::pieces::Pieces;
pub use crate::route::{
    ListenerConflict, ListenerRule, ListenerTable, RouteRule, RouteTable, StreamRule, StreamTables, TakenStream,
};

/// One configuration. An exchange uses the same snapshot from its first to its last byte.
pub struct Snapshot {
    pub revision: u64,
    pub clients: ClientSettings,
    /// Empty without listeners that have an id.
    pub listeners: ListenerTable,
    pub table: RouteTable,
    /// The routes of connections without HTTP.
    pub streams: StreamTables,
    /// Indexed by the `route` number of the rules of both tables. Unchanged routes share their pieces with the previous snapshot.
    pub routes: Pieces<Arc<Route>>,
    /// Indexed by the number in [`Target::Upstream`]; unchanged upstreams share their pieces, too.
    pub upstreams: Pieces<Arc<Upstream>>,
    /// The plugins for a request that matches no route: those of the global rules.
    pub unmatched: Chain,
    /// The server certificates for TLS.
    pub certificates: Certificates,
    /// Indexed by [`weir_plugin::Consumer::overlay`].
    pub overlays: Vec<ConsumerPlugins>,
    /// The consumers with their credentials. A snapshot with the same ones shares them.
    pub identities: Arc<Identities>,
    /// Names of query arguments whose values are secret on some route.
    pub secret_arguments: Vec<Arc<[u8]>>,
    /// The cost of plugins is measured on one exchange in this many; 0 measures none.
    pub price_every: u32,
}

impl Snapshot {
    /// The certificate that clients get who connect to `local`, the address of this end, and ask for a name in lower case.
    pub fn certificate_of(&self, local: Option<SocketAddr>, name: Option<&str>) -> Option<&Arc<Certificate>> {
        match self.listeners.is_empty() {
            true => self.certificates.find(name),
            false => {
                let listener = self.listeners.find(local?, name.unwrap_or_default().as_bytes())?;
                self.certificates.of_listener(listener.id.as_deref()).find(name)
            }
        }
    }

    /// What is asked of the stream routes about a connection to `local`, or a session of datagrams.
    pub fn stream_lookup<'a>(
        &'a self,
        transport: Transport,
        local: SocketAddr,
        client: IpAddr,
        server_name: Option<&'a str>,
    ) -> StreamLookup<'a> {
        let listener = match transport {
            Transport::Tcp => self.listeners.find(local, server_name.unwrap_or_default().as_bytes()),
            Transport::Udp => None,
        };
        StreamLookup { local, client, listener: listener.and_then(|found| found.id.as_deref()), server_name }
    }

    /// Starts what the plugins need beyond a request: threads, connections. Called once the snapshot is published; a plugin
    /// that another snapshot has started does nothing. Routes that are the same pieces in `before` are skipped.
    pub fn start_plugins(&self, before: Option<&Pieces<Arc<Route>>>) {
        let overlays = self.overlays.iter().map(|overlay| &overlay.chain);
        let none = Pieces::default();
        let new = self.routes.changes_from(before.unwrap_or(&none));
        let of_routes = new.into_iter().filter_map(|number| Some(&self.routes.get(number)?.chain));
        let chains = of_routes.chain([&self.unmatched]).chain(overlays);
        for link in chains.flat_map(|chain| &chain.start) {
            if let Err(error) = link.step.start() {
                tracing::error!("a plugin could not be started: {error}");
            }
        }
    }
}

/// How many of the node's connections one client address may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionShare {
    #[default]
    HalfOfRoom,
    AtMost(u32),
    Unlimited,
}

/// The settings for clients, on every listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    pub limits: Limits,
    /// The longest time from accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Largest request body in bytes; `None` is no limit.
    pub body_bytes: Option<u64>,
    /// The longest time from the first byte of a request head to its last.
    pub header_timeout: Duration,
    /// A body must bring this many bytes a second on average, once `body_grace` has passed.
    pub body_min_rate: u64,
    pub body_grace: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// The longest time from accept to the first byte of the first request.
    pub first_byte_timeout: Duration,
    /// How long a client may take no bytes that are sent to it.
    pub write_timeout: Duration,
    /// Requests served on one connection before it is closed; `None` is no limit.
    pub keepalive_requests: Option<u64>,
    /// Whether clients may use HTTP/2: by ALPN in TLS, and by prior knowledge without TLS (APISIX `enable_http2`).
    pub http2: bool,
    /// The most streams that a client may have open on one HTTP/2 connection (nginx `http2_max_concurrent_streams`).
    pub concurrent_streams: u32,
    /// How long an exchange goes on after its client has closed its sending side: some clients only half-close, others are
    /// gone.
    pub half_close_timeout: Duration,
    /// The gateway's name in the `Via` of forwarded messages; `None` adds no `Via`.
    pub via: Option<Box<str>>,
    /// The most connections of one client address.
    pub connections: ConnectionShare,
    /// The most bytes of content held in memory, for the whole node and for one client.
    pub held: HeldLimits,
    /// Peers whose `X-Forwarded-*`, `X-Real-IP`, `Forwarded` and PROXY headers are trusted.
    pub trusted_addresses: Vec<IpNet>,
    pub traced: TracedClients,
}

/// The clients whose connections over HTTP/3 are traced (qlog), and the directory for the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedClients {
    pub networks: Vec<IpNet>,
    pub directory: PathBuf,
}

impl ClientSettings {
    /// Whether a peer's forwarding fields are trusted.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_addresses.iter().any(|trusted| trusted.contains(&peer))
    }

    /// What a connection without an exchange waits for after `requests` requests, and for how long.
    pub fn idle_patience(&self, requests: u64) -> (WaitsFor, Duration) {
        match requests {
            0 => (WaitsFor::FirstByte, self.first_byte_timeout.min(self.idle_timeout)),
            _ => (WaitsFor::NextRequest, self.idle_timeout),
        }
    }

    /// The most connections that a client may have, of the `room` that the node has; `None` is no limit.
    pub fn connection_limit(&self, client: IpAddr, room: usize) -> Option<usize> {
        match self.connections {
            _ if self.trusts(client) => None,
            ConnectionShare::Unlimited => None,
            ConnectionShare::AtMost(most) => usize::try_from(most).ok(),
            // Local connections come from a balancer on this machine, or from an operator.
            ConnectionShare::HalfOfRoom if client.to_canonical().is_loopback() => None,
            ConnectionShare::HalfOfRoom => Some((room / 2).max(1)),
        }
    }

    /// When a body that has been read since `since_ns`, and has brought `content` bytes, falls below the minimum rate.
    pub fn body_deadline_ns(&self, since_ns: u64, content: u64) -> u64 {
        let earned_ns = match self.body_min_rate {
            0 => return NEVER,
            rate => u128::from(content) * 1_000_000_000 / u128::from(rate),
        };
        let ns = |ns: u128| u64::try_from(ns).unwrap_or(NEVER);
        since_ns.saturating_add(ns(self.body_grace.as_nanos())).saturating_add(ns(earned_ns))
    }
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            limits: Limits::default(),
            handshake_timeout: Duration::from_secs(10),
            body_bytes: None,
            header_timeout: Duration::from_secs(10),
            body_min_rate: 240,
            body_grace: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            first_byte_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            keepalive_requests: None,
            http2: true,
            concurrent_streams: 128,
            half_close_timeout: Duration::from_secs(1),
            via: None,
            connections: ConnectionShare::default(),
            held: HeldLimits::default(),
            trusted_addresses: Vec::new(),
            traced: TracedClients::default(),
        }
    }
}

/// One route, with everything inherited merged in.
pub struct Route {
    pub facts: RouteFacts,
    pub chain: Chain,
    pub target: Target,
    /// Replaces the upstream's if set (APISIX `route.timeout`).
    pub timeouts: Option<Timeouts>,
    /// The longest time of an exchange with an upstream, from the first byte of the request.
    pub request_timeout: Option<Duration>,
    /// Whether `Connection: upgrade` is forwarded. APISIX `enable_websocket`; allowed unless set to `false`.
    pub upgrades: bool,
    /// Whether `%2F` and `%5C` in the path are accepted; they are forwarded still encoded.
    pub encoded_separators: bool,
    /// Whether empty segments are removed from the path that is forwarded.
    pub merge_slashes: bool,
}

#[derive(Clone, Debug)]
pub enum Target {
    /// A number in [`Snapshot::upstreams`].
    Upstream(usize),
    /// Answers within this process, in place of an upstream.
    Responder(Arc<dyn Responder>),
    /// No upstream: a plugin answers, or the client gets a 503.
    Nothing,
}

/// A route's plugins, merged and in order, one list per phase.
#[derive(Clone, Default)]
pub struct Chain {
    pub request: Vec<Link>,
    pub request_body: Vec<Link>,
    pub response: Vec<Link>,
    pub response_body: Vec<Link>,
    pub messages: Vec<Link>,
    pub log: Vec<Link>,
    pub mask: Vec<Link>,
    /// Plugins that have something to start once the configuration is served.
    pub start: Vec<Link>,
    /// Whether a plugin of `request` reads the first bytes of a stream.
    pub reads_first_bytes: bool,
    /// How many plugins of `request` run before the consumer is known: all up to the last that can identify it.
    pub anonymous: usize,
}

/// A plugin in a chain.
#[derive(Clone)]
pub struct Link {
    pub step: Arc<dyn Plugin>,
    pub rank: Rank,
    /// The plugin's number in the registry.
    pub plugin: u16,
    pub name: &'static str,
    /// Whether it can identify the consumer.
    pub identifies: bool,
}

/// The running order of a plugin. Requests pass all plugins of a stage before the next stage; within a stage, global rules
/// come first, then the order is by priority. Responses and log records have no stages, and a few plugins come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub stage: Stage,
    pub reach: ChainReach,
    pub priority: Reverse<i32>,
    /// See [`Phases::first_in_responses`](weir_plugin::Phases::first_in_responses).
    pub first_in_responses: bool,
}

impl Rank {
    /// The order in responses and log records.
    pub fn in_responses(self) -> impl Ord {
        (!self.first_in_responses, self.reach, self.priority)
    }
}

/// Which requests a plugin applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChainReach {
    /// All requests: it is part of a global rule, and cannot be overridden.
    Global,
    /// The requests of a route or a consumer.
    Own,
}

impl Chain {
    /// Sorts plugins into their phases. Plugins of equal rank keep their order.
    pub fn new(mut links: Vec<Link>) -> Chain {
        let mut chain = Chain::default();
        links.sort_by_key(|link| link.rank);
        chain.request.extend(links.iter().filter(|link| link.step.phases().request).cloned());
        chain.request_body.extend(links.iter().filter(|link| link.step.phases().request_body).cloned());
        chain.messages.extend(links.iter().filter(|link| link.step.phases().messages).cloned());
        chain.anonymous = chain.request.iter().rposition(|link| link.identifies).map_or(0, |last| last + 1);
        chain.reads_first_bytes = chain.request.iter().any(|link| link.step.phases().first_bytes);
        links.sort_by_key(|link| link.rank.in_responses());
        chain.response.extend(links.iter().filter(|link| link.step.phases().response).cloned());
        chain.response_body.extend(links.iter().filter(|link| link.step.phases().response_body).cloned());
        chain.log.extend(links.iter().filter(|link| link.step.phases().log).cloned());
        chain.mask.extend(links.iter().filter(|link| link.step.phases().mask).cloned());
        chain.start.extend(links.into_iter().filter(|link| link.step.phases().start));
        chain
    }
}

/// What a consumer, or its group, adds to the chain of every route.
#[derive(Clone, Default)]
pub struct ConsumerPlugins {
    pub chain: Chain,
    /// The numbers of the plugins that the consumer configures or switches off. The route's configuration of these does not
    /// apply.
    pub overrides: Box<[u16]>,
}

/// A set of endpoints and how to use them.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The name in logs, metrics and `/status`: its id, or `route/1` if it is defined within a route.
    pub name: Box<str>,
    /// Highest priority first, then in the order of the file.
    pub endpoints: Vec<Endpoint>,
    pub balance: Balance,
    /// Session persistence, if it is configured.
    pub persistence: Option<Arc<Persistence>>,
    /// How long the share of an endpoint grows after it has come into rotation; `None` gives it its whole share at once.
    pub slow_start: Option<Duration>,
    pub timeouts: Timeouts,
    /// How long a stream may carry nothing.
    pub stream_idle_timeout: Duration,
    /// The same for a session of datagrams.
    pub session_idle_timeout: Duration,
    /// The most other endpoints that are tried after the first; APISIX: number of nodes less one.
    pub retries: u32,
    /// No retry starts later than this long after the first attempt.
    pub retry_timeout: Option<Duration>,
    /// The most retries, in percent of the requests.
    pub retry_budget: u32,
    /// Whether an idempotent request whose response has not begun within `timeouts.read` is sent to another endpoint.
    pub retry_read_timeouts: bool,
    /// The statuses of responses to idempotent requests after which another endpoint is tried.
    pub retry_statuses: Box<[u16]>,
    /// When every endpoint has been tried, a retry goes to one that has been tried before.
    pub retry_same_endpoint: bool,
    pub all_down: AllDownPolicy,
    /// Which violations are tolerated in the heads of its HTTP/1 responses.
    pub tolerance: Tolerance,
    /// Limits of the heads of its responses.
    pub response_limits: Limits,
    pub pass_host: PassHost,
    /// How TLS is used with its endpoints; `None` is without TLS.
    pub tls: Option<TlsConnector>,
    /// Only stream routes can use it (APISIX `scheme: tcp`, `tls` and `udp`), and what they carry to it.
    pub of_streams: Option<Transport>,
    /// Whether its endpoints are used over HTTP/2 (APISIX `scheme: grpc` and `grpcs`).
    pub http2: bool,
    /// Connections to its endpoints begin with a PROXY header of this version.
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    pub keepalive: Keepalive,
    pub passive: Arc<PassiveChecks>,
    pub concurrency: Concurrency,
    pub queue: Queue,
}

/// What happens to requests while every endpoint is out of rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllDownPolicy {
    /// All endpoints are tried as if they were in rotation, as in APISIX.
    #[default]
    Try,
    /// Requests are refused at once (503), except for those that try whether an endpoint has recovered.
    Refuse,
}

/// How the endpoint of an attempt is chosen (APISIX `type`).
#[derive(Clone, Debug, Default)]
pub enum Balance {
    #[default]
    RoundRobin,
    Random,
    /// The fewest exchanges in flight.
    LeastConn,
    /// The least mean latency, with the exchanges in flight taken into account.
    LeastTime,
    /// Of two endpoints the better one, by a latency that follows peaks.
    Ewma,
    /// Consistent hashing: `chash`, and `ip_hash` by the client's address.
    Hash(Arc<Hashing>),
}

impl Balance {
    /// Whether latencies have to be recorded.
    pub fn uses_latency(&self) -> bool {
        matches!(self, Balance::LeastTime | Balance::Ewma)
    }
}

/// The most exchanges that an endpoint should have in flight from one worker; further ones wait in the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// As few as keep its full throughput, determined by trials.
    #[default]
    Auto,
    Fixed(u32),
    Unlimited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    pub send: Duration,
    pub read: Duration,
}

impl Default for Timeouts {
    /// APISIX `upstream.timeout`: 60 s each.
    fn default() -> Timeouts {
        let minute = Duration::from_secs(60);
        Timeouts { connect: minute, send: minute, read: minute }
    }
}

/// The `Host` of requests to the upstream (APISIX `pass_host`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassHost {
    /// That of the client's request.
    Pass,
    /// The endpoint's own name.
    Node,
    Rewrite(Box<str>),
}

/// APISIX `keepalive_pool`, per worker and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    pub size: usize,
    pub idle_timeout: Duration,
    pub requests: u64,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive { size: 320, idle_timeout: Duration::from_secs(60), requests: 1000 }
    }
}

/// The size of the wait queue, per worker and endpoint. A shared queue has this size times the number of its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub size: usize,
    /// The longest wait; `None` is the connect time-out.
    pub timeout: Option<Duration>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { size: 16_384, timeout: None }
    }
}

/// APISIX `checks.passive`: an endpoint's health by the results of ordinary traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassiveChecks {
    /// The number of responses in a row with one of `healthy_statuses` that bring an endpoint back.
    pub healthy_successes: u32,
    pub healthy_statuses: Vec<u16>,
    pub unhealthy_statuses: Vec<u16>,
    /// The number of failures of each kind in a row that take an endpoint out of rotation; 0 never does.
    pub http_failures: u32,
    pub tcp_failures: u32,
    pub timeouts: u32,
    /// How long an endpoint stays out before ordinary traffic tries it again, if no active check brings it back.
    pub retry_after: Duration,
    /// An endpoint that is out stays out until active checks succeed; time alone does not bring it back.
    pub until_checked: bool,
}

impl PassiveChecks {
    /// `retry_after` unless it is configured.
    pub const RETRY_AFTER: Duration = Duration::from_secs(10);
}

impl Default for PassiveChecks {
    /// Without `checks`: an endpoint that cannot be reached three times in a row is taken out for ten seconds. The status
    /// of a response never counts as a failure unless it is configured so.
    fn default() -> PassiveChecks {
        PassiveChecks {
            healthy_successes: 1,
            healthy_statuses: (200..500).collect(),
            unhealthy_statuses: Vec::new(),
            http_failures: 0,
            tcp_failures: 3,
            timeouts: 3,
            retry_after: PassiveChecks::RETRY_AFTER,
            until_checked: false,
        }
    }
}
