//! The effect of a fan-out on the requests of another route, at full speed and paced by `delivery.per_second`.
//!
//! With `WEIR_TEST_FULL` there are 10,000 subscribers; `--nocapture` shows the figures:
//! `WEIR_TEST_FULL=1 cargo test --release --workspace --test hub pacing -- --nocapture`

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_testkit::{Answer, Origin, TempDir, eventually, scaled};

use crate::memory::subscribe;
use crate::peers::HubNode;
use crate::receivers::{Receivers, content};

/// More time than any step takes on a busy machine.
const SETTLED: Duration = Duration::from_secs(300);
/// The most deliveries that one turn of the hub's thread starts.
const MOST_STARTS: u64 = 64;
/// The pause between two requests of the other route.
const PAUSE: Duration = Duration::from_millis(1);

fn hub(per_second: usize) -> String {
    format!(
        "  publish: {{ anonymous: true }}\n  delivery: {{ timeout: 60s, per_second: {per_second} }}\n  \
         subscribe: {{ callbacks: {{ allow: [127.0.0.0/8] }}, standard_webhooks: true, verifications_per_second: 1000000, \
         max_unverified_per_client: 100000 }}\n"
    )
}

/// The median and the 99th percentile of the durations of requests of the other route, until `is_done`.
pub(crate) fn answered(node: &HubNode, is_done: impl Fn(usize) -> bool) -> [Duration; 2] {
    let (mut client, mut took) = (node.gateway.client(), Vec::new());
    while !is_done(took.len()) {
        let began = Instant::now();
        assert_eq!(client.get("/plain").expect("an answer").status, 200);
        took.push(began.elapsed());
        // The request rate of this client, not a wait for an event.
        std::thread::park_timeout(PAUSE);
    }
    took.sort_unstable();
    [took[took.len() / 2], took[took.len() * 99 / 100]]
}

#[test]
fn other_routes_are_served_during_a_fan_out() {
    let (count, requests) = (scaled(200, 10_000), scaled(50, 2_000));
    let receivers = Receivers::new(count, u64::MAX);
    receivers.is_healed.store(true, Relaxed);
    let (hosts, origin) = (receivers.serve(), Origin::serving(|_| Answer::ok("ok")));
    let plain = format!("{{ id: plain, uri: /plain, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}", origin.addr());
    let rest =
        format!("routes: [{{ id: hub, uri: /hub, hub_id: h }}, {{ id: topics, uri: /t/*, hub_id: h }}, {plain}]\n");
    let node = HubNode::of(Arc::new(TempDir::new()), &hub(0), &rest);
    subscribe(&node, &hosts, count);
    let quiet = answered(&node, |answered| answered >= requests);
    println!("without a fan-out: p50 {:?}, p99 {:?}", quiet[0], quiet[1]);
    for (event, per_second) in [0, scaled(1_000, 2_000), 500].into_iter().enumerate() {
        node.reconfigure(&hub(per_second));
        node.publish(content(event as u64));
        let (began, wanted) = (Instant::now(), (count * (event + 1)) as u64);
        let during = answered(&node, |answered| receivers.accepted() == wanted && answered > 0);
        println!(
            "{count} deliveries at {per_second} a second (0: no pacing), in {:?}: p50 {:?}, p99 {:?}",
            began.elapsed(),
            during[0],
            during[1]
        );
        let (turn_us, starts) = (&node.status()["longest_turn_us"], &node.status()["most_starts_per_turn"]);
        println!("longest turn of the hub's thread {turn_us} us, at most {starts} deliveries started in one");
        assert!((1..=MOST_STARTS).contains(&starts.as_u64().expect("a number")));
        eventually("the account has them", SETTLED, || node.status()["delivered"] == wanted);
    }
    receivers.assert_no_faults();
}
