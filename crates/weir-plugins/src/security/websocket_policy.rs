use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::proto::websocket::CloseCode;
use weir_plugin::{
    AllOf, Build, ConfigError, Definition, Exchange, MessageFilter, MessageHead, MessageKind, MessageProtocol,
    MessageSource, MessageTerms, MessageVerdict, Phases, PingTerms, Plugin, ReadMessages, Stage, Stop, StreamClose,
};

use crate::security::request_validation::BodyRules;

/// Limits the size, type and content of WebSocket messages, and closes connections that are idle or whose token has expired.
///
/// Frames are parsed and must follow RFC 6455. The connection is closed with code 1002 if a side violates it, or with 1007
/// for a text that is not UTF-8; both sides get the close frame. The extension `permessage-deflate` (RFC 7692) is allowed.
/// Compressed messages are forwarded as they came, and inflated only if their size is limited or a schema has to read them.
/// Other extensions are removed from the handshake, because the gateway could not parse the frames. Requests that do not open
/// a WebSocket are not affected.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebsocketPolicy {
    /// The messages that the client sends.
    #[serde(default)]
    client: MessageRuleOptions,
    /// The messages that the upstream sends.
    #[serde(default)]
    upstream: MessageRuleOptions,
    /// Closes a connection with code 1001 if no message was sent for this number of seconds. Pings and pongs do not count.
    /// Without this option, a connection is closed after an hour without any traffic, pings included.
    #[schemars(range(min = 1, max = 86400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    idle_timeout: Option<u64>,
    /// Sends a ping to a client that has sent nothing for this number of seconds. Without this option, the gateway sends no
    /// pings. Pings of the client and the upstream are always forwarded.
    #[schemars(range(min = 1, max = 86400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    ping_interval: Option<u64>,
    /// How long the gateway waits for any frame of the client after a ping, in seconds. Then it closes the connection with
    /// code 1011.
    #[serde(default = "default_ping_timeout")]
    #[schemars(range(min = 1, max = 86400))]
    #[schemars(extend("x-weir-unit" = "s"))]
    ping_timeout: u64,
    /// Closes the connection with code 1008 when the credential that opened it expires (`exp` of the token of `jwt-auth`), or when
    /// it is revoked: its consumer is removed from the configuration, or the credential is removed or changed.
    #[serde(default = "default_true")]
    close_on_expiry: bool,
}

/// What messages of one side have to be like.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MessageRuleOptions {
    /// The maximum size of a message in bytes, as sent and, if it is compressed, also inflated. A larger message closes the
    /// connection with code 1009, before it is received completely. By default there is no limit, or 65536 with a schema.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_message_size: Option<u64>,
    /// The accepted types of messages. Another type closes the connection with code 1003. By default both types are accepted,
    /// or only `text` with a schema.
    #[schemars(length(min = 1))]
    message_types: Option<Vec<MessageType>>,
    /// The JSON Schema of text messages, draft 7 unless its `$schema` names another draft. A message that is not JSON or does
    /// not match closes the connection with code 1007, as does a compressed one that cannot be inflated. With a schema, each
    /// message is held until it is complete, and forwarded in one frame.
    schema: Option<Map<String, Value>>,
}

/// A type of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MessageType {
    Text,
    Binary,
}

fn default_ping_timeout() -> u64 {
    10
}

fn default_true() -> bool {
    true
}

/// The default for the largest message that is buffered for validation.
const HELD_BYTES: u64 = 64 << 10;
/// The most bytes of a buffered message: it is validated on the worker, where other requests wait meanwhile.
const MOST_HELD_BYTES: u64 = 1 << 20;

impl Definition for WebsocketPolicy {
    const NAME: &'static str = "websocket-policy";
    const PRIORITY: i32 = 2880;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"websocket-policy:
  client: { max_message_size: 65536, schema: { type: object, required: [action] } }
  idle_timeout: 300
  ping_interval: 30"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let (client, upstream) = (self.client.rules("client"), self.upstream.rules("upstream")).all_of()?;
        let seconds = Duration::from_secs;
        let timeout = seconds(self.ping_timeout);
        let terms = MessageTerms {
            reads: ReadMessages { client: client.most_inflated(), upstream: upstream.most_inflated() },
            may_drop: false,
            idle_timeout: self.idle_timeout.map(seconds),
            ping: self.ping_interval.map(|interval| PingTerms { interval: seconds(interval), timeout }),
            ends_at: None,
            ends_with_identity: self.close_on_expiry,
            heartbeat: None,
        };
        let rules = Arc::new(SideRules { client, upstream });
        Ok(Arc::new(WebsocketPolicies { rules, terms, close_on_expiry: self.close_on_expiry }))
    }
}

