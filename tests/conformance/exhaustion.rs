//! R01–R03: slow clients, large heads, large bodies. Timeouts are shortened in the file; the rules are the defaults'.

use std::time::{Duration, Instant};

use weir_testkit::{Client, DEADLINE, Origin, Reading, eventually, eventually_some, scaled};

use crate::harness::{Rig, refusal, routes, weir};

fn rig(settings: &str) -> Rig {
    before(Origin::echo(Reading::Strict), settings)
}

fn before(origin: Origin, settings: &str) -> Rig {
    let gateway = weir().start(&format!("{settings}\n{}", routes(origin.addr())));
    Rig { gateway, origin }
}

/// The connection is closed, after an answer with `status` if there is one.
#[track_caller]
fn given_up(client: &mut Client, status: u16) {
    match client.response() {
        Ok(answer) => {
            assert_eq!(answer.status, status);
            assert!(client.until_closed().is_empty());
        }
        Err(error) => assert!(error.is_gone(), "{error}"),
    }
}

#[test]
fn r01_a_head_must_come_in_time() {
    let rig = rig("client_header_timeout: 1");
    let mut clients: Vec<Client> = (0..scaled(50, 4000)).map(|_| rig.gateway.client()).collect();
    let start = Instant::now();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(["G", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: t\r\nX: "][number % 3]);
    }
    rig.canary("/canary-1").unwrap_or_else(|what| panic!("beside slow clients: {what}"));
    for client in &mut clients {
        given_up(client, 408);
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "before its time: {:?}", start.elapsed());
    rig.canary("/canary-2").unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(rig.origin.targets(), ["/canary-1", "/canary-2"]);
}

#[test]
fn r01_a_trickling_head_buys_no_time() {
    let rig = rig("client_header_timeout: 1");
    let mut client = rig.gateway.client();
    client.set_deadline(Duration::from_millis(100));
    client.send("GET / HTTP/1.1\r\nHost: t\r\n");
    let end = Instant::now() + DEADLINE;
    // Each read waits its deadline out, so this sends about ten bytes a second until the gateway has had enough.
    while client.try_send("X: y\r\n").is_ok() && client.some().is_err() {
        assert!(Instant::now() < end, "still reading a head after {DEADLINE:?}");
    }
    assert!(rig.origin.raw_text().is_empty());
}

#[test]
fn r01_a_body_must_come_at_some_rate() {
    let rig = rig("client_body_grace: 1\nclient_body_min_rate: 240");
    for head in ["Content-Length: 1000\r\n\r\nsome", "Transfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n"] {
        let mut client = rig.gateway.client();
        client.send(format!("POST /slow HTTP/1.1\r\nHost: t\r\n{head}"));
        rig.canary("/canary").unwrap_or_else(|what| panic!("beside a slow body: {what}"));
        given_up(&mut client, 408);
    }
    assert!(rig.origin.targets().iter().all(|target| target == "/canary"));
    eventually("the half request's connection is closed", DEADLINE, || rig.origin.open_connections() <= 1);
}

#[test]
fn r01_a_response_must_be_taken() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        while let Ok(request) = connection.request() {
            let size: usize = if request.target == "/large" { 256 << 20 } else { 0 };
            let body = format!("GET {} 0", request.target);
            let length = if size > 0 { size } else { body.len() };
            let mut sent = connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
            match size {
                0 => sent = sent.and_then(|()| connection.send(&body)),
                _ => sent = sent.and_then(|()| (0..size >> 20).try_for_each(|_| connection.send(vec![b'x'; 1 << 20]))),
            }
            if sent.is_err() {
                return;
            }
        }
    });
    let rig = before(origin, "send_timeout: 1");
    let mut clients: Vec<Client> =
        (0..scaled(10, 500)).map(|_| Client::connect_narrow(rig.gateway.addr()).expect("it listens")).collect();
    for client in &mut clients {
        client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    eventually("all downloads run", DEADLINE, || rig.origin.requests().len() == clients.len());
    rig.canary("/canary").unwrap_or_else(|what| panic!("beside clients that do not read: {what}"));
    eventually("clients that do not read are dropped", DEADLINE, || rig.origin.open_connections() <= 1);
}

#[test]
fn r01_an_idle_connection_ends() {
    let rig = rig("keepalive_timeout: 1");
    // On a busy machine it may be over before the request is sent.
    let mut client = eventually_some("an answer", DEADLINE, || {
        let mut client = rig.gateway.client();
        client.get("/a").ok().map(|answer| {
            assert_eq!(answer.status, 200);
            client
        })
    });
    assert!(client.until_closed().is_empty());
    assert!(rig.gateway.client().until_closed().is_empty(), "a connection that never said a word");
}

