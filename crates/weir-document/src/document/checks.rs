//! APISIX `checks`: active and passive health checks of endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use weir_gateway::snapshot::{ActiveChecks, CheckKind, CheckRequest, CheckSpec, CheckTls, PassiveChecks};
use weir_net::tls;

use super::methods::METHODS;
use super::resource::host;
use super::scheme::Scheme;
use crate::keys;
use crate::keys::kinds::{
    DistinctList, Flag, List, Or, ParsedText, SubMap, Text, Time, Whole, Words, any_text, flag, list, section, set,
    text, time, whole, words,
};
use crate::text::read::{KeyName, MapReader, NodeReader};

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

keys! {
    /// Health checks of the endpoints of an upstream.
    pub(super) static CHECKS: ChecksKeys = "checks";

    /// Requests that Weir sends to endpoints.
    active: SubMap<ActiveChecksSpec> = section(&ACTIVE, active);
    /// The results of ordinary traffic. Without active checks, an endpoint that was taken out is tried again after a pause.
    passive: SubMap<PassiveChecks> = section(&PASSIVE, passive);
}

keys! {
    /// Requests that the gateway sends to endpoints to check their health.
    static ACTIVE: ActiveKeys = "active_checks";

    /// The protocol of the check; for `tcp`, a connection is enough. `grpc` and `grpcs` call the health service of gRPC, which APISIX does
    /// not.
    r#type: Or<Words<CheckType>> = words(TYPES).or(CheckType::Http);
    /// The longest time that a check takes.
    timeout: Or<Time> = time().or(Duration::from_secs(1));
    /// The most endpoints of the upstream that are checked at the same time.
    concurrency: Or<Whole<u32>> = whole(1, 1_000).or(10);
    /// The `Host` of the request.
    host: ParsedText<String> = host(), absent("the name of the node"), example("api.example.com");
    /// The port to check.
    port: Whole<u16> = whole(1, 65_535), absent("that of the node");
    /// The method of the request.
    http_method: Or<Words<&'static str>> = words(METHODS).or("GET"), own();
    /// The path of the request.
    http_path: ParsedText<Box<str>> = any_text().pattern("^/").parsed(path), absent("`/`"), example("/health");
    /// The content of the request.
    http_req_body: Or<Text> = any_text().or(""), own();
    /// Header fields of the request.
    req_headers: DistinctList<ParsedText<Box<str>>> = set(any_text().pattern("^[^:]+:").parsed(header)), example("[\"X-Check: weir\"]");
    /// Whether the certificate of an endpoint is verified.
    https_verify_certificate: Flag = flag(), absent("as `tls.verify` says");
    /// The service of the endpoint whose health is asked for.
    grpc_service: Text = text(1, 1_024), own(), only_if("type", &["grpc", "grpcs"]), absent("the server as a whole"),
        example("orders.v1.Orders");
    /// When an endpoint that is out of rotation returns.
    healthy: SubMap<HealthySpec> = section(&ACTIVE_HEALTHY, active_healthy);
    /// When an endpoint is taken out of rotation.
    unhealthy: SubMap<UnhealthySpec> = section(&ACTIVE_UNHEALTHY, active_unhealthy);
}

keys! {
    /// When active checks return an endpoint to rotation.
    static ACTIVE_HEALTHY: ActiveHealthyKeys = "active_healthy";

    /// The time from one check to the next while the endpoint is in rotation.
    interval: Or<Time> = time().or(INTERVAL);
    /// The statuses that count as a success.
    http_statuses: Or<List<Whole<u16>>> = STATUSES.or(&[200, 302]);
    /// The successes in a row after which it returns.
    successes: Or<Whole<u32>> = whole(1, 254).or(2);
}

keys! {
    /// When active checks take an endpoint out of rotation.
    static ACTIVE_UNHEALTHY: ActiveUnhealthyKeys = "active_unhealthy";

    /// The time from one check to the next while the endpoint is out of rotation.
    interval: Or<Time> = time().or(INTERVAL);
    /// The statuses that count as a failure.
    http_statuses: Or<List<Whole<u16>>> = STATUSES.or(&[429, 404, 500, 501, 502, 503, 504, 505]);
    /// The failures in a row by status after which it is taken out.
    http_failures: Or<Whole<u32>> = whole(1, 254).or(5);
    /// The failed connections in a row after which it is taken out.
    tcp_failures: Or<Whole<u32>> = whole(1, 254).or(2);
    /// The time-outs in a row after which it is taken out.
    timeouts: Or<Whole<u32>> = whole(1, 254).or(3);
}

