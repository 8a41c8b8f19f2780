mod changes;
mod grpc;
mod http;
mod messages;
mod options;
mod query;
mod told;

use std::fmt;
use std::sync::Arc;

use ::http::{Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::time::timeout;
use weir_client::CallError;
use weir_plugin::proto::Method;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, NoteKey, Phases, Plugin, Stage, Stop};

use crate::envoy::fields::is_of_gateway;
use crate::envoy::names::FieldNameList;
use crate::rate_limited_log::OutageLog;

use self::http::HttpCheck;
use changes::{Changes, CheckRefusal};
use grpc::GrpcCheck;
use told::{ToldContent, ToldParts};
use weir_services::http_service::HttpService;

pub(crate) use options::ExtAuthz;

/// The most bytes of an answer.
const MOST_ANSWERED: usize = 1024 * 1024;

/// Tells the upstream that the service has not decided.
const UNDECIDED: &[u8] = b"x-envoy-auth-failure-mode-allowed";

impl Definition for ExtAuthz {
    const NAME: &'static str = "ext-authz";
    const PRIORITY: i32 = 2000;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"ext-authz:
  grpc_service: { uri: "http://127.0.0.1:9191" }
  remove_client_headers: [X-User]"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self.authorizer(build)?))
    }
}

/// How a service is asked.
enum Check {
    Grpc(GrpcCheck),
    Http(HttpCheck),
}

/// What a service has answered.
#[derive(Debug, PartialEq, Eq)]
enum AuthorizationAnswer {
    Allowed(Changes),
    Refused(CheckRefusal),
    /// The service says itself that it could not decide.
    Failed(CheckRefusal),
}

/// Why there is no decision.
enum CheckFailure {
    /// The request cannot be told: the client has sent a value that is not valid.
    Request,
    Call(CallError),
    Answer(String),
    /// The answer of the service for this case.
    Told(CheckRefusal),
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckFailure::Request => write!(f, "the request has a field that cannot be told"),
            CheckFailure::Call(error) => error.fmt(f),
            CheckFailure::Answer(problem) => problem.fmt(f),
            CheckFailure::Told(refusal) => write!(f, "the service could not decide, and answers {}", refusal.status),
        }
    }
}

/// The content that the service gets.
struct ContentTerms {
    most_told: usize,
    most_held: u64,
}

struct ExternalAuthorizer {
    check: Check,
    told: ToldParts,
    content: Option<ContentTerms>,
    removed_of_client: FieldNameList,
    trusted: FieldNameList,
    /// The key of the fields of an allowing answer that the client gets.
    granted: NoteKey,
    allows_failures: bool,
    marks_failures: bool,
    status_on_error: u16,
    outages: OutageLog,
}

impl Plugin for ExternalAuthorizer {
    fn phases(&self) -> Phases {
        let requests = match self.content {
            None => Phases::REQUEST,
            Some(_) => Phases::REQUEST.and(Phases::REQUEST_BODY),
        };
        match &self.check {
            Check::Http(check) if check.client_on_success.is_empty() => requests,
            _ => requests.and(Phases::RESPONSE),
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        remove_listed(&self.removed_of_client, exchange);
        if self.marks_failures {
            exchange.request.head.remove(UNDECIDED);
        }
        if self.needs_content(exchange) {
            // Plugins that run before the decision must not take the client's fields for those of the service.
            self.remove_fields_of_service(exchange);
            return Ok(Flow::Continue);
        }
        Ok(Flow::wait(self.decide(exchange, b"")))
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let content = self.content.as_ref().filter(|_| self.needs_content(exchange));
        Ok(content.map(|content| content.most_held))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(self.decide(exchange, body)))
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let Some(granted) = exchange.notes.kept(self.granted).cloned() else { return Ok(()) };
        let granted = granted.borrow();
        changes::read(&granted).try_for_each(|change| changes::apply_to_response(&change, exchange))
    }
}

impl ExternalAuthorizer {
    /// Whether the service is asked only once the content of the request has been received. What follows a WebSocket's handshake is
    /// no content, and `PURGE`, which `proxy-cache` answers without waiting for content, has none that means anything.
    fn needs_content(&self, exchange: &Exchange) -> bool {
        let request = &exchange.request;
        self.content.is_some() && request.framing.has_body() && !request.upgrade && request.method != Method::Purge
    }

