use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::proto::Method;
use weir_plugin::proto::websocket::CloseCode;
use weir_plugin::{
    AllOf, Build, ConfigError, Definition, DeliveryQuota, Exchange, Flow, MessageFilter, MessageHead, MessageLoss,
    MessageProtocol, MessageSource, MessageTerms, MessageVerdict, Phases, Plugin, PublishQuota, PublishRefusal, Stage,
    Stop, StreamClose,
};

use crate::limit::key::{Amount, KeyType, LimitKey, digest};
use crate::limit::limit_count::WindowType;
use crate::limit::limit_count::delayed::DelayedSync;
use crate::limit::limit_count::local::Windows;
use crate::limit::limit_count::quota::{EffectiveLimit, MAX_COUNT, MAX_PAIRED_COUNT, MAX_WINDOW_S};
use crate::limit::policy::counted_somewhere;
use crate::store::counters;
use crate::store::redis_server::{NoRedisAnswer, RedisServer};

mod counting;

use counting::{EventCounting, StreamQuota};

counted_somewhere! {
/// Limits the number and the bytes of WebSocket messages, server-sent events, events that are published to a hub and events
/// that a hub delivers, in a time window, for each client, key or tenant.
///
/// All messages and events of the same key count together, over all connections and all workers of the gateway. Pings, pongs,
/// close frames and comments are not counted. Beyond the limit, a WebSocket is closed with code 1008, and an event stream
/// gets a comment with the reason and ends. With `action: drop`, the message is left out instead, and the stream continues.
/// An event that is published to a hub beyond the limit is answered with 429 and `Retry-After`, and is not stored. The
/// deliveries to a hub's subscription are limited by the plugins of the request that made or last renewed it, with counters
/// of their own: events beyond the limit are delivered later, or with `action: drop` not at all; the account of the hub counts
/// these as `throttled`. Each node counts the deliveries that it makes, with every policy. With one
/// of the `redis` policies, all gateways whose options are the same count together. Messages do not wait for the server: each
/// gateway counts its own, and synchronizes with the server at `sync_interval`. The metric `weir_events_total` counts
/// messages by outcome.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitEvents {
    /// The maximum number of messages and events in one window, or a `$variable` that holds the number.
    #[schemars(extend("type" = ["integer", "string"]))]
    count: Option<Value>,
    /// The maximum number of bytes in one window, or a `$variable` that holds the number: the content of messages as it is
    /// sent, compressed or not, and the lines of events. A message is let through as long as any bytes are left, whatever
    /// its size, since that is not always known when it begins. With sliding windows and with the `redis` policies, at most
    /// 268,435,455.
    #[schemars(extend("type" = ["integer", "string"]))]
    bytes: Option<Value>,
    /// The length of a window in seconds, or a `$variable` that holds it.
    #[schemars(extend("type" = ["integer", "string"]))]
    #[schemars(extend("x-weir-unit" = "s"))]
    time_window: Value,
    /// `fixed`: a window begins with the first event of a key. `sliding`: the limit applies to the last `time_window`
    /// seconds at any time. The events of the previous window are counted in proportion to its part that lies within
    /// these seconds.
    #[serde(default)]
    window_type: WindowType,
    /// The key by which events are counted, as `key_type` defines. It is read once, when the stream begins. Streams without
    /// this key are counted by the client's address.
    #[serde(default = "default_key")]
    key: String,
    /// How `key` is interpreted.
    #[serde(default)]
    key_type: KeyType,
    /// Which messages of a WebSocket are counted; `both` by default. Server-sent events and deliveries of a hub always come
    /// from the upstream, events that are published to a hub always from the client.
    #[serde(default)]
    direction: EventDirection,
    /// Counts the events that are published to a hub, and those that it delivers, for each topic separately.
    #[serde(default)]
    per_topic: bool,
    /// What happens to a message or an event when the limit is used up; `close` by default. Deliveries of a hub wait with
    /// `close`.
    #[serde(default)]
    action: ExcessAction,
    /// The reason in the close frame or the comment; at most 123 bytes.
    #[serde(default = "default_rejected_msg")]
    #[schemars(length(min = 1, max = 123))]
    rejected_msg: String,
    /// Does not limit a stream whose limit cannot be determined, because a variable holds no number, and counts in this gateway
    /// alone if the Redis server does not answer when a stream begins. Otherwise its request is answered with 500. If the server
    /// fails later, each gateway counts alone until it answers again.
    #[serde(default)]
    allow_degradation: bool,
    /// With the `redis` policies: the interval of the synchronization with the server, in seconds. All gateways together can let
    /// through the limit, plus what other gateways let through since the last synchronization. At least 0.1, and less than
    /// `time_window`.
    #[serde(default = "default_sync_interval")]
    #[schemars(extend("x-weir-unit" = "s"))]
    sync_interval: f64,
}
}

