//! Prepares a plan: checks it, resolves names, and renders requests. All errors of a plan are reported here.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;

use super::flow::{FlowPlace, FlowPlan, breaks_field, without_values};
use super::form::{with_form_types, written};
use super::grpc::{CallReader, PreparedCall, with_calls};
use super::plan::{LoadPlan, Pacing, PlanError, Protocol, Rate, RequestBody, RequestTemplate};
use super::tls;

/// File descriptors that the engine needs besides its connections: epoll, standard streams, files of the command.
const OTHER_FILES: u64 = 64;

/// Bytes of the largest datagram over IPv4.
const LARGEST_DATAGRAM: usize = 65_507;

/// A plan that has been checked and is ready to run.
#[derive(Debug)]
pub(super) struct PreparedLoad {
    pub plan: LoadPlan,
    pub origins: Vec<LoadOrigin>,
    pub requests: Vec<PreparedRequest>,
    /// How requests are made of data and depend on answers; `None` if the rendered ones are sent as they are.
    pub flow: Option<Arc<FlowPlan>>,
}

/// The destination of connections.
#[derive(Debug, PartialEq)]
pub(super) struct LoadOrigin {
    pub address: SocketAddr,
    /// `host` or `host:port`, as in the field `Host`.
    pub authority: String,
    /// The TLS configuration and server name for `https` and `wss`.
    pub tls: Option<OriginTls>,
}

#[derive(Clone, Debug)]
pub(super) struct OriginTls {
    pub config: Arc<rustls::ClientConfig>,
    pub name: ServerName<'static>,
}

