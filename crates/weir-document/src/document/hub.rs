//! Hubs: topics, rights to publish and subscribe, retention and delivery of events.

use ipnet::IpNet;
use weir_hub::{
    CallbackSettings, ConsumerGroups, DeliverySettings, HubSettings, LeaseSettings, LogSettings, PermittedCallers,
    PublishSettings, RetentionSettings, SignatureMethod, SubscribeSettings, TopicPattern, TopicRights, is_http_url,
    origin_of,
};
use weir_plugin::vars::parse_network;

use super::hub_log;
use super::resource::{self, COMMON, ResourceOrigin};
use crate::text::read::{MapReader, NodeReader, shortened};

/// A W3C WebSub hub.
#[derive(Clone, Debug)]
pub struct HubSpec {
    pub origin: ResourceOrigin,
    pub id: Box<str>,
    pub settings: HubSettings,
}

pub(super) fn read(at: &NodeReader, index: usize) -> Option<HubSpec> {
    const OWN: &[&str] = &["url", "topics", "rights", "publish", "subscribe", "delivery", "retention", "log"];
    let fields = at.fields(&[OWN, COMMON].concat())?;
    resource::common(&fields);
    let url = match fields.get("url") {
        Some(url) => http_url(&url),
        None => {
            at.report_advising("has no `url`", "add the public URL of the hub: `url: https://api.example.com/hub`");
            None
        }
    };
    let topics = topics(&fields);
    let rights = fields.get("rights").map(|at| at.items().filter_map(|item| rights(&item, &topics)).collect());
    let rights = rights.unwrap_or_default();
    let section = |key: &str| fields.get(key);
    let publish = section("publish").and_then(|at| publish(&at)).unwrap_or_default();
    let subscribe = section("subscribe").and_then(|at| subscribe(&at)).unwrap_or_default();
    let delivery = section("delivery").and_then(|at| delivery(&at)).unwrap_or_default();
    let retention = section("retention").and_then(|at| retention(&at)).unwrap_or_default();
    let log = section("log").map_or(Some(LogSettings::Local), |at| hub_log::read(&at));
    let (url, log) = (url?, log?);
    Some(HubSpec {
        origin: ResourceOrigin::of(at),
        id: resource::id(&fields, index),
        settings: HubSettings {
            url,
            topics,
            rights,
            // Filled in where the consumers of the document are known.
            consumers: ConsumerGroups::default(),
            publish,
            subscribe,
            delivery,
            retention,
            log,
        },
    })
}

fn http_url(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=2048)?;
    if !is_http_url(text) {
        let problem = format!("`{}` is not an absolute http or https URL", shortened(text));
        at.report_advising(problem, "write as `https://api.example.com/hub`");
        return None;
    }
    Some(text.into())
}

fn topics(fields: &MapReader) -> Vec<TopicPattern> {
    let Some(list) = fields.get("topics") else {
        fields.at().report_advising(
            "has no `topics`",
            "add the URLs of the topics: `topics: [\"https://api.example.com/orders/*\"]`",
        );
        return Vec::new();
    };
    let texts = list.texts(|item| {
        let text = item.text_of(1..=2048)?;
        if TopicPattern::parse(text).is_none() {
            let problem = format!("`{}` is not the URL of a topic", shortened(text));
            item.report_advising(problem, "write as `https://api.example.com/orders`, or with `*` at its end");
            return None;
        }
        Some(text.to_owned())
    });
    texts.iter().filter_map(|text| TopicPattern::parse(text)).collect()
}

fn publish(at: &NodeReader) -> Option<PublishSettings> {
    let fields = at.fields(&[CALLERS, &["anonymous", "secret", "signature_header", "max_bytes", "fetch"]].concat())?;
    let default = PublishSettings::default();
    Some(PublishSettings {
        anonymous: fields.get("anonymous").and_then(|at| at.boolean()).unwrap_or(default.anonymous),
        permitted: permitted(&fields),
        secret: fields.get("secret").and_then(|at| at.text_of(1..=199)).map(Box::from),
        signature_header: fields.get("signature_header").and_then(|at| header(&at)).unwrap_or(default.signature_header),
        max_bytes: fields.get("max_bytes").and_then(|at| bounded_size(&at)).unwrap_or(default.max_bytes),
        fetch: fields.get("fetch").map(|at| at.texts(origin).into_iter().map(Box::from).collect()).unwrap_or_default(),
    })
}

