//! What was asked for, compiled: immutable, shared by all workers, replaced as a whole.

pub mod endpoint;

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_net::timer::NEVER;
use weir_net::tls::TlsConnector;
use weir_plugin::{HeldLimits, Plugin, Responder, RouteFacts, Stage};
use weir_proto::h1::{Limits, Tolerance};

use crate::context::lifecycle::WaitsFor;

pub use endpoint::{ActiveChecks, CheckIdentity, CheckKind, CheckRequest, CheckTls, Endpoint, Question};

pub use crate::certificates::{Certificate, Certificates, ChallengeCertificates, RequiredClientCertificate};
pub use crate::endpoint::balance::chash::{HashKey, Hashing};
pub use crate::endpoint::persistence::{Persistence, WhenGone};
pub use crate::pieces::Pieces;
pub use crate::route::{RouteRule, RouteTable};

/// One configuration. An exchange sees one and the same from its first to its last byte.
pub struct Snapshot {
    pub revision: u64,
    pub clients: ClientSettings,
    pub table: RouteTable,
    /// By the `route` number of the table's rules. What did not change is the same piece as in the snapshot before.
    pub routes: Pieces<Arc<Route>>,
    /// By the number of [`Target::Upstream`]; the same holds for these.
    pub upstreams: Pieces<Arc<Upstream>>,
    /// What runs for a request that matches no route: the global rules.
    pub unmatched: Chain,
    /// Who we are to clients that speak TLS.
    pub certificates: Certificates,
    /// Indexed by [`weir_plugin::Consumer::overlay`].
    pub overlays: Vec<Overlay>,
    /// Names of query arguments that are secrets on some route.
    pub secret_arguments: Vec<Arc<[u8]>>,
    /// What plugins cost is measured on one exchange in so many; 0 is none.
    pub price_every: u32,
}

impl Snapshot {
    /// Starts what its plugins need beyond a request: threads, connections. To be called once it is published; a plugin
    /// that another snapshot has started already does nothing. Routes that were there `before`, as the same pieces, have been
    /// seen to already.
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

/// How clients are treated, on every listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    pub limits: Limits,
    /// From accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Largest request body in bytes; `None` is no limit.
    pub body_bytes: Option<u64>,
    /// From the first byte of a request head to its last.
    pub header_timeout: Duration,
    /// A body must bring this many bytes a second on average, once `body_grace` has passed.
    pub body_min_rate: u64,
    pub body_grace: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// From accepting a connection to the first byte of its first request.
    pub first_byte_timeout: Duration,
    /// How long a client may leave our bytes untaken.
    pub write_timeout: Duration,
    /// Requests served on one connection before it is closed; `None` is no limit.
    pub keepalive_requests: Option<u64>,
    /// Clients may speak HTTP/2: agreed upon in TLS, and by prior knowledge in the clear (APISIX `enable_http2`).
    pub http2: bool,
    /// Requests a client may have in progress on one connection of HTTP/2 (nginx `http2_max_concurrent_streams`).
    pub concurrent_streams: u32,
    /// How long the exchange goes on after a client has closed its sending side, for those that only half-close.
    pub half_close_timeout: Duration,
    /// What we call ourselves in the `Via` of messages that are passed on, if they are to have one.
    pub via: Option<Box<str>>,
    /// Connections that one client address may have.
    pub connections: ConnectionShare,
    /// Content held in memory, for the whole node and for one client.
    pub held: HeldLimits,
    /// Peers whose `X-Forwarded-*`, `X-Real-IP`, `Forwarded` and PROXY headers are believed.
    pub trusted_addresses: Vec<IpNet>,
}

impl ClientSettings {
    /// Whether what a peer says about others is believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_addresses.iter().any(|trusted| trusted.contains(&peer))
    }

    /// What a connection without an exchange waits for after so many requests, and how long.
    pub fn idle_patience(&self, requests: u64) -> (WaitsFor, Duration) {
        match requests {
            0 => (WaitsFor::FirstByte, self.first_byte_timeout.min(self.idle_timeout)),
            _ => (WaitsFor::NextRequest, self.idle_timeout),
        }
    }

    /// How many connections a client may have, of those that the node has room for; `None` is no limit.
    pub fn most_connections(&self, client: IpAddr, room: usize) -> Option<usize> {
        match self.connections {
            _ if self.trusts(client) => None,
            ConnectionShare::Unlimited => None,
            ConnectionShare::AtMost(most) => usize::try_from(most).ok(),
            // What connects from this machine is a balancer, or an operator's own.
            ConnectionShare::HalfOfRoom if client.to_canonical().is_loopback() => None,
            ConnectionShare::HalfOfRoom => Some((room / 2).max(1)),
        }
    }

    /// When a body will have come too slowly on average, which has been read since `since_ns` and has brought so much.
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
        }
    }
}

/// One route, with everything inherited and merged.
pub struct Route {
    pub facts: RouteFacts,
    pub chain: Chain,
    pub target: Target,
    /// `Some` replaces the upstream's (APISIX `route.timeout`).
    pub timeouts: Option<Timeouts>,
    /// `Connection: upgrade` is forwarded. APISIX `enable_websocket`; allowed unless set to `false`.
    pub upgrades: bool,
    /// `%2F` and `%5C` in the path are let through, still encoded.
    pub encoded_separators: bool,
}

#[derive(Clone, Debug)]
pub enum Target {
    /// A number in [`Snapshot::upstreams`].
    Upstream(usize),
    /// What answers in this process, as an upstream would.
    Responder(Arc<dyn Responder>),
    /// Nothing to send to: a plugin answers, or the client gets 503.
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
    /// Those with something to do once the configuration serves.
    pub start: Vec<Link>,
    /// How many of `request` run before it is clear who the consumer is: up to the last that may find out.
    pub anonymous: usize,
}

