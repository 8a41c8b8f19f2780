//! Exchanges that wait for an upstream: first come, first served, by whichever endpoint has a place first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use weir_testkit::{Answer, Client, DEADLINE, Gate, Gateway, Origin, Reading, eventually};

use crate::{one_route, weir};

/// An origin that has what it is asked wait at its gate, except for its health.
struct Held {
    origin: Origin,
    gate: Gate,
    health: Arc<AtomicU16>,
}

impl Held {
    fn new(name: &'static str) -> Held {
        let (gate, health) = (Gate::new(), Arc::new(AtomicU16::new(200)));
        let origin = Origin::reading(Reading::Strict, {
            let (gate, health) = (gate.clone(), Arc::clone(&health));
            move |request| {
                if request.target == "/health" {
                    return Answer::status(health.load(Ordering::SeqCst), "");
                }
                gate.wait();
                Answer::ok(name)
            }
        });
        Held { origin, gate, health }
    }
}

fn queued(gateway: &Gateway, count: usize) {
    let wanted = Some(count as f64);
    eventually("so many wait", DEADLINE, || gateway.metrics().get("weir_upstream_queued") == wanted);
}

/// Clients that have asked, each after the one before is where it has to wait. Every second one asks another route of the
/// same upstream, if there is one.
fn waiting(gateway: &Gateway, count: usize) -> Vec<Client> {
    let ask = |number: usize| {
        let mut client = gateway.client();
        client.send(format!("GET {} HTTP/1.1\r\nHost: t\r\n\r\n", target(number)));
        queued(gateway, number + 1);
        client
    };
    (0..count).map(ask).collect()
}

fn target(number: usize) -> String {
    format!("/{}/{number}", ["one", "other"][number % 2])
}

/// A client whose request has arrived at one of them.
fn busy(gateway: &Gateway, arrived: impl FnOnce()) -> Client {
    let mut client = gateway.client();
    client.send("GET /busy HTTP/1.1\r\nHost: t\r\n\r\n");
    arrived();
    client
}

/// Two origins that hold a request each, and a gateway before them, with one route for `/one/*` and one for the rest.
struct Full {
    slow: Held,
    quick: Held,
    gateway: Gateway,
    file: String,
    busy: Vec<Client>,
}

impl Full {
    fn new(upstream: &str) -> Full {
        let (slow, quick) = (Held::new("slow"), Held::new("quick"));
        let nodes = format!("\"{}\": 1, \"{}\": 1", slow.origin.addr(), quick.origin.addr());
        let settings = format!("concurrency: 1, queue: {{ timeout: 600 }}, {upstream}");
        let file = format!(
            "upstreams:\n  - {{ id: both, nodes: {{ {nodes} }}, {settings} }}\n\
             routes:\n  - {{ id: one, uri: /one/*, upstream_id: both }}\n  - {{ id: other, uri: /*, upstream_id: both }}\n"
        );
        let mut full = Full { gateway: weir().start(&file), slow, quick, file, busy: Vec::new() };
        for count in 1..=2 {
            let all = || full.slow.origin.requests().len() + full.quick.origin.requests().len();
            full.busy.push(busy(&full.gateway, || eventually("it has arrived", DEADLINE, || all() == count)));
        }
        full
    }

    /// What the quick one has been asked since it was busy.
    fn served(&self) -> Vec<String> {
        self.quick.origin.targets().split_off(1)
    }

    fn end(mut self) {
        self.slow.gate.open();
        self.quick.gate.open();
        self.busy.iter_mut().for_each(|client| assert_eq!(client.response().expect("an answer").status, 200));
    }
}

#[test]
fn waiting_clients_are_served_in_turn_by_the_first_free_endpoint() {
    for kind in ["roundrobin", "random"] {
        let full = Full::new(&format!("type: {kind}"));
        let mut clients = waiting(&full.gateway, 6);
        full.quick.gate.open();
        for client in &mut clients {
            assert_eq!(client.response().expect("an answer").body, b"quick", "{kind}");
        }
        assert_eq!(full.served(), (0..6).map(target).collect::<Vec<_>>(), "{kind}");
        full.end();
    }
}

#[test]
fn client_that_leaves_the_queue_is_passed_over() {
    let full = Full::new("type: roundrobin");
    let mut clients = waiting(&full.gateway, 4);
    drop(clients.remove(2));
    clients.remove(0).reset();
    queued(&full.gateway, 2);
    full.quick.gate.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.response().expect("an answer").body, b"quick"));
    assert_eq!(full.served(), [target(1), target(3)]);
    full.end();
}

#[test]
fn client_that_waits_while_the_configuration_changes_is_served() {
    let full = Full::new("type: roundrobin");
    let mut clients = waiting(&full.gateway, 3);
    let revision = full.gateway.revision();
    full.gateway.replace_file(&full.file.replace("id: other", "id: another"));
    eventually("it is loaded", DEADLINE, || full.gateway.revision() > revision);
    clients.extend((3..5).map(|number| {
        let mut client = full.gateway.client();
        client.send(format!("GET {} HTTP/1.1\r\nHost: t\r\n\r\n", target(number)));
        queued(&full.gateway, number + 1);
        client
    }));
    full.quick.gate.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.response().expect("an answer").body, b"quick"));
    assert_eq!(full.served(), (0..5).map(target).collect::<Vec<_>>());
    full.end();
}

#[test]
fn waiting_clients_are_answered_when_all_endpoints_become_unhealthy() {
    let (one, other) = (Held::new("one"), Held::new("other"));
    let origins = [one.origin, other.origin];
    let checks = "checks: { active: { http_path: /health, timeout: 1, healthy: { interval: 50ms, successes: 1 }, \
                  unhealthy: { interval: 50ms, http_failures: 1 } } }";
    let upstream = format!("concurrency: 1, queue: {{ timeout: 600 }}, all_down: refuse, {checks}");
    let gateway = weir().start(&one_route(&origins, &upstream));
    let arrived = |count: usize| {
        let is_asked = |origin: &Origin| origin.targets().iter().filter(|target| *target == "/busy").count();
        eventually("it has arrived", DEADLINE, || origins.iter().map(is_asked).sum::<usize>() == count);
    };
    let mut both = [busy(&gateway, || arrived(1)), busy(&gateway, || arrived(2))];
    let mut clients = waiting(&gateway, 3);
    one.health.store(500, Ordering::SeqCst);
    other.health.store(500, Ordering::SeqCst);
    for client in &mut clients {
        assert_eq!(client.response().expect("an answer").status, 503);
    }
    one.gate.open();
    other.gate.open();
    both.iter_mut().for_each(|client| assert_eq!(client.response().expect("an answer").status, 200));
}