/// Whose messages are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum EventDirection {
    /// Those of both sides together.
    #[default]
    Both,
    /// Those that the client sends.
    FromClient,
    /// Those that the upstream sends, and deliveries of a hub.
    FromUpstream,
}

/// What happens beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ExcessAction {
    /// The stream is ended.
    #[default]
    Close,
    /// The message or event is left out.
    Drop,
}

fn default_key() -> String {
    "remote_addr".to_owned()
}

fn default_rejected_msg() -> String {
    "the quota of events is used up".to_owned()
}

fn default_sync_interval() -> f64 {
    0.5
}

impl LimitEvents {
    /// The interval of synchronization with the server.
    fn interval(&self) -> Result<Duration, ConfigError> {
        let window_s = self.time_window.as_u64().unwrap_or(MAX_WINDOW_S) as f64;
        if self.sync_interval < 0.1 || self.sync_interval >= window_s {
            return Err(ConfigError::new("sync_interval", "must be at least 0.1 seconds, and less than `time_window`"));
        }
        Ok(Duration::from_secs_f64(self.sync_interval))
    }

    fn event_counting(&self, server: Option<Arc<RedisServer>>, build: &Build) -> Result<EventCounting, ConfigError> {
        let Some(server) = server else { return Ok(EventCounting::Here(Windows::new(self.window_type, build))) };
        if self.window_type == WindowType::Sliding {
            let problem = "`sliding` is not supported with the `redis` policies: use `fixed`, or `policy: local`";
            return Err(ConfigError::new("window_type", problem));
        }
        let identity = format!("limit-events {}", build.identity());
        Ok(EventCounting::Server(server, DelayedSync::new(self.interval()?, &identity, build)))
    }
}

impl Definition for LimitEvents {
    const NAME: &'static str = "limit-events";
    const PRIORITY: i32 = 1004;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "limit-events: { count: 1000, bytes: 1048576, time_window: 60, key: consumer_name }";

    fn build(mut self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.count.is_none() && self.bytes.is_none() {
            build.fault("", "needs `count`, or `bytes`");
        }
        if !(1..=123).contains(&self.rejected_msg.len()) {
            build.fault("rejected_msg", "must have from 1 to 123 bytes");
        }
        let server = self.counting(build);
        let counting = server.and_then(|server| self.event_counting(server, build));
        let most = match (self.window_type, &counting) {
            (WindowType::Fixed, Ok(EventCounting::Here(_)) | Err(_)) => MAX_COUNT,
            _ => MAX_PAIRED_COUNT,
        };
        let quota = |value: Option<Value>, what: &str, build: &Build| -> Result<Option<EventQuota>, ConfigError> {
            value
                .map(|value| {
                    let amount = Amount::compile(&value, 1..=most, what)?;
                    let name = format!("{} {what}", build.identity());
                    let title = format!("weir:limit-events:{}", digest(name.as_bytes())).into();
                    Ok(EventQuota { amount, most, name: counters::name(&name), title })
                })
                .transpose()
        };
        let (count, bytes) = (quota(self.count, "count", build), quota(self.bytes, "bytes", build));
        let window = Amount::compile(&self.time_window, 1..=MAX_WINDOW_S, "time_window");
        let key = LimitKey::compile(&self.key, self.key_type, "key", build);
        let (counting, count, bytes, window, key) = (counting, count, bytes, window, key).all_of()?;
        Ok(Arc::new(EventLimiter(Arc::new(EventLimits {
            count,
            bytes,
            window,
            key,
            counting,
            direction: self.direction,
            per_topic: self.per_topic,
            action: self.action,
            reason: self.rejected_msg,
            allow_degradation: self.allow_degradation,
            slides: self.window_type == WindowType::Sliding,
            deliveries: format!("{} deliveries", build.identity()).into(),
        }))))
    }
}

/// One of the limits: the number of events, or of bytes.
struct EventQuota {
    amount: Amount,
    most: u64,
    name: u64,
    /// The prefix of its keys on the server.
    title: Box<str>,
}

