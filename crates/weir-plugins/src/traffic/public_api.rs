use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AnswersInPlace, Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::traffic::batch_requests::BatchEndpoint;

/// The only API that can be served on a route.
const BATCHES: &str = "/apisix/batch-requests";

/// Serves an API of the gateway on the route: `/apisix/batch-requests`, as `batch-requests` does.
///
/// A request to another path is answered with 404. Status, metrics and the Admin API of a node have addresses of their own.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublicApi {
    /// The path of the API, if the route has another path.
    uri: Option<String>,
}

impl Definition for PublicApi {
    const NAME: &'static str = "public-api";
    const PRIORITY: i32 = 501;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "public-api: { uri: /apisix/batch-requests }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        match self.uri.as_deref() {
            None | Some(BATCHES) => {
                let batches = BatchEndpoint::new(build);
                Ok(Arc::new(PublishedApi { follows_path: self.uri.is_none(), batches }))
            }
            Some(_) => {
                Err(ConfigError::new("uri", format!("is no API that a route can serve; `{BATCHES}` is the only one")))
            }
        }
    }
}

struct PublishedApi {
    /// The path of the request must be that of the API.
    follows_path: bool,
    batches: BatchEndpoint,
}

impl Plugin for PublishedApi {
    fn answers_in_place(&self) -> AnswersInPlace {
        AnswersInPlace::SomeRequests
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        if self.follows_path && exchange.request.path() != BATCHES.as_bytes() {
            return Err(Stop::Respond(404));
        }
        self.batches.on_request(exchange)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, on_request, refused};

    #[test]
    fn the_api_is_found_by_the_path_or_by_the_option() {
        let post = |path: &str| exchange(&format!("POST {path} HTTP/1.1\nHost: h\nContent-Type: application/json"));
        let by_path = build::<PublicApi>(json!({}));
        assert_eq!(on_request(&by_path, &mut post("/other")), Err(Stop::Respond(404)));
        let by_option = build::<PublicApi>(json!({"uri": BATCHES}));
        for (step, path) in [(by_path, BATCHES), (by_option, "/other")] {
            let mut exchange = post(path);
            assert_eq!(on_request(&step, &mut exchange), Ok(()));
            assert!(exchange.responder().is_some(), "{path}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"uri": "/apisix/prometheus/metrics"}), "uri: is no API that a route can serve"),
            (json!({"url": BATCHES}), "url: the option `url` is not known"),
        ] {
            let error = refused::<PublicApi>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
