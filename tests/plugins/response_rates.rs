//! Responses whose rate is limited, beside what else the gateway does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_testkit::{
    Answer, Client, DEADLINE, Gateway, Origin, OriginConnection, Reading, Signal, eventually, eventually_some,
};

/// What is sent at once at a low rate.
const PIECE: usize = 512;

fn weir(file: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(file)
}

/// Two routes to the origin: `/paced` with this limit, and `/plain`.
fn routes(limit: &str, rest: &str, origin: &Origin) -> String {
    let upstream = format!("upstream: {{ nodes: {{ \"{}\": 1 }}, {rest} }}", origin.addr());
    format!(
        "routes:\n  - {{ id: paced, uri: /paced, plugins: {{ limit-rate: {limit} }}, {upstream} }}\n  - {{ id: plain, uri: /plain, {upstream} }}\n"
    )
}

/// An origin that sends without end at `/paced`, and counts what could be sent.
fn endless() -> (Origin, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let origin = Origin::scripted(Reading::Strict, move |connection: &mut OriginConnection| {
        while let Ok(request) = connection.request() {
            let answer = match &*request.target {
                "/paced" => "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain",
            };
            let mut next = connection.send(answer);
            while next.is_ok() && request.target == "/paced" {
                next = connection.send([b'x'; 4096]);
                count.fetch_add(4096, Ordering::Relaxed);
            }
            if next.is_err() {
                return;
            }
        }
    });
    (origin, sent)
}

/// A client that has asked for `/paced` and received its head, and what comes at once.
fn downloading(gateway: &Gateway, at_once: usize) -> Client {
    let mut client = gateway.client();
    client.send("GET /paced HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("a head").status, 200);
    client.exact(at_once as u64).expect("what is sent at once");
    client
}

#[test]
fn a_thousand_slow_responses_take_little_memory_and_stop_no_other_client() {
    const RESPONSES: u64 = 1_000;
    let (origin, sent) = endless();
    let gateway = weir(&format!("worker_processes: 1\n{}", routes("{ rate: 512 }", "", &origin)));
    gateway.client().get("/plain").expect("an answer");
    let before = gateway.rss();
    let clients: Vec<Client> = (0..RESPONSES).map(|_| downloading(&gateway, PIECE)).collect();
    let (mut still, mut last) = (0, 0);
    eventually("the origin waits", DEADLINE, || {
        let now = sent.load(Ordering::Relaxed);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        still == 20
    });
    // What came with the head is at most one read of 64 KiB, of which the rest is held.
    let each = gateway.rss().saturating_sub(before) / RESPONSES;
    assert!(each <= 80 * 1024, "{each} bytes for each response");
    let mut plain = gateway.client();
    for _ in 0..1_000 {
        assert_eq!(plain.get("/plain").expect("an answer").text(), "plain");
    }
    assert_eq!(clients.len() as u64, RESPONSES);
    eprintln!("{each} bytes for each response");
    drop(clients);
    eventually("what was held is given back", DEADLINE, || {
        gateway.metrics().get("weir_held_content_bytes") == Some(0.0)
    });
}

#[test]
fn the_upstream_is_not_to_blame_while_it_is_not_read() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; 200_000]));
    // The rest takes two pauses of a second each.
    let limit = format!("{{ rate: 512, after: {} }}", 200_000 - 3 * PIECE);
    let gateway = weir(&routes(&limit, "timeout: { connect: 5, send: 0.2, read: 0.2 }", &origin));
    // An origin on a busy machine may be too slow for the time-outs.
    eventually("it is not cut", DEADLINE, || {
        let answer = gateway.client().get("/paced");
        answer.is_ok_and(|answer| (answer.status, answer.body.len()) == (200, 200_000))
    });
}

/// A plugin that sends requests to the upstream by itself is the one that is read slowly.
#[test]
fn no_client_is_to_blame_for_the_rate_of_a_response_that_is_kept() {
    let origin = Origin::serving(|_| Answer::with(200, "Cache-Control: max-age=60\r\n", vec![b'x'; 60_000]));
    let upstream = format!("upstream: {{ nodes: {{ \"{}\": 1 }} }}", origin.addr());
    let gateway = weir(&format!(
        "send_timeout: 1\nroutes:\n  - {{ id: paced, uri: /*, plugins: {{ limit-rate: {{ rate: 8192, after: 28000 }}, proxy-cache: {{ \
         cache_ttl: 60 }} }}, {upstream} }}\n"
    ));
    for kept in ["MISS", "HIT"] {
        let start = Instant::now();
        let answer = gateway.client().get("/a").expect("it is not cut");
        assert_eq!((answer.status, answer.body.len()), (200, 60_000), "{kept}");
        assert_eq!(answer.headers.get("Apisix-Cache-Status"), Some(kept));
        assert!(start.elapsed() >= Duration::from_millis(3_500), "{kept}: {:?}", start.elapsed());
    }
    assert_eq!(origin.requests().len(), 1);
}

