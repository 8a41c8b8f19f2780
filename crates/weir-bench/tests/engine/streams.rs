//! WebSocket, server-sent events, HTTP/2 and idle connections.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::peer::{PeerDefinition, Then, answer};
use weir_bench::backend::{BackendServer, Config, TlsFiles};
use weir_bench::engine::{
    EchoCheck, Errors, LoadPlan, LoadResult, Pacing, Protocol, Rate, RequestBody, RequestTemplate, Spacing,
    StopCondition, Think, run,
};

fn backend(tls: bool) -> BackendServer {
    let tls = tls.then_some(TlsFiles::SelfSigned);
    BackendServer::start(&Config { tls, ..Config::default() }).expect("a free port")
}

fn plan(url: &str, protocol: Protocol, stop: StopCondition) -> LoadPlan {
    LoadPlan { protocol, ..LoadPlan::closed(url, 5, stop) }
}

fn load(plan: &LoadPlan) -> LoadResult {
    let result = run(plan, &mut |_| {}).expect("the plan is good");
    let total = &result.total;
    assert_eq!(total.due, total.completed + total.errors.sum() + total.missed, "every request has one outcome");
    assert_eq!(total.completed, total.latency.count());
    result
}

fn open(rate: f64) -> Pacing {
    Pacing::Open { rate: Rate::Constant(rate), spacing: Spacing::Even }
}

#[test]
fn websocket_messages_come_back() {
    for tls in [false, true] {
        let backend = backend(tls);
        let base = format!("{}://{}", if tls { "wss" } else { "ws" }, backend.addresses()[0]);
        for (path, check) in [("/", EchoCheck::Same), ("/reverse", EchoCheck::Reversed)] {
            let protocol = Protocol::WebSocket { message_bytes: 500, check };
            let mut plan = plan(&format!("{base}{path}"), protocol, StopCondition::after_count(203));
            plan.threads = 2;
            for pacing in [Pacing::default(), open(2_000.0)] {
                plan.pacing = pacing;
                let result = load(&plan);
                assert_eq!((result.total.completed, result.total.errors), (203, Errors::default()));
                assert_eq!((result.connections.opened, result.connections.open_at_end), (5, 5));
                assert_eq!(result.total.bytes_received, 203 * 500);
                assert_eq!(result.connections.handshakes, if tls { 5 } else { 0 });
            }
        }
    }
}

#[test]
fn a_wrong_echo_is_a_mismatch() {
    let backend = backend(false);
    let protocol = Protocol::WebSocket { message_bytes: 40, check: EchoCheck::Reversed };
    let mut plan = plan(&format!("ws://{}/", backend.addresses()[0]), protocol, StopCondition::after_count(20));
    for pacing in [Pacing::default(), open(1_000.0)] {
        plan.pacing = pacing;
        assert_eq!(load(&plan).total.errors, Errors { mismatch: 20, ..Errors::default() });
    }
}

#[test]
fn a_refused_upgrade_is_said_so() {
    let peer = PeerDefinition::ok();
    let url = peer.url().replace("http", "ws");
    let protocol = Protocol::WebSocket { message_bytes: 40, check: EchoCheck::Any };
    let result = load(&plan(&url, protocol, StopCondition::after_count(5)));
    assert_eq!(result.total.errors, Errors { protocol: 5, ..Errors::default() });
    assert!(result.connections.failed.protocol >= 5);
}

#[test]
fn connect_storms_connect_and_close() {
    let backend = backend(false);
    let url = format!("ws://{}/", backend.addresses()[0]);
    let result = load(&plan(&url, Protocol::WebSocketConnect, StopCondition::after_count(60)));
    assert_eq!((result.total.completed, result.total.errors), (60, Errors::default()));
    assert_eq!((result.connections.opened, result.connections.open_at_end), (60, 0));
}

#[test]
fn messages_without_an_answer_time_out() {
    // Upgrades, and then says nothing: the answer to RFC 6455's sample key is computed by the client library's own
    // check, so a peer that cannot compute it is refused instead. The built-in backend with a stalled proxy stands in.
    let backend = backend(false);
    let stalled = stalling_proxy(backend.addresses()[0], 400);
    let protocol = Protocol::WebSocket { message_bytes: 100, check: EchoCheck::Same };
    let mut plan = plan(&format!("ws://{stalled}/"), protocol, StopCondition::after_ms(400));
    plan.connections = 1;
    plan.pacing = open(50.0);
    plan.timeouts.response_ms = 200;
    let result = load(&plan);
    assert!(result.total.errors.timeout > 0, "{:?}", result.total.errors);
}

