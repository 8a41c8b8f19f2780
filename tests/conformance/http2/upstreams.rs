//! H12, H13: upstreams of HTTP/2 that refuse, leave, break off and flood. What an upstream has not looked at is sent
//! again, and what it may have looked at is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_testkit::{Connection, Gateway, Origin, Reading, scaled};

use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, NO_ERROR, PING, REFUSED_STREAM, RST_STREAM,
    SETTINGS, frame, reset, section,
};
use crate::harness::weir;

const INTERNAL_ERROR: u32 = 0x2;

/// One connection of an origin, frame by frame.
struct Peer<'c> {
    connection: &'c mut Connection,
}

impl Peer<'_> {
    /// `None` if the gateway does not begin one.
    fn begin(connection: &mut Connection) -> Option<Peer<'_>> {
        let preface = connection.exact(24).ok()?;
        assert_eq!(preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut peer = Peer { connection };
        peer.send([frame(SETTINGS, 0, 0, b""), frame(SETTINGS, ACK, 0, b"")].concat());
        Some(peer)
    }

    /// A gateway that has gone is what the next read will tell.
    fn send(&mut self, bytes: Vec<u8>) {
        let _ = self.connection.send(bytes);
    }

    /// Waits for a request of which everything has come, and says its stream. `None` when the gateway has gone.
    fn request(&mut self) -> Option<u32> {
        loop {
            let head = self.connection.exact(9).ok()?;
            let length = u64::from(u32::from_be_bytes([0, head[0], head[1], head[2]]));
            let payload = self.connection.exact(length).ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match (head[3], head[4]) {
                (HEADERS | DATA, flags) if flags & END_STREAM != 0 => return Some(stream),
                (PING, 0) => self.send(frame(PING, ACK, 0, payload)),
                _ => {}
            }
        }
    }

    fn answer(&mut self, stream: u32, body: &str) {
        let head = frame(HEADERS, END_HEADERS, stream, section(&[(":status", "200")]));
        self.send([head, frame(DATA, END_STREAM, stream, body)].concat());
    }

    /// Says that nothing after `last` will be looked at.
    fn leave(&mut self, last: u32) {
        self.send(frame(GOAWAY, 0, 0, [last.to_be_bytes(), NO_ERROR.to_be_bytes()].concat()));
    }

    fn wait_gone(&mut self) {
        self.connection.wait_gone();
    }
}

/// An origin that does this with each request; it is told how many there were before, on all connections. The
/// connection ends when it says `false`.
fn origin(seen: &Arc<AtomicUsize>, does: impl Fn(&mut Peer<'_>, u32, usize) -> bool + Send + Sync + 'static) -> Origin {
    let seen = Arc::clone(seen);
    Origin::scripted(Reading::Strict, move |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        while let Some(stream) = peer.request() {
            if !does(&mut peer, stream, seen.fetch_add(1, Ordering::SeqCst)) {
                return;
            }
        }
    })
}

