use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http::header::{AUTHORIZATION, HeaderValue};
use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, ConfigError, Definition, Plugin, Stage, Stop};

use crate::traffic::function_call::{FunctionCall, FunctionCallOptions, FunctionKind};

/// Has a function of OpenFunction answer requests, in place of an upstream.
///
/// The function is called by its URL, with the method, the query, the header fields and the body of the request. If the `uri` of the
/// route ends in `*`, what of the client's path stands behind it is appended to the path of `function_uri`. `Host` is that of the
/// function; `X-Forwarded-*` and `X-Real-IP` are as for an upstream. The response is passed on while it comes. If the function cannot be
/// reached, the client gets 502, and 504 if it does not answer in time. APISIX answers 503.
///
/// The plugin runs after all others of the route, and the route needs no upstream. WebSockets and other upgrades do not reach functions.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Openfunction {
    /// The `http` or `https` URL of the function.
    #[schemars(extend("x-weir-reaches" = "server"))]
    function_uri: String,
    /// How the gateway authorizes itself. Without it, requests are sent as they are.
    #[serde(default)]
    authorization: BasicOptions,
    #[serde(flatten)]
    call: FunctionCallOptions,
}

/// How the gateway authorizes itself.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BasicOptions {
    /// A user and a password, as `user:password`. They are sent in `Authorization` (Basic), unless the client has sent this field.
    service_token: Option<String>,
}

/// The value of `Authorization` for a user and a password, as `user:password` (RFC 7617).
///
/// # Errors
/// There is no colon between the two.
pub(crate) fn basic_authorization(token: &str, option: &str) -> Result<HeaderValue, ConfigError> {
    if !token.contains(':') {
        return Err(ConfigError::new(option, "must be a user and a password, as `user:password`"));
    }
    let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(token)));
    let mut value = value.expect("base64 is visible ASCII");
    value.set_sensitive(true);
    Ok(value)
}

impl Definition for Openfunction {
    const NAME: &'static str = "openfunction";
    const PRIORITY: i32 = -1902;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"openfunction:
  function_uri: http://127.0.0.1:30013/default/orders
  authorization: { service_token: $env://FUNCTION_TOKEN }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let token = self.authorization.service_token;
        let token = token.map(|token| basic_authorization(&token, "authorization.service_token")).transpose();
        let service = self.call.service(&self.function_uri, "function_uri", build);
        let (token, service) = (token, service).all_of()?;
        Ok(self.call.plugin(service, BasicFunction(token)))
    }
}

struct BasicFunction(Option<HeaderValue>);

impl FunctionKind for BasicFunction {
    const NAME: &'static str = Openfunction::NAME;

    fn complete(&self, mut call: FunctionCall<'_>) -> Result<Request<Bytes>, Stop> {
        call.extend_target()?;
        if let Some(token) = &self.0 {
            call.authorize(AUTHORIZATION, token);
        }
        Ok(call.request)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::refused;

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `function_uri` is missing"),
            (json!({"function_uri": "/f"}), "function_uri: `/f` is not a URL"),
            (
                json!({"function_uri": "http://a", "authorization": {"service_token": "t"}}),
                "authorization.service_token: must be a user and a password",
            ),
            (json!({"function_uri": "http://a", "timeout": 99}), "timeout"),
        ] {
            let error = refused::<Openfunction>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
