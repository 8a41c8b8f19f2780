use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Phases, Plugin, Stage, Stop};

/// Decides whether the body of a request is read completely before the upstream is asked.
///
/// Without this plugin, a body is passed on as it arrives. A body that is held spares an upstream slow clients, and lets a failed
/// request be sent to another endpoint. It is held in memory and counts towards `held_content_max` and
/// `held_content_max_per_client`; `client-control` sets a smaller limit for a route. Calls of gRPC are passed on as they arrive in any
/// case, since their client may wait for a response first.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyControl {
    /// The body is read completely before the upstream is asked. With `false`, it is passed on as it arrives, unless another plugin
    /// needs the whole body.
    #[serde(default = "default_request_buffering")]
    request_buffering: bool,
}

fn default_request_buffering() -> bool {
    true
}

impl Definition for ProxyControl {
    const NAME: &'static str = "proxy-control";
    const PRIORITY: i32 = 21990;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "proxy-control: { request_buffering: true }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(self))
    }
}

impl Plugin for ProxyControl {
    fn phases(&self) -> Phases {
        if self.request_buffering { Phases::REQUEST_BODY } else { Phases::NONE }
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        // The limits of the exchange and of held content apply in any case.
        Ok((!exchange.request.is_grpc()).then_some(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{build, exchange, refused};

    #[test]
    fn bodies_are_wanted_whole_unless_the_plugin_says_otherwise_or_it_is_a_call_of_grpc() {
        let post = |content_type: &str| exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {content_type}"));
        let step = build::<ProxyControl>(json!({}));
        assert_eq!(step.whole_request(&mut post("text/plain")), Ok(Some(u64::MAX)));
        assert_eq!(step.whole_request(&mut post("application/grpc")), Ok(None));
        let phases = |options: Value| build::<ProxyControl>(options).phases();
        assert_eq!(phases(json!({"request_buffering": true})), Phases::REQUEST_BODY);
        assert_eq!(phases(json!({"request_buffering": false})), Phases::NONE);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"request_buffering": "yes"}), "request_buffering: expected"),
            (json!({"buffering": true}), "buffering: the option `buffering` is not known"),
        ] {
            let error = refused::<ProxyControl>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
