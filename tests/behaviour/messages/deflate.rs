//! Compressed messages of WebSockets (RFC 7692). They are compressed by the tests themselves.

use flate2::{Compress, Compression, FlushCompress};

use super::*;

const OFFER: &str = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
const SCHEMA: &str = "{ type: object, required: [a], properties: { a: { type: integer } } }";

/// A sender that keeps its context from one message to the next.
struct Sender(Compress);

impl Sender {
    fn new() -> Sender {
        Sender(Compress::new(Compression::best(), false))
    }

    /// RFC 7692 §7.2.1: what a flush makes, without its last four bytes.
    fn compress(&mut self, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(content.len() + 100);
        self.0.compress_vec(content, &mut out, FlushCompress::Sync).expect("it has room");
        assert!(out.ends_with(&[0, 0, 0xff, 0xff]));
        out.truncate(out.len() - 4);
        out
    }
}

/// Accepts compression with these parameters, and sends frames back as they came.
fn compressing(parameters: &'static str) -> Origin {
    Origin::scripted(Reading::Strict, move |connection| {
        let Ok(request) = connection.request() else { return };
        if request.headers.get("Upgrade").is_none() {
            let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return;
        }
        connection.record(&request);
        let accepted = format!(
            "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\
             Sec-WebSocket-Extensions: permessage-deflate{parameters}\r\n\r\n"
        );
        if connection.send(accepted).is_err() {
            return;
        }
        while let Some((first, content)) = read_frame(|count| connection.exact(count)) {
            if connection.send(frame(first, &content, false)).is_err() {
                return;
            }
        }
    })
}

#[test]
fn compressed_texts_have_to_match_a_schema_and_pass_as_they_came() {
    let origin = compressing("");
    let gateway = gateway(&origin, &format!("{{ websocket-policy: {{ client: {{ schema: {SCHEMA} }} }} }}"));
    let mut client = connected(&gateway, OFFER);
    let offered = origin.wait_requests(1)[0].headers.get("Sec-WebSocket-Extensions").map(str::to_owned);
    assert_eq!(offered.as_deref(), Some("permessage-deflate; client_max_window_bits"));
    let mut sender = Sender::new();
    let mut lengths = Vec::new();
    for _ in 0..3 {
        let message = sender.compress(b"{\"a\": 1234567890, \"b\": \"abcdefghijklmnopqrstuvwxyz\"}");
        let (one, other) = message.split_at(message.len() / 2);
        client.send([frame(0x41, one, true), frame(0x89, b"p", true), frame(0x80, other, true)].concat());
        assert_eq!(next(&mut client), (0x89, b"p".to_vec()), "a ping does not wait");
        assert_eq!(next(&mut client), (0xc1, message.clone()), "it goes on in one frame, compressed as it was");
        lengths.push(message.len());
    }
    assert!(lengths[1] * 2 < lengths[0], "the second refers to the first: {lengths:?}");
    client.send(frame(0x81, b"{\"a\":1}", true));
    assert_eq!(next(&mut client), (0x81, b"{\"a\":1}".to_vec()), "a message need not be compressed");
    client.send(frame(0xc1, &sender.compress(b"{\"a\":\"1\"}"), true));
    is_closed(&mut client, 1007, "the message does not match the schema");
    account(&gateway, "websocket", "from_client", [5, 4, 0, 1]);
}

#[test]
fn compressed_messages_of_an_upstream_are_read_as_well() {
    let origin = compressing("; server_no_context_takeover; client_no_context_takeover");
    let gateway = gateway(&origin, &format!("{{ websocket-policy: {{ upstream: {{ schema: {SCHEMA} }} }} }}"));
    let mut client = connected(&gateway, OFFER);
    for text in ["{\"a\":1}", "{\"a\":2}"] {
        let message = Sender::new().compress(text.as_bytes());
        client.send(frame(0xc1, &message, true));
        assert_eq!(next(&mut client), (0xc1, message));
    }
    client.send(frame(0xc1, &Sender::new().compress(b"{}"), true));
    is_closed(&mut client, 1007, "the message does not match the schema");
}

