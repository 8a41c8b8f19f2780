//! F02, F05: endpoints that die, freeze or vanish under load, and return.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_testkit::{
    Answer, Client, DEADLINE, Gateway, Origin, Program, Reading, ScrapedMetrics, TempDir, eventually, free_port,
};

use crate::weir;

/// The number of clients, half of whom send POSTs.
const CLIENTS: usize = 8;
const SLOW_START: Duration = Duration::from_secs(60);

/// Frequent HTTP checks, because the kernel still accepts connections for a frozen process. Their time-outs take an endpoint out before
/// a request to it has timed out, and are longer than a busy machine lets the other endpoints wait.
const CHECKS: &str = "checks: { active: { http_path: /status/200, timeout: 1.5, \
    healthy: { interval: 50ms, successes: 2 }, \
    unhealthy: { interval: 50ms, http_failures: 2, tcp_failures: 2, timeouts: 2 } } }";

/// A Weir backend as a process: its answers have this many bytes, which identify it.
fn backend(addr: SocketAddr, bytes: usize) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["backend", "--listen", &addr.to_string(), "--answer", &bytes.to_string()]);
    let program = Program::start(command, TempDir::new());
    eventually("the backend listens", DEADLINE, || Client::try_connect(addr).is_ok());
    program
}

fn addresses() -> [SocketAddr; 3] {
    [0; 3].map(|_| (Ipv4Addr::LOCALHOST, free_port()).into())
}

fn gateway(endpoints: &[SocketAddr], more: &str) -> Gateway {
    weir().start(&file(endpoints, more))
}

fn file(endpoints: &[SocketAddr], more: &str) -> String {
    let nodes: Vec<String> = endpoints.iter().map(|addr| format!("\"{addr}\": 1")).collect();
    format!(
        "worker_processes: 2\nroutes:\n  - id: all\n    uri: /*\n    upstream:\n      nodes: {{ {} }}\n\
         \x20     timeout: {{ connect: 5, send: 5, read: 5 }}\n      {more}\n      {CHECKS}\n",
        nodes.join(", ")
    )
}

fn is_up(gateway: &Gateway, addr: SocketAddr) -> bool {
    let status = gateway.status();
    let endpoints = status["upstreams"][0]["endpoints"].as_array().expect("a list");
    endpoints.iter().find(|one| one["address"] == addr.to_string()).expect("it is one of them")["up"] == true
}

/// The outcome of one request.
#[derive(Clone, Debug)]
struct Outcome {
    began: Instant,
    method: &'static str,
    /// The length of the answer, or the error.
    answer: Result<usize, String>,
}