struct EventLimits {
    count: Option<EventQuota>,
    bytes: Option<EventQuota>,
    window: Amount,
    key: LimitKey,
    counting: EventCounting,
    direction: EventDirection,
    per_topic: bool,
    action: ExcessAction,
    reason: String,
    allow_degradation: bool,
    slides: bool,
    /// The prefix of the keys of deliveries.
    deliveries: Box<str>,
}

impl EventLimits {
    /// The quotas of an exchange, by number and by bytes.
    fn of_exchange(&self, exchange: &Exchange) -> Result<[Option<StreamQuota>; 2], Stop> {
        Ok([self.of_stream(&self.count, exchange)?, self.of_stream(&self.bytes, exchange)?])
    }

    /// `None` if there is no such limit.
    fn of_stream(&self, quota: &Option<EventQuota>, exchange: &Exchange) -> Result<Option<StreamQuota>, Stop> {
        let Some(quota) = quota else { return Ok(None) };
        match (quota.amount.of(exchange, 1..=quota.most), self.window.of(exchange, 1..=MAX_WINDOW_S)) {
            (Some(limit), Some(window_s)) => {
                Ok(Some(self.counting.quota(&self.key, quota, EffectiveLimit { limit, window_s }, exchange)))
            }
            _ if self.allow_degradation => Ok(None),
            _ => Err(Stop::Respond(500)),
        }
    }

    /// The quota for deliveries to a subscription that the exchange makes; `None` if there is no limit.
    fn of_deliveries(&self, exchange: &Exchange) -> Option<Result<DeliveryQuota, PublishRefusal>> {
        let amount = |quota: &Option<EventQuota>| {
            quota.as_ref().map(|quota| quota.amount.of(exchange, 1..=quota.most).ok_or(())).transpose()
        };
        let (count, bytes) = (amount(&self.count), amount(&self.bytes));
        let window_s = self.window.of(exchange, 1..=MAX_WINDOW_S);
        let (Ok(count), Ok(bytes), Some(window_s)) = (count, bytes, window_s) else {
            return (!self.allow_degradation).then(|| Err(unknown_quota()));
        };
        let key = digest(&self.key.in_redis(&self.deliveries, exchange)).into();
        let drops = self.action == ExcessAction::Drop;
        let (per_topic, slides) = (self.per_topic, self.slides);
        Some(Ok(DeliveryQuota { key, per_topic, count, bytes, window_s, slides, drops }))
    }

    /// Whether other gateways share the counters.
    fn is_shared(&self) -> bool {
        matches!(self.counting, EventCounting::Server(..))
    }

    /// Counts an amount; `false` if nothing was left.
    fn take(&self, quota: Option<&StreamQuota>, amount: u64) -> bool {
        self.wait_ms(quota, amount).is_none()
    }

    /// Counts an amount. If nothing was left, returns the milliseconds until more is available.
    fn wait_ms(&self, quota: Option<&StreamQuota>, amount: u64) -> Option<u64> {
        let decision = self.counting.take(quota?, amount);
        (!decision.accepted).then_some(decision.reset_ms)
    }
}

struct EventLimiter(Arc<EventLimits>);

impl Plugin for EventLimiter {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::MESSAGES)
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        // Without `Accept-Encoding`, since compressed events cannot be counted.
        let head = &mut exchange.request.head;
        let wants_events = head
            .values(b"accept")
            .any(|accept| accept.to_ascii_lowercase().windows(17).any(|part| part == b"text/event-stream"));
        if wants_events {
            head.remove(b"Accept-Encoding");
        }
        // If the route leads to a hub, the request may publish an event.
        let is_post = exchange.request.method == Method::Post;
        let may_publish = is_post && self.0.direction != EventDirection::FromUpstream;
        // Or it may subscribe.
        if is_post
            && self.0.direction != EventDirection::FromClient
            && let Some(quota) = self.0.of_deliveries(exchange)
        {
            exchange.limit_deliveries(quota);
        }
        let asks = self.0.is_shared() && (wants_events || may_publish || exchange.request.upgrade);
        if !may_publish && !asks {
            return Ok(Flow::Continue);
        }
        let quotas = self.0.of_exchange(exchange);
        let asked = quotas.clone().ok().filter(|_| asks);
        if may_publish {
            exchange.limit_publishing(Arc::new(HubQuota { limits: Arc::clone(&self.0), quotas }));
        }
        let Some(asked) = asked else { return Ok(Flow::Continue) };
        Ok(Flow::wait(async move {
            for quota in asked.iter().flatten() {
                match self.0.counting.ask(quota).await {
                    Ok(()) if self.0.counting.is_out_of_date() => exchange.note_service_failure(),
                    Ok(()) => {}
                    Err(NoRedisAnswer) if self.0.allow_degradation => exchange.note_service_failure(),
                    Err(NoRedisAnswer) => return Err(Stop::Respond(500)),
                }
            }
            Ok(())
        }))
    }

    fn messages(&self, exchange: &mut Exchange, _: MessageProtocol) -> Result<Option<Box<dyn MessageFilter>>, Stop> {
        let limits = &self.0;
        let [count, bytes] = limits.of_exchange(exchange)?;
        if count.is_none() && bytes.is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(EventLimitFilter { limits: Arc::clone(limits), count, bytes })))
    }
}

