//! Upstreams with an address in common: the settings of each are its own, after an edit as after a start.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use weir_testkit::{Answer, DEADLINE, Gate, Gateway, Origin, Reading, eventually};

use crate::weir;

/// An origin that holds requests at a gate, which each load replaces.
struct Held {
    origin: Origin,
    gate: Arc<Mutex<Gate>>,
}

impl Held {
    fn new() -> Held {
        let gate = Arc::new(Mutex::new(Gate::new()));
        let origin = Origin::reading(Reading::Strict, {
            let gate = Arc::clone(&gate);
            move |_| {
                let gate = gate.lock().unwrap_or_else(PoisonError::into_inner).clone();
                gate.wait();
                Answer::ok("held")
            }
        });
        Held { origin, gate }
    }
}

/// What became of the requests for one upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    in_flight: usize,
    waiting: usize,
    refused: usize,
}

const REQUESTS: usize = 8;

/// Sends requests for `/a` and `/b` at once, and returns what became of them while the origin holds those that it has got. Then
/// the origin answers, and so many connections are kept.
fn load(gateway: &Gateway, held: &Held, kept: usize) -> [Outcome; 2] {
    let gate = Gate::new();
    *held.gate.lock().unwrap_or_else(PoisonError::into_inner) = gate.clone();
    let before = held.origin.targets().len();
    let refused = Arc::new([const { AtomicU16::new(0) }; 2]);
    let paths = ["/a", "/b"];
    let clients: Vec<_> = (0..2 * REQUESTS)
        .map(|number| {
            let (mut client, refused) = (gateway.client(), Arc::clone(&refused));
            thread::spawn(move || {
                let status = client.get(paths[number % 2]).expect("an answer").status;
                assert!(status == 200 || status == 503, "{status}");
                refused[number % 2].fetch_add(u16::from(status == 503), Ordering::SeqCst);
            })
        })
        .collect();
    let outcome = || {
        let arrived = held.origin.targets().split_off(before);
        let of = |index: usize| {
            let in_flight = arrived.iter().filter(|target| *target == paths[index]).count();
            let refused = usize::from(refused[index].load(Ordering::SeqCst));
            Outcome { in_flight, refused, waiting: REQUESTS - in_flight - refused }
        };
        [of(0), of(1)]
    };
    eventually("all have arrived, wait or are refused", DEADLINE, || {
        let waiting = outcome().map(|outcome| outcome.waiting).into_iter().sum::<usize>();
        gateway.metrics().get("weir_upstream_queued") == Some(waiting as f64)
    });
    let seen = outcome();
    gate.open();
    clients.into_iter().for_each(|client| client.join().expect("no panic"));
    eventually(&format!("{kept} connections are kept"), DEADLINE, || held.origin.open_connections() == kept);
    seen
}

/// Two upstreams with this address, with these settings.
fn two(origin: &Origin, of_a: &str, of_b: &str) -> String {
    let addr = origin.addr();
    let upstream = |id: &str, lines: &str| format!("  - {{ id: {id}, nodes: {{ \"{addr}\": 1 }}, {lines} }}\n");
    let route = |id: &str| format!("  - {{ id: {id}, uri: /{id}, upstream_id: {id} }}\n");
    format!("upstreams:\n{}{}routes:\n{}{}", upstream("a", of_a), upstream("b", of_b), route("a"), route("b"))
}

#[test]
fn concurrency_queue_and_kept_connections_of_one_upstream_do_not_depend_on_edits_of_another() {
    let held = Held::new();
    let few = "concurrency: 1, queue: { size: 1, timeout: 600 }, keepalive_pool: { size: 1 }";
    let more = "concurrency: 3, queue: { size: 2, timeout: 600 }, keepalive_pool: { size: 2 }";
    let none = "concurrency: 2, queue: { size: 0, timeout: 600 }, keepalive_pool: { size: 8 }";
    let outcome = |in_flight, waiting| Outcome { in_flight, waiting, refused: REQUESTS - in_flight - waiting };
    let (of_few, of_more, of_none) = (outcome(1, 1), outcome(3, 2), outcome(2, 0));
    let gateway = weir().start(&two(&held.origin, few, more));
    assert_eq!(load(&gateway, &held, 1 + 2), [of_few, of_more], "as started");
    let edits = [
        (few, none, 1 + 2, [of_few, of_none]),
        (more, none, 2 + 2, [of_more, of_none]),
        (more, few, 2 + 1, [of_more, of_few]),
    ];
    for (of_a, of_b, kept, wanted) in edits {
        let file = two(&held.origin, of_a, of_b);
        gateway.rewrite(&file);
        assert_eq!(load(&gateway, &held, kept), wanted, "edited to\n{file}");
    }
    drop(gateway);
    let restarted = weir().start(&two(&held.origin, more, few));
    assert_eq!(load(&restarted, &held, 2 + 1), [of_more, of_few], "restarted");
}

#[test]
fn thresholds_of_the_same_check_of_one_address_are_those_of_each_upstream() {
    let health = Arc::new(AtomicU16::new(500));
    let origin = Origin::reading(Reading::Strict, {
        let health = Arc::clone(&health);
        move |request| match &*request.target {
            "/health" => Answer::status(health.load(Ordering::SeqCst), ""),
            _ => Answer::ok("served"),
        }
    });
    let lines = |failures: u32| {
        format!(
            "all_down: refuse, checks: {{ active: {{ type: http, http_path: /health, healthy: {{ interval: 0.1, successes: 1 }}, \
             unhealthy: {{ interval: 0.1, http_failures: {failures} }} }} }}"
        )
    };
    let (quick, slow) = (lines(1), lines(254));
    let statuses = |gateway: &Gateway| ["/a", "/b"].map(|path| gateway.get(path).status);
    let recovers = |gateway: &Gateway| {
        health.store(200, Ordering::SeqCst);
        eventually("both are back", DEADLINE, || statuses(gateway) == [200, 200]);
        health.store(500, Ordering::SeqCst);
    };
    let gateway = weir().start(&two(&origin, &quick, &slow));
    eventually("the quick one is out", DEADLINE, || statuses(&gateway)[0] == 503);
    assert_eq!(gateway.get("/b").status, 200, "the other needs more failures");
    recovers(&gateway);
    gateway.rewrite(&two(&origin, &slow, &quick));
    eventually("now the other is quick", DEADLINE, || statuses(&gateway)[1] == 503);
    recovers(&gateway);
    eventually("and again", DEADLINE, || statuses(&gateway)[1] == 503);
    assert_eq!(gateway.get("/a").status, 200, "the first one needs more failures since the edit");
    drop(gateway);
    let restarted = weir().start(&two(&origin, &slow, &quick));
    eventually("the same as after the edit", DEADLINE, || statuses(&restarted)[1] == 503);
    assert_eq!(restarted.get("/a").status, 200);
}
