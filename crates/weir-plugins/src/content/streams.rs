//! Responses that have no end of their own, and plugins that need the whole content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{Exchange, Stop};

use super::content_type;

/// Media types of responses that are streams: each part is meant to arrive when it is sent.
const STREAMS: [&str; 2] = ["text/event-stream", "multipart/x-mixed-replace"];

/// What becomes of a stream, of which a plugin would hold back every byte until its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StreamHandling {
    /// The response is replaced by a response with the status 502, and the error log says why.
    #[default]
    Refuse,
    /// The stream passes unchanged.
    Pass,
}

impl StreamHandling {
    /// What a plugin answers that wants the whole content of the response, up to `limit` bytes.
    pub(crate) fn whole(self, plugin: &str, exchange: &Exchange, limit: u64) -> Result<Option<u64>, Stop> {
        let kind = exchange.response.head.value(b"content-type").unwrap_or_default();
        if !STREAMS.iter().any(|stream| content_type::is(kind, stream)) {
            return Ok(Some(limit));
        }
        match self {
            StreamHandling::Pass => Ok(None),
            StreamHandling::Refuse => {
                let route = exchange.route.as_ref().map_or("", |route| &route.route_id);
                tracing::warn!(
                    "{plugin} of the route `{route}` would hold back a stream ({}) until its end, so the response is refused; \
                     set `streams: pass` to let streams pass unchanged",
                    String::from_utf8_lossy(kind)
                );
                Err(Stop::HeldStream)
            }
        }
    }
}
