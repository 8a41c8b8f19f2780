//! The requests of clients, and when they are due.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Scenario, ScenarioRow};
use crate::engine::{AnswerCheck, GrpcCall, Pacing, PlanData, Rate, Take, check_pacing};

/// The load, unless a row sets its own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Load")]
pub struct LoadSettings {
    /// Use HTTPS between the clients and the target.
    pub tls: bool,
    /// Requests per second of all clients together, evenly spaced (open loop). Without a rate, the load is a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// When requests are due, with the keys of a plan for `weir load --plan`, instead of `rate`, `ramp_up_s` and `think_ms`.
    /// Rates are those of all clients together. Times start with the warm-up of a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pacing: Option<Pacing>,
    /// Closed loop: the clients start one after another, over this time within the warm-up, in seconds.
    pub ramp_up_s: f64,
    /// Closed loop: the pause of a client between a response and its next request, in milliseconds.
    pub think_ms: f64,
    /// Values for requests: `${name}` in a path, a header field or a body. Paths of files are relative to the working directory.
    #[serde(skip_serializing_if = "PlanData::is_empty")]
    pub data: PlanData,
    /// Clients keep the cookies that they get, and send them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cookies: bool,
    /// The run ends after this number of requests, or at the end of its time, whichever is first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Time-out of a request, in seconds.
    pub timeout_s: f64,
    /// The number of generator processes that share the clients, each with separate local addresses (127.0.1.1, 127.0.2.1…).
    /// For more idle connections than the file descriptors of one process or the ports of one address allow.
    #[serde(skip_serializing_if = "super::is_one")]
    pub processes: u32,
    /// Clients keep their connections open. With `false`, each request opens a connection, over TLS with a full handshake.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub keep_alive: bool,
}

impl Default for LoadSettings {
    fn default() -> Self {
        LoadSettings {
            tls: false,
            rate: None,
            pacing: None,
            ramp_up_s: 0.0,
            think_ms: 0.0,
            data: PlanData::default(),
            cookies: false,
            count: None,
            timeout_s: 30.0,
            processes: 1,
            keep_alive: true,
        }
    }
}

/// The protocol of the clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "protocol", rename_all = "snake_case", deny_unknown_fields)]
pub enum Speak {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2.
    Http2 {
        /// The number of concurrent streams on each connection.
        streams: usize,
    },
    /// HTTP/3. The row needs `tls`.
    Http3 {
        /// The number of concurrent streams on each connection.
        streams: usize,
    },
    /// WebSocket: each client sends messages, which are returned reversed.
    WebSocket {
        /// Size of a message.
        message_bytes: usize,
        /// Messages per second of each client.
        per_second: f64,
    },
    /// Server-sent events.
    Sse {
        /// Size of an event.
        event_bytes: usize,
        /// Events per second on each connection.
        per_second: f64,
    },
    /// WebSub: every client subscribes to the same topic, to which events are published.
    WebSub {
        /// Size of an event.
        payload_bytes: usize,
        /// Published events per second.
        per_second: f64,
    },
    /// Idle connections, which stay open.
    Idle,
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Request")]
pub struct RequestSpec {
    /// The name of the request in results, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The method.
    pub method: String,
    /// The path and query.
    pub path: String,
    /// The `Host`. Each client has a connection to the target for each host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Additional header fields.
    pub headers: BTreeMap<String, String>,
    /// The size of the body, in bytes.
    pub body_bytes: u64,
    /// The content of the body, instead of `body_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// A call of gRPC instead of a request of HTTP; `method` and `path` have no effect. `body` is its message as JSON, or a list of
    /// messages if the client sends a stream. Needs `speak` with HTTP/2, and through a gateway `backend: { http2: true }`. The
    /// backend returns each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcCall>,
    /// The weight of the request, if requests are selected at random.
    #[serde(skip_serializing_if = "super::is_one")]
    pub weight: u32,
    /// Statuses that count as success. Without them, 100 to 399 are a success, and statuses other than 2xx are reported as a
    /// finding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expect_status: Vec<u16>,
    /// Checks of the response. Responses that fail one are reported as a finding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub check: Vec<AnswerCheck>,
    /// Values of the response for later requests of the same client, by their names. Needs `selection: sequence`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub take: BTreeMap<String, Take>,
    /// The most redirects that are followed, within the target. They are part of the request.
    #[serde(skip_serializing_if = "is_zero")]
    pub follow_redirects: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Default for RequestSpec {
    fn default() -> Self {
        RequestSpec {
            name: None,
            method: "GET".to_owned(),
            path: "/get".to_owned(),
            host: None,
            headers: BTreeMap::new(),
            body_bytes: 0,
            body: None,
            grpc: None,
            weight: 1,
            expect_status: Vec::new(),
            check: Vec::new(),
            take: BTreeMap::new(),
            follow_redirects: 0,
        }
    }
}

impl Scenario {
    /// The pacing of a row, if it is given in the terms of the engine.
    pub fn pacing<'a>(&'a self, row: &'a ScenarioRow) -> Option<&'a Pacing> {
        // A rate of the row overrides the pacing of all rows, and vice versa.
        let of_all = || self.load.pacing.as_ref().filter(|_| row.rate.is_none() && row.rate_of.is_none());
        row.pacing.as_ref().or_else(of_all)
    }

    /// The requests per second, if that is a single number known in advance.
    pub fn rate(&self, row: &ScenarioRow) -> Option<f64> {
        match self.pacing(row) {
            Some(Pacing::Open { rate: Rate::Constant(rate), .. }) => Some(*rate),
            Some(_) => None,
            None => row.rate.or(self.load.rate),
        }
    }