    async fn decide(&self, exchange: &mut Exchange, content: &[u8]) -> Result<(), Stop> {
        let answer = match self.ask(exchange, content).await {
            Ok(AuthorizationAnswer::Failed(refusal)) => Err(CheckFailure::Told(refusal)),
            other => other,
        };
        if answer.is_ok() {
            self.outages.answered(|| format!("ext-authz: {} answers again", self.service().name()));
        }
        match answer {
            Ok(AuthorizationAnswer::Allowed(changes)) => self.admit(exchange, &changes),
            Ok(AuthorizationAnswer::Refused(refusal) | AuthorizationAnswer::Failed(refusal)) => {
                Err(refusal.send(exchange))
            }
            Err(CheckFailure::Request) => Err(Stop::Respond(400)),
            Err(failure) => {
                exchange.note_service_failure();
                self.outages.failed(format_args!("ext-authz: {}: {failure}", self.service().name()));
                self.fail(exchange, failure)
            }
        }
    }

    fn fail(&self, exchange: &mut Exchange, failure: CheckFailure) -> Result<(), Stop> {
        if !self.allows_failures {
            return Err(match failure {
                CheckFailure::Told(refusal) => refusal.send(exchange),
                _ => Stop::Respond(self.status_on_error),
            });
        }
        // The service has not set its fields, so those of the client must not be forwarded.
        self.remove_fields_of_service(exchange);
        if self.marks_failures {
            exchange.request.head.set(UNDECIDED, b"true").map_err(|_| Stop::Internal)?;
        }
        Ok(())
    }

    fn service(&self) -> &HttpService {
        match &self.check {
            Check::Grpc(check) => &check.0.service,
            Check::Http(check) => &check.service,
        }
    }

    async fn ask(&self, exchange: &Exchange, content: &[u8]) -> Result<AuthorizationAnswer, CheckFailure> {
        let content = self.content.as_ref().map(|terms| {
            let told = content.len().min(terms.most_told);
            ToldContent { bytes: &content[..told], is_partial: told < content.len() }
        });
        let request = match &self.check {
            Check::Grpc(check) => check.request(exchange, &self.told.message(exchange, content)),
            Check::Http(check) => check.request(exchange, &self.told, content),
        };
        let answer = self.call(request.ok_or(CheckFailure::Request)?).await.map_err(CheckFailure::Call)?;
        let decided = match &self.check {
            Check::Grpc(_) => grpc::read(&answer, |name| self.trusted.contain(name)),
            Check::Http(check) => check.read(&answer),
        };
        decided.map_err(CheckFailure::Answer)
    }

