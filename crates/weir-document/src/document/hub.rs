//! Hubs: topics, rights to publish and subscribe, retention and delivery of events.

use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use weir_hub::{
    CallbackSettings, ConsumerGroups, DeliverySettings, HubSettings, LeaseSettings, ListenSettings, LogSettings,
    PermittedCallers, PublishSettings, RetentionSettings, SignatureMethod, SubscribeSettings, TopicPattern,
    TopicRights, is_http_url, origin_of,
};
use weir_plugin::vars::parse_network;

use super::hub_log;
use super::resource::{self, COMMON, ResourceOrigin};
use crate::keys;
use crate::keys::MapKeys;
use crate::keys::kinds::{
    ByteSize, Custom, DistinctList, Flag, Form, List, Or, ParsedText, SubMap, Text, Time, Whole, Words, any_text,
    custom, flag, form, list, section, set, size, text, time, whole, words,
};
use crate::keys::schema::Definitions;
use crate::text::read::{MapReader, NodeReader, shortened};

/// A W3C WebSub hub.
#[derive(Clone, Debug)]
pub struct HubSpec {
    pub origin: ResourceOrigin,
    pub id: Box<str>,
    pub settings: HubSettings,
}

keys! {
    /// A W3C WebSub hub: it takes events and delivers each one to all subscribers of its topic.
    pub(super) static HUB: HubKeys = "hub", shared COMMON;

    /// The URL at which subscribers find the hub: `rel="hub"` of every delivery.
    url: ParsedText<Box<str>> = text(1, 2048).pattern("^https?://").parsed(http_url), own(),
        required("add the public URL of the hub: `url: https://api.example.com/hub`"), example("https://api.example.com/hub");
    /// The URLs of topics. A URL with `*` at its end stands for all with that prefix.
    topics: DistinctList<ParsedText<String>> = TOPICS, own(), required(ADD_TOPICS), example("[\"https://api.example.com/orders/*\"]");
    /// Further conditions for some topics. The first entry that has a topic applies to it.
    rights: Form = form("list: maps", rights_schema).with(&RIGHTS), own(), absent("none"), guide("hub.md#rights");
    /// Who may publish what.
    publish: SubMap<PublishSettings> = section(&PUBLISH, publish), own();
    /// Who may subscribe, and how.
    subscribe: SubMap<SubscribeSettings> = section(&SUBSCRIBE, subscribe), own();
    /// How many may listen, and how slowly.
    listen: SubMap<ListenSettings> = section(&LISTEN, listen), own(), guide("hub.md#limits-of-listeners");
    /// How events are delivered.
    delivery: SubMap<DeliverySettings> = section(&DELIVERY, delivery), own();
    /// How long events are kept.
    retention: SubMap<RetentionSettings> = section(&RETENTION, retention), own();
    /// Where events and subscriptions are kept: on the node (`local`), or in Kafka.
    log: Custom<LogSettings> = custom("`local`, or a map with `kafka`", hub_log::schema, hub_log::read)
        .with(&hub_log::HUB_LOG), own(), absent("`local`"), guide("hub.md#several-nodes");
}

keys! {
    /// Which callers have a right. Without any of these keys, all have.
    static CALLERS: CallersKeys = "callers";

    /// Consumers that have it.
    consumers: DistinctList<Text> = set(text(1, 256)), own(), example("[shop]");
    /// Consumer groups whose consumers have it.
    groups: DistinctList<Text> = set(text(1, 256)), own(), example("[partners]");
    /// Scopes one of which the token of the caller must have.
    scopes: DistinctList<ParsedText<Box<str>>> = set(text(1, 256).parsed(scope)), own(), example("[\"orders:write\"]");
    /// The claim of the caller's token that must cover the topic: its name, or a JSON Pointer to it.
    topic_claim: ParsedText<Box<str>> = text(1, 256).parsed(topic_claim), own(), example("/mercure/publish");
}

