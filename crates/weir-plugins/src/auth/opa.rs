mod decision;
mod input;

use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::options::headers::header_name;
use crate::rate_limited_log::OutageLog;

use decision::Decision;
use input::InputParts;
use weir_services::http_service::{HttpService, ServiceCallOptions};

/// Asks Open Policy Agent (OPA) whether a request is allowed.
///
/// For each request, the policy is queried with `POST /v1/data/POLICY`. The input describes the request as the client has sent
/// it, before `proxy-rewrite`: `{"input": {"type": "http", "request": {"scheme", "method", "host", "port", "path", "query",
/// "headers"}, "var": {"server_addr", "server_port", "remote_addr", "remote_port", "timestamp"}}}`. Only the header fields are
/// those that come to this plugin, as `proxy-rewrite` and authentication have left them. Their names are in lower case. A field or an argument that occurs several times is an array, and an argument without `=` is `true`.
/// The path is the one that routes are matched with: decoded and normalised.
///
/// The result of the policy is an object. The request is allowed only if its member `allow` is `true`. A refusal has the
/// status in `status_code` (403 by default), the header fields in `headers`, and as its body the text or the JSON in `reason`.
/// If OPA cannot be reached in time, the request is refused with 403. If the policy has no result, or the result has another
/// form, the request is refused with 503.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Opa {
    /// The `http` or `https` URL of OPA, such as `http://127.0.0.1:8181`.
    #[schemars(extend("x-weir-reaches" = "server"))]
    host: String,
    /// The path of the policy below `/v1/data/`: its package with slashes, such as `example/orders`. Its result must be an
    /// object with the member `allow`.
    #[schemars(length(min = 1))]
    policy: String,
    #[serde(flatten)]
    call: ServiceCallOptions,
    /// Adds `route` to the input: `id`, `name`, `uris`, `hosts` and `service_id` of the route, without its plugins.
    #[serde(default)]
    with_route: bool,
    /// Adds `service` to the input: `id` and `name` of the route's service, if it has one.
    #[serde(default)]
    with_service: bool,
    /// Adds `consumer` to the input, if the client is identified: `username`, `group_id`, `labels` and `credential_id`.
    /// Unlike in APISIX, its credentials are not in the input.
    #[serde(default)]
    with_consumer: bool,
    /// Header fields in `headers` of an allowing result that are sent to the upstream. Fields of these names in the
    /// client's request are always removed.
    #[serde(default)]
    #[schemars(length(min = 1))]
    send_headers_upstream: Option<Vec<String>>,
}

/// The most bytes of an answer of OPA.
const MOST_ANSWERED: usize = 1024 * 1024;

/// The status if OPA cannot be reached, as in APISIX.
const UNREACHABLE: u16 = 403;
/// The status if the answer is not a decision, as in APISIX.
const UNDECIDED: u16 = 503;

impl Definition for Opa {
    const NAME: &'static str = "opa";
    const PRIORITY: i32 = 2001;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"opa:
  host: http://127.0.0.1:8181
  policy: example/orders
  send_headers_upstream: [X-User]"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let service = self.call.service(build.http(), &self.host, "host").and_then(|mut service| {
            service.target = target(&service.target, &self.policy)?;
            Ok(service)
        });
        let names = self.send_headers_upstream.unwrap_or_default();
        let upstream_fields = names.into_iter().enumerate().map(|(index, name)| {
            header_name(&name, &format!("send_headers_upstream[{index}]"))?;
            Ok(name.into_boxed_str())
        });
        let (service, upstream_fields) = (service, upstream_fields.collect_all()).all_of()?;
        Ok(Arc::new(OpaAuthorizer {
            service,
            parts: InputParts { route: self.with_route, service: self.with_service, consumer: self.with_consumer },
            upstream_fields,
            outages: OutageLog::default(),
        }))
    }
}

/// The path of a query: that of the server's URL, below which OPA may be published, and that of the policy.
fn target(base: &str, policy: &str) -> Result<Box<str>, ConfigError> {
    if base.contains('?') {
        return Err(ConfigError::new(
            "host",
            "has a query; write only the URL of OPA, such as `http://127.0.0.1:8181`",
        ));
    }
    let is_segment = |segment: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
        !matches!(segment, "" | "." | "..") && segment.bytes().all(is_allowed)
    };
    let policy = policy.strip_prefix('/').unwrap_or(policy);
    match policy.split('/').all(is_segment) {
        true => Ok(format!("{}/v1/data/{policy}", base.trim_end_matches('/')).into()),
        false => Err(ConfigError::new("policy", "is not the path of a policy; write its package as `example/orders`")),
    }
}

struct OpaAuthorizer {
    service: HttpService,
    parts: InputParts,
    upstream_fields: Box<[Box<str>]>,
    outages: OutageLog,
}

impl Plugin for OpaAuthorizer {
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        Ok(Flow::wait(async move {
            let decision = self.query(exchange).await.inspect_err(|_| exchange.note_service_failure())?;
            if decision.is_allowed { self.admit(exchange, &decision) } else { Err(refuse(exchange, &decision)) }
        }))
    }
}

