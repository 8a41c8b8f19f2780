//! The last response of a connection that the gateway ends is received as a whole.

use std::thread;
use std::time::Duration;

use weir_testkit::{Answer, DEADLINE, Gateway, Origin, eventually, eventually_some};

use super::frames::{
    ACK, CANCEL, DATA, END_STREAM, End, Frames, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, NO_ERROR, PING, WHOLE,
    WINDOW_UPDATE, frame, get, headers, reset,
};
use crate::harness::{routes, weir};

const LARGEST_WINDOW: u32 = 0x7fff_ffff;
/// More than a client's socket receives while nothing is read from it.
const BODY: usize = 4 << 20;
const MIB: f64 = (1 << 20) as f64;

fn window_update(stream: u32, increment: usize) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, (increment as u32).to_be_bytes())
}

/// The gateway has sent everything long before the client has read it. A socket that is closed then answers the client's next
/// WINDOW_UPDATE with a reset, which destroys the rest of the response.
#[test]
fn a_client_that_reads_slowly_gets_the_last_response_whole() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; BODY]));
    let gateway = weir().start(&format!("keepalive_requests: 1\n{}", routes(origin.addr())));
    let mut client = Frames::connect_with(&gateway, &[(INITIAL_WINDOW_SIZE, LARGEST_WINDOW)]);
    client.send(window_update(0, LARGEST_WINDOW as usize - 65_535));
    client.send(headers(1, WHOLE, &get("/large", &[])));
    let (mut received, mut announced, mut ended) = (0, false, false);
    while !ended {
        let frame_in = client.receive().unwrap_or_else(|| panic!("the connection ended after {received} bytes"));
        match frame_in.kind {
            PING if frame_in.flags & ACK == 0 => {
                client.send(frame(PING, ACK, 0, &frame_in.payload));
                announced = true;
            }
            HEADERS | DATA if frame_in.stream == 1 => {
                if frame_in.kind == DATA {
                    received += frame_in.payload.len();
                    client.send(window_update(0, frame_in.payload.len()));
                }
                ended = frame_in.flags & END_STREAM != 0;
            }
            _ => {}
        }
    }
    assert!(announced, "the gateway has announced the end of the connection");
    assert_eq!(received, BODY);
    let farewell = client.until_closed();
    assert_eq!((farewell.code.unwrap_or(NO_ERROR), farewell.resets), (NO_ERROR, 0));
}

/// A client that reads nothing, of whom the sockets and the gateway's output hold as much as they take. The stream, which has far
/// more to send, is reset then, and the connection has no stream left.
fn fills(gateway: &Gateway) -> Frames {
    let mut client = Frames::connect_narrow(gateway, &[(INITIAL_WINDOW_SIZE, LARGEST_WINDOW)]);
    client.send(window_update(0, LARGEST_WINDOW as usize - 65_535));
    client.send(headers(1, WHOLE, &get("/endless", &[])));
    wait_until_sockets_are_full(gateway);
    client.send(reset(1, CANCEL));
    client
}

fn wait_until_sockets_are_full(gateway: &Gateway) {
    let sent = || gateway.metrics().sum("weir_client_bytes_total", &["direction=\"sent\""]);
    let (mut before, mut still) = (0.0, 0);
    eventually("the sockets are full", DEADLINE, || {
        let now = sent();
        // The sockets of a connection take some MiB.
        still = if now == before && now > MIB { still + 1 } else { 0 };
        before = now;
        still == 100
    });
}

/// A client that reads nothing any more must not keep its place for ever.
#[test]
fn an_idle_connection_whose_output_is_not_taken_is_closed() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; 64 << 20]));
    let gateway = weir().start(&format!("keepalive_timeout: 3\nsend_timeout: 2\n{}", routes(origin.addr())));
    let client = fills(&gateway);
    let open = || gateway.metrics().sum("weir_client_connections", &[]);
    eventually("the gateway closes the connection", DEADLINE, || open() == 0.0);
    drop(client);
}