/// A gateway before this origin.
fn before(origin: &Origin) -> Gateway {
    weir().start(&format!(
        "routes: [{{ uri: /*, upstream: {{ scheme: grpc, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ))
}

/// Without content, which would be gone once it was sent.
fn post(gateway: &Gateway) -> (u16, String) {
    let request = "POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n";
    let answer = gateway.client().ask(request).expect("an answer");
    (answer.status, answer.text())
}

#[test]
fn h13_a_refused_request_is_sent_again() {
    let seen = Arc::default();
    let origin = origin(&seen, |peer, stream, before| {
        match before {
            0 => peer.send(reset(stream, REFUSED_STREAM)),
            _ => peer.answer(stream, "again"),
        }
        true
    });
    let gateway = before(&origin);
    assert_eq!(post(&gateway), (200, "again".to_owned()));
    assert_eq!(seen.load(Ordering::SeqCst), 2);
    assert_eq!(origin.connections(), 1, "the connection is good");
}

#[test]
fn h13_a_request_that_is_refused_again_and_again_ends() {
    let seen = Arc::default();
    let origin = origin(&seen, |peer, stream, _| {
        peer.send(reset(stream, REFUSED_STREAM));
        true
    });
    let gateway = before(&origin);
    assert_eq!(post(&gateway).0, 502);
    assert_eq!(seen.load(Ordering::SeqCst), 2);
    for _ in 0..100 {
        assert_eq!(post(&gateway).0, 502);
    }
    // F24: retries are a fifth of the requests, and twenty to begin with.
    assert!(seen.load(Ordering::SeqCst) <= 101 + 20 + 21, "{seen:?}");
}

#[test]
fn h13_a_request_behind_the_last_stream_is_sent_again_elsewhere() {
    let seen = Arc::default();
    let origin = origin(&seen, |peer, stream, before| {
        match before {
            0 => peer.answer(stream, "first"),
            1 => {
                peer.leave(stream - 2);
                peer.wait_gone();
                return false;
            }
            _ => peer.answer(stream, "third"),
        }
        true
    });
    let gateway = before(&origin);
    assert_eq!(post(&gateway).1, "first");
    assert_eq!(post(&gateway), (200, "third".to_owned()));
    assert_eq!((seen.load(Ordering::SeqCst), origin.connections()), (3, 2));
}

#[test]
fn h13_what_may_have_been_looked_at_is_not_sent_twice() {
    type Ending = fn(&mut Peer<'_>, u32) -> bool;
    let endings: [(&str, Ending); 4] = [
        ("a reset", |peer, stream| {
            peer.send(reset(stream, INTERNAL_ERROR));
            true
        }),
        ("leaving without an answer", |peer, stream| {
            peer.leave(stream);
            false
        }),
        ("a close", |_, _| false),
        ("an error of the connection", |peer, _| {
            peer.send(frame(GOAWAY, 0, 0, [0, 0, 0, 0, 0, 0, 0, INTERNAL_ERROR as u8]));
            false
        }),
    ];
    for (what, ending) in endings {
        let seen = Arc::default();
        let origin = origin(&seen, move |peer, stream, _| ending(peer, stream));
        let gateway = before(&origin);
        assert_eq!(post(&gateway).0, 502, "{what}");
        assert_eq!(seen.load(Ordering::SeqCst), 1, "{what}");
        // One that may be repeated is, once, and then no more.
        assert_eq!(gateway.client().get("/a").expect("an answer").status, 502, "{what}");
        assert!(seen.load(Ordering::SeqCst) <= 4, "{what}: {seen:?}");
    }
}

#[test]
fn h13_a_request_in_progress_is_answered_by_who_leaves() {
    let seen = Arc::default();
    let origin = origin(&seen, |peer, stream, before| {
        if before == 0 {
            peer.leave(stream);
            peer.answer(stream, "the last");
            peer.wait_gone();
            return false;
        }
        peer.answer(stream, "a new one");
        true
    });
    let gateway = before(&origin);
    assert_eq!(post(&gateway), (200, "the last".to_owned()));
    assert_eq!(post(&gateway), (200, "a new one".to_owned()));
    assert_eq!(origin.connections(), 2);
}

#[test]
fn h13_connections_that_come_and_go_leave_nothing() {
    let seen = Arc::default();
    let origin = origin(&seen, |peer, stream, _| {
        peer.leave(stream);
        peer.answer(stream, "bye");
        peer.wait_gone();
        false
    });
    let gateway = before(&origin);
    let mut client = gateway.client();
    let mut cycle = |count| {
        for _ in 0..count {
            assert_eq!(client.get("/a").expect("an answer").text(), "bye");
        }
    };
    cycle(100);
    let before = gateway.rss();
    let count = scaled(2_000, 50_000);
    cycle(count);
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown <= 256 << 10, "{count} connections took {grown} bytes of memory");
}

#[test]
fn h13_heads_without_end_from_an_upstream() {
    type Flood = fn(u32) -> (Vec<u8>, Vec<u8>);
    let floods: [(&str, Flood); 2] = [
        ("interim responses", |stream| {
            (Vec::new(), frame(HEADERS, END_HEADERS, stream, section(&[(":status", "103"), ("link", "</a>")])))
        }),
        ("continuations", |stream| {
            let begin = frame(HEADERS, 0, stream, section(&[(":status", "200")]));
            (begin, frame(CONTINUATION, 0, stream, section(&[("x", "y")])))
        }),
    ];
    for (what, flood) in floods {
        let seen = Arc::default();
        let origin = origin(&seen, move |peer, stream, _| {
            let (begin, more) = flood(stream);
            peer.send(begin);
            while peer.connection.send(&more).is_ok() {}
            false
        });
        let gateway = before(&origin);
        let memory = gateway.rss();
        assert_eq!(post(&gateway).0, 502, "{what}");
        // What was received at once is looked at afterwards.
        let grown = gateway.rss().saturating_sub(memory);
        assert!(grown <= 16 << 20, "{what} took {grown} bytes of memory");
    }
}

#[test]
fn h13_a_reset_in_the_middle_is_seen_to_be_one() {
    let seen = Arc::default();
    let origin = origin(&seen, |peer, stream, _| {
        let head = frame(HEADERS, END_HEADERS, stream, section(&[(":status", "200"), ("content-length", "100")]));
        peer.send([head, frame(DATA, 0, stream, "half"), frame(RST_STREAM, 0, stream, [0, 0, 0, 2])].concat());
        true
    });
    let gateway = before(&origin);
    for _ in 0..10 {
        let outcome = gateway.client().get("/a");
        assert!(outcome.as_ref().map_or(true, |answer| answer.status == 502), "{outcome:?}");
    }
    assert_eq!(origin.connections(), 1, "the connection is good");
}
