//! HTTP/2 marks the end of a message apart from its content, also where the content has a length: trailers may follow, and so may
//! an empty DATA frame.

use weir_testkit::{Gateway, Origin, Reading};

use super::frames::{
    DATA, END_HEADERS, END_STREAM, End, Frame, Frames, HEADERS, NO_ERROR, RST_STREAM, WHOLE, frame, get, headers,
    request, section,
};
use super::peer::Peer;
use crate::harness::weir;

fn before(origin: &Origin) -> Gateway {
    weir().start(&format!(
        "routes: [{{ uri: /*, upstream: {{ http2: true, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ))
}

/// The head of a response, and five bytes of content.
fn sized(stream: u32) -> Vec<u8> {
    let head = frame(HEADERS, END_HEADERS, stream, section(&[(":status", "200"), ("content-length", "5")]));
    [head, frame(DATA, 0, stream, "hello")].concat()
}

/// The frame that ends the message on `stream`.
fn last_frame(mut next: impl FnMut() -> Option<Frame>, stream: u32) -> Frame {
    loop {
        let frame = next().expect("the connection stands");
        if frame.stream == stream && matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
            return frame;
        }
        assert!(frame.stream != stream || frame.kind != RST_STREAM, "{frame:?}");
    }
}

#[test]
fn a_response_with_a_length_keeps_its_trailers() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        while let Some(stream) = peer.request() {
            let trailers = frame(HEADERS, END_STREAM | END_HEADERS, stream, section(&[("grpc-status", "0")]));
            peer.send([sized(stream), trailers].concat());
        }
    });
    let gateway = before(&origin);
    let mut client = Frames::connect(&gateway);
    client.send(headers(1, WHOLE, &get("/a", &[("te", "trailers")])));
    assert_eq!(last_frame(|| client.receive(), 1).kind, HEADERS, "trailers end the response");
}

#[test]
fn a_request_with_a_length_keeps_its_trailers() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        let last = last_frame(|| peer.receive(), 1);
        peer.answer(1, if last.kind == HEADERS { "trailers" } else { "none" });
        peer.wait_gone();
    });
    let gateway = before(&origin);
    let mut client = Frames::connect(&gateway);
    let head = headers(1, END_HEADERS, &request("POST", "/a", &[("content-length", "5"), ("te", "trailers")]));
    client.send([head, frame(DATA, 0, 1, "hello"), headers(1, WHOLE, &[("x-checksum", "1")])].concat());
    assert_eq!(client.end(1), End::Answered(200, "trailers".to_owned()));
}

/// Some handlers send all content long before they end.
#[test]
fn a_response_that_lacks_only_its_end_is_no_error_of_the_upstream() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        let Some(stream) = peer.request() else { return };
        peer.send(sized(stream));
        let code = loop {
            match peer.receive() {
                Some(frame) if frame.kind == RST_STREAM => break frame.payload,
                Some(_) => {}
                None => return,
            }
        };
        let Some(stream) = peer.request() else { return };
        peer.answer(stream, &format!("{code:?}"));
        peer.wait_gone();
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    assert_eq!(client.get("/a").expect("an answer").text(), "hello");
    assert_eq!(client.get("/b").expect("an answer").text(), format!("{:?}", NO_ERROR.to_be_bytes()));
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_request_that_lacks_only_its_end_is_answered() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        while let Some(stream) = peer.request() {
            peer.answer(stream, "all of it");
        }
    });
    let gateway = before(&origin);
    let mut client = Frames::connect(&gateway);
    client.send(headers(1, END_HEADERS, &request("POST", "/a", &[("content-length", "5")])));
    client.send(frame(DATA, 0, 1, "hello"));
    assert_eq!(client.end(1), End::Answered(200, "all of it".to_owned()));
}

#[test]
fn a_response_without_content_may_end_later() {
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        while let Some(stream) = peer.request() {
            let head = frame(HEADERS, END_HEADERS, stream, section(&[(":status", "200"), ("content-length", "0")]));
            peer.send([head, frame(HEADERS, END_STREAM | END_HEADERS, stream, section(&[("x", "y")]))].concat());
        }
    });
    let gateway = before(&origin);
    let mut client = Frames::connect(&gateway);
    client.send(headers(1, WHOLE, &get("/a", &[("te", "trailers")])));
    assert_eq!(last_frame(|| client.receive(), 1).kind, HEADERS);
    assert_eq!(gateway.client().get("/b").expect("an answer").body.len(), 0);
}
