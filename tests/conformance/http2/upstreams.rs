//! H12, H13: upstreams of HTTP/2 that refuse, leave, break off and flood. What an upstream has not looked at is sent
//! again, and what it may have looked at is not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use weir_testkit::{
    Authority, Client, DEADLINE, Gate, Gateway, Origin, Reading, TlsServer, eventually, runs_for_minutes, scaled,
};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, Frames, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS, PING, REFUSED_STREAM, RST_STREAM, SETTINGS, WHOLE, WINDOW_UPDATE, frame, headers, request,
    reset, section,
};
use super::peer::Peer;
use crate::harness::weir;

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

/// A gateway before this origin, which is not taken out for its faults: that would close its connections.
fn before(origin: &Origin) -> Gateway {
    let checks = "{ passive: { unhealthy: { http_failures: 0, tcp_failures: 0, timeouts: 0 } } }";
    weir().start(&format!(
        "routes: [{{ uri: /*, upstream: {{ scheme: grpc, checks: {checks}, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ))
}

/// Without content.
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

/// Waits for a request of which everything has come, and returns its stream and its content. `None` when the gateway has gone.
fn with_content(peer: &mut Peer<'_>) -> Option<(u32, Vec<u8>)> {
    let mut content = Vec::new();
    loop {
        let frame = peer.receive()?;
        if frame.kind == DATA {
            content.extend_from_slice(&frame.payload);
        }
        if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
            return Some((frame.stream, content));
        }
    }
}

/// An origin that refuses every other request, beginning with the first, and answers the others with the number of their bytes. The
/// connection ends when `refuse` says `false`.
fn refusing(refuse: fn(&mut Peer<'_>, u32) -> bool) -> Origin {
    let seen = AtomicUsize::new(0);
    Origin::scripted(Reading::Strict, move |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        while let Some((stream, content)) = with_content(&mut peer) {
            if seen.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                if !refuse(&mut peer, stream) {
                    return;
                }
            } else {
                assert!(content.iter().all(|byte| *byte == b'x'), "it comes as it was sent");
                peer.answer(stream, &content.len().to_string());
            }
        }
    })
}

#[test]
fn h13_content_of_a_refused_request_is_sent_again_if_it_is_little() {
    type Refusal = fn(&mut Peer<'_>, u32) -> bool;
    let refusals: [(&str, Refusal); 2] = [
        ("a refused stream", |peer, stream| {
            peer.send(reset(stream, REFUSED_STREAM));
            true
        }),
        ("a stream behind the last one", |peer, stream| {
            peer.leave(stream.saturating_sub(2));
            peer.wait_gone();
            false
        }),
    ];
    let clients: [fn(&Gateway) -> Client; 2] = [Gateway::client, |gateway| gateway.client().by_http2()];
    for ((what, refuse), connect) in refusals.into_iter().flat_map(|refusal| clients.map(|connect| (refusal, connect)))
    {
        // Its peer opens no window: all content together fits into that which a connection has at first.
        let origin = refusing(refuse);
        let gateway = before(&origin);
        let mut client = connect(&gateway);
        let mut ask = |length: usize| {
            let content = "x".repeat(length);
            let head =
                "POST /a HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\nTE: trailers\r\nContent-Length:";
            client.ask(format!("{head} {length}\r\n\r\n{content}")).expect("an answer")
        };
        for length in [8, 16 * 1024] {
            let answer = ask(length);
            assert_eq!((answer.status, answer.text()), (200, length.to_string()), "{what}, {length} bytes");
        }
        let more = "x".repeat(16 * 1024 + 1);
        let post = format!("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{more}", more.len());
        assert_eq!(gateway.client().ask(post).expect("an answer").status, 502, "{what}: so much is not kept");
    }
}

/// An origin that refuses the first request after three bytes of its content, tells when they have come again, and answers with what
/// comes after them.
fn refusing_in_the_middle(told: Sender<()>) -> Origin {
    Origin::scripted(Reading::Strict, move |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        let Some(refused) = peer.content(3) else { return };
        peer.send(reset(refused, REFUSED_STREAM));
        if peer.content(3).is_some() && told.send(()).is_ok() {
            let Some((stream, rest)) = with_content(&mut peer) else { return };
            peer.answer(stream, &format!("after them {}", String::from_utf8_lossy(&rest)));
        }
    })
}

