//! H08, H09: what is wrong with one message ends that message, with seven others on the same connection that all complete:
//! behind a proxy that shares its connections they are other people's. What breaks the connection itself ends it.

use weir_testkit::Reading;

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, Frames, GOAWAY, HEADERS, MALFORMED_FIELDS, PING, PRIORITY,
    PROTOCOL_ERROR, PUSH_PROMISE, RST_STREAM, SETTINGS, WHOLE, WINDOW_UPDATE, frame, get, headers, request,
};
use crate::harness::Rig;

/// The stream on which something is wrong; seven others wait for their content.
const BAD: u32 = 15;
const HEALTHY: [u32; 7] = [1, 3, 5, 7, 9, 11, 13];

/// Each with what is sent on [`BAD`].
fn bad_messages() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |what: &str, bytes: Vec<u8>| all.push((what.to_owned(), bytes));
    let with = |name: &str, value: &str| headers(BAD, WHOLE, &get("/bad", &[(name, value)]));
    let more = [("te", "gzip"), ("content-length", "5"), (":status", "200"), (":path", "/again")];
    for (name, value) in MALFORMED_FIELDS.into_iter().chain(more) {
        add(&format!("{name:?}: {value:?}"), with(name, value));
    }
    let good = get("/bad", &[]);
    for name in [":method", ":scheme", ":path"] {
        let without: Vec<_> = good.iter().copied().filter(|field| field.0 != name).collect();
        add(&format!("no {name}"), headers(BAD, WHOLE, &without));
        let late: Vec<_> = good.iter().copied().find(|field| field.0 == name).into_iter().collect();
        add(&format!("{name} behind a field"), headers(BAD, WHOLE, &[&without[..], &[("x", "y")], &late].concat()));
    }
    for method in ["", "GE T", "GET\r\n", "G\x7f"] {
        add(&format!("the method {method:?}"), headers(BAD, WHOLE, &request(method, "/bad", &[])));
    }
    for path in ["", "/a\nb", "/a\0", "/a\x7f"] {
        add(&format!("the path {path:?}"), headers(BAD, WHOLE, &get(path, &[])));
    }
    let host = |authority| [(":method", "GET"), (":scheme", "http"), (":authority", authority), (":path", "/bad")];
    add("an authority of two lines", headers(BAD, WHOLE, &host("t\r\nx: y")));
    let connect = [(":method", "CONNECT"), (":authority", "t"), (":path", "/bad")];
    add("CONNECT with a path", headers(BAD, WHOLE, &connect));
    let post = |fields: &[(&str, &str)]| headers(BAD, END_HEADERS, &request("POST", "/bad", fields));
    let sized = || post(&[("content-length", "5")]);
    add("more content than was said", [sized(), frame(DATA, 0, BAD, b"123456")].concat());
    add("less content than was said", [sized(), frame(DATA, END_STREAM, BAD, b"1234")].concat());
    add("no content where some was said", [sized(), frame(DATA, END_STREAM, BAD, b"")].concat());
    add("less content and trailers", [sized(), headers(BAD, WHOLE, &[("x", "y")])].concat());
    add("trailers that do not end", [post(&[]), headers(BAD, END_HEADERS, &[("x", "y")])].concat());
    for (name, value) in [(":path", "/"), (":status", "200"), ("X", "y"), ("x", "\n"), ("connection", "close")] {
        add(&format!("{name:?}: {value:?} in trailers"), [post(&[]), headers(BAD, WHOLE, &[(name, value)])].concat());
    }
    add("a window opened by nothing", [post(&[]), frame(WINDOW_UPDATE, 0, BAD, [0; 4])].concat());
    let far = [0x7f, 0xff, 0xff, 0xff];
    add("a window opened too far", [post(&[]), frame(WINDOW_UPDATE, 0, BAD, far)].concat());
    let itself = [&BAD.to_be_bytes()[..], &[0]].concat();
    add("a stream that depends on itself", [post(&[]), frame(PRIORITY, 0, BAD, itself)].concat());
    add("a priority that is too short", [post(&[]), frame(PRIORITY, 0, BAD, [0; 4])].concat());
    add("content after the end", [headers(BAD, WHOLE, &good), frame(DATA, END_STREAM, BAD, b"x")].concat());
    all
}