keys! {
    /// Conditions for some topics of a hub.
    static RIGHTS: RightsKeys = "hub_rights";

    /// The topics, written as in `topics` of the hub.
    topics: DistinctList<ParsedText<String>> = TOPICS, own(), required(ADD_TOPICS), example("[\"https://api.example.com/orders/*\"]");
    /// Who may publish.
    publish: SubMap<PermittedCallers> = section(&CALLERS, permitted), own();
    /// Who may subscribe.
    subscribe: SubMap<PermittedCallers> = section(&CALLERS, permitted), own();
}

keys! {
    /// Who may publish what to a hub.
    static PUBLISH: PublishKeys = "hub_publish", shared CALLERS;

    /// Whether every client that reaches the route may publish.
    anonymous: Or<Flag> = flag().or(false), own();
    /// Any client may publish content that is signed with this secret.
    secret: Text = text(1, 199), own(), secret();
    /// The header of a request that has the signature of the publisher.
    signature_header: ParsedText<Box<str>> = text(1, 256).pattern("^[A-Za-z0-9_-]+$").parsed(header), own(),
        absent("`X-Hub-Signature`");
    /// The largest event. The limit follows from that of a journal's record, which is 64 MiB.
    max_bytes: Or<ByteSize> = size(1, 32 << 20).or(1 << 20), own();
    /// Origins from which the hub may fetch a topic after a ping.
    fetch: DistinctList<ParsedText<Box<str>>> = set(text(1, 2048).parsed(origin)), own(), absent("none"),
        example("[\"https://orders.internal:8443\"]");
}

keys! {
    /// Who may subscribe to a hub, and how.
    static SUBSCRIBE: SubscribeKeys = "hub_subscribe", shared CALLERS;

    /// To which addresses deliveries may go.
    callbacks: SubMap<CallbackSettings> = section(&CALLBACKS, callbacks), own();
    /// How long subscriptions last.
    lease: SubMap<LeaseSettings> = section(&LEASE, lease), own();
    /// The signature algorithm of deliveries.
    signature: Or<Words<SignatureMethod>> = words(&SignatureMethod::ALL).or(SignatureMethod::Sha256), own();
    /// Whether deliveries also have the headers of Standard Webhooks.
    standard_webhooks: Or<Flag> = flag().or(false), own();
    /// The most subscriptions of a consumer. Further requests get 429.
    max_per_consumer: Or<Whole<u32>> = whole(1, 10_000_000).or(100_000), own();
    /// The most subscriptions made from one address by clients that are no consumers; of IPv6, a network of 64 bits is one address.
    /// Further requests get 429.
    max_per_address: Or<Whole<u32>> = whole(1, 10_000_000).or(10_000), own();
    /// The most subscriptions of all clients that are no consumers. Further requests get 429.
    max_anonymous: Or<Whole<u32>> = whole(1, 100_000_000).or(1_000_000), own();
    /// The most requests of one client that wait for their verification. Further requests get 429.
    max_unverified_per_client: Or<Whole<u32>> = whole(1, 100_000).or(1_000), own();
    /// The most verifications per second and callback host. A burst may have as many as ten seconds' worth; at most
    /// `delivery.in_flight_per_host` are under way at a time.
    verifications_per_second: Or<Whole<u32>> = whole(1, 1_000_000).or(100), own();
}

keys! {
    /// To which addresses a hub may deliver.
    static CALLBACKS: CallbacksKeys = "hub_callbacks";

    /// Networks that are not public and may contain callbacks.
    allow: List<ParsedText<IpNet>> = list(any_text().parsed(network)), own(), absent("none"), example("[10.0.0.0/8]");
    /// Whether callbacks must be `https` URLs.
    require_https: Or<Flag> = flag().or(false), own();
}