impl MessageRuleOptions {
    fn rules(self, side: &str) -> Result<MessageRules, ConfigError> {
        let has_schema = self.schema.is_some();
        let size = match self.max_message_size {
            Some(size) if has_schema && size > MOST_HELD_BYTES => {
                let problem = format!("must be at most {MOST_HELD_BYTES} with a schema");
                Err(ConfigError::new(format!("{side}.max_message_size"), problem))
            }
            size => Ok(size),
        };
        let schema = self.schema.map(|schema| BodyRules::of_messages(schema, &format!("{side}.schema"))).transpose();
        let (size, schema) = (size, schema).all_of()?;
        let takes = |kind| self.message_types.as_ref().map(|types| types.contains(&kind));
        let holds = size.unwrap_or(HELD_BYTES).min(MOST_HELD_BYTES) as usize;
        Ok(MessageRules {
            max_size: size.or(has_schema.then_some(HELD_BYTES)),
            takes_text: takes(MessageType::Text).unwrap_or(true),
            takes_binary: takes(MessageType::Binary).unwrap_or(!has_schema),
            holds: has_schema.then_some(holds),
            schema,
        })
    }
}

/// The rules for the messages of one side.
struct MessageRules {
    max_size: Option<u64>,
    takes_text: bool,
    takes_binary: bool,
    schema: Option<BodyRules>,
    /// The most bytes of a message that is held for the schema.
    holds: Option<usize>,
}

impl MessageRules {
    /// The most bytes of a compressed message after inflation; `None` if it need not be inflated.
    fn most_inflated(&self) -> Option<usize> {
        self.max_size.map(|size| usize::try_from(size).unwrap_or(usize::MAX))
    }
}

struct SideRules {
    client: MessageRules,
    upstream: MessageRules,
}

impl SideRules {
    fn of(&self, source: MessageSource) -> &MessageRules {
        match source {
            MessageSource::Client => &self.client,
            MessageSource::Upstream => &self.upstream,
        }
    }
}

struct WebsocketPolicies {
    rules: Arc<SideRules>,
    terms: MessageTerms,
    close_on_expiry: bool,
}

impl Plugin for WebsocketPolicies {
    fn phases(&self) -> Phases {
        Phases::MESSAGES
    }

    fn messages(
        &self,
        exchange: &mut Exchange,
        protocol: MessageProtocol,
    ) -> Result<Option<Box<dyn MessageFilter>>, Stop> {
        if protocol != MessageProtocol::WebSocket {
            return Ok(None);
        }
        let ends_at = exchange.identity_ends_at().filter(|_| self.close_on_expiry);
        Ok(Some(Box::new(WebsocketFilter {
            rules: Arc::clone(&self.rules),
            terms: MessageTerms { ends_at, ..self.terms },
            client: exchange.client.addr,
            from_client: 0,
            from_upstream: 0,
        })))
    }
}

struct WebsocketFilter {
    rules: Arc<SideRules>,
    terms: MessageTerms,
    client: IpAddr,
    /// The size so far of the message that each side is sending.
    from_client: u64,
    from_upstream: u64,
}

impl WebsocketFilter {
    fn size(&mut self, source: MessageSource) -> &mut u64 {
        match source {
            MessageSource::Client => &mut self.from_client,
            MessageSource::Upstream => &mut self.from_upstream,
        }
    }
}

impl MessageFilter for WebsocketFilter {
    fn terms(&self) -> MessageTerms {
        self.terms
    }

    fn begin(&mut self, head: MessageHead) -> MessageVerdict {
        *self.size(head.source) = 0;
        let rules = self.rules.of(head.source);
        let (is_taken, reason) = match head.kind {
            MessageKind::Binary => (rules.takes_binary, "binary messages are not accepted"),
            MessageKind::Text | MessageKind::Event => (rules.takes_text, "text messages are not accepted"),
        };
        match is_taken {
            true => MessageVerdict::Pass,
            false => MessageVerdict::Close(StreamClose::new(CloseCode::UNSUPPORTED, reason)),
        }
    }

    fn grow(&mut self, head: MessageHead, bytes: u64) -> Result<(), StreamClose> {
        let size = self.size(head.source);
        *size = size.saturating_add(bytes);
        let size = *size;
        match self.rules.of(head.source).max_size {
            Some(max) if size > max => {
                Err(StreamClose::new(CloseCode::TOO_BIG, format!("the message has more than {max} bytes")))
            }
            _ => Ok(()),
        }
    }

    fn wants_whole(&self, head: MessageHead) -> Option<usize> {
        self.rules.of(head.source).holds.filter(|_| head.kind == MessageKind::Text)
    }