/// Clients that send one request after the other, on kept connections.
struct Load {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(addr: SocketAddr) -> Load {
        let (stop, count, outcomes) = (Arc::default(), Arc::default(), Arc::default());
        let mut load = Load { stop, count, outcomes, clients: Vec::new() };
        for number in 0..CLIENTS {
            let (stop, count, outcomes) = (Arc::clone(&load.stop), Arc::clone(&load.count), Arc::clone(&load.outcomes));
            let method = if number % 2 == 0 { "GET" } else { "POST" };
            load.clients.push(thread::spawn(move || {
                let mut client = Client::connect(addr);
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let request = format!("{method} / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n");
                    let answer = match client.ask(request) {
                        Ok(answer) if answer.status == 200 => Ok(answer.body.len()),
                        Ok(answer) => Err(answer.status.to_string()),
                        Err(error) => Err(error.to_string()),
                    };
                    if answer.is_err() {
                        client = Client::connect(addr);
                    }
                    outcomes.lock().expect("nobody panics").push(Outcome { began, method, answer });
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        load
    }

    /// Waits for this many more outcomes.
    fn go_on(&self, more: usize) {
        let wanted = self.count.load(Ordering::Relaxed) + more;
        eventually("requests come to an end", DEADLINE * 3, || self.count.load(Ordering::Relaxed) >= wanted);
    }

    /// The outcomes of requests that began at `moment` or later.
    fn since(&self, moment: Instant) -> Vec<Outcome> {
        let outcomes = self.outcomes.lock().expect("nobody panics");
        outcomes.iter().filter(|outcome| outcome.began >= moment).cloned().collect()
    }

    fn finish(self) -> Vec<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("clients do not panic"));
        self.outcomes.lock().expect("nobody panics").clone()
    }
}

fn failed(outcomes: &[Outcome]) -> Vec<&Outcome> {
    outcomes.iter().filter(|outcome| outcome.answer.is_err()).collect()
}

/// The share of the answers with this many bytes, which come from one backend.
fn share(outcomes: &[Outcome], bytes: usize) -> f64 {
    outcomes.iter().filter(|outcome| outcome.answer == Ok(bytes)).count() as f64 / outcomes.len() as f64
}

/// Established connections of this machine to a port.
fn established_to(port: u16) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    // proc(5): remote address and state are the third and the fourth column; 01 is ESTABLISHED.
    let is_one = |line: &str| {
        let mut columns = line.split_ascii_whitespace().skip(2);
        let remote = columns.next().is_some_and(|remote| remote.ends_with(&format!(":{port:04X}")));
        remote && columns.next() == Some("01")
    };
    table.lines().filter(|line| is_one(line)).count()
}

/// The first endpoint fails under load, is taken out of rotation, recovers, and returns slowly; `broken` checks the failed
/// requests.
fn outage(endpoints: &[SocketAddr], mut breaks: impl FnMut(), mut mends: impl FnMut(), broken: impl Fn(&[&Outcome])) {
    let slow = format!("slow_start: {}s", SLOW_START.as_secs());
    let gateway = gateway(endpoints, &slow);
    let load = Load::start(gateway.addr());
    load.go_on(500);
    breaks();
    eventually("it is left out", DEADLINE, || !is_up(&gateway, endpoints[0]));
    let left_out = Instant::now();
    // Requests that wait for the endpoint have to time out before their clients send more.
    load.go_on(2_000);
    eventually("no connection to it is kept", DEADLINE, || established_to(endpoints[0].port()) == 0);
    let later = load.since(left_out);
    assert_eq!(failed(&later).len(), 0, "once it was left out: {:?}", failed(&later));
    assert_eq!(share(&later, 1), 0.0, "it gets nothing");

    let mended = Instant::now();
    mends();
    eventually("it is back", DEADLINE, || is_up(&gateway, endpoints[0]));
    let back = Instant::now();
    load.go_on(1_000);
    let first = load.since(back);
    // A twentieth of its third at first; the share grows with the time since it returned, which was after it was mended.
    let most = 0.05_f64.max(mended.elapsed().as_secs_f64() / SLOW_START.as_secs_f64()) / 3.0;
    let seen = share(&first, 1);
    assert!(seen > 0.0 && seen <= most + 0.05, "{seen:.3} of the answers came from it, {most:.3} were due");
    gateway.rewrite(&file(endpoints, ""));
    let whole = Instant::now();
    load.go_on(1_000);
    let seen = share(&load.since(whole), 1);
    assert!((0.28..0.38).contains(&seen), "{seen:.3} of the answers came from it without slow start");
    assert_eq!(failed(&load.since(left_out)).len(), 0, "nothing fails for its coming back");
    broken(&failed(&load.finish()));
}

#[test]
fn f02_a_killed_endpoint_costs_no_get_and_no_more_posts_than_it_had_connections() {
    let endpoints = addresses();
    let killed = Mutex::new(backend(endpoints[0], 1));
    let _others = [backend(endpoints[1], 2), backend(endpoints[2], 3)];
    outage(
        &endpoints,
        || killed.lock().expect("nobody panics").crash(),
        || *killed.lock().expect("nobody panics") = backend(endpoints[0], 1),
        |failed| {
            assert!(failed.iter().all(|one| one.method == "POST"), "{failed:?}");
            // A process that dies closes its connections one after the other, so a retry may hit a second one that still looks
            // usable. At most one request per client fails.
            assert!(failed.len() <= CLIENTS, "{failed:?}");
        },
    );
}

#[test]
fn f05_a_frozen_endpoint_fails_those_who_wait_for_it_and_nobody_else() {
    let endpoints = addresses();
    let frozen = backend(endpoints[0], 1);
    let _others = [backend(endpoints[1], 2), backend(endpoints[2], 3)];
    // Each client may have had one request at the endpoint when it was taken out of rotation, but not two.
    let broken = |failed: &[&Outcome]| assert!(failed.len() <= CLIENTS, "{failed:?}");
    outage(&endpoints, || frozen.freeze(), || frozen.thaw(), broken);
}

#[test]
fn f05_a_black_hole_fails_those_who_wait_for_it_and_nobody_else() {
    let hole = Origin::reading(Reading::Strict, |_| Answer::ok("x"));
    let others = [2, 3].map(|bytes| Origin::reading(Reading::Strict, move |_| Answer::ok("x".repeat(bytes))));
    let endpoints = [hole.addr(), others[0].addr(), others[1].addr()];
    let broken = |failed: &[&Outcome]| assert!(failed.len() <= CLIENTS, "{failed:?}");
    outage(&endpoints, || hole.swallow(true), || hole.swallow(false), broken);
}

#[test]
fn each_failed_attempt_is_counted_for_its_endpoint_with_its_cause() {
    let healthy = Origin::serving(|_| Answer::ok("fine"));
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    // The first choice while it is in rotation; it stays there, since passive checks are off.
    let nodes = format!(
        "[{{ host: 127.0.0.1, port: {}, weight: 1, priority: 1 }}, {{ host: 127.0.0.1, port: {}, weight: 1, priority: 0 }}]",
        closed.port(),
        healthy.addr().port()
    );
    let passive = "checks: { passive: { unhealthy: { tcp_failures: 0, timeouts: 0, http_failures: 0 } } }";
    let gateway = weir().start(&format!(
        "routes:\n  - {{ id: all, uri: /all, upstream_id: orders }}\n\
         upstreams:\n  - {{ id: orders, nodes: {nodes}, {passive}, retry_budget: 100 }}\n"
    ));
    for _ in 0..5 {
        assert_eq!(gateway.get("/all").text(), "fine");
    }
    let of = |metrics: &ScrapedMetrics, name: &str, addr: SocketAddr, more: &str| {
        metrics.get(&format!("{name}{{upstream=\"orders\",endpoint=\"{addr}\"{more}}}"))
    };
    // An exchange is counted when it has ended, which is after the client has its response, and one counter after the other.
    eventually("all of the last exchange is counted", DEADLINE, || {
        let metrics = gateway.metrics();
        let counts = [
            metrics.get("weir_http_responses_by_status_total{status=\"200\"}"),
            of(&metrics, "weir_upstream_endpoint_failures_total", closed, ",cause=\"connect_failed\""),
            of(&metrics, "weir_upstream_endpoint_retries_total", closed, ""),
            of(&metrics, "weir_upstream_endpoint_responses_total", healthy.addr(), ",class=\"2xx\""),
            metrics.get("weir_upstream_time_to_head_seconds_count{upstream=\"orders\"}"),
        ];
        counts == [Some(5.0); 5]
    });
    let metrics = gateway.metrics();
    assert!(of(&metrics, "weir_upstream_endpoint_connects_total", healthy.addr(), "") >= Some(1.0));
    assert!(of(&metrics, "weir_upstream_endpoint_time_to_head_seconds_total", healthy.addr(), "") > Some(0.0));
    assert_eq!(metrics.get("weir_names_without_series{kind=\"endpoint\"}"), Some(0.0));
}

#[test]
fn a_websocket_counts_for_its_endpoint_when_it_begins() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        if connection.request().is_ok() {
            let _ = connection.send("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
            connection.wait_gone();
        }
    });
    let gateway = weir().start(&format!(
        "routes:\n  - {{ id: chat, uri: /chat, upstream_id: chat }}\n\
         upstreams:\n  - {{ id: chat, nodes: {{ \"{}\": 1 }} }}\n",
        origin.addr()
    ));
    let mut client = gateway.client();
    client.send("GET /chat HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("an answer").status, 101);
    let counted = || gateway.metrics().sum("weir_upstream_endpoint_responses_total", &["class=\"1xx\""]);
    eventually("the response is counted, while the WebSocket is open", DEADLINE, || counted() == 1.0);
    drop(client);
}

