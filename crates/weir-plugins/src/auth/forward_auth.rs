mod decisions;
mod sign_in;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, NoteKey, Phases, Plugin, Stage, Stop, Template,
};

use crate::options::early_template::needs_no_content;
use crate::options::headers::{Scalar, header_name};
use crate::rate_limited_log::OutageLog;

use decisions::DecisionCache;
use sign_in::SignIn;
use weir_services::http_service::{HttpService, ServiceCallOptions};

/// Asks an external service over HTTP whether a request is allowed, as `auth_request` of nginx and `ForwardAuth` of
/// Traefik do.
///
/// The service gets the scheme, the method, the host, the path with the query, and the client's address in
/// `X-Forwarded-*` fields, as they were before `proxy-rewrite`. The path is the one that routes are matched with: decoded and
/// normalised. A status below 300 allows the request. Any other response is sent to the client, with its body.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForwardAuth {
    /// The `http` or `https` URL of the service.
    #[schemars(extend("x-weir-reaches" = "server"))]
    uri: String,
    /// The method of the request to the service. With `POST` the service also gets the body of the client's request,
    /// after all plugins have accepted the request's header fields.
    #[serde(default)]
    request_method: RequestMethod,
    /// Header fields of the client's request that are sent to the service, in addition to `X-Forwarded-*`. `["*"]` sends all
    /// of them, except those that describe the connection or the content.
    #[serde(default)]
    request_headers: Vec<String>,
    /// Additional header fields that are sent to the service. Values may contain `$variables`, but not those of the content, such
    /// as `$post_arg_user`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    extra_headers: BTreeMap<String, Scalar>,
    /// Header fields of the service's response that are sent to the upstream. Fields of these names in the client's
    /// request are always removed.
    #[serde(default)]
    upstream_headers: Vec<String>,
    /// Header fields of the service's response that are sent to the client with a refusal.
    #[serde(default)]
    client_headers: Vec<String>,
    /// Header fields of an allowing response of the service that are added to the response to the client, such as the
    /// `Set-Cookie` of a session that was extended. Not in APISIX.
    #[serde(default)]
    client_headers_on_success: Vec<String>,
    /// A sign-in page, to which clients are redirected with 302 if the service answers with 401. It may contain
    /// `$variables`. Not in APISIX.
    signin_url: Option<String>,
    /// The query argument of the sign-in page that gets the URL of the request, unless `signin_url` already contains this
    /// argument. Not in APISIX.
    #[serde(default = "default_signin_redirect_param")]
    signin_redirect_param: String,
    /// Text with `$variables`: a decision of the service (a status below 300, 401 or 403) is used again for requests with
    /// the same text, whatever their path and method are, unless they are in the text. A request in which all of the
    /// variables are missing is always decided by the service. Decisions with `Set-Cookie`, or with `no-store`, `no-cache`
    /// or `private` in `Cache-Control`, are not used again. Not in APISIX.
    cache_key: Option<String>,
    /// How long a decision is used again with `cache_key`, in seconds. Not in APISIX.
    #[serde(default = "default_cache_ttl")]
    #[schemars(range(min = 1, max = 86_400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    cache_ttl: u64,
    #[serde(flatten)]
    call: ServiceCallOptions,
    /// Allows requests when the service does not answer.
    #[serde(default)]
    allow_degradation: bool,
    /// The status of refusals when the service does not answer, 200 to 599.
    #[serde(default = "default_status_on_error")]
    #[schemars(range(min = 200, max = 599))]
    status_on_error: u16,
    /// With `POST`, the maximum size of a request body, in bytes. Requests with a larger body are refused with 413.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
}

/// How the service is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum RequestMethod {
    #[default]
    Get,
    Post,
}

fn default_signin_redirect_param() -> String {
    "rd".to_owned()
}

fn default_cache_ttl() -> u64 {
    300
}

fn default_max_req_body_size() -> u64 {
    64 << 20
}

fn default_status_on_error() -> u16 {
    403
}

/// The most bytes of an answer, which the client gets if it is a refusal.
const MOST_ANSWERED: usize = 1024 * 1024;

