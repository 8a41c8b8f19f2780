//! Functions of serverless platforms, which answer requests in place of the upstream: what the plugins that call them have in common.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use hyper::body::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_client::{AnswerContent, CallError, IdleConnections};
use weir_plugin::proto::path::{self, Canonical};
use weir_plugin::proto::{Known, RequestHead};
use weir_plugin::{
    AnswersInPlace, Build, ClientFacts, ConfigError, Content, Exchange, Flow, Plugin, Reply, ReplyHead, Responder,
    ResponderRequest, Responding, RouteFacts, Stop, TrustedForwarding, uri_fits,
};
use weir_services::http_service::HttpService;

use crate::envoy::fields::is_managed;
use crate::rate_limited_log::OutageLog;

/// How a function is called: options of all plugins that call one.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct FunctionCallOptions {
    /// Time-out for the head of the response, and from each piece of content to the next, in milliseconds. The route's `timeout` counts
    /// as well.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 100, max = 3_600_000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    timeout: u64,
    /// Whether the certificate of an `https` server is verified, against the CA certificates of the system.
    #[serde(default = "default_true")]
    ssl_verify: bool,
    /// Reuses connections (keep-alive).
    #[serde(default = "default_true")]
    keepalive: bool,
    /// How long an idle connection is kept, in milliseconds.
    #[serde(default = "default_keepalive_timeout")]
    #[schemars(range(min = 1000))]
    #[schemars(extend("x-weir-unit" = "ms"))]
    keepalive_timeout: u64,
    /// The maximum number of idle connections of each worker.
    #[serde(default = "default_keepalive_pool")]
    #[schemars(range(min = 1))]
    keepalive_pool: usize,
    /// The maximum size of a request body, which is held in memory until the function is called, in bytes. Requests with a larger
    /// body are refused with 413.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1, max = 1_073_741_824))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: usize,
}

fn default_true() -> bool {
    true
}

fn default_timeout() -> u64 {
    3000
}

fn default_keepalive_timeout() -> u64 {
    60_000
}

fn default_keepalive_pool() -> usize {
    5
}

fn default_max_req_body_size() -> usize {
    64 << 20
}

/// What is particular to a kind of function.
pub(crate) trait FunctionKind: Send + Sync + 'static {
    /// The name of its plugin, for the error log.
    const NAME: &'static str;
    /// Whether [`FunctionCall::path_behind`] counts.
    const TAKES_PATH: bool = true;

    /// Refuses requests that the function cannot take, before their content is read.
    ///
    /// # Errors
    /// How the exchange ends.
    fn admit(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let _ = exchange;
        Ok(())
    }

    /// Whether a field of the client, with this name in lower case, does not reach the function. Those that plugins have added do.
    fn withholds(&self, name: &[u8]) -> bool {
        let _ = name;
        false
    }

    /// Completes a call, which has the method, the fields and the body of the client's request, and as its URI the path and the query
    /// of the function's URL. `Host` is set afterwards, unless it is set here.
    ///
    /// # Errors
    /// How the exchange ends.
    fn complete(&self, call: FunctionCall<'_>) -> Result<Request<Bytes>, Stop>;
}

/// A call of a function that is being made.
pub(crate) struct FunctionCall<'a> {
    pub request: Request<Bytes>,
    pub service: &'a HttpService,
    /// The query of the client's request.
    pub query: Option<&'a [u8]>,
    /// What of the client's path stands behind the route's `uri`, if that ends in `*`.
    pub path_behind: Option<&'a [u8]>,
}

impl FunctionCall<'_> {
    /// Appends the path behind the route's `uri`, and the query, to those of the function's URL.
    ///
    /// # Errors
    /// The two together are no valid target, or would lead out of the path of the function's URL.
    pub(crate) fn extend_target(&mut self) -> Result<(), Stop> {
        let own = &*self.service.target;
        let (path, own_query) = own.split_once('?').map_or((own, None), |(path, query)| (path, Some(query.as_bytes())));
        let mut target = path.as_bytes().to_vec();
        if let Some(behind) = self.path_behind.filter(|behind| !behind.is_empty()) {
            if !stays_below(behind) {
                return Err(Stop::Respond(400));
            }
            match (target.ends_with(b"/"), behind) {
                (true, [b'/', rest @ ..]) => target.extend_from_slice(rest),
                (true, behind) | (false, behind @ [b'/', ..]) => target.extend_from_slice(behind),
                (false, behind) => target.extend_from_slice(&[b"/", behind].concat()),
            }
        }
        let queries = own_query.into_iter().chain(self.query).filter(|query| !query.is_empty());
        for (query, mark) in queries.zip([b"?", b"&"]) {
            target.extend_from_slice(mark);
            target.extend_from_slice(query);
        }
        *self.request.uri_mut() = target.try_into().map_err(|_| Stop::Respond(400))?;
        Ok(())
    }

    /// Sets a field to a credential, unless the client has sent one of this name.
    pub(crate) fn authorize(&mut self, name: HeaderName, credential: &HeaderValue) {
        self.request.headers_mut().entry(name).or_insert_with(|| credential.clone());
    }
}

