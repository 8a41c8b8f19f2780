//! WebSockets and event streams with message filters. Frames are written and parsed by the tests' own code.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use h2::ext::Protocol;
use http::{Method, Request};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use weir_testkit::{
    Answer, Client, DEADLINE, Gateway, Origin, OriginConnection, ReadError, Reading, Signal, eventually,
};

use crate::redis::Redis;

mod deflate;

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A frame with this first byte; frames of a client are masked.
fn frame(first: u8, content: &[u8], is_client: bool) -> Vec<u8> {
    let mut frame = vec![first];
    let masked = if is_client { 0x80 } else { 0 };
    match content.len() {
        small @ 0..126 => frame.push(masked | small as u8),
        medium @ 126..65_536 => {
            frame.push(masked | 126);
            frame.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        large => {
            frame.push(masked | 127);
            frame.extend_from_slice(&(large as u64).to_be_bytes());
        }
    }
    if !is_client {
        frame.extend_from_slice(content);
        return frame;
    }
    frame.extend_from_slice(&MASK);
    frame.extend(content.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Reads one frame with a function that reads an exact number of bytes; returns the first byte and the unmasked content.
fn read_frame(mut exact: impl FnMut(u64) -> Result<Vec<u8>, ReadError>) -> Option<(u8, Vec<u8>)> {
    let head = exact(2).ok()?;
    let length = match head[1] & 0x7f {
        126 => exact(2).ok()?.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
        127 => exact(8).ok()?.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
        small => u64::from(small),
    };
    let mask = if head[1] & 0x80 != 0 { exact(4).ok()? } else { vec![0] };
    let content = if length == 0 { Vec::new() } else { exact(length).ok()? };
    Some((head[0], content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect()))
}

const FIRST_OF_CLOSE: u8 = 0x88;

fn close(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_bytes()].concat()
}

/// Accepts a WebSocket upgrade, with these additional header lines.
fn agree(connection: &mut OriginConnection, lines: &str) -> bool {
    let Ok(request) = connection.request() else { return false };
    connection.record(&request);
    let answer = format!(
        "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n{lines}\r\n"
    );
    connection.send(answer).is_ok()
}

/// Echoes frames without masks; a text `twice` comes back in two fragments, and `say N` as N bytes. Frames that are not echoed
/// are reported by a text that begins with `got`.
fn echo() -> Origin {
    Origin::scripted(Reading::Strict, |connection| {
        if !agree(connection, "") {
            return;
        }
        while let Some((first, content)) = read_frame(|count| connection.exact(count)) {
            let text = String::from_utf8_lossy(&content).into_owned();
            let answer = match (first, text.strip_prefix("say ").map(str::parse::<usize>)) {
                (0x81, Some(Ok(count))) => frame(0x82, &vec![b'x'; count], false),
                (0x88, _) => frame(first, &content, false),
                (0x8a, _) => frame(0x81, format!("got a pong {text}").as_bytes(), false),
                (0x81, _) if text == "twice" => [frame(0x01, b"twi", false), frame(0x80, b"ce", false)].concat(),
                _ => frame(first, &content, false),
            };
            if connection.send(answer).is_err() || first == FIRST_OF_CLOSE {
                return;
            }
        }
    })
}

fn gateway(origin: &Origin, plugins: &str) -> Gateway {
    gateway_with(origin, plugins, "")
}

fn gateway_with(origin: &Origin, plugins: &str, more: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, plugins: {plugins}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n{more}",
        origin.addr()
    ))
}

/// A client with an established WebSocket.
fn connected(gateway: &Gateway, lines: &str) -> Client {
    let mut client = gateway.client();
    client.send(format!(
        "GET /chat HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}\r\n"
    ));
    assert_eq!(client.response_head("GET").expect("an answer").status, 101);
    client
}

#[track_caller]
fn next(client: &mut Client) -> (u8, Vec<u8>) {
    read_frame(|count| client.exact(count)).expect("a frame")
}

/// Asserts that the client receives this close frame, and then the end of the connection.
#[track_caller]
fn is_closed(client: &mut Client, code: u16, reason: &str) {
    let (first, content) = next(client);
    let said = content.get(..2).map(|code| u16::from_be_bytes([code[0], code[1]]));
    assert_eq!((first, said), (FIRST_OF_CLOSE, Some(code)), "{}", content.escape_ascii());
    assert_eq!(String::from_utf8_lossy(&content[2..]), reason);
    client.finish_sending();
    assert_eq!(client.until_closed(), b"");
}