/// A client that has so many responses. On a busy machine the time of a connection may be over before all have been asked for.
fn served(gateway: &Gateway, requests: u32) -> Frames {
    eventually_some("all are answered", DEADLINE, || {
        let mut client = Frames::connect(gateway);
        (0..requests).all(|_| matches!(client.ask("/a"), End::Answered(200, _))).then_some(client)
    })
}

/// The gateway's answers to PINGs are no responses: a connection that only sends them is idle.
#[test]
fn pings_do_not_keep_an_idle_connection() {
    let origin = Origin::serving(|_| Answer::ok("here"));
    let gateway = weir().start(&format!("keepalive_timeout: 1\n{}", routes(origin.addr())));
    let mut client = served(&gateway, 1);
    // More often than the connection may be idle, until it is closed.
    while client.send(frame(PING, 0, 0, [7; 8])) && client.receive().is_some_and(|answer| answer.kind != GOAWAY) {
        thread::sleep(Duration::from_millis(100));
    }
}

/// A response is complete for its stream before the client has taken the last of it, which may take longer than the farewell.
#[test]
fn a_client_that_pauses_gets_the_last_response_whole() {
    // The number at the end of the target is the length.
    let origin = Origin::serving(|request| {
        let length = request.target.rsplit('/').next().and_then(|length| length.parse().ok());
        Answer::ok(vec![b'x'; length.unwrap_or(64 << 20)])
    });
    let room = {
        let gateway = weir().start(&routes(origin.addr()));
        let mut probe = fills(&gateway);
        probe.send(frame(PING, 0, 0, [7; 8]));
        let mut received = 0;
        while let Some(frame) = probe.receive().filter(|frame| (frame.kind, frame.flags) != (PING, ACK)) {
            received += if frame.kind == DATA { frame.payload.len() } else { 0 };
        }
        received
    };
    let gateway = weir().start(&format!("keepalive_requests: 1\n{}", routes(origin.addr())));
    // How much the sockets take differs a little: of some of these, the end is left in the gateway.
    let lengths = (1..=12).map(|eighth| room - eighth * (8 << 10));
    let clients: Vec<(usize, Frames)> = lengths
        .map(|wanted| {
            let mut client = Frames::connect_narrow(&gateway, &[(INITIAL_WINDOW_SIZE, LARGEST_WINDOW)]);
            client.send(window_update(0, LARGEST_WINDOW as usize - 65_535));
            client.send(headers(1, WHOLE, &get(&format!("/whole/{wanted}"), &[])));
            (wanted, client)
        })
        .collect();
    eventually("the origin has all requests", DEADLINE, || origin.requests().len() == 1 + clients.len());
    wait_until_sockets_are_full(&gateway);
    // A client that has its response and leaves the end of the connection to the gateway: when it comes, those that began before
    // have had the same time to close theirs. It is shorter than a client may take no bytes.
    let mut prompt = Frames::connect(&gateway);
    assert_eq!(prompt.ask("/whole/1"), End::Answered(200, "x".to_owned()));
    prompt.until_closed();
    for (wanted, mut client) in clients {
        let (mut received, mut ended) = (0, false);
        while !ended {
            let frame_in =
                client.receive().unwrap_or_else(|| panic!("the connection ended after {received} of {wanted} bytes"));
            if frame_in.kind == PING && frame_in.flags & ACK == 0 {
                client.send(frame(PING, ACK, 0, &frame_in.payload));
            }
            if frame_in.kind == DATA {
                received += frame_in.payload.len();
                ended = frame_in.flags & END_STREAM != 0;
            }
        }
        assert_eq!(received, wanted);
    }
}

/// A client whose next request crosses the end of an idle connection has to know that it was not processed (RFC 9113 §6.8).
#[test]
fn an_idle_connection_ends_with_the_last_stream_that_was_served() {
    let origin = Origin::serving(|_| Answer::ok("here"));
    let gateway = weir().start(&format!("keepalive_timeout: 1\n{}", routes(origin.addr())));
    for requests in [0, 1, 3] {
        let farewell = served(&gateway, requests).until_closed();
        let last = if requests == 0 { 0 } else { 2 * requests - 1 };
        assert_eq!((farewell.code, farewell.last_stream), (Some(NO_ERROR), last), "after {requests} requests");
    }
}