/// A plugin in a chain.
#[derive(Clone)]
pub struct Link {
    pub step: Arc<dyn Plugin>,
    pub rank: Rank,
    /// Which plugin it is, by its number in the registry.
    pub plugin: u16,
    pub name: &'static str,
    /// It may find out which consumer somebody is.
    pub identifies: bool,
}

/// When a plugin has its turn. Requests pass all of a stage before the next, in each global rules before everything
/// else, and then by priority; responses and the log know no stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub stage: Stage,
    pub reach: Reach,
    pub priority: Reverse<i32>,
}

/// For whose requests a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Everybody's: it stands in a global rule, and nothing overrides it.
    Global,
    /// Those of a route or a consumer.
    Own,
}

impl Chain {
    /// Sorts plugins into the phases they want. Those of one rank keep their order.
    pub fn new(mut links: Vec<Link>) -> Chain {
        let mut chain = Chain::default();
        links.sort_by_key(|link| link.rank);
        chain.request.extend(links.iter().filter(|link| link.step.phases().request).cloned());
        chain.request_body.extend(links.iter().filter(|link| link.step.phases().request_body).cloned());
        chain.messages.extend(links.iter().filter(|link| link.step.phases().messages).cloned());
        chain.anonymous = chain.request.iter().rposition(|link| link.identifies).map_or(0, |last| last + 1);
        links.sort_by_key(|link| (link.rank.reach, link.rank.priority));
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
pub struct Overlay {
    pub chain: Chain,
    /// Plugins by number that the consumer says something about, be it that they are off. What a route says about them
    /// does not count.
    pub overrides: Box<[u16]>,
}

/// A set of endpoints and how to use them.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// What it is called in logs, metrics and `/status`: its id, or `route/1` when it stands inline.
    pub name: Box<str>,
    /// Highest priority first, then in the order of the file.
    pub endpoints: Vec<Endpoint>,
    pub balance: Balance,
    /// How clients stay with their endpoint, if they do.
    pub persistence: Option<Arc<Persistence>>,
    /// How long the share of an endpoint grows after it has come into rotation; `None` gives it all at once.
    pub slow_start: Option<Duration>,
    pub timeouts: Timeouts,
    /// Further endpoints tried after the first; APISIX: number of nodes less one.
    pub retries: u32,
    /// No retry starts later than this after the first attempt.
    pub retry_timeout: Option<Duration>,
    /// Retries that requests may cause, in percent of the requests.
    pub retry_budget: u32,
    /// An idempotent request whose answer has not begun within `timeouts.read` is sent to another endpoint.
    pub retry_read_timeouts: bool,
    pub all_down: AllDownPolicy,
    /// What is forgiven in heads of its responses in HTTP/1.
    pub tolerance: Tolerance,
    pub pass_host: PassHost,
    /// How its endpoints are spoken to in TLS; `None` is in the clear.
    pub tls: Option<TlsConnector>,
    /// Its endpoints are spoken to in HTTP/2 (APISIX `scheme: grpc` and `grpcs`).
    pub http2: bool,
    /// Its endpoints are told who the client is before anything else.
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    pub keepalive: Keepalive,
    pub passive: Arc<PassiveChecks>,
    pub concurrency: Concurrency,
    pub queue: Queue,
}

/// What happens while every endpoint is out of rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllDownPolicy {
    /// All are tried as if none were, as in APISIX.
    #[default]
    Try,
    /// Requests are refused at once (503), but for those that find out who has recovered.
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
    /// The shortest time to an answer, on average.
    LeastTime,
    /// The better of two, by a latency that follows peaks.
    Ewma,
    /// Consistent hashing: `chash`, and `ip_hash` by the client's address.
    Hash(Arc<Hashing>),
}

impl Balance {
    /// Whether times to answers have to be remembered.
    pub fn goes_by_latency(&self) -> bool {
        matches!(self, Balance::LeastTime | Balance::Ewma)
    }
}

/// How many requests an endpoint may have in flight from one worker; further ones wait in the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// As few as keep its full throughput, found by trying.
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

/// What stands in `Host` upstream (APISIX `pass_host`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassHost {
    /// The client's.
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

/// Who may wait for a place, per worker and endpoint; where turns decide, so many for each endpoint wait together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub size: usize,
    /// Absent: as long as for a connection.
    pub timeout: Option<Duration>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { size: 16_384, timeout: None }
    }
}

/// APISIX `checks.passive`: what ordinary traffic says about an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassiveChecks {
    /// So many answers with a status of `healthy_statuses` in a row bring an endpoint back.
    pub healthy_successes: u32,
    pub healthy_statuses: Vec<u16>,
    pub unhealthy_statuses: Vec<u16>,
    /// Failures in a row that take an endpoint out; 0 never does.
    pub http_failures: u32,
    pub tcp_failures: u32,
    pub timeouts: u32,
    /// How long an endpoint stays out before ordinary traffic tries it again, where no active check brings it back.
    pub retry_after: Duration,
    /// Active checks bring it back, and time alone does not.
    pub until_checked: bool,
}

impl Default for PassiveChecks {
    /// Without `checks`: endpoints that cannot be reached three times in a row rest for ten seconds. Answers are never
    /// held against an endpoint unless the configuration says so.
    fn default() -> PassiveChecks {
        PassiveChecks {
            healthy_successes: 1,
            healthy_statuses: (200..500).collect(),
            unhealthy_statuses: Vec::new(),
            http_failures: 0,
            tcp_failures: 3,
            timeouts: 3,
            retry_after: Duration::from_secs(10),
            until_checked: false,
        }
    }
}