impl Definition for ForwardAuth {
    const NAME: &'static str = "forward-auth";
    const PRIORITY: i32 = 2002;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"forward-auth:
  uri: http://127.0.0.1:9000/check
  request_headers: [Authorization]
  upstream_headers: [X-User]
  client_headers: [WWW-Authenticate, Location]"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let service =
            (self.check(), self.call.service(build.http(), &self.uri, "uri")).all_of().map(|((), service)| service);
        let extra = |(name, value): (String, Scalar)| {
            let path = format!("extra_headers.{name}");
            let template = value.template(&path, build).and_then(|template| {
                needs_no_content(&template, &path)?;
                Ok(template)
            });
            (field_name(&name, &path), template).all_of()
        };
        let extra_headers = self.extra_headers.into_iter().map(extra).collect_all();
        let sign_in = self.signin_url.map(|url| SignIn::new(&url, &self.signin_redirect_param, build)).transpose();
        let fields = (
            RequestFields::new(&self.request_headers),
            field_names(&self.client_headers_on_success, "client_headers_on_success"),
            field_names(&self.upstream_headers, "upstream_headers"),
            field_names(&self.client_headers, "client_headers"),
        );
        let (service, extra_headers, sign_in, fields) = (service, extra_headers, sign_in, fields.all_of()).all_of()?;
        let (request_headers, success_headers, upstream_headers, client_headers) = fields;
        let ttl = Duration::from_secs(self.cache_ttl);
        Ok(Arc::new(ForwardAuthorizer {
            service,
            method: self.request_method,
            most_content: self.max_req_body_size,
            request_headers,
            success_headers,
            granted: NoteKey::unique(),
            sign_in,
            cache: self.cache_key.map(|key| DecisionCache::new(&key, ttl, build)),
            extra_headers,
            upstream_headers,
            client_headers,
            allow_degradation: self.allow_degradation,
            status_on_error: self.status_on_error,
            outages: OutageLog::default(),
        }))
    }
}

impl ForwardAuth {
    /// Checks options that need nothing but themselves.
    fn check(&self) -> Result<(), ConfigError> {
        if self.cache_key.is_some() && self.request_method == RequestMethod::Post {
            return Err(ConfigError::new(
                "cache_key",
                "cannot be used with `request_method: POST`: the content decides, too",
            ));
        }
        self.cache_key.as_ref().map_or(Ok(()), |key| needs_no_content(&Template::compile(key), "cache_key"))
    }
}

fn field_names(names: &[String], path: &str) -> Result<Box<[HeaderName]>, ConfigError> {
    names.iter().enumerate().map(|(index, name)| field_name(name, &format!("{path}[{index}]"))).collect_all()
}

fn field_name(name: &str, path: &str) -> Result<HeaderName, ConfigError> {
    let checked = header_name(name, path)?;
    HeaderName::from_bytes(checked).map_err(|_| ConfigError::new(path, "is not the name of a header field"))
}

/// The fields of a client's request that the service gets.
enum RequestFields {
    All,
    Named(Box<[HeaderName]>),
}

impl RequestFields {
    fn new(names: &[String]) -> Result<RequestFields, ConfigError> {
        match names {
            [all] if all == "*" => Ok(RequestFields::All),
            names => field_names(names, "request_headers").map(RequestFields::Named),
        }
    }

    /// Appends the fields of the request; `None` if one has a value that the service cannot get.
    fn append(&self, exchange: &Exchange, fields: &mut HeaderMap) -> Option<()> {
        let head = &exchange.request.head;
        match self {
            RequestFields::Named(names) => {
                for name in names {
                    for value in head.values(name.as_str().as_bytes()) {
                        fields.append(name, HeaderValue::from_bytes(value).ok()?);
                    }
                }
            }
            RequestFields::All => {
                for (name, value) in head.fields() {
                    let name = HeaderName::from_bytes(name).ok()?;
                    // The rules for options keep out the fields of the connection and of the content's length.
                    if header_name(name.as_str(), "").is_ok() && !OF_CONTENT.contains(&name) {
                        fields.append(name, HeaderValue::from_bytes(value).ok()?);
                    }
                }
            }
        }
        Some(())
    }
}

/// Fields that describe content, which a call with GET does not have.
const OF_CONTENT: [HeaderName; 4] = [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LENGTH, http::header::EXPECT];

struct ForwardAuthorizer {
    service: HttpService,
    method: RequestMethod,
    most_content: u64,
    request_headers: RequestFields,
    success_headers: Box<[HeaderName]>,
    /// The key of the fields of an allowing answer that the client gets.
    granted: NoteKey,
    sign_in: Option<SignIn>,
    cache: Option<DecisionCache>,
    extra_headers: Box<[(HeaderName, Template)]>,
    upstream_headers: Box<[HeaderName]>,
    client_headers: Box<[HeaderName]>,
    allow_degradation: bool,
    status_on_error: u16,
    outages: OutageLog,
}