    /// A connection that breaks before there is an answer is no failure yet: the call is repeated once, within the same time.
    async fn call(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, CallError> {
        let service = self.service();
        let calls = async {
            match service.ask(request.clone(), MOST_ANSWERED).await {
                Err(CallError::Broken { .. }) => service.ask(request, MOST_ANSWERED).await,
                other => other,
            }
        };
        let late = |_| CallError::AnswerTimedOut { origin: service.name(), after: service.timeout };
        timeout(service.timeout, calls).await.map_err(late)?
    }

    fn remove_fields_of_service(&self, exchange: &mut Exchange) {
        if let Check::Http(check) = &self.check {
            remove_listed(&check.upstream, exchange);
        }
    }

    fn admit(&self, exchange: &mut Exchange, changes: &Changes) -> Result<(), Stop> {
        // A field that the service did not set must not be forwarded from the client.
        self.remove_fields_of_service(exchange);
        changes.apply(exchange)?;
        if !changes.response.is_empty() {
            let mut lines = Vec::new();
            changes::write(&changes.response, &mut lines);
            exchange.notes.keep(self.granted, exchange.client.addr).borrow_mut().extend(&lines);
        }
        Ok(())
    }
}

/// Removes the fields of the request that an option lists: those of the gateway only if it names them.
fn remove_listed(names: &FieldNameList, exchange: &mut Exchange) {
    if names.is_empty() {
        return;
    }
    let head = &mut exchange.request.head;
    let is_listed = |name: &[u8]| names.contain(name) && (!is_of_gateway(name) || names.contain_whole(name));
    let listed = head.fields().filter(|(name, _)| is_listed(name));
    let listed: Vec<Box<[u8]>> = listed.map(|(name, _)| name.into()).collect();
    for name in listed {
        head.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::envoy::fields::FieldChange;
    use crate::testing::{exchange, refused};

    fn authorizer(options: Value) -> ExternalAuthorizer {
        let options: ExtAuthz = serde_json::from_value(options).expect("valid options");
        options.authorizer(&mut Build::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn an_http_service_gets_the_method_and_the_path_of_the_request() {
        let door = authorizer(json!({
            "http_service": {
                "server_uri": "http://auth.example:9091", "path_prefix": "/check",
                "headers_to_add": {"X-Addr": "$remote_addr"},
            },
            "allowed_headers": ["X-Tenant"],
        }));
        let Check::Http(check) = &door.check else { panic!("it is asked over HTTP") };
        let head =
            "PUT /a/../b?x=\"1\" HTTP/1.1\nHost: shop.example:81\nAuthorization: t\nX-Tenant: blue\nX-Addr: 1\nX-A: 1";
        let request = check.request(&exchange(head), &door.told, None).expect("valid");
        assert_eq!((request.method().as_str(), &*request.uri().to_string()), ("PUT", "/check/b?x=%221%22"));
        let told: Vec<(&str, &str)> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
        let mut sorted = told.clone();
        sorted.sort_unstable();
        let want = [
            ("authorization", "t"),
            ("content-length", "0"),
            ("host", "shop.example:81"),
            ("x-addr", "192.0.2.7"),
            ("x-tenant", "blue"),
        ];
        assert_eq!(sorted, want);
    }

    #[test]
    fn the_answer_of_an_http_service_is_the_decision() {
        let door = authorizer(json!({"http_service": {
            "server_uri": "http://a", "allowed_upstream_headers": ["X-User", "X-App-*", "X-Real-IP"],
            "allowed_client_headers_on_success": ["Set-Cookie"], "dynamic_metadata_from_headers": ["X-Org"],
            "allowed_client_headers": ["X-Reason"],
        }}));
        let Check::Http(check) = &door.check else { panic!("it is asked over HTTP") };
        let answer = |status: u16| {
            let answer = Response::builder().status(status).header("X-User", "jack").header("X-App-A", "1");
            let answer = answer.header("X-Other", "1").header("Set-Cookie", "a=1").header("X-Org", "7");
            let answer =
                answer.header("X-Envoy-Auth-Headers-To-Remove", "Authorization, X-Old").header("X-Reason", "no");
            let answer = answer.header("X-Real-IP", "192.0.2.1").header("Location", "/login").header("Date", "now");
            answer.body(Bytes::from_static(b"text")).expect("valid")
        };
        let names = |changes: &[FieldChange]| {
            let mut names: Vec<String> =
                changes.iter().map(|change| String::from_utf8_lossy(&change.name).into_owned()).collect();
            names.sort_unstable();
            names
        };
        let Ok(AuthorizationAnswer::Allowed(allowed)) = check.read(&answer(200)) else { panic!("200 allows") };
        assert_eq!(names(&allowed.request), ["x-app-a", "x-real-ip", "x-user"]);
        assert_eq!(names(&allowed.response), ["set-cookie"]);
        assert_eq!(allowed.removed, [b"Authorization".as_slice().into(), b"X-Old".as_slice().into()]);
        assert_eq!(allowed.metadata, [("x-org".to_owned(), b"7".to_vec())]);
        for status in [204, 302, 401, 404] {
            let Ok(AuthorizationAnswer::Refused(refusal)) = check.read(&answer(status)) else {
                panic!("{status} refuses")
            };
            assert_eq!((refusal.status, &*refusal.body), (status, &b"text"[..]));
            assert_eq!(names(&refusal.fields), ["location", "x-reason"]);
        }
        for status in [500, 503, 999] {
            assert_eq!(check.read(&answer(status)), Err(format!("the answer is {status}")));
        }
    }

    #[test]
    fn fields_of_the_service_are_not_taken_from_the_client() {
        let door = authorizer(json!({
            "http_service": {"server_uri": "http://a", "allowed_upstream_headers": ["X-User-*"]},
            "failure_mode_allow": true, "failure_mode_allow_header_add": true,
        }));
        let head = "GET / HTTP/1.1\nHost: h\nX-User-Name: root\nx-user-role: all\nX-User: 1\nX-Envoy-Auth-Failure-Mode-Allowed: no";
        let mut request = exchange(head);
        assert_eq!(door.admit(&mut request, &Changes::default()), Ok(()));
        let names = |request: &Exchange| {
            request
                .request
                .head
                .fields()
                .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&request), ["Host", "X-User", "X-Envoy-Auth-Failure-Mode-Allowed"]);
        let mut request = exchange(head);
        assert_eq!(door.fail(&mut request, CheckFailure::Answer(String::new())), Ok(()));
        assert_eq!(names(&request), ["Host", "X-User", "x-envoy-auth-failure-mode-allowed"]);
        assert_eq!(request.request.head.value(UNDECIDED), Some(&b"true"[..]));
    }

    #[test]
    fn fields_of_the_gateway_are_removed_only_by_their_whole_names() {
        let removed = |names: Value| {
            let door = authorizer(json!({"grpc_service": {"uri": "http://a"}, "remove_client_headers": names}));
            let mut request = exchange("GET / HTTP/1.1\nHost: h\nX-User: a");
            request.request.head.add(b"X-Consumer-Username", b"jack").expect("valid");
            remove_listed(&door.removed_of_client, &mut request);
            request.request.head.fields().count()
        };
        assert_eq!(removed(json!(["X-*"])), 2);
        assert_eq!(removed(json!(["X-*", "X-Consumer-Username"])), 1);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let grpc = json!({"uri": "http://a"});
        for (options, want) in [
            (json!({}), "needs one of `grpc_service` and `http_service`"),
            (
                json!({"grpc_service": grpc, "http_service": {"server_uri": "http://a"}}),
                "has `grpc_service` and `http_service`; keep one of them",
            ),
            (json!({"grpc_service": {}}), "grpc_service: the option `uri` is missing"),
            (json!({"grpc_service": {"uri": "a:9191"}}), "grpc_service.uri: `a:9191` is not a URL"),
            (json!({"grpc_service": {"uri": "http://a/x"}}), "grpc_service.uri: has a path"),
            (json!({"grpc_service": {"uri": "http://a", "authority": "a b"}}), "grpc_service.authority: is not"),
            (
                json!({"grpc_service": {"uri": "http://a", "initial_metadata": {"grpc-x": "a"}}}),
                "grpc_service.initial_metadata.grpc-x: is set by",
            ),
            (
                json!({"grpc_service": {"uri": "http://a", "initial_metadata": {"Host": "a"}}}),
                "grpc_service.initial_metadata.Host: is set by",
            ),
            (
                json!({"grpc_service": grpc, "context_extensions": {"who": "$post_arg_user"}}),
                "context_extensions.who: uses `$post_arg_user`",
            ),
            (
                json!({"http_service": {"server_uri": "http://a"}, "context_extensions": {"a": "b"}}),
                "context_extensions: has no effect with `http_service`",
            ),
            (json!({"http_service": {"server_uri": "http://a/x"}}), "http_service.server_uri: has a path"),
            (
                json!({"http_service": {"server_uri": "http://a", "path_prefix": "x"}}),
                "http_service.path_prefix: must begin with `/`",
            ),
            (
                json!({"http_service": {"server_uri": "http://a", "allowed_upstream_headers": ["*"]}}),
                "http_service.allowed_upstream_headers: lists all fields",
            ),
            (json!({"grpc_service": grpc, "allowed_headers": ["a b"]}), "allowed_headers[0]: is not the name"),
            (json!({"grpc_service": grpc, "trusted_headers": ["X-A"]}), "trusted_headers[0]: is a field that"),
            (
                json!({"grpc_service": grpc, "with_request_body": {"max_request_bytes": 10, "max_held_bytes": 9, "allow_partial_message": true}}),
                "with_request_body.max_held_bytes: must be at least",
            ),
            (
                json!({"grpc_service": grpc, "failure_mode_allow_header_add": true}),
                "failure_mode_allow_header_add: has no",
            ),
        ] {
            let error = refused::<ExtAuthz>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
