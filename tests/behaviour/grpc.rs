//! gRPC by other people's code: a server and a client in Python. Without them the tests are skipped, and say so.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testkit::{Answer, Authority, DEADLINE, Gate, Gateway, Identity, Origin, Request, eventually, skipped};

use crate::sides::{ClientSide, Http2, Length, Plain, Secure, UpstreamSide};

/// Server and client in one process.
pub(crate) struct Peers {
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    pub port: String,
}

impl Peers {
    /// `None` where there is no Python with `grpcio`.
    pub(crate) fn start() -> Option<Peers> {
        let python: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/python/bin/python");
        let imports = Command::new(&python).args(["-c", "import grpc"]).stderr(Stdio::null()).status();
        if !imports.is_ok_and(|status| status.success()) {
            skipped("there is no Python with `grpcio`");
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/behaviour/calls.py");
        let mut command = Command::new(python);
        let command = command.arg(script).arg("calls").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let orders = child.stdin.take().expect("it is a pipe");
        let mut said = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let line = said.next().expect("it says its port").expect("it says text");
        let port = line.strip_prefix("port ").expect("it says its port").to_owned();
        Some(Peers { child, orders, said, port })
    }

    fn gateway(&self, listen: &str) -> Gateway {
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
            "{listen}routes: [{{ uri: /*, upstream: {{ scheme: grpc, nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]\n",
            self.port
        ))
    }

    /// Tells it to do something; what it says to that.
    pub(crate) fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").expect("it listens");
        self.said.next().expect("it answers").expect("it says text")
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn calls_of_every_kind_pass() {
    let Some(mut peers) = Peers::start() else { return };
    let gateway = peers.gateway("");
    assert_eq!(peers.ask(&format!("calls {}", gateway.addr())), "ok");
}