#[test]
fn h13_a_request_that_is_refused_before_its_end_goes_on_elsewhere() {
    // The client sends the rest once the second stream has what was taken for the first.
    for (length, rest) in [(Some("6"), "def"), (None, "def"), (Some("3"), "")] {
        let (told, again) = channel();
        let origin = refusing_in_the_middle(told);
        let gateway = before(&origin);
        let mut client = Frames::connect(&gateway);
        let fields: Vec<_> = length.map(|length| ("content-length", length)).into_iter().collect();
        client.send(headers(1, END_HEADERS, &request("POST", "/a", &fields)));
        client.send(frame(DATA, 0, 1, "abc"));
        again.recv_timeout(DEADLINE).expect("it is sent again");
        client.send(frame(DATA, END_STREAM, 1, rest));
        assert_eq!(client.end(1), End::Answered(200, format!("after them {rest}")), "{length:?}");
    }
    let (told, again) = channel();
    let origin = refusing_in_the_middle(told);
    let gateway = before(&origin);
    let mut client = gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 6\r\n\r\nabc");
    again.recv_timeout(DEADLINE).expect("it is sent again");
    client.send("def");
    assert_eq!(client.response().expect("an answer").text(), "after them def");
}

#[test]
fn h13_a_request_that_is_refused_in_the_middle_of_its_chunks_ends() {
    let origin = refusing_in_the_middle(channel().0);
    let gateway = before(&origin);
    let mut client = gateway.client();
    client.send("POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    assert_eq!(client.response().expect("an answer").status, 502);
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
fn h13_an_endpoint_that_takes_few_streams_gets_more_connections() {
    let (arrives, arrived) = channel();
    let (arrives, together) = (Mutex::new(arrives), Arc::new(Barrier::new(3)));
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        let most: [u8; 6] = [0, MAX_CONCURRENT_STREAMS as u8, 0, 0, 0, 2];
        peer.send(frame(SETTINGS, 0, 0, most));
        let streams: Vec<u32> = (0..2)
            .map_while(|_| {
                let stream = peer.request()?;
                arrives.lock().expect("no test has failed").send(()).expect("the test waits for it");
                Some(stream)
            })
            .collect();
        together.wait();
        streams.into_iter().for_each(|stream| peer.answer(stream, "six"));
        peer.wait_gone();
    });
    let gateway = before(&origin);
    let mut clients: Vec<Client> = (0..6)
        .map(|_| {
            let mut client = gateway.client();
            client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
            arrived.recv_timeout(DEADLINE).expect("the request arrives");
            client
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.response().map(|answer| answer.text()), Ok("six".to_owned()));
    }
    assert_eq!(origin.connections(), 3);
}

/// Takes 35 seconds: so long it is before an endpoint is given up.
#[test]
fn h13_an_endpoint_that_has_fallen_silent_is_left() {
    if !runs_for_minutes("an endpoint is given up after 35 seconds") {
        return;
    }
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        let is_first = peer.connection.index == 0;
        while let Some(stream) = peer.request() {
            peer.answer(stream, "here");
            if is_first {
                return peer.wait_gone(); // it takes everything and says nothing
            }
        }
    });
    let gateway = before(&origin);
    assert_eq!(gateway.get("/a").text(), "here");
    let mut client = gateway.client();
    client.set_deadline(Duration::from_secs(55));
    let answer = client.get("/a").expect("asked for again on a new connection, before the time-out of 60 s");
    assert_eq!(answer.text(), "here");
    assert_eq!(origin.connections(), 2);
    gateway.wait_stderr("why it was left", |line| line.contains("has not answered an HTTP/2 PING"));
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

/// The window of a stream before any WINDOW_UPDATE (RFC 9113 §6.9.2).
const FIRST_WINDOW: usize = 65_535;

