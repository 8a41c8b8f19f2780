//! Subscriptions whose callbacks share a host: those that fail do not hold up those that work, nor other clients.
//!
//! `--nocapture` shows the figures; with `WEIR_TEST_FULL` the latency of the other client is asserted, too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_testkit::{Answer, Authority, DEADLINE, Origin, Request, TempDir, eventually, is_full, scaled};

use crate::memory::subscribe;
use crate::pacing::answered;
use crate::peers::{HubNode, Subscriber};

/// Callbacks that fail, as many as a host may have deliveries at a time and more.
const FAILING: usize = 40;
const EVENTS: usize = 5;
/// The most memory that failing deliveries may add: their connections, with TLS.
const MOST_BYTES: u64 = 32 << 20;
/// By how much the requests of another client may take longer.
const SLOWER: Duration = Duration::from_millis(5);

/// A hub, a route `/plain` beside it, and trust in the authority of the tests.
fn node(hub: &str, plain: &Origin) -> HubNode {
    let data = TempDir::new();
    let trusted = data.write("authority.pem", &Authority::of_tests().certificate);
    let rest = format!(
        "ssl_trusted_certificate: {}\nroutes:\n- {{ id: hub, uri: /hub, hub_id: h }}\n- {{ id: topics, uri: /t/*, hub_id: h }}\n\
         - {{ id: plain, uri: /plain, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        trusted.display(),
        plain.addr()
    );
    HubNode::of(Arc::new(data), hub, &rest)
}

const HUB: &str = "  publish: { anonymous: true }\n  \
                   subscribe: { callbacks: { allow: [127.0.0.0/8] }, verifications_per_second: 100000 }\n";

/// Publishes events to callbacks of one host that fail like this, and to one that works.
fn works_beside(subscriber: &Subscriber, failure: fn() -> Answer) {
    let plain = Origin::serving(|_| Answer::ok("ok"));
    let node = node(HUB, &plain);
    node.subscribe(subscriber, "/works", &[]);
    node.publish("0");
    let works = || subscriber.deliveries().iter().filter(|delivery| delivery.target == "/works").count();
    eventually("the first event has come", DEADLINE, || works() == 1);
    let (quiet, before) = (answered(&node, |count| count >= scaled(50, 2_000)), node.gateway.rss());

    subscriber.answer(move |request: &Request| {
        (request.method == "POST" && request.target.starts_with("/fails")).then(failure)
    });
    for number in 0..FAILING {
        node.subscribe(subscriber, &format!("/fails/{number}"), &[]);
    }
    let mut slowest = quiet;
    for event in 1..=EVENTS {
        node.publish(event.to_string());
        let during = answered(&node, |count| count >= scaled(50, 2_000) && works() > event);
        slowest = [slowest[0].max(during[0]), slowest[1].max(during[1])];
    }
    let failed = subscriber.deliveries().len() - works();
    assert!(failed >= 4, "the others of the host have been tried: {failed}");
    let more = node.gateway.rss().saturating_sub(before);
    println!(
        "another client: p50 and p99 {quiet:?} before, {slowest:?} beside; {failed} failed, {} KiB more",
        more >> 10
    );
    assert!(more <= MOST_BYTES, "{more} bytes");
    assert!(!is_full() || slowest[1] <= (quiet[1] * 11 / 10).max(quiet[1] + SLOWER), "{quiet:?} {slowest:?}");
}

#[test]
fn a_callback_that_works_gets_events_beside_40_of_its_host_that_answer_500() {
    works_beside(&Subscriber::start(), || Answer::status(500, ""));
}

#[test]
fn a_callback_that_works_gets_events_beside_40_of_its_host_that_are_busy_over_tls() {
    works_beside(&Subscriber::over_tls(), || Answer::with(503, "Retry-After: 60\r\n", ""));
}

#[test]
fn a_callback_that_works_gets_events_beside_40_of_its_host_that_never_answer() {
    works_beside(&Subscriber::start(), || Answer::raw(""));
}

#[test]
fn a_callback_that_works_gets_events_beside_40_of_its_host_that_never_answer_over_tls() {
    works_beside(&Subscriber::over_tls(), || Answer::raw(""));
}

#[test]
fn callbacks_that_fail_twice_for_each_event_get_all_of_them() {
    let count = scaled(200, 2_000);
    let (plain, failures) =
        (Origin::serving(|_| Answer::ok("ok")), Mutex::new(HashMap::<(String, Vec<u8>), u32>::new()));
    let subscriber = Subscriber::start();
    subscriber.answer(move |request| {
        let number: usize = request.target.strip_prefix("/s/")?.parse().ok()?;
        let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = failures.entry((request.target.clone(), request.body.clone())).or_default();
        *failed += 1;
        (number < FAILING && *failed <= 2).then(|| Answer::status(500, ""))
    });
    let hub = "  publish: { anonymous: true }\n  delivery: { retry_first: 100ms }\n  subscribe: { callbacks: { allow: \
               [127.0.0.0/8] }, verifications_per_second: 1000000, max_unverified_per_client: 100000 }\n";
    let node = node(hub, &plain);
    subscribe(&node, &[subscriber.origin.addr(); 10], count);
    (0..EVENTS).for_each(|event| node.publish(event.to_string()));
    let wanted = count * EVENTS;
    eventually("each has each event", Duration::from_secs(scaled(30, 120) as u64), || {
        node.status()["delivered"] == wanted as u64
    });
    assert_eq!(subscriber.deliveries().len(), wanted + 2 * FAILING * EVENTS);
}