impl Plugin for ForwardAuthorizer {
    fn phases(&self) -> Phases {
        let requests = match self.method {
            RequestMethod::Get => Phases::REQUEST,
            RequestMethod::Post => Phases::REQUEST.and(Phases::REQUEST_BODY),
        };
        if self.success_headers.is_empty() { requests } else { requests.and(Phases::RESPONSE) }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(async move {
            match self.needs_content(exchange) {
                // The fields of the auth service are removed now, so that plugins that run before the call do not see
                // them either.
                true => {
                    self.remove_upstream_headers(exchange);
                    Ok(())
                }
                false => self.decide(exchange, Bytes::new()).await,
            }
        }))
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(self.needs_content(exchange).then_some(self.most_content))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(self.decide(exchange, Bytes::copy_from_slice(body))))
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some(granted) = exchange.notes.kept(self.granted).cloned() else { return Ok(()) };
        for line in granted.borrow().split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len() - 1);
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            exchange.response.head.add(name, value).map_err(|_| Stop::Internal)?;
        }
        Ok(())
    }
}

/// The canonical path and the query of the client. The path is not shown as the client wrote it: a service that compares
/// paths would judge `/public/%2e%2e/admin` as another one than the upstream gets.
fn judged_uri(exchange: &Exchange) -> Vec<u8> {
    let request = &exchange.request;
    match request.client_query() {
        None => request.client_path().to_vec(),
        Some(query) => [request.client_path(), b"?", query].concat(),
    }
}