#[test]
fn messages_that_no_schema_reads_keep_the_context_of_those_that_it_reads() {
    let origin = compressing("");
    let policy = format!("{{ websocket-policy: {{ client: {{ schema: {SCHEMA}, message_types: [text, binary] }} }} }}");
    let gateway = gateway(&origin, &policy);
    let mut client = connected(&gateway, OFFER);
    let (mut sender, text) = (Sender::new(), b"{\"a\": 1234567890, \"b\": \"abcdefghijklmnopqrstuvwxyz\"}");
    for first in [0xc2, 0xc1] {
        let message = sender.compress(text);
        client.send(frame(first, &message, true));
        assert_eq!(next(&mut client), (first, message));
    }
    let bomb = sender.compress(&vec![b' '; 1 << 20]);
    client.send(frame(0xc2, &bomb, true));
    is_closed(&mut client, 1009, "an inflated message is too large");
}

#[test]
fn the_size_of_a_message_counts_after_inflation_also_without_a_schema() {
    for parameters in ["", "; client_no_context_takeover; server_no_context_takeover"] {
        let origin = compressing(parameters);
        let gateway = gateway(&origin, "{ websocket-policy: { client: { max_message_size: 100000 } } }");
        let mut client = connected(&gateway, OFFER);
        let mut sender = Sender::new();
        let mut compress = |content: &[u8]| {
            if parameters.contains("client_no_context") {
                sender = Sender::new();
            }
            sender.compress(content)
        };
        for _ in 0..2 {
            let message = compress(&vec![b' '; 100_000]);
            client.send(frame(0xc1, &message, true));
            assert_eq!(next(&mut client), (0xc1, message), "it passes as it came");
        }
        let bomb = compress(&vec![b' '; 100_001]);
        assert!(bomb.len() < 1_000);
        client.send(frame(0xc2, &bomb, true));
        is_closed(&mut client, 1009, "an inflated message is too large");
        account(&gateway, "websocket", "from_client", [3, 2, 0, 1]);
    }
}

#[test]
fn a_message_that_is_too_large_to_be_read_is_refused_in_the_name_of_its_plugin() {
    let origin = compressing("");
    let mut gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "enable_access_log: {{ path: access.log, format: '$status $error_cause $refused_by' }}\n\
         routes: [{{ id: chat, uri: /chat, upstream: {{ nodes: {{ \"{}\": 1 }} }}, plugins: {{ \
           limit-events: {{ count: 100, time_window: 600 }}, \
           websocket-policy: {{ client: {{ schema: {SCHEMA}, max_message_size: 1000 }} }} }} }}]\n",
        origin.addr(),
    ));
    let bomb = || Sender::new().compress(&[b' '; 10_000]);
    for (sent, reason) in [
        (frame(0x81, &[b' '; 1_001], true), "the message has more than 1000 bytes"),
        (frame(0xc1, &bomb(), true), "an inflated message is too large"),
    ] {
        let mut client = connected(&gateway, OFFER);
        client.send(sent);
        is_closed(&mut client, 1009, reason);
    }
    eventually("both are counted", DEADLINE, || {
        early_ends(&gateway, "message_too_large", "websocket-policy") == [2, 2]
    });
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let text = std::fs::read_to_string(gateway.directory().join("access.log")).expect("it was written");
    assert_eq!(text, "101 message_too_large websocket-policy\n".repeat(2));
}

#[test]
fn a_compressed_message_that_breaks_a_rule_closes_it() {
    let origin = compressing("");
    let gateway = gateway(&origin, "{ websocket-policy: { client: { schema: {} } } }");
    let bomb = Sender::new().compress(&vec![b' '; 10 << 20]);
    assert!(bomb.len() < 20_000);
    let twice = [&[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..]; 2].concat();
    for (frames, code, reason) in [
        // RFC 7692 §7.2.2: a reserved type of block; a distance to before the first message.
        (frame(0xc1, &[0x07, 0], true), 1007, "a compressed message cannot be inflated"),
        (frame(0xc1, &[0xf2, 0x00, 0x11, 0x00, 0x00], true), 1007, "a compressed message cannot be inflated"),
        (frame(0xc1, &twice, true), 1007, "a compressed message has data after its final block"),
        (frame(0xc1, &bomb, true), 1009, "an inflated message is too large"),
        (frame(0xc1, &Sender::new().compress(b"\"\xff\""), true), 1007, "a text is not UTF-8"),
        // RFC 7692 §6: only the first frame of a message says that it is compressed, and no control frame.
        (frame(0xc9, b"p", true), 1002, "only the first frame of a message can say that it is compressed"),
        (
            [frame(0x41, &[0xf2], true), frame(0xc0, &[0x48], true)].concat(),
            1002,
            "only the first frame of a message can say that it is compressed",
        ),
        // RFC 6455 §5.2: the other reserved bits still have no meaning.
        (frame(0xa1, b"1", true), 1002, "a reserved bit is set"),
    ] {
        let mut client = connected(&gateway, OFFER);
        client.send(frames);
        is_closed(&mut client, code, reason);
    }
}

