//! Endpoints that fall ill and recover: what probes find, who agrees with whom, and what clients see of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Origin, Reading, TlsServer, eventually};

use crate::{named, one_route, weir};

/// An origin whose health can be changed, and which counts how often it was asked.
struct Patient {
    origin: Origin,
    health: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
}

impl Patient {
    fn new(name: &str) -> Patient {
        let (health, asked) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicUsize::new(0)));
        let origin = Origin::reading(Reading::Strict, {
            let (health, asked, name) = (Arc::clone(&health), Arc::clone(&asked), name.to_owned());
            move |request| {
                if request.target != "/health" {
                    return Answer::ok(&name);
                }
                asked.fetch_add(1, Ordering::SeqCst);
                Answer::status(health.load(Ordering::SeqCst), "")
            }
        });
        Patient { origin, health, asked }
    }

    fn becomes(&self, status: u16) {
        self.health.store(status, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

const CHECKS: &str = "checks: { active: { http_path: /health, timeout: 1, \
    healthy: { interval: 50ms, successes: 2 }, unhealthy: { interval: 50ms, http_failures: 2, tcp_failures: 2 } } }";

/// A file with these nodes and active checks.
fn checked(patients: &[&Patient], workers: usize) -> String {
    let nodes: Vec<String> = patients.iter().map(|patient| format!("\"{}\": 1", patient.origin.addr())).collect();
    let nodes = nodes.join(", ");
    let upstream = format!("upstream: {{ nodes: {{ {nodes} }}, {CHECKS} }}");
    format!(
        "worker_processes: {workers}\nroutes:\n  - {{ id: a, uri: /a/*, {upstream} }}\n  - {{ id: b, uri: /*, {upstream} }}\n"
    )
}

/// Whether the status says that it is in rotation, for every upstream that has it.
fn is_up(gateway: &Gateway, origin: &Origin) -> bool {
    is_in_rotation(gateway, &origin.addr().to_string())
}

/// The same, by address.
pub(crate) fn is_in_rotation(gateway: &Gateway, address: &str) -> bool {
    let status = gateway.status();
    let upstreams = status["upstreams"].as_array().expect("a list").iter();
    let endpoints = upstreams.flat_map(|upstream| upstream["endpoints"].as_array().expect("a list"));
    let mut up = endpoints.filter(|endpoint| endpoint["address"] == *address).map(|endpoint| endpoint["up"] == true);
    let first = up.next().expect("it is one of the endpoints");
    assert!(up.all(|other| other == first), "one endpoint, one health");
    first
}

#[test]
fn an_endpoint_that_says_it_is_ill_gets_nothing_until_it_says_it_is_well() {
    let (ill, well) = (Patient::new("ill"), Patient::new("well"));
    let gateway = weir().start(&checked(&[&ill, &well], 2));
    ill.becomes(503);
    eventually("it is taken out", DEADLINE, || !is_up(&gateway, &ill.origin));
    // Both workers agree, over connections of their own.
    for _ in 0..200 {
        assert_eq!(gateway.get("/").text(), "well");
    }
    let metrics = gateway.metrics();
    let up = |origin: &Origin| metrics.sum("weir_upstream_endpoint_up", &[&format!("endpoint=\"{}\"", origin.addr())]);
    assert_eq!((up(&ill.origin), up(&well.origin)), (0.0, 2.0), "in two upstreams");
    assert!(metrics.get("weir_health_checks_total{outcome=\"unhealthy\"}") >= Some(2.0));
    ill.becomes(200);
    eventually("it is taken back", DEADLINE, || is_up(&gateway, &ill.origin));
    eventually("it is used", DEADLINE, || gateway.get("/").text() == "ill");
}

#[test]
fn workers_agree_at_every_moment() {
    let (first, second) = (Patient::new("first"), Patient::new("second"));
    let node = |patient: &Patient, priority: u32| {
        format!("{{ host: 127.0.0.1, port: {}, weight: 1, priority: {priority} }}", patient.origin.addr().port())
    };
    // As long as a worker takes the first for healthy, that one gets all its requests.
    let nodes = format!("[{}, {}]", node(&first, 1), node(&second, 0));
    let gateway = weir().start(&format!(
        "worker_processes: 2\nroutes:\n  - {{ id: all, uri: /*, upstream: {{ nodes: {nodes}, {CHECKS} }} }}\n"
    ));
    let mut clients = [gateway.client(), gateway.client()];
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").expect("an answer").text(), "first"));
    let status = gateway.status();
    let workers = status["workers"].as_array().expect("a list").iter();
    assert!(workers.clone().all(|worker| worker["connections"] == 1), "a client with each worker");
    let (mut asked, mut certain) = (0, 0);
    let mut ask = || {
        let before = is_up(&gateway, &first.origin);
        let answers = clients.each_mut().map(|client| client.get("/").expect("an answer").text());
        let after = is_up(&gateway, &first.origin);
        asked += 1;
        if before == after {
            assert_eq!(answers, [if before { "first" } else { "second" }; 2], "ask {asked}");
            certain += 1;
        }
        after
    };
    for (status, up) in [(503, false), (200, true), (503, false), (200, true)] {
        first.becomes(status);
        (0..250).for_each(|_| _ = ask());
        eventually("its health has changed", DEADLINE, || ask() == up);
    }
    assert!(certain > 900, "{certain} of {asked} asks were not about a moment of change");
}

#[test]
fn a_question_is_asked_once_whatever_the_number_of_workers_routes_and_reloads() {
    let (patient, other) = (Patient::new("a"), Patient::new("b"));
    let gateway = weir().start(&checked(&[&patient, &other], 4));
    // A check begins 50 ms after the one before has ended. One more is counted for a check that was on its way, and one for a reload.
    const LEAST: Duration = Duration::from_millis(18 * 50);
    let takes_its_time = |patient: &Patient| {
        let (since, before) = (Instant::now(), patient.asked());
        eventually("twenty checks", DEADLINE, || patient.asked() >= before + 20);
        since.elapsed() >= LEAST
    };
    for round in 0..3 {
        // More are counted at once where this process has stood still, but not again and again.
        assert!((0..3).any(|_| takes_its_time(&patient)), "round {round}: more than twenty checks in a second");
        assert!((0..3).any(|_| takes_its_time(&other)), "round {round}: the same of the other");
        gateway.rewrite(&checked(&[&patient, &other], 4));
    }
}

#[test]
fn an_endpoint_that_was_removed_is_not_asked_again() {
    let (stays, goes) = (Patient::new("stays"), Patient::new("goes"));
    let gateway = weir().start(&checked(&[&stays, &goes], 2));
    eventually("both are asked", DEADLINE, || stays.asked() > 2 && goes.asked() > 2);
    gateway.rewrite(&checked(&[&stays], 2));
    // The thread that asks learns of it before the workers say that they serve the new file; one may be on its way.
    let (before, stayed) = (goes.asked(), stays.asked());
    eventually("the other is asked on", DEADLINE, || stays.asked() > stayed + 20);
    assert!(goes.asked() <= before + 1, "it was asked {} times after it had gone", goes.asked() - before);
}

#[test]
fn health_survives_a_reload() {
    let (ill, well) = (Patient::new("ill"), Patient::new("well"));
    let gateway = weir().start(&checked(&[&ill, &well], 2));
    ill.becomes(500);
    eventually("it is taken out", DEADLINE, || !is_up(&gateway, &ill.origin));
    for _ in 0..5 {
        gateway.rewrite(&checked(&[&well, &ill], 2));
        assert!(!is_up(&gateway, &ill.origin));
        for _ in 0..20 {
            assert_eq!(gateway.get("/a/x").text(), "well");
        }
    }
}

#[test]
fn an_edited_check_leaves_an_endpoint_out_until_it_has_answered_well() {
    let (ill, well) = (Patient::new("ill"), Patient::new("well"));
    let text = checked(&[&ill, &well], 2);
    let gateway = weir().start(&text);
    ill.becomes(503);
    eventually("it is taken out", DEADLINE, || !is_up(&gateway, &ill.origin));
    let edited = |host: &str| text.replace("http_path: /health,", &format!("http_path: /health, host: {host},"));
    for host in ["one.example", "two.example"] {
        gateway.rewrite(&edited(host));
        assert!(!is_up(&gateway, &ill.origin));
        for _ in 0..100 {
            assert_eq!(gateway.get("/").text(), "well");
        }
    }
    ill.becomes(200);
    eventually("it is taken back", DEADLINE, || is_up(&gateway, &ill.origin));
    // Without active checks, one that is out is tried with one request at a time.
    ill.becomes(503);
    eventually("it is taken out again", DEADLINE, || !is_up(&gateway, &ill.origin));
    gateway.rewrite(&text.replace(CHECKS, "retries: 1"));
    eventually("it is used", DEADLINE, || gateway.get("/").text() == "ill");
}

#[test]
fn a_check_by_tcp_finds_who_takes_no_connections() {
    let refusing = weir_testkit::free_port();
    let well = named("well");
    let gateway = weir().start(&format!(
        "routes:\n  - id: all\n    uri: /*\n    upstream:\n      nodes: {{ \"127.0.0.1:{refusing}\": 1, \"{}\": 1 }}\n\
         \x20     retries: 0\n      checks: {{ active: {{ type: tcp, healthy: {{ interval: 50ms }}, unhealthy: {{ interval: 50ms }} }} }}\n",
        well.addr()
    ));
    eventually("no traffic was needed to find out", DEADLINE, || {
        gateway.metrics().sum("weir_upstream_endpoint_up", &[]) == 1.0
    });
    for _ in 0..50 {
        assert_eq!(gateway.get("/").status, 200);
    }
}

#[test]
fn an_endpoint_that_traffic_took_out_is_tried_again_after_the_stated_pause() {
    let is_ill = Arc::new(AtomicBool::new(true));
    let origin = Origin::serving({
        let is_ill = Arc::clone(&is_ill);
        move |_| if is_ill.load(Ordering::SeqCst) { Answer::status(500, "") } else { Answer::ok("well") }
    });
    let origins = [origin, named("other")];
    let checks = "checks: { passive: { healthy: { successes: 1 }, unhealthy: { http_statuses: [500], http_failures: 1, \
                  interval: 200ms } } }";
    let gateway = weir().start(&one_route(&origins, checks));
    eventually("it is out", DEADLINE, || {
        gateway.get("/");
        !is_up(&gateway, &origins[0])
    });
    gateway.wait_stderr("the pause", |line| line.contains("an endpoint is out of rotation for 0.2 s"));
    is_ill.store(false, Ordering::SeqCst);
    eventually("it is tried", DEADLINE, || gateway.get("/").text() == "well");
}

#[test]
fn f25_when_all_are_down_all_are_tried() {
    // They say that they are ill. No answer brings them back, as 501 is a sign neither of health nor of a failure.
    let ill = |name: &'static str| {
        Origin::serving(move |request| match &*request.target {
            "/health" => Answer::status(503, ""),
            _ => Answer::with(501, "", name),
        })
    };
    let origins = [ill("a"), ill("b")];
    let gateway = weir().start(&one_route(&origins, CHECKS));
    eventually("both are out", DEADLINE, || origins.iter().all(|origin| !is_up(&gateway, origin)));
    let texts: BTreeSet<String> = (0..10).map(|_| gateway.get("/").text()).collect();
    assert_eq!(texts, ["a", "b"].map(str::to_owned).into());
}

#[test]
fn f25_an_endpoint_that_flaps_comes_back_ever_more_seldom() {
    let stops = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    // Two good answers, two bad ones, and so on: each pair is enough to change its place.
    let flapping = Origin::reading(Reading::Strict, {
        let (stops, asked) = (Arc::clone(&stops), Arc::clone(&asked));
        move |request| {
            if request.target != "/health" {
                return Answer::ok("flapping");
            }
            let count = asked.fetch_add(1, Ordering::SeqCst);
            let ill = count % 4 >= 2 && !stops.load(Ordering::SeqCst);
            Answer::status(if ill { 503 } else { 200 }, "")
        }
    });
    let origins = [flapping, named("well")];
    let gateway = weir().start(&one_route(&origins, CHECKS));
    let mut changes = 0;
    let mut was_up = true;
    // Ten seconds at the least.
    eventually("two hundred checks", DEADLINE * 6, || {
        let up = is_up(&gateway, &origins[0]);
        changes += usize::from(up != was_up);
        was_up = up;
        asked.load(Ordering::SeqCst) >= 200
    });
    assert!(changes <= 16, "it changed its place {changes} times in fifty rounds");
    stops.store(true, Ordering::SeqCst);
    eventually("once it is well it comes back", DEADLINE * 6, || is_up(&gateway, &origins[0]));
}

#[test]
fn an_endpoint_is_asked_over_tls_and_has_to_prove_who_it_is() {
    let authority = Authority::of_tests();
    let origin = |name: &'static str, identity: &str| {
        Origin::serving_tls(&TlsServer::new(&authority.identity(&[identity])), move |request| {
            if request.target == "/health" { Answer::status(200, "") } else { Answer::ok(name) }
        })
    };
    // One proves to be the address it is asked at; the other is somebody else.
    let (good, other) = (origin("good", "127.0.0.1"), origin("other", "b.test"));
    let checks = CHECKS.replace("active: {", "active: { type: https, MORE");
    let file = |more: &str| {
        let nodes = format!("\"{}\": 1, \"{}\": 1", good.addr(), other.addr());
        let tls = format!("scheme: https, pass_host: node, tls: {{ ca: {:?} }}", authority.certificate);
        let checks = checks.replace("MORE", more);
        format!("routes: [{{ uri: /*, upstream: {{ nodes: {{ {nodes} }}, {tls}, {checks} }} }}]\n")
    };
    let gateway = weir().start(&file(""));
    eventually("one is taken out", DEADLINE, || !is_up(&gateway, &other));
    assert!(is_up(&gateway, &good));
    for _ in 0..20 {
        assert_eq!(gateway.get("/").text(), "good");
    }
    gateway.rewrite(&file("https_verify_certificate: false,"));
    eventually("it is taken back", DEADLINE, || is_up(&gateway, &other));
    gateway.rewrite(&file("host: b.test,"));
    eventually("the other one is somebody else now", DEADLINE, || !is_up(&gateway, &good) && is_up(&gateway, &other));
}