/// The request of such a plugin is not cut while the response waits for longer than a client may take nothing.
#[test]
fn a_response_that_is_kept_is_not_cut_while_its_rate_makes_it_wait() {
    // More than all that lies between the upstream and the client has room for, so that the upstream waits, too.
    const LENGTH: usize = 1_000_000;
    let origin = Origin::serving(|_| Answer::with(200, "Cache-Control: max-age=60\r\n", vec![b'x'; LENGTH]));
    let upstream = format!("upstream: {{ nodes: {{ \"{}\": 1 }} }}", origin.addr());
    // Steps of two seconds.
    let gateway = weir(&format!(
        "send_timeout: 1\nroutes:\n  - {{ id: paced, uri: /*, plugins: {{ limit-rate: {{ rate: 256, after: 10000 }}, proxy-cache: {{ \
         cache_ttl: 60 }} }}, {upstream} }}\n"
    ));
    let mut client = downloading(&gateway, 10_000 + PIECE);
    for step in 0..2 {
        client.exact(PIECE as u64).unwrap_or_else(|error| panic!("it is cut before step {step}: {error:?}"));
    }
}

/// A client that sends nothing more is no client that has gone.
#[test]
fn a_client_that_has_closed_its_side_gets_all_of_a_slow_response() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; 4 * PIECE]));
    let gateway = weir(&format!("client_half_close_timeout: 1\n{}", routes("{ rate: 512 }", "", &origin)));
    let mut client = downloading(&gateway, PIECE);
    client.finish_sending();
    assert_eq!(client.until_closed().len(), 3 * PIECE);
}

#[test]
fn paced_content_leaves_memory_to_plugins_that_need_whole_bodies() {
    const RESPONSES: u64 = 40;
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; 200_000]));
    let upstream = format!("upstream: {{ nodes: {{ \"{}\": 1 }} }}", origin.addr());
    let gateway = weir(&format!(
        "worker_processes: 1\nheld_content_max: 1MiB\nheld_content_max_per_client: 1MiB\nroutes:\n  - {{ id: paced, uri: /paced, \
         plugins: {{ limit-rate: {{ rate: 512 }} }}, {upstream} }}\n  - {{ id: whole, uri: /whole, plugins: {{ response-rewrite: {{ \
         filters: [{{ regex: y, replace: z }}] }} }}, {upstream} }}\n"
    ));
    let clients: Vec<Client> = (0..RESPONSES).map(|_| downloading(&gateway, PIECE)).collect();
    let held = gateway.metrics().get("weir_held_content_bytes").expect("a metric");
    assert!((1.0..=262_144.0).contains(&held), "{held} bytes wait");
    let exceeded = gateway.metrics().get("weir_response_rates_exceeded_total").expect("a metric");
    assert!(exceeded >= 1.0, "what had no room to wait is counted");
    let answer = gateway.client().get("/whole").expect("an answer");
    assert_eq!((answer.status, answer.body.len()), (200, 200_000));
    assert_eq!(clients.len() as u64, RESPONSES);
}

#[test]
fn an_upstream_that_falls_silent_still_ends_a_slow_response() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(_) = connection.request() else { return };
        let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbegin");
        connection.wait_gone();
    });
    let gateway = weir(&routes("{ rate: 1000000 }", "timeout: { connect: 5, send: 5, read: 0.2 }", &origin));
    // An origin on a busy machine may be silent from the beginning.
    let mut client = eventually_some("the response begins", DEADLINE, || {
        let mut client = gateway.client();
        client.send("GET /paced HTTP/1.1\r\nHost: t\r\n\r\n");
        (client.response_head("GET").expect("a head").status == 200).then_some(client)
    });
    client.exact(5).expect("what is sent at once");
    assert_eq!(client.until_closed(), b"", "it is cut");
}

#[test]
fn a_change_of_the_file_leaves_a_slow_response_as_it_was() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; 4 * PIECE]));
    let gateway = weir(&routes("{ rate: 512 }", "", &origin));
    let mut client = downloading(&gateway, PIECE);
    gateway.rewrite(&routes("{ rate: 1 }", "", &origin));
    assert_eq!(client.exact(3 * PIECE as u64).expect("the rest, at its old rate").len(), 3 * PIECE);
    assert_eq!(client.get("/plain").expect("the next answer").status, 200);
}

#[test]
fn a_slow_response_is_ended_at_shutdown_if_it_has_time_for_it_and_cut_if_not() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; 4 * PIECE]));
    for (rate, is_whole) in [(512, true), (1, false)] {
        let timeout = if is_whole { 60 } else { 1 };
        let file =
            format!("worker_shutdown_timeout: {timeout}\n{}", routes(&format!("{{ rate: {rate} }}"), "", &origin));
        let mut gateway = weir(&file);
        let mut client = downloading(&gateway, PIECE);
        gateway.signal(Signal::TERM);
        assert_eq!(client.until_closed().len(), if is_whole { 3 * PIECE } else { 0 }, "{rate} bytes in a second");
        assert!(gateway.wait_exit(DEADLINE).success());
    }
}
