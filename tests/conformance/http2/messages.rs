//! H07–H11: what RFC 9113 calls malformed, and what HTTP/1 would take for something else, never reaches an upstream.

use std::time::{Duration, Instant};

use weir_testkit::{Authority, Client, DEADLINE, Identity, Origin, Reading, TlsClient, eventually};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, Frames, HEADERS, NO_ERROR, PING, PROTOCOL_ERROR, PUSH_PROMISE,
    REFUSED_STREAM, RST_STREAM, WHOLE, frame, get, headers, request, section,
};
use crate::harness::{Rig, routes, weir};

/// Sends a request's frames on stream 1 and expects it to be refused: reset, or with 400 where HTTP/1 would do so.
#[track_caller]
fn refused(rig: &Rig, what: &str, bytes: &[u8]) {
    rig.origin.forget();
    let mut client = Frames::connect(&rig.gateway);
    assert_eq!(client.stream(), 1);
    client.send(bytes);
    match client.end(1) {
        End::Reset(PROTOCOL_ERROR) | End::Answered(400, _) => {
            client.canary("/canary-1").unwrap_or_else(|error| panic!("after {what}: {error}"));
        }
        end => panic!("{what}: {end:?}"),
    }
    rig.canary("/canary-2").unwrap_or_else(|error| panic!("after {what}: {error}"));
    let targets = rig.origin.targets();
    assert!(targets.iter().all(|target| target.starts_with("/canary")), "{what}: {targets:?}");
    assert!(!rig.origin.raw_text().contains("smuggled"), "{what}: {}", rig.origin.raw_text());
    assert!(rig.origin.violations().is_empty(), "{what}: {:?}", rig.origin.violations());
}

#[test]
fn h07_streams_out_of_order() {
    let rig = Rig::echo(Reading::Strict);
    let whole = |stream| headers(stream, WHOLE, &get("/a", &[]));
    for (what, bytes) in [
        ("content of a stream that has not begun", frame(DATA, 0, 5, b"x")),
        ("an even number", whole(2)),
        ("a smaller number", [whole(5), whole(3)].concat()),
        (
            "a promise of a client",
            frame(PUSH_PROMISE, END_HEADERS, 1, [&[0, 0, 0, 2][..], &section(&get("/a", &[]))].concat()),
        ),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, b"")),
        ("a head within a head", [frame(HEADERS, 0, 1, section(&get("/a", &[]))), whole(3)].concat()),
    ] {
        let mut client = Frames::connect(&rig.gateway);
        client.send(bytes);
        assert_eq!(client.until_closed().code, Some(PROTOCOL_ERROR), "{what}");
        rig.canary("/canary").unwrap_or_else(|error| panic!("after {what}: {error}"));
    }
}

#[test]
fn h07_more_streams_than_allowed() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = Frames::connect(&rig.gateway);
    // These wait for their content.
    for number in 0..128 {
        client.send(headers(2 * number + 1, END_HEADERS, &request("POST", "/a", &[])));
    }
    client.send(headers(257, WHOLE, &get("/b", &[])));
    assert_eq!(client.end(257), End::Reset(REFUSED_STREAM));
    client.send(frame(DATA, END_STREAM, 1, b"abc"));
    assert_eq!(client.end(1), End::Answered(200, "POST /a 3".to_owned()));
    client.send(headers(259, WHOLE, &get("/c", &[])));
    assert_eq!(client.end(259), End::Answered(200, "GET /c 0".to_owned()), "there is room again");
}

