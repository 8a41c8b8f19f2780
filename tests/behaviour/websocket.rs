//! WebSockets that have a stream of HTTP/2 (RFC 8441), before upstreams of HTTP/1.1.

use bytes::Bytes;
use h2::ext::Protocol;
use http::{Method, Request};
use tokio::net::TcpStream;
use weir_testkit::{DEADLINE, Gateway, Origin, Reading};

/// An origin that agrees to any WebSocket and sends back what it gets, and refuses `/no`.
fn origin() -> Origin {
    Origin::scripted(Reading::Strict, |connection| {
        let Ok(request) = connection.request() else { return };
        let wants =
            request.headers.lists("Connection", "upgrade") && request.headers.get("Upgrade") == Some("websocket");
        let key = request.headers.get("Sec-WebSocket-Key").unwrap_or_default();
        if request.method != "GET" || !wants || key.len() != 24 || request.target == "/no" {
            let _ = connection.send("HTTP/1.1 403 X\r\nContent-Length: 2\r\n\r\nno");
            return;
        }
        let protocol = request.headers.get("Sec-WebSocket-Protocol").unwrap_or_default();
        let _ = connection.send(format!(
            "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        ));
        while let Ok(part) = connection.some() {
            if part.is_empty() || connection.send(part).is_err() {
                return;
            }
        }
    })
}

async fn tunnels(gateway: &Gateway) {
    let tcp = TcpStream::connect(gateway.addr()).await.expect("it listens");
    let (mut requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 is spoken");
    tokio::spawn(async move {
        // What goes wrong with the connection goes wrong with its streams.
        let _ = connection.await;
    });
    let connect = |target: &str| {
        let mut request = Request::builder().method(Method::CONNECT).uri(format!("http://t{target}"));
        request = request.extension(Protocol::from_static("websocket"));
        request
            .header("sec-websocket-version", "13")
            .header("sec-websocket-protocol", "chat")
            .body(())
            .expect("a request")
    };
    // The gateway says in its settings that it has them.
    let first =
        requests.send_request(Request::get("http://t/no").body(()).expect("a request"), true).expect("it stands").0;
    assert_eq!(first.await.expect("an answer").status(), 403);
    assert!(requests.is_extended_connect_protocol_enabled());
    for _ in 0..3 {
        let (answer, mut sending) = requests.send_request(connect("/chat"), false).expect("the connection stands");
        let (head, mut receiving) = answer.await.expect("an answer").into_parts();
        assert_eq!(head.status, 200);
        assert_eq!(head.headers.get("sec-websocket-protocol").expect("it was chosen"), "chat");
        assert!(!head.headers.contains_key("sec-websocket-accept") && !head.headers.contains_key("upgrade"));
        for word in ["one", "two", "three"] {
            sending.send_data(Bytes::from(word), false).expect("it is taken");
            let part = receiving.data().await.expect("it comes back").expect("whole");
            assert_eq!(part, word);
            receiving.flow_control().release_capacity(part.len()).expect("it was received");
        }
        sending.send_data(Bytes::new(), true).expect("it is taken");
        assert!(receiving.data().await.is_none_or(|part| part.is_ok_and(|part| part.is_empty())), "the end comes back");
    }
    let (answer, _sending) = requests.send_request(connect("/no"), false).expect("the connection stands");
    assert_eq!(answer.await.expect("an answer").status(), 403);
    let (answer, _open) = requests.send_request(connect("/chat"), false).expect("the connection stands");
    assert_eq!(answer.await.expect("an answer").status(), 200);
    // The client leaves without a word: its connection ends with the runtime.
}

#[test]
fn one_has_a_stream_of_its_own() {
    let origin = origin();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, enable_websocket: true, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, tunnels(&gateway)).await.expect("in time") });
    drop(runtime);
    weir_testkit::eventually("no tunnel is left", DEADLINE, || origin.open_connections() == 0);
}