#[test]
fn calls_of_every_kind_are_spans() {
    let Some(mut peers) = Peers::start() else { return };
    let zipkin = Origin::serving(|_| Answer::status(202, ""));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /*
    plugins: {{ zipkin: {{ endpoint: \"http://{}/\", sample_ratio: 1 }} }}
    upstream: {{ scheme: grpc, nodes: {{ \"127.0.0.1:{}\": 1 }} }}
",
        zipkin.addr(),
        peers.port
    ));
    assert_eq!(peers.ask(&format!("calls {}", gateway.addr())), "ok");
    let sink = || -> Value {
        let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
        report["sinks"][0].clone()
    };
    eventually("all are delivered", DEADLINE, || {
        let sink = sink();
        sink["accepted"]["records"].as_u64() > Some(5) && sink["delivered"] == sink["accepted"]
    });
    let list = |request: Request| serde_json::from_slice::<Vec<Value>>(&request.body).expect("a list");
    let spans: Vec<Value> = zipkin.requests().into_iter().flat_map(list).collect();
    let of_kind = |kind: &str| spans.iter().filter(|span| span["kind"] == kind).collect::<Vec<_>>();
    let (servers, clients) = (of_kind("SERVER"), of_kind("CLIENT"));
    assert_eq!(servers.len(), clients.len(), "each call is one attempt");
    for server in servers {
        assert_eq!(server["tags"]["network.protocol.version"], "2", "{server:#}");
        let attempt = clients.iter().find(|client| client["parentId"] == server["id"]).expect("it has an attempt");
        assert_eq!(attempt["traceId"], server["traceId"]);
        assert!(attempt["duration"].as_u64() <= server["duration"].as_u64(), "{attempt:#} {server:#}");
    }
}

#[test]
fn calls_of_every_kind_pass_over_tls() {
    let Some(mut peers) = Peers::start() else { return };
    let Identity { certificate, key } = Authority::of_tests().identity(&["t"]);
    let gateway = peers.gateway(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\nssls: [{{ sni: t, cert: {certificate:?}, key: {key:?} }}]\n"
    ));
    let file = gateway.directory().write("ca.pem", &Authority::of_tests().certificate);
    assert_eq!(peers.ask(&format!("calls {} {}", gateway.tls_addr(), file.display())), "ok");
}

#[test]
fn h12_a_call_whose_server_dies_is_unavailable() {
    let (Some(server), Some(mut client)) = (Peers::start(), Peers::start()) else { return };
    let gateway = server.gateway("");
    assert_eq!(client.ask(&format!("dies {}", gateway.addr())), "ok");
}

/// A server that breaks a call off with INTERNAL_ERROR, so that it is not to be called again, in HTTP/2 in the clear and in TLS (`grpc` and `grpcs`).
fn a_broken_call_is_an_error<U: UpstreamSide>(scheme: &str) {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = U::origin(move |exchange| {
        if exchange.target() == "/test.Echo/Whole" {
            exchange.respond(200, &[("Content-Type", "application/grpc")], Length::Unknown);
            let _ = exchange.send(b"\0\0\0\0\x03all");
            return exchange.finish(&[("grpc-status", "0")]);
        }
        exchange.respond(200, &[("Content-Type", "application/grpc")], Length::Unknown);
        let _ = exchange.send(b"\0\0\0\0\x05ha");
        held.wait(); // a reset would overtake what has not left
        exchange.abort();
    });
    let authority = &Authority::of_tests().certificate;
    let tls = if U::TLS { format!(", tls: {{ ca: {authority:?} }}") } else { String::new() };
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, upstream: {{ scheme: {scheme}, nodes: {{ \"{}\": 1 }}{tls} }} }}]\n",
        origin.addr()
    ));
    let mut client = Http2::<Plain>::connect(&gateway);
    let call = [("content-type", "application/grpc"), ("te", "trailers")];
    for (target, status) in [("/test.Echo/Whole", "0"), ("/test.Echo/Half", "13"), ("/test.Echo/Whole", "0")] {
        client.begin("POST", target, &call, Length::Unknown);
        client.send(b"\0\0\0\0\0").expect("it is taken");
        client.finish(&[]);
        assert_eq!(client.response().expect("a head").0, 200);
        assert!(!client.part().expect("the beginning").is_empty());
        if target == "/test.Echo/Half" {
            gate.open_once();
        }
        while !client.part().expect("an end in order").is_empty() {}
        assert_eq!(client.trailers().get("grpc-status"), Some(status), "{target}");
    }
}

#[test]
fn h12_a_call_that_is_broken_off_is_an_error() {
    a_broken_call_is_an_error::<Http2<Plain>>("grpc");
}

#[test]
fn h12_a_call_that_is_broken_off_is_an_error_over_tls() {
    a_broken_call_is_an_error::<Http2<Secure>>("grpcs");
}

/// How often a call is tried whose time is looked at: the machine may have other things to do.
const TRIES: u32 = 5;
const PATIENCE: Duration = Duration::from_millis(200);
/// Another clock may be so much ahead.
const TOLERANCE: Duration = Duration::from_millis(50);
/// What one of the tries may take in all.
const IN_TIME: Duration = Duration::from_secs(2);

/// A call whose client waits for 200 ms, to a server that does not end it; how long it took, and how it went.
fn call_in_time(client: &mut Http2<Plain>, target: &str) -> (Duration, Option<String>) {
    call_with(client, target, "200m")
}

fn call_with(client: &mut Http2<Plain>, target: &str, timeout: &str) -> (Duration, Option<String>) {
    let fields = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", timeout)];
    let since = Instant::now();
    client.begin("POST", target, &fields, Length::Unknown);
    client.send(b"\0\0\0\0\0").expect("it is taken");
    client.finish(&[]);
    let (status, fields) = client.response().expect("a head");
    assert_eq!((status, fields.get("content-type")), (200, Some("application/grpc")));
    while !client.part().expect("an end in order").is_empty() {}
    let outcome = fields.get("grpc-status").or_else(|| client.trailers().get("grpc-status"));
    (since.elapsed(), outcome.map(str::to_owned))
}

#[test]
fn h12_a_call_ends_when_its_client_waits_no_longer() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Http2::<Plain>::origin(move |exchange| {
        if exchange.target() == "/test.Echo/Begun" {
            exchange.respond(200, &[("Content-Type", "application/grpc")], Length::Unknown);
            let _ = exchange.send(b"\0\0\0\0\x03all");
        }
        held.wait();
    });
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, upstream: {{ scheme: grpc, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    for target in ["/test.Echo/Silent", "/test.Echo/Begun"] {
        let mut client = Http2::<Plain>::connect(&gateway);
        let mut took = Vec::new();
        let is_in_time = (0..TRIES).any(|_| {
            let (time, outcome) = call_in_time(&mut client, target);
            assert_eq!(outcome.as_deref(), Some("4"), "{target}: DEADLINE_EXCEEDED");
            assert!(time >= PATIENCE - TOLERANCE, "{target}: not before its time: {time:?}");
            took.push(time);
            time <= IN_TIME
        });
        assert!(is_in_time, "{target}: {took:?}");
    }
    gate.open();
    let counted = || gateway.metrics().sum("weir_http_errors_total", &["cause=\"call_timeout\""]);
    eventually("they are counted", DEADLINE, || counted() >= 2.0);
}

#[test]
fn a_call_whose_time_is_over_reaches_nobody_and_counts_for_its_upstream() {
    let (gate, asked) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (gate.clone(), Arc::clone(&asked));
    let origin = Http2::<Plain>::origin(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        held.wait();
    });
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, upstream: {{ scheme: grpc, nodes: {{ \"{}\": 1 }} }}, plugins: {{ api-breaker: {{ \
         break_response_code: 502, unhealthy: {{ http_statuses: [504], failures: 2 }}, healthy: {{ http_statuses: [200], \
         successes: 1 }} }} }} }}]\n",
        origin.addr()
    ));
    let mut client = Http2::<Plain>::connect(&gateway);
    assert_eq!(call_with(&mut client, "/test.Echo/Late", "0m").1.as_deref(), Some("4"));
    assert_eq!(asked.load(Ordering::SeqCst), 0, "nobody waits for the answer");
    // What clients are told is a good answer of HTTP, and yet a failure to the breaker.
    for _ in 0..2 {
        assert_eq!(call_with(&mut client, "/test.Echo/Slow", "1S").1.as_deref(), Some("4"));
    }
    client.begin("POST", "/test.Echo/Slow", &[("content-type", "application/grpc")], Length::Unknown);
    client.finish(&[]);
    assert_eq!(client.response().expect("a head").0, 502, "it is open");
    eventually("the two have been asked", DEADLINE, || asked.load(Ordering::SeqCst) == 2);
    gate.open();
}