#[test]
fn h08_fields_that_would_be_more_in_http1() {
    let rig = Rig::echo(Reading::Strict);
    let smuggled = "x\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: t\r\n\r\n";
    let long = format!("/a{smuggled}");
    let fields: Vec<(&str, &str)> = vec![
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("x", smuggled),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("x", " a"),
        ("x", "a "),
        ("x", "\ta"),
        ("x: y\r\nsmuggled", "z"),
        ("x\nsmuggled", "z"),
        ("x y", "z"),
        ("x:", "z"),
        ("x\0", "z"),
        ("", "z"),
        ("X-Capital", "z"),
        ("content-length", "0, 0"),
        ("content-length", "+5"),
        ("content-length", "5"),
        ("content-length", "99999999999999999999"),
    ];
    for (name, value) in fields {
        refused(&rig, &format!("{name:?}: {value:?}"), &headers(1, WHOLE, &get("/attack", &[(name, value)])));
    }
    let twice = [("content-length", "0"), ("content-length", "0")];
    refused(&rig, "a length twice", &headers(1, WHOLE, &request("POST", "/attack", &twice)));
    let pseudo = |method, scheme, authority, path| {
        headers(1, WHOLE, &[(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)])
    };
    for bytes in [
        pseudo("GET /smuggled HTTP/1.1\r\nx: ", "http", "t", "/attack"),
        pseudo("GET\r\n", "http", "t", "/attack"),
        pseudo("GET /", "http", "t", "/attack"),
        pseudo("", "http", "t", "/attack"),
        pseudo("GET", "http://t/smuggled?", "t", "/attack"),
        pseudo("GET", "", "t", "/attack"),
        pseudo("GET", "http", "t\r\nsmuggled: x", "/attack"),
        pseudo("GET", "http", "t/smuggled", "/attack"),
        pseudo("GET", "http", "", "/attack"),
        pseudo("GET", "http", "t", &long),
        pseudo("GET", "http", "t", "/a HTTP/1.1\r\nsmuggled: x"),
        pseudo("GET", "http", "t", "/a\0"),
        pseudo("GET", "http", "t", "/a b"),
        pseudo("GET", "http", "t", "attack"),
        pseudo("GET", "http", "t", "http://t/smuggled"),
        pseudo("GET", "http", "t", "*"),
    ] {
        refused(&rig, &String::from_utf8_lossy(&bytes), &bytes);
    }
}

#[test]
fn h08_lengths_that_are_not_true() {
    let rig = Rig::echo(Reading::Strict);
    let post = |length| headers(1, END_HEADERS, &request("POST", "/attack", &[("content-length", length)]));
    for (what, bytes) in [
        ("none of it", [post("5"), frame(DATA, END_STREAM, 1, b"")].concat()),
        ("less", [post("50"), frame(DATA, END_STREAM, 1, b"GET /smuggled")].concat()),
        ("more", [post("5"), frame(DATA, END_STREAM, 1, b"12345GET /smuggled HTTP/1.1\r\n\r\n")].concat()),
        ("less, with trailers", [post("5"), frame(DATA, 0, 1, b"123"), headers(1, WHOLE, &[("x", "y")])].concat()),
    ] {
        rig.origin.forget();
        let mut client = Frames::connect(&rig.gateway);
        client.stream();
        client.send(bytes);
        assert_eq!(client.end(1), End::Reset(PROTOCOL_ERROR), "{what}");
        client.canary("/canary-1").unwrap_or_else(|error| panic!("after {what}: {error}"));
        rig.canary("/canary-2").unwrap_or_else(|error| panic!("after {what}: {error}"));
        let requests = rig.origin.requests();
        assert!(requests.iter().all(|request| request.target.starts_with("/canary")), "{what}: {requests:?}");
        assert!(rig.origin.violations().is_empty(), "{what}: {:?}", rig.origin.violations());
    }
}

#[test]
fn h08_content_that_ends_early_ends_its_upstream_connection() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = Frames::connect(&rig.gateway);
    client.stream();
    client.send(headers(1, END_HEADERS, &request("POST", "/attack", &[("content-length", "50")])));
    client.send(frame(DATA, 0, 1, b"GET /smuggled"));
    eventually("the beginning is upstream", DEADLINE, || rig.origin.raw_text().ends_with("GET /smuggled"));
    assert_eq!(rig.origin.open_connections(), 1);
    client.send(frame(DATA, END_STREAM, 1, b""));
    assert_eq!(client.end(1), End::Reset(PROTOCOL_ERROR));
    eventually("nobody waits for the rest", DEADLINE, || rig.origin.open_connections() == 0);
    client.canary("/canary").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rig.origin.targets(), ["/canary"]);
    assert_eq!(rig.origin.connections(), 2);
}

#[test]
fn h08_more_content_than_announced_is_nobodys_request() {
    let rig = Rig::echo(Reading::Strict);
    let mut client = Frames::connect(&rig.gateway);
    client.stream();
    client.send(headers(1, END_HEADERS, &request("POST", "/attack", &[("content-length", "5")])));
    client.send(frame(DATA, 0, 1, b"12345"));
    // To the upstream it is complete now, so that is what it may have seen of it when the rest comes.
    client.send(frame(DATA, END_STREAM, 1, b"GET /smuggled HTTP/1.1\r\nhost: t\r\n\r\n"));
    assert!(matches!(client.end(1), End::Reset(PROTOCOL_ERROR) | End::Answered(200, _)));
    client.canary("/canary").unwrap_or_else(|error| panic!("{error}"));
    let requests = rig.origin.requests();
    assert!(requests.iter().all(|request| request.target == "/canary" || request.body == b"12345"), "{requests:?}");
    assert!(!rig.origin.raw_text().contains("smuggled"));
}