/// Passes bytes on until this many have gone to the server, and then nothing any more.
fn stalling_proxy(to: std::net::SocketAddr, after: usize) -> std::net::SocketAddr {
    use std::io::Read as _;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = std::net::TcpStream::connect(to).expect("the backend runs");
            let (mut from, mut into) = (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut into));
            let (mut from, mut into) = (client, server);
            std::thread::spawn(move || {
                let (mut passed, mut buffer) = (0, [0; 4096]);
                while let Ok(read @ 1..) = from.read(&mut buffer) {
                    passed += read;
                    if passed <= after && into.write_all(&buffer[..read]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn events_are_counted_and_timed() {
    for tls in [false, true] {
        let backend = backend(tls);
        let scheme = if tls { "https" } else { "http" };
        let url = format!("{scheme}://{}/sse?rate=100&bytes=82", backend.addresses()[0]);
        let mut plan = plan(&url, Protocol::Sse, StopCondition::after_ms(2_000));
        plan.warm_up_ms = 200;
        let began = Instant::now();
        let result = load(&plan);
        assert_eq!(result.total.errors, Errors::default());
        // Fewer, and later ones, if the machine is busy. A run that ends late has more.
        let most = 5 * (began.elapsed().as_millis() as u64 / 10 + 2);
        assert!((50..=most).contains(&result.total.completed), "{} of {most}", result.total.completed);
        assert_eq!(result.total.bytes_received, result.total.completed * 82);
        assert!(result.total.latency.quantile(0.5) < 600_000_000);
        assert_eq!(result.connections.open_at_end, 5);
    }
}

#[test]
fn lost_events_and_broken_streams_are_errors() {
    // The first stream ends like this. One that is opened again stays open.
    let errors = |first: Then| {
        let peer = PeerDefinition::start(move |seen, stream| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
            answer(stream, &format!("{head}id: 1\ndata: a\n\nid: 2\ndata: b\n\nid: 5\ndata: c\n\n"));
            if seen.number == 0 { first } else { Then::Next }
        });
        // Longer than all of it takes on a busy machine.
        let mut plan = plan(&peer.url(), Protocol::Sse, StopCondition::after_ms(1_500));
        plan.connections = 1;
        load(&plan).total
    };
    let total = errors(Then::Next);
    assert_eq!((total.completed, total.errors.mismatch, total.errors.closed), (3, 2, 0));
    assert_eq!(errors(Then::Close).errors.closed, 1);
}

/// A hub: who asks with GET hears what is posted. The connections of its listeners stay open.
fn hub(lose: &'static str) -> PeerDefinition {
    let listeners: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    PeerDefinition::start(move |seen, stream| {
        let mut listeners = listeners.lock().expect("no panic");
        if seen.line.starts_with("GET") {
            listeners.push(stream.try_clone().expect("a descriptor"));
            return answer(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n");
        }
        assert!(seen.fields.contains(&"X-API-Key: lab".to_owned()), "{:?}", seen.fields);
        let event = String::from_utf8(seen.body.clone()).expect("an event is text");
        if !event.contains(lose) {
            for listener in listeners.iter_mut() {
                let _ = write!(listener, "data: {event}\n\n");
            }
        }
        answer(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    })
}

#[test]
fn events_are_published_once_for_all_listeners() {
    for (lose, lost) in [("nothing", 0), ("\"n\":5,", 5)] {
        let hub = hub(lose);
        let mut plan = plan(&hub.url(), Protocol::Sse, StopCondition::after_ms(1_000));
        plan.pacing = open(100.0);
        plan.threads = 2;
        plan.requests.push(RequestTemplate {
            method: "POST".to_owned(),
            headers: vec![("X-API-Key".to_owned(), "lab".to_owned())],
            body: RequestBody::Text("{\"n\":{number},\"t\":{time}}".to_owned()),
            ..plan.requests[0].clone()
        });
        let result = load(&plan);
        // An event every 50 ms for five clients, and one at either end of the second; the last may be in flight when the run ends.
        // Fewer, and later ones, if the machine is busy.
        let total = result.total;
        assert!((30..=105).contains(&(total.completed + lost)), "{}", total.completed);
        assert_eq!((total.errors.mismatch, total.errors.sum()), (lost, lost));
        assert!(total.latency.quantile(0.5) < 1_000_000_000);
        assert!((6..=21).contains(&(hub.requests() - 5)), "one POST for each event: {}", hub.requests());
    }
}

#[test]
fn events_are_published_by_the_clock() {
    let mut plan = plan("http://127.0.0.1:1/", Protocol::Sse, StopCondition::after_ms(50));
    plan.requests.push(plan.requests[0].clone());
    let error = run(&plan, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("pacing: events that are published need an open loop"), "{error}");
}

#[test]
fn response_that_is_no_event_stream_is_an_error() {
    let peer = PeerDefinition::ok();
    // Long enough for the first response on a busy machine. It is asked for again.
    let mut plan = plan(&peer.url(), Protocol::Sse, StopCondition::after_ms(1_500));
    plan.connections = 1;
    let errors = load(&plan).total.errors;
    assert!(errors.protocol >= 1);
    assert_eq!(errors, Errors { protocol: errors.protocol, ..Errors::default() });
}

#[test]
fn http2_in_the_clear_and_over_tls() {
    for tls in [false, true] {
        let backend = backend(tls);
        let url = format!("{}://{}/echo", if tls { "https" } else { "http" }, backend.addresses()[0]);
        let mut plan = plan(&url, Protocol::Http2 { streams: 4 }, StopCondition::after_count(1_000));
        plan.requests[0].method = "POST".into();
        plan.requests[0].body = RequestBody::Sized(3_000);
        plan.threads = 2;
        for pacing in [Pacing::default(), open(5_000.0)] {
            plan.pacing = pacing;
            let result = load(&plan);
            assert_eq!((result.total.completed, result.total.errors), (1_000, Errors::default()));
            assert_eq!((result.total.statuses[&200], result.connections.opened), (1_000, 5));
            assert_eq!(result.total.bytes_received, 3_000_000);
            assert!(result.generator.in_flight_max <= 20);
        }
    }
}

#[test]
fn http2_misses_what_it_cannot_send() {
    let backend = backend(false);
    let url = format!("http://{}/delay/100ms", backend.addresses()[0]);
    let mut plan = plan(&url, Protocol::Http2 { streams: 2 }, StopCondition::after_ms(2_000));
    plan.pacing = open(1_000.0);
    let result = load(&plan);
    assert_eq!(result.total.due, 2_000);
    assert!(result.total.missed > 300 && result.total.queued > 300, "{}", result.total.missed);
}

#[test]
fn idle_connections_are_held() {
    for tls in [false, true] {
        let backend = backend(tls);
        let url = format!("{}://{}/", if tls { "https" } else { "http" }, backend.addresses()[0]);
        let mut plan = plan(&url, Protocol::Idle { first_request: true }, StopCondition::after_ms(3_000));
        plan.connections = 200;
        plan.source_addresses = vec!["127.0.0.2".parse().expect("an address"), "127.0.0.3".parse().expect("one")];
        let result = load(&plan);
        assert_eq!((result.total.completed, result.total.errors), (200, Errors::default()));
        assert_eq!((result.connections.open_at_end, result.connections.closed_idle), (200, 0));
    }
    let peer = PeerDefinition::start(|_, stream| {
        answer(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        Then::Close
    });
    let result = load(&plan(&peer.url(), Protocol::Idle { first_request: true }, StopCondition::after_ms(300)));
    assert_eq!((result.connections.opened, result.connections.closed_idle, result.connections.open_at_end), (5, 5, 0));
}

#[test]
fn clients_of_streams_start_one_after_another() {
    let backend = backend(false);
    let protocol = Protocol::WebSocket { message_bytes: 40, check: EchoCheck::Same };
    let mut plan = plan(&format!("ws://{}/", backend.addresses()[0]), protocol, StopCondition::after_ms(1_500));
    plan.pacing = Pacing::Closed { think: Think::FixedMs(250.0), ramp_up_ms: 1_250 };
    let result = load(&plan);
    // Started at 0, 250, 500, 750 and 1,000 ms, a message every 250 ms: at most 6 + 5 + 4 + 3 + 2.
    assert!((5..=20).contains(&result.total.completed), "{}", result.total.completed);
}