#[test]
fn h13_a_reset_of_a_stream_that_neither_side_takes_holds_up_no_one_else() {
    let gate = Gate::new();
    let origin = {
        let gate = gate.clone();
        Origin::scripted(Reading::Strict, move |connection| {
            let Some(mut peer) = Peer::begin(connection) else { return };
            let Some(stream) = peer.content(FIRST_WINDOW) else { return };
            let head = frame(HEADERS, END_HEADERS, stream, section(&[(":status", "200")]));
            peer.send([head, frame(DATA, 0, stream, "begun")].concat());
            gate.wait();
            peer.send(reset(stream, INTERNAL_ERROR));
            peer.wait_gone();
        })
    };
    let gateway = before(&origin);
    // A client that sends more than the origin's window takes, and takes nothing of the response itself.
    let mut client = Frames::connect_with(&gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    client.send(headers(1, END_HEADERS, &request("POST", "/a", &[])));
    (0..8).for_each(|_| assert!(client.send(frame(DATA, 0, 1, [b'x'; 16_000]))));
    while client.receive().map(|frame| frame.kind).expect("the connection stands") != HEADERS {}
    gate.open();
    for _ in 0..2 {
        client.send(frame(PING, 0, 0, [0; 8]));
        client.answer_to_ping();
    }
    client.send(frame(WINDOW_UPDATE, 0, 1, 100_u32.to_be_bytes()));
    assert_eq!(client.end(1), End::Reset(INTERNAL_ERROR));
}

#[test]
fn the_exchanges_of_a_lost_connection_share_the_next_one() {
    const EXCHANGES: usize = 30;
    let origin = Origin::scripted(Reading::Strict, |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        let is_first = peer.connection.index == 0;
        let mut asked = 0;
        while let Some(stream) = peer.request() {
            asked += 1;
            match is_first && asked > 1 {
                // All of them have been sent; none is answered.
                true if asked == 1 + EXCHANGES => return,
                true => {}
                false => peer.answer(stream, "answered"),
            }
        }
    });
    let gateway = before(&origin);
    assert_eq!(gateway.get("/a").text(), "answered");
    let mut clients: Vec<Client> = (0..EXCHANGES).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n"));
    for client in &mut clients {
        assert_eq!(client.response().map(|answer| answer.text()), Ok("answered".to_owned()));
    }
    assert_eq!(origin.connections(), 2);
}

/// What an upstream may send ahead on a stream.
const WINDOW: usize = 64 * 1024;

/// Sends on each stream the head of a response, and as much content as a window has room for, which is counted. `false` if the connection ends.
fn fill_windows(peer: &mut Peer<'_>, streams: &[u32], sent: &AtomicUsize) -> bool {
    const PIECE: usize = 16 * 1024;
    for stream in streams {
        peer.send(frame(HEADERS, END_HEADERS, *stream, section(&[(":status", "200")])));
        for _ in 0..WINDOW / PIECE {
            if !peer.wait_for_window(PIECE) {
                return false;
            }
            peer.send(frame(DATA, 0, *stream, [b'x'; PIECE]));
            sent.fetch_add(PIECE, Ordering::SeqCst);
        }
    }
    true
}