    /// Whether the clients of a row wait for answers before their next request.
    pub fn is_closed(&self, row: &ScenarioRow) -> bool {
        self.pacing(row).map_or(self.rate(row).is_none() && row.rate_of.is_none(), |pacing| !pacing.is_open())
    }

    /// The errors in the requests and their pacing.
    pub(super) fn workload_problems(&self) -> Vec<String> {
        let mut problems = pacing_problems("load", self.load.pacing.as_ref(), self.method.slices);
        let LoadSettings { rate, ramp_up_s, think_ms, .. } = self.load;
        if self.load.pacing.is_some() && (rate.is_some() || ramp_up_s > 0.0 || think_ms > 0.0) {
            problems.push("load.pacing: replaces rate, ramp_up_s and think_ms; use either pacing or these".to_owned());
        }
        if !(1..=250).contains(&self.load.processes) {
            problems.push(format!("load.processes: {} is not between 1 and 250", self.load.processes));
        }
        if self.load.processes > 1 && self.rows.iter().any(|row| row.speak != Speak::Idle) {
            problems.push(
                "load.processes: more than one process is possible with idle connections only; leave it at 1"
                    .to_owned(),
            );
        }
        for (index, row) in self.rows.iter().enumerate() {
            let place = format!("rows[{index}]");
            problems.extend(pacing_problems(&place, row.pacing.as_ref(), self.method.slices));
            if row.pacing.is_some() && (row.rate.is_some() || row.rate_of.is_some()) {
                problems.push(format!("{place}.pacing: replaces rate and rate_of; use only one of them"));
            }
            if self.pacing(row).is_some() && !row.speak.asks() {
                problems.push(format!(
                    "{place}: pacing applies to requests only; other protocols use `per_second`, idle has no rate"
                ));
            }
            let kinds = std::iter::once(&row.request).chain(&row.requests);
            if !matches!(row.speak, Speak::Http2 { .. }) && kinds.clone().any(|request| request.grpc.is_some()) {
                problems.push(format!(
                    "{place}.speak: a call of gRPC needs HTTP/2; write speak: {{ protocol: http2, streams: 1 }}"
                ));
            }
            if row.requests.is_empty() {
                problems.extend(request_problems(&format!("{place}.request"), &row.request, self.tls(row)));
                continue;
            }
            if !row.speak.asks() {
                problems.push(format!("{place}.requests: apply to HTTP only; this protocol has a fixed path"));
            }
            if row.requests.iter().all(|request| request.weight == 0) {
                problems.push(format!("{place}.requests: at least one needs a weight above 0"));
            }
            for (step, request) in row.requests.iter().enumerate() {
                problems.extend(request_problems(&format!("{place}.requests[{step}]"), request, self.tls(row)));
            }
        }
        problems
    }
}

fn pacing_problems(place: &str, pacing: Option<&Pacing>, slices: u32) -> Vec<String> {
    let Some(pacing) = pacing else { return Vec::new() };
    let mut problems = Vec::new();
    if let Err(error) = check_pacing(pacing) {
        problems.push(format!("{place}.{error}"));
    }
    let changes =
        matches!(pacing, Pacing::Replay { .. } | Pacing::Open { rate: Rate::Steps(_) | Rate::Ramp { .. }, .. });
    if slices > 1 && changes {
        problems.push(format!(
            "{place}.pacing: changes during a run, and method.slices splits runs; leave method.slices at 1"
        ));
    }
    problems
}

fn request_problems(place: &str, request: &RequestSpec, tls: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let RequestSpec { method, path, host, expect_status, .. } = request;
    if !path.starts_with('/') {
        problems.push(format!("{place}.path: \"{path}\" does not start with /"));
    }
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-') {
        problems.push(format!("{place}.method: \"{method}\" is not a method; try GET"));
    }
    let (known, range) = match request.grpc {
        Some(_) => (0..17, "0 and 16, the statuses of gRPC"),
        None => (100..600, "100 and 599"),
    };
    if let Some(status) = expect_status.iter().find(|status| !known.contains(*status)) {
        problems.push(format!("{place}.expect_status: {status} is not between {range}"));
    }
    if request.grpc.is_some() && request.body_bytes > 0 {
        problems.push(format!(
            "{place}.body_bytes: must be left out: the message of a call of gRPC is its `body`, as JSON"
        ));
    }
    if tls && host.is_some() {
        problems.push(format!(
            "{place}.host: over TLS the host is always localhost, because the run's certificate is for localhost"
        ));
    }
    problems
}

impl Speak {
    /// Whether clients send requests that are answered one by one.
    pub fn asks(&self) -> bool {
        matches!(self, Speak::Http1) || self.streams().is_some()
    }

    /// The concurrent streams on each connection, if the protocol has streams.
    pub fn streams(&self) -> Option<usize> {
        match self {
            Speak::Http2 { streams } | Speak::Http3 { streams } => Some(*streams),
            _ => None,
        }
    }

    /// The messages or events per second that one client causes; `None` for requests.
    pub fn per_second(&self) -> Option<f64> {
        match self {
            Speak::WebSocket { per_second, .. } | Speak::Sse { per_second, .. } | Speak::WebSub { per_second, .. } => {
                Some(*per_second)
            }
            Speak::Http1 | Speak::Http2 { .. } | Speak::Http3 { .. } | Speak::Idle => None,
        }
    }
}
