use std::sync::atomic::Ordering;

use bytes::Bytes;
use weir_testkit::BodyFraming;

use super::{FLOOD, FLOODED};
use crate::Rig;

#[test]
fn content_comes_back_before_the_request_is_complete() {
    let rig = Rig::start("echo: {}");
    let mut client = rig.client();
    client.send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    let head = client.response_head("POST").expect("a head");
    assert_eq!((head.status, head.framing), (200, BodyFraming::Chunked));
    assert_eq!(client.chunk().expect("a piece"), b"first");
    client.send("6\r\nsecond\r\n0\r\n\r\n");
    assert_eq!(client.chunk().expect("a piece"), b"second");
    assert_eq!(client.chunk().expect("the end"), b"");
}

#[test]
fn a_connection_goes_on_after_a_responder() {
    let rig = Rig::start("echo: {}");
    let mut client = rig.client();
    for text in ["one", "two"] {
        let length = text.len();
        let request = format!("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{text}");
        let response = client.ask(request).expect("a response");
        assert_eq!((response.status, &*response.body), (200, text.as_bytes()));
    }
    let response = client.get("/echo").expect("a response");
    assert_eq!((response.status, &*response.body), (200, &b""[..]));
}

#[test]
fn an_answer_may_come_before_the_content() {
    let rig = Rig::start("echo: {}");
    let mut client = rig.client();
    client.send("POST /early HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\nsome");
    assert_eq!(client.response_to("POST").expect("a response").status, 409);
}

#[test]
fn failing_plugin_is_answered_and_others_go_on() {
    let rig = Rig::start("echo: {}");
    for (path, status) in [("/fails", 418), ("/panics", 500)] {
        assert_eq!(rig.client().get(path).expect("a response").status, status, "{path}");
    }
    assert_eq!(rig.client().get("/echo").expect("a response").status, 200);
}

#[test]
fn a_client_that_does_not_read_holds_the_responder_back() {
    let rig = Rig::start("echo: {}");
    let mut client = rig.client();
    client.send("GET /flood HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(client.response_head("GET").expect("a head").status, 200);
    let mut read = 0;
    while read < 1 << 20 {
        read += client.chunk().expect("a piece").len() as u64;
    }
    // What the sockets of both sides hold is some megabytes.
    let ahead = FLOODED.load(Ordering::Relaxed) - read.min(FLOODED.load(Ordering::Relaxed));
    assert!(ahead < FLOOD / 2, "{ahead} bytes ahead of the client");
    loop {
        match client.chunk().expect("a piece").len() {
            0 => break,
            length => read += length as u64,
        }
    }
    assert!(read >= FLOOD, "{read}");
}

#[test]
fn a_stream_of_http2_is_echoed_as_it_comes() {
    let rig = Rig::start("echo: {}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let tcp = tokio::net::TcpStream::connect(rig.address).await.expect("connected");
        let (requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2");
        tokio::spawn(async move { drop(connection.await) });
        let mut requests = requests.ready().await.expect("ready");
        let request = http::Request::post("http://t/echo").body(()).expect("a request");
        let (response, mut sending) = requests.send_request(request, false).expect("sent");
        sending.send_data(Bytes::from_static(b"first"), false).expect("sent");
        let response = response.await.expect("a response");
        assert_eq!(response.status(), 200);
        let mut content = response.into_body();
        assert_eq!(content.data().await.expect("a piece").expect("a piece"), "first");
        sending.send_data(Bytes::from_static(b"second"), true).expect("sent");
        assert_eq!(content.data().await.expect("a piece").expect("a piece"), "second");
        while let Some(piece) = content.data().await {
            assert_eq!(piece.expect("the end"), "", "HTTP/2 may end with an empty frame");
        }
    });
}