keys! {
    /// What the results of ordinary traffic say of the health of endpoints.
    static PASSIVE: PassiveKeys = "passive_checks";

    /// Without effect; APISIX requires it.
    r#type: Words<CheckType> = words(PASSIVE_TYPES);
    /// When an endpoint that is out of rotation returns.
    healthy: SubMap<HealthySpec> = section(&PASSIVE_HEALTHY, passive_healthy);
    /// When an endpoint is taken out of rotation.
    unhealthy: SubMap<UnhealthySpec> = section(&PASSIVE_UNHEALTHY, passive_unhealthy);
}

keys! {
    /// When the results of traffic return an endpoint to rotation.
    static PASSIVE_HEALTHY: PassiveHealthyKeys = "passive_healthy";

    /// The statuses that count as a success.
    http_statuses: Or<List<Whole<u16>>> = STATUSES.or(HEALTHY);
    /// The successes in a row after which it returns.
    successes: Or<Whole<u32>> = whole(0, 254).or(5);
}

keys! {
    /// When the results of traffic take an endpoint out of rotation. A count of 0 is never reached.
    static PASSIVE_UNHEALTHY: PassiveUnhealthyKeys = "passive_unhealthy";

    /// The pause of an endpoint that was taken out, after which it is tried again. With active checks it is without effect, as they
    /// return the endpoint.
    interval: Or<Time> = time().or(PassiveChecks::RETRY_AFTER), own();
    /// The statuses that count as a failure.
    http_statuses: Or<List<Whole<u16>>> = STATUSES.or(&[429, 500, 503]);
    /// The failures in a row by status after which it is taken out.
    http_failures: Or<Whole<u32>> = whole(0, 254).or(5);
    /// The failed connections in a row after which it is taken out.
    tcp_failures: Or<Whole<u32>> = whole(0, 254).or(2);
    /// The time-outs in a row after which it is taken out.
    timeouts: Or<Whole<u32>> = whole(0, 254).or(7);
}

const INTERVAL: Duration = Duration::from_secs(1);
const HEALTHY: &[u16] =
    &[200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 306, 307, 308];
const STATUSES: List<Whole<u16>> = list(whole(200, 599)).not_empty("leave the key out, or add a status code");

/// Both kinds of checks.
#[derive(Default)]
pub(super) struct ReadChecks {
    pub(super) active: Option<ActiveChecksSpec>,
    pub(super) passive: Option<PassiveChecks>,
}

/// Passive checks are allowed without active ones, which APISIX requires: here, an endpoint comes back by being tried again.
pub(super) fn read(fields: &MapReader) -> Option<ReadChecks> {
    if !fields.has(&CHECKS.active) && !fields.has(&CHECKS.passive) {
        fields.at().report_advising("contains no check", "add `passive: {}`");
    }
    Some(ReadChecks { active: fields.read(&CHECKS.active), passive: fields.read(&CHECKS.passive) })
}

/// `healthy` of either kind of checks.
struct HealthySpec {
    interval: Duration,
    statuses: Vec<u16>,
    successes: u32,
}

/// `unhealthy` of either kind of checks.
struct UnhealthySpec {
    interval: Duration,
    statuses: Vec<u16>,
    http_failures: u32,
    tcp_failures: u32,
    timeouts: u32,
}

