//! WebSockets that have a stream of HTTP/2 (RFC 8441), on either side.

use bytes::Bytes;
use h2::ext::Protocol;
use http::{Method, Request};
use tokio::net::TcpStream;
use weir_testkit::{Client, DEADLINE, Gateway, Origin, Reading, eventually};

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
    eventually("no tunnel is left", DEADLINE, || origin.open_connections() == 0);
}

/// RFC 8441 §5: any 2xx would tell the client that its WebSocket is established.
#[test]
fn one_that_there_is_not_is_refused_and_not_answered_as_a_page() {
    let origin = Origin::serving(|_| weir_testkit::Answer::ok("a page"));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:\n  - {{ uri: /page, enable_websocket: false, upstream: {{ nodes: {{ \"{0}\": 1 }} }} }}\n  \
         - {{ uri: /upstream, upstream: {{ nodes: {{ \"{0}\": 1 }} }} }}\n  \
         - {{ uri: /mocked, plugins: {{ mocking: {{ response_example: mocked }} }} }}\n",
        origin.addr()
    ));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let status = async |method: Method, target: &str| {
        let tcp = TcpStream::connect(gateway.addr()).await.expect("it listens");
        let (mut requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 is spoken");
        tokio::spawn(async move {
            // What goes wrong with the connection goes wrong with its streams.
            let _ = connection.await;
        });
        let is_page = method == Method::GET;
        let mut request = Request::builder().method(method).uri(format!("http://t{target}"));
        if !is_page {
            let first = requests.send_request(Request::get("http://t/no").body(()).expect("a request"), true);
            first.expect("it stands").0.await.expect("an answer");
            request = request.extension(Protocol::from_static("websocket")).header("sec-websocket-version", "13");
        }
        let sent = requests.send_request(request.body(()).expect("a request"), is_page);
        let (answer, _sending) = sent.expect("the connection stands");
        answer.await.expect("an answer").status().as_u16()
    };
    runtime.block_on(async {
        for (target, refused) in [("/page", 501), ("/upstream", 502), ("/mocked", 502)] {
            let both = async { (status(Method::GET, target).await, status(Method::CONNECT, target).await) };
            let both = tokio::time::timeout(DEADLINE, both).await.expect("in time");
            assert_eq!(both, (200, refused), "{target}");
        }
    });
    // A client of HTTP/1.1 knows a page from a 101.
    let answer = upgrade(&mut gateway.client(), "/page");
    assert_eq!(answer.status, 200);
}

/// The same as an upstream of HTTP/2: one that knows WebSockets in streams, or does not.
fn http2_origin(knows_them: bool) -> Origin {
    Origin::scripted(Reading::Strict, move |connection| {
        let socket = connection.socket();
        socket.set_nonblocking(true).expect("a socket takes options");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut server = h2::server::Builder::new();
            if knows_them {
                server.enable_connect_protocol();
            }
            let tcp = TcpStream::from_std(socket).expect("the runtime takes it");
            let mut connection = server.handshake::<_, Bytes>(tcp).await.expect("HTTP/2 is spoken");
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(echo(request, respond));
            }
        });
    })
}

async fn echo(request: Request<h2::RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
    let protocol = request.extensions().get::<Protocol>().map(|protocol| protocol.as_str().to_owned());
    let is_one = request.method() == Method::CONNECT && protocol.as_deref() == Some("websocket");
    let has_key = request.headers().contains_key("sec-websocket-key");
    if !is_one || has_key || request.uri().path() == "/no" {
        let response = http::Response::builder().status(403).body(()).expect("a response");
        respond.send_response(response, true).expect("the gateway waits for it");
        return;
    }
    let mut response = http::Response::builder().status(200);
    if let Some(chosen) = request.headers().get("sec-websocket-protocol") {
        response = response.header("sec-websocket-protocol", chosen);
    }
    let mut sending = respond.send_response(response.body(()).expect("a response"), false).expect("it is taken");
    let mut receiving = request.into_body();
    while let Some(Ok(part)) = receiving.data().await {
        receiving.flow_control().release_capacity(part.len()).expect("it was received");
        sending.send_data(part, false).expect("it is taken");
    }
    // The end comes back; where the gateway has gone nobody waits for it.
    let _ = sending.send_data(Bytes::new(), true);
}

fn before_http2(origin: &Origin) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, enable_websocket: true, upstream: {{ http2: true, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ))
}

/// Asks for a WebSocket in HTTP/1.1; the key is the one of RFC 6455 §1.3.
fn upgrade(client: &mut Client, target: &str) -> weir_testkit::Response {
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ));
    client.response_head("GET").expect("an answer")
}