#[test]
fn r02_heads_have_limits() {
    let rig = rig("");
    let long = |count: usize| "y".repeat(count);
    for (bytes, statuses) in [
        (format!("GET / HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", long(100_000)), &[431][..]),
        (format!("GET / HTTP/1.1\r\nHost: t\r\n{}: y\r\n\r\n", long(100_000)), &[431]),
        (format!("GET / HTTP/1.1\r\nHost: t\r\n{}\r\n", "X: y\r\n".repeat(10_000)), &[431]),
        (format!("GET / HTTP/1.1\r\nHost: t\r\n{}\r\n", "X: y\r\n".repeat(101)), &[431]),
        (format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", long(100_000)), &[400, 431]),
        (format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", long(1 << 20)), &[414]),
        (format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", long(17 << 10)), &[414]),
        (format!("GET /?{} HTTP/1.1\r\nHost: t\r\n\r\n", long(17 << 10)), &[414]),
        (format!("{} / HTTP/1.1\r\nHost: t\r\n\r\n", long(64 << 10)), &[400, 414, 431, 501]),
        ("\r\n".repeat(50_000), &[400]),
        (long(1 << 20), &[400, 414, 431, 501]),
    ] {
        let mut client = rig.gateway.client();
        let _ = client.try_send(&bytes);
        let what = format!("{:?}…", &bytes[..40]);
        refusal(&mut client, bytes.as_bytes(), statuses).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(rig.origin.raw_text().is_empty(), "{what} went upstream");
    }
    let near = format!("GET /{} HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", long(8 << 10), long(8 << 10));
    assert_eq!(rig.gateway.client().ask(near).expect("an answer").status, 200);
}

#[test]
fn r02_limits_can_be_set() {
    let rig = rig("client_max_header_size: 4096\nclient_max_header_count: 10\nclient_max_uri_size: 256");
    for (bytes, status) in [
        (format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "y".repeat(300)), 414),
        (format!("GET / HTTP/1.1\r\nHost: t\r\n{}\r\n", "X: y\r\n".repeat(10)), 431),
        (format!("GET / HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "y".repeat(5000)), 431),
    ] {
        let mut client = rig.gateway.client();
        client.send(&bytes);
        refusal(&mut client, bytes.as_bytes(), &[status]).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(rig.origin.raw_text().is_empty());
    rig.canary("/canary").unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn r03_a_body_announced_too_large_is_not_read() {
    let rig = rig("client_max_body_size: 1MiB");
    for length in ["1048577", "1099511627776", "18446744073709551615"] {
        let mut client = rig.gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"));
        refusal(&mut client, b"POST", &[413]).unwrap_or_else(|error| panic!("{length}: {error}"));
        let mut client = rig.gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"));
        assert_eq!(client.next_head().expect("an answer").status, 413, "asked to go on");
    }
    assert!(rig.origin.raw_text().is_empty());
    let body = "x".repeat(1 << 20);
    let whole = format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(rig.gateway.client().ask(whole).expect("an answer").status, 200);
}

#[test]
fn r03_an_endless_body_is_counted_as_it_flows() {
    let rig = rig("client_max_body_size: 1MiB");
    let mut client = rig.gateway.client();
    client.send("POST /endless HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let sent = (0..1000).take_while(|_| client.try_send(&chunk).is_ok()).count();
    assert!(sent < 1000, "64 MB were taken");
    given_up(&mut client, 413);
    rig.canary("/canary").unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(rig.origin.targets(), ["/canary"], "the endless request must not be complete upstream");
}

#[test]
fn r03_a_streamed_body_needs_no_memory() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        while let Ok(head) = connection.head() {
            let weir_testkit::BodyFraming::Length(mut left) = head.framing else { return };
            while left > 0 {
                let Ok(some) = connection.some() else { return };
                left = left.saturating_sub(some.len() as u64);
            }
            if connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    });
    let rig = before(origin, "");
    let size = scaled(64 << 20, 1 << 30);
    let mut client = rig.gateway.client();
    let before = rig.gateway.rss();
    client.send(format!("POST /large HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n"));
    let block = vec![b'x'; 1 << 20];
    for _ in 0..size >> 20 {
        client.send(&block);
    }
    assert_eq!(client.response().expect("an answer").status, 200);
    let grown = rig.gateway.rss().saturating_sub(before);
    assert!(grown <= 8 << 20, "{size} bytes took {grown} bytes of memory");
}