    fn whole(&mut self, head: MessageHead, content: &[u8]) -> MessageVerdict {
        let is_valid =
            self.rules.of(head.source).schema.as_ref().is_none_or(|schema| schema.allow(content, self.client));
        match is_valid {
            true => MessageVerdict::Pass,
            false => MessageVerdict::Close(StreamClose::new(
                CloseCode::INVALID_CONTENT,
                "the message does not match the schema",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, get, refused};

    const TEXT: MessageHead = MessageHead { source: MessageSource::Client, kind: MessageKind::Text };
    const BINARY: MessageHead = MessageHead { source: MessageSource::Client, kind: MessageKind::Binary };
    const ANSWER: MessageHead = MessageHead { source: MessageSource::Upstream, kind: MessageKind::Binary };

    fn filter(options: Value) -> Box<dyn MessageFilter> {
        let step = build::<WebsocketPolicy>(options);
        let asked = step.messages(&mut get("/"), MessageProtocol::WebSocket);
        asked.expect("no refusal").expect("it looks at messages")
    }

    fn code(verdict: &MessageVerdict) -> u16 {
        match verdict {
            MessageVerdict::Pass => 0,
            MessageVerdict::Drop(_) => 1,
            MessageVerdict::Close(close) => close.code.0,
        }
    }

    #[test]
    fn sizes_count_over_fragments() {
        let mut filter = filter(json!({"client": {"max_message_size": 10}}));
        for _ in 0..2 {
            assert_eq!(filter.begin(TEXT), MessageVerdict::Pass);
            assert_eq!((filter.grow(TEXT, 4), filter.grow(ANSWER, 100)), (Ok(()), Ok(())));
            assert_eq!(filter.grow(TEXT, 6), Ok(()));
        }
        let close = filter.grow(TEXT, 1).expect_err("it is too large");
        assert_eq!((close.code, &*close.reason), (CloseCode::TOO_BIG, "the message has more than 10 bytes"));
        assert!(filter.grow(TEXT, u64::MAX).is_err(), "no sum is too large to be counted");
    }

    #[test]
    fn types_can_be_refused() {
        let mut filter = filter(json!({"client": {"message_types": ["text"]}}));
        assert_eq!([TEXT, BINARY, ANSWER].map(|head| code(&filter.begin(head))), [0, 1003, 0]);
    }

    #[test]
    fn a_schema_reads_texts_and_lets_nothing_past_it() {
        let schema = json!({"type": "object", "required": ["action"]});
        let mut filter = filter(json!({"client": {"schema": schema}}));
        assert_eq!(filter.terms().reads, ReadMessages { client: Some(65_536), upstream: None });
        assert_eq!((filter.wants_whole(TEXT), filter.wants_whole(ANSWER)), (Some(65_536), None));
        for (text, want) in
            [(r#"{"action":1}"#, 0), ("{}", 1007), ("no", 1007), (r#"{"action":1,"action":2}"#, 1007), ("", 1007)]
        {
            assert_eq!(code(&filter.whole(TEXT, text.as_bytes())), want, "{text}");
        }
        assert_eq!(code(&filter.begin(BINARY)), 1003, "it could say anything");
    }

    #[test]
    fn a_size_without_a_schema_holds_no_message_and_has_compressed_ones_inflated() {
        let filter = filter(json!({"client": {"max_message_size": 10}}));
        assert_eq!(filter.terms().reads, ReadMessages { client: Some(10), upstream: None });
        assert_eq!(filter.wants_whole(TEXT), None);
    }

    #[test]
    fn terms_are_those_of_the_options_and_of_the_credential() {
        let step = build::<WebsocketPolicy>(json!({"idle_timeout": 5, "ping_interval": 7}));
        let mut exchange = get("/");
        exchange.set_identity_ends_at(Duration::from_secs(9));
        let terms = step.messages(&mut exchange, MessageProtocol::WebSocket).expect("asked").expect("it looks").terms();
        let seconds = Duration::from_secs;
        let ping = Some(PingTerms { interval: seconds(7), timeout: seconds(10) });
        let want = MessageTerms {
            idle_timeout: Some(seconds(5)),
            ping,
            ends_at: Some(seconds(9)),
            ends_with_identity: true,
            ..MessageTerms::default()
        };
        assert_eq!(terms, want);
        let step = build::<WebsocketPolicy>(json!({"close_on_expiry": false}));
        let filter = step.messages(&mut exchange, MessageProtocol::WebSocket).expect("asked").expect("it looks");
        assert_eq!(filter.terms(), MessageTerms::default());
        assert!(step.messages(&mut exchange, MessageProtocol::EventStream).expect("asked").is_none());
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (
                json!({"client": {"max_message_size": 2_000_000, "schema": {}}}),
                "client.max_message_size: must be at most",
            ),
            (json!({"upstream": {"message_types": []}}), "upstream.message_types: is empty"),
            (
                json!({"upstream": {"message_types": ["json"]}}),
                "upstream.message_types[0]: `json` is not an allowed value",
            ),
            (json!({"client": {"schema": {"type": "thing"}}}), "client.schema"),
        ] {
            let error = refused::<WebsocketPolicy>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