/// Asserts the counts seen, passed, throttled and failed, once every message has an outcome.
#[track_caller]
fn account(gateway: &Gateway, protocol: &str, direction: &str, want: [u64; 4]) {
    let labels = [format!("protocol=\"{protocol}\""), format!("direction=\"{direction}\"")];
    let count = |metric: &str, outcome: &str| {
        let labels: Vec<&str> = labels.iter().map(String::as_str).chain([outcome]).collect();
        gateway.metrics().sum(metric, &labels) as u64
    };
    let counts = || {
        let seen = count("weir_events_seen_total", "");
        let outcomes = ["passed", "throttled", "failed"];
        let [passed, throttled, failed] =
            outcomes.map(|outcome| count("weir_events_total", &format!("outcome=\"{outcome}\"")));
        [seen, passed, throttled, failed]
    };
    eventually(&format!("{protocol} {direction} is {want:?}"), DEADLINE, || counts() == want);
}

#[test]
fn messages_pass_as_they_come_and_are_counted() {
    let origin = echo();
    let gateway = gateway(&origin, "{ websocket-policy: {} }");
    let mut client = connected(&gateway, "");
    let large = vec![0xff; 200_000];
    for (first, content) in [(0x81, &b"hello"[..]), (0x81, b""), (0x82, &large), (0x89, b"ping")] {
        // In pieces, one of which ends within a frame header.
        let bytes = frame(first, content, true);
        client.send(&bytes[..1]);
        client.send(&bytes[1..]);
        assert_eq!(next(&mut client), (first, content.to_vec()));
    }
    // Fragments are relayed as fragments, with a ping between them.
    client.send([frame(0x01, b"fr", true), frame(0x89, b"p", true), frame(0x80, b"ag", true)].concat());
    assert_eq!(
        [next(&mut client), next(&mut client), next(&mut client)],
        [(0x01, b"fr".to_vec()), (0x89, b"p".to_vec()), (0x80, b"ag".to_vec())]
    );
    client.send(frame(0x88, &close(1000, "bye"), true));
    assert_eq!(next(&mut client), (0x88, close(1000, "bye")));
    assert_eq!(client.until_closed(), b"");
    account(&gateway, "websocket", "from_client", [4, 4, 0, 0]);
    account(&gateway, "websocket", "from_upstream", [4, 4, 0, 0]);
}

#[test]
fn a_client_that_breaks_a_rule_is_told_which() {
    let origin = echo();
    let gateway = gateway(&origin, "{ websocket-policy: {} }");
    for (bytes, code, reason) in [
        (frame(0x81, b"plain", false), 1002, "a frame of the client is not masked"),
        (frame(0x91, b"bit", true), 1002, "a reserved bit is set"),
        (frame(0xc1, b"nobody has agreed to it", true), 1002, "a reserved bit is set"),
        (frame(0x83, b"", true), 1002, "the opcode is reserved"),
        (frame(0x80, b"", true), 1002, "there is no message to continue"),
        (frame(0x09, b"", true), 1002, "a control frame is fragmented"),
        (frame(0x81, b"\xff", true), 1007, "a text is not UTF-8"),
        (frame(0x88, b"\x03", true), 1002, "a close frame has half a code"),
        (frame(0x88, &close(1005, ""), true), 1002, "the close code cannot be sent"),
    ] {
        let mut client = connected(&gateway, "");
        client.send(bytes);
        is_closed(&mut client, code, reason);
    }
}

#[test]
fn an_upstream_that_breaks_a_rule_ends_it_as_well() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        if agree(connection, "") {
            let _ = connection.send(frame(0x81, b"masked", true));
            connection.wait_gone();
        }
    });
    let gateway = gateway(&origin, "{ websocket-policy: {} }");
    is_closed(&mut connected(&gateway, ""), 1002, "a frame of the server is masked");
}