/// Each client that does not read holds one window of its stream, and no more: what the others receive does not wait for it.
#[test]
fn clients_that_do_not_read_stop_no_other_exchange_of_the_connection() {
    const SLOW: usize = 40;
    let held = Arc::new(AtomicUsize::new(0));
    let origin = {
        let held = Arc::clone(&held);
        Origin::scripted(Reading::Strict, move |connection| {
            let Some(mut peer) = Peer::begin(connection) else { return };
            let slow: Vec<u32> = (0..SLOW).map_while(|_| peer.request()).collect();
            if !fill_windows(&mut peer, &slow, &held) {
                return;
            }
            while let Some(stream) = peer.request() {
                peer.answer(stream, "small");
            }
        })
    };
    let gateway = before(&origin);
    let mut client = Frames::connect_with(&gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    for _ in 0..SLOW {
        let stream = client.stream();
        client.send(headers(stream, WHOLE, &request("GET", "/large", &[])));
    }
    eventually("each slow client has a window full of content", DEADLINE, || {
        held.load(Ordering::SeqCst) >= SLOW * WINDOW
    });
    assert_eq!(gateway.get("/small").text(), "small");
    assert_eq!(origin.connections(), 1);
}

/// The memory of a response whose rate is limited is bounded also where its upstream sends ahead what its window allows.
#[test]
fn an_upstream_may_send_one_small_window_ahead_of_a_limited_rate() {
    const SLOW: usize = 80;
    /// More than the half of a window, after which any other response gets a larger one.
    const AT_ONCE: usize = 40_000;
    let (sent, enlarged) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let origin = {
        let (sent, enlarged) = (Arc::clone(&sent), Arc::clone(&enlarged));
        Origin::scripted(Reading::Strict, move |connection| {
            let Some(mut peer) = Peer::begin(connection) else { return };
            let slow: Vec<u32> = (0..SLOW).map_while(|_| peer.request()).collect();
            if !fill_windows(&mut peer, &slow, &sent) {
                return;
            }
            while let Some(frame) = peer.receive() {
                if (frame.kind, frame.stream != 0) == (WINDOW_UPDATE, true) {
                    let by: [u8; 4] = frame.payload[..].try_into().expect("four bytes");
                    enlarged.fetch_max(u32::from_be_bytes(by) as usize, Ordering::SeqCst);
                }
            }
        })
    };
    let gateway = weir().start(&format!(
        "worker_processes: 1\nroutes: [{{ uri: /*, plugins: {{ limit-rate: {{ rate: 512, after: {AT_ONCE} }} }}, upstream: {{ scheme: \
         grpc, nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ));
    let before = gateway.rss();
    let mut clients: Vec<Client> = (0..SLOW).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /large HTTP/1.1\r\nHost: t\r\n\r\n"));
    for client in &mut clients {
        assert_eq!(client.response_head("GET").expect("a head").status, 200);
    }
    eventually("each window is full", DEADLINE, || sent.load(Ordering::SeqCst) >= SLOW * WINDOW);
    let each = gateway.rss().saturating_sub(before) / SLOW as u64;
    eprintln!("{each} bytes for each response");
    assert!(each <= 192 * 1024, "{each} bytes for each response");
    let enlarged = enlarged.load(Ordering::SeqCst);
    assert!(enlarged <= WINDOW, "only what was taken is returned to the window, and not {enlarged} bytes");
}

#[test]
fn h13_a_connection_carries_requests_for_the_server_that_has_proved_its_name() {
    let authority = Authority::new();
    let tls = TlsServer::new(&authority.identity(&["a.test", "b.test"])).speaking(&["h2"]);
    let origin = Origin::scripted_tls(&tls, Reading::Strict, |connection| {
        let (index, agreed) = (connection.index, connection.agreed().expect("TLS"));
        let name = agreed.server_name.as_deref().unwrap_or("-").to_owned();
        let Some(mut peer) = Peer::begin(connection) else { return };
        while let Some(stream) = peer.request() {
            peer.answer(stream, &format!("{index} {name}"));
        }
    });
    let gateway = weir().start(&format!(
        "routes: [{{ uri: /*, upstream: {{ scheme: grpcs, tls: {{ ca: {:?} }}, nodes: {{ \"{}\": 1 }} }} }}]\n",
        authority.certificate,
        origin.addr()
    ));
    for (host, body) in
        [("a.test", "0 a.test"), ("b.test", "1 b.test"), ("a.test", "0 a.test"), ("B.test:1", "1 b.test")]
    {
        let answer = gateway.client().ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, body), "{host}");
    }
}

/// An origin that allows so many streams on each connection, refuses further ones, and answers when `together` requests have
/// come; and the most streams that were open on one connection.
fn narrow(streams: usize, together: usize) -> (Origin, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let (most_seen, come) = (Arc::clone(&most), AtomicUsize::new(0));
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        let settings = [&[0, MAX_CONCURRENT_STREAMS as u8][..], &(streams as u32).to_be_bytes()].concat();
        let Some(mut peer) = Peer::begin_with(connection, &settings) else { return };
        let mut open = Vec::new();
        while let Some(stream) = peer.request() {
            open.push(stream);
            most_seen.fetch_max(open.len(), Ordering::SeqCst);
            if open.len() > streams {
                peer.send(reset(open.pop().expect("it has just come"), REFUSED_STREAM));
                continue;
            }
            come.fetch_add(1, Ordering::SeqCst);
            if open.len() == streams {
                eventually("all have come", DEADLINE, || come.load(Ordering::SeqCst) >= together);
                open.drain(..).for_each(|stream| peer.answer(stream, "narrow"));
            }
        }
    });
    (origin, most)
}

/// An endpoint states its limit of streams when a connection begins. Requests that come before are neither all sent on the first
/// connection, where the endpoint refuses most of them, nor does each get a connection of its own.
#[test]
fn h13_a_burst_before_a_cold_endpoint_gets_the_connections_that_its_limit_needs() {
    for (streams, connections) in [(1, 200), (10, 20), (100, 2)] {
        let (origin, most) = narrow(streams, 200);
        let gateway = before(&origin);
        let mut clients: Vec<Client> = (0..200).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.send("POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"));
        let began = std::time::Instant::now();
        for client in &mut clients {
            let answer = client.response().expect("an answer");
            assert_eq!((answer.status, answer.text()), (200, "narrow".to_owned()), "{streams} streams");
        }
        println!("{streams} streams: {} connections in {:?}", origin.connections(), began.elapsed());
        assert_eq!(most.load(Ordering::SeqCst), streams, "the most on one connection");
        assert_eq!(origin.connections(), connections, "{streams} streams");
    }
}
