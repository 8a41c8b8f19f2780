use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method as HttpMethod, Request};
use hyper::body::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::Method;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Plugin, Stage, Stop};

use crate::content::content_type;
use crate::traffic::function_call::{FunctionCall, FunctionCallOptions, FunctionKind};
use crate::traffic::openfunction::basic_authorization;

/// Has an action of Apache OpenWhisk answer requests, in place of an upstream.
///
/// The action is invoked with a POST, which waits for its result. Its parameters are the body of the client's request, which is JSON: a
/// request with another content type gets 415, unless its method is GET. The path, the query and the header fields of the request do
/// not reach the action. OpenWhisk is told to wait for the action as long as `timeout`, and 60 seconds at most. The response is passed on
/// while it comes. If OpenWhisk cannot be reached, the client gets 502, and 504 if it does not answer in time. APISIX answers 503.
///
/// The plugin runs after all others of the route, and the route needs no upstream.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Openwhisk {
    /// The `http` or `https` URL of the API of OpenWhisk.
    #[schemars(extend("x-weir-reaches" = "server"))]
    api_host: String,
    /// The user and the password of the API, as `user:password`.
    service_token: String,
    /// The namespace of the action.
    #[schemars(length(min = 1, max = 256))]
    namespace: String,
    /// The package of the action. Without it, the action is in the default package.
    #[schemars(length(min = 1, max = 256))]
    package: Option<String>,
    /// The name of the action.
    #[schemars(length(min = 1, max = 256))]
    action: String,
    /// Whether the response is the result of the action alone, without the facts of its activation.
    #[serde(default = "default_true")]
    result: bool,
    #[serde(flatten)]
    call: FunctionCallOptions,
}

fn default_true() -> bool {
    true
}

/// The longest time that OpenWhisk waits for an action.
const MOST_WAITED_MS: u64 = 60_000;

/// All but the characters that are not reserved (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Definition for Openwhisk {
    const NAME: &'static str = "openwhisk";
    const PRIORITY: i32 = -1901;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"openwhisk:
  api_host: http://127.0.0.1:3233
  service_token: $env://OPENWHISK_TOKEN
  namespace: guest
  action: orders"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let names =
            [("namespace", Some(&self.namespace)), ("package", self.package.as_ref()), ("action", Some(&self.action))];
        let parts = names.into_iter().filter_map(|(option, name)| name.map(|name| encoded(name, option)));
        let service = self.call.service(&self.api_host, "api_host", build);
        let token = basic_authorization(&self.service_token, "service_token");
        let (mut service, token, parts) = (service, token, parts.collect_all::<Vec<_>>()).all_of()?;
        if service.target.contains('?') {
            return Err(ConfigError::new(
                "api_host",
                "has a query; write only the URL of the API, such as `http://127.0.0.1:3233`",
            ));
        }
        let (namespace, action) = (&parts[0], parts[1..].join("/"));
        let base = service.target.trim_end_matches('/');
        let query =
            format!("blocking=true&result={}&timeout={}", self.result, self.call.timeout_ms().min(MOST_WAITED_MS));
        service.target = format!("{base}/api/v1/namespaces/{namespace}/actions/{action}?{query}").into();
        Ok(self.call.plugin(service, OpenwhiskAction(token)))
    }
}

/// A name as one segment of a path.
fn encoded(name: &str, option: &str) -> Result<String, ConfigError> {
    let is_segment = !matches!(name, "." | "..") && !name.contains('/') && !name.contains(char::is_control);
    match is_segment {
        true => Ok(percent_encode(name.as_bytes(), ENCODED).to_string()),
        false => Err(ConfigError::new(option, format!("`{}` is not a name of OpenWhisk", name.escape_debug()))),
    }
}

struct OpenwhiskAction(HeaderValue);

impl FunctionKind for OpenwhiskAction {
    const NAME: &'static str = Openwhisk::NAME;
    const TAKES_PATH: bool = false;

    fn admit(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let is_json = content_type::of_request(exchange)?.is_some_and(content_type::is_json);
        match is_json || exchange.request.method == Method::Get {
            true => Ok(()),
            false => Err(Stop::Respond(415)),
        }
    }

    fn complete(&self, call: FunctionCall<'_>) -> Result<Request<Bytes>, Stop> {
        let mut request = call.request;
        *request.method_mut() = HttpMethod::POST;
        *request.headers_mut() = HeaderMap::from_iter([
            (AUTHORIZATION, self.0.clone()),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        ]);
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{build, exchange, get, on_request, refused};

    fn options(changed: &[(&str, Value)]) -> Value {
        let mut options = json!({"api_host": "http://a", "service_token": "u:p", "namespace": "n", "action": "a"});
        changed.iter().for_each(|(name, value)| options[*name] = value.clone());
        options
    }

    #[test]
    fn parameters_are_json() {
        let step = build::<Openwhisk>(options(&[]));
        assert_eq!(on_request(&step, &mut get("/a")), Ok(()));
        for (kind, want) in [
            ("application/json", Ok(())),
            ("application/json; charset=utf-8", Ok(())),
            ("text/plain", Err(Stop::Respond(415))),
        ] {
            let mut post = exchange(&format!("POST /a HTTP/1.1\nHost: h\nContent-Type: {kind}"));
            assert_eq!(on_request(&step, &mut post), want, "{kind}");
            assert_eq!(post.responder().is_some(), want.is_ok());
        }
        assert_eq!(on_request(&step, &mut exchange("PUT /a HTTP/1.1\nHost: h")), Err(Stop::Respond(415)));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `api_host` is missing"),
            (options(&[("api_host", json!("a"))]), "api_host: `a` is not a URL"),
            (options(&[("api_host", json!("http://a/?b"))]), "api_host: has a query"),
            (options(&[("service_token", json!("t"))]), "service_token: must be a user and a password"),
            (options(&[("action", json!("a/b"))]), "action: `a/b` is not a name"),
            (options(&[("package", json!(".."))]), "package: `..` is not a name"),
            (options(&[("timeout", json!(99))]), "timeout"),
        ] {
            let error = refused::<Openwhisk>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