#[test]
fn sizes_and_types_are_limited_for_each_side() {
    let policy = "{ websocket-policy: { client: { max_message_size: 10, message_types: [text] }, upstream: { max_message_size: 20 } } }";
    let origin = echo();
    let gateway = gateway(&origin, policy);
    let mut client = connected(&gateway, "");
    client.send(frame(0x81, b"0123456789", true));
    assert_eq!(next(&mut client).1, b"0123456789");
    client.send(frame(0x01, b"01234567", true));
    assert_eq!(next(&mut client), (0x01, b"01234567".to_vec()), "until it is too large it passes");
    client.send(frame(0x80, b"89a", true));
    is_closed(&mut client, 1009, "the message has more than 10 bytes");
    let mut client = connected(&gateway, "");
    client.send(frame(0x82, b"x", true));
    is_closed(&mut client, 1003, "binary messages are not accepted");
    let mut client = connected(&gateway, "");
    client.send(frame(0x81, b"say 20", true));
    assert_eq!(next(&mut client), (0x82, vec![b'x'; 20]));
    client.send(frame(0x81, b"say 21", true));
    is_closed(&mut client, 1009, "the message has more than 20 bytes");
    account(&gateway, "websocket", "from_client", [5, 3, 0, 2]);
}

#[test]
fn texts_have_to_match_a_schema() {
    let schema = "{ type: object, required: [a], properties: { a: { type: integer } } }";
    let origin = echo();
    let gateway = gateway(&origin, &format!("{{ websocket-policy: {{ client: {{ schema: {schema} }} }} }}"));
    let mut client = connected(&gateway, "Sec-WebSocket-Extensions: permessage-deflate\r\n");
    client.send([frame(0x01, b"{\"a\"", true), frame(0x89, b"p", true), frame(0x80, b":1}", true)].concat());
    assert_eq!(next(&mut client), (0x89, b"p".to_vec()), "a ping does not wait");
    assert_eq!(next(&mut client), (0x81, b"{\"a\":1}".to_vec()), "it goes on in one frame");
    client.send(frame(0x81, b"{\"a\":\"1\"}", true));
    is_closed(&mut client, 1007, "the message does not match the schema");
    let mut client = connected(&gateway, "");
    client.send(frame(0x01, &vec![b' '; 65_537], true));
    is_closed(&mut client, 1009, "the message has more than 65536 bytes");
    account(&gateway, "websocket", "from_client", [3, 1, 0, 2]);
}

#[test]
fn extensions_that_cannot_be_read_are_not_offered() {
    let origin = echo();
    let plain = gateway(&origin, "{ websocket-policy: {} }");
    let reading = gateway(&origin, "{ websocket-policy: { client: { schema: {} } } }");
    let offer = "Sec-WebSocket-Extensions: x-own, permessage-deflate; client_max_window_bits\r\n";
    let want = Some("permessage-deflate; client_max_window_bits");
    for gateway in [&plain, &reading] {
        origin.forget();
        drop(connected(gateway, offer));
        let requests = origin.wait_requests(1);
        assert_eq!(requests[0].headers.get("Sec-WebSocket-Extensions"), want);
    }
    let agreeing = Origin::scripted(Reading::Strict, |connection| {
        agree(connection, "Sec-WebSocket-Extensions: permessage-deflate\r\n");
        let _ = connection.send(frame(0xc1, b"\xff compressed", false));
        connection.wait_gone();
    });
    let gateway = gateway(&agreeing, "{ websocket-policy: {} }");
    let mut client = connected(&gateway, offer);
    assert_eq!(next(&mut client), (0xc1, b"\xff compressed".to_vec()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("an answer").status, 502, "it was not offered");
}

#[test]
fn one_that_is_silent_is_closed() {
    let origin = echo();
    let gateway = gateway(&origin, "{ websocket-policy: { idle_timeout: 3 } }");
    let mut client = connected(&gateway, "");
    client.send(frame(0x81, b"hello", true));
    assert_eq!(next(&mut client).1, b"hello");
    is_closed(&mut client, 1001, "nothing was sent for too long");
}

#[test]
fn a_client_that_answers_no_ping_is_closed() {
    let origin = echo();
    let gateway = gateway(&origin, "{ websocket-policy: { ping_interval: 1, ping_timeout: 3 } }");
    let mut client = connected(&gateway, "");
    let (first, content) = next(&mut client);
    assert_eq!((first, content.len()), (0x89, 8));
    // The pong that answers the gateway's ping is consumed; any other pong is relayed.
    client.send([frame(0x8a, &content, true), frame(0x8a, b"mine", true)].concat());
    assert_eq!(next(&mut client), (0x81, b"got a pong mine".to_vec()));
    assert_eq!(next(&mut client).0, 0x89);
    is_closed(&mut client, 1011, "a ping was not answered");
}

#[test]
fn it_ends_with_the_token_that_opened_it() {
    let secret = "0123456789abcdef0123456789abcdef";
    let consumers =
        format!("consumers: [{{ username: jack, plugins: {{ jwt-auth: {{ key: k1, secret: {secret} }} }} }}]\n");
    let origin = echo();
    let gateway = gateway_with(&origin, "{ jwt-auth: {}, websocket-policy: {} }", &consumers);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let claims = format!("{{\"key\":\"k1\",\"exp\":{}}}", now_s + 6);
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#), URL_SAFE_NO_PAD.encode(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes());
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag));
    let mut client = connected(&gateway, &format!("Authorization: Bearer {token}\r\n"));
    client.send(frame(0x81, b"hello", true));
    assert_eq!(next(&mut client).1, b"hello");
    is_closed(&mut client, 1008, "the credential has expired");
}