#[test]
fn malformed_request_ends_only_its_stream_beside_seven_others() {
    let rig = Rig::echo(Reading::Strict);
    let all = bad_messages();
    assert!(all.len() >= 60, "{} ways", all.len());
    for (what, bytes) in all {
        let mut client = Frames::connect(&rig.gateway);
        for stream in HEALTHY.into_iter().chain([BAD]) {
            assert_eq!(client.stream(), stream);
        }
        for stream in HEALTHY {
            client.send(headers(stream, END_HEADERS, &request("POST", "/healthy", &[])));
        }
        client.send(bytes);
        let end = client.end(BAD);
        // One that is complete may have been answered before more came.
        let is_refused =
            matches!(end, End::Reset(_)) || matches!(end, End::Answered(200, _)) && what.contains("after the end");
        assert!(is_refused, "{what}: {end:?}");
        for stream in HEALTHY {
            client.send(frame(DATA, END_STREAM, stream, b"abc"));
            assert_eq!(client.end(stream), End::Answered(200, "POST /healthy 3".to_owned()), "{what}: {stream}");
        }
        client.canary("/canary").unwrap_or_else(|error| panic!("after {what}: {error}"));
    }
    assert!(rig.origin.violations().is_empty(), "{:?}", rig.origin.violations());
    let targets = rig.origin.targets();
    assert!(targets.iter().all(|target| ["/healthy", "/canary", "/bad"].contains(&target.as_str())), "{targets:?}");
}

#[test]
fn connection_error_ends_the_connection() {
    let rig = Rig::echo(Reading::Strict);
    let whole = |stream| headers(stream, WHOLE, &get("/bad", &[]));
    for (what, bytes) in [
        ("an entry that is not there", frame(HEADERS, WHOLE, BAD, [0xfe])),
        ("a table that is too large", frame(HEADERS, WHOLE, BAD, [0x3f, 0xff, 0xff, 0x03])),
        ("a string without its end", frame(HEADERS, WHOLE, BAD, [0, 9, b'x'])),
        ("padding of Huffman that is none", frame(HEADERS, WHOLE, BAD, [0, 0x81, 0, 1, b'a'])),
        ("an even stream", whole(2)),
        ("a lower stream", [whole(BAD), whole(9 + 2)].concat()),
        ("content of a stream that has not begun", frame(DATA, 0, 99, b"x")),
        ("content of no stream", frame(DATA, 0, 0, b"x")),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, b"")),
        ("another frame within a head", [frame(HEADERS, 0, BAD, b""), frame(PING, 0, 0, [0; 8])].concat()),
        ("a promise", frame(PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2])),
        ("a short ping", frame(PING, 0, 0, [0; 7])),
        ("settings cut short", frame(SETTINGS, 0, 0, [0; 5])),
        ("a window of nothing", frame(WINDOW_UPDATE, 0, 0, [0; 4])),
        ("a window too large", frame(WINDOW_UPDATE, 0, 0, [0x7f, 0xff, 0xff, 0xff])),
        ("a reset of a stream that has not begun", frame(RST_STREAM, 0, 99, [0; 4])),
        ("a short farewell", frame(GOAWAY, 0, 0, [0; 7])),
        ("more padding than there is", frame(DATA, 0x8, 1, [9, 0])),
        ("a frame that is too large", frame(DATA, 0, 1, vec![0; 16_385])),
    ] {
        let mut client = Frames::connect(&rig.gateway);
        client.send(headers(1, END_HEADERS, &request("POST", "/healthy", &[])));
        client.send(headers(13, END_HEADERS, &request("POST", "/healthy", &[])));
        client.send(bytes);
        assert!(client.until_closed().code.is_some_and(|code| code >= PROTOCOL_ERROR), "{what}");
        rig.canary("/canary").unwrap_or_else(|error| panic!("after {what}: {error}"));
    }
}
