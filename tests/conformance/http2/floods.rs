//! H01–H03, H05, H14: frames that make work and ask for nothing. Such a connection is told to calm down and ends; what
//! it has cost is bounded, and other clients do not notice.

use weir_testkit::{DEADLINE, Gate, Origin, Reading, eventually, scaled};

use super::frames::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Farewell, Frames, HEADERS, PING, PRIORITY,
    PROTOCOL_ERROR, SETTINGS, WHOLE, WINDOW_UPDATE, frame, get, headers, remembered, request, reset, section,
};
use crate::harness::Rig;

/// What a connection under attack may add to the gateway's resident memory, with the pages a first connection touches.
const LITTLE: u64 = 8 << 20;

/// What is sent over and over: made of a number.
type Piece<'a> = &'a dyn Fn(u32) -> Vec<u8>;

/// Sends what `piece` makes of each stream's number until the gateway takes no more, and reads what it says to that.
#[track_caller]
fn flood(rig: &Rig, begin: &[u8], piece: impl FnMut(u32) -> Vec<u8>) -> Farewell {
    flood_within(rig, LITTLE, begin, piece)
}

/// The same, and the gateway's memory grows by `most` bytes and no more.
#[track_caller]
fn flood_within(rig: &Rig, most: u64, begin: &[u8], mut piece: impl FnMut(u32) -> Vec<u8>) -> Farewell {
    rig.canary("/before").unwrap_or_else(|what| panic!("{what}"));
    let before = rig.gateway.rss();
    let mut attacker = Frames::connect(&rig.gateway);
    attacker.send(begin);
    let mut taken = 0;
    while taken < scaled(100_000, 1_000_000) && attacker.send(piece(taken as u32)) {
        taken += 1;
    }
    let farewell = attacker.until_closed();
    let grown = rig.gateway.rss().saturating_sub(before);
    assert!(grown <= most, "it took {grown} bytes of memory");
    rig.canary("/after").unwrap_or_else(|what| panic!("beside it: {what}"));
    farewell
}

fn odd(number: u32) -> u32 {
    2 * number + 1
}

/// How many streams the gateway has looked at.
fn streams(farewell: &Farewell) -> u32 {
    farewell.last_stream.div_ceil(2)
}

#[test]
fn h01_streams_opened_and_reset() {
    let rig = Rig::echo(Reading::Strict);
    let farewell = flood(&rig, b"", |number| {
        let stream = odd(number);
        [headers(stream, WHOLE, &get("/attack", &[])), reset(stream, CANCEL)].concat()
    });
    assert_eq!(farewell.code, Some(ENHANCE_YOUR_CALM));
    assert!(streams(&farewell) <= 1_000, "{farewell:?}");
    assert!(rig.origin.requests().len() <= 202, "{} requests upstream", rig.origin.requests().len());
    assert_eq!(rig.gateway.metrics().sum("weir_http_errors_total", &["cause=\"flood\""]), 1.0);
}