/// Consumers with these keys, each named after its key.
fn with_keys(keys: &[&str]) -> String {
    let consumers: Vec<String> =
        keys.iter().map(|key| format!("{{ username: {key}, plugins: {{ key-auth: {{ key: {key} }} }} }}")).collect();
    format!("consumers: [{}]\n", consumers.join(", "))
}

/// Replaces the consumers of a gateway whose only route leads to this origin.
fn change_consumers(gateway: &Gateway, origin: &Origin, plugins: &str, consumers: &str) {
    gateway.rewrite(&format!(
        "routes: [{{ uri: /*, plugins: {plugins}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n{consumers}",
        origin.addr()
    ));
}

#[test]
fn it_ends_when_its_credential_is_revoked() {
    const PLUGINS: &str = "{ key-auth: {}, websocket-policy: {} }";
    let origin = echo();
    let gateway = gateway_with(&origin, PLUGINS, &with_keys(&["jack", "rose", "anna"]));
    let [mut jack, mut rose, mut anna] =
        ["jack", "rose", "anna"].map(|key| connected(&gateway, &format!("apikey: {key}\r\n")));
    change_consumers(&gateway, &origin, PLUGINS, &with_keys(&["rose", "anna", "more"]));
    is_closed(&mut jack, 1008, "the credential has been revoked");
    let with_another_key = with_keys(&["rose", "anna"]).replace("key: rose", "key: another");
    change_consumers(&gateway, &origin, PLUGINS, &with_another_key);
    is_closed(&mut rose, 1008, "the credential has been revoked");
    anna.send(frame(0x81, b"still here", true));
    assert_eq!(next(&mut anna).1, b"still here");
}

#[test]
fn it_may_outlive_its_credential() {
    const PLUGINS: &str = "{ key-auth: {}, websocket-policy: { close_on_expiry: false } }";
    let origin = echo();
    let gateway = gateway_with(&origin, PLUGINS, &with_keys(&["jack"]));
    let mut client = connected(&gateway, "apikey: jack\r\n");
    change_consumers(&gateway, &origin, PLUGINS, &with_keys(&["rose"]));
    client.send(frame(0x81, b"still here", true));
    assert_eq!(next(&mut client).1, b"still here");
}

#[test]
fn a_credential_may_stand_among_the_subprotocols() {
    let origin = echo();
    let gateway = gateway_with(&origin, "{ key-auth: { websocket_protocol: key } }", &with_keys(&["k1"]));
    for (offers, status, forwarded) in [
        ("key, k1", 101, None),
        ("chat, key, k1, v2", 101, Some("chat, v2")),
        ("key, wrong", 401, None),
        ("key", 401, None),
    ] {
        origin.forget();
        let mut client = gateway.client();
        client.send(format!(
            "GET /chat HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {offers}\r\n\r\n"
        ));
        let answer = client.response_head("GET").expect("an answer");
        assert_eq!(answer.status, status, "{offers}");
        assert_eq!(answer.headers.get("Sec-WebSocket-Protocol"), (status == 101).then_some("key"), "{offers}");
        let seen = origin.requests();
        assert_eq!(seen.is_empty(), status != 101, "{offers}");
        for request in seen {
            assert_eq!(request.headers.get("Sec-WebSocket-Protocol"), forwarded, "{offers}");
            assert_eq!(request.headers.get("X-Consumer-Username"), Some("k1"));
        }
    }
}

