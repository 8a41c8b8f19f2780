//! The plan of a run, as plain values. Nothing here opens a socket.

mod answers;
mod data;
mod form;
mod grpc;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

pub use self::answers::{AnswerCheck, StatusPattern, Take};
pub use self::data::{AtEnd, CsvData, CsvOrder, PlanData, PlanVariable};
pub use self::form::FormPart;
pub use self::grpc::GrpcCall;

/// One run of the load engine: what is sent, by how many clients, when, and until when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPlan {
    /// The requests to send, at least one; with several, [`LoadPlan::selection`] decides which is next.
    pub requests: Vec<RequestTemplate>,
    /// How a request is chosen when there are several.
    #[serde(default)]
    pub selection: Selection,
    /// Values for the requests.
    #[serde(default, skip_serializing_if = "PlanData::is_empty")]
    pub data: PlanData,
    /// Each client keeps the cookies that it gets, and sends them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cookies: bool,
    /// Measure the time to the first byte of answers as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_byte: bool,
    /// The run has failed if one of these conditions is true, in the words of `weir load --fail-if`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fail_if: Vec<String>,
    /// The protocol, and what counts as one exchange.
    #[serde(default)]
    pub protocol: Protocol,
    /// Clients: each holds one connection per origin and has at most one exchange in flight
    /// (HTTP/2, HTTP/3: `streams` exchanges).
    pub connections: usize,
    /// Threads the clients are spread over. One thread is one processor's worth of load.
    #[serde(default = "default_one")]
    pub threads: usize,
    /// When requests are due.
    #[serde(default)]
    pub pacing: Pacing,
    /// When the run ends. Warm-up does not count.
    pub stop: StopCondition,
    /// Duration of the load before the measurement; exchanges due in it are left out of the totals.
    #[serde(default)]
    pub warm_up_ms: u64,
    #[serde(default)]
    pub timeouts: LoadTimeouts,
    /// Keep connections open between requests. Otherwise each request opens and closes one.
    #[serde(default = "default_true")]
    pub keep_alive: bool,
    /// Local addresses that connections are bound to, in turn (each has about 28,000 ports for one destination). Empty:
    /// the kernel chooses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_addresses: Vec<IpAddr>,
    /// Connect to this `host:port` instead of that in the URLs; `Host` and SNI remain those of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_to: Option<String>,
    #[serde(default)]
    pub tls: ClientTls,
    /// Length of one interval of the result's time series.
    #[serde(default = "default_interval_ms")]
    pub interval_ms: u64,
    /// Processors the threads are pinned to, in turn. Empty: not pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<usize>,
    /// Open loop: the last part of the wait for a request is spent spinning, because a sleeping thread is woken tens of
    /// microseconds late. 0 never spins.
    #[serde(default = "default_spin_ns")]
    pub spin_ns: u64,
    /// Seed of all random choices (think times, Poisson arrivals, weighted choice): equal seeds give equal schedules.
    #[serde(default)]
    pub seed: u64,
}

/// A kind of request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestTemplate {
    /// Label of the request in results; the URL when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default = "default_method")]
    pub method: String,
    /// Absolute, `http://`, `https://`, `ws://` or `wss://`; without HTTP, `tcp://`, `tls://` or `udp://` with a port.
    pub url: String,
    /// Sent in this order. `Host`, `Content-Length`, and `Connection: close` where needed, are added unless given. A list of
    /// pairs, or a map.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "fields")]
    pub headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "RequestBody::is_empty")]
    pub body: RequestBody,
    /// A call of gRPC instead of a request of HTTP. The body is its message as JSON, or a list of messages if the client sends a
    /// stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcCall>,
    /// Share of this request among all under [`Selection::Weighted`].
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// The statuses that are a success. Empty: 100 to 399, for a call of gRPC 0 (OK). Responses with others are measured as well,
    /// and counted as `unexpected`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect_status: Vec<u16>,
    /// Checks of the answer. One that fails is counted; the answer stays in the figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub check: Vec<AnswerCheck>,
    /// Values of the answer for later requests of the same client, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub take: BTreeMap<String, Take>,
    /// The most redirects that are followed, within the origin of the URL. They are part of the exchange.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub follow_redirects: u32,
    /// The pause after this request, instead of that of the pacing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think: Option<Think>,
}

impl RequestTemplate {
    /// A GET of `url`.
    pub fn get(url: impl Into<String>) -> Self {
        Self {
            name: None,
            method: default_method(),
            url: url.into(),
            headers: Vec::new(),
            body: RequestBody::Empty,
            grpc: None,
            weight: 1,
            expect_status: Vec::new(),
            check: Vec::new(),
            take: BTreeMap::new(),
            follow_redirects: 0,
            think: None,
        }
    }