/// `of_hub`: the topics of the hub. A pattern that matches none of them would restrict nothing.
fn rights(at: &NodeReader, of_hub: &[TopicPattern]) -> Option<TopicRights> {
    let fields = at.fields(&["topics", "publish", "subscribe"])?;
    let topics = topics(&fields);
    let is_of_hub = |own: &TopicPattern| of_hub.is_empty() || of_hub.iter().any(|other| other.overlaps(own));
    for foreign in topics.iter().filter(|own| !is_of_hub(own)) {
        let problem =
            format!("`{}` matches no topic of the hub, so it restricts nothing", shortened(foreign.as_text()));
        at.report_advising(problem, "write it as in `topics` of the hub, with the same scheme, host and port");
    }
    let callers = |key: &str| {
        let section = |at: NodeReader| at.fields(CALLERS).map(|fields| permitted(&fields));
        fields.get(key).and_then(section).unwrap_or_default()
    };
    Some(TopicRights { topics, publish: callers("publish"), subscribe: callers("subscribe") })
}

/// The keys that say which callers have a right.
const CALLERS: &[&str] = &["consumers", "groups", "scopes", "topic_claim"];

fn permitted(fields: &MapReader) -> PermittedCallers {
    PermittedCallers {
        consumers: names(fields, "consumers"),
        groups: names(fields, "groups"),
        scopes: scopes(fields),
        topic_claim: fields.get("topic_claim").and_then(|at| topic_claim(&at)),
    }
}

fn names(fields: &MapReader, key: &str) -> Vec<Box<str>> {
    listed(fields, key, |at| at.text_of(1..=256).map(str::to_owned))
}

/// A scope token (RFC 6749 §3.3).
fn scopes(fields: &MapReader) -> Vec<Box<str>> {
    listed(fields, "scopes", |at| {
        let text = at.text_of(1..=256)?;
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\')) {
            at.report_advising(
                format!("`{}` is not a scope", shortened(text)),
                "write as `orders:write`, each by itself",
            );
            return None;
        }
        Some(text.to_owned())
    })
}

fn listed(fields: &MapReader, key: &str, item: impl Fn(&NodeReader) -> Option<String>) -> Vec<Box<str>> {
    fields.get(key).map(|at| at.texts(item).into_iter().map(Box::from).collect()).unwrap_or_default()
}

/// The name of a claim, or a JSON Pointer (RFC 6901) to it.
fn topic_claim(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=256)?;
    let is_pointer = text.starts_with('/');
    let escapes_well = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if is_pointer && !escapes_well {
        let problem = format!("`{}` is not a JSON Pointer", shortened(text));
        at.report_advising(problem, "write as `/mercure/publish`, with `~0` for `~` and `~1` for `/` in a name");
        return None;
    }
    Some(text.into())
}

fn header(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=256)?;
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        at.report_advising(format!("`{}` is not the name of a header", shortened(text)), "write as `X-Hub-Signature`");
        return None;
    }
    Some(text.to_ascii_lowercase().into())
}

/// The limit follows from that of a journal's record, which is 64 MiB.
fn bounded_size(at: &NodeReader) -> Option<usize> {
    const MOST: u64 = 32 << 20;
    let size = at.size()?;
    if !(1..=MOST).contains(&size) {
        at.report_advising("the largest event must be between 1 byte and 32 MiB", "try `1MiB`");
        return None;
    }
    Some(size as usize)
}

/// Reads an origin: scheme and authority of a URL. Returns it in lower case.
fn origin(at: &NodeReader) -> Option<String> {
    let text = at.text_of(1..=2048)?;
    let origin = origin_of(text).filter(|origin| is_http_url(origin) && origin.len() == text.len());
    if origin.is_none() {
        let problem = format!("`{}` is not an origin", shortened(text));
        at.report_advising(problem, "write scheme, host and port: `https://orders.internal:8443`");
    }
    origin
}