#[test]
fn h09_pseudo_fields() {
    let rig = Rig::echo(Reading::Strict);
    let good = [(":method", "GET"), (":scheme", "http"), (":authority", "t"), (":path", "/attack")];
    let without = |name: &str| good.iter().copied().filter(|field| field.0 != name).collect::<Vec<_>>();
    let with = |more: &[(&'static str, &'static str)]| [&good[..], more].concat();
    for (what, fields) in [
        ("no method", without(":method")),
        ("no scheme", without(":scheme")),
        ("no path", without(":path")),
        ("no host at all", without(":authority")),
        ("two methods", with(&[(":method", "GET")])),
        ("two paths", with(&[(":path", "/attack")])),
        ("two schemes", with(&[(":scheme", "http")])),
        ("two authorities", with(&[(":authority", "t")])),
        ("an unknown one", with(&[(":unknown", "x")])),
        ("one of a response", with(&[(":status", "200")])),
        ("one behind a field", [&without(":path")[..], &[("x", "y"), (":path", "/attack")]].concat()),
        ("an empty path", [&without(":path")[..], &[(":path", "")]].concat()),
        ("another host", with(&[("host", "other")])),
        ("two hosts", [&without(":authority")[..], &[("host", "t"), ("host", "t")]].concat()),
        ("a user", [&without(":authority")[..], &[(":authority", "me@t")]].concat()),
        ("a protocol without CONNECT", with(&[(":protocol", "websocket")])),
        ("CONNECT with a path", [&without(":method")[..], &[(":method", "CONNECT")]].concat()),
    ] {
        refused(&rig, what, &headers(1, WHOLE, &fields));
    }
    let post = headers(1, END_HEADERS, &request("POST", "/attack", &[]));
    let trailers = headers(1, WHOLE, &[(":path", "/smuggled"), ("x", "y")]);
    refused(&rig, "one in trailers", &[post, trailers].concat());
    assert!(!rig.origin.raw_text().contains("smuggled"));
}

#[test]
fn h10_fields_of_a_connection() {
    let rig = Rig::echo(Reading::Strict);
    for (name, value) in [
        ("connection", "close"),
        ("connection", "keep-alive"),
        ("connection", "x"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("upgrade", "websocket"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("te", "trailers, deflate"),
    ] {
        refused(&rig, &format!("{name}: {value}"), &headers(1, WHOLE, &get("/attack", &[(name, value)])));
    }
    let mut client = Frames::connect(&rig.gateway);
    client.stream();
    rig.origin.forget();
    for (stream, fields, sent) in [(1, &[("te", "trailers")][..], true), (3, &[], false)] {
        client.send(headers(stream, WHOLE, &get("/fine", fields)));
        assert_eq!(client.end(stream), End::Answered(200, "GET /fine 0".to_owned()));
        let requests = rig.origin.requests();
        let head = &requests.last().expect("a request").headers;
        assert_eq!((head.lists("TE", "trailers"), head.lists("Connection", "te")), (sent, sent), "{head:?}");
    }
}

/// Browsers reuse a connection for every name of its certificate (RFC 9113 §9.1.1), so each stream is looked at.
#[test]
fn h11_a_host_that_asks_for_proof_is_not_reached_over_another_name_s_connection() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), Origin::echo(Reading::Strict));
    let Identity { certificate, key } = authority.identity(&["t", "m.test"]);
    let gateway = weir().start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\nssls:\n\
         - {{ sni: t, cert: {certificate:?}, key: {key:?} }}\n\
         - {{ sni: m.test, cert: {certificate:?}, key: {key:?}, client: {{ ca: {:?} }} }}\n\
         routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        known.certificate,
        origin.addr()
    ));
    let jack = known.identity(&["jack"]);
    for (tls, name, reached) in [
        (TlsClient::trusting(&authority), "t", false),
        (TlsClient::known_as(&authority, &jack), "t", false),
        (TlsClient::known_as(&authority, &jack), "m.test", true),
    ] {
        let client = Client::connect_tls(gateway.tls_addr(), &tls.speaking(&["h2"]), name).expect("a handshake");
        let mut client = Frames::over(client);
        for host in ["m.test", "M.TEST", "m.test:443"] {
            let https = [(":method", "GET"), (":scheme", "https"), (":authority", host), (":path", "/a")];
            match client.ask_for(&https) {
                End::Answered(200, body) if reached => assert_eq!(body, "GET /a 0"),
                End::Answered(0, body) if !reached => assert!(body.contains("421 "), "{host} over {name}: {body}"),
                end => panic!("{host} over {name}: {end:?}"),
            }
        }
        client.canary("/canary").unwrap_or_else(|error| panic!("over {name}: {error}"));
    }
    assert_eq!(origin.targets().iter().filter(|target| *target == "/a").count(), 3);
}

