//! A hub that several nodes share through a real Kafka. It keeps the guarantees of a hub of one node while nodes are killed and a
//! broker is restarted.
//!
//! With `WEIR_TEST_FULL`, a node is killed every 20 seconds for five minutes, and the duration of each takeover is bounded.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testkit::{Answer, Client, Gateway, eventually, eventually_some, is_full, scaled};

use crate::api::{Api, EDITOR, admin_addr, json};
use crate::peers::{HubNode, Subscriber, TOPIC, encoded, is_signed};
use crate::real_kafka::{Kafka, change_topic};
use crate::receivers::{Receivers, content, lock};

/// More time than any step takes on a busy machine.
const SETTLED: Duration = Duration::from_secs(240);
/// The documented limit of a takeover.
const TAKEOVER: Duration = Duration::from_secs(10);
const KILL_EVERY: Duration = Duration::from_secs(20);

/// A hub in a topic of this name with six share partitions, so that each of three nodes owns two.
fn hub(kafka: &Kafka, topic: &str) -> String {
    format!(
        "  publish: {{ anonymous: true }}\n  \
         delivery: {{ timeout: 4s, retry_first: 20ms, retry_max: 200ms }}\n  \
         subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }}, verifications_per_second: 100000, \
         max_unverified_per_client: 100000, standard_webhooks: true }}\n  \
         log: {{ kafka: {{ brokers: [\"127.0.0.1:{}\"], topic: {topic}, partitions: 6, replication_factor: 1 }} }}\n",
        kafka.port
    )
}

/// The sum of a number over nodes. A missing number counts as 0.
fn sum(nodes: &[HubNode], name: &str) -> u64 {
    nodes.iter().map(|node| node.status()[name].as_u64().unwrap_or_default()).sum()
}

/// Publishes through any node that answers, and records the acknowledged events.
struct Publisher {
    addresses: Mutex<Vec<SocketAddr>>,
    is_ended: AtomicBool,
    next: AtomicU64,
    acknowledged: Mutex<Vec<u64>>,
    /// The pause between two events.
    pace: Duration,
}

impl Publisher {
    fn start(nodes: &[HubNode], pace: Duration) -> (Arc<Publisher>, JoinHandle<()>) {
        let publisher = Arc::new(Publisher {
            addresses: Mutex::new(nodes.iter().map(|node| node.gateway.addr()).collect()),
            is_ended: AtomicBool::new(false),
            next: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            pace,
        });
        let own = Arc::clone(&publisher);
        (publisher, std::thread::spawn(move || own.run()))
    }

    fn run(&self) {
        for turn in 0.. {
            if self.is_ended.load(Relaxed) {
                return;
            }
            let address = {
                let addresses = lock(&self.addresses);
                addresses[turn % addresses.len()]
            };
            let number = self.next.fetch_add(1, Relaxed);
            match publish(address, number) {
                Some(202) => lock(&self.acknowledged).push(number),
                Some(status) => assert_eq!(status, 503, "brokers may not answer"),
                None => {}
            }
            // The publishing rate, not a wait for an event.
            std::thread::park_timeout(self.pace);
        }
    }

    fn count(&self) -> usize {
        lock(&self.acknowledged).len()
    }

    /// Waits until this many more events are acknowledged.
    fn more(&self, count: usize) {
        let wanted = self.count() + count;
        eventually("events are acknowledged", SETTLED, || self.count() >= wanted);
    }
}

fn publish(address: SocketAddr, number: u64) -> Option<u16> {
    let (target, content) = (format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC)), content(number));
    let length = content.len();
    let head = format!("POST {target} HTTP/1.1\r\nHost: gw.example\r\nContent-Length: {length}\r\n\r\n");
    Client::try_connect(address).ok()?.ask([head.as_bytes(), &content].concat()).ok().map(|answer| answer.status)
}

/// Starts nodes, and waits until each has opened the hub. A broker that has just started refuses connections for a time.
fn start_nodes<const COUNT: usize>(hub: &str) -> [HubNode; COUNT] {
    let nodes = [(); COUNT].map(|()| HubNode::with(hub));
    eventually("every node has opened the hub", SETTLED, || {
        nodes.iter().all(|node| node.status()["subscriptions"].is_u64())
    });
    nodes
}

