//! Limits of the deliveries to a subscription, by the plugins of the request that made it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_testkit::{DEADLINE, TempDir, eventually};

use crate::peers::{HubNode, Subscriber, TOPIC, encoded};

/// A hub, to which clients subscribe by a route with `limit-events`, and publish by another one.
fn node(limit: &str) -> HubNode {
    let hub = "  publish: { anonymous: true }\n  subscribe: { callbacks: { allow: [127.0.0.0/8] } }\n";
    let rest = format!(
        "routes: [{{ id: limited, uri: /limited, hub_id: h, plugins: {{ limit-events: {{ {limit} }} }} }}, \
         {{ id: hub, uri: /hub, hub_id: h }}]\n"
    );
    HubNode::of(Arc::new(TempDir::new()), hub, &rest)
}

fn subscribe(node: &HubNode, target: &str, topic: &str, callback: &str) {
    let before = node.status()["subscriptions"].as_u64().expect("a number");
    let form = format!("hub.mode=subscribe&hub.topic={}&hub.callback={}", encoded(topic), encoded(callback));
    let lines = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(node.send("POST", target, lines, form.as_bytes()).status, 202);
    eventually("it is verified", DEADLINE, || node.status()["subscriptions"] == before + 1);
}

/// The numbers of the account.
fn account(node: &HubNode) -> [u64; 3] {
    let status = node.settled();
    ["audience", "delivered", "throttled"].map(|name| status[name].as_u64().expect("a number"))
}

#[test]
fn deliveries_beyond_a_limit_can_be_dropped_and_are_accounted_for() {
    let (node, subscriber) = (node("count: 2, time_window: 86400, action: drop"), Subscriber::start());
    subscribe(&node, "/limited", TOPIC, &subscriber.url("/limited"));
    subscribe(&node, "/hub", TOPIC, &subscriber.url("/all"));
    (0..5).for_each(|number| node.publish(number.to_string()));
    assert_eq!(account(&node), [10, 7, 3]);
    let got = |path: &str| {
        let deliveries = subscriber.deliveries().into_iter().filter(|delivery| delivery.target == path);
        deliveries.map(|delivery| String::from_utf8(delivery.body).expect("digits")).collect::<Vec<_>>()
    };
    assert_eq!(got("/limited"), ["0", "1"]);
    assert_eq!(got("/all"), ["0", "1", "2", "3", "4"]);
    let metrics = node.metrics();
    assert_eq!(metrics.get("weir_hub_outcomes_total{hub=\"h\",outcome=\"throttled\"}"), Some(3.0));
    // The limit is that of the subscription, which survives the process, and the counter begins anew.
    let node = node.restart();
    (5..8).for_each(|number| node.publish(number.to_string()));
    assert_eq!(account(&node), [16, 12, 4]);
    assert_eq!(got("/limited")[2..], ["5", "6"]);
}

#[test]
fn deliveries_beyond_a_limit_wait_and_keep_their_order() {
    let (node, subscriber) = (node("count: 2, time_window: 1"), Subscriber::start());
    subscribe(&node, "/limited", TOPIC, &subscriber.url("/"));
    let began = Instant::now();
    (0..5).for_each(|number| node.publish(number.to_string()));
    let texts: Vec<Vec<u8>> = subscriber.wait_deliveries(5).into_iter().map(|delivery| delivery.body).collect();
    // Two in a window, so the fifth is due in the third one. Times of the hub are whole milliseconds.
    assert!(began.elapsed() >= Duration::from_millis(1_990), "they did not wait: {:?}", began.elapsed());
    assert_eq!(texts, [b"0", b"1", b"2", b"3", b"4"]);
    assert_eq!(account(&node), [5, 5, 0]);
}

#[test]
fn subscriptions_of_a_client_count_together_or_each_topic_by_itself() {
    for (per_topic, want) in [(false, [4, 2, 2]), (true, [4, 4, 0])] {
        let limit = format!("count: 2, time_window: 86400, action: drop, per_topic: {per_topic}");
        let (node, subscriber) = (node(&limit), Subscriber::start());
        for (topic, path) in [("http://gw.example/t/a", "/a"), ("http://gw.example/t/b", "/b")] {
            subscribe(&node, "/limited", topic, &subscriber.url(path));
        }
        for topic in ["a", "b", "a", "b"] {
            let target =
                format!("/hub?hub.mode=publish&hub.topic={}", encoded(&format!("http://gw.example/t/{topic}")));
            assert_eq!(node.post(&target, "text/plain", b"x").status, 202);
        }
        assert_eq!(account(&node), want, "per_topic: {per_topic}");
    }
}