#[test]
fn without_an_agreement_no_message_may_be_compressed() {
    let origin = echo();
    let gateway = gateway(&origin, "{ websocket-policy: { client: { schema: {} } } }");
    let mut client = connected(&gateway, OFFER);
    client.send(frame(0xc1, &Sender::new().compress(b"{}"), true));
    is_closed(&mut client, 1002, "a reserved bit is set");
}

#[test]
fn an_agreement_that_rfc_7692_does_not_have_is_a_502() {
    for parameters in ["; x", "; server_max_window_bits=7", "; client_max_window_bits"] {
        let origin = compressing(parameters);
        let gateway = gateway(&origin, "{ websocket-policy: {} }");
        let mut client = gateway.client();
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: x\r\n{OFFER}\r\n"
        ));
        assert_eq!(client.response_head("GET").expect("an answer").status, 502, "{parameters}");
    }
}

#[test]
fn messages_that_may_be_left_out_are_compressed_each_by_itself() {
    let origin = compressing("; server_no_context_takeover");
    let limit = "{ limit-events: { count: 1, time_window: 600, direction: from_client, action: drop } }";
    let gateway = gateway(&origin, limit);
    let mut client = gateway.client();
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: x\r\n{OFFER}\r\n"
    ));
    let head = client.response_head("GET").expect("an answer");
    let accepted = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    assert_eq!((head.status, head.headers.get("Sec-WebSocket-Extensions")), (101, Some(accepted)));
    let offered = origin.wait_requests(1)[0].headers.get("Sec-WebSocket-Extensions").map(str::to_owned);
    let want = "permessage-deflate; client_max_window_bits; server_no_context_takeover";
    assert_eq!(offered.as_deref(), Some(want));
    let messages = ["one", "two"].map(|text| frame(0xc1, &Sender::new().compress(text.as_bytes()), true));
    client.send([messages.concat(), frame(0x89, b"p", true)].concat());
    assert_eq!(next(&mut client).1, Sender::new().compress(b"one"));
    assert_eq!(next(&mut client), (0x89, b"p".to_vec()), "the second message is left out");
    account(&gateway, "websocket", "from_client", [2, 1, 1, 0]);
}

#[test]
fn compressed_messages_over_http2_are_read_as_well() {
    let origin = compressing("");
    let gateway = gateway(&origin, &format!("{{ websocket-policy: {{ client: {{ schema: {SCHEMA} }} }} }}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, read_over_http2(&gateway)).await.expect("in time") });
    account(&gateway, "websocket", "from_client", [3, 2, 0, 1]);
}

/// Sends two messages that match over a stream (RFC 8441), and one that does not.
async fn read_over_http2(gateway: &Gateway) {
    let (mut sending, mut receiving) = open_over_http2(gateway, Some("permessage-deflate")).await;
    let mut sender = Sender::new();
    let messages = ["{\"a\":1}", "{\"a\":1}", "{}"].map(|text| sender.compress(text.as_bytes()));
    let frames: Vec<u8> = messages.iter().flat_map(|message| frame(0xc1, message, true)).collect();
    sending.send_data(Bytes::from(frames), false).expect("sent");
    let reason = "the message does not match the schema";
    let closed = frame(FIRST_OF_CLOSE, &close(1007, reason), false);
    let want = [frame(0xc1, &messages[0], false), frame(0xc1, &messages[1], false), closed];
    let mut got = Vec::new();
    // The echo of the second message may come after the close frame, and is then not passed on.
    while !got.ends_with(&want[2]) {
        let part = receiving.data().await.expect("it comes back").expect("whole");
        receiving.flow_control().release_capacity(part.len()).expect("it was received");
        got.extend_from_slice(&part);
    }
    let passed = &got[..got.len() - want[2].len()];
    assert!(want[..2].concat().starts_with(passed), "{}", passed.escape_ascii());
}