impl PartialEq for OriginTls {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A request in its rendered form.
#[derive(Debug)]
pub(super) struct PreparedRequest {
    /// Index into [`PreparedLoad::origins`].
    pub origin: usize,
    pub template: RequestTemplate,
    /// Path and query of the URL.
    pub target: String,
    pub body: Vec<u8>,
    /// The call of gRPC whose messages are the body, as JSON.
    pub call: Option<Arc<PreparedCall>>,
    /// The whole HTTP/1.1 request.
    pub wire: Vec<u8>,
    /// Whether the response has no body regardless of its head (RFC 9112 §6.3).
    pub head_only: bool,
}

impl PreparedRequest {
    #[inline]
    pub(super) fn expects(&self, status: u16) -> bool {
        match self.template.expect_status.as_slice() {
            [] => (100..400).contains(&status),
            expected => expected.contains(&status),
        }
    }
}

impl PreparedLoad {
    pub(super) fn new(plan: &LoadPlan) -> Result<Self, PlanError> {
        let plan = &with_calls(&with_form_types(plan))?;
        check_counts(plan)?;
        check_pacing(&plan.pacing)?;
        let mut origins: Vec<LoadOrigin> = Vec::new();
        let (mut requests, mut calls) = (Vec::new(), CallReader::default());
        for (index, template) in plan.requests.iter().enumerate() {
            let field = |name: &str| format!("requests[{index}].{name}");
            let (origin, target) = locate(plan, template, &field("url"))?;
            let origin = origins.iter().position(|known| *known == origin).unwrap_or_else(|| {
                origins.push(origin);
                origins.len() - 1
            });
            check_head(template, field)?;
            let body = content(&template.body, &field("body"))?;
            let call = calls.read(template, field)?;
            if let Some(call) = call.as_ref().filter(|_| !plan.has_values() || !body.windows(2).any(|two| two == b"${"))
            {
                call.body(&body).map_err(|problem| PlanError::new(field("body"), problem))?;
            }
            let wire = render(template, &origins[origin].authority, &target, &body, plan.keep_alive);
            let head_only = template.method == "HEAD";
            requests.push(PreparedRequest { origin, template: template.clone(), target, body, call, wire, head_only });
        }
        // HTTP/3 watches its socket for errors by a second descriptor. A connection that a redirect does not use again is closed
        // while the next one is open.
        let follows = plan.requests.iter().any(|request| request.follow_redirects > 0);
        let files = if follows || matches!(plan.protocol, Protocol::Http3 { .. }) { 2 } else { 1 };
        let wanted = plan.connections as u64 * origins.len() as u64 * files + OTHER_FILES;
        allow_files(wanted)?;
        let flow = flow(plan, &origins, &requests)?;
        Ok(Self { plan: plan.clone(), origins, requests, flow })
    }
}

fn flow(
    plan: &LoadPlan,
    origins: &[LoadOrigin],
    requests: &[PreparedRequest],
) -> Result<Option<Arc<FlowPlan>>, PlanError> {
    let places = requests.iter().map(|PreparedRequest { origin, body, .. }| {
        let LoadOrigin { authority, tls, .. } = &origins[*origin];
        FlowPlace { authority, is_tls: tls.is_some(), body }
    });
    let places: Vec<FlowPlace<'_>> = places.collect();
    Ok(FlowPlan::new(plan, &places)?.map(Arc::new))
}

fn check_counts(plan: &LoadPlan) -> Result<(), PlanError> {
    let wrong = |field: &str, problem: &str| Err(PlanError::new(field, problem));
    if plan.requests.is_empty() {
        return wrong("requests", "there must be at least one request");
    }
    if plan.requests.iter().all(|request| request.weight == 0) {
        return wrong("requests", "at least one request must have a weight above 0");
    }
    if plan.connections == 0 {
        return wrong("connections", "must be at least 1");
    }
    if plan.threads == 0 || plan.threads > plan.connections {
        return Err(PlanError::new(
            "threads",
            format!("must be between 1 and the number of connections, {}", plan.connections),
        ));
    }
    if plan.stop.duration_ms.is_none() && plan.stop.count.is_none() {
        return wrong("stop", "set when the run ends: duration_ms, count, or both");
    }
    if plan.stop.duration_ms == Some(0) || plan.stop.count == Some(0) {
        return wrong("stop", "a run of length 0 measures nothing");
    }
    if plan.interval_ms == 0 {
        return wrong("interval_ms", "must be at least 1");
    }
    if plan.timeouts.connect_ms == 0 || plan.timeouts.response_ms == 0 {
        return wrong("timeouts", "must be at least 1 ms");
    }
    if matches!(plan.protocol, Protocol::WebSub { .. }) && !plan.pacing.is_open() {
        return wrong("pacing", "WebSub needs an open loop: publications are due by the clock");
    }
    if plan.protocol == Protocol::Sse && plan.requests.len() > 1 && !plan.pacing.is_open() {
        return wrong("pacing", "events that are published need an open loop: they are due by the clock");
    }
    match plan.protocol {
        Protocol::Tcp { message_bytes: 0 } | Protocol::Udp { message_bytes: 0 } => {
            return wrong("protocol.message_bytes", "must be at least 1");
        }
        Protocol::Udp { message_bytes } if message_bytes > LARGEST_DATAGRAM => {
            return wrong("protocol.message_bytes", "must be at most 65507, the largest datagram over IPv4");
        }
        _ => {}
    }
    check_streams(plan)
}

/// Checks what applies to protocols with several streams on a connection only.
fn check_streams(plan: &LoadPlan) -> Result<(), PlanError> {
    let wrong = |field: &str, problem: &str| Err(PlanError::new(field, problem));
    if plan.protocol.streams() == Some(0) {
        return wrong("protocol.streams", "must be at least 1");
    }
    if plan.protocol.streams().is_some() && !plan.keep_alive {
        return wrong(
            "keep_alive",
            "HTTP/2 and HTTP/3 keep their connections; a connection for each request needs http1",
        );
    }
    if matches!(plan.protocol, Protocol::Http3 { .. }) && plan.tls.resume {
        return wrong("tls.resume", "HTTP/3 makes a full handshake for each connection; leave it false");
    }
    Ok(())
}

/// Checks a pacing; errors name the field of the plan.
pub(crate) fn check_pacing(pacing: &Pacing) -> Result<(), PlanError> {
    let wrong = |field: &str, problem: &str| Err(PlanError::new(field, problem));
    let rate_is_valid = |rate: f64| rate.is_finite() && rate >= 0.0;
    match pacing {
        Pacing::Closed { think, .. } => {
            think.check().map_err(|problem| PlanError::new("pacing.think", problem))?;
        }
        Pacing::Open { rate, .. } => {
            let (valid, moves) = match rate {
                Rate::Constant(rate) => (rate_is_valid(*rate), *rate > 0.0),
                Rate::Steps(steps) => (
                    steps.iter().all(|step| rate_is_valid(step.rate)),
                    steps.iter().any(|step| step.rate > 0.0 && step.for_ms > 0),
                ),
                Rate::Ramp { from, to, .. } => (rate_is_valid(*from) && rate_is_valid(*to), from.max(*to) > 0.0),
            };
            if !valid || !moves {
                return wrong("pacing.rate", "must be requests per second, 0 or more, and above 0 at some time");
            }
        }
        Pacing::Replay { at_ns } => {
            if at_ns.is_empty() || !at_ns.is_sorted() {
                return wrong("pacing.at_ns", "must be at least one time, in ascending order");
            }
        }
    }
    Ok(())
}

/// The origin of a request and its target (RFC 9112 §3.2.1).
fn locate(plan: &LoadPlan, template: &RequestTemplate, field: &str) -> Result<(LoadOrigin, String), PlanError> {
    let wrong = |problem: String| PlanError::new(field, problem);
    let url = match plan.has_values() {
        true => &without_values(&template.url).map_err(wrong)?,
        false => &template.url,
    };
    let uri: Uri = url.parse().map_err(|error| wrong(format!("{url:?} is not a URL: {error}")))?;
    let secure = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP || scheme.as_str() == "ws" => false,
        Some(scheme) if *scheme == Scheme::HTTPS || scheme.as_str() == "wss" => true,
        Some(scheme) if matches!(scheme.as_str(), "tcp" | "udp") && uri.port().is_some() => false,
        Some(scheme) if scheme.as_str() == "tls" && uri.port().is_some() => true,
        Some(scheme) if matches!(scheme.as_str(), "tcp" | "tls" | "udp") => {
            return Err(wrong(format!("{url:?} needs a port: {url}:PORT")));
        }
        _ => {
            let schemes = "http://, https://, ws://, wss://, tcp://, tls:// or udp://";
            return Err(wrong(format!("{url:?} must start with {schemes}")));
        }
    };
    if matches!(plan.protocol, Protocol::Http3 { .. }) && uri.scheme() != Some(&Scheme::HTTPS) {
        return Err(wrong(format!("{url:?} must start with https://, since HTTP/3 has no form without TLS")));
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong(format!("{url:?} has no host")))?;
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let authority = match uri.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    let place = plan.connect_to.clone().unwrap_or_else(|| format!("{host}:{port}"));
    let place_field = if plan.connect_to.is_some() { "connect_to" } else { field };
    let address = place
        .to_socket_addrs()
        .map_err(|error| PlanError::new(place_field, format!("{place:?} has no address: {error}")))?
        .min_by_key(SocketAddr::is_ipv6)
        .ok_or_else(|| PlanError::new(place_field, format!("{place:?} has no address")))?;
    if let Some(source) = plan.source_addresses.iter().find(|source| source.is_ipv4() != address.is_ipv4()) {
        return Err(PlanError::new("source_addresses", format!("{source} cannot reach {address}")));
    }
    let tls = match secure {
        false => None,
        true => {
            let name = plan.tls.server_name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
            let name = ServerName::try_from(name.to_owned())
                .map_err(|_| PlanError::new("tls.server_name", format!("{name:?} is not a host name or address")))?;
            Some(OriginTls { config: tls::client_config(&plan.tls, &plan.protocol)?, name })
        }
    };
    let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    Ok((LoadOrigin { address, authority, tls }, target))
}