#[test]
fn messages_beyond_a_quota_close_it_or_are_dropped() {
    let limit =
        |more: &str| format!("{{ limit-events: {{ count: 3, time_window: 600, direction: from_client{more} }} }}");
    let origin = echo();
    let gateway_closing = gateway(&origin, &limit(""));
    let mut clients = [connected(&gateway_closing, ""), connected(&gateway_closing, "")];
    for number in [0, 1, 0] {
        clients[number].send(frame(0x81, b"hello", true));
        assert_eq!(next(&mut clients[number]).1, b"hello");
    }
    clients[1].send(frame(0x81, b"too many", true));
    is_closed(&mut clients[1], 1008, "the quota of events is used up");
    account(&gateway_closing, "websocket", "from_client", [4, 3, 1, 0]);
    let gateway_dropping = gateway(&origin, &limit(", action: drop"));
    let mut client = connected(&gateway_dropping, "");
    for _ in 0..5 {
        client.send([frame(0x01, b"he", true), frame(0x80, b"llo", true)].concat());
    }
    client.send(frame(0x89, b"after", true));
    let frames: Vec<_> = (0..7).map(|_| next(&mut client)).collect();
    assert_eq!(frames.iter().filter(|(first, _)| *first == 0x80).count(), 3);
    assert_eq!(frames[6], (0x89, b"after".to_vec()));
    account(&gateway_dropping, "websocket", "from_client", [5, 3, 2, 0]);
}

/// How many streams of the route have been ended for this cause, and by this plugin.
fn early_ends(gateway: &Gateway, cause: &str, plugin: &str) -> [u64; 2] {
    let metrics = gateway.metrics();
    let plugin = format!("policy=\"{plugin}\"");
    let refusals = metrics.sum("weir_policy_refusals_total", &["route=\"chat\"", &plugin]);
    [metrics.sum("weir_http_errors_total", &[&format!("cause=\"{cause}\"")]) as u64, refusals as u64]
}

#[test]
fn a_stream_that_a_policy_ends_is_logged_and_counted_with_its_cause() {
    let origin = echo();
    let events = event_stream("data: a\n\ndata: 0123456789\n\ndata: b\n\n");
    let mut gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "enable_access_log: {{ path: access.log, format: '$uri $status $error_cause $refused_by' }}\n\
         routes:\n\
         - {{ id: chat, uri: /chat, upstream: {{ nodes: {{ \"{}\": 1 }} }}, plugins: {{ \
           websocket-policy: {{ client: {{ max_message_size: 10, message_types: [text] }} }}, \
           limit-events: {{ count: 3, time_window: 600, direction: from_client }} }} }}\n\
         - {{ id: few, uri: /few, upstream: {{ nodes: {{ \"{events}\": 1 }} }}, plugins: {{ \
           limit-events: {{ count: 1, time_window: 600 }} }} }}\n\
         - {{ id: small, uri: /small, upstream: {{ nodes: {{ \"{events}\": 1 }} }}, plugins: {{ \
           sse-policy: {{ max_event_size: 12 }} }} }}\n",
        origin.addr(),
        events = events.addr(),
    ));
    let mut client = connected(&gateway, "");
    client.send(frame(0x88, &close(1000, "bye"), true));
    assert_eq!(next(&mut client), (0x88, close(1000, "bye")));
    // The node waits for those that have not closed.
    drop(client);
    for (sent, code, reason) in [
        (frame(0x81, b"0123456789a", true), 1009, "the message has more than 10 bytes"),
        (frame(0x82, b"x", true), 1003, "binary messages are not accepted"),
        (frame(0x83, b"", true), 1002, "the opcode is reserved"),
    ] {
        let mut client = connected(&gateway, "");
        client.send(sent);
        is_closed(&mut client, code, reason);
    }
    let mut client = connected(&gateway, "");
    // The message that was too large was the first one of the quota.
    for _ in 0..2 {
        client.send(frame(0x81, b"a", true));
        assert_eq!(next(&mut client).1, b"a");
    }
    client.send(frame(0x81, b"a", true));
    is_closed(&mut client, 1008, "the quota of events is used up");
    for path in ["/few", "/small"] {
        gateway.get(path).text();
    }
    let ended = |cause: &'static str, plugin: &'static str, wanted: [u64; 2]| {
        eventually(&format!("{cause} by {plugin}: {wanted:?}"), DEADLINE, || {
            early_ends(&gateway, cause, plugin) == wanted
        });
    };
    ended("message_too_large", "websocket-policy", [2, 2]);
    ended("message_refused", "websocket-policy", [2, 2]);
    ended("event_quota", "limit-events", [2, 1]);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let text = std::fs::read_to_string(gateway.directory().join("access.log")).expect("it was written");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "/chat 101 - -",
            "/chat 101 event_quota limit-events",
            "/chat 101 message_refused -",
            "/chat 101 message_refused websocket-policy",
            "/chat 101 message_too_large websocket-policy",
            "/few 200 event_quota limit-events",
            "/small 200 message_too_large sse-policy",
        ]
    );
}

