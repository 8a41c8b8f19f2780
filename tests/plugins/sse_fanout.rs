//! `sse-fanout`: one event stream of the upstream for many clients.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use weir_testkit::{Answer, Authority, Client, DEADLINE, Gate, Gateway, Origin, Reading, TlsClient, eventually};

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: own=1\r\nX-Stream: yes\r\nTransfer-Encoding: chunked\r\n\r\n";

/// An upstream whose streams send what a test tells them to. A stream ends when its sender is dropped.
struct EventOrigin {
    origin: Origin,
    /// The status that requests get instead of a stream; 0 for none.
    refusal: Arc<AtomicU16>,
    streams: Arc<Mutex<Vec<Option<Sender<String>>>>>,
}

impl EventOrigin {
    fn start() -> EventOrigin {
        let streams = Arc::<Mutex<Vec<Option<Sender<String>>>>>::default();
        let refusal = Arc::<AtomicU16>::default();
        let (all, refused) = (Arc::clone(&streams), Arc::clone(&refusal));
        let origin = Origin::scripted(Reading::Strict, move |connection| {
            if connection.request().is_err() {
                return;
            }
            match refused.load(Ordering::Relaxed) {
                0 => {}
                204 => return drop(connection.send("HTTP/1.1 204 X\r\n\r\n")),
                status => return drop(connection.send(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"))),
            }
            let (sender, told) = channel();
            all.lock().expect("no test panics with it").push(Some(sender));
            if connection.send(HEAD).is_err() {
                return;
            }
            for text in told {
                if connection.send(format!("{:x}\r\n{text}\r\n", text.len())).is_err() {
                    return;
                }
            }
        });
        EventOrigin { origin, refusal, streams }
    }

    fn opened(&self) -> usize {
        self.streams.lock().expect("no test panics with it").len()
    }

    fn wait_opened(&self, count: usize) {
        eventually("the upstream's stream is open", DEADLINE, || self.opened() == count);
    }

    /// Sends on the stream that was opened last.
    fn send(&self, text: &str) {
        let streams = self.streams.lock().expect("no test panics with it");
        streams.last().and_then(Option::as_ref).expect("a stream").send(text.to_owned()).expect("it is open");
    }

    fn event(&self, id: u64) {
        self.send(&format!("id: {id}\ndata: event {id}\n\n"));
    }

    /// The gateway has closed the stream that was opened last.
    fn is_closed(&self) -> bool {
        let streams = self.streams.lock().expect("no test panics with it");
        let comment = ": is anybody there?\n\n".to_owned();
        streams.last().and_then(Option::as_ref).expect("a stream").send(comment).is_err()
    }

    /// Breaks off the stream that was opened last.
    fn break_off(&self) {
        *self.streams.lock().expect("no test panics with it").last_mut().expect("a stream") = None;
    }
}

fn gateway(origin: &Origin, workers: usize, options: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&document(origin, workers, options))
}

fn document(origin: &Origin, workers: usize, options: &str) -> String {
    document_with(origin, workers, options, "")
}

fn document_with(origin: &Origin, workers: usize, options: &str, settings: &str) -> String {
    format!(
        "worker_processes: {workers}
worker_shutdown_timeout: 4s
{settings}routes:
  - id: events
    uri: /*
    plugins: {{ sse-fanout: {options} }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        origin.addr()
    )
}

/// A client of a stream, after the head of its response.
fn follow(gateway: &Gateway, target: &str, lines: &str) -> Client {
    let mut client = Client::connect(gateway.addr());
    client.send(format!("GET {target} HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n{lines}\r\n"));
    let head = client.response_head("GET").expect("an answer");
    assert_eq!((head.status, head.headers.get("Content-Type")), (200, Some("text/event-stream")));
    assert_eq!((head.headers.get("X-Stream"), head.headers.get("Set-Cookie")), (Some("yes"), None));
    client
}

/// Reads until the text has come, and returns all of what came.
fn read_to(client: &mut Client, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        let chunk = client.chunk().expect("the stream goes on");
        assert!(!chunk.is_empty(), "the stream ended after {all:?}");
        all += &String::from_utf8(chunk).expect("UTF-8");
    }
    all
}

fn ids(text: &str) -> Vec<u64> {
    text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect()
}

#[test]
fn many_clients_cost_one_stream() {
    let upstream = EventOrigin::start();
    for workers in [1, 2] {
        let gateway = gateway(&upstream.origin, workers, "{}");
        let before = upstream.opened();
        let mut clients: Vec<Client> = (0..20).map(|_| follow(&gateway, "/feed?a=1", "User-Agent: any\r\n")).collect();
        upstream.wait_opened(before + 1);
        (1..=50).for_each(|id| upstream.event(id));
        for client in &mut clients {
            assert_eq!(ids(&read_to(client, "event 50\n\n")), (1..=50).collect::<Vec<_>>());
        }
        assert_eq!(upstream.opened(), before + 1, "{workers} workers");
        let metrics = gateway.metrics();
        assert_eq!(metrics.get("weir_sse_fanout_clients"), Some(20.0));
        assert_eq!(metrics.get("weir_sse_fanout_events_total"), Some(50.0));
        drop(clients);
        eventually("clients that leave are gone", DEADLINE, || {
            gateway.metrics().get("weir_sse_fanout_clients") == Some(0.0)
        });
    }
    let request = &upstream.origin.requests()[0];
    assert_eq!(request.headers.get("Accept"), Some("text/event-stream"));
    assert_eq!((request.headers.get("User-Agent"), &*request.target), (None, "/feed?a=1"));
}

#[test]
fn other_requests_have_streams_of_their_own() {
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 1, "{ headers: [X-Tenant] }");
    let _one = follow(&gateway, "/feed", "X-Tenant: a\r\n");
    for (opened, target, lines) in [
        (1, "/feed", "X-Tenant: a\r\nAuthorization: other\r\n"),
        (2, "/feed", "X-Tenant: b\r\n"),
        (3, "/feed", ""),
        (4, "/other", "X-Tenant: a\r\n"),
        (5, "/feed?x", "X-Tenant: a\r\n"),
        (6, "/feed?", "X-Tenant: a\r\n"),
    ] {
        // The stream of the one before has ended with its client.
        follow(&gateway, target, lines);
        assert_eq!(upstream.opened(), opened, "{target} {lines}");
    }
    let tenants: Vec<_> =
        upstream.origin.requests().iter().map(|request| request.headers.get("X-Tenant").map(str::to_owned)).collect();
    assert_eq!(tenants[..3], [Some("a".to_owned()), Some("b".to_owned()), None]);
}

#[test]
fn a_client_that_comes_again_gets_what_it_has_missed() {
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 2, "{ window_events: 10, replay_to_new: 3 }");
    let mut first = follow(&gateway, "/", "");
    for id in 1..=30 {
        upstream.event(id);
        read_to(&mut first, &format!("event {id}\n\n"));
    }
    let resumed = read_to(&mut follow(&gateway, "/", "Last-Event-ID: 25\r\n"), "event 30\n\n");
    assert_eq!(ids(&resumed), [26, 27, 28, 29, 30]);
    let new = read_to(&mut follow(&gateway, "/", ""), "event 30\n\n");
    assert_eq!(ids(&new), [28, 29, 30]);
    assert_eq!(upstream.opened(), 1);
    // What is not kept only the upstream can know.
    let mut alone = follow(&gateway, "/", "Last-Event-ID: 3\r\n");
    upstream.wait_opened(2);
    assert_eq!(upstream.origin.requests()[1].headers.get("Last-Event-ID"), Some("3"));
    upstream.event(4);
    assert_eq!(ids(&read_to(&mut alone, "event 4\n\n")), [4]);
}

#[test]
fn an_unknown_id_may_join() {
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 1, "{ window_events: 2, unknown_event_id: join }");
    let mut first = follow(&gateway, "/", "");
    for id in 1..=9 {
        upstream.event(id);
        read_to(&mut first, &format!("event {id}\n\n"));
    }
    let mut joined = follow(&gateway, "/", "Last-Event-ID: 3\r\n");
    upstream.event(10);
    assert_eq!(ids(&read_to(&mut joined, "event 10\n\n")), [10]);
    assert_eq!(upstream.opened(), 1);
}

#[test]
fn the_first_client_says_where_the_stream_begins() {
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 1, "{}");
    let mut first = follow(&gateway, "/", "Last-Event-ID: 41\r\n");
    upstream.event(42);
    read_to(&mut first, "event 42\n\n");
    assert_eq!(upstream.origin.requests()[0].headers.get("Last-Event-ID"), Some("41"));
    // The same place, from what is kept.
    assert_eq!(ids(&read_to(&mut follow(&gateway, "/", "Last-Event-ID: 41\r\n"), "event 42\n\n")), [42]);
    assert_eq!(upstream.opened(), 1);
}

#[test]
fn a_stream_that_breaks_is_opened_again_after_its_last_event() {
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 2, "{}");
    let mut clients = [follow(&gateway, "/", ""), follow(&gateway, "/", "")];
    upstream.send("retry: 10\n\n");
    upstream.event(1);
    for round in 2..6 {
        upstream.break_off();
        upstream.wait_opened(round);
        upstream.event(round as u64);
    }
    for client in &mut clients {
        assert_eq!(ids(&read_to(client, "event 5\n\n")), [1, 2, 3, 4, 5]);
    }
    let resumed: Vec<_> = upstream
        .origin
        .requests()
        .iter()
        .filter_map(|request| request.headers.get("Last-Event-ID").map(str::to_owned))
        .collect();
    assert_eq!(resumed, ["1", "2", "3", "4"]);
}

#[test]
fn a_stream_that_does_not_come_back_ends() {
    for (status, options) in [(204, "{}"), (404, "{}"), (503, "{ reconnect_timeout: 1 }")] {
        let upstream = EventOrigin::start();
        let gateway = gateway(&upstream.origin, 1, options);
        let mut client = follow(&gateway, "/", "");
        upstream.send("retry: 10\n\n");
        upstream.event(1);
        read_to(&mut client, "event 1\n\n");
        upstream.refusal.store(status, Ordering::Relaxed);
        upstream.break_off();
        while !client.chunk().expect("the stream ends in order").is_empty() {}
        // Then it is asked for again.
        upstream.refusal.store(0, Ordering::Relaxed);
        follow(&gateway, "/", "");
    }
}

#[test]
fn another_answer_goes_to_all_who_wait() {
    let (gate, asked) = (weir_testkit::Gate::new(), Arc::new(Mutex::new(0)));
    let (wait, count) = (gate.clone(), Arc::clone(&asked));
    let origin = Origin::serving(move |_| {
        *count.lock().expect("no test panics with it") += 1;
        wait.wait();
        Answer::with(403, "Content-Type: text/plain\r\nX-Why: no\r\n", "not for you")
    });
    let gateway = gateway(&origin, 2, "{}");
    let request = "GET / HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n";
    let mut clients: Vec<Client> = (0..5).map(|_| Client::connect(gateway.addr())).collect();
    clients.iter_mut().for_each(|client| client.send(request));
    gate.wait_arrived(1);
    eventually("all of them wait", DEADLINE, || gateway.metrics().get("weir_http_requests_total") == Some(5.0));
    gate.open();
    for client in &mut clients {
        let response = client.response().expect("an answer");
        assert_eq!((response.status, response.text()), (403, "not for you".to_owned()));
        assert_eq!(response.headers.get("X-Why"), Some("no"));
    }
    // It is not kept: the next one is asked for.
    let before = *asked.lock().expect("no test panics with it");
    assert_eq!(gateway.client().ask(request).expect("an answer").status, 403);
    assert!(*asked.lock().expect("no test panics with it") > before);
}

#[test]
fn an_upstream_that_cannot_be_reached_is_a_502() {
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, plugins: {{ sse-fanout: {{}} }}, upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }} }} }}]",
        weir_testkit::free_port()
    ));
    let response = gateway.client().ask("GET / HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n");
    assert_eq!(response.expect("an answer").status, 502);
}

#[test]
fn a_client_that_does_not_read_costs_no_more_than_the_window() {
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 1, "{ window_bytes: 262144, slow_client: close }");
    let slow = follow_narrow(&gateway);
    let mut fast = follow(&gateway, "/", "");
    let filler = "x".repeat(60_000);
    let before = gateway.rss();
    for id in 1..=400 {
        upstream.send(&format!("id: {id}\ndata: {filler}\n\n"));
        read_to(&mut fast, &format!("id: {id}\n"));
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 8 << 20, "24 MB of events have taken {grown} bytes");
    eventually("the slow client's loss is counted", DEADLINE, || {
        gateway.metrics().get("weir_sse_fanout_missed_events_total").is_some_and(|missed| missed > 0.0)
            || gateway.metrics().get("weir_sse_fanout_clients") == Some(2.0)
    });
    let all = read_all(slow);
    let got = ids(&all);
    assert_eq!(got, (1..=got.len() as u64).collect::<Vec<_>>(), "what it got has no gap");
    assert!(got.len() < 400);
}

fn follow_narrow(gateway: &Gateway) -> Client {
    let mut client = Client::connect_narrow(gateway.addr()).expect("a connection");
    client.send("GET / HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("an answer").status, 200);
    client
}

/// All of a response that ends in order.
fn read_all(mut client: Client) -> String {
    let mut all = Vec::new();
    loop {
        match client.chunk().expect("it ends in order") {
            chunk if chunk.is_empty() => return String::from_utf8(all).expect("UTF-8"),
            chunk => all.extend_from_slice(&chunk),
        }
    }
}

#[test]
fn clients_hear_of_a_silent_stream() {
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 1, "{ heartbeat: 1 }");
    let mut client = follow(&gateway, "/", "");
    assert_eq!(client.chunk().expect("a comment"), b":\n\n");
    upstream.send(": comments of the upstream do not count\n\n");
    assert_eq!(client.chunk().expect("another"), b":\n\n");
}

#[test]
fn the_stream_stays_open_for_a_while_after_the_last_client() {
    let upstream = EventOrigin::start();
    let long = gateway(&upstream.origin, 2, "{ keep_open: 3600 }");
    let mut client = follow(&long, "/", "");
    upstream.event(1);
    read_to(&mut client, "event 1\n\n");
    drop(client);
    upstream.event(2);
    let mut back = follow(&long, "/", "Last-Event-ID: 1\r\n");
    assert_eq!(ids(&read_to(&mut back, "event 2\n\n")), [2]);
    assert_eq!(upstream.opened(), 1, "it was still there");
    let short = gateway(&upstream.origin, 2, "{ keep_open: 1 }");
    follow(&short, "/", "");
    assert_eq!(upstream.opened(), 2);
    eventually("then it is closed", DEADLINE, || upstream.is_closed());
}

#[test]
fn a_reload_and_the_end_of_the_process_cut_nothing() {
    let upstream = EventOrigin::start();
    let mut gateway = gateway(&upstream.origin, 2, "{}");
    let mut client = follow(&gateway, "/", "");
    upstream.event(1);
    gateway.rewrite(&format!("{}#\n", document(&upstream.origin, 2, "{ replay_to_new: 1 }")));
    upstream.event(2);
    assert_eq!(ids(&read_to(&mut client, "event 2\n\n")), [1, 2]);
    gateway.signal(Signal::TERM);
    while !client.chunk().expect("the stream ends in order").is_empty() {}
    assert!(gateway.wait_exit(DEADLINE).success());
}

#[test]
fn the_request_for_a_stream_tells_nothing_of_clients_served_before() {
    const HELD: usize = 8;
    let gate = Gate::new();
    let origin = {
        let gate = gate.clone();
        Origin::serving(move |request| {
            if request.target == "/held" {
                gate.wait();
                return Answer::ok("held");
            }
            Answer::with(200, "Content-Type: text/event-stream\r\n", "data: 1\n\n")
        })
    };
    let authority = Authority::of_tests();
    let identity = authority.identity(&["t"]);
    let upstream = format!("{{ nodes: {{ \"{}\": 1 }} }}", origin.addr());
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true }}]
worker_processes: 1
ssls: [{{ sni: t, cert: {:?}, key: {:?} }}]
routes:
  - {{ id: held, uri: /held, upstream: {upstream} }}
  - {{ id: events, uri: /events, plugins: {{ sse-fanout: {{}} }}, upstream: {upstream} }}
",
        identity.certificate, identity.key
    ));
    let tls = TlsClient::trusting(authority);
    let clients: Vec<Client> = (0..HELD)
        .map(|_| {
            let mut client = Client::connect_tls(gateway.tls_addr(), &tls, "t").expect("a handshake");
            client.send("GET /held HTTP/1.1\r\nHost: t\r\n\r\n");
            client
        })
        .collect();
    gate.wait_arrived(HELD);
    gate.open();
    for mut client in clients {
        assert_eq!(client.response().expect("an answer").text(), "held");
    }
    let mut client = Client::connect(gateway.addr());
    client.send("GET /events HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("an answer").status, 200);
    let requests = origin.wait_requests(HELD + 1);
    let headers = &requests.iter().find(|request| request.target == "/events").expect("it was asked for").headers;
    assert_eq!((headers.get("X-Forwarded-Proto"), headers.get("X-Forwarded-Port")), (Some("http"), None));
}

/// The status of a request for a stream from this address, and its client.
fn ask_from(gateway: &Gateway, last: u8, target: &str) -> (u16, Client) {
    let mut client = Client::connect_from([127, 0, 0, last].into(), gateway.addr()).expect("a connection");
    client.send(format!("GET {target} HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n"));
    (client.response_head("GET").expect("an answer").status, client)
}

#[test]
fn streams_of_a_client_a_route_and_the_node_are_limited() {
    let upstream = EventOrigin::start();
    let limits = "plugin_metadata: [{ id: sse-fanout, max_streams: 4, max_streams_per_client: 2 }]\n";
    for workers in [1, 2] {
        let before = upstream.opened();
        let options = "{ max_streams: 3, keep_open: 3600 }";
        let file = document_with(&upstream.origin, workers, options, limits);
        let other = format!(
            "  - {{ uri: /other/*, plugins: {{ sse-fanout: {{ max_streams: 3 }} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
            upstream.origin.addr()
        );
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&(file + &other));
        let ask = |last, target| ask_from(&gateway, last, target);
        let (first, mut second) = (ask(1, "/a"), ask(1, "/b"));
        assert_eq!([first.0, second.0, ask(1, "/c").0], [200, 200, 429]);
        let shared = ask(1, "/a");
        assert_eq!(shared.0, 200, "a stream that is open may be joined");
        let third = ask(2, "/c");
        assert_eq!([third.0, ask(2, "/d").0], [200, 503], "the route has as many as it may");
        let elsewhere = ask(2, "/other/a");
        assert_eq!([elsewhere.0, ask(3, "/other/b").0], [200, 503], "and so has the node");
        let refused = |limit: &str| gateway.metrics().sum("weir_sse_fanout_refused_streams_total", &[limit]);
        let counts = ["limit=\"client\"", "limit=\"route\"", "limit=\"node\""].map(refused);
        assert_eq!(counts, [1.0, 1.0, 1.0]);
        assert_eq!((upstream.opened() - before, gateway.metrics().get("weir_sse_fanout_open_streams")), (4, Some(4.0)));
        // Streams that are open are not touched.
        let streams = upstream.streams.lock().expect("no test panics with it");
        let of_second = streams[before + 1].as_ref().expect("a stream").clone();
        drop(streams);
        of_second.send("data: goes on\n\n".to_owned()).expect("it is open");
        read_to(&mut second.1, "goes on");
        // One that its clients have left gives way, although it would stay open for an hour.
        drop((first, shared));
        eventually("its place is free", DEADLINE, || ask(3, "/e").0 == 200);
    }
}

#[test]
fn a_stream_that_its_only_client_left_is_not_kept() {
    let gate = Gate::new();
    let wait = gate.clone();
    let silent = Origin::serving(move |_| {
        wait.wait();
        Answer::ok("late")
    });
    let waiting = gateway(&silent, 1, "{ keep_open: 3600 }");
    let mut client = waiting.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n");
    eventually("the stream is asked for", DEADLINE, || {
        waiting.metrics().get("weir_sse_fanout_open_streams") == Some(1.0)
    });
    client.reset();
    eventually("one that has not begun ends at once", DEADLINE, || {
        !waiting.metrics().get("weir_sse_fanout_open_streams").is_some_and(|open| open > 0.0)
    });
    gate.open();
    // Of those that have begun, the last few stay for a client that comes again.
    let upstream = EventOrigin::start();
    let gateway = gateway(&upstream.origin, 2, "{ keep_open: 3600 }");
    let gateway = &gateway;
    let open = |count| move || gateway.metrics().get("weir_sse_fanout_open_streams") == Some(count);
    (0..19).for_each(|number| drop(follow(gateway, &format!("/{number}"), "")));
    eventually("four stay", DEADLINE, open(4.0));
    // Two workers may notice in any order which clients have left: only of this one it is certain that it was the last.
    let last = follow(gateway, "/19", "");
    eventually("it is open beside them", DEADLINE, open(5.0));
    drop(last);
    eventually("four stay again", DEADLINE, open(4.0));
    follow(gateway, "/19", "");
    assert_eq!(upstream.opened(), 20, "the newest one is still there");
}

#[test]
fn kept_events_are_held_content() {
    const PER_CLIENT: f64 = 262_144.0;
    let upstream = EventOrigin::start();
    let settings = "held_content_max: 1MiB\n";
    let file = document_with(&upstream.origin, 2, "{ window_bytes: 1048576, keep_open: 0 }", settings);
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file);
    let held = || gateway.metrics().get("weir_held_content_bytes").expect("it is always there");
    let mut client = follow(&gateway, "/", "");
    let filler = "x".repeat(1_000);
    for id in 1..=2_000 {
        upstream.send(&format!("id: {id}\ndata: {filler}\n\n"));
        read_to(&mut client, &format!("id: {id}\n"));
    }
    let kept = held();
    assert!((PER_CLIENT / 4.0..=PER_CLIENT).contains(&kept), "{kept} bytes are held for it");
    // Fewer are kept than `window_events` and `window_bytes` allow; what is kept is what came last.
    let again = read_to(&mut follow(&gateway, "/", "Last-Event-ID: 1950\r\n"), "id: 2000\n");
    assert_eq!(ids(&again), (1951..=2000).collect::<Vec<_>>());
    // An event that is larger than what may be held ends the stream.
    upstream.send(&format!("id: 2001\ndata: {}\n\n", "x".repeat(400_000)));
    while !client.chunk().expect("the stream ends in order").is_empty() {}
    gateway.wait_stderr("why", |line| line.contains("held_content_max_per_client is reached"));
    drop(client);
    eventually("nothing is held any more", DEADLINE, || held() == 0.0);
}

/// A stream counts for the client that opened it while this client is there, and goes on for others when it leaves.
#[test]
fn a_stream_outlives_the_client_that_opened_it_and_counts_for_another() {
    let upstream = EventOrigin::start();
    for workers in [1, 2] {
        let limits = "held_content_max: 4MiB\nplugin_metadata: [{ id: sse-fanout, max_streams_per_client: 1 }]\n";
        let file = document_with(&upstream.origin, workers, "{ keep_open: 0 }", limits);
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file);
        let (opened, opener) = ask_from(&gateway, 1, "/shared");
        let (joined, mut other) = ask_from(&gateway, 2, "/shared");
        assert_eq!([opened, joined, ask_from(&gateway, 1, "/own").0], [200, 200, 429], "the opener has its stream");
        upstream.event(1);
        read_to(&mut other, "event 1");
        drop(opener);
        // The first client has room for another stream as soon as it counts for the second, which has none then.
        let mut own = None;
        eventually("the stream counts for another", DEADLINE, || {
            let (status, client) = ask_from(&gateway, 1, "/own");
            own = Some(client);
            status == 200
        });
        assert_eq!(ask_from(&gateway, 2, "/another").0, 429);
        let streams = upstream.streams.lock().expect("no test panics with it");
        let shared = streams.iter().rev().flatten().nth(1).expect("a stream").clone();
        drop(streams);
        shared.send("id: 2\ndata: event 2\n\n".to_owned()).expect("it is open");
        assert_eq!(ids(&read_to(&mut other, "event 2")), [2]);
        let metrics = gateway.metrics();
        assert_eq!(metrics.get("weir_sse_fanout_open_streams"), Some(2.0));
    }
}

/// What its owner holds otherwise does not end the stream of others, nor take their events.
#[test]
fn a_window_of_an_owner_without_room_counts_for_another_client() {
    let upstream = EventOrigin::start();
    let file =
        document_with(&upstream.origin, 1, "{ window_bytes: 1048576, keep_open: 0 }", "held_content_max: 1MiB\n");
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file);
    // The opener has a share of 256 KiB, most of which its other stream takes.
    let (_, mut full) = ask_from(&gateway, 1, "/full");
    upstream.wait_opened(1);
    for id in 1..=4 {
        upstream.send(&format!("id: {id}\ndata: {}\n\n", "x".repeat(50_000)));
        read_to(&mut full, &format!("id: {id}\n"));
    }
    let (_, mut opener) = ask_from(&gateway, 1, "/shared");
    upstream.wait_opened(2);
    let (_, mut other) = ask_from(&gateway, 2, "/shared");
    for id in 1..=4 {
        upstream.send(&format!("id: {id}\ndata: {}\n\n", "x".repeat(50_000)));
        for client in [&mut opener, &mut other] {
            read_to(client, &format!("id: {id}\n"));
        }
    }
    let again = read_to(&mut follow(&gateway, "/shared", "Last-Event-ID: 1\r\n"), "id: 4\n");
    assert_eq!(ids(&again), [2, 3, 4], "no event was given up");
}

#[test]
fn a_burst_takes_the_place_of_no_more_events_than_it_needs() {
    let upstream = EventOrigin::start();
    let file =
        document_with(&upstream.origin, 1, "{ window_bytes: 1048576, keep_open: 0 }", "held_content_max: 1MiB\n");
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file);
    let mut client = follow(&gateway, "/", "");
    let event = |id: u64| format!("id: {id}\ndata: {}\n\n", "x".repeat(1_000));
    // 200 of about 1.2 KiB are 240 KiB of 256.
    for id in 1..=200 {
        upstream.send(&event(id));
        read_to(&mut client, &format!("id: {id}\n"));
    }
    upstream.send(&(201..=230).map(event).collect::<String>());
    read_to(&mut client, "id: 230\n");
    let again = read_to(&mut follow(&gateway, "/", "Last-Event-ID: 60\r\n"), "id: 230\n");
    assert_eq!(ids(&again), (61..=230).collect::<Vec<_>>(), "most of what was kept is still there");
}
