//! The spans of an exchange: a server span, and a client span for each attempt at an upstream.
//! Attributes have the names of OpenTelemetry's semantic conventions for HTTP.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use weir_otlp::span::{AttributeValue, SpanAttribute, SpanKind, TraceSpan};
use weir_plugin::proto::{Method, Version};
use weir_plugin::{
    AttemptRecord, Build, CollectAll, ConfigError, EndedBy, Exchange, LoggedExchange, SecretFields, Stop, Variable,
    Variables,
};

use super::note::{TraceNote, next_id};
use crate::log::capture::SecretNames;

/// The attributes that an operator has configured in addition to the standard ones.
pub(crate) struct ExtraAttributes {
    variables: Vec<(String, Variable)>,
    /// Names of header fields in lower case; with `true`, prefixes of names.
    headers: Vec<(String, bool)>,
    secrets: Arc<SecretFields>,
    secret_names: OnceLock<SecretNames>,
}

impl ExtraAttributes {
    /// # Errors
    /// A name is not a variable, or is a cookie.
    pub(crate) fn compile(
        variables: &[String],
        headers: &[String],
        build: &mut Build,
    ) -> Result<ExtraAttributes, ConfigError> {
        let variable = |(index, name): (usize, &String)| {
            let place = format!("additional_attributes[{index}]");
            // Compiled only for its warnings.
            build.template_of_record(&format!("${{{name}}}"), &place);
            match Variable::named(name) {
                Variable::Cookie(_) => Err(ConfigError::new(place, "names a cookie, and spans never show credentials")),
                variable => Ok((name.clone(), variable)),
            }
        };
        let variables = variables.iter().enumerate().map(variable).collect_all()?;
        let header = |name: &String| match name.strip_suffix('*') {
            Some(prefix) if !prefix.is_empty() => (prefix.to_ascii_lowercase(), true),
            _ => (name.to_ascii_lowercase(), false),
        };
        let headers = headers.iter().map(header).collect();
        Ok(ExtraAttributes { variables, headers, secrets: build.secret_fields(), secret_names: OnceLock::new() })
    }

    fn add<'a>(&'a self, exchange: &'a Exchange, logged: &'a LoggedExchange<'a>, out: &mut Vec<SpanAttribute<'a>>) {
        if self.variables.is_empty() && self.headers.is_empty() {
            return;
        }
        let secrets = self.secret_names.get_or_init(|| SecretNames::of(&self.secrets));
        for (name, variable) in &self.variables {
            let is_secret = match variable {
                Variable::Header(name) | Variable::SentHeader(name) | Variable::UpstreamHeader(name) => {
                    secrets.has(name.as_bytes())
                }
                _ => false,
            };
            if let Some(value) = logged.variable(variable).filter(|_| !is_secret) {
                out.push((Cow::Borrowed(name), AttributeValue::Text(value)));
            }
        }
        let first_own = out.len();
        for (name, value) in exchange.request.head.fields() {
            let lower_case = String::from_utf8_lossy(name).to_ascii_lowercase();
            let asked_for = |(asked, is_prefix): &(String, bool)| match is_prefix {
                true => lower_case.starts_with(asked),
                false => lower_case == *asked,
            };
            if self.headers.iter().any(asked_for) && !secrets.has(name) {
                let name = format!("http.request.header.{lower_case}");
                let value = logged.field(lower_case.as_bytes(), value).into_owned();
                add_header(&mut out[..], first_own, &name, &value).unwrap_or_else(|()| {
                    out.push((Cow::Owned(name), AttributeValue::Texts(vec![Cow::Owned(value)])));
                });
            }
        }
    }
}