/// An event stream with this text, each byte in a chunk of its own.
fn event_stream(text: &'static str) -> Origin {
    Origin::serving(move |_| {
        let chunks: String = text.chars().map(|byte| format!("1\r\n{byte}\r\n")).collect();
        Answer::raw(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
        ))
    })
}

#[test]
fn events_beyond_a_quota_end_the_stream_or_are_dropped() {
    const STREAM: &str = ": hi\n\nid: 1\ndata: a\n\nretry: 5\n\ndata: b\r\n\r\ndata: c\n\nid: 4\ndata: d\n\n";
    let origin = event_stream(STREAM);
    for by_http2 in [false, true] {
        let ask = |gateway: &Gateway| {
            let client = gateway.client();
            let mut client = if by_http2 { client.by_http2() } else { client };
            let response =
                client.ask("GET / HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n").expect("complete");
            assert_eq!(response.status, 200);
            String::from_utf8(response.body).expect("text")
        };
        let enough = gateway(&origin, "{ limit-events: { count: 4, time_window: 600 } }");
        assert_eq!(ask(&enough), STREAM, "nothing is changed");
        account(&enough, "sse", "from_upstream", [4, 4, 0, 0]);
        let closing = gateway(&origin, "{ limit-events: { count: 2, time_window: 600 } }");
        let begin = ": hi\n\nid: 1\ndata: a\n\nretry: 5\n\ndata: b\r\n\r\n";
        assert_eq!(ask(&closing), format!("{begin}: the quota of events is used up\n\n"));
        account(&closing, "sse", "from_upstream", [3, 2, 1, 0]);
        let dropping = gateway(&origin, "{ limit-events: { count: 2, time_window: 600, action: drop } }");
        assert_eq!(ask(&dropping), begin);
        account(&dropping, "sse", "from_upstream", [4, 2, 2, 0]);
    }
}

/// A limit shared by several gateways.
fn shared(redis: &Redis, options: &str) -> String {
    format!(
        "{{ limit-events: {{ time_window: 86400, policy: redis, redis_host: 127.0.0.1, redis_port: {}, sync_interval: 0.1, \
         redis_timeout: 10000, {options} }} }}",
        redis.port
    )
}

#[test]
fn messages_count_together_at_gateways_that_share_a_redis() {
    let Some(redis) = Redis::start(&[]) else { return };
    let origin = echo();
    let limit = shared(&redis, "count: 5, direction: from_client");
    let gateways = [(); 2].map(|()| gateway(&origin, &limit));
    let say = |client: &mut Client| {
        client.send(frame(0x81, b"hello", true));
        assert_eq!(next(client).1, b"hello");
    };
    let mut first = connected(&gateways[0], "");
    (0..3).for_each(|_| say(&mut first));
    eventually("the server knows", DEADLINE, || redis.counted() == "3");
    let mut second = connected(&gateways[1], "");
    (0..2).for_each(|_| say(&mut second));
    second.send(frame(0x81, b"too many", true));
    is_closed(&mut second, 1008, "the quota of events is used up");
    // The first gateway learns the total with its next report.
    eventually("the server knows", DEADLINE, || redis.counted() == "5");
    say(&mut first);
    eventually("the server knows", DEADLINE, || redis.counted() == "6");
    let mut late = connected(&gateways[0], "");
    late.send(frame(0x81, b"too many", true));
    is_closed(&mut late, 1008, "the quota of events is used up");
}

#[test]
fn without_its_redis_a_gateway_refuses_streams_or_counts_alone() {
    let Some(redis) = Redis::start(&[]) else { return };
    let origin = echo();
    let strict = gateway(&origin, &shared(&redis, "count: 2, direction: from_client"));
    let alone = gateway(&origin, &shared(&redis, "count: 2, direction: from_client, allow_degradation: true"));
    drop(redis);
    let mut client = strict.client();
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n";
    client.send(format!("GET /chat HTTP/1.1\r\nHost: t\r\n{upgrade}\r\n"));
    assert_eq!(client.response_head("GET").expect("an answer").status, 500);
    let mut client = connected(&alone, "");
    for _ in 0..2 {
        client.send(frame(0x81, b"hello", true));
        assert_eq!(next(&mut client).1, b"hello");
    }
    client.send(frame(0x81, b"too many", true));
    is_closed(&mut client, 1008, "the quota of events is used up");
}