#[test]
fn upstreams_beyond_metrics_names_are_counted_together() {
    let origin = Origin::serving(|_| Answer::ok("fine"));
    let routes: String = (0..1_000)
        .map(|number| {
            format!(
                "  - {{ id: r{number:04}, uri: /r{number}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
                origin.addr()
            )
        })
        .collect();
    let gateway = weir().start(&format!("metrics_names: 20\nroutes:\n{routes}"));
    let mut client = gateway.client();
    for number in 0..1_000 {
        assert_eq!(client.get(&format!("/r{number}")).expect("an answer").status, 200);
    }
    eventually("all of the last exchange is counted", DEADLINE, || {
        let metrics = gateway.metrics();
        let sums = [
            metrics.sum("weir_http_responses_by_status_total", &[]),
            metrics.sum("weir_upstream_endpoint_responses_total", &["class=\"2xx\""]),
            metrics.sum("weir_route_responses_total", &["class=\"2xx\""]),
            metrics.sum("weir_upstream_time_to_head_seconds_count", &[]),
        ];
        sums == [1_000.0; 4]
    });
    let metrics = gateway.metrics();
    for kind in ["route", "upstream", "endpoint"] {
        assert_eq!(metrics.get(&format!("weir_names_without_series{{kind=\"{kind}\"}}")), Some(980.0), "{kind}");
    }
    assert_eq!(metrics.get("weir_route_responses_total{route=\"(other)\",class=\"2xx\"}"), Some(980.0));
    assert_eq!(metrics.get("weir_upstream_time_to_head_seconds_count{upstream=\"(other)\"}"), Some(980.0));
}

