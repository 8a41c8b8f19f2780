//! What matters to a client leaves first (RFC 9218), and nothing starves beside it.

use std::collections::BTreeMap;

use weir_testkit::{Answer, Origin, Reading};

use super::frames::{
    DATA, END_STREAM, End, Frames, HEADERS, INITIAL_WINDOW_SIZE, PING, WHOLE, WINDOW_UPDATE, frame, get, headers,
    request,
};
use crate::harness::{Rig, weir};

const CONTENT: usize = 256 * 1024;
/// The connection's window is opened by so much at a time.
const STEP: usize = 16 * 1024;

/// Two downloads of these priorities through a narrow connection window. The first has a start of 64 KB. What each has
/// brought when one of them is complete.
fn shares(first: &str, second: &str) -> (usize, usize) {
    let rig = Rig::before(Origin::reading(Reading::Strict, |_| Answer::ok(vec![b'x'; CONTENT])));
    let mut client = Frames::connect_with(&rig.gateway, &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    let mut brought = BTreeMap::from([(1, 0), (3, 0)]);
    client.send(headers(1, WHOLE, &get("/a", &[("priority", first)])));
    receive(&mut client, &mut brought, 65_535);
    client.send(headers(3, WHOLE, &get("/b", &[("priority", second)])));
    // With its head came content, which waits for the window.
    while client.receive().map(|frame| (frame.kind, frame.stream)).expect("the connection stands") != (HEADERS, 3) {}
    loop {
        // Its answer comes behind what was done before it.
        client.send(frame(PING, 0, 0, [0; 8]));
        client.answer_to_ping();
        client.send(frame(WINDOW_UPDATE, 0, 0, (STEP as u32).to_be_bytes()));
        if receive(&mut client, &mut brought, STEP) {
            return (brought[&1], brought[&3]);
        }
    }
}

/// Takes so much content; whether one of the streams ended with it.
fn receive(client: &mut Frames, brought: &mut BTreeMap<u32, usize>, mut count: usize) -> bool {
    let mut has_ended = false;
    while count > 0 && !has_ended {
        let frame = client.receive().expect("the connection stands");
        if frame.kind == DATA {
            *brought.get_mut(&frame.stream).expect("it was asked for") += frame.payload.len();
            count -= frame.payload.len();
            has_ended |= frame.flags & END_STREAM != 0;
        }
    }
    has_ended
}

#[test]
fn more_urgent_response_overtakes() {
    let (first, second) = shares("u=3", "u=1");
    assert_eq!(second, CONTENT, "{first}");
    assert!(first > 65_535, "it does not starve");
    assert!(first < CONTENT / 4 * 3, "{first}");
}

#[test]
fn non_incremental_responses_come_one_after_the_other() {
    let (first, second) = shares("u=3", "u=3");
    assert_eq!(first, CONTENT, "{second}");
    assert!((1..CONTENT / 3).contains(&second), "{second}: it waits, and does not starve");
}

#[test]
fn incremental_responses_come_side_by_side() {
    let (first, second) = shares("u=3, i", "u=3, i");
    assert_eq!(first, CONTENT);
    assert!(second > CONTENT / 3, "{second}");
}

#[test]
fn a_response_without_content_is_complete_beside_a_download_that_waits() {
    let rig = Rig::before(Origin::reading(Reading::Strict, |request| match &*request.target {
        "/a" => Answer::ok(vec![b'x'; CONTENT]),
        "/none" => Answer::status(204, ""),
        _ => Answer::ok("some"),
    }));
    let mut client = Frames::connect_with(&rig.gateway, &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    client.send(headers(1, WHOLE, &get("/a", &[("priority", "u=3")])));
    receive(&mut client, &mut BTreeMap::from([(1, 0)]), 65_535);
    for (stream, method, path, status) in [(3, "GET", "/none", 204), (5, "HEAD", "/b", 200)] {
        client.send(headers(stream, WHOLE, &request(method, path, &[("priority", "u=5")])));
        assert_eq!(client.end(stream), End::Answered(status, String::new()), "{method} {path}");
    }
}

#[test]
fn a_response_with_a_limited_rate_does_not_slow_the_others_of_its_connection() {
    let origin = Origin::reading(Reading::Strict, |_| Answer::ok(vec![b'x'; CONTENT]));
    let upstream = format!("upstream: {{ nodes: {{ \"{}\": 1 }} }}", origin.addr());
    let gateway = weir().start(&format!(
        "routes:\n  - {{ id: slow, uri: /slow, plugins: {{ limit-rate: {{ rate: 1 }} }}, {upstream} }}\n  - {{ id: other, uri: /other, \
         {upstream} }}\n"
    ));
    let mut client = Frames::connect_with(&gateway, &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    client.send(frame(WINDOW_UPDATE, 0, 0, (1_u32 << 24).to_be_bytes()));
    let mut brought = BTreeMap::from([(1, 0)]);
    client.send(headers(1, WHOLE, &get("/slow", &[("priority", "u=0")])));
    receive(&mut client, &mut brought, 512);
    for stream in [3, 5, 7] {
        brought.insert(stream, 0);
        client.send(headers(stream, WHOLE, &get("/other", &[("priority", "u=7")])));
        assert!(receive(&mut client, &mut brought, 2 * CONTENT), "the connection's other stream ends");
        assert_eq!(brought[&stream], CONTENT);
    }
    assert_eq!(brought[&1], 512, "a byte in a second, after the least piece");
}