#[test]
fn h02_streams_that_the_gateway_is_made_to_reset() {
    let half_closed = |stream| headers(stream, WHOLE, &get("/attack", &[]));
    let post = |stream, fields: &[(&str, &str)]| headers(stream, END_HEADERS, &request("POST", "/attack", fields));
    let variants: [(&str, Piece); 8] = [
        ("a window opened by nothing", &|stream| frame(WINDOW_UPDATE, 0, stream, [0; 4])),
        ("a window opened too far", &|stream| frame(WINDOW_UPDATE, 0, stream, [0x7f, 0xff, 0xff, 0xff])),
        ("content after the end", &|stream| frame(DATA, END_STREAM, stream, b"more")),
        ("a head after the end", &|stream| headers(stream, WHOLE, &[("x", "y")])),
        ("a stream that depends on itself", &|stream| {
            frame(PRIORITY, 0, stream, [&stream.to_be_bytes()[..], &[0]].concat())
        }),
        ("a priority of a wrong length", &|stream| frame(PRIORITY, 0, stream, [0; 4])),
        ("more content than announced", &|stream| {
            [post(stream, &[("content-length", "1")]), frame(DATA, 0, stream, b"more")].concat()
        }),
        ("a malformed head", &|stream| headers(stream, WHOLE, &get("/attack", &[("connection", "close")]))),
    ];
    for (what, makes_reset) in variants {
        let rig = Rig::echo(Reading::Strict);
        let opens = matches!(what, "more content than announced" | "a malformed head");
        let farewell = flood(&rig, b"", |number| {
            let stream = odd(number);
            let opening = if opens { Vec::new() } else { half_closed(stream) };
            [opening, makes_reset(stream)].concat()
        });
        // Some are errors of the connection; others are counted like resets by the client.
        match farewell.code {
            Some(PROTOCOL_ERROR) => assert!(streams(&farewell) <= 1, "{what}: {farewell:?}"),
            code => assert_eq!(code, Some(ENHANCE_YOUR_CALM), "{what}: {farewell:?}"),
        }
        assert!(streams(&farewell) <= 1_000, "{what}: {farewell:?}");
        assert!(rig.origin.requests().len() <= 202, "{what}: {} requests", rig.origin.requests().len());
    }
}

#[test]
fn h02_nobody_works_for_streams_that_the_gateway_has_reset() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        while let Ok(request) = connection.request() {
            if request.target == "/held" {
                held.wait();
            }
            let body = format!("GET {} 0", request.target);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            if connection.send(head + &body).is_err() {
                return;
            }
        }
    });
    let rig = Rig::before(origin);
    let mut attacker = Frames::connect(&rig.gateway);
    for stream in (0..50).map(odd) {
        attacker.send(headers(stream, WHOLE, &get("/held", &[])));
    }
    gate.wait_arrived(50);
    for stream in (0..50).map(odd) {
        attacker.send(frame(WINDOW_UPDATE, 0, stream, [0; 4]));
    }
    rig.canary("/beside").unwrap_or_else(|what| panic!("beside it: {what}"));
    let busy = || rig.gateway.metrics().sum("weir_upstream_connections", &["state=\"busy\""]);
    eventually("their upstream connections are closed", DEADLINE, || busy() == 0.0);
    gate.open();
}

#[test]
fn h03_heads_that_never_end() {
    let rig = Rig::echo(Reading::Strict);
    let open = frame(HEADERS, END_STREAM, 1, section(&get("/attack", &[])));
    let junk = section(&[("x", "y")]);
    let large = section(&[("x", &"y".repeat(16_300))]);
    // Huffman: thirty ones are EOS, which must not stand in a string; fewer are padding that is too long.
    let huffman = [&[0, 1, b'x', 0x80 | 100][..], &[0xff; 100]].concat();
    for (what, payload) in [("nothing", &b""[..]), ("fields", &junk), ("large fields", &large), ("junk", &huffman)] {
        let farewell = flood(&rig, &open, |_| frame(CONTINUATION, 0, 1, payload));
        assert!(farewell.code.is_some_and(|code| code != 0), "{what}: {farewell:?}");
        // The first has touched the pages that any connection needs.
        flood_within(&rig, 1 << 20, &open, |_| frame(CONTINUATION, 0, 1, payload));
        // It does not wait for more than 16 frames, or 96 KiB, to come to that.
        let most = if what == "large fields" { 6 } else { 16 };
        let mut attacker = Frames::connect(&rig.gateway);
        attacker.send([&open[..], &frame(CONTINUATION, 0, 1, payload).repeat(most)].concat());
        assert!(attacker.until_closed().code.is_some(), "{what}: still waiting");
    }
    assert!(!rig.origin.targets().iter().any(|target| target == "/attack"));
}

