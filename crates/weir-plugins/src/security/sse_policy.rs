use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::websocket::CloseCode;
use weir_plugin::{
    Build, ConfigError, Definition, Exchange, MessageFilter, MessageHead, MessageProtocol, MessageTerms,
    MessageVerdict, Phases, Plugin, Stage, Stop, StreamClose,
};

/// Keeps event streams (server-sent events) alive through other proxies, limits the size of events, and ends a stream whose
/// client may not receive it any longer.
///
/// A stream that the gateway ends gets the end of the response, and before it a comment with the reason, unless it ends within a
/// line. The client may connect again.
/// The metric `weir_events_total` counts the events. A compressed response, and one that is no event stream, is not affected.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SsePolicy {
    /// Sends a comment when nothing was sent to the client for so many seconds. Without it, the gateway sends no comments.
    #[schemars(range(min = 1, max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    heartbeat: Option<u64>,
    /// The maximum size of an event, in bytes of its lines. A larger one ends the stream. The default is no limit.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_event_size: Option<u64>,
    /// Ends the stream when the credential of its request expires (`exp` of the token of `jwt-auth`), or when it is revoked: its
    /// consumer is removed from the configuration, or the credential is removed or changed.
    #[serde(default = "default_true")]
    close_on_expiry: bool,
}

fn default_true() -> bool {
    true
}

impl Definition for SsePolicy {
    const NAME: &'static str = "sse-policy";
    const PRIORITY: i32 = 2878;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "sse-policy: { heartbeat: 15, max_event_size: 65536 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(StreamPolicy {
            heartbeat: self.heartbeat.map(Duration::from_secs),
            max_size: self.max_event_size.unwrap_or(u64::MAX),
            close_on_expiry: self.close_on_expiry,
        }))
    }
}

struct StreamPolicy {
    heartbeat: Option<Duration>,
    max_size: u64,
    close_on_expiry: bool,
}

impl Plugin for StreamPolicy {
    fn phases(&self) -> Phases {
        Phases::MESSAGES
    }

    fn messages(
        &self,
        exchange: &mut Exchange,
        protocol: MessageProtocol,
    ) -> Result<Option<Box<dyn MessageFilter>>, Stop> {
        if protocol != MessageProtocol::EventStream {
            return Ok(None);
        }
        let terms = MessageTerms {
            ends_at: exchange.identity_ends_at().filter(|_| self.close_on_expiry),
            ends_with_identity: self.close_on_expiry,
            heartbeat: self.heartbeat,
            ..MessageTerms::default()
        };
        Ok(Some(Box::new(EventSizes { terms, max_size: self.max_size, size: 0 })))
    }
}

/// The rules of one stream.
struct EventSizes {
    terms: MessageTerms,
    max_size: u64,
    /// The size so far of the current event.
    size: u64,
}

impl MessageFilter for EventSizes {
    fn terms(&self) -> MessageTerms {
        self.terms
    }

    fn begin(&mut self, _: MessageHead) -> MessageVerdict {
        self.size = 0;
        MessageVerdict::Pass
    }

    fn grow(&mut self, _: MessageHead, bytes: u64) -> Result<(), StreamClose> {
        self.size = self.size.saturating_add(bytes);
        if self.size <= self.max_size {
            return Ok(());
        }
        Err(StreamClose::new(CloseCode::TOO_BIG, format!("the event has more than {} bytes", self.max_size)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, get, refused};

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let error = refused::<SsePolicy>(json!({"heart_beat": 5}));
        assert!(
            error.starts_with("heart_beat: the option `heart_beat` is not known; did you mean `heartbeat`?"),
            "{error}"
        );
    }

    #[test]
    fn only_event_streams_are_affected() {
        let plugin = build::<SsePolicy>(json!({"heartbeat": 15}));
        let mut exchange = get("/");
        exchange.set_identity_ends_at(Duration::from_secs(7));
        assert!(plugin.messages(&mut exchange, MessageProtocol::WebSocket).expect("it passes").is_none());
        let filter =
            plugin.messages(&mut exchange, MessageProtocol::EventStream).expect("it passes").expect("a filter");
        let MessageTerms { ends_at, ends_with_identity, heartbeat, .. } = filter.terms();
        assert_eq!((ends_at, ends_with_identity), (Some(Duration::from_secs(7)), true));
        assert_eq!(heartbeat, Some(Duration::from_secs(15)));
    }
}
