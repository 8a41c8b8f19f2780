//! `kafka-logger` before a real Kafka.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use weir_testkit::{Answer, Authority, Gateway, Origin, TempDir, eventually};

use crate::real_kafka::{Kafka, change_topic};

const SETTLE: Duration = Duration::from_secs(120);

/// What one of our programs says of a topic, a value a line.
pub(crate) fn said(mut java: Command, program: &str, port: u16, topic: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/records/{program}.java"));
    java.arg(file).arg(port.to_string()).arg(topic);
    let said = java.stdout(Stdio::piped()).output().expect("Java starts");
    let text = String::from_utf8(said.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// All messages of a topic.
fn messages(kafka: &Kafka, topic: &str) -> Vec<Value> {
    said(kafka.java(), "KafkaMessages", kafka.port, topic)
}

pub(crate) fn gateway(options: &str, data: &TempDir, origin: &Origin) -> Gateway {
    let trusted = data.write("authority.pem", &Authority::of_tests().certificate);
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "data_dir: {}
ssl_trusted_certificate: {}
routes:
  - uri: /*
    plugins: {{ kafka-logger: {{ {options}, inactive_timeout: 1, spool: {{}} }} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        data.path().display(),
        trusted.display(),
        origin.addr()
    ))
}

fn sink(gateway: &Gateway) -> Value {
    let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
    report["sinks"][0].clone()
}

pub(crate) fn ask(gateway: &Gateway, count: usize) {
    let mut client = gateway.client();
    (0..count).for_each(|turn| assert_eq!(client.get(&format!("/a?turn={turn}")).expect("an answer").status, 200));
}

pub(crate) fn delivered(gateway: &Gateway, count: u64) {
    eventually("every record is delivered", SETTLE, || {
        let sink = sink(gateway);
        assert_eq!((&sink["rejected"], &sink["dropped"]), (&serde_json::json!({}), &serde_json::json!({})), "{sink:#}");
        sink["delivered"]["records"] == count
    });
}

/// How often each record is in a topic.
pub(crate) fn counts(messages: Vec<Value>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for message in messages {
        let records = if let Value::Array(list) = message { list } else { vec![message] };
        for record in records {
            *counts.entry(record["record_id"].to_string()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_real_kafka_has_every_record_once_though_it_was_killed() {
    let Some(mut kafka) = Kafka::start() else { return };
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    let options = |topic: &str, more: &str| {
        format!("brokers: [{{ host: 127.0.0.1, port: {} }}], kafka_topic: {topic}{more}", kafka.port)
    };
    let single = gateway(&options("single", ", batch_max_size: 1"), &data, &origin);
    let lists = gateway(&options("lists", ", key: k, required_acks: 1"), &TempDir::new(), &origin);
    ask(&single, 300);
    ask(&lists, 300);
    delivered(&single, 300);
    delivered(&lists, 300);
    // While records come, and a batch may be on its way.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&single, 3000));
        kafka.kill();
        asking.join().expect("every request has its answer");
    });
    eventually("it is said", SETTLE, || sink(&single)["last_error"].is_string());
    kafka.restart();
    delivered(&single, 3300);
    let stored = counts(messages(&kafka, "single"));
    assert_eq!((stored.len(), stored.values().all(|count| *count == 1)), (3300, true));
    let lists = messages(&kafka, "lists");
    assert!(lists.iter().all(Value::is_array), "a message is a batch");
    assert_eq!(counts(lists).len(), 300);
}

#[test]
fn records_that_a_real_kafka_refuses_for_good_are_rejected_and_others_go_on() {
    let Some(kafka) = Kafka::start() else { return };
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    // A compacted topic takes no message without a key: INVALID_RECORD.
    change_topic(kafka.java(), kafka.port, "compacted", ("create", "cleanup.policy=compact"));
    let options =
        format!("brokers: [{{ host: 127.0.0.1, port: {} }}], kafka_topic: compacted, batch_max_size: 1", kafka.port);
    let gateway = gateway(&options, &data, &origin);
    ask(&gateway, 20);
    eventually("they are rejected", SETTLE, || sink(&gateway)["rejected"]["invalid"]["records"] == 20);
    let error = sink(&gateway)["last_error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("INVALID_RECORD"), "{error}");
    change_topic(kafka.java(), kafka.port, "compacted", ("set", "cleanup.policy=delete"));
    eventually("others are delivered", SETTLE, || {
        // The change reaches the broker some time after it was answered.
        ask(&gateway, 1);
        sink(&gateway)["delivered"]["records"].as_u64() > Some(0)
    });
    assert!(!messages(&kafka, "compacted").is_empty());
}

#[test]
fn records_of_which_a_real_kafka_refuses_every_time_wait_until_the_cause_is_mended() {
    let Some(kafka) = Kafka::start() else { return };
    let (data, origin) = (TempDir::new(), Origin::serving(|_| Answer::ok("ok")));
    // As if the clock of the gateway were slow: INVALID_TIMESTAMP.
    change_topic(kafka.java(), kafka.port, "timely", ("create", "message.timestamp.before.max.ms=0"));
    let options =
        format!("brokers: [{{ host: 127.0.0.1, port: {} }}], kafka_topic: timely, batch_max_size: 1", kafka.port);
    let gateway = gateway(&options, &data, &origin);
    ask(&gateway, 20);
    eventually("it is said", SETTLE, || {
        sink(&gateway)["last_error"].as_str().is_some_and(|error| error.contains("clock"))
    });
    change_topic(kafka.java(), kafka.port, "timely", ("set", "message.timestamp.before.max.ms=86400000"));
    delivered(&gateway, 20);
}

#[test]
fn a_real_kafka_is_logged_in_to_over_tls() {
    let Some(kafka) = Kafka::start() else { return };
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let start = |mechanism: &str, password: &str, data: &TempDir| {
        let options = format!(
            "brokers: [{{ host: 127.0.0.1, port: {}, sasl_config: {{ mechanism: {mechanism}, user: weir, password: {password} }} }}],
                kafka_topic: secure, tls: {{ verify: true }}",
            kafka.secure_port
        );
        gateway(&options, data, &origin)
    };
    let mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];
    for mechanism in mechanisms {
        let data = TempDir::new();
        let gateway = start(mechanism, "w0rd", &data);
        ask(&gateway, 20);
        delivered(&gateway, 20);
    }
    assert_eq!(counts(messages(&kafka, "secure")).len(), 60);
    let data = TempDir::new();
    let gateway = start("SCRAM-SHA-256", "wrong", &data);
    ask(&gateway, 5);
    eventually("the login is refused", SETTLE, || {
        sink(&gateway)["last_error"].as_str().is_some_and(|error| error.contains("the login was refused"))
    });
    assert_eq!(sink(&gateway)["delivered"]["records"], 0);
}