/// Adds a value to the existing attribute of this name; `Err` if there is none.
fn add_header(out: &mut [SpanAttribute<'_>], from: usize, name: &str, value: &[u8]) -> Result<(), ()> {
    match out[from..].iter_mut().find(|(known, _)| known == name) {
        Some((_, AttributeValue::Texts(values))) => {
            values.push(Cow::Owned(value.to_vec()));
            Ok(())
        }
        _ => Err(()),
    }
}

/// The same moment on the worker's clock and on the system's clock.
#[derive(Clone, Copy)]
struct Clocks {
    wall_end_ns: u64,
    end_ns: u64,
}

impl Clocks {
    /// The moment when an exchange ended.
    fn at_end_of(exchange: &Exchange) -> Clocks {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clocks { wall_end_ns: now.as_nanos() as u64, end_ns: exchange.ended_ns }
    }

    /// Converts a time of the worker's clock to nanoseconds since 1970.
    fn since_1970(self, ns: u64) -> u64 {
        self.wall_end_ns.saturating_sub(self.end_ns.saturating_sub(ns))
    }
}

/// Passes the spans of an ended exchange to `take`, the server span first.
pub(crate) fn spans_of(
    exchange: &Exchange,
    note: &TraceNote,
    extra: &ExtraAttributes,
    mut take: impl FnMut(&TraceSpan<'_>),
) {
    let clocks = Clocks::at_end_of(exchange);
    let logged = LoggedExchange(exchange);
    take(&server_span(exchange, &logged, note, extra, clocks));
    let earlier = exchange.earlier();
    // An attempt that is still waiting for an endpoint has no span.
    let last = Some(&exchange.upstream).filter(|last| usize::from(last.attempts) > earlier.len());
    let mut id = note.span;
    for (number, attempt) in earlier.iter().chain(last).enumerate() {
        id = next_id(id);
        // An attempt without an address was handled by a responder within the gateway.
        if attempt.addr.is_some() {
            take(&client_span(exchange, note, attempt, (number, id), clocks));
        }
    }
}

fn text<'a>(text: impl Into<Cow<'a, [u8]>>) -> AttributeValue<'a> {
    AttributeValue::Text(text.into())
}

/// The name of the span of an exchange: the method and the URI of the route.
pub(crate) fn server_span_name(exchange: &Exchange) -> Cow<'_, [u8]> {
    let word = method_word(exchange.request.client_method());
    match exchange.route.as_deref().map_or("", |route| route.uri()) {
        "" => Cow::Borrowed(word),
        uri => Cow::Owned([word, b" ", uri.as_bytes()].concat()),
    }
}

fn server_span<'a>(
    exchange: &'a Exchange,
    logged: &'a LoggedExchange<'a>,
    note: &TraceNote,
    extra: &'a ExtraAttributes,
    clocks: Clocks,
) -> TraceSpan<'a> {
    let (error, is_failed) = error_of(exchange);
    let mut attributes = server_attributes(exchange);
    if let Some(error) = &error {
        attributes.push(("error.type".into(), text(error.to_string().into_bytes())));
    }
    extra.add(exchange, logged, &mut attributes);
    TraceSpan {
        trace: note.trace,
        id: note.span,
        parent: note.parent,
        is_parent_remote: note.parent != 0,
        is_sampled: note.is_sampled,
        kind: SpanKind::Server,
        name: server_span_name(exchange),
        start_ns: clocks.since_1970(exchange.started_ns),
        end_ns: clocks.wall_end_ns,
        local: Some(exchange.client.local),
        peer: Some((exchange.client.addr, exchange.client.port).into()),
        error,
        is_failed,
        attributes,
    }
}

fn server_attributes(exchange: &Exchange) -> Vec<SpanAttribute<'_>> {
    let (request, status) = (&exchange.request, exchange.response.status);
    let mut attributes = Vec::with_capacity(20);
    let mut add = |name: &'static str, value| attributes.push((Cow::Borrowed(name), value));
    method(request.client_method(), request.client_method_name(), &mut add);
    add("url.scheme", text(exchange.scheme().as_bytes()));
    add("url.path", text(client_path(exchange)));
    add("network.protocol.version", text(version(request.version).as_bytes()));
    if !request.host().is_empty() {
        add("server.address", text(request.host()));
        add("server.port", AttributeValue::Number(request.port().unwrap_or(exchange.client.local.port()).into()));
    }
    add("client.address", text(exchange.client.addr.to_string().into_bytes()));
    add("network.peer.address", text(exchange.client.peer.ip().to_string().into_bytes()));
    add("network.peer.port", AttributeValue::Number(exchange.client.peer.port().into()));
    if let Some(agent) = request.head.original(b"User-Agent") {
        add("user_agent.original", text(agent));
    }
    if status != 0 {
        add("http.response.status_code", AttributeValue::Number(status.into()));
    }
    if let Some(route) = exchange.route.as_deref() {
        for (name, value) in [
            ("http.route", route.uri()),
            ("weir.route.id", &*route.route_id),
            ("weir.route.name", &*route.route_name),
            ("weir.service.id", &*route.service_id),
            ("weir.service.name", &*route.service_name),
        ] {
            if !value.is_empty() {
                add(name, text(value.as_bytes()));
            }
        }
    }
    attributes
}