/// Two endpoints, of which `busy` gets every first attempt.
fn before_a_reserve(busy: &Origin, reserve: &Origin, more: &str) -> Gateway {
    let node = |origin: &Origin, priority: u32| {
        format!("{{ host: 127.0.0.1, port: {}, weight: 1, priority: {priority} }}", origin.addr().port())
    };
    let nodes = format!("[{}, {}]", node(busy, 1), node(reserve, 0));
    weir().start(&format!(
        "routes:\n  - {{ id: all, uri: /*, upstream: {{ nodes: {nodes}, retry_on: [http_503], {more} }} }}\n"
    ))
}

fn busy() -> Answer {
    Answer::with(503, "X-From: busy\r\n", "try later")
}

#[test]
fn a_response_to_be_retried_that_comes_too_late_for_it_is_the_clients() {
    let late = Origin::serving(|_| {
        let began = Instant::now();
        eventually("no retry may begin any more", DEADLINE, || began.elapsed() > Duration::from_millis(50));
        busy()
    });
    let reserve = Origin::serving(|_| Answer::ok("reserve"));
    let gateway = before_a_reserve(&late, &reserve, "retry_timeout: 0.001");
    let answer = gateway.get("/");
    assert_eq!((answer.status, answer.headers.get("x-from"), answer.text()), (503, Some("busy"), "try later".into()));
    assert!(reserve.requests().is_empty());
    let patient = before_a_reserve(&late, &reserve, "retry_timeout: 60");
    assert_eq!(patient.get("/").text(), "reserve");
}

#[test]
fn endpoints_that_have_been_tried_are_tried_again_where_the_upstream_says_so() {
    let count = AtomicUsize::new(0);
    let only = Origin::serving(move |_| match count.fetch_add(1, Ordering::SeqCst) % 3 {
        2 => Answer::ok("third time"),
        _ => busy(),
    });
    let gateway = |more: &str| {
        weir().start(&format!(
            "routes:\n  - uri: /*\n    upstream: {{ nodes: {{ \"{}\": 1 }}, retries: 2, retry_on: [http_503]{more} }}\n",
            only.addr()
        ))
    };
    assert_eq!(gateway(", retry_same_endpoint: true").get("/").text(), "third time");
    assert_eq!(only.requests().len(), 3);
    assert_eq!(gateway("").get("/").status, 503, "its only endpoint has been tried");
    assert_eq!(only.requests().len(), 4);
}

#[test]
fn a_response_to_be_retried_for_which_others_have_spent_the_budget_is_the_clients() {
    const REQUESTS: usize = 40;
    let begun = AtomicUsize::new(0);
    let busy = Origin::serving(move |_| {
        begun.fetch_add(1, Ordering::SeqCst);
        eventually("all have been sent", DEADLINE, || begun.load(Ordering::SeqCst) == REQUESTS);
        busy()
    });
    let reserve = Origin::serving(|_| Answer::ok("reserve"));
    let gateway = before_a_reserve(&busy, &reserve, "retry_budget: 0");
    let mut clients: Vec<Client> = (0..REQUESTS).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n"));
    let answers = clients.iter_mut().map(|client| client.response().expect("an answer"));
    let (retried, others): (Vec<_>, Vec<_>) = answers.partition(|answer| answer.status == 200);
    assert_eq!(retried.len(), reserve.requests().len());
    assert!(!retried.is_empty() && !others.is_empty(), "{} of {REQUESTS} were retried", retried.len());
    for answer in others {
        let from = answer.headers.get("x-from").map(str::to_owned);
        assert_eq!((answer.status, from.as_deref(), answer.text()), (503, Some("busy"), "try later".into()));
    }
}