    /// Whether it says which statuses are a success.
    pub fn names_statuses(&self) -> bool {
        let checks_status = self.check.iter().any(|check| !check.status.is_empty());
        !self.expect_status.is_empty() || self.grpc.is_some() || checks_status
    }

    /// Whether its answers are looked at, or a redirect may lead to another request.
    fn is_step(&self) -> bool {
        !self.check.is_empty() || !self.take.is_empty() || self.follow_redirects > 0 || self.think.is_some()
    }

    /// The label under which results list this request.
    pub fn label(&self) -> &str {
        let call = self.grpc.as_ref().map(|grpc| grpc.call.as_str());
        self.name.as_deref().or(call).unwrap_or(&self.url)
    }
}

/// The body of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestBody {
    #[default]
    Empty,
    Text(String),
    /// Bytes in base64 (RFC 4648 §4).
    Base64(String),
    /// This many printable bytes.
    Sized(u64),
    /// The content of a file, read when the run starts.
    File(PathBuf),
    /// The parts of a form (RFC 7578). The field `Content-Type` is added.
    Multipart(Vec<FormPart>),
}

impl RequestBody {
    pub fn is_empty(&self) -> bool {
        matches!(self, RequestBody::Empty)
    }
}

/// How one of several requests is selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// At random, in proportion to the weights.
    #[default]
    Weighted,
    /// Each client sends the requests of the list in order, repeatedly, as in a thread group of JMeter.
    Sequence,
}

/// The protocol, and what counts as one exchange.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Protocol {
    /// HTTP/1.1, over TLS for `https://`. An exchange is a request and its response.
    #[default]
    Http1,
    /// HTTP/2: ALPN for `https://`, prior knowledge for `http://`.
    Http2 {
        /// Concurrent streams per connection.
        #[serde(default = "default_one")]
        streams: usize,
    },
    /// HTTP/3, for `https://` only.
    Http3 {
        /// Concurrent streams per connection.
        #[serde(default = "default_one")]
        streams: usize,
    },
    /// WebSocket. An exchange is a message and the answer to it; several may be in flight on one connection, answers
    /// are matched in order. Open pacing spreads messages over the connections in turn.
    WebSocket {
        /// Bytes per message.
        #[serde(default = "default_message_bytes")]
        message_bytes: usize,
        /// The expected answer.
        #[serde(default)]
        check: EchoCheck,
    },
    /// WebSocket connect storm: an exchange is connect, upgrade and close.
    WebSocketConnect,
    /// Server-sent events. An exchange is one event received; its latency is counted from the sender's timestamp (a
    /// field `t` of the data or the data itself: Unix time in ns), service time is the gap to the previous event.
    /// Pacing only ramps up the connections.
    ///
    /// With a second request in the plan, one more client publishes: it sends this request whenever one event of every
    /// connection is due by an open pacing, with `{number}` and `{time}` in its body replaced, and events without a time
    /// are not counted. Without it, the server must send events by itself.
    Sse,
    /// Connections that are opened and held until the end. An exchange is one connection opened.
    Idle {
        /// Send the first request once on each connection before it idles, so that the peer has certainly accepted it.
        #[serde(default = "default_true")]
        first_request: bool,
    },
    /// Bytes without a protocol over TCP, for `tls://` over TLS. An exchange is a message and the same bytes back. Without
    /// `keep_alive`, it includes a connection.
    Tcp {
        /// Bytes per message.
        #[serde(default = "default_message_bytes")]
        message_bytes: usize,
    },
    /// Datagrams. An exchange is one and the same back; one that gets lost is an error of cause `timeout`. Without
    /// `keep_alive`, each has a socket, and so a port, of its own.
    Udp {
        /// Bytes per datagram.
        #[serde(default = "default_message_bytes")]
        message_bytes: usize,
    },
    /// WebSub: `connections` subscribers of one topic, each with a callback of its own on one listener of the
    /// generator; intents are verified, deliveries checked (HMAC). An exchange is one delivery; its latency is counted
    /// from the moment the publisher was due to publish. Pacing is that of publications; one thread does it all. A
    /// publication is a POST of the payload to the hub, with `hub.mode=publish` and `hub.topic` in the query, or the
    /// plan's second request with the payload as its body.
    WebSub {
        /// Topic URL, as the hub knows it. The plan's first request is the hub.
        topic: String,
        /// Shared secret of the subscriptions (WebSub §5.1.1); absent: unsigned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
        /// Bytes of one published payload.
        #[serde(default = "default_message_bytes")]
        payload_bytes: usize,
    },
}