fn client_span<'a>(
    exchange: &'a Exchange,
    note: &TraceNote,
    attempt: &AttemptRecord,
    (number, id): (usize, u64),
    clocks: Clocks,
) -> TraceSpan<'a> {
    let request = &exchange.request;
    let mut attributes = Vec::with_capacity(10);
    let mut add = |name: &'static str, value: AttributeValue<'a>| attributes.push((Cow::Borrowed(name), value));
    method(request.method, request.method_name(), &mut add);
    add("url.scheme", text(if attempt.tls { &b"https"[..] } else { b"http" }));
    if let Some(addr) = attempt.addr {
        let ip = addr.ip().to_string().into_bytes();
        add("server.address", text(ip.clone()));
        add("server.port", AttributeValue::Number(addr.port().into()));
        add("network.peer.address", text(ip));
        add("network.peer.port", AttributeValue::Number(addr.port().into()));
    }
    if number > 0 {
        add("http.request.resend_count", AttributeValue::Number(number as i64));
    }
    if attempt.status != 0 {
        add("http.response.status_code", AttributeValue::Number(attempt.status.into()));
    }
    let stop = attempt.failure.map(|stop| Cow::Borrowed(stop.ending().name));
    let error = stop.or_else(|| (attempt.status >= 400).then(|| Cow::Owned(attempt.status.to_string())));
    if let Some(error) = &error {
        add("error.type", text(error.to_string().into_bytes()));
    }
    let end_ns = if attempt.ended_ns == 0 { exchange.ended_ns } else { attempt.ended_ns };
    TraceSpan {
        trace: note.trace,
        id,
        parent: note.span,
        is_parent_remote: false,
        is_sampled: note.is_sampled,
        kind: SpanKind::Client,
        name: Cow::Borrowed(method_word(request.method)),
        start_ns: clocks.since_1970(attempt.started_ns),
        end_ns: clocks.since_1970(end_ns),
        local: None,
        peer: attempt.addr,
        is_failed: error.is_some(),
        error,
        attributes,
    }
}

/// The error of an exchange, and whether it is a failure of the server rather than of the client.
pub(crate) fn error_of(exchange: &Exchange) -> (Option<Cow<'static, str>>, bool) {
    let status = exchange.response.status;
    let ending = exchange.stop().map(|stop| stop.ending());
    if let Some(ending) = ending.filter(|ending| !ending.name.is_empty()) {
        // A response may have been cut off after a successful status was sent.
        // That nothing was sent any more is no failure.
        let is_idle = matches!(exchange.stop(), Some(Stop::IdleTimeout));
        let is_ours = matches!(ending.blame, EndedBy::Upstream | EndedBy::Gateway) && !is_idle;
        return (Some(Cow::Borrowed(ending.name)), is_ours || status >= 500);
    }
    match status >= 500 {
        true => (Some(Cow::Owned(status.to_string())), true),
        false => (None, false),
    }
}

/// The path as the client sent it, without the query, which may contain credentials.
fn client_path(exchange: &Exchange) -> &[u8] {
    let target = exchange.request.target();
    let path = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
    match path.first() {
        Some(b'/') => path,
        // The target is an absolute URL, or an asterisk.
        _ => exchange.request.path(),
    }
}

fn method<'a>(method: Method, name: &'a [u8], add: &mut impl FnMut(&'static str, AttributeValue<'a>)) {
    match known(method) {
        Some(known) => add("http.request.method", text(known.as_bytes())),
        None => {
            add("http.request.method", text(&b"_OTHER"[..]));
            add("http.request.method_original", text(name));
        }
    }
}

/// The name of a method that the semantic conventions define.
fn known(method: Method) -> Option<&'static str> {
    method.name().filter(|_| method != Method::Purge)
}

/// The method for the name of a span, which must have low cardinality.
fn method_word(method: Method) -> &'static [u8] {
    known(method).map_or(b"HTTP", str::as_bytes)
}

fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
        Version::Http3 => "3",
    }
}
