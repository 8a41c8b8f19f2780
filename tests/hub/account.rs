//! The hub is killed again and again while subscribers fail in every way: nothing that was acknowledged is lost, order is kept,
//! what is repeated was under way, and the account comes out even.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weir_testkit::{Answer, Request, eventually, scaled};

use crate::peers::{HubNode, Subscriber};

const SUBSCRIBERS: usize = 20;
const EVENTS_PER_LIFE: u64 = 20;
/// Long enough for retries on a machine that is busy.
const SETTLED: std::time::Duration = std::time::Duration::from_secs(120);

/// What subscribers have accepted, by callback, in the order in which it came.
type Accepted = Arc<Mutex<HashMap<String, Vec<u64>>>>;

/// A subscriber's moods: it refuses, asks to wait, closes without an answer, or closes after having accepted.
fn mood(request: &Request, turn: u64, accepted: &Accepted) -> Option<Answer> {
    if request.method != "POST" {
        return None;
    }
    let refused = match turn % 11 {
        3 => Some(Answer::status(500, "")),
        5 => Some(Answer::with(429, "Retry-After: 0\r\n", "")),
        7 => Some(Answer::raw("").then_close()),
        _ => None,
    };
    if refused.is_none() {
        let number = std::str::from_utf8(&request.body).ok().and_then(|text| text.trim().parse().ok());
        let mut accepted = accepted.lock().expect("nothing panics with it");
        accepted.entry(request.target.clone()).or_default().push(number.expect("a number was published"));
    }
    Some(refused.unwrap_or_else(|| match turn % 13 {
        // It has the event, and the hub never learns that.
        6 => Answer::raw("").then_close(),
        _ => Answer::status(204, ""),
    }))
}

#[test]
fn hub_loses_nothing_over_kills_and_its_account_is_even() {
    let kills = scaled(10, 200);
    let subscriber = Subscriber::start();
    let (accepted, turns) = (Accepted::default(), AtomicU64::new(0));
    let hub = "  delivery: { retry_first: 5ms, retry_max: 40ms, retry_for: 1h }\n";
    let mut node = HubNode::with(hub);
    for number in 0..SUBSCRIBERS {
        node.subscribe(&subscriber, &format!("/{number}"), &[]);
    }
    let own = Arc::clone(&accepted);
    subscriber.answer(move |request| mood(request, turns.fetch_add(1, Ordering::Relaxed), &own));
    let (mut acknowledged, mut next) = (Vec::new(), 0);
    for life in 0..=kills {
        for _ in 0..EVENTS_PER_LIFE {
            node.publish(format!("{next:>8}"));
            acknowledged.push(next);
            next += 1;
        }
        if life < kills {
            node = node.kill();
            // One whose record was not written yet is verified again.
            eventually("all are there", SETTLED, || node.status()["subscriptions"] == SUBSCRIBERS as u64);
        }
    }
    eventually("everything is delivered", SETTLED, || node.status()["pending"] == 0);
    let status = node.status();
    let count = |name: &str| status[name].as_u64().expect("a number");
    let audience = acknowledged.len() as u64 * SUBSCRIBERS as u64;
    assert_eq!(count("audience"), audience, "as the harness has counted: {status}");
    assert_eq!(count("delivered"), audience, "nobody was given up: {status}");
    assert_eq!([count("dead_lettered"), count("expired"), count("cancelled")], [0, 0, 0]);
    check(&accepted.lock().expect("nothing panics with it"), &acknowledged, kills);
}

fn check(accepted: &HashMap<String, Vec<u64>>, acknowledged: &[u64], kills: usize) {
    assert_eq!(accepted.len(), SUBSCRIBERS);
    for (callback, events) in accepted {
        assert!(events.is_sorted(), "{callback} got {events:?}");
        let mut distinct = events.clone();
        distinct.dedup();
        assert_eq!(distinct, acknowledged, "{callback}");
        // Repeated are those whose answer the hub did not get: cut off by the subscriber, or by a kill.
        let cut_off = events.len() - distinct.len();
        assert!(cut_off <= kills + events.len() / 4, "{callback}: {cut_off} repeated in {kills} kills");
    }
}

#[test]
fn requests_that_were_accepted_are_verified_after_a_kill() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    let gate = Arc::new(weir_testkit::Gate::new());
    let held = Arc::clone(&gate);
    subscriber.answer(move |_| {
        held.wait();
        None
    });
    let callback = subscriber.url("/");
    let form = [("hub.mode", "subscribe"), ("hub.topic", crate::peers::TOPIC), ("hub.callback", &*callback)];
    assert_eq!(node.form(&form).status, 202);
    subscriber.wait_verification(1);
    let node = node.kill();
    gate.open();
    eventually("it is verified", SETTLED, || node.status()["subscriptions"] == 1);
}

#[test]
fn damage_on_disk_is_reported_and_the_hub_goes_on() {
    let (node, subscriber) = (HubNode::start(), Subscriber::start());
    node.subscribe(&subscriber, "/", &[]);
    for number in 0..10 {
        node.publish(format!("{number}"));
    }
    node.settled();
    let events = node.data().join("hubs/h/events");
    let segment = std::fs::read_dir(&events).expect("it is there").flatten().map(|entry| entry.path()).next();
    let segment = segment.expect("a segment");
    let mut bytes = std::fs::read(&segment).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(&segment, bytes).expect("it can be written");
    let node = node.restart();
    node.gateway
        .wait_stderr("what was found", |line| line.contains("hub h: 1 subscriptions") && line.contains("1 damaged"));
    node.publish("after");
    assert_eq!(subscriber.wait_deliveries(11)[10].body, b"after");
    let status = node.settled();
    let count = |name: &str| status[name].as_u64().expect("a number");
    assert_eq!(count("audience"), count("delivered") + count("expired"), "{status}");
}