impl Protocol {
    /// Name as the command line and reports write it.
    pub fn name(&self) -> &'static str {
        match self {
            Protocol::Http1 => "http1",
            Protocol::Http2 { .. } => "http2",
            Protocol::Http3 { .. } => "http3",
            Protocol::WebSocket { .. } => "websocket",
            Protocol::WebSocketConnect => "websocket-connect",
            Protocol::Sse => "sse",
            Protocol::Idle { .. } => "idle",
            Protocol::Tcp { .. } => "tcp",
            Protocol::Udp { .. } => "udp",
            Protocol::WebSub { .. } => "websub",
        }
    }

    /// Whether an exchange is a request of HTTP and its response.
    pub fn is_http(&self) -> bool {
        matches!(self, Protocol::Http1 | Protocol::Http2 { .. } | Protocol::Http3 { .. })
    }

    /// The concurrent exchanges of a connection, where the plan sets them.
    pub fn streams(&self) -> Option<usize> {
        match self {
            Protocol::Http2 { streams } | Protocol::Http3 { streams } => Some(*streams),
            _ => None,
        }
    }
}

/// The expected answer to a WebSocket message; another answer is an error of cause `mismatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EchoCheck {
    /// The message itself.
    #[default]
    Same,
    /// The message's bytes in reverse order.
    Reversed,
    /// Any message.
    Any,
}

/// When requests are due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Pacing {
    /// Closed loop: each client sends its next request when the previous one has been answered and the think time is over.
    /// The target determines the rate.
    Closed {
        /// The pause of a client between a response and its next request.
        #[serde(default)]
        think: Think,
        /// The time over which the clients start, one after another, in milliseconds.
        #[serde(default)]
        ramp_up_ms: u64,
    },
    /// Open loop: requests are due at fixed times, whether or not earlier ones have been answered. A request that is due
    /// while every connection is busy waits, and its latency is measured from when it was due.
    Open {
        /// Requests per second.
        rate: Rate,
        /// How the requests are spaced.
        #[serde(default)]
        spacing: Spacing,
    },
    /// Open loop: requests are due at these times, in ascending order, measured from the start of the run (warm-up included).
    Replay {
        /// The times, in nanoseconds.
        at_ns: Vec<u64>,
    },
}

impl Default for Pacing {
    fn default() -> Self {
        Pacing::Closed { think: Think::None, ramp_up_ms: 0 }
    }
}

impl Pacing {
    /// Whether requests are due by the clock.
    pub fn is_open(&self) -> bool {
        !matches!(self, Pacing::Closed { .. })
    }
}

/// Pause of a closed-loop client between an answer and its next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Think {
    /// No pause.
    #[default]
    None,
    /// Always the same value.
    FixedMs(f64),
    /// Uniformly distributed between two values, in milliseconds.
    UniformMs {
        /// The shortest pause.
        from: f64,
        /// The longest pause.
        to: f64,
    },
    /// Exponentially distributed with this mean, in milliseconds.
    ExponentialMs(f64),
}

impl Think {
    /// The longest pause that a plan can ask for, in milliseconds: a day.
    const LONGEST_MS: f64 = 86_400_000.0;

    /// Checks the values; the error says what would be right.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_valid = |ms: f64| (0.0..=Self::LONGEST_MS).contains(&ms);
        let valid = match *self {
            Think::None => true,
            Think::FixedMs(ms) | Think::ExponentialMs(ms) => is_valid(ms),
            Think::UniformMs { from, to } => is_valid(from) && is_valid(to) && from <= to,
        };
        match valid {
            true => Ok(()),
            false => Err("must be a time in ms, from 0 to a day, and `from` at most `to`".to_owned()),
        }
    }
}

/// The rate of an open loop over time, in requests per second of all clients together. Time starts with the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// Always the same value.
    Constant(f64),
    /// Several rates one after another. The last one continues to the end.
    Steps(Vec<RateStep>),
    /// A linear change from one rate to another, which continues to the end.
    Ramp {
        /// The first rate.
        from: f64,
        /// The last rate.
        to: f64,
        /// The duration of the change, in milliseconds.
        over_ms: u64,
    },
}

/// A rate and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateStep {
    /// Requests per second.
    pub rate: f64,
    /// The duration, in milliseconds.
    pub for_ms: u64,
}

/// How requests are spaced at a given rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// Evenly: all intervals are equal.
    #[default]
    Even,
    /// Exponentially distributed intervals (Poisson arrivals), as from independent users.
    Poisson,
}

