//! APISIX `checks`: how the health of endpoints is told.

use std::net::SocketAddr;
use std::time::Duration;

use weir_gateway::snapshot::{ActiveChecks, CheckKind, CheckTls, PassiveChecks, Question};
use weir_net::tls;

use super::resource::host_pattern;
use crate::read::{At, Fields};

/// APISIX `checks.active`: requests of our own that ask an endpoint how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// What is the same for all nodes. Its question is a connection until [`Active::of_node`] puts in the request.
    checks: ActiveChecks,
    http: Option<Request>,
    /// The request goes over TLS.
    secured: bool,
    /// APISIX `https_verify_certificate`; the upstream's `tls.verify` if absent.
    verify: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    method: Box<str>,
    path: Box<str>,
    /// The `Host` to ask for; the node's own name if absent.
    host: Option<Box<str>>,
    /// As `Name: value`.
    headers: Vec<Box<str>>,
    body: Box<str>,
}

impl Active {
    /// Whether endpoints are asked over TLS, and have to prove who they are: `unless_said` counts where nothing is said.
    pub fn verifies(&self, unless_said: bool) -> Option<bool> {
        self.secured.then(|| self.verify.unwrap_or(unless_said))
    }

    /// The checks of a node, whose `Host` this is, where over TLS by `client`.
    pub fn of_node(&self, host: &str, addr: SocketAddr, client: Option<&tls::Client>) -> ActiveChecks {
        let mut checks = self.checks.clone();
        if let Some(Request { method, path, host: asked_for, headers, body }) = &self.http {
            let host = asked_for.as_deref().unwrap_or(host);
            checks.tls = client.map(|client| CheckTls::new(client.clone(), host, addr));
            let identity = checks.tls.as_ref().map(CheckTls::identity);
            checks.question.kind = CheckKind::http(method, path, host, headers, body, identity);
        }
        checks
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckType {
    Http,
    Https,
    Tcp,
}

const TYPES: &[(&str, CheckType)] = &[("http", CheckType::Http), ("https", CheckType::Https), ("tcp", CheckType::Tcp)];

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

/// An endpoint that failed is tried again after this time where nothing else brings it back.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Reads `checks`. Passive checks alone are fine here: an endpoint comes back by being tried again, while APISIX needs
/// active checks for that.
pub(super) fn read(at: &At) -> (Option<Active>, Option<PassiveChecks>) {
    let Some(fields) = at.fields(&["active", "passive"]) else { return (None, None) };
    if !fields.has("active") && !fields.has("passive") {
        at.report_advising("holds no check", "add `passive: {}`");
    }
    let active = fields.get("active").and_then(|at| active(&at));
    let passive = fields.get("passive").and_then(|at| passive(&at));
    (active, passive)
}

fn active(at: &At) -> Option<Active> {
    const KEYS: &[&str] = &[
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
        "healthy",
        "unhealthy",
    ];
    let fields = at.fields(KEYS)?;
    let healthy_at = fields.get("healthy");
    let healthy = healthy_at.as_ref().and_then(|at| at.fields(&["interval", "http_statuses", "successes"]));
    let unhealthy_at = fields.get("unhealthy");
    let unhealthy = unhealthy_at
        .as_ref()
        .and_then(|at| at.fields(&["interval", "http_statuses", "http_failures", "tcp_failures", "timeouts"]));
    let path = fields.get("http_path").and_then(|at| {
        let path = at.text()?;
        if !path.starts_with('/') {
            at.report_advising("every path begins with `/`", format!("try `/{path}`"));
        } else if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            at.report_advising("has characters that do not belong in a path", "percent-encode them");
        }
        Some(path)
    });
    let headers = fields.get("req_headers").map(|at| {
        at.texts(|item| {
            let header = item.text()?;
            let name = header.split_once(':').map(|(name, _)| name);
            let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            if !name.is_some_and(is_name) || header.contains(char::is_control) {
                item.report_advising("is no header", "write as `Name: value`");
            }
            Some(header.to_owned())
        })
    });
    let kind = kind(&fields);
    let verify = fields.get("https_verify_certificate").and_then(|at| at.boolean());
    let http = Request {
        method: fields.get("http_method").and_then(|at| at.choice(METHODS)).unwrap_or("GET").into(),
        path: path.unwrap_or("/").into(),
        host: fields.get("host").and_then(|at| host_pattern(&at)).map(Box::from),
        headers: headers.unwrap_or_default().into_iter().map(Box::from).collect(),
        body: fields.get("http_req_body").and_then(|at| at.text()).unwrap_or_default().into(),
    };
    let port = fields.get("port").and_then(|at| at.integer(1..=u16::MAX));
    let checks = ActiveChecks {
        question: Question { port, proxy_protocol: None, kind: CheckKind::Tcp },
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
    let http = (kind != CheckType::Tcp).then_some(http);
    Some(Active { checks, http, secured: kind == CheckType::Https, verify })
}

fn passive(at: &At) -> Option<PassiveChecks> {
    const HEALTHY: &[u16] =
        &[200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 306, 307, 308];
    let fields = at.fields(&["type", "healthy", "unhealthy"])?;
    kind(&fields);
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

fn kind(fields: &Fields) -> CheckType {
    fields.get("type").and_then(|at| at.choice(TYPES)).unwrap_or(CheckType::Http)
}

fn count(fields: Option<Fields>, key: &str, least: u32, most: u32, default: u32) -> u32 {
    fields.and_then(|fields| fields.get(key)).and_then(|at| at.integer(least..=most)).unwrap_or(default)
}

fn interval(fields: Option<Fields>) -> Duration {
    let at = fields.and_then(|fields| fields.get("interval"));
    at.and_then(|at| at.duration()).unwrap_or(Duration::from_secs(1))
}

fn statuses(fields: Option<Fields>, default: &[u16]) -> Vec<u16> {
    let Some(at) = fields.and_then(|fields| fields.get("http_statuses")) else { return default.to_vec() };
    let found: Vec<u16> = at.items().filter_map(|item| item.integer(200..=599)).collect();
    if at.is_list() && at.items().next().is_none() {
        at.report_advising("is empty", "leave the key out, or name a status");
    }
    found
}