impl OpaAuthorizer {
    async fn query(&self, exchange: &Exchange) -> Result<Decision, Stop> {
        let input = input::document(exchange, self.parts).to_string();
        let mut request = Request::new(Full::new(input.into()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.service.target.parse().map_err(|_| Stop::Internal)?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = self.service.ask(request, MOST_ANSWERED).await.map_err(|failure| {
            self.outages.failed(format_args!("opa: {}: {failure}", self.service.name()));
            Stop::Respond(UNREACHABLE)
        })?;
        let decision = Decision::parse(answer.body()).map_err(|problem| {
            let (name, target, status) = (self.service.name(), &self.service.target, answer.status());
            self.outages.failed(format_args!("opa: {name}{target} answered {status}: {problem}"));
            Stop::Respond(UNDECIDED)
        })?;
        self.outages.answered(|| format!("opa: {} answers again", self.service.name()));
        Ok(decision)
    }

    fn admit(&self, exchange: &mut Exchange, decision: &Decision) -> Result<(), Stop> {
        for name in &self.upstream_fields {
            // A field that OPA did not set must not be forwarded from the client.
            exchange.request.head.remove(name.as_bytes());
            for value in decision.values(name) {
                exchange.request.head.add(name.as_bytes(), value.as_bytes()).map_err(|_| Stop::Internal)?;
                exchange.mark_personal(name.as_bytes());
            }
        }
        Ok(())
    }
}

fn refuse(exchange: &mut Exchange, decision: &Decision) -> Stop {
    if decision.reason.is_none() && decision.headers.is_empty() {
        return Stop::Respond(decision.status);
    }
    let (content_type, body) = decision.content();
    let stop = exchange.respond(decision.status, content_type, body.as_bytes());
    let head = &mut exchange.response.head;
    for (name, _) in &decision.headers {
        head.remove(name.as_bytes());
    }
    let is_added = |(name, value): &(Box<str>, Box<str>)| head.add(name.as_bytes(), value.as_bytes()).is_ok();
    if decision.headers.iter().all(is_added) { stop } else { Stop::Internal }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, exchange, refused, sent};

    fn decision(result: serde_json::Value) -> Decision {
        Decision::parse(json!({ "result": result }).to_string().as_bytes()).expect("a decision")
    }

    #[test]
    fn policies_are_below_the_path_of_the_server() {
        for (base, policy, want) in [
            ("/", "example/orders", "/v1/data/example/orders"),
            ("/opa/", "/example", "/opa/v1/data/example"),
            ("/opa", "a.b/c%20d", "/opa/v1/data/a.b/c%20d"),
        ] {
            assert_eq!(&*target(base, policy).expect("valid"), want);
        }
    }

    #[test]
    fn refusals_have_the_status_the_fields_and_the_reason_of_the_result() {
        let refusal = |result| {
            let mut request = exchange("GET / HTTP/1.1\nHost: h");
            let stop = refuse(&mut request, &decision(result));
            (stop, request)
        };
        let (stop, request) = refusal(json!({
            "allow": false, "status_code": 302, "reason": {"code": 7},
            "headers": {"location": "https://login.example/", "Content-Type": "application/problem+json"},
        }));
        assert_eq!((stop, request.response.status, body(&request)), (Stop::Answered, 302, r#"{"code":7}"#));
        assert_eq!(sent(&request, "Location"), Some("https://login.example/"));
        let types = request.response.head.values(b"content-type").collect::<Vec<_>>();
        assert_eq!(types, [b"application/problem+json"]);
        let (stop, request) = refusal(json!({"reason": "no"}));
        assert_eq!((stop, request.response.status, body(&request)), (Stop::Answered, 403, "no"));
        assert_eq!(sent(&request, "Content-Type"), Some("text/plain; charset=utf-8"));
        assert_eq!(refusal(json!({"allow": false, "status_code": 401})).0, Stop::Respond(401));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"policy": "a"}), "the option `host` is missing"),
            (json!({"host": "http://a"}), "the option `policy` is missing"),
            (json!({"host": "a:8181", "policy": "a"}), "host: `a:8181` is not a URL"),
            (json!({"host": "http://a/?x=1", "policy": "a"}), "host: has a query"),
            (json!({"host": "http://a", "policy": "a//b"}), "policy: is not the path of a policy"),
            (json!({"host": "http://a", "policy": "../v1/policies"}), "policy: is not the path of a policy"),
            (json!({"host": "http://a", "policy": "a?metrics"}), "policy: is not the path of a policy"),
            (
                json!({"host": "http://a", "policy": "a", "send_headers_upstream": ["X-A", "Content-Length"]}),
                "send_headers_upstream[1]: controls",
            ),
            (json!({"host": "http://a", "policy": "a", "timeout": 60_001}), "timeout"),
        ] {
            let error = refused::<Opa>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