#[test]
fn h05_frames_that_bring_nothing() {
    let upload = headers(1, END_HEADERS, &request("POST", "/attack", &[]));
    let floods: [(&str, &[u8], Piece); 9] = [
        ("pings", b"", &|_| frame(PING, 0, 0, [7; 8])),
        ("settings", b"", &|_| frame(SETTINGS, 0, 0, b"")),
        ("settings that say something", b"", &|number| {
            frame(SETTINGS, 0, 0, [0, 4, 0, 0, (number >> 8) as u8, number as u8])
        }),
        ("empty content", &upload, &|_| frame(DATA, 0, 1, b"")),
        ("content that is padding", &upload, &|_| frame(DATA, 0x8, 1, [3, 0, 0, 0])),
        ("empty heads", b"", &|number| frame(HEADERS, WHOLE, odd(number), b"")),
        ("priorities", b"", &|_| frame(PRIORITY, 0, 1, [0, 0, 0, 3, 7])),
        ("windows opened byte by byte", b"", &|_| frame(WINDOW_UPDATE, 0, 0, [0, 0, 0, 1])),
        ("unknown frames", b"", &|_| frame(0xbe, 0, 0, b"?")),
    ];
    for (what, begin, piece) in floods {
        let rig = Rig::echo(Reading::Strict);
        let farewell = flood(&rig, begin, piece);
        assert_eq!(farewell.code, Some(ENHANCE_YOUR_CALM), "{what}: {farewell:?}");
        // The credit of a new connection is good for 3,333; how much answers and time earn depends on who is quicker.
        assert!(farewell.answers <= 5_000, "{what}: {farewell:?}");
    }
}

#[test]
fn h05_floods_do_not_keep_a_processor_busy() {
    let rig = Rig::echo(Reading::Strict);
    let mut attacker = Frames::connect(&rig.gateway);
    // Nobody reads the answers, so the last word may not leave.
    while attacker.send(frame(PING, 0, 0, [7; 8]).repeat(1_000)) {}
    let before = rig.gateway.cpu_ms();
    for _ in 0..200 {
        rig.canary("/beside").unwrap_or_else(|what| panic!("beside it: {what}"));
    }
    let spent = rig.gateway.cpu_ms() - before;
    assert!(spent < 1_000, "two hundred requests took {spent} ms of processor");
}

#[test]
fn h14_content_after_a_reset() {
    let rig = Rig::echo(Reading::Strict);
    let farewell = flood(&rig, b"", |number| {
        let stream = odd(number);
        let post = headers(stream, END_HEADERS, &request("POST", "/attack", &[]));
        [post, reset(stream, CANCEL), frame(DATA, END_STREAM, stream, b"zombie")].concat()
    });
    assert_eq!(farewell.code, Some(ENHANCE_YOUR_CALM), "{farewell:?}");
    assert!(streams(&farewell) <= 1_000, "{farewell:?}");
    assert!(rig.origin.requests().iter().all(|request| request.target != "/attack"), "none of them was complete");
}

#[test]
fn h04_many_fields_from_few_bytes() {
    let rig = Rig::echo(Reading::Strict);
    // One entry of 4,000 bytes that a byte repeats, and cookies of a byte each.
    let entry = remembered("x", &"y".repeat(3_900));
    let repeated = [&section(&get("/attack", &[]))[..], &entry, &[0x80 | 62; 12_000]].concat();
    let crumbs = [&section(&get("/attack", &[]))[..], &[0x80 | 32; 16_000]].concat();
    for (what, bomb) in [("an entry", &repeated), ("crumbs", &crumbs)] {
        let farewell = flood(&rig, b"", |number| frame(HEADERS, WHOLE, odd(number), bomb));
        assert_eq!(farewell.code, Some(ENHANCE_YOUR_CALM), "{what}: {farewell:?}");
        assert!(streams(&farewell) <= 1, "{what}: {farewell:?}");
    }
    assert!(!rig.origin.targets().iter().any(|target| target == "/attack"));
}