fn subscribe(at: &NodeReader) -> Option<SubscribeSettings> {
    const OWN: &[&str] = &[
        "callbacks",
        "lease",
        "signature",
        "standard_webhooks",
        "max_per_consumer",
        "max_unverified_per_client",
        "verifications_per_second",
    ];
    let fields = at.fields(&[CALLERS, OWN].concat())?;
    let default = SubscribeSettings::default();
    Some(SubscribeSettings {
        permitted: permitted(&fields),
        callbacks: fields.get("callbacks").and_then(|at| callbacks(&at)).unwrap_or_default(),
        lease: fields.get("lease").and_then(|at| lease(&at)).unwrap_or_default(),
        signature: fields.get("signature").and_then(|at| at.choice(&SignatureMethod::ALL)).unwrap_or(default.signature),
        standard_webhooks: fields.get("standard_webhooks").and_then(|at| at.boolean()).unwrap_or(false),
        max_per_consumer: fields
            .get("max_per_consumer")
            .and_then(|at| at.integer(1..=10_000_000_i64))
            .map_or(default.max_per_consumer, |most| most as usize),
        max_unverified_per_client: fields
            .get("max_unverified_per_client")
            .and_then(|at| at.integer(1..=100_000_i64))
            .map_or(default.max_unverified_per_client, |most| most as usize),
        verifications_per_second: fields
            .get("verifications_per_second")
            .and_then(|at| at.integer(1..=1_000_000))
            .unwrap_or(default.verifications_per_second),
    })
}

fn callbacks(at: &NodeReader) -> Option<CallbackSettings> {
    let fields = at.fields(&["allow", "require_https"])?;
    Some(CallbackSettings {
        allow: fields.get("allow").map(|at| at.items().filter_map(|item| network(&item)).collect()).unwrap_or_default(),
        require_https: fields.get("require_https").and_then(|at| at.boolean()).unwrap_or(false),
    })
}

fn network(at: &NodeReader) -> Option<IpNet> {
    let text = at.text()?;
    let network = parse_network(text);
    if network.is_none() {
        let problem = format!("`{}` is neither an address nor a range", shortened(text));
        at.report_advising(problem, "write as `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`");
    }
    network
}

fn lease(at: &NodeReader) -> Option<LeaseSettings> {
    let fields = at.fields(&["default", "min", "max"])?;
    let default = LeaseSettings::default();
    let seconds = |key: &str, default_s: u64| {
        let duration = fields.get(key).and_then(|at| at.duration());
        duration.map_or(default_s, |duration| duration.as_secs().max(1))
    };
    let min_s = seconds("min", default.min_s);
    let max_s = seconds("max", default.max_s.max(min_s));
    if min_s > max_s {
        at.report_advising("`min` is longer than `max`", "swap them");
        return None;
    }
    let default_s = seconds("default", default.default_s.clamp(min_s, max_s));
    if !(min_s..=max_s).contains(&default_s) {
        at.report_advising("`default` is not between `min` and `max`", "choose another value, or leave it out");
        return None;
    }
    Some(LeaseSettings { default_s, min_s, max_s })
}

fn delivery(at: &NodeReader) -> Option<DeliverySettings> {
    let fields = at.fields(&[
        "timeout",
        "retry_for",
        "retry_first",
        "retry_max",
        "per_second",
        "in_flight",
        "in_flight_per_host",
    ])?;
    let default = DeliverySettings::default();
    let time = |key: &str, default| fields.get(key).and_then(|at| at.duration()).unwrap_or(default);
    let number =
        |key: &str, most: u32, default: u32| fields.get(key).and_then(|at| at.integer(1..=most)).unwrap_or(default);
    Some(DeliverySettings {
        timeout: time("timeout", default.timeout),
        retry_for: time("retry_for", default.retry_for),
        retry_first: time("retry_first", default.retry_first),
        retry_max: time("retry_max", default.retry_max),
        per_second: fields.get("per_second").and_then(|at| at.integer(0..=10_000_000)).unwrap_or(default.per_second),
        in_flight: number("in_flight", 65_536, default.in_flight as u32) as usize,
        in_flight_per_host: number("in_flight_per_host", 65_536, default.in_flight_per_host),
    })
}

fn retention(at: &NodeReader) -> Option<RetentionSettings> {
    const LEAST: u64 = 1 << 20;
    let fields = at.fields(&["bytes", "age"])?;
    let default = RetentionSettings::default();
    let bytes = fields.get("bytes").and_then(|at| {
        let size = at.size()?;
        if size < LEAST {
            at.report_advising("is less than 1 MiB", "try `1GiB`");
            return None;
        }
        Some(size)
    });
    Some(RetentionSettings {
        bytes: bytes.unwrap_or(default.bytes),
        age: fields.get("age").and_then(|at| at.duration()).unwrap_or(default.age),
    })
}
