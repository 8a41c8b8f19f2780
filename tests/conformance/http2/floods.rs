//! H01–H03, H05, H14: frames that make work and ask for nothing. Such a connection is told to calm down and ends; what
//! it has cost is bounded, and other clients do not notice.

use std::time::Instant;

use weir_testkit::{Client, DEADLINE, Gate, Origin, Reading, eventually, scaled};

use super::frames::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Farewell, Frames, HEADERS, PING, PRIORITY,
    PROTOCOL_ERROR, SETTINGS, WHOLE, WINDOW_UPDATE, frame, get, headers, remembered, request, reset, section,
};
use crate::harness::{Rig, weir};

/// What a connection under attack may add to the gateway's resident memory, with the pages a first connection touches.
const LITTLE: u64 = 4 << 20;

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
    assert!(rig.origin.requests().len() <= 202, "{} requests upstream, two of others", rig.origin.requests().len());
    assert_eq!(rig.gateway.metrics().sum("weir_http_errors_total", &["cause=\"flood\""]), 1.0);
}

/// The slowest of a hundred requests of another client, of five hundred: in microseconds.
fn slowest_us(client: &mut Client) -> u64 {
    let mut times: Vec<u64> = (0..500)
        .map(|_| {
            let since = Instant::now();
            assert_eq!(client.get("/other").expect("an answer").status, 200);
            since.elapsed().as_micros() as u64
        })
        .collect();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// The middle of some numbers.
fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

#[test]
fn h01_others_wait_no_longer() {
    let rig = Rig::echo(Reading::Strict);
    let attack: Vec<u8> = (0..100_000)
        .flat_map(|number| [headers(odd(number), WHOLE, &get("/attack", &[])), reset(odd(number), CANCEL)].concat())
        .collect();
    let mut client = rig.gateway.client();
    slowest_us(&mut client);
    // In turns, as the machine has other things to do as well; a few times, if it has many.
    let mut seen = Vec::new();
    let is_fine = (0..5).any(|_| {
        let (mut quiet, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            quiet.push(slowest_us(&mut client));
            let mut attacker = Frames::connect(&rig.gateway);
            std::thread::scope(|scope| {
                let flood = scope.spawn(|| {
                    attacker.send(&attack);
                    attacker.until_closed()
                });
                beside.push(slowest_us(&mut client));
                assert!(flood.join().expect("it ends").code.is_none_or(|code| code == ENHANCE_YOUR_CALM));
            });
        }
        let (quiet, beside) = (median(quiet), median(beside));
        println!("99 of 100 requests within {quiet} us, and within {beside} us beside a flood");
        seen.push((quiet, beside));
        beside < 2 * quiet
    });
    assert!(is_fine, "microseconds without and with a flood: {seen:?}");
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
        // It does not wait for more than 16 frames, or 64 KiB.
        let mut attacker = Frames::connect(&rig.gateway);
        attacker.send([&open[..], &frame(CONTINUATION, 0, 1, payload).repeat(16)].concat());
        assert!(attacker.until_closed().code.is_some(), "{what}: still waiting");
    }
    let most = large.len() * (65_536 / large.len());
    assert!(open.len() + most <= 65_536, "the last of them is one too many");
    let mut attacker = Frames::connect(&rig.gateway);
    let fifth = &frame(CONTINUATION, 0, 1, &large)[..9];
    attacker.send([&open[..], &frame(CONTINUATION, 0, 1, &large).repeat(most / large.len()), fifth].concat());
    assert_eq!(attacker.until_closed().code, Some(ENHANCE_YOUR_CALM), "64 KiB and nothing of the rest");
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
        // The credit of a new connection is good for a thousand; answers that are taken earn some, and time does.
        assert!(farewell.answers <= 1_400, "{what}: {farewell:?}");
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
fn h14_no_plugin_sees_a_stream_that_was_reset() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!(
        "routes:\n- uri: /attack\n  plugins: {{ limit-count: {{ count: 1000, time_window: 600 }} }}\n  \
         upstream: {{ nodes: {{ \"{}\": 1 }} }}\n",
        origin.addr()
    ));
    let mut attacker = Frames::connect(&gateway);
    let count = scaled(100, 2_000) as u32;
    for number in 0..count {
        let stream = odd(number);
        let post = headers(stream, END_HEADERS, &request("POST", "/attack", &[]));
        attacker.send([post, reset(stream, CANCEL), frame(DATA, END_STREAM, stream, b"zombie")].concat());
        // Each in a segment of its own, and no more of them on a connection than it takes for a flood.
        attacker.send(frame(PING, 0, 0, [7; 8]));
        attacker.answer_to_ping();
        if number % 100 == 99 {
            attacker = Frames::connect(&gateway);
        }
    }
    let answer = gateway.client().get("/attack").expect("an answer");
    assert_eq!(answer.headers.get("x-ratelimit-remaining"), Some("999"), "nobody has counted the others");
    assert_eq!(origin.requests().len(), 1);
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