/// Subscribes all receivers, through every node in turn.
fn subscribe(nodes: &[HubNode], hosts: &[SocketAddr], count: usize) {
    for subscriber in 0..count {
        let callback = format!("http://{}/s/{subscriber}", hosts[Receivers::host_of(subscriber)]);
        let form = [("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &*callback)];
        let answer = nodes[subscriber % nodes.len()].form(&form);
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
    subscribed(nodes, count);
}

fn subscribed(nodes: &[HubNode], count: usize) {
    eventually("all subscriptions are served", SETTLED, || sum(nodes, "subscriptions") == count as u64);
}

#[test]
fn acknowledged_events_survive_killed_nodes_and_a_broker_restart() {
    let Some(mut kafka) = Kafka::start() else { return };
    let (count, kills) = (scaled(100, 500), scaled(3, 15));
    let receivers = Receivers::new(count, u64::MAX);
    let hosts = receivers.serve();
    let hub = hub(&kafka, "takeover");
    let mut nodes = Vec::from(start_nodes::<3>(&hub));
    subscribe(&nodes, &hosts, count);
    let (publisher, publishing) = Publisher::start(&nodes, Duration::from_millis(scaled(20, 50) as u64));
    for life in 0..kills {
        let began = Instant::now();
        publisher.more(50);
        let killed = nodes.remove(0);
        lock(&publisher.addresses).retain(|address| *address != killed.gateway.addr());
        drop(killed);
        let killed_at = Instant::now();
        subscribed(&nodes, count);
        let took = killed_at.elapsed();
        eprintln!("takeover {life}: {took:?}");
        assert!(!is_full() || took < TAKEOVER, "takeover {life} took {took:?}");
        receivers.life.fetch_add(1, Relaxed);
        publisher.more(50);
        nodes.push(HubNode::with(&hub));
        lock(&publisher.addresses).push(nodes[2].gateway.addr());
        subscribed(&nodes, count);
        if life == kills / 2 {
            kafka.kill();
            kafka.restart();
            publisher.more(50);
        }
        if is_full() {
            eventually("the next kill is due", SETTLED, || began.elapsed() >= KILL_EVERY);
        }
    }
    publisher.is_ended.store(true, Relaxed);
    publishing.join().expect("the publisher ends");
    receivers.is_calm.store(true, Relaxed);
    check(&nodes, &receivers, &publisher, kills);
}

/// Asserts that every subscriber got every published event, and that the nodes' account agrees.
fn check(nodes: &[HubNode], receivers: &Receivers, publisher: &Publisher, kills: usize) {
    let count = receivers.received.len() as u64;
    subscribed(nodes, count as usize);
    eventually("nothing is pending", SETTLED, || {
        sum(nodes, "pending") == 0 && sum(nodes, "subscriptions") == count && sum(nodes, "audience") > 0
    });
    receivers.assert_no_faults();
    let published = lock(&receivers.published).clone();
    let numbers: HashSet<u64> = published.values().copied().collect();
    let lost = lock(&publisher.acknowledged).iter().filter(|number| !numbers.contains(number)).count();
    assert_eq!((lost, numbers.len()), (0, published.len()), "what was acknowledged came, each event once");
    assert_eq!(receivers.accepted(), published.len() as u64 * count, "everybody has everything");
    assert_eq!(sum(nodes, "audience"), published.len() as u64 * count);
    assert_eq!(sum(nodes, "delivered"), receivers.accepted());
    for name in ["dead_lettered", "expired", "cancelled"] {
        assert_eq!(sum(nodes, name), 0, "{name}");
    }
    // Deliveries in flight are repeated when a node is killed, when one joins, and when the broker is unavailable.
    let most = 3 * (kills + 1);
    for (subscriber, received) in receivers.received.iter().enumerate() {
        let received = lock(received);
        let most = most + received.cut;
        assert!(received.repeated <= most, "{subscriber}: {} repeated, {most} at most", received.repeated);
    }
}

#[test]
fn every_node_takes_requests_and_events_and_shows_them() {
    let Some(kafka) = Kafka::start() else { return };
    let hub = hub(&kafka, "contract");
    let nodes = start_nodes::<2>(&hub);
    let subscriber = Subscriber::start();
    let callback = subscriber.url("/in?own=1");
    let form = |node: &HubNode, mode: &str| {
        let fields = [("hub.mode", mode), ("hub.topic", TOPIC), ("hub.callback", &*callback), ("hub.secret", "s")];
        assert_eq!(node.form(&fields).status, 202);
    };
    form(&nodes[0], "subscribe");
    subscribed(&nodes, 1);
    form(&nodes[1], "subscribe");
    eventually("it is renewed", SETTLED, || subscriber.verifications().len() == 2 && sum(&nodes, "unverified") == 0);
    nodes[1].publish("one");
    nodes[0].publish("two");
    let deliveries = subscriber.wait_deliveries(2);
    assert!(deliveries.iter().all(|delivery| is_signed(delivery, "sha256", "s")));
    assert_eq!([&deliveries[0].body[..], &deliveries[1].body[..]], [b"one", b"two"]);
    for node in &nodes {
        eventually("it has the newest event", SETTLED, || node.gateway.get("/t/orders").body == b"two");
        assert_eq!(node.gateway.get("/t/orders?after=earliest").body, b"one");
    }
    let ids = nodes.each_ref().map(|node| node.gateway.get("/t/orders").headers.get("Event-Id").map(str::to_owned));
    assert!(ids[0].is_some() && ids[0] == ids[1], "{ids:?}");
    // A subscriber that does not confirm the verification is not unsubscribed.
    subscriber.answer(|request| (request.method == "GET").then(|| Answer::status(404, "")));
    form(&nodes[0], "unsubscribe");
    eventually("it is asked", SETTLED, || subscriber.verifications().len() == 3 && sum(&nodes, "unverified") == 0);
    subscribed(&nodes, 1);
    subscriber.answer(|_| None);
    form(&nodes[0], "unsubscribe");
    subscribed(&nodes, 0);
    nodes[0].publish("three");
    eventually("all have it", SETTLED, || nodes.iter().all(|node| node.gateway.get("/t/orders").body == b"three"));
    assert_eq!((sum(&nodes, "delivered"), sum(&nodes, "audience")), (2, 2));
    assert_eq!(subscriber.deliveries().len(), 2);
}

/// The dead letters listed by a node, by event and subscription.
fn dead_letters(node: &HubNode) -> Vec<(u64, u64)> {
    let found = Api::with_key(admin_addr(&node.gateway), EDITOR).get("/weir/v1/hubs/h/dead-letters");
    let number = |letter: &Value, name: &str| letter[name].as_u64().expect("a number");
    let list = found["list"].as_array().expect("a list");
    list.iter().map(|letter| (number(letter, "event"), number(letter, "subscription"))).collect()
}

/// Replays the dead letters of a node; returns their number.
fn replay(node: &HubNode) -> u64 {
    let mut api = Api::with_key(admin_addr(&node.gateway), EDITOR);
    let answer = api.ask("POST", "/weir/v1/hubs/h/replay", "", r#"{"all":true}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    json(&answer)["replayed"].as_u64().expect("a number")
}

#[test]
fn dead_letters_are_those_of_the_node_that_has_their_subscriptions() {
    const COUNT: u64 = 12;
    let Some(kafka) = Kafka::start() else { return };
    let hub = hub(&kafka, "dead-letters").replace("retry_max: 200ms", "retry_max: 20ms, retry_for: 1ms");
    let mut nodes = vec![HubNode::administered(&hub), HubNode::administered(&hub)];
    let shares = |node: &HubNode| [&node.status()["shares"]["own"], &node.status()["shares"]["all"]].map(Value::as_u64);
    eventually("each has its shares", SETTLED, || nodes.iter().all(|node| shares(node) == [Some(3), Some(6)]));
    let subscriber = Subscriber::start();
    for number in 0..COUNT {
        let callback = subscriber.url(&format!("/{number}"));
        let form = [("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &*callback)];
        assert_eq!(nodes[0].form(&form).status, 202);
    }
    subscribed(&nodes, COUNT as usize);
    subscriber.refuse(400);
    nodes[0].publish("one");
    eventually("all are given up", SETTLED, || sum(&nodes, "dead_lettered") == COUNT);
    let mut letters: Vec<_> = nodes.iter().flat_map(dead_letters).collect();
    letters.sort_unstable();
    letters.dedup();
    assert_eq!(letters.len() as u64, COUNT, "each is at one node");

    subscriber.answer(|_| None);
    // A refused event may have been tried twice within its millisecond: only what comes now counts.
    subscriber.origin.forget();
    let of_first = dead_letters(&nodes[0]).len() as u64;
    assert!(0 < of_first && of_first < COUNT, "both nodes have some");
    assert_eq!(replay(&nodes[0]), of_first, "each node replays its own");
    eventually("they are delivered", SETTLED, || nodes[0].status()["delivered"] == of_first);
    assert_eq!(dead_letters(&nodes[0]), []);

    // Another node takes over the shares of the killed one, with all outcomes.
    let rest = dead_letters(&nodes[1]);
    drop(nodes.remove(1));
    subscribed(&nodes, COUNT as usize);
    assert_eq!((dead_letters(&nodes[0]), shares(&nodes[0])), (rest, [Some(6), Some(6)]));
    assert_eq!(replay(&nodes[0]), COUNT - of_first);
    eventually("all are delivered", SETTLED, || nodes[0].status()["delivered"] == COUNT);
    let status = nodes[0].settled();
    let counts = ["audience", "dead_lettered", "replayed"].map(|name| status[name].as_u64());
    assert_eq!(counts, [Some(COUNT); 3], "{status}");
    assert_eq!(subscriber.deliveries().len() as u64, COUNT);
}

#[test]
fn a_node_whose_copy_of_the_events_fails_opens_the_hub_again() {
    let Some(kafka) = Kafka::start() else { return };
    let [node] = start_nodes(&hub(&kafka, "copy"));
    let subscriber = Subscriber::start();
    let form = [("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &subscriber.url("/"))];
    assert_eq!(node.form(&form).status, 202);
    subscribed(std::slice::from_ref(&node), 1);
    // The files that it writes are gone, and the next one cannot be created.
    let copy = find(node.data().path(), "copy").expect("the hub has a copy");
    std::fs::remove_dir_all(&copy).expect("it exists");
    let (target, content) = (format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC)), vec![b'x'; 1 << 20]);
    let mut taken = 0;
    eventually("the node leaves the hub", SETTLED, || {
        taken += usize::from(node.post(&target, "text/plain", &content).status == 202);
        node.gateway.stderr().contains("this node leaves the hub, and opens it again")
    });
    subscribed(std::slice::from_ref(&node), 1);
    eventually("events are taken again", SETTLED, || {
        let status = node.post(&target, "text/plain", b"last").status;
        taken += usize::from(status == 202);
        status == 202
    });
    let of_all = || subscriber.deliveries();
    eventually("the last one is delivered", SETTLED, || of_all().iter().any(|delivery| delivery.body == b"last"));
    assert!(of_all().len() >= taken, "{taken} were acknowledged");
}

#[test]
fn a_hub_whose_topic_refuses_events_for_good_says_so_and_goes_on_once_the_topic_takes_them() {
    let Some(kafka) = Kafka::start() else { return };
    let [node] = start_nodes(&hub(&kafka, "refusing"));
    let subscriber = Subscriber::start();
    let form = [("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.callback", &subscriber.url("/"))];
    assert_eq!(node.form(&form).status, 202);
    subscribed(std::slice::from_ref(&node), 1);
    let change = |setting: &str| change_topic(kafka.java(), kafka.port, "refusing", ("set", setting));
    let target = format!("/hub?hub.mode=publish&hub.topic={}", encoded(TOPIC));
    // A compacted topic takes no message without a key.
    change("cleanup.policy=compact");
    let refused = eventually_some("an event is refused", SETTLED, || {
        Some(node.post(&target, "text/plain", b"first")).filter(|answer| answer.status == 503)
    });
    assert!(refused.text().contains("INVALID_RECORD"), "{}", refused.text());
    change("cleanup.policy=delete");
    eventually("events are taken again", SETTLED, || node.post(&target, "text/plain", b"last").status == 202);
    eventually("the last one is delivered", SETTLED, || {
        subscriber.deliveries().iter().any(|delivery| delivery.body == b"last")
    });
}

/// The directory of this name, wherever it is below another one.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let directories: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    let found = directories.iter().find(|path| path.file_name().is_some_and(|it| it == name));
    found.cloned().or_else(|| directories.iter().find_map(|directory| find(directory, name)))
}

#[test]
fn without_brokers_a_node_runs_and_says_what_is_missing() {
    let port = weir_testkit::free_port();
    let yaml = format!(
        "data_dir: data\nhubs:\n- id: h\n  url: http://gw.example/hub\n  topics: [\"{TOPIC}\"]\n  publish: {{ anonymous: true }}\n  \
         log: {{ kafka: {{ brokers: [\"127.0.0.1:{port}\"], topic: t }} }}\nroutes: [{{ uri: /hub, hub_id: h }}]\n"
    );
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&yaml);
    gateway.wait_stderr("the broker is named", |line| line.contains("hub h: ") && line.contains(&port.to_string()));
    assert_eq!(publish(gateway.addr(), 1), Some(503));
}