/// A function, and how it is called.
pub(crate) struct CloudFunction<K> {
    service: HttpService,
    most_content: usize,
    outages: OutageLog,
    kind: K,
}

impl FunctionCallOptions {
    /// The time-out, in milliseconds.
    pub(crate) fn timeout_ms(&self) -> u64 {
        self.timeout
    }

    /// The service at the URL of an option, which is at `path`.
    ///
    /// # Errors
    /// The option is not a URL.
    pub(crate) fn service(&self, url: &str, path: &str, build: &mut Build) -> Result<HttpService, ConfigError> {
        let idle = IdleConnections {
            max_per_origin: if self.keepalive { self.keepalive_pool } else { 0 },
            timeout: Duration::from_millis(self.keepalive_timeout),
        };
        HttpService::parse(build.http(), url, self.ssl_verify, Duration::from_millis(self.timeout), idle, path)
    }

    /// The plugin that has requests answered by a function.
    pub(crate) fn plugin<K: FunctionKind>(&self, service: HttpService, kind: K) -> Arc<dyn Plugin> {
        let (most_content, outages) = (self.max_req_body_size, OutageLog::default());
        Arc::new(FunctionPlugin(Arc::new(CloudFunction { service, most_content, outages, kind })))
    }
}

struct FunctionPlugin<K>(Arc<CloudFunction<K>>);

impl<K: FunctionKind> Plugin for FunctionPlugin<K> {
    fn answers_in_place(&self) -> AnswersInPlace {
        AnswersInPlace::Alone
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        self.0.kind.admit(exchange)?;
        let path_behind = if K::TAKES_PATH { self.0.path_behind(exchange)? } else { None };
        let responder: Arc<dyn Responder> = Arc::new(FunctionResponder {
            function: Arc::clone(&self.0),
            client: FunctionClient::of(exchange),
            path_behind,
        });
        exchange.answer_only_by(&responder);
        Ok(Flow::Continue)
    }
}

/// What of the client's path stands behind the `uri` of the route, if that ends in `*`. Of several that fit, the longest counts.
///
/// # Errors
/// A `uri` that ends in `*`, and for which it is not clear what the `*` stands for.
fn path_behind_route<'a>(route: &RouteFacts, path: &'a [u8]) -> Result<Option<&'a [u8]>, String> {
    let (mut found, mut is_other, mut unclear) = (None::<&[u8]>, false, None);
    for uri in &route.uris {
        let uri = canonical_uri(uri);
        let Some(before) = before_last_star(&uri) else {
            is_other |= uri_fits(&uri, path);
            continue;
        };
        if before.split('/').any(|segment| segment.starts_with('*')) && uri_fits(&uri, path) {
            return Err(uri);
        }
        match path_behind(before, path) {
            Some(behind) => found = Some(found.filter(|found| found.len() < behind.len()).unwrap_or(behind)),
            None => unclear = Some(uri),
        }
    }
    match unclear {
        Some(uri) if found.is_none() && !is_other => Err(uri),
        _ => Ok(found),
    }
}

/// What cannot stand in a path, and can in a `uri`.
const ENCODED_IN_URI: &AsciiSet = &CONTROLS.add(b' ').add(b'#').add(b'?').add(b'\\');

/// A `uri` in the form of the paths that it is compared with.
fn canonical_uri(written: &str) -> String {
    let encoded = utf8_percent_encode(written, ENCODED_IN_URI).to_string();
    let mut rewritten = Vec::new();
    match path::canonical(encoded.as_bytes(), &mut rewritten) {
        Ok(Canonical::Rewritten { .. }) => String::from_utf8(rewritten).unwrap_or(encoded),
        _ => encoded,
    }
}