/// The bytes of a body; `field` is its place in the plan.
fn content(body: &RequestBody, field: &str) -> Result<Vec<u8>, PlanError> {
    use base64::Engine as _;
    let wrong = |problem: String| PlanError::new(field, problem);
    match body {
        RequestBody::Empty => Ok(Vec::new()),
        RequestBody::Text(text) => Ok(text.clone().into_bytes()),
        RequestBody::Base64(text) => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            decoded.map_err(|error| wrong(format!("is not base64: {error}")))
        }
        RequestBody::Sized(bytes) => Ok(filler(*bytes as usize)),
        RequestBody::Multipart(parts) => written(parts).map_err(wrong),
        RequestBody::File(path) => {
            std::fs::read(path).map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))
        }
    }
}

/// A body of this many printable bytes.
pub(crate) fn filler(bytes: usize) -> Vec<u8> {
    b"abcdefghijklmnopqrstuvwxyz0123456789".iter().copied().cycle().take(bytes).collect()
}

/// Checks method and header fields.
fn check_head(template: &RequestTemplate, field: impl Fn(&str) -> String) -> Result<(), PlanError> {
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    if !is_token(&template.method) {
        return Err(PlanError::new(field("method"), format!("{:?} is not a method", template.method)));
    }
    for (name, value) in &template.headers {
        if !is_token(name) {
            return Err(PlanError::new(field("headers"), format!("{name:?} is not a field name")));
        }
        if value.bytes().any(breaks_field) {
            return Err(PlanError::new(field("headers"), format!("the value of {name} has a control character")));
        }
    }
    Ok(())
}

