//! APISIX `checks`: active and passive health checks of endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use weir_gateway::snapshot::{ActiveChecks, CheckKind, CheckRequest, CheckSpec, CheckTls, PassiveChecks};
use weir_net::tls;

use super::resource::host_pattern;
use super::scheme::Scheme;
use crate::text::read::{MapReader, NodeReader};

/// APISIX `checks.active`: requests that the gateway sends to endpoints to check their health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveChecksSpec {
    /// The settings common to all nodes. The question is a plain TCP connection until [`ActiveChecksSpec::of_node`] replaces it.
    checks: ActiveChecks,
    kind: CheckType,
    /// The HTTP request; an empty `host` stands for the node's own name.
    asked: CheckRequest,
    /// For gRPC: the name of the service to check.
    service: Box<str>,
    /// APISIX `https_verify_certificate`; the upstream's `tls.verify` if absent.
    verify: Option<bool>,
}

impl ActiveChecksSpec {
    /// Whether checks use TLS (`None`: no), and whether they verify certificates; `unless_said` applies if
    /// `https_verify_certificate` is absent.
    pub fn verifies(&self, unless_said: bool) -> Option<bool> {
        self.kind.is_secured().then(|| self.verify.unwrap_or(unless_said))
    }

    /// Whether checks use HTTP/2. A check over HTTP does if the traffic does and both, or neither, use TLS.
    pub fn is_http2(&self, traffic: Scheme, traffic_is_http2: bool) -> bool {
        match self.kind {
            CheckType::Grpc | CheckType::Grpcs => true,
            kind => traffic_is_http2 && kind.is_secured() == traffic.is_secured(),
        }
    }