#[test]
fn an_answer_that_comes_before_the_content_is_whole() {
    let gateway = weir().start(
        "routes: [{ uri: /refused, plugins: { mocking: { response_status: 404, response_example: refused } } }]\n",
    );
    let head = |stream| headers(stream, END_HEADERS, &request("POST", "/refused", &[("content-length", "64000")]));
    let answer = End::Answered(404, "refused".to_owned());
    let mut client = Frames::connect(&gateway);
    let stream = client.stream();
    client.send(head(stream));
    assert_eq!(client.end(stream), answer);
    // RFC 9113 §8.1: nothing comes, and the client is told that nothing is wanted. It is not an error.
    assert_eq!(client.end(stream), End::Reset(NO_ERROR));
    // What comes is taken, and there is no need to say so.
    let stream = client.stream();
    let pieces = (0..4).map(|number| frame(DATA, if number == 3 { END_STREAM } else { 0 }, stream, [b'x'; 16_000]));
    client.send([head(stream), pieces.collect::<Vec<_>>().concat()].concat());
    assert_eq!(client.end(stream), answer);
    let next = client.stream();
    client.send(headers(next, WHOLE, &get("/refused", &[])));
    while let Some(frame) = client.receive() {
        assert_ne!((frame.kind, frame.stream), (RST_STREAM, stream));
        if frame.stream == next && frame.flags & END_STREAM != 0 {
            return;
        }
    }
    panic!("the connection has ended");
}

/// `client_header_timeout` is for one frame or head that does not come to its end, not for a connection whose reads happen to
/// end in the middle of different ones.
#[test]
fn r01_an_upload_that_arrives_in_odd_pieces_takes_its_time() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!("client_header_timeout: 3\n{}", routes(origin.addr())));
    let mut client = Frames::connect(&gateway);
    let stream = client.stream();
    client.send(headers(stream, END_HEADERS, &request("POST", "/upload", &[])));
    let data = frame(DATA, 0, stream, b"piece");
    let (begin, rest) = data.split_at(4);
    client.send([&data, begin].concat());
    let (start, mut pieces) = (Instant::now(), 1);
    while start.elapsed() < Duration::from_millis(4500) {
        client.send([rest, &frame(PING, 0, 0, [7; 8]), begin].concat());
        pieces += 1;
        client.answer_to_ping();
        client.stands_silent_for(Duration::from_millis(100));
    }
    client.send([rest, &frame(DATA, END_STREAM, stream, b"")].concat());
    pieces += 1;
    assert_eq!(client.end(stream), End::Answered(200, format!("POST /upload {}", pieces * 5)));
}

/// The same for heads of several frames: the next one begins in the read that completes the last.
#[test]
fn r01_heads_that_overlap_take_their_time() {
    let origin = Origin::echo(Reading::Strict);
    let gateway = weir().start(&format!("client_header_timeout: 3\n{}", routes(origin.addr())));
    let mut client = Frames::connect(&gateway);
    let fields = section(&get("/a", &[]));
    let first = |stream| frame(HEADERS, END_STREAM, stream, &fields[..4]);
    let mut stream = client.stream();
    client.send(first(stream));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(4500) {
        let next = client.stream();
        client.send([frame(CONTINUATION, END_HEADERS, stream, &fields[4..]), first(next)].concat());
        assert_eq!(client.end(stream), End::Answered(200, "GET /a 0".to_owned()));
        client.stands_silent_for(Duration::from_millis(100));
        stream = next;
    }
}