/// Renders a request for HTTP/1.1.
fn render(template: &RequestTemplate, authority: &str, target: &str, body: &[u8], keep_alive: bool) -> Vec<u8> {
    let has = |wanted: &str| template.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
    let mut wire = format!("{} {target} HTTP/1.1\r\n", template.method);
    if !has("host") {
        wire += &format!("Host: {authority}\r\n");
    }
    for (name, value) in &template.headers {
        wire += &format!("{name}: {value}\r\n");
    }
    let carries_body = !body.is_empty() || matches!(template.method.as_str(), "POST" | "PUT" | "PATCH");
    if carries_body && !has("content-length") && !has("transfer-encoding") {
        wire += &format!("Content-Length: {}\r\n", body.len());
    }
    if !keep_alive && !has("connection") {
        wire += "Connection: close\r\n";
    }
    wire += "\r\n";
    let mut wire = wire.into_bytes();
    wire.extend_from_slice(body);
    wire
}

/// Raises this process's limit of open files to `wanted`, if it is lower.
pub(crate) fn allow_files(wanted: u64) -> Result<(), PlanError> {
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if enough(limit.current) {
        return Ok(());
    }
    let maximum = if enough(limit.maximum) { limit.maximum } else { Some(wanted) };
    let raised = Rlimit { current: if enough(limit.maximum) { limit.maximum } else { Some(wanted) }, maximum };
    setrlimit(Resource::Nofile, raised).map_err(|_| {
        PlanError::new(
            "connections",
            format!(
                "this run needs {wanted} open files and the limit is {}; raise it with `ulimit -Hn {wanted}`",
                limit.maximum.unwrap_or_default()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{StopCondition, Think};

    fn plan(url: &str) -> LoadPlan {
        LoadPlan::closed(url, 2, StopCondition::after_count(1))
    }

    fn problem(plan: &LoadPlan) -> String {
        PreparedLoad::new(plan).expect_err("the plan is wrong").to_string()
    }

    #[test]
    fn renders_a_request_with_what_it_needs() {
        let mut plan = plan("http://127.0.0.1:8080/a?b=c");
        plan.requests[0].method = "POST".into();
        plan.requests[0].headers = vec![("X-Key".into(), "k".into())];
        plan.requests[0].body = RequestBody::Sized(3);
        let prepared = PreparedLoad::new(&plan).expect("a good plan");
        assert_eq!(
            String::from_utf8_lossy(&prepared.requests[0].wire),
            "POST /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-Key: k\r\nContent-Length: 3\r\n\r\nabc"
        );
    }

    #[test]
    fn fault_of_a_flow_has_its_place() {
        let with_data = || {
            let mut plan = plan("http://127.0.0.1:1/");
            plan.data.variables = [("id".to_owned(), crate::engine::PlanVariable::Uuid)].into();
            plan
        };
        let mut early = with_data();
        early.selection = crate::engine::Selection::Sequence;
        early.requests[0].headers = vec![("X-Token".to_owned(), "${token}".to_owned())];
        early.requests.push(RequestTemplate::get("http://127.0.0.1:1/log-in"));
        let take = crate::engine::Take { json: Some("/t".to_owned()), ..Default::default() };
        early.requests[1].take = [("token".to_owned(), take)].into();
        assert_eq!(
            problem(&early),
            "requests[0]: contains ${token}, which requests[1].take.token takes only after this request was sent; take it in \
             a request before"
        );
        early.requests.swap(0, 1);
        assert!(PreparedLoad::new(&early).is_ok());

        let mut large = with_data();
        (large.connections, large.requests[0].body) = (1_000, RequestBody::Sized(3_000_000));
        assert!(problem(&large).starts_with("requests[0].body: has 3000000 bytes, for 1000 requests at the same time"));

        for (name, bytes, fault) in [("named", &b"\xFF${id}"[..], true), ("other", b"\xFF${x}", false)] {
            let path = std::env::temp_dir().join(format!("weir-body-{}-{name}", std::process::id()));
            std::fs::write(&path, bytes).expect("the directory of temporary files is writable");
            let mut binary = with_data();
            binary.requests[0].body = RequestBody::File(path.clone());
            let outcome = PreparedLoad::new(&binary).map(drop).map_err(|error| error.to_string());
            let _ = std::fs::remove_file(&path);
            let is_told = outcome.is_err_and(|error| error.contains("contains ${id} and is not UTF-8"));
            assert_eq!(is_told, fault, "{name}");
        }
    }

    #[test]
    fn requests_to_one_place_share_an_origin() {
        let mut plan = plan("http://127.0.0.1:8080/a");
        plan.requests.push(RequestTemplate::get("http://127.0.0.1:8080/b"));
        plan.requests.push(RequestTemplate::get("http://127.0.0.1:8081/b"));
        assert_eq!(PreparedLoad::new(&plan).expect("a good plan").origins.len(), 2);
    }

    #[test]
    fn says_where_a_plan_is_wrong() {
        let wrong = |change: fn(&mut LoadPlan)| {
            let mut plan = plan("http://127.0.0.1:1/");
            change(&mut plan);
            problem(&plan)
        };
        assert!(wrong(|plan| plan.requests.clear()).starts_with("requests: "));
        assert!(wrong(|plan| plan.requests[0].url = "127.0.0.1".into()).starts_with("requests[0].url: "));
        assert!(wrong(|plan| plan.requests[0].url = "ftp://a/".into()).contains("must start with http://"));
        assert!(wrong(|plan| plan.requests[0].url = "tcp://127.0.0.1".into()).contains("needs a port"));
        let empty = wrong(|plan| plan.protocol = Protocol::Udp { message_bytes: 0 });
        assert!(empty.starts_with("protocol.message_bytes: "), "{empty}");
        assert!(wrong(|plan| plan.connections = 0).starts_with("connections: "));
        let uniform = wrong(|plan| plan.requests[0].think = Some(Think::UniformMs { from: 2.0, to: 1.0 }));
        assert!(uniform.starts_with("requests[0].think: must be a time in ms"), "{uniform}");
        for ms in [-1.0, f64::INFINITY, f64::NAN, 1e300] {
            let mut plan = plan("http://127.0.0.1:1/");
            plan.requests[0].think = Some(Think::FixedMs(ms));
            assert!(problem(&plan).starts_with("requests[0].think: "), "{ms}");
            plan.requests[0].think = None;
            plan.pacing = Pacing::Closed { think: Think::ExponentialMs(ms), ramp_up_ms: 0 };
            assert!(problem(&plan).starts_with("pacing.think: "), "{ms}");
        }
        assert!(wrong(|plan| plan.threads = 3).starts_with("threads: "));
        assert!(wrong(|plan| plan.stop = StopCondition::default()).starts_with("stop: "));
        let http2 = wrong(|plan| (plan.protocol, plan.keep_alive) = (Protocol::Http2 { streams: 1 }, false));
        assert!(http2.starts_with("keep_alive: HTTP/2 and HTTP/3 keep their connections"), "{http2}");
        let http3 = |change: fn(&mut LoadPlan)| {
            let mut plan = plan("https://127.0.0.1:8443/");
            plan.protocol = Protocol::Http3 { streams: 1 };
            change(&mut plan);
            problem(&plan)
        };
        assert!(http3(|plan| plan.keep_alive = false).starts_with("keep_alive: "));
        assert!(http3(|plan| plan.tls.resume = true).starts_with("tls.resume: HTTP/3 makes a full handshake"));
        assert!(http3(|plan| plan.protocol = Protocol::Http3 { streams: 0 }).starts_with("protocol.streams: "));
        let clear = http3(|plan| plan.requests[0].url = "http://127.0.0.1/".into());
        assert!(clear.starts_with("requests[0].url: ") && clear.contains("must start with https://"), "{clear}");
        let method = wrong(|plan| plan.requests[0].method = "G T".into());
        assert_eq!(method, "requests[0].method: \"G T\" is not a method");
        assert!(
            wrong(|plan| plan.requests[0].headers.push(("a".into(), "b\r\nc".into()))).contains("control character")
        );
        assert!(wrong(|plan| plan.pacing = Pacing::Replay { at_ns: vec![2, 1] }).starts_with("pacing.at_ns: "));
        assert!(
            wrong(|plan| plan.pacing = Pacing::Open { rate: Rate::Constant(f64::NAN), spacing: Default::default() })
                .starts_with("pacing.rate: ")
        );
    }
}