#[test]
fn events_count_together_at_gateways_that_share_a_redis() {
    const STREAM: &str = "data: a\n\ndata: b\n\ndata: c\n\ndata: d\n\n";
    let Some(redis) = Redis::start(&[]) else { return };
    let origin = event_stream(STREAM);
    let limit = shared(&redis, "count: 6");
    let gateways = [(); 2].map(|()| gateway(&origin, &limit));
    let ask = |gateway: &Gateway| {
        let asked = gateway.client().ask("GET / HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n\r\n");
        String::from_utf8(asked.expect("complete").body).expect("text")
    };
    assert_eq!(ask(&gateways[0]), STREAM);
    eventually("the server knows", DEADLINE, || redis.counted() == "4");
    assert_eq!(ask(&gateways[1]), "data: a\n\ndata: b\n\n: the quota of events is used up\n\n");
}

#[test]
fn an_event_that_is_cut_has_failed() {
    let origin = event_stream("data: a\n\ndata: b");
    let gateway = gateway(&origin, "{ limit-events: { count: 9, time_window: 600 } }");
    assert_eq!(gateway.get("/").body, b"data: a\n\ndata: b");
    account(&gateway, "sse", "from_upstream", [2, 1, 0, 1]);
}

/// A WebSocket in a stream of HTTP/2 (RFC 8441), which offers these extensions.
async fn open_over_http2(gateway: &Gateway, extensions: Option<&str>) -> (h2::SendStream<Bytes>, h2::RecvStream) {
    let tcp = TcpStream::connect(gateway.addr()).await.expect("it listens");
    let (mut requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 is spoken");
    tokio::spawn(async move {
        // Errors of the connection also appear as errors of its streams.
        let _ = connection.await;
    });
    let first = Request::get("http://t/").body(()).expect("a request");
    let _ = requests.send_request(first, true).expect("it stands").0.await;
    let mut request = Request::builder().method(Method::CONNECT).uri("http://t/chat");
    request = request.extension(Protocol::from_static("websocket"));
    if let Some(extensions) = extensions {
        request = request.header("sec-websocket-extensions", extensions);
    }
    let request = request.header("sec-websocket-version", "13").body(()).expect("a request");
    let (answer, sending) = requests.send_request(request, false).expect("the connection stands");
    let (head, receiving) = answer.await.expect("an answer").into_parts();
    assert_eq!(head.status, 200);
    (sending, receiving)
}

async fn over_http2(gateway: &Gateway) {
    let (mut sending, mut receiving) = open_over_http2(gateway, None).await;
    let mut received = Vec::new();
    for message in ["one", "two", "three"] {
        sending.send_data(Bytes::from(frame(0x81, message.as_bytes(), true)), false).expect("it is taken");
        let want = match message {
            "three" => frame(FIRST_OF_CLOSE, &close(1008, "the quota of events is used up"), false),
            message => frame(0x81, message.as_bytes(), false),
        };
        while received.len() < want.len() {
            let part = receiving.data().await.expect("it comes back").expect("whole");
            receiving.flow_control().release_capacity(part.len()).expect("it was received");
            received.extend_from_slice(&part);
        }
        assert_eq!(std::mem::take(&mut received), want);
    }
    assert!(receiving.data().await.is_none_or(|part| part.is_ok_and(|part| part.is_empty())), "the stream ends");
}

#[test]
fn a_stream_of_http2_is_held_to_the_same() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        if request.headers.get("Upgrade").is_none() {
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return;
        }
        let _ = connection
            .send("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n");
        while let Some((first, content)) = read_frame(|count| connection.exact(count)) {
            if connection.send(frame(first, &content, false)).is_err() {
                return;
            }
        }
    });
    let gateway = gateway(&origin, "{ limit-events: { count: 2, time_window: 600, direction: from_client } }");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, over_http2(&gateway)).await.expect("in time") });
    account(&gateway, "websocket", "from_client", [3, 2, 1, 0]);
}

#[test]
fn messages_that_come_with_the_101_are_checked() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Ok(_) = connection.request() else { return };
        let head = "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
        let frames = [frame(0x81, b"hello", false), frame(0x82, b"too large", false)].concat();
        let _ = connection.send([head.as_bytes(), &frames].concat());
        connection.wait_gone();
    });
    let gateway = gateway(&origin, "{ websocket-policy: { upstream: { max_message_size: 5 } } }");
    let mut client = connected(&gateway, "");
    assert_eq!(next(&mut client), (0x81, b"hello".to_vec()));
    is_closed(&mut client, 1009, "the message has more than 5 bytes");
}

