//! H04, H05, H06: what little makes the gateway hold much.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_testkit::{DEADLINE, Origin, Reading, eventually, scaled};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, End, Frames, HEADERS, INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR, PING, REFUSED_STREAM, SETTINGS, WHOLE, WINDOW_UPDATE, frame, get, headers, remembered, request,
    section,
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

/// A connection that has been idle for a second forgets the fields that it would have referred to, and says so before the next
/// ones (RFC 7541 §4.2).
#[test]
fn an_idle_connection_forgets_fields_and_says_so() {
    const TABLE_OF_NOTHING_AND_BACK: [u8; 4] = [0x20, 0x3f, 0xe1, 0x1f];
    let rig = Rig::echo(Reading::Strict);
    let connected = |_| {
        let mut client = Frames::connect(&rig.gateway);
        (0..3).for_each(|_| assert!(matches!(client.ask("/a"), End::Answered(200, _))));
        client
    };
    // Asking ends the rest of a connection. One that was asked too early has its next turn after all the others, so that the
    // time between two turns grows with their number, and does not end with it.
    let mut idle = (0..500).map(connected).collect::<VecDeque<_>>();
    eventually("one has been idle for long enough", DEADLINE, || {
        let mut client = idle.pop_front().expect("all come back");
        let stream = client.stream();
        client.send(headers(stream, WHOLE, &get("/a", &[])));
        let head = std::iter::from_fn(|| client.receive()).find(|frame| frame.kind == HEADERS);
        let says_so = head.expect("an answer").payload.starts_with(&TABLE_OF_NOTHING_AND_BACK);
        if says_so {
            assert!(matches!(client.ask("/a"), End::Answered(200, _)));
        }
        idle.push_back(client);
        says_so
    });
}

/// What a hundred streams of one connection that wait have come to.
struct Waiting {
    /// Those that reached the origin; the others were refused.
    served: usize,
    /// Bytes that were sent for them.
    wire: u64,
    /// Bytes by which the gateway has grown.
    grown: u64,
}