keys! {
    /// How long subscriptions to a hub last.
    static LEASE: LeaseKeys = "hub_lease";

    /// The lease of a subscription that asks for none.
    default: Time = time(), own(), absent("`10d`");
    /// The shortest lease.
    min: Time = time(), own(), absent("`5m`");
    /// The longest lease.
    max: Time = time(), own(), absent("`30d`");
}

keys! {
    /// Limits of those who listen to a hub: event streams, WebSockets, and long polls that wait. They hold on each node.
    static LISTEN: ListenKeys = "hub_listen";

    /// The most listeners. Further ones get 503 with `Retry-After`.
    max: Or<Whole<u32>> = whole(1, 10_000_000).or(20_000), own();
    /// The most listeners of one client: of a consumer, or of an address without one (for IPv6, a network of 64 bits). Further ones
    /// get 429 with `Retry-After`.
    max_per_client: Or<Whole<u32>> = whole(1, 10_000_000).or(1_000), own();
    /// The time after which a listener is ended that does not take what is sent to it, 8 KiB at a time.
    unread_timeout: Or<Time> = time().or(Duration::from_secs(30)), own();
}

keys! {
    /// How a hub delivers events.
    static DELIVERY: DeliveryKeys = "hub_delivery";

    /// The longest time of one attempt.
    timeout: Or<Time> = time().or(Duration::from_secs(30)), own();
    /// The time after which an event is given up (a dead letter).
    retry_for: Or<Time> = time().or(Duration::from_secs(24 * 3600)), own();
    /// The first wait before an attempt is repeated. Each further one is twice as long.
    retry_first: Or<Time> = time().or(Duration::from_secs(1)), own();
    /// The longest wait before an attempt is repeated.
    retry_max: Or<Time> = time().or(Duration::from_secs(3600)), own();
    /// The most deliveries that begin per second. 0 is no limit.
    per_second: Or<Whole<u32>> = whole(0, 10_000_000).or(0), own();
    /// The most deliveries in flight.
    in_flight: Or<Whole<u32>> = whole(1, 65_536).or(1_024), own();
    /// The most deliveries in flight to one callback host.
    in_flight_per_host: Or<Whole<u32>> = whole(1, 65_536).or(32), own();
}

keys! {
    /// How long a hub keeps events.
    static RETENTION: RetentionKeys = "hub_retention";

    /// The size of all events that are kept. An event counts with its content, its topic and 256 bytes.
    bytes: Or<ByteSize> = size(1 << 20, u64::MAX).or(1 << 30), own();
    /// The age up to which an event is kept.
    age: Or<Time> = time().or(Duration::from_secs(7 * 86_400)), own();
}

const ADD_TOPICS: &str = "add the URLs of the topics: `topics: [\"https://api.example.com/orders/*\"]`";
const TOPICS: DistinctList<ParsedText<String>> = set(text(1, 2048).parsed(topic));

pub(super) fn read(at: &NodeReader, index: usize) -> Option<HubSpec> {
    let fields = at.keys(&HUB)?;
    resource::common(&fields);
    let topics = patterns(fields.read(&HUB.topics));
    let rights = fields.get(&HUB.rights);
    let rights =
        rights.iter().flat_map(|at| at.items().filter_map(|item| rights_of(&item, &topics)).collect::<Vec<_>>());
    let rights = rights.collect();
    let log = if fields.has(&HUB.log) { fields.read(&HUB.log) } else { Some(LogSettings::Local) };
    let settings = HubSettings {
        rights,
        topics,
        // Filled in where the consumers of the document are known.
        consumers: ConsumerGroups::default(),
        publish: fields.section(&HUB.publish)?,
        subscribe: fields.section(&HUB.subscribe)?,
        listen: fields.section(&HUB.listen)?,
        delivery: fields.section(&HUB.delivery)?,
        retention: fields.section(&HUB.retention)?,
        url: fields.read(&HUB.url)?,
        log: log?,
    };
    Some(HubSpec { origin: ResourceOrigin::of(at), id: resource::id(&fields, index), settings })
}

