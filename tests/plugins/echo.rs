//! `echo` and `proxy-buffering`: bodies of responses with texts around them, and responses that are passed on as they come.

use std::io::Read;

use flate2::read::GzDecoder;
use weir_testkit::{Answer, Client, Gate, Gateway, Origin, Reading};

use crate::{Rig, file};

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [gateway.client(), gateway.client().by_http2()]
}

#[test]
fn texts_stand_before_and_after_bodies_of_any_response() {
    let rig = Rig::with("{ echo: { before_body: \"<\", after_body: \">\", headers: { X-Echo: 1 } } }");
    for mut client in clients(&rig.gateway) {
        let answer = client.ask("GET /a HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\nRange: bytes=0-1\r\n\r\n");
        let answer = answer.expect("an answer");
        assert_eq!((answer.status, answer.text()), (200, "<GET /a>".to_owned()));
        assert_eq!((answer.headers.get("x-echo"), answer.headers.get("etag")), (Some("1"), None));
        let head = client.ask("HEAD /a HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
        assert_eq!((head.text(), head.headers.get("content-length")), (String::new(), None));
        let nothing = client.get("/status/204").expect("an answer");
        assert_eq!((nothing.status, nothing.text(), nothing.headers.get("x-echo")), (204, String::new(), Some("1")));
    }
    for request in rig.origin.requests() {
        assert!(!request.headers.has("accept-encoding") && !request.headers.has("range"));
    }
    assert!(rig.origin.violations().is_empty(), "{:?}", rig.origin.violations());
    let own = Rig::with("{ echo: { after_body: \"!\" }, mocking: { response_example: hello } }");
    for mut client in clients(&own.gateway) {
        assert_eq!(client.get("/a").expect("an answer").text(), "hello!");
    }
}

#[test]
fn a_text_takes_the_place_of_the_body_of_the_upstream() {
    let rig = Rig::with("{ echo: { before_body: \"<\", body: new, after_body: \">\" } }");
    for mut client in clients(&rig.gateway) {
        let answer = client.get("/status/404").expect("an answer");
        assert_eq!((answer.status, answer.text()), (404, "<new>".to_owned()));
        assert_eq!(answer.headers.get("content-length"), Some("5"));
        let head = client.ask("HEAD /a HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
        assert_eq!((head.status, head.text(), head.headers.get("content-length")), (200, String::new(), Some("5")));
        assert_eq!(client.get("/a").expect("on the same connection").text(), "<new>");
    }
}

#[test]
fn texts_around_a_body_are_compressed_with_it() {
    let rig = Rig::with("{ echo: { before_body: \"<\", after_body: \">\" }, gzip: { types: \"*\", min_length: 1 } }");
    for mut client in clients(&rig.gateway) {
        let answer = client.ask("GET /a HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n").expect("an answer");
        let mut text = String::new();
        GzDecoder::new(answer.body.as_slice()).read_to_string(&mut text).expect("complete gzip");
        assert_eq!((text.as_str(), answer.headers.get("content-encoding")), ("<GET /a>", Some("gzip")));
    }
}

/// The upstream sends the second part of its response only after the client has the first.
#[test]
fn responses_are_passed_on_as_they_come_whatever_proxy_buffering_says() {
    let gate = Gate::new();
    let opener = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        while connection.request().is_ok() {
            let first = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none");
            gate.wait();
            if first.and_then(|()| connection.send("two")).is_err() {
                return;
            }
        }
    });
    for disable in [true, false] {
        let plugins = format!("{{ proxy-buffering: {{ disable_proxy_buffering: {disable} }} }}");
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(1, &plugins, &origin));
        let mut client = gateway.client();
        client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
        assert_eq!(client.response_head("GET").expect("the head").status, 200);
        assert_eq!(client.exact(3).expect("the first part"), b"one");
        opener.open_once();
        assert_eq!(client.exact(3).expect("the rest"), b"two");
    }
}

#[test]
fn an_upstream_that_compresses_all_the_same_gets_no_texts() {
    let origin = Origin::serving(|_| Answer::with(200, "Content-Encoding: br\r\n", "opaque"));
    let plugins = "{ echo: { before_body: \"<\", headers: { X-Echo: 1 } } }";
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(1, plugins, &origin));
    for mut client in clients(&gateway) {
        let answer = client.get("/a").expect("an answer");
        assert_eq!((answer.text().as_str(), answer.headers.get("x-echo")), ("opaque", Some("1")));
    }
}