/// A hundred requests whose frames `head` makes, for responses that the client takes byte by byte.
fn hundred(head: impl Fn(u32) -> Vec<u8>) -> Waiting {
    let (origin, sent) = endless();
    let rig = Rig::before(origin);
    rig.canary("/canary-1").unwrap_or_else(|what| panic!("{what}"));
    // What a first connection needs, whatever is asked on it.
    assert!(matches!(Frames::connect(&rig.gateway).ask("/canary-2"), End::Answered(200, _)));
    let before = rig.gateway.rss();
    let mut client = Frames::connect_with(&rig.gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    let mut wire = 0;
    for number in 0..100 {
        let frames = head(2 * number + 1);
        wire += frames.len() as u64;
        assert!(client.send(frames), "it is taken");
    }
    let count = |metric, labels: &[&str]| rig.gateway.metrics().sum(metric, labels) as usize;
    let refused = || count("weir_http_errors_total", &["cause=\"too_many_heads\""]);
    // Who is refused for a head is not a request; who is refused for trailers was one already.
    eventually("all are there", DEADLINE, || {
        let requests = count("weir_http_requests_total", &[]) - 2;
        requests == 100 || requests + refused() == 100
    });
    let busy = || count("weir_upstream_connections", &["state=\"busy\""]);
    eventually("the origin has read their heads", DEADLINE, || rig.origin.requests().len() >= busy() + 2);
    settled(&sent);
    if refused() > 0 {
        // What has gone upstream already is not to be sent again.
        assert!(matches!(client.end(199), End::Reset(REFUSED_STREAM | INTERNAL_ERROR)));
    }
    for stream in 0..100 {
        client.send(frame(WINDOW_UPDATE, 0, 2 * stream + 1, [0, 0, 0, 1]));
    }
    settled(&sent);
    let grown = rig.gateway.rss().saturating_sub(before);
    let served = rig.origin.requests().len() - 2;
    rig.canary("/canary-3").unwrap_or_else(|what| panic!("{what}"));
    drop(client);
    eventually("they are given up", DEADLINE, || rig.origin.open_connections() == 0);
    eventually("there is room again", DEADLINE, || {
        matches!(Frames::connect(&rig.gateway).ask("/canary-4"), End::Answered(200, _))
    });
    Waiting { served, wire, grown }
}

#[test]
fn h04_large_heads_of_streams_that_wait() {
    let begin = section(&get("/attack", &[]));
    let small = hundred(|stream| frame(HEADERS, WHOLE, stream, &begin));
    // Entry 62 is a field of 4,000 bytes, which a byte repeats.
    let first = [&begin[..], &remembered("x", &"y".repeat(3_900))].concat();
    let amplified = hundred(|stream| match stream {
        1 => frame(HEADERS, WHOLE, 1, &first),
        _ => frame(HEADERS, WHOLE, stream, [&begin[..], &[0x80 | 62; 7]].concat()),
    });
    // Static entry 32 is a cookie without a value: a field from one byte, and more of them than a head may have.
    let crumbs = hundred(|stream| frame(HEADERS, WHOLE, stream, [&begin[..], &[0x80 | 32; 800]].concat()));
    let long = section(&[("x", &"y".repeat(14_000)), ("z", &"y".repeat(14_000))]);
    let plain = hundred(|stream| {
        let (one, two) = long.split_at(15_000);
        [frame(HEADERS, END_STREAM, stream, [&begin[..], one].concat()), frame(CONTINUATION, END_HEADERS, stream, two)]
            .concat()
    });
    // The same where few look: behind the content.
    let post = section(&request("POST", "/attack", &[]));
    let trailers = hundred(|stream| {
        let begin = frame(HEADERS, END_HEADERS, stream, &post);
        let entry = if stream == 1 { remembered("x", &"y".repeat(3_900)) } else { vec![0x80 | 62; 7] };
        [begin, frame(HEADERS, WHOLE, stream, entry)].concat()
    });
    let all =
        [("small", &small), ("amplified", &amplified), ("crumbs", &crumbs), ("plain", &plain), ("trailers", &trailers)];
    for (what, waiting) in all {
        let Waiting { served, wire, grown } = waiting;
        println!("{what}: {served} served, {wire} bytes received, {grown} bytes of memory");
        assert!(*grown <= 4 * MIB, "{what}: {grown} bytes");
    }
    assert_eq!(small.served, 100);
    // What a head of few bytes brings along is limited; what many bytes bring is, too, but not as soon.
    assert!((10..30).contains(&amplified.served), "{} were served", amplified.served);
    assert!((30..45).contains(&plain.served), "{} were served", plain.served);
    assert!((10..30).contains(&trailers.served), "{} were served", trailers.served);
    for (what, waiting) in all {
        // The allocator takes memory by pages of 64 KiB.
        let most = (20 * waiting.wire).max(MIB / 2) + 64 * 1024;
        let heads = waiting.grown.saturating_sub(small.grown);
        assert!(heads <= most, "{what}: {} bytes received, and {heads} taken", waiting.wire);
    }
}

/// `count` responses without end on one connection, whose client takes nothing of them, and then little.
fn responses_that_nobody_takes(count: u32) {
    let (origin, sent) = endless();
    let gateway = weir().start(&format!("send_timeout: 2\n{}", routes(origin.addr())));
    let rig = Rig { gateway, origin };
    rig.canary("/canary-1").unwrap_or_else(|what| panic!("{what}"));
    let before = rig.gateway.rss();
    let mut client = Frames::connect_with(&rig.gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    for number in 0..count {
        client.send(headers(2 * number + 1, WHOLE, &get("/large", &[])));
    }
    eventually("all of them run", DEADLINE, || rig.origin.requests().len() == 1 + count as usize);
    let held = settled(&sent);
    // CVE-2019-9511: byte by byte they are taken, and no more than that is asked of the origin.
    for _ in 0..20 {
        for number in 0..count {
            client.send(frame(WINDOW_UPDATE, 0, 2 * number + 1, [0, 0, 0, 1]));
        }
    }
    let taken = settled(&sent) - held;
    assert!(taken <= MIB, "{} bytes were let through, and {taken} were taken from the origin", 20 * count);
    let grown = rig.gateway.rss().saturating_sub(before);
    // Little is held for each, half a megabyte for all, and little more for those that came later.
    let received = rig.gateway.metrics().sum("weir_upstream_bytes_total", &["direction=\"received\""]);
    let most = (u64::from(count) * (64 << 10)).min(MIB);
    assert!((1.0..=most as f64).contains(&received), "{received} bytes of {count} responses wait here");
    assert!(grown <= 4 * MIB, "{count} responses take {grown} bytes");
    rig.canary("/canary-2").unwrap_or_else(|what| panic!("beside them: {what}"));
    eventually("they are given up", DEADLINE, || rig.origin.open_connections() <= 1);
}

#[test]
fn h06_a_response_that_nobody_takes() {
    responses_that_nobody_takes(1);
}

#[test]
fn h06_responses_that_nobody_takes() {
    responses_that_nobody_takes(100);
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

#[test]
fn h05_what_nobody_takes_is_queued_to_a_bound() {
    for (what, kind, payload) in [("pings", PING, &[7; 8][..]), ("settings", SETTINGS, &[])] {
        let (origin, sent) = endless();
        let rig = Rig::before(origin);
        rig.canary("/canary-1").unwrap_or_else(|what| panic!("{what}"));
        // A response that nobody reads fills the sockets: from there on, what is to be answered stays in the gateway.
        let mut attacker = Frames::connect_with(&rig.gateway, &[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
        attacker.send(frame(WINDOW_UPDATE, 0, 0, 0x7fff_0000_u32.to_be_bytes()));
        let stream = attacker.stream();
        attacker.send(headers(stream, WHOLE, &get("/attack", &[])));
        assert!(settled(&sent) > 0);
        let before = rig.gateway.rss();
        let mut asked = 0;
        while asked < scaled(100_000, 1_000_000) && attacker.send(frame(kind, 0, 0, payload)) {
            asked += 1;
        }
        rig.canary("/canary-2").unwrap_or_else(|what| panic!("{what}"));
        let grown = rig.gateway.rss().saturating_sub(before);
        assert!(grown <= MIB, "{what}: {grown} bytes");
        let farewell = attacker.until_closed();
        assert!(matches!(farewell.code, None | Some(ENHANCE_YOUR_CALM)), "{what}: {farewell:?}");
        // How many answers wait cannot be counted from here, as sockets may grow: one of those that came is the answer to the
        // settings the connection began with.
        assert!(asked + 2 >= farewell.answers, "{what}: {farewell:?} of {asked}");
    }
}
