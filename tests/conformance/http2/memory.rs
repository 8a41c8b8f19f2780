//! H04, H06: what little makes the gateway hold much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_testkit::{DEADLINE, Origin, Reading, eventually};

use super::frames::{
    DATA, END_HEADERS, End, Frames, HEADERS, INITIAL_WINDOW_SIZE, WHOLE, WINDOW_UPDATE, frame, get, headers,
    remembered, request, section,
};
use crate::harness::{Rig, routes, weir};

const MIB: u64 = 1 << 20;

/// An origin whose answers never end, and how much of them was sent.
fn endless() -> (Origin, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        let Ok(request) = connection.request() else { return };
        if request.target.starts_with("/canary") {
            let body = format!("GET {} 0", request.target);
            let _ = connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
            return;
        }
        let mut taken = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
        while taken.is_ok() {
            counted.fetch_add(1 << 14, Ordering::Relaxed);
            taken = connection.send([b'x'; 1 << 14]);
        }
    });
    (origin, sent)
}

/// Waits until the number stays where it is.
fn settled(number: &AtomicU64) -> u64 {
    let (mut still, mut last) = (0, u64::MAX);
    eventually("the origin waits", DEADLINE, || {
        let now = number.load(Ordering::Relaxed);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        still == 50
    });
    last
}

#[test]
fn h04_fields_are_counted() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = Frames::connect(&rig.gateway);
    for (count, status) in [(90, 200), (150, 431), (800, 431)] {
        let crumbs = [&section(&get("/crumbs", &[]))[..], &vec![0x80 | 32; count]].concat();
        let stream = client.stream();
        client.send(frame(HEADERS, WHOLE, stream, &crumbs));
        match client.end(stream) {
            End::Answered(200, _) => assert_eq!(status, 200, "{count} crumbs"),
            End::Answered(0, _) => assert_eq!(status, 431, "{count} crumbs"),
            end => panic!("{count} crumbs: {end:?}"),
        }
    }
    assert_eq!(rig.origin.targets(), ["/crumbs"]);
}

#[test]
fn h04_large_heads_of_streams_that_wait() {
    let (origin, _) = endless();
    let rig = Rig { gateway: weir().start(&routes(origin.addr())), origin };
    rig.canary("/canary-1").unwrap_or_else(|what| panic!("{what}"));
    let before = rig.gateway.rss();
    let mut client = Frames::connect_with(&rig.gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    let first = [&section(&get("/attack", &[]))[..], &remembered("x", &"y".repeat(3_900))].concat();
    client.send(frame(HEADERS, WHOLE, 1, &first));
    for number in 1..100 {
        let head = [&section(&get("/attack", &[]))[..], &[0x80 | 62; 7]].concat();
        client.send(frame(HEADERS, WHOLE, 2 * number + 1, &head));
    }
    eventually("all of them wait", DEADLINE, || rig.origin.requests().len() == 101);
    for stream in 0..100 {
        client.send(frame(WINDOW_UPDATE, 0, 2 * stream + 1, [0, 0, 0, 1]));
    }
    let grown = rig.gateway.rss().saturating_sub(before);
    // 32 KiB each, here and on their way to the origin, and what the allocator keeps beside.
    assert!(grown <= 12 * MIB, "a hundred such requests take {grown} bytes");
    rig.canary("/canary-2").unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn h06_responses_that_nobody_takes() {
    let (origin, sent) = endless();
    let gateway = weir().start(&format!("send_timeout: 2\n{}", routes(origin.addr())));
    let rig = Rig { gateway, origin };
    rig.canary("/canary-1").unwrap_or_else(|what| panic!("{what}"));
    let before = rig.gateway.rss();
    let mut client = Frames::connect_with(&rig.gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    for number in 0..100 {
        client.send(headers(2 * number + 1, WHOLE, &get("/large", &[])));
    }
    eventually("all of them run", DEADLINE, || rig.origin.requests().len() == 101);
    let held = settled(&sent);
    // CVE-2019-9511: byte by byte they are taken, and no more than that is asked of the origin.
    for _ in 0..20 {
        for number in 0..100 {
            client.send(frame(WINDOW_UPDATE, 0, 2 * number + 1, [0, 0, 0, 1]));
        }
    }
    let taken = settled(&sent) - held;
    assert!(taken <= MIB, "two thousand bytes were let through, and {taken} were taken from the origin");
    let grown = rig.gateway.rss().saturating_sub(before);
    // Half a megabyte, little for each of those that came later, and what an exchange is.
    let received = rig.gateway.metrics().sum("weir_upstream_bytes_total", &["direction=\"received\""]);
    assert!((1.0..=MIB as f64).contains(&received), "{received} bytes of a hundred responses wait here");
    assert!(grown <= 6 * MIB, "a hundred responses take {grown} bytes");
    rig.canary("/canary-2").unwrap_or_else(|what| panic!("beside them: {what}"));
    eventually("they are given up", DEADLINE, || rig.origin.open_connections() <= 1);
}

#[test]
fn h06_content_that_no_upstream_takes() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        // Only heads are read: content stays where it is.
        while let Ok(request) = connection.head() {
            if request.method == "POST" {
                connection.record(&request);
                std::thread::park_timeout(DEADLINE);
                return;
            }
            let body = format!("GET {} 0", request.target);
            let _ = connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
    });
    let rig = Rig::before(origin);
    rig.canary("/canary-1").unwrap_or_else(|what| panic!("{what}"));
    let before = rig.gateway.rss();
    let mut client = Frames::connect(&rig.gateway);
    let block = vec![b'x'; 1 << 14];
    for number in 0..100 {
        client.send(headers(2 * number + 1, END_HEADERS, &request("POST", "/upload", &[])));
    }
    eventually("all of them run", DEADLINE, || rig.origin.requests().len() == 100);
    // All that the windows allow: 256 KiB for a stream, and 1 MiB for the connection.
    assert!(client.opened() > 900_000, "the connection's window");
    for number in 0..60 {
        client.send(frame(DATA, 0, 2 * number + 1, &block));
    }
    let grown = rig.gateway.rss().saturating_sub(before);
    assert!(grown <= 4 * MIB, "uploads that stand take {grown} bytes");
    rig.canary("/canary-2").unwrap_or_else(|what| panic!("beside them: {what}"));
}