/// What stands before the `*`, which may have a name, at the end of a `uri`.
fn before_last_star(uri: &str) -> Option<&str> {
    let start = uri.rfind('/').map_or(0, |slash| slash + 1);
    let (before, last) = uri.split_at(start);
    let is_parameter = start > 0 && last.len() > 1 && last.starts_with(':');
    match last {
        _ if is_parameter => None,
        last if last.starts_with('*') => Some(before),
        _ => uri.strip_suffix('*'),
    }
}

/// What of a path stands behind the text before the `*` of one `uri`, in which `:name` stands for a segment.
fn path_behind<'a>(before: &str, path: &'a [u8]) -> Option<&'a [u8]> {
    let (mut rest, mut segments) = (path, before.split('/').peekable());
    while let Some(segment) = segments.next() {
        if segments.peek().is_none() {
            return rest.strip_prefix(segment.as_bytes());
        }
        let end = rest.iter().position(|&byte| byte == b'/')?;
        let is_parameter = segment.len() > 1 && segment.starts_with(':') && end > 0;
        if !is_parameter && &rest[..end] != segment.as_bytes() {
            return None;
        }
        rest = &rest[end + 1..];
    }
    None
}

/// Whether a path appended to another leads to nothing outside it. Of a canonical path the part behind `/aws` can begin with `..`, which
/// was no segment of its own before it was cut off. Canonical again, it has to be the same; encoded dots count as well.
fn stays_below(behind: &[u8]) -> bool {
    let appended = [b"/", behind.strip_prefix(b"/").unwrap_or(behind)].concat();
    let mut canonical = Vec::new();
    match path::canonical(&appended, &mut canonical) {
        Ok(Canonical::AsIs) => true,
        Ok(Canonical::Rewritten { .. }) => canonical == appended,
        Err(_) => false,
    }
}

/// What a function is told of the client beside its request.
struct FunctionClient {
    facts: ClientFacts,
    authority: Box<[u8]>,
}

impl FunctionClient {
    fn of(exchange: &Exchange) -> FunctionClient {
        FunctionClient { facts: exchange.client, authority: exchange.request.client_authority().into() }
    }

    /// The fields of a request as an upstream would get them, without those of the connection and of the content's length, and without
    /// those of the client that are withheld. `None` if one is not valid for the HTTP client.
    fn fields(&self, request: &RequestHead, withheld: impl Fn(&[u8]) -> bool) -> Option<HeaderMap> {
        let head = &request.head;
        let (mut fields, mut addresses) = (HeaderMap::new(), Vec::new());
        for field in head.present() {
            let (name, value) = (head.slice(field.name), head.slice(field.value));
            let counts = match field.known {
                Known::XRealIp => self.facts.trusts_real_ip(field),
                known => self.facts.trusts(field) || !known.is_forwarding(),
            };
            let is_withheld = !field.added && withheld(&name.to_ascii_lowercase());
            if !counts || is_managed(name) || is_withheld {
                continue;
            }
            match field.known {
                Known::XForwardedFor => addresses.extend_from_slice(&[value, b", "].concat()),
                _ => drop(fields.append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?)),
            }
        }
        let ClientFacts { peer, addr, tls, .. } = self.facts;
        addresses.extend_from_slice(peer.ip().to_canonical().to_string().as_bytes());
        let port = TrustedForwarding::by(&self.facts, head).port(&self.facts, request);
        for (known, name, value) in [
            (Known::XForwardedFor, "x-forwarded-for", &*addresses),
            (Known::XForwardedProto, "x-forwarded-proto", if tls { &b"https"[..] } else { b"http" }),
            (Known::XForwardedHost, "x-forwarded-host", &self.authority),
            (Known::XForwardedPort, "x-forwarded-port", port.to_string().as_bytes()),
            (Known::XRealIp, "x-real-ip", addr.to_canonical().to_string().as_bytes()),
        ] {
            let name = HeaderName::from_static(name);
            if !value.is_empty() && !head.is_withheld(known) && !fields.contains_key(&name) {
                fields.insert(name, HeaderValue::from_bytes(value).ok()?);
            }
        }
        Some(fields)
    }
}

/// Answers one request.
struct FunctionResponder<K> {
    function: Arc<CloudFunction<K>>,
    client: FunctionClient,
    path_behind: Option<Box<[u8]>>,
}