fn active(fields: &MapReader) -> Option<ActiveChecksSpec> {
    let kind = fields.value(&ACTIVE.r#type);
    fitting(fields, kind);
    let (healthy, unhealthy) = (fields.section(&ACTIVE.healthy)?, fields.section(&ACTIVE.unhealthy)?);
    let checks = ActiveChecks {
        question: CheckSpec { port: fields.read(&ACTIVE.port), proxy_protocol: None, kind: CheckKind::Tcp },
        tls: None,
        timeout: fields.value(&ACTIVE.timeout),
        concurrency: fields.value(&ACTIVE.concurrency) as usize,
        healthy_interval: healthy.interval,
        healthy_statuses: healthy.statuses,
        healthy_successes: healthy.successes,
        unhealthy_interval: unhealthy.interval,
        unhealthy_statuses: unhealthy.statuses,
        http_failures: unhealthy.http_failures,
        tcp_failures: unhealthy.tcp_failures,
        timeouts: unhealthy.timeouts,
    };
    let verify = fields.read(&ACTIVE.https_verify_certificate);
    let service = fields.read(&ACTIVE.grpc_service).unwrap_or_default();
    Some(ActiveChecksSpec { checks, kind, asked: asked(fields), service, verify })
}

fn active_healthy(fields: &MapReader) -> Option<HealthySpec> {
    Some(HealthySpec {
        interval: fields.value(&ACTIVE_HEALTHY.interval),
        statuses: fields.value(&ACTIVE_HEALTHY.http_statuses),
        successes: fields.value(&ACTIVE_HEALTHY.successes),
    })
}

fn active_unhealthy(fields: &MapReader) -> Option<UnhealthySpec> {
    Some(UnhealthySpec {
        interval: fields.value(&ACTIVE_UNHEALTHY.interval),
        statuses: fields.value(&ACTIVE_UNHEALTHY.http_statuses),
        http_failures: fields.value(&ACTIVE_UNHEALTHY.http_failures),
        tcp_failures: fields.value(&ACTIVE_UNHEALTHY.tcp_failures),
        timeouts: fields.value(&ACTIVE_UNHEALTHY.timeouts),
    })
}

/// The request of an HTTP check.
fn asked(fields: &MapReader) -> CheckRequest {
    CheckRequest {
        method: fields.value(&ACTIVE.http_method).into(),
        path: fields.read(&ACTIVE.http_path).unwrap_or_else(|| "/".into()),
        host: fields.read(&ACTIVE.host).unwrap_or_default().into(),
        headers: fields.read(&ACTIVE.req_headers).unwrap_or_default().into(),
        body: fields.value(&ACTIVE.http_req_body),
    }
}

fn path(at: &NodeReader, path: &str) -> Option<Box<str>> {
    if !path.starts_with('/') {
        at.report_advising("every path begins with `/`", format!("try `/{path}`"));
    } else if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        at.report_advising("has characters that are not allowed in a path", "percent-encode them");
    }
    Some(path.into())
}

fn header(at: &NodeReader, header: &str) -> Option<Box<str>> {
    let name = header.split_once(':').map(|(name, _)| name);
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    if !name.is_some_and(is_name) || header.contains(char::is_control) {
        at.report_advising("is not a header", "write as `Name: value`");
    }
    Some(header.into())
}

/// Reports settings that have no effect in a gRPC check.
fn fitting(fields: &MapReader, kind: CheckType) {
    if !kind.is_grpc() {
        return;
    }
    let report = |at: &NodeReader| at.report_advising("has no effect in a gRPC check", "leave it out");
    let request = [
        fields.get(&ACTIVE.http_method),
        fields.get(&ACTIVE.http_path),
        fields.get(&ACTIVE.http_req_body),
        fields.get(&ACTIVE.req_headers),
    ];
    request.iter().flatten().for_each(report);
    for verdict in [fields.get(&ACTIVE.healthy), fields.get(&ACTIVE.unhealthy)].iter().flatten() {
        if let Some(entry) = verdict.node().entry(ACTIVE_HEALTHY.http_statuses.name()) {
            report(&verdict.below(entry));
        }
    }
}

fn passive(fields: &MapReader) -> Option<PassiveChecks> {
    fields.read(&PASSIVE.r#type);
    let (healthy, unhealthy) = (fields.section(&PASSIVE.healthy)?, fields.section(&PASSIVE.unhealthy)?);
    Some(PassiveChecks {
        healthy_successes: healthy.successes,
        healthy_statuses: healthy.statuses,
        unhealthy_statuses: unhealthy.statuses,
        http_failures: unhealthy.http_failures,
        tcp_failures: unhealthy.tcp_failures,
        timeouts: unhealthy.timeouts,
        retry_after: unhealthy.interval,
        until_checked: false,
    })
}

fn passive_healthy(fields: &MapReader) -> Option<HealthySpec> {
    Some(HealthySpec {
        interval: INTERVAL,
        statuses: fields.value(&PASSIVE_HEALTHY.http_statuses),
        successes: fields.value(&PASSIVE_HEALTHY.successes),
    })
}

fn passive_unhealthy(fields: &MapReader) -> Option<UnhealthySpec> {
    Some(UnhealthySpec {
        interval: fields.value(&PASSIVE_UNHEALTHY.interval),
        statuses: fields.value(&PASSIVE_UNHEALTHY.http_statuses),
        http_failures: fields.value(&PASSIVE_UNHEALTHY.http_failures),
        tcp_failures: fields.value(&PASSIVE_UNHEALTHY.tcp_failures),
        timeouts: fields.value(&PASSIVE_UNHEALTHY.timeouts),
    })
}
