//! `log` of a hub: whether its events are kept on the node, or in Kafka.

use serde_json::{Value, json};
use weir_hub::{KafkaLogSettings, KafkaTlsSettings, LogSettings};
use weir_kafka::{SaslLogin, SaslMechanism, is_topic_name};

use crate::keys;
use crate::keys::MapKeys;
use crate::keys::kinds::{
    DistinctList, Flag, Or, ParsedText, SubMap, Text, Whole, Words, flag, section, set, text, whole, words,
};
use crate::keys::schema::Definitions;
use crate::text::read::{MapReader, NodeReader, shortened};

keys! {
    /// Where a hub keeps events and subscriptions, if not on the node.
    pub(super) static HUB_LOG: HubLogKeys = "hub_log";

    /// A topic of Kafka.
    kafka: SubMap<KafkaLogSettings> = section(&HUB_KAFKA, read_kafka), own();
}

keys! {
    /// The topic of Kafka by which several nodes share a hub.
    static HUB_KAFKA: HubKafkaKeys = "hub_kafka";

    /// Brokers as `host:port`. One that answers is enough.
    brokers: DistinctList<ParsedText<(Box<str>, u16)>> = set(text(1, 300).pattern(":[0-9]+$").parsed(broker)), own(),
        required("add the brokers: `brokers: [\"kafka1.internal:9092\"]`"), example("[\"kafka1.internal:9092\"]");
    /// A topic of this hub alone.
    topic: ParsedText<Box<str>> = text(1, 249).pattern("^[A-Za-z0-9._-]+$").parsed(topic), own(),
        required("add a Kafka topic of the hub's own: `topic: weir-orders`"), example("weir-orders");
    /// The number of parts into which the subscriptions are divided, if the hub creates the topic. At most so many nodes deliver.
    partitions: Or<Whole<u32>> = whole(1, 1_024).or(8), own();
    /// The number of copies of the topic, if the hub creates it.
    replication_factor: Whole<i16> = whole(1, 64), own(), absent("that of the brokers");
    /// Use TLS to the brokers.
    tls: SubMap<KafkaTlsSettings> = section(&HUB_KAFKA_TLS, tls), own(), absent("no TLS");
    /// The login at the brokers.
    sasl: SubMap<SaslLogin> = section(&HUB_KAFKA_SASL, login), own(), absent("none");
}

keys! {
    /// TLS to the brokers of a hub.
    static HUB_KAFKA_TLS: HubKafkaTlsKeys = "hub_kafka_tls";

    /// Whether the certificates of brokers are verified.
    verify: Or<Flag> = flag().or(true), own();
}

keys! {
    /// The login at the brokers of a hub.
    static HUB_KAFKA_SASL: HubKafkaSaslKeys = "hub_kafka_sasl";

    /// The mechanism.
    mechanism: Or<Words<SaslMechanism>> = words(&SaslMechanism::ALL).or(SaslMechanism::ScramSha512), own();
    /// The name of the user.
    user: Text = text(1, 1_024), own(), required("add `user` and `password`"), example("weir");
    /// The password.
    password: Text = text(1, 1_024), own(), secret(), required("add `user` and `password`");
}

const FORMS: &str = "write `log: local` or `log: { kafka: { brokers: [...], topic: ... } }`";

pub(super) fn schema(definitions: &mut Definitions) -> Value {
    json!({ "oneOf": [{ "type": "string", "const": "local" }, { "$ref": definitions.reference(HUB_LOG.table()) }] })
}

pub(super) fn read(at: &NodeReader) -> Option<LogSettings> {
    if !at.is_map() {
        let text = at.text()?;
        if text == "local" {
            return Some(LogSettings::Local);
        }
        at.report_advising(format!("`{}` is not an allowed value", shortened(text)), FORMS);
        return None;
    }
    let fields = at.keys(&HUB_LOG)?;
    if !fields.has(&HUB_LOG.kafka) {
        at.report_advising("names no log", FORMS);
    }
    fields.read(&HUB_LOG.kafka).map(LogSettings::Kafka)
}

fn read_kafka(fields: &MapReader) -> Option<KafkaLogSettings> {
    let brokers = fields.read(&HUB_KAFKA.brokers);
    let topic = fields.read(&HUB_KAFKA.topic);
    let tls = fields.read(&HUB_KAFKA.tls);
    let login = fields.read(&HUB_KAFKA.sasl);
    let is_complete = tls.is_some() == fields.has(&HUB_KAFKA.tls) && login.is_some() == fields.has(&HUB_KAFKA.sasl);
    let partitions = fields.value(&HUB_KAFKA.partitions);
    let replication_factor = fields.read(&HUB_KAFKA.replication_factor);
    let settings = KafkaLogSettings {
        brokers: brokers.filter(|brokers| !brokers.is_empty())?,
        topic: topic?,
        partitions,
        replication_factor,
        tls,
        login,
    };
    is_complete.then_some(settings)
}

/// Splits host and port; an IPv6 address has brackets.
fn broker(at: &NodeReader, text: &str) -> Option<(Box<str>, u16)> {
    let broker = split(text);
    if broker.is_none() {
        let problem = format!("`{}` is not a broker's host and port", shortened(text));
        at.report_advising(problem, "write as `kafka1.internal:9092`");
    }
    broker
}

fn split(text: &str) -> Option<(Box<str>, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)),
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_host.then(|| (bare.unwrap_or(host).into(), port))
}

fn topic(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if !is_topic_name(text) {
        let problem = format!("`{}` is not the name of a Kafka topic", shortened(text));
        at.report_advising(problem, "use letters, digits, `.`, `_` and `-`");
        return None;
    }
    Some(text.into())
}

fn tls(fields: &MapReader) -> Option<KafkaTlsSettings> {
    Some(KafkaTlsSettings { verify: fields.value(&HUB_KAFKA_TLS.verify) })
}

fn login(fields: &MapReader) -> Option<SaslLogin> {
    let (user, password) = (fields.read(&HUB_KAFKA_SASL.user), fields.read(&HUB_KAFKA_SASL.password));
    Some(SaslLogin {
        mechanism: fields.value(&HUB_KAFKA_SASL.mechanism),
        user: user?.into(),
        password: password?.into(),
    })
}
