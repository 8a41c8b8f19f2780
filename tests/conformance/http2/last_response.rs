//! The last response of a connection that the gateway ends is received as a whole.

use weir_testkit::{Answer, Origin};

use super::frames::{
    ACK, DATA, END_STREAM, End, Frames, HEADERS, INITIAL_WINDOW_SIZE, NO_ERROR, PING, WHOLE, WINDOW_UPDATE, frame, get,
    headers,
};
use crate::harness::{routes, weir};

const LARGEST_WINDOW: u32 = 0x7fff_ffff;
/// More than a client's socket receives while nothing is read from it.
const BODY: usize = 4 << 20;

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

/// A client whose next request crosses the end of an idle connection has to know that it was not processed (RFC 9113 §6.8).
#[test]
fn an_idle_connection_ends_with_the_last_stream_that_was_served() {
    let origin = Origin::serving(|_| Answer::ok("here"));
    let gateway = weir().start(&format!("keepalive_timeout: 1\n{}", routes(origin.addr())));
    for requests in [0, 1, 3] {
        let mut client = Frames::connect(&gateway);
        (0..requests).for_each(|_| assert!(matches!(client.ask("/a"), End::Answered(200, _))));
        let farewell = client.until_closed();
        let last = if requests == 0 { 0 } else { 2 * requests - 1 };
        assert_eq!((farewell.code, farewell.last_stream), (Some(NO_ERROR), last), "after {requests} requests");
    }
}