/// When a run ends: whichever comes first. At least one is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopCondition {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Requests due after warm-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl StopCondition {
    pub fn after_ms(duration_ms: u64) -> Self {
        Self { duration_ms: Some(duration_ms), count: None }
    }

    pub fn after_count(count: u64) -> Self {
        Self { duration_ms: None, count: Some(count) }
    }
}

/// The time-outs after which the generator counts an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadTimeouts {
    /// TCP connect, and TLS or upgrade handshake.
    pub connect_ms: u64,
    /// From sending a request to its complete response. Also the longest wait for responses after the end of a run.
    pub response_ms: u64,
}

impl Default for LoadTimeouts {
    fn default() -> Self {
        Self { connect_ms: 5_000, response_ms: 10_000 }
    }
}

/// How servers are authenticated. Load tests meet self-signed certificates more often than not: without `ca_file`,
/// none is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientTls {
    /// PEM file of the CA certificates to trust; if set, certificates are verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Name sent as SNI and verified, instead of the URL's host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// Resume TLS sessions on new connections. Without it, full handshakes are measured.
    pub resume: bool,
}

impl LoadPlan {
    /// The local address of a client, numbered over the whole run; `None` if the kernel chooses.
    pub fn source_address(&self, client: usize) -> Option<IpAddr> {
        let count = self.source_addresses.len();
        (count > 0).then(|| self.source_addresses[client % count])
    }

    /// Whether requests are made of data or depend on answers. The requests of all other plans are rendered once.
    pub fn is_flow(&self) -> bool {
        self.has_values() || self.cookies || self.first_byte || self.requests.iter().any(RequestTemplate::is_step)
    }

    /// Whether `${name}` has a meaning.
    pub fn has_values(&self) -> bool {
        !self.data.is_empty() || self.requests.iter().any(|request| !request.take.is_empty())
    }

    /// Whether the generator spins in place of sleeping until a request is due.
    pub fn spins(&self) -> bool {
        self.pacing.is_open() && self.spin_ns > 0
    }

    /// A closed loop of `connections` clients asking for `url` until `stop`, everything else at its default.
    pub fn closed(url: impl Into<String>, connections: usize, stop: StopCondition) -> Self {
        Self {
            requests: vec![RequestTemplate::get(url)],
            selection: Selection::Weighted,
            data: PlanData::default(),
            cookies: false,
            first_byte: false,
            fail_if: Vec::new(),
            protocol: Protocol::Http1,
            connections,
            threads: 1,
            pacing: Pacing::default(),
            stop,
            warm_up_ms: 0,
            timeouts: LoadTimeouts::default(),
            keep_alive: true,
            source_addresses: Vec::new(),
            connect_to: None,
            tls: ClientTls::default(),
            interval_ms: 1_000,
            cpus: Vec::new(),
            spin_ns: default_spin_ns(),
            seed: 0,
        }
    }

    /// An open loop of `rate` requests per second, evenly spaced, over at most `connections` connections.
    pub fn open(url: impl Into<String>, rate: f64, connections: usize, stop: StopCondition) -> Self {
        Self {
            pacing: Pacing::Open { rate: Rate::Constant(rate), spacing: Spacing::Even },
            ..Self::closed(url, connections, stop)
        }
    }
}

/// Why a plan cannot be run: the field, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct PlanError {
    /// The path of the field, such as `requests[0].url`.
    pub field: String,
    pub problem: String,
}

impl PlanError {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

/// Counts keyed by the status of HTTP, or by that of gRPC, which is below 100.
pub type Statuses = BTreeMap<u16, u64>;

/// Header fields, as a list of pairs or as a map.
fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    struct FieldsVisitor;
    impl<'de> Visitor<'de> for FieldsVisitor {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("header fields: a map, or a list of pairs")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut fields = Vec::new();
            while let Some(field) = items.next_element()? {
                fields.push(field);
            }
            Ok(fields)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut fields = Vec::new();
            while let Some(field) = items.next_entry()? {
                fields.push(field);
            }
            Ok(fields)
        }
    }
    deserializer.deserialize_any(FieldsVisitor)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn default_one() -> usize {
    1
}

fn default_weight() -> u32 {
    1
}

fn default_true() -> bool {
    true
}

fn default_method() -> String {
    "GET".to_owned()
}

fn default_interval_ms() -> u64 {
    1_000
}

fn default_spin_ns() -> u64 {
    50_000
}

fn default_message_bytes() -> usize {
    500
}
