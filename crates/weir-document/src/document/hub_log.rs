//! `log` of a hub: whether its events are kept on the node, or in Kafka.

use weir_hub::{KafkaLogSettings, KafkaTlsSettings, LogSettings};
use weir_kafka::{SaslLogin, SaslMechanism, is_topic_name};

use crate::text::read::{MapReader, NodeReader, shortened};

/// The default number of partitions for the subscriptions.
const PARTITIONS: u32 = 8;

const FORMS: &str = "write `log: local` or `log: { kafka: { brokers: [...], topic: ... } }`";

pub(super) fn read(at: &NodeReader) -> Option<LogSettings> {
    if !at.is_map() {
        let text = at.text()?;
        if text == "local" {
            return Some(LogSettings::Local);
        }
        at.report_advising(format!("`{}` is not an allowed value", shortened(text)), FORMS);
        return None;
    }
    let fields = at.fields(&["kafka"])?;
    match fields.get("kafka") {
        Some(kafka) => read_kafka(&kafka).map(LogSettings::Kafka),
        None => {
            at.report_advising("names no log", FORMS);
            None
        }
    }
}

fn read_kafka(at: &NodeReader) -> Option<KafkaLogSettings> {
    let fields = at.fields(&["brokers", "topic", "partitions", "replication_factor", "tls", "sasl"])?;
    let (brokers, topic) = (brokers(&fields), topic(&fields));
    let partitions = fields.get("partitions").map_or(Some(PARTITIONS), |at| at.integer(1..=1_024));
    let replication_factor = fields.get("replication_factor").map_or(Some(None), |at| at.integer(1..=64).map(Some));
    let tls = fields.get("tls").map_or(Some(None), |at| tls(&at).map(Some));
    let login = fields.get("sasl").map_or(Some(None), |at| login(&at).map(Some));
    Some(KafkaLogSettings {
        brokers: brokers?,
        topic: topic?,
        partitions: partitions?,
        replication_factor: replication_factor?,
        tls: tls?,
        login: login?,
    })
}

fn brokers(fields: &MapReader) -> Option<Vec<(Box<str>, u16)>> {
    const EXAMPLE: &str = "add the brokers: `brokers: [\"kafka1.internal:9092\"]`";
    let Some(list) = fields.get("brokers") else {
        fields.at().report_advising("has no `brokers`", EXAMPLE);
        return None;
    };
    let texts = list.texts(|item| {
        let text = item.text_of(1..=300)?;
        if broker(text).is_none() {
            let problem = format!("`{}` is not a broker's host and port", shortened(text));
            item.report_advising(problem, "write as `kafka1.internal:9092`");
            return None;
        }
        Some(text.to_owned())
    });
    let brokers: Vec<_> = texts.iter().filter_map(|text| broker(text)).collect();
    (!brokers.is_empty()).then_some(brokers)
}

/// Splits host and port; an IPv6 address has brackets.
fn broker(text: &str) -> Option<(Box<str>, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)),
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_host.then(|| (bare.unwrap_or(host).into(), port))
}

fn topic(fields: &MapReader) -> Option<Box<str>> {
    let Some(at) = fields.get("topic") else {
        fields.at().report_advising("has no `topic`", "add a Kafka topic of the hub's own: `topic: weir-orders`");
        return None;
    };
    let text = at.text_of(1..=249)?;
    if !is_topic_name(text) {
        let problem = format!("`{}` is not the name of a Kafka topic", shortened(text));
        at.report_advising(problem, "use letters, digits, `.`, `_` and `-`");
        return None;
    }
    Some(text.into())
}

fn tls(at: &NodeReader) -> Option<KafkaTlsSettings> {
    let fields = at.fields(&["verify"])?;
    Some(KafkaTlsSettings { verify: fields.get("verify").map_or(Some(true), |at| at.boolean())? })
}

fn login(at: &NodeReader) -> Option<SaslLogin> {
    let fields = at.fields(&["mechanism", "user", "password"])?;
    let required = |key: &str| {
        let found = fields.get(key);
        if found.is_none() {
            at.report_advising(format!("has no `{key}`"), "add `user` and `password`");
        }
        Some(found?.text_of(1..=1_024)?.to_owned())
    };
    let mechanism =
        fields.get("mechanism").map_or(Some(SaslMechanism::ScramSha512), |at| at.choice(&SaslMechanism::ALL));
    let (user, password) = (required("user"), required("password"));
    Some(SaslLogin { mechanism: mechanism?, user: user?, password: password? })
}