fn http_url(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if !is_http_url(text) {
        let problem = format!("`{}` is not an absolute http or https URL", shortened(text));
        at.report_advising(problem, "write as `https://api.example.com/hub`");
        return None;
    }
    Some(text.into())
}

fn topic(at: &NodeReader, text: &str) -> Option<String> {
    if TopicPattern::parse(text).is_none() {
        let problem = format!("`{}` is not the URL of a topic", shortened(text));
        at.report_advising(problem, "write as `https://api.example.com/orders`, or with `*` at its end");
        return None;
    }
    Some(text.to_owned())
}

fn patterns(texts: Option<Vec<String>>) -> Vec<TopicPattern> {
    texts.unwrap_or_default().iter().filter_map(|text| TopicPattern::parse(text)).collect()
}

fn rights_schema(definitions: &mut Definitions) -> Value {
    json!({ "type": "array", "items": { "$ref": definitions.reference(RIGHTS.table()) } })
}

/// `of_hub`: the topics of the hub. A pattern that matches none of them would restrict nothing.
fn rights_of(at: &NodeReader, of_hub: &[TopicPattern]) -> Option<TopicRights> {
    let fields = at.keys(&RIGHTS)?;
    let topics = patterns(fields.read(&RIGHTS.topics));
    let is_of_hub = |own: &TopicPattern| of_hub.is_empty() || of_hub.iter().any(|other| other.overlaps(own));
    for foreign in topics.iter().filter(|own| !is_of_hub(own)) {
        let problem =
            format!("`{}` matches no topic of the hub, so it restricts nothing", shortened(foreign.as_text()));
        at.report_advising(problem, "write it as in `topics` of the hub, with the same scheme, host and port");
    }
    Some(TopicRights {
        topics,
        publish: fields.read(&RIGHTS.publish).unwrap_or_default(),
        subscribe: fields.read(&RIGHTS.subscribe).unwrap_or_default(),
    })
}

fn permitted(fields: &MapReader) -> Option<PermittedCallers> {
    Some(PermittedCallers {
        consumers: fields.read(&CALLERS.consumers).unwrap_or_default(),
        groups: fields.read(&CALLERS.groups).unwrap_or_default(),
        scopes: fields.read(&CALLERS.scopes).unwrap_or_default(),
        topic_claim: fields.read(&CALLERS.topic_claim),
    })
}

fn publish(fields: &MapReader) -> Option<PublishSettings> {
    let header = fields.read(&PUBLISH.signature_header);
    Some(PublishSettings {
        anonymous: fields.value(&PUBLISH.anonymous),
        permitted: permitted(fields)?,
        secret: fields.read(&PUBLISH.secret),
        signature_header: header.unwrap_or_else(|| PublishSettings::default().signature_header),
        max_bytes: fields.value(&PUBLISH.max_bytes) as usize,
        fetch: fields.read(&PUBLISH.fetch).unwrap_or_default(),
    })
}

/// A scope token (RFC 6749 §3.3).
fn scope(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\')) {
        at.report_advising(format!("`{}` is not a scope", shortened(text)), "write as `orders:write`, each by itself");
        return None;
    }
    Some(text.into())
}

/// The name of a claim, or a JSON Pointer (RFC 6901) to it.
fn topic_claim(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let is_pointer = text.starts_with('/');
    let escapes_well = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if is_pointer && !escapes_well {
        let problem = format!("`{}` is not a JSON Pointer", shortened(text));
        at.report_advising(problem, "write as `/mercure/publish`, with `~0` for `~` and `~1` for `/` in a name");
        return None;
    }
    Some(text.into())
}

fn header(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        at.report_advising(format!("`{}` is not the name of a header", shortened(text)), "write as `X-Hub-Signature`");
        return None;
    }
    Some(text.to_ascii_lowercase().into())
}