#[test]
fn one_has_a_stream_of_its_own_on_both_sides() {
    let origin = http2_origin(true);
    let gateway = before_http2(&origin);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(DEADLINE, tunnels(&gateway)).await.expect("in time") });
    drop(runtime);
    assert_eq!(origin.connections(), 1, "they share a connection");
}

#[test]
fn one_of_http1_has_a_stream_at_its_upstream() {
    let origin = http2_origin(true);
    let gateway = before_http2(&origin);
    for _ in 0..3 {
        let mut client = gateway.client();
        let answer = upgrade(&mut client, "/chat");
        assert_eq!(answer.status, 101);
        assert_eq!(answer.headers.get("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert!(answer.headers.lists("Connection", "upgrade") && answer.headers.get("Upgrade") == Some("websocket"));
        client.send("hello");
        assert_eq!(client.exact(5).expect("it comes back"), b"hello");
        client.finish_sending();
        assert_eq!(client.until_closed(), b"", "the end comes back");
    }
    assert_eq!(upgrade(&mut gateway.client(), "/no").status, 403);
    assert_eq!(origin.connections(), 1, "they share a connection");
}

#[test]
fn an_upstream_of_http2_that_knows_none_refuses() {
    let origin = http2_origin(false);
    let gateway = before_http2(&origin);
    assert_eq!(upgrade(&mut gateway.client(), "/chat").status, 403);
}

/// What the gateway has counted, in the order client received, client sent, upstream received, upstream sent.
fn counted(gateway: &Gateway) -> [f64; 4] {
    let metrics = gateway.metrics();
    let count = |metric, direction| metrics.sum(metric, &[&*format!("direction=\"{direction}\"")]);
    let (client, upstream) = ("weir_client_bytes_total", "weir_upstream_bytes_total");
    [count(client, "received"), count(client, "sent"), count(upstream, "received"), count(upstream, "sent")]
}

/// Sends so much through a tunnel in a stream of its own, and takes as much back.
async fn echo_through_a_stream(gateway: &Gateway, bytes: usize) {
    let tcp = TcpStream::connect(gateway.addr()).await.expect("it listens");
    let (mut requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 is spoken");
    tokio::spawn(async move {
        // What goes wrong with the connection goes wrong with its streams.
        let _ = connection.await;
    });
    // The settings, which allow the tunnel, come before this answer.
    let first =
        requests.send_request(Request::get("http://t/no").body(()).expect("a request"), true).expect("it stands").0;
    assert_eq!(first.await.expect("an answer").status(), 403);
    let mut request = Request::builder().method(Method::CONNECT).uri("http://t/chat");
    request = request.extension(Protocol::from_static("websocket"));
    let request = request.header("sec-websocket-version", "13").body(()).expect("a request");
    let (answer, mut sending) = requests.send_request(request, false).expect("the connection stands");
    let mut receiving = answer.await.expect("an answer").into_body();
    sending.send_data(Bytes::from(vec![0; bytes]), false).expect("it is taken");
    let mut back = 0;
    while back < bytes {
        let part = receiving.data().await.expect("it comes back").expect("whole");
        back += part.len();
        receiving.flow_control().release_capacity(part.len()).expect("it was received");
    }
}

#[test]
fn every_byte_of_a_tunnel_counts_once_on_each_side() {
    const BYTES: usize = 200_000;
    /// What heads and frames may add.
    const FRAMING: usize = 10_000;
    let origins = [origin(), http2_origin(true)];
    let http1 = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, enable_websocket: true, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        origins[0].addr()
    ));
    for gateway in [http1, before_http2(&origins[1])] {
        for by_http2 in [false, true] {
            let before = counted(&gateway);
            if by_http2 {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let echo = echo_through_a_stream(&gateway, BYTES);
                runtime.block_on(async { tokio::time::timeout(DEADLINE, echo).await.expect("in time") });
            } else {
                let mut client = gateway.client();
                assert_eq!(upgrade(&mut client, "/chat").status, 101);
                client.send(vec![0; BYTES]);
                assert_eq!(client.exact(BYTES as u64).expect("it comes back").len(), BYTES);
            }
            let added = || -> [usize; 4] {
                let after = counted(&gateway);
                std::array::from_fn(|at| (after[at] - before[at]) as usize)
            };
            // The client may have the last bytes before the gateway has counted them.
            eventually("all bytes are counted", DEADLINE, || added().iter().all(|&bytes| bytes >= BYTES));
            let added = added();
            assert!(added.iter().all(|&bytes| bytes < BYTES + FRAMING), "HTTP/2: {by_http2}: {added:?}");
        }
    }
}