fn unknown_quota() -> PublishRefusal {
    let reason = "the quota of this client cannot be determined".to_owned();
    PublishRefusal { status: 500, reason, retry_after_s: None }
}

/// The quota of a request for events that it publishes.
struct HubQuota {
    limits: Arc<EventLimits>,
    /// By number and by bytes; an error if the limits could not be determined.
    quotas: Result<[Option<StreamQuota>; 2], Stop>,
}

impl PublishQuota for HubQuota {
    fn take(&self, topic: &str, bytes: u64) -> Result<(), PublishRefusal> {
        let limits = &self.limits;
        let Ok(quotas) = &self.quotas else {
            return Err(unknown_quota());
        };
        let of_topic = |quota: &StreamQuota| limits.counting.part_of(quota, topic.as_bytes());
        let [count, of_bytes] = quotas.each_ref().map(|quota| match limits.per_topic {
            true => quota.as_ref().map(of_topic),
            false => quota.clone(),
        });
        let (count, of_bytes) = (count.as_ref(), of_bytes.as_ref());
        if let Some(wait_ms) = limits.wait_ms(of_bytes, 0).or_else(|| limits.wait_ms(count, 1)) {
            let retry_after_s = Some(wait_ms.div_ceil(1_000).max(1));
            return Err(PublishRefusal { status: 429, reason: limits.reason.clone(), retry_after_s });
        }
        limits.take(of_bytes, bytes);
        Ok(())
    }
}

struct EventLimitFilter {
    limits: Arc<EventLimits>,
    count: Option<StreamQuota>,
    bytes: Option<StreamQuota>,
}

impl EventLimitFilter {
    fn counts(&self, head: MessageHead) -> bool {
        match self.limits.direction {
            EventDirection::Both => true,
            EventDirection::FromClient => head.source == MessageSource::Client,
            EventDirection::FromUpstream => head.source == MessageSource::Upstream,
        }
    }
}

impl MessageFilter for EventLimitFilter {
    fn terms(&self) -> MessageTerms {
        MessageTerms { may_drop: self.limits.action == ExcessAction::Drop, ..MessageTerms::default() }
    }

    fn begin(&mut self, head: MessageHead) -> MessageVerdict {
        let limits = &self.limits;
        if !self.counts(head) || limits.take(self.bytes.as_ref(), 0) && limits.take(self.count.as_ref(), 1) {
            return MessageVerdict::Pass;
        }
        match limits.action {
            ExcessAction::Drop => MessageVerdict::Drop(MessageLoss::Throttled),
            ExcessAction::Close => MessageVerdict::Close(StreamClose {
                code: CloseCode::POLICY,
                reason: Cow::Owned(limits.reason.clone()),
                loss: MessageLoss::Throttled,
                stop: Some(Stop::EventQuota),
            }),
        }
    }