/// The fields of a call that describe the request, with the names of Apache APISIX. They are those of the client's request:
/// `proxy-rewrite`, which has run before, changes what the upstream gets and not what the client asked for.
fn request_fields(exchange: &Exchange) -> [(&'static str, Vec<u8>); 5] {
    let request = &exchange.request;
    [
        ("x-forwarded-proto", exchange.scheme().into()),
        ("x-forwarded-method", request.client_method_name().into()),
        ("x-forwarded-host", request.host().into()),
        ("x-forwarded-uri", judged_uri(exchange)),
        ("x-forwarded-for", exchange.client.addr.to_canonical().to_string().into()),
    ]
}

impl ForwardAuthorizer {
    /// Whether the service is called only once the content of the request has been received.
    fn needs_content(&self, exchange: &Exchange) -> bool {
        self.method == RequestMethod::Post && exchange.request.framing.has_body()
    }

    async fn decide(&self, exchange: &mut Exchange, content: Bytes) -> Result<(), Stop> {
        let cached = self.cache.as_ref().and_then(|cache| Some((cache, cache.key(exchange)?)));
        if let Some(answer) = cached.and_then(|(cache, key)| cache.find(key)) {
            return self.carry_out(exchange, &answer);
        }
        // Only a value of the client, in a template, can be invalid.
        let auth_request = self.auth_request(exchange, content).ok_or(Stop::Respond(400))?;
        match self.service.ask(auth_request, MOST_ANSWERED).await.map(Rc::new) {
            Ok(answer) => {
                self.outages.answered(|| format!("forward-auth: {} answers again", self.service.name()));
                if let Some((cache, key)) = cached {
                    cache.keep(key, &answer);
                }
                self.carry_out(exchange, &answer)
            }
            Err(failure) => {
                exchange.note_service_failure();
                self.outages.failed(format_args!("forward-auth: {}: {failure}", self.service.name()));
                match self.allow_degradation {
                    // The service has not set its fields, so those of the client must not be forwarded.
                    true => {
                        self.remove_upstream_headers(exchange);
                        Ok(())
                    }
                    false => Err(Stop::Respond(self.status_on_error)),
                }
            }
        }
    }

    fn carry_out(&self, exchange: &mut Exchange, answer: &Response<Bytes>) -> Result<(), Stop> {
        if answer.status().as_u16() < 300 { self.admit(exchange, answer) } else { Err(self.refuse(exchange, answer)) }
    }

    fn auth_request(&self, exchange: &Exchange, content: Bytes) -> Option<Request<Full<Bytes>>> {
        let mut fields = HeaderMap::new();
        self.request_headers.append(exchange, &mut fields)?;
        if self.method == RequestMethod::Post {
            // The fields that describe the content.
            for name in [CONTENT_TYPE, CONTENT_ENCODING] {
                if let Some(value) = exchange.request.head.value(name.as_str().as_bytes()) {
                    fields.insert(name, HeaderValue::from_bytes(value).ok()?);
                }
            }
        }
        for (name, template) in &self.extra_headers {
            let mut value = Vec::new();
            template.render(exchange, &mut value);
            fields.insert(name, HeaderValue::from_bytes(&value).ok()?);
        }
        // After the client's fields, so that the client cannot set these.
        for (name, value) in request_fields(exchange) {
            fields.insert(name, HeaderValue::from_bytes(&value).ok()?);
        }
        if self.method == RequestMethod::Post && content.is_empty() {
            fields.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let mut request = Request::new(Full::new(content));
        *request.method_mut() = match self.method {
            RequestMethod::Get => Method::GET,
            RequestMethod::Post => Method::POST,
        };
        *request.uri_mut() = self.service.target.parse().ok()?;
        *request.headers_mut() = fields;
        Some(request)
    }

    fn remove_upstream_headers(&self, exchange: &mut Exchange) {
        for name in &self.upstream_headers {
            exchange.request.head.remove(name.as_str().as_bytes());
        }
    }

    fn admit(&self, exchange: &mut Exchange, answer: &Response<Bytes>) -> Result<(), Stop> {
        // A field that the service did not set must not be forwarded from the client.
        self.remove_upstream_headers(exchange);
        for name in &self.upstream_headers {
            for value in answer.headers().get_all(name) {
                let added = exchange.request.head.add(name.as_str().as_bytes(), value.as_bytes());
                added.map_err(|_| Stop::Internal)?;
                exchange.mark_personal(name.as_str().as_bytes());
            }
        }
        self.grant(exchange, answer);
        Ok(())
    }

    /// Stores the fields that the client gets with the response.
    fn grant(&self, exchange: &mut Exchange, answer: &Response<Bytes>) {
        let lines: Vec<Vec<u8>> = self
            .success_headers
            .iter()
            .flat_map(|name| {
                answer.headers().get_all(name).iter().map(move |value| (name.as_str().as_bytes(), value.as_bytes()))
            })
            .map(|(name, value)| [name, b":", value, b"\n"].concat())
            .collect();
        if !lines.is_empty() {
            exchange.notes.keep(self.granted, exchange.client.addr).borrow_mut().extend(&lines.concat());
        }
    }

    fn refuse(&self, exchange: &mut Exchange, answer: &Response<Bytes>) -> Stop {
        if let (401, Some(sign_in)) = (answer.status().as_u16(), &self.sign_in) {
            let location = sign_in.location(exchange);
            let stop = exchange.respond(302, "text/plain; charset=utf-8", b"302 Found\n");
            let fields =
                self.client_headers.iter().filter(|name| ![CONTENT_TYPE, http::header::LOCATION].contains(name));
            return match self.add_to_response(exchange, answer, fields) {
                true if exchange.response.head.add(b"Location", location.as_bytes()).is_ok() => stop,
                _ => Stop::Internal,
            };
        }
        let content_type = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let content_type = content_type.unwrap_or("text/plain; charset=utf-8");
        let stop = exchange.respond(answer.status().as_u16(), content_type, answer.body());
        let fields = self.client_headers.iter().filter(|name| **name != CONTENT_TYPE);
        if self.add_to_response(exchange, answer, fields) { stop } else { Stop::Internal }
    }

    /// Adds fields of the answer to the response; `false` if one is not allowed there.
    fn add_to_response<'a>(
        &self,
        exchange: &mut Exchange,
        answer: &Response<Bytes>,
        mut names: impl Iterator<Item = &'a HeaderName>,
    ) -> bool {
        let head = &mut exchange.response.head;
        names.all(|name| {
            let mut values = answer.headers().get_all(name).iter();
            values.all(|value| head.add(name.as_str().as_bytes(), value.as_bytes()).is_ok())
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_client::{HttpClient, IdleConnections};

    use super::*;
    use crate::testing::{exchange, refused};

    fn door(options: serde_json::Value) -> ForwardAuthorizer {
        let options: ForwardAuth = serde_json::from_value(options).expect("valid");
        let names = |names: &[String]| field_names(names, "").expect("valid");
        let (client, idle) = (HttpClient::default(), IdleConnections::default());
        ForwardAuthorizer {
            method: options.request_method,
            most_content: options.max_req_body_size,
            service: HttpService::parse(&client, &options.uri, false, Duration::ZERO, idle, "").expect("valid"),
            request_headers: RequestFields::new(&options.request_headers).expect("valid"),
            success_headers: names(&options.client_headers_on_success),
            granted: NoteKey::unique(),
            sign_in: None,
            cache: None,
            extra_headers: Box::default(),
            upstream_headers: names(&options.upstream_headers),
            client_headers: names(&options.client_headers),
            allow_degradation: false,
            status_on_error: 403,
            outages: OutageLog::default(),
        }
    }

    #[test]
    fn the_service_is_told_what_is_asked_for() {
        let door = door(json!({"uri": "http://a/check?b=1", "request_headers": ["Authorization", "X-Forwarded-Uri"]}));
        let request = exchange(
            "GET /orders?x=1 HTTP/1.1\nHost: H.example:80\nAuthorization: Bearer t\nCookie: c\nX-Forwarded-Uri: /other",
        );
        let auth_request = door.auth_request(&request, Bytes::new()).expect("valid");
        assert_eq!(auth_request.uri(), "/check?b=1");
        let told: BTreeMap<&str, &str> =
            auth_request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
        let expected = [
            ("authorization", "Bearer t"),
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-host", "h.example"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-uri", "/orders?x=1"),
        ];
        assert_eq!(told, BTreeMap::from(expected));
    }

    #[test]
    fn the_service_judges_the_path_that_is_routed() {
        let door = door(json!({"uri": "http://a"}));
        for (target, told) in [
            ("/public/%2e%2e/admin?x=%2e", "/admin?x=%2e"),
            ("/%61dmin", "/admin"),
            ("/public/../admin?", "/admin?"),
            ("http://h/admin?x", "/admin?x"),
            ("http://h?x", "/?x"),
        ] {
            let mut request = exchange(&format!("GET {target} HTTP/1.1\nHost: h"));
            let shown = |request: &Exchange| {
                let auth_request = door.auth_request(request, Bytes::new()).expect("valid");
                auth_request.headers()["x-forwarded-uri"].to_str().expect("text").to_owned()
            };
            assert_eq!(shown(&request), told, "{target}");
            request.request.set_path(b"/internal", Some(b"y=1")).expect("valid");
            assert_eq!(shown(&request), told, "{target}, as it was before a rewrite");
        }
    }

    #[test]
    fn p02_fields_of_the_service_are_nobody_elses() {
        let door = door(json!({"uri": "http://a", "upstream_headers": ["X-User", "X-Roles"]}));
        let mut request = exchange("GET / HTTP/1.1\nHost: h\nX-User: admin\nx-roles: all\nA: 1");
        let answer = Response::builder().header("X-User", "jack").body(Bytes::new()).expect("valid");
        assert_eq!(door.admit(&mut request, &answer), Ok(()));
        let head = &request.request.head;
        assert_eq!(head.values(b"x-user").collect::<Vec<_>>(), [b"jack"]);
        assert_eq!((head.value(b"x-roles"), head.value(b"a")), (None, Some(&b"1"[..])));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `uri` is missing"),
            (json!({"uri": "auth.example"}), "uri: `auth.example` is not a URL"),
            (json!({"uri": "http://a", "request_method": "PUT"}), "request_method: `PUT` is not an allowed value"),
            (json!({"uri": "http://a", "signin_url": "login"}), "signin_url: `login` is not the URL of a page"),
            (
                json!({"uri": "http://a", "signin_url": "/", "signin_redirect_param": "a b"}),
                "signin_redirect_param: must be",
            ),
            (json!({"uri": "http://a", "cache_key": "a", "request_method": "POST"}), "cache_key: cannot be used"),
            (json!({"uri": "http://a", "client_headers": ["A", "b c"]}), "client_headers[1]: is not the name"),
            (json!({"uri": "http://a", "upstream_headers": ["Content-Length"]}), "upstream_headers[0]: controls"),
            (json!({"uri": "http://a", "extra_headers": {"X-A": "a\nb"}}), "extra_headers.X-A: has a character"),
            (
                json!({"uri": "http://a", "extra_headers": {"X-A": "u=$post_arg.user"}}),
                "extra_headers.X-A: uses `$post_arg.user`, and the content",
            ),
            (json!({"uri": "http://a", "cache_key": "$post_arg_user"}), "cache_key: uses `$post_arg_user`, and"),
        ] {
            let error = refused::<ForwardAuth>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
