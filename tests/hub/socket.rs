//! A topic's events over a WebSocket (RFC 6455), read by the tests' own code and by the Python package `websockets`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tokio::net::TcpStream;
use weir_testkit::{Client, DEADLINE, Response, Signal, skipped};

use crate::listening::PATIENT;
use crate::peers::HubNode;

/// A client with an established WebSocket.
fn listener(node: &HubNode, query: &str) -> Client {
    let mut client = node.gateway.client();
    client.send(format!(
        "GET /t/orders{query} HTTP/1.1\r\nHost: gw.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ));
    let head = client.response_head("GET").expect("an answer");
    assert_eq!(head.status, 101);
    // The example of RFC 6455 §1.3.
    assert_eq!(head.headers.get("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client
}

/// The next frame of the hub: its first byte and its content.
fn frame(client: &mut Client) -> (u8, Vec<u8>) {
    let head = client.exact(2).expect("a frame");
    let length = match head[1] {
        126 => u64::from(u16::from_be_bytes(client.exact(2).expect("a length").try_into().expect("two bytes"))),
        127 => u64::from_be_bytes(client.exact(8).expect("a length").try_into().expect("eight bytes")),
        length => u64::from(length),
    };
    (head[0], client.exact(length).expect("content"))
}

fn text(client: &mut Client) -> String {
    let (first, content) = frame(client);
    assert_eq!(first, 0x81);
    String::from_utf8(content).expect("UTF-8")
}

/// A short frame of a client, with a mask of zeros.
fn masked(first: u8, content: &[u8]) -> Vec<u8> {
    [&[first, 0x80 | content.len() as u8, 0, 0, 0, 0], content].concat()
}

#[test]
fn a_websocket_has_one_message_for_each_event() {
    let node = HubNode::start();
    node.publish("before");
    let (mut live, mut all) = (listener(&node, ""), listener(&node, "?last_event_id=earliest&envelope=json"));
    node.publish("one");
    let large = vec![0xff; 300_000];
    node.publish_as("application/octet-stream", &large);
    assert_eq!(text(&mut live), "one");
    let (first, content) = frame(&mut live);
    assert!(first == 0x82 && content == large, "binary, as it is not UTF-8");
    let [before, one] = [(); 2].map(|()| serde_json::from_str::<serde_json::Value>(&text(&mut all)).expect("JSON"));
    assert_eq!((&before["data"], &one["data"]), (&"before".into(), &"one".into()));
    // The client comes again, and continues after what it has seen.
    let mut again = listener(&node, &format!("?last_event_id={}", before["id"]));
    assert_eq!(text(&mut again), "one");
}

#[test]
fn a_large_message_with_an_envelope_comes_in_fragments() {
    let node = HubNode::start();
    let mut client = listener(&node, "?envelope=json");
    let content = "line\n".repeat(10_000);
    node.publish(&content);
    let (mut first, mut message) = frame(&mut client);
    assert_eq!(first, 0x01, "text, and not the last fragment");
    while first & 0x80 == 0 {
        let (next, piece) = frame(&mut client);
        assert!(matches!(next, 0x00 | 0x80), "a continuation: {next:x}");
        first = next;
        message.extend(piece);
    }
    let object: serde_json::Value = serde_json::from_slice(&message).expect("JSON");
    assert_eq!(object["data"], content);
}

#[test]
fn pings_are_answered_and_a_close_ends_the_websocket() {
    let node = HubNode::start();
    let mut client = listener(&node, "");
    client.send(masked(0x89, b"there?"));
    assert_eq!(frame(&mut client), (0x8a, b"there?".to_vec()));
    client.send(masked(0x88, &[0x03, 0xe8]));
    assert_eq!(frame(&mut client), (0x88, vec![0x03, 0xe8]));
    client.finish_sending();
    assert_eq!(client.until_closed(), b"");
    // It only listens: 1003.
    let mut client = listener(&node, "");
    client.send(masked(0x81, b"hello"));
    let (first, content) = frame(&mut client);
    assert_eq!((first, &content[..2]), (0x88, &[0x03, 0xeb][..]));
    // A frame without a mask: 1002.
    let mut client = listener(&node, "");
    client.send([0x81, 1, b'x']);
    assert_eq!(frame(&mut client).1[..2], [0x03, 0xea]);
}

/// The answer to a request for a WebSocket with these lines.
fn refused(node: &HubNode, target: &str, lines: &str) -> Response {
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    node.gateway
        .client()
        .ask(format!("GET {target} HTTP/1.1\r\nHost: gw.example\r\n{upgrade}{lines}\r\n"))
        .expect("an answer")
}

const VERSION_AND_KEY: &str = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[test]
fn invalid_websocket_handshake_is_refused() {
    let node = HubNode::start();
    node.publish("one");
    let old = refused(&node, "/t/orders", "Sec-WebSocket-Version: 8\r\n");
    assert_eq!((old.status, old.headers.get("Sec-WebSocket-Version")), (426, Some("13")));
    assert_eq!(refused(&node, "/t/orders", "Sec-WebSocket-Version: 13\r\n").status, 400);
    assert_eq!(refused(&node, "/t/orders?envelope=xml", VERSION_AND_KEY).status, 400);
    assert_eq!(refused(&node, "/hub", VERSION_AND_KEY).status, 404);
}

#[test]
fn only_who_may_listen_gets_a_websocket() {
    let node = HubNode::with("  subscribe: { consumers: [jack] }\n");
    assert_eq!(refused(&node, "/t/orders", VERSION_AND_KEY).status, 401);
}

#[test]
fn a_listener_that_does_not_read_loses_nothing_and_holds_nothing_up() {
    let node = HubNode::with(PATIENT);
    let mut slow = listener(&node, "");
    let content = "x".repeat(100_000);
    for _ in 0..100 {
        node.publish(&content);
    }
    let mut quick = listener(&node, "?last_event_id=earliest");
    for _ in 0..100 {
        assert_eq!(text(&mut quick).len(), content.len());
    }
    for _ in 0..100 {
        assert_eq!(text(&mut slow).len(), content.len());
    }
}

#[test]
fn listeners_are_told_when_the_gateway_ends() {
    let node = HubNode::start();
    let mut client = listener(&node, "");
    node.gateway.signal(Signal::TERM);
    let (first, content) = frame(&mut client);
    assert_eq!((first, &content[..2]), (0x88, &[0x03, 0xe9][..]));
}

async fn listen_over_http2(node: &HubNode) {
    let tcp = TcpStream::connect(node.gateway.addr()).await.expect("it listens");
    let (mut requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 is spoken");
    tokio::spawn(async move {
        // What goes wrong with the connection goes wrong with its streams.
        let _ = connection.await;
    });
    // The settings of the gateway have come with the first answer.
    let first = http::Request::get("http://gw.example/t/orders").body(()).expect("a request");
    assert_eq!(requests.send_request(first, true).expect("it stands").0.await.expect("an answer").status(), 204);
    let request = http::Request::builder().method(http::Method::CONNECT).uri("http://gw.example/t/orders");
    let request = request.extension(h2::ext::Protocol::from_static("websocket")).header("sec-websocket-version", "13");
    let request = request.body(()).expect("a request");
    let (answer, _sending) = requests.send_request(request, false).expect("the connection stands");
    let (head, mut receiving) = answer.await.expect("an answer").into_parts();
    assert_eq!(head.status, 200);
    tokio::task::block_in_place(|| node.publish("one"));
    assert_eq!(receiving.data().await.expect("an event").expect("whole"), b"\x81\x03one"[..]);
}

#[test]
fn a_stream_of_http2_is_a_websocket_too() {
    let node = HubNode::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, listen_over_http2(&node)).await.expect("in time") });
}

/// An independent client, which checks the handshake and each frame.
const PYTHON: &str = r#"
import asyncio, sys, websockets
async def main():
    async with websockets.connect(sys.argv[1]) as socket:
        print("open", flush=True)
        for _ in range(2):
            print(await socket.recv(), flush=True)
        await (await socket.ping())
    print(socket.close_code, flush=True)
asyncio.run(main())
"#;

#[test]
fn the_python_package_websockets_listens() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/python/bin/python");
    let imports = Command::new(&python).args(["-c", "import websockets"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        return skipped("there is no Python with `websockets`");
    }
    let node = HubNode::start();
    let url = format!("ws://{}/t/orders", node.gateway.addr());
    let mut child = Command::new(python).args(["-c", PYTHON, &url]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("open"));
    node.publish("one");
    node.publish("zwei ü");
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest, ["one", "zwei ü", "1000"]);
    assert!(child.wait().expect("it ends").success());
}