/// An event stream that sends an event for each line of text that the test passes on, and stays open.
fn open_stream(events: std::sync::mpsc::Receiver<String>) -> Origin {
    let events = std::sync::Mutex::new(events);
    Origin::scripted(Reading::Strict, move |connection| {
        let Ok(_) = connection.request() else { return };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
        if connection.send(head).is_err() {
            return;
        }
        let events = events.lock().expect("no other connection");
        while let Ok(event) = events.recv() {
            if connection.send(event).is_err() {
                return;
            }
        }
    })
}

/// Asks for an event stream, and reads the head of the response.
fn listening(gateway: &Gateway, lines: &str) -> Client {
    let mut client = gateway.client();
    client.send(format!("GET / HTTP/1.1\r\nHost: t\r\nAccept: text/event-stream\r\n{lines}\r\n"));
    assert_eq!(client.response_head("GET").expect("an answer").status, 200);
    client
}

/// The pieces of content up to one with this text.
fn up_to(client: &mut Client, text: &str) -> String {
    let mut content = String::new();
    while !content.contains(text) {
        let piece = client.chunk().expect("the stream goes on");
        assert!(!piece.is_empty(), "the stream has ended after {content:?}");
        content.push_str(std::str::from_utf8(&piece).expect("text"));
    }
    content
}

#[test]
fn a_silent_event_stream_gets_comments() {
    let (send, events) = std::sync::mpsc::channel();
    let origin = open_stream(events);
    let gateway = gateway(&origin, "{ sse-policy: { heartbeat: 1 } }");
    let mut client = listening(&gateway, "");
    send.send("id: 1\ndata: a\n\n".to_owned()).expect("the origin listens");
    // Where this takes a second, a comment comes first.
    assert_eq!(up_to(&mut client, "data: a\n\n").trim_start_matches(":\n\n"), "id: 1\ndata: a\n\n");
    assert_eq!(up_to(&mut client, ":"), ":\n\n");
    assert_eq!(up_to(&mut client, ":"), ":\n\n");
    // Within an event a comment with an empty line would end the event.
    send.send("data: b\n".to_owned()).expect("the origin listens");
    assert_eq!(up_to(&mut client, "data: b\n").trim_start_matches(":\n\n"), "data: b\n");
    let quiet = std::time::Instant::now();
    let rest = std::thread::scope(|scope| {
        let reading = scope.spawn(|| up_to(&mut client, "\n\n"));
        eventually("time for a comment has passed", DEADLINE, || quiet.elapsed().as_millis() > 1500);
        send.send("data: c\n\n".to_owned()).expect("the origin listens");
        reading.join().expect("it reads")
    });
    assert_eq!(rest, "data: c\n\n");
    account(&gateway, "sse", "from_upstream", [2, 2, 0, 0]);
}

#[test]
fn an_event_stream_ends_with_the_credential_of_its_request() {
    const PLUGINS: &str = "{ key-auth: {}, sse-policy: { max_event_size: 20 } }";
    let (send, events) = std::sync::mpsc::channel();
    let origin = open_stream(events);
    let gateway = gateway_with(&origin, PLUGINS, &with_keys(&["jack", "rose"]));
    let mut client = listening(&gateway, "apikey: jack\r\n");
    send.send("data: a\n\n".to_owned()).expect("the origin listens");
    assert_eq!(up_to(&mut client, "data: a\n\n"), "data: a\n\n");
    change_consumers(&gateway, &origin, PLUGINS, &with_keys(&["rose"]));
    assert_eq!(up_to(&mut client, "revoked"), ": the credential has been revoked\n\n");
    assert_eq!(client.chunk().expect("the end of the response"), b"");
}

#[test]
fn an_event_that_is_too_large_ends_its_stream() {
    let origin = event_stream("data: a\n\ndata: 0123456789\n\ndata: b\n\n");
    let gateway = gateway(&origin, "{ sse-policy: { max_event_size: 12 } }");
    let content = gateway.get("/").text();
    assert!(content.starts_with("data: a\n\n") && content.len() < 24, "{content:?}");
    account(&gateway, "sse", "from_upstream", [2, 1, 0, 1]);
}