/// Reads an origin: scheme and authority of a URL. Returns it in lower case.
fn origin(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let origin = origin_of(text).filter(|origin| is_http_url(origin) && origin.len() == text.len());
    if origin.is_none() {
        let problem = format!("`{}` is not an origin", shortened(text));
        at.report_advising(problem, "write scheme, host and port: `https://orders.internal:8443`");
    }
    origin.map(Into::into)
}

fn subscribe(fields: &MapReader) -> Option<SubscribeSettings> {
    Some(SubscribeSettings {
        permitted: permitted(fields)?,
        callbacks: fields.section(&SUBSCRIBE.callbacks)?,
        lease: fields.read(&SUBSCRIBE.lease).unwrap_or_default(),
        signature: fields.value(&SUBSCRIBE.signature),
        standard_webhooks: fields.value(&SUBSCRIBE.standard_webhooks),
        max_per_consumer: fields.value(&SUBSCRIBE.max_per_consumer) as usize,
        max_per_address: fields.value(&SUBSCRIBE.max_per_address) as usize,
        max_anonymous: fields.value(&SUBSCRIBE.max_anonymous) as usize,
        max_unverified_per_client: fields.value(&SUBSCRIBE.max_unverified_per_client) as usize,
        verifications_per_second: fields.value(&SUBSCRIBE.verifications_per_second),
    })
}

fn listen(fields: &MapReader) -> Option<ListenSettings> {
    Some(ListenSettings {
        max: fields.value(&LISTEN.max) as usize,
        max_per_client: fields.value(&LISTEN.max_per_client) as usize,
        unread_timeout: fields.value(&LISTEN.unread_timeout),
    })
}

fn callbacks(fields: &MapReader) -> Option<CallbackSettings> {
    Some(CallbackSettings {
        allow: fields.read(&CALLBACKS.allow).unwrap_or_default(),
        require_https: fields.value(&CALLBACKS.require_https),
    })
}

fn network(at: &NodeReader, text: &str) -> Option<IpNet> {
    let network = parse_network(text);
    if network.is_none() {
        let problem = format!("`{}` is neither an address nor a range", shortened(text));
        at.report_advising(problem, "write as `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`");
    }
    network
}

fn lease(fields: &MapReader) -> Option<LeaseSettings> {
    let standard = LeaseSettings::default();
    let seconds = |time: Option<Duration>, default_s: u64| time.map_or(default_s, |time| time.as_secs().max(1));
    let min_s = seconds(fields.read(&LEASE.min), standard.min_s);
    let max_s = seconds(fields.read(&LEASE.max), standard.max_s.max(min_s));
    if min_s > max_s {
        fields.at().report_advising("`min` is longer than `max`", "swap them");
        return None;
    }
    let default_s = seconds(fields.read(&LEASE.default), standard.default_s.clamp(min_s, max_s));
    if !(min_s..=max_s).contains(&default_s) {
        let problem = "`default` is not between `min` and `max`";
        fields.at().report_advising(problem, "choose another value, or leave it out");
        return None;
    }
    Some(LeaseSettings { default_s, min_s, max_s })
}

fn delivery(fields: &MapReader) -> Option<DeliverySettings> {
    Some(DeliverySettings {
        timeout: fields.value(&DELIVERY.timeout),
        retry_for: fields.value(&DELIVERY.retry_for),
        retry_first: fields.value(&DELIVERY.retry_first),
        retry_max: fields.value(&DELIVERY.retry_max),
        per_second: fields.value(&DELIVERY.per_second),
        in_flight: fields.value(&DELIVERY.in_flight) as usize,
        in_flight_per_host: fields.value(&DELIVERY.in_flight_per_host),
    })
}

fn retention(fields: &MapReader) -> Option<RetentionSettings> {
    Some(RetentionSettings { bytes: fields.value(&RETENTION.bytes), age: fields.value(&RETENTION.age) })
}
