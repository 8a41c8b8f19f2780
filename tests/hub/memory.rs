//! The memory of subscriptions, and the start time of a hub with many of them.
//!
//! With `WEIR_TEST_FULL` there are 100,000 subscriptions, and the bounds are asserted; `--nocapture` shows the figures:
//! `WEIR_TEST_FULL=1 cargo test --release --workspace --test hub memory -- --nocapture`

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_testkit::{Client, eventually, is_full, scaled};

use crate::peers::{HubNode, TOPIC, encoded};
use crate::receivers::{Receivers, content};

/// More time than any step takes on a busy machine.
const SETTLED: Duration = Duration::from_secs(300);
/// Clients that subscribe concurrently, since each request waits for the disk.
const CLIENTS: usize = 32;
/// More than the number of attempts kept per subscription.
const EVENTS: usize = 10;
/// The most bytes per subscription beyond its URL.
const MOST_BYTES: f64 = 400.0;
/// The length of a callback, such as `http://127.0.0.1:40000/s/12345`.
const URL_BYTES: f64 = 30.0;

const HUB: &str = "  publish: { anonymous: true }\n  delivery: { timeout: 60s }\n  \
                   subscribe: { max_per_address: 1000000, callbacks: { allow: [127.0.0.0/8] }, standard_webhooks: true, \
                   verifications_per_second: 1000000, max_unverified_per_client: 100000 }\n";

fn callback(scheme: &str, hosts: &[SocketAddr], subscriber: usize) -> String {
    format!("{scheme}://{}/s/{subscriber}", hosts[Receivers::host_of(subscriber)])
}

/// Subscribes all receivers, each with a secret.
pub(crate) fn subscribe(node: &HubNode, hosts: &[SocketAddr], count: usize) {
    subscribe_at(node, "http", hosts, count);
}

/// The same with callbacks of this scheme.
pub(crate) fn subscribe_at(node: &HubNode, scheme: &str, hosts: &[SocketAddr], count: usize) {
    request_all(node, scheme, hosts, count);
    eventually("all are verified", SETTLED, || {
        let status = node.status();
        let (is_settled, is_complete) = (status["unverified"] == 0, status["subscriptions"] == count as u64);
        if is_settled && !is_complete {
            // A verification comes to nothing if its TLS handshake takes longer than five seconds, as on a busy machine.
            request_all(node, scheme, hosts, count);
        }
        is_settled && is_complete
    });
}

/// Requests a subscription for each receiver.
fn request_all(node: &HubNode, scheme: &str, hosts: &[SocketAddr], count: usize) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut open = Client::connect(node.gateway.addr());
                for subscriber in (client..count).step_by(CLIENTS) {
                    let callback = encoded(&callback(scheme, hosts, subscriber));
                    let topic = encoded(TOPIC);
                    let form = format!(
                        "hub.mode=subscribe&hub.topic={topic}&hub.callback={callback}&hub.secret=secret-of-{subscriber:020}"
                    );
                    let head = "POST /hub HTTP/1.1\r\nHost: gw.example\r\n\
                                Content-Type: application/x-www-form-urlencoded\r\nContent-Length: ";
                    let answer = open.ask(format!("{head}{}\r\n\r\n{form}", form.len())).expect("an answer");
                    assert_eq!(answer.status, 202, "{}", answer.text());
                }
            });
        }
    });
}

/// Publishes an event, and waits until all subscribers have it.
fn deliver(node: &HubNode, receivers: &Receivers, number: usize) {
    node.publish(content(number as u64));
    let wanted = (receivers.received.len() * number) as u64;
    eventually("all have it", SETTLED, || receivers.accepted() == wanted && node.status()["delivered"] == wanted);
}

/// The memory of the process with this many subscriptions, in bytes: idle, after one event, and after more events than attempts
/// are kept of each subscription.
fn memory(count: usize) -> [u64; 3] {
    let receivers = Receivers::new(count, u64::MAX);
    receivers.is_healed.store(true, Relaxed);
    let hosts = receivers.serve();
    let node = HubNode::with(HUB);
    subscribe(&node, &hosts, count);
    // Restarted, since accepting the requests needed memory that holding the subscriptions does not.
    let started = Instant::now();
    let node = node.kill();
    // One whose record was not written yet is verified again.
    eventually("all are there", SETTLED, || node.status()["subscriptions"] == count as u64);
    println!("started with {count} subscriptions in {:?}", started.elapsed());

    let idle = node.gateway.rss();
    deliver(&node, &receivers, 1);
    let after_one = node.gateway.rss();
    (2..=EVENTS).for_each(|number| deliver(&node, &receivers, number));
    receivers.assert_no_faults();
    [idle, after_one, node.gateway.rss()]
}

#[test]
fn subscriptions_need_little_memory() {
    let (few, many) = (scaled(100, 2_000), scaled(500, 100_000));
    let (little, much) = (memory(few), memory(many));
    let states = ["idle", "after one event", "with all the attempts that are kept"];
    for ((state, little), much) in states.into_iter().zip(little).zip(much) {
        // The memory of connections and deliveries in flight does not grow with the subscriptions.
        let bytes = much.saturating_sub(little) as f64 / (many - few) as f64 - URL_BYTES;
        println!("{many} subscriptions, {state}: {bytes:.0} bytes each beyond their URLs");
        assert!(!is_full() || bytes <= MOST_BYTES, "{state}: {bytes:.0} bytes each, and {MOST_BYTES} are allowed");
    }
}