impl<K: FunctionKind> Responder for FunctionResponder<K> {
    fn respond(self: Arc<Self>, request: ResponderRequest, mut content: Content, mut reply: Reply) -> Responding {
        Box::pin(async move {
            let function = &self.function;
            let body = match request.head.framing.has_body() {
                true => content.whole(function.most_content).await?,
                false => Vec::new(),
            };
            let call = self.call(&request.head, body)?;
            let answer = function.service.open(call).await;
            let answer = answer.map_err(|failure| function.failed(&failure, stop_of(&failure), &mut reply))?;
            function.outages.answered(|| format!("{}: {} answers again", K::NAME, function.service.name()));
            function.pass_on(answer, reply).await
        })
    }
}

impl<K: FunctionKind> FunctionResponder<K> {
    fn call(&self, head: &RequestHead, body: Vec<u8>) -> Result<Request<Bytes>, Stop> {
        let mut request = Request::new(Bytes::from(body));
        *request.method_mut() = Method::from_bytes(head.method_name()).map_err(|_| Stop::Respond(400))?;
        *request.headers_mut() =
            self.client.fields(head, |name| self.function.kind.withholds(name)).ok_or(Stop::Respond(400))?;
        let service = &self.function.service;
        *request.uri_mut() = service.target.parse().map_err(|_| Stop::Internal)?;
        let path_behind = self.path_behind.as_deref();
        self.function.kind.complete(FunctionCall { request, service, query: head.query(), path_behind })
    }
}

impl<K: FunctionKind> CloudFunction<K> {
    fn path_behind(&self, exchange: &Exchange) -> Result<Option<Box<[u8]>>, Stop> {
        let Some(route) = &exchange.route else { return Ok(None) };
        let found = path_behind_route(route, exchange.request.client_path()).map_err(|uri| {
            self.outages.fault(format_args!(
                "{}: it is not clear what the last `*` of the uri `{uri}` of the route {} stands for; write a uri with one `*`, at its end",
                K::NAME,
                route.route_id
            ));
            Stop::Internal
        })?;
        Ok(found.map(Into::into))
    }

    /// Sends an answer to the client while it comes.
    async fn pass_on(&self, answer: Response<AnswerContent>, mut reply: Reply) -> Result<(), Stop> {
        let (head, mut content) = answer.into_parts();
        let field =
            |(name, value): (&HeaderName, &HeaderValue)| (name.as_str().as_bytes().into(), value.as_bytes().into());
        let fields = head.headers.iter().map(field).collect();
        reply.begin_with(ReplyHead { status: head.status.as_u16(), fields }.end_to_end());
        loop {
            match content.next().await {
                Ok(Some(piece)) => reply.send(&piece).await,
                Ok(None) => return Ok(()),
                Err(failure) => return Err(self.failed(&failure, Stop::UpstreamAborted, &mut reply)),
            }
        }
    }

    fn failed(&self, failure: &CallError, stop: Stop, reply: &mut Reply) -> Stop {
        reply.notes().note_service_failure(K::NAME);
        self.outages.failed(format_args!("{}: {failure}", K::NAME));
        stop
    }
}