    fn grow(&mut self, head: MessageHead, bytes: u64) -> Result<(), StreamClose> {
        if self.counts(head) {
            // If the limit is exceeded within a message, that affects only the following messages.
            self.limits.take(self.bytes.as_ref(), bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_plugin::MessageKind;

    use super::*;
    use crate::testing::{build, exchange, get, on_request, refused};

    const CLIENT: MessageHead = MessageHead { source: MessageSource::Client, kind: MessageKind::Text };
    const UPSTREAM: MessageHead = MessageHead { source: MessageSource::Upstream, kind: MessageKind::Binary };

    fn filter(step: &Arc<dyn Plugin>, target: &str) -> Box<dyn MessageFilter> {
        let asked = step.messages(&mut get(target), MessageProtocol::WebSocket);
        asked.expect("no refusal").expect("it counts")
    }

    /// The number of messages that pass, of ten messages with ten bytes each.
    fn passed(filter: &mut dyn MessageFilter, head: MessageHead) -> usize {
        let mut pass = || match filter.begin(head) {
            MessageVerdict::Pass => filter.grow(head, 10).is_ok(),
            _ => false,
        };
        (0..10).filter(|_| pass()).count()
    }

    #[test]
    fn messages_of_all_streams_of_a_key_count_together() {
        for window in ["fixed", "sliding"] {
            let step =
                build::<LimitEvents>(json!({"count": 3, "time_window": 60, "key": "arg_a", "window_type": window}));
            let (mut one, mut again, mut other) =
                (filter(&step, "/?a=1"), filter(&step, "/?a=1"), filter(&step, "/?a=2"));
            assert_eq!(one.begin(CLIENT), MessageVerdict::Pass);
            assert_eq!(passed(&mut *again, UPSTREAM), 2);
            assert_eq!(passed(&mut *other, CLIENT), 3);
            let MessageVerdict::Close(close) = one.begin(CLIENT) else { panic!("it is used up") };
            assert_eq!((close.code, close.loss), (CloseCode::POLICY, MessageLoss::Throttled));
            assert_eq!(close.reason, "the quota of events is used up");
        }
    }

    #[test]
    fn bytes_are_counted_as_they_pass() {
        let step = build::<LimitEvents>(json!({"bytes": 25, "time_window": 60}));
        assert_eq!(passed(&mut *filter(&step, "/"), CLIENT), 3, "as long as any are left");
        let both = build::<LimitEvents>(json!({"bytes": 25, "count": 2, "time_window": 60}));
        assert_eq!(passed(&mut *filter(&both, "/"), CLIENT), 2);
    }

    #[test]
    fn one_direction_can_be_counted_alone() {
        let step =
            build::<LimitEvents>(json!({"count": 1, "time_window": 60, "direction": "from_client", "action": "drop"}));
        let mut filter = filter(&step, "/");
        assert_eq!(passed(&mut *filter, UPSTREAM), 10);
        assert_eq!(passed(&mut *filter, CLIENT), 1);
        assert_eq!(filter.begin(CLIENT), MessageVerdict::Drop(MessageLoss::Throttled));
    }

    #[test]
    fn a_limit_that_is_no_number_is_an_error_or_none() {
        let asked = |options| {
            let step = build::<LimitEvents>(options);
            step.messages(&mut get("/"), MessageProtocol::EventStream).map(|filter| filter.is_some())
        };
        assert_eq!(asked(json!({"count": "$arg_n", "time_window": 60})), Err(Stop::Respond(500)));
        assert_eq!(asked(json!({"count": "$arg_n", "time_window": 60, "allow_degradation": true})), Ok(false));
        assert_eq!(asked(json!({"count": "${arg_n ?? 5}", "time_window": 60})), Ok(true));
    }

    #[test]
    fn events_that_are_published_count_for_their_client_and_topic() {
        let publish = |step: &Arc<dyn Plugin>, key: &str, topic: &str, bytes: u64| {
            let mut exchange = exchange(&format!("POST /?a={key} HTTP/1.1\nHost: h\nContent-Length: 0"));
            assert_eq!(on_request(step, &mut exchange), Ok(()));
            exchange.responder_request(None, None).publish_quotas.iter().try_for_each(|quota| quota.take(topic, bytes))
        };
        let step = build::<LimitEvents>(json!({"count": 2, "time_window": 60, "key": "arg_a", "per_topic": true}));
        assert_eq!([publish(&step, "1", "t", 9), publish(&step, "1", "t", 9)], [Ok(()), Ok(())]);
        let excess = publish(&step, "1", "t", 9).expect_err("nothing is left");
        assert_eq!(excess.reason, "the quota of events is used up");
        assert!(
            excess.status == 429 && excess.retry_after_s.is_some_and(|wait| (1..=60).contains(&wait)),
            "{excess:?}"
        );
        assert_eq!([publish(&step, "1", "other", 9), publish(&step, "2", "t", 9)], [Ok(()), Ok(())]);
        let step = build::<LimitEvents>(json!({"bytes": 10, "time_window": 60, "key": "arg_a"}));
        assert_eq!([publish(&step, "1", "t", 9), publish(&step, "1", "other", 9)], [Ok(()), Ok(())]);
        assert!(publish(&step, "1", "t", 1).is_err(), "all topics count together");
        let step = build::<LimitEvents>(json!({"count": "$arg_n", "time_window": 60}));
        assert_eq!(publish(&step, "1", "t", 1).map_err(|refusal| refusal.status), Err(500));
        let step = build::<LimitEvents>(json!({"count": 1, "time_window": 60, "direction": "from_upstream"}));
        assert_eq!([publish(&step, "1", "t", 9), publish(&step, "1", "t", 9)], [Ok(()), Ok(())]);
    }

    #[test]
    fn deliveries_are_limited_by_the_request_that_subscribes() {
        let limits = |options: Value| build::<LimitEvents>(options);
        let of = |step: &Arc<dyn Plugin>, key: &str| {
            let mut exchange = exchange(&format!("POST /?a={key} HTTP/1.1\nHost: h\nContent-Length: 0"));
            assert_eq!(on_request(step, &mut exchange), Ok(()));
            exchange.responder_request(None, None).delivery_quotas
        };
        let quotas = |options: Value, key: &str| of(&limits(options), key);
        let step = limits(json!({"count": 2, "bytes": 9, "time_window": 60, "key": "arg_a", "action": "drop"}));
        let [one, same, other] = ["1", "1", "2"].map(|key| of(&step, key).expect("they are known"));
        let quota = one.first().expect("there is one");
        assert_eq!((quota.count, quota.bytes, quota.window_s), (Some(2), Some(9), 60));
        assert_eq!((quota.drops, quota.slides, quota.per_topic), (true, false, false));
        assert!(one == same && one[0].key != other[0].key, "{one:?} {other:?}");
        let sliding = json!({"count": 1, "time_window": 1, "window_type": "sliding", "per_topic": true});
        let quota = quotas(sliding, "1").expect("it is known").remove(0);
        assert_eq!((quota.drops, quota.slides, quota.per_topic), (false, true, true));
        let unknown = json!({"count": "$arg_n", "time_window": 60});
        assert_eq!(quotas(unknown, "1").map_err(|refusal| refusal.status), Err(500));
        for none in [
            json!({"count": "$arg_n", "time_window": 60, "allow_degradation": true}),
            json!({"count": 1, "time_window": 60, "direction": "from_client"}),
        ] {
            assert_eq!(quotas(none, "1"), Ok(Vec::new()));
        }
    }

    #[test]
    fn event_streams_are_not_asked_for_in_a_coding() {
        let step = build::<LimitEvents>(json!({"count": 1, "time_window": 60}));
        for (accept, is_left) in [("text/event-stream", false), ("Text/Event-Stream, */*", false), ("*/*", true)] {
            let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\nAccept: {accept}\nAccept-Encoding: gzip"));
            assert_eq!(on_request(&step, &mut exchange), Ok(()));
            assert_eq!(exchange.request.head.value(b"accept-encoding").is_some(), is_left, "{accept}");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let redis = |more: Value| {
            let mut options = json!({"count": 1, "time_window": 1, "policy": "redis", "redis_host": "redis"});
            options.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            options
        };
        for (options, want) in [
            (
                redis(json!({"window_type": "sliding"})),
                "window_type: `sliding` is not supported with the `redis` policies",
            ),
            (redis(json!({"sync_interval": 0.05})), "sync_interval: must be at least 0.1 seconds"),
            (redis(json!({"sync_interval": 1.0})), "sync_interval: must be at least 0.1 seconds"),
            (redis(json!({"redis_host": ""})), "redis_host: "),
            (redis(json!({"count": 268_435_456})), "count: must be a whole number from 1"),
            (json!({"time_window": 1}), "needs `count`, or `bytes`"),
            (json!({"count": 1}), "the option `time_window` is missing"),
            (json!({"count": 0, "time_window": 1}), "count: must be a whole number from 1"),
            (json!({"bytes": -1, "time_window": 1}), "bytes: must be a whole number from 1"),
            (json!({"bytes": 300_000_000, "time_window": 1, "window_type": "sliding"}), "bytes: must be"),
            (json!({"count": 1, "time_window": 1, "action": "text"}), "action: `text` is not an allowed value"),
        ] {
            let error = refused::<LimitEvents>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
