use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::Framing;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

/// Limits the size of request bodies on this route to less than `client_max_body_size` of the node, with 413 for larger ones.
///
/// A request with a `Content-Length` is refused before its body is read. A body of unknown length is refused as soon as
/// it exceeds the limit.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientControl {
    /// The largest request body, in bytes. 0 means no limit other than `client_max_body_size`, which applies in any case.
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: Option<u64>,
}

impl Definition for ClientControl {
    const NAME: &'static str = "client-control";
    const PRIORITY: i32 = 22000;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "client-control: { max_body_size: 1048576 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.max_body_size.is_none() {
            build.warnings.push(ConfigError::new("", "has no `max_body_size`, so it limits nothing"));
        }
        Ok(Arc::new(self))
    }
}

impl Plugin for ClientControl {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let limit = match self.max_body_size {
            None => return Ok(Flow::Continue),
            Some(0) => u64::MAX,
            Some(limit) => limit,
        };
        // A body whose length is stated was compared with the node's limit before.
        exchange.body_limit = limit.min(exchange.body_limit);
        match exchange.request.framing {
            Framing::Sized(length) if length > limit => Err(Stop::BodyTooLarge),
            _ => Ok(Flow::Continue),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, on_request, refused};

    #[test]
    fn bodies_have_a_limit() {
        let step = build::<ClientControl>(json!({"max_body_size": 10}));
        for (length, want) in [(0, Ok(())), (10, Ok(())), (11, Err(Stop::BodyTooLarge))] {
            let mut exchange = exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Length: {length}"));
            assert_eq!(on_request(&step, &mut exchange), want, "{length}");
        }
        let mut chunked = exchange("POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked");
        assert_eq!(on_request(&step, &mut chunked), Ok(()));
        assert_eq!(chunked.body_limit, 10);
        for (option, limit) in [(0, 100), (1_000, 100), (99, 99)] {
            let step = build::<ClientControl>(json!({"max_body_size": option}));
            chunked.body_limit = 100;
            assert_eq!(on_request(&step, &mut chunked), Ok(()));
            assert_eq!(chunked.body_limit, limit, "{option} below a limit of 100 of the node");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let error = refused::<ClientControl>(json!({"max_body_size": -1}));
        assert!(error.starts_with("max_body_size: expected a whole number of bytes, 0 or more"), "{error}");
    }
}