    /// The checks of one node; `host` is its `Host` field, `client` the connector for checks over TLS.
    pub fn of_node(
        &self,
        host: &str,
        addr: SocketAddr,
        client: Option<&tls::TlsConnector>,
        http2: bool,
    ) -> ActiveChecks {
        let mut checks = self.checks.clone();
        let host = if self.asked.host.is_empty() { host } else { &self.asked.host };
        checks.tls = client.map(|client| CheckTls::new(client.clone(), host, addr));
        let tls = checks.tls.as_ref().map(CheckTls::identity);
        checks.question.kind = match self.kind {
            CheckType::Tcp => CheckKind::Tcp,
            CheckType::Http | CheckType::Https => {
                CheckKind::Http { asked: CheckRequest { host: host.into(), ..self.asked.clone() }, http2, tls }
            }
            CheckType::Grpc | CheckType::Grpcs => {
                CheckKind::Grpc { service: self.service.clone(), host: host.into(), tls }
            }
        };
        checks
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckType {
    Http,
    Https,
    Tcp,
    Grpc,
    Grpcs,
}

impl CheckType {
    fn is_secured(self) -> bool {
        matches!(self, CheckType::Https | CheckType::Grpcs)
    }

    fn is_grpc(self) -> bool {
        matches!(self, CheckType::Grpc | CheckType::Grpcs)
    }
}

/// The types of APISIX, and those of the gRPC health checking protocol.
const TYPES: &[(&str, CheckType)] = &[
    ("http", CheckType::Http),
    ("https", CheckType::Https),
    ("tcp", CheckType::Tcp),
    ("grpc", CheckType::Grpc),
    ("grpcs", CheckType::Grpcs),
];

/// The types that passive checks accept; the type has no effect there.
const PASSIVE_TYPES: &[(&str, CheckType)] = TYPES.split_at(3).0;

const METHODS: &[(&str, &str)] = &[
    ("GET", "GET"),
    ("POST", "POST"),
    ("PUT", "PUT"),
    ("DELETE", "DELETE"),
    ("PATCH", "PATCH"),
    ("HEAD", "HEAD"),
    ("OPTIONS", "OPTIONS"),
    ("CONNECT", "CONNECT"),
    ("TRACE", "TRACE"),
    ("PURGE", "PURGE"),
];

/// How long after a failure an endpoint without active checks is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Reads `checks`. Passive checks are allowed without active ones, which APISIX requires: here, an endpoint comes back by being
/// tried again.
pub(super) fn read(at: &NodeReader) -> (Option<ActiveChecksSpec>, Option<PassiveChecks>) {
    let Some(fields) = at.fields(&["active", "passive"]) else { return (None, None) };
    if !fields.has("active") && !fields.has("passive") {
        at.report_advising("contains no check", "add `passive: {}`");
    }
    let active = fields.get("active").and_then(|at| active(&at));
    let passive = fields.get("passive").and_then(|at| passive(&at));
    (active, passive)
}

const ACTIVE_KEYS: &[&str] = &[
    "type",
    "timeout",
    "concurrency",
    "host",
    "port",
    "http_method",
    "http_path",
    "http_req_body",
    "req_headers",
    "https_verify_certificate",
    "grpc_service",
    "healthy",
    "unhealthy",
];

fn active(at: &NodeReader) -> Option<ActiveChecksSpec> {
    let fields = at.fields(ACTIVE_KEYS)?;
    let healthy_at = fields.get("healthy");
    let healthy = healthy_at.as_ref().and_then(|at| at.fields(&["interval", "http_statuses", "successes"]));
    let unhealthy_at = fields.get("unhealthy");
    let unhealthy = unhealthy_at
        .as_ref()
        .and_then(|at| at.fields(&["interval", "http_statuses", "http_failures", "tcp_failures", "timeouts"]));
    let kind = fields.get("type").and_then(|at| at.choice(TYPES)).unwrap_or(CheckType::Http);
    fitting(&fields, [healthy, unhealthy], kind);
    let verify = fields.get("https_verify_certificate").and_then(|at| at.boolean());
    let port = fields.get("port").and_then(|at| at.integer(1..=u16::MAX));
    let checks = ActiveChecks {
        question: CheckSpec { port, proxy_protocol: None, kind: CheckKind::Tcp },
        tls: None,
        timeout: fields.get("timeout").and_then(|at| at.duration()).unwrap_or(Duration::from_secs(1)),
        concurrency: count(Some(fields), "concurrency", 1, 1_000, 10) as usize,
        healthy_interval: interval(healthy),
        healthy_statuses: statuses(healthy, &[200, 302]),
        healthy_successes: count(healthy, "successes", 1, 254, 2),
        unhealthy_interval: interval(unhealthy),
        unhealthy_statuses: statuses(unhealthy, &[429, 404, 500, 501, 502, 503, 504, 505]),
        http_failures: count(unhealthy, "http_failures", 1, 254, 5),
        tcp_failures: count(unhealthy, "tcp_failures", 1, 254, 2),
        timeouts: count(unhealthy, "timeouts", 1, 254, 3),
    };
    let service = fields.get("grpc_service").and_then(|at| at.text_of(1..=1_024)).unwrap_or_default().into();
    Some(ActiveChecksSpec { checks, kind, asked: asked(&fields), service, verify })
}

/// The request of an HTTP check.
fn asked(fields: &MapReader) -> CheckRequest {
    let path = fields.get("http_path").and_then(|at| {
        let path = at.text()?;
        if !path.starts_with('/') {
            at.report_advising("every path begins with `/`", format!("try `/{path}`"));
        } else if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            at.report_advising("has characters that are not allowed in a path", "percent-encode them");
        }
        Some(path)
    });
    let headers = fields.get("req_headers").map(|at| {
        at.texts(|item| {
            let header = item.text()?;
            let name = header.split_once(':').map(|(name, _)| name);
            let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            if !name.is_some_and(is_name) || header.contains(char::is_control) {
                item.report_advising("is not a header", "write as `Name: value`");
            }
            Some(header.to_owned())
        })
    });
    CheckRequest {
        method: fields.get("http_method").and_then(|at| at.choice(METHODS)).unwrap_or("GET").into(),
        path: path.unwrap_or("/").into(),
        host: fields.get("host").and_then(|at| host_pattern(&at)).unwrap_or_default().into(),
        headers: headers.unwrap_or_default().into_iter().map(Box::from).collect(),
        body: fields.get("http_req_body").and_then(|at| at.text()).unwrap_or_default().into(),
    }
}

/// Reports settings that have no effect in a check of this kind.
fn fitting(fields: &MapReader, verdicts: [Option<MapReader>; 2], kind: CheckType) {
    if !kind.is_grpc() {
        if let Some(at) = fields.get("grpc_service") {
            at.report_advising("has an effect in gRPC checks only", "add `type: grpc`, or leave it out");
        }
        return;
    }
    let requests = ["http_method", "http_path", "http_req_body", "req_headers"].map(|key| fields.get(key));
    let statuses = verdicts.map(|fields| fields.and_then(|fields| fields.get("http_statuses")));
    for at in requests.into_iter().chain(statuses).flatten() {
        at.report_advising("has no effect in a gRPC check", "leave it out");
    }
}

fn passive(at: &NodeReader) -> Option<PassiveChecks> {
    const HEALTHY: &[u16] =
        &[200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 306, 307, 308];
    let fields = at.fields(&["type", "healthy", "unhealthy"])?;
    fields.get("type").and_then(|at| at.choice(PASSIVE_TYPES));
    let healthy_at = fields.get("healthy");
    let healthy = healthy_at.as_ref().and_then(|at| at.fields(&["http_statuses", "successes"]));
    let unhealthy_at = fields.get("unhealthy");
    let unhealthy =
        unhealthy_at.as_ref().and_then(|at| at.fields(&["http_statuses", "http_failures", "tcp_failures", "timeouts"]));
    Some(PassiveChecks {
        healthy_successes: count(healthy, "successes", 0, 254, 5),
        healthy_statuses: statuses(healthy, HEALTHY),
        unhealthy_statuses: statuses(unhealthy, &[429, 500, 503]),
        http_failures: count(unhealthy, "http_failures", 0, 254, 5),
        tcp_failures: count(unhealthy, "tcp_failures", 0, 254, 2),
        timeouts: count(unhealthy, "timeouts", 0, 254, 7),
        retry_after: RETRY_AFTER,
        until_checked: false,
    })
}

fn count(fields: Option<MapReader>, key: &str, least: u32, most: u32, default: u32) -> u32 {
    fields.and_then(|fields| fields.get(key)).and_then(|at| at.integer(least..=most)).unwrap_or(default)
}

fn interval(fields: Option<MapReader>) -> Duration {
    let at = fields.and_then(|fields| fields.get("interval"));
    at.and_then(|at| at.duration()).unwrap_or(Duration::from_secs(1))
}

fn statuses(fields: Option<MapReader>, default: &[u16]) -> Vec<u16> {
    let Some(at) = fields.and_then(|fields| fields.get("http_statuses")) else { return default.to_vec() };
    let found: Vec<u16> = at.items().filter_map(|item| item.integer(200..=599)).collect();
    if at.is_list() && at.items().next().is_none() {
        at.report_advising("is empty", "leave the key out, or add a status code");
    }
    found
}