/// How an exchange ends whose function has sent no head of a response.
fn stop_of(failure: &CallError) -> Stop {
    match failure {
        CallError::NameLookup { .. } | CallError::AddressDenied { .. } | CallError::Connect { .. } => {
            Stop::ConnectFailed
        }
        CallError::NameLookupTimedOut { .. } | CallError::ConnectTimedOut { .. } | CallError::TlsTimedOut { .. } => {
            Stop::ConnectTimeout
        }
        CallError::Tls { .. } => Stop::UpstreamTls,
        CallError::AnswerTimedOut { .. } => Stop::ReadTimeout,
        CallError::Request(_) => Stop::Internal,
        _ => Stop::UpstreamClosed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exchange;

    #[test]
    fn the_path_behind_the_route_is_what_the_star_stands_for() {
        for (uri, path, behind) in [
            ("/aws/*", "/aws/a/b", Some("a/b")),
            ("/aws/*", "/aws/", Some("")),
            ("/aws*", "/aws/a", Some("/a")),
            ("/*", "/a", Some("a")),
            ("/:team/f/*", "/blue/f/a/b", Some("a/b")),
            ("/:team/f*", "/blue/fa/b", Some("a/b")),
            ("/aws/*rest", "/aws/a/b", Some("a/b")),
            ("*", "/a", Some("/a")),
            ("/%61ws/./*", "/aws/a", Some("a")),
            ("/café ?/*", "/caf%C3%A9%20%3F/a", Some("a")),
            ("/aws", "/aws", None),
            ("/aws/:name*", "/aws/a", None),
            ("/aws/*/edit", "/aws/a/edit", None),
        ] {
            let route = RouteFacts { uris: [uri.into()].into(), ..RouteFacts::default() };
            let found = path_behind_route(&route, path.as_bytes());
            assert_eq!(found, Ok(behind.map(str::as_bytes)), "{uri} {path}");
        }
    }

    #[test]
    fn a_uri_whose_last_star_is_not_clear_is_found() {
        let behind = |uris: &[&str], path: &'static str| {
            let uris = uris.iter().map(|uri| (*uri).into()).collect();
            let found = path_behind_route(&RouteFacts { uris, ..RouteFacts::default() }, path.as_bytes());
            found.map(|found| found.map(|found| String::from_utf8_lossy(found).into_owned()))
        };
        let unclear = Err("/a/*/f/*".to_owned());
        assert_eq!(behind(&["/a/*/f/*"], "/a/1/f/2"), unclear);
        assert_eq!(behind(&["/a/*", "/a/*/f/*"], "/a/1/f/2"), unclear);
        assert_eq!(behind(&["/a/*/f/*", "/b/*"], "/b/1"), Ok(Some("1".to_owned())));
        assert_eq!(behind(&["/b", "/b/*"], "/b"), Ok(None));
        assert_eq!(behind(&["/b/*", "/b/c*"], "/b/cd"), Ok(Some("d".to_owned())));
        assert_eq!(behind(&["/b/*"], "/c"), Err("/b/*".to_owned()), "the route has another notion of its uri");
    }

    #[test]
    fn an_appended_path_does_not_lead_out_of_the_functions_path() {
        for behind in ["a", "/a", "a/b/", "/", ".well-known", "..a", "a..", ".../a", "a%20b", "/a%2Fb", "a:b;c=d"] {
            assert!(stays_below(behind.as_bytes()), "{behind}");
        }
        for behind in [
            "..",
            ".",
            "../a",
            "./a",
            "/../a",
            "a/../../b",
            "a/.",
            "%2e%2e/a",
            ".%2E/a",
            "%2e",
            "..;a/b",
            "..%2Fa",
            "..%5Ca",
        ] {
            assert!(!stays_below(behind.as_bytes()), "{behind}");
        }
    }

    #[test]
    fn p02_a_function_is_told_of_the_client_by_the_gateway() {
        let mut request = exchange(
            "POST / HTTP/1.1\nHost: shop.example\nX-Forwarded-For: 10.0.0.1\nX-Real-IP: 10.0.0.1\nX-Forwarded-Proto: https\n\
             Forwarded: for=10.0.0.1\nTE: trailers\nContent-Length: 3\nExpect: 100-continue\nA: 1\nA: 2",
        );
        let told = |request: &Exchange| {
            let fields = FunctionClient::of(request).fields(&request.request, |_| false).expect("valid");
            let text = |value: &HeaderValue| value.to_str().expect("text").to_owned();
            let mut told: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect();
            told.sort();
            told
        };
        let of_gateway = ["x-forwarded-for: 192.0.2.7", "x-forwarded-host: shop.example", "x-forwarded-port: 0"];
        let expected =
            [&["a: 1", "a: 2"][..], &of_gateway, &["x-forwarded-proto: http", "x-real-ip: 192.0.2.7"]].concat();
        assert_eq!(told(&request), expected);
        request.client.trusted = true;
        let trusted = told(&request);
        for line in [
            "forwarded: for=10.0.0.1",
            "x-forwarded-for: 10.0.0.1, 192.0.2.7",
            "x-forwarded-proto: https",
            "x-forwarded-port: 443",
            "x-real-ip: 10.0.0.1",
        ] {
            assert!(trusted.iter().any(|told| told == line), "{trusted:?}");
        }
        request.client.addr = [10, 0, 0, 2].into();
        let found = told(&request);
        assert!(
            found.iter().any(|line| line == "x-real-ip: 10.0.0.2"),
            "a plugin has found another address: {found:?}"
        );
        request.request.head.withhold(b"X-Forwarded-Host");
        assert!(!told(&request).iter().any(|line| line.starts_with("x-forwarded-host")), "a plugin has removed it");
        let without_host = told(&exchange("GET / HTTP/1.0\nA: 1"));
        assert!(!without_host.iter().any(|line| line.starts_with("x-forwarded-host")), "{without_host:?}");
    }
}
