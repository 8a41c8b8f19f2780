use super::*;
use crate::h1::Limits;
use crate::h2::frame::{ACK, END_HEADERS, END_STREAM, FrameHead, HEAD, PADDED, kind};
use crate::head::Framing;
use crate::method::Method;

const BOUNDS: PeerLimits =
    PeerLimits { limits: Limits::DEFAULT, streams: 8, stream_window: 100_000, connection_window: 200_000 };

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_head(&mut out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
    out
}

fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut encoder, mut block) = (Encoder::default(), Vec::new());
    fields.iter().for_each(|(name, value)| encoder.field(name.as_bytes(), value.as_bytes(), &mut block));
    block
}

fn request(method: &'static str, more: &[(&'static str, &'static str)]) -> Vec<u8> {
    section(&[&[(":method", method), (":scheme", "http"), (":authority", "t"), (":path", "/a")], more].concat())
}

const WHOLE: u8 = END_HEADERS | END_STREAM;

/// Feeds `bytes` to a connection in pieces of `cut` bytes; returns the events as text, and the error at the end.
fn read(connection: &mut Connection, bytes: &[u8], cut: usize) -> (Vec<String>, Option<ErrorCode>) {
    let (mut events, mut waiting) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(cut) {
        waiting.extend_from_slice(piece);
        let mut rest = &waiting[..];
        loop {
            let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
            let mut lent = match connection.role {
                Role::Server => HeadTarget::Request(&mut request),
                Role::Client => HeadTarget::Response(&mut response),
            };
            match connection.next(&mut rest, &mut lent) {
                Ok(None) => break,
                Err(code) => return (events, Some(code)),
                Ok(Some(ConnectionEvent::Request { stream, ended, parsed })) => {
                    connection.set_key(stream, stream as usize);
                    events.push(format!("{stream} asks for {} {ended} {parsed:?}", request.path().escape_ascii()));
                }
                Ok(Some(ConnectionEvent::Response { key, ended, parsed })) => {
                    events.push(format!("{key} answers {} {ended} {parsed:?}", response.status));
                }
                Ok(Some(ConnectionEvent::Data { key, bytes, ended })) => {
                    // The pieces of one DATA frame are joined, so the result does not depend on `cut`.
                    let text = bytes.escape_ascii().to_string();
                    match events
                        .last_mut()
                        .filter(|last| last.starts_with(&format!("{key} brings")) && !last.ends_with('.'))
                    {
                        Some(last) => last.push_str(&text),
                        None => events.push(format!("{key} brings {text}")),
                    }
                    if ended {
                        events.last_mut().expect("pushed").push('.');
                    }
                    connection.release(key as u32, bytes.len());
                }
                Ok(Some(event)) => events.push(format!("{event:?}")),
            }
        }
        waiting = rest.to_vec();
    }
    (events, None)
}

fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() {
        let head = FrameHead::parse(head);
        let (payload, rest) = rest.split_at(head.length as usize);
        frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    frames
}

fn server() -> Connection {
    let mut server = Connection::new(Role::Server, BOUNDS, 0);
    let begin = [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat();
    assert_eq!(read(&mut server, &begin, 5), (vec![], None));
    server.output().clear();
    server
}

/// Kind, flags, stream and payload.
type SentFrame = (u8, u8, u32, Vec<u8>);

/// Feeds `bytes` to a server on which stream 1 waits for content; returns the events, the error and the frames sent.
fn said_to(bytes: &[u8]) -> (Vec<String>, Option<ErrorCode>, Vec<SentFrame>) {
    let mut server = server();
    let open = frame(kind::HEADERS, END_HEADERS, 1, &request("POST", &[("content-length", "5")]));
    read(&mut server, &open, usize::MAX);
    let (events, error) = read(&mut server, bytes, usize::MAX);
    let out = frames(server.output());
    (events, error, out)
}

#[test]
fn a_request_comes_however_it_is_cut() {
    let block = request("POST", &[("content-length", "6")]);
    let (begin, end) = block.split_at(7);
    let bytes = [
        frame(kind::HEADERS, 0, 1, begin),
        frame(kind::CONTINUATION, END_HEADERS, 1, end),
        frame(kind::DATA, PADDED, 1, b"\x03abc\0\0\0"),
        frame(kind::PING, 0, 0, b"12345678"),
        frame(kind::DATA, 0, 1, b""),
        frame(kind::DATA, END_STREAM | PADDED, 1, b"\x02def\0\0"),
        frame(kind::HEADERS, WHOLE, 3, &request("GET", &[])),
    ]
    .concat();
    for cut in [1, 2, 3, 7, 10, 50, usize::MAX] {
        let mut server = server();
        let (events, error) = read(&mut server, &bytes, cut);
        assert_eq!(events, ["1 asks for /a false Ok(())", "1 brings abcdef.", "3 asks for /a true Ok(())"], "{cut}");
        assert_eq!(error, None);
        assert_eq!(frames(server.output()), [(kind::PING, ACK, 0, b"12345678".to_vec())]);
        assert_eq!(server.receive.held(), 0);
    }
}

#[test]
fn malformed_message_ends_its_stream_only() {
    let get = |more| frame(kind::HEADERS, WHOLE, 3, &request("GET", more));
    let trailers = |fields| frame(kind::HEADERS, WHOLE, 1, &section(fields));
    for (what, bytes) in [
        ("DEL in a value", get(&[("x", "a\x7fb")])),
        ("a capital", get(&[("X", "a")])),
        ("an empty name", get(&[("", "a")])),
        ("a connection's field", get(&[("connection", "close")])),
        ("an unknown pseudo-field", get(&[(":x", "a")])),
        ("a pseudo-field late", get(&[("x", "a"), (":path", "/")])),
        ("a length without content", get(&[("content-length", "1")])),
        ("no method", frame(kind::HEADERS, WHOLE, 3, &section(&[(":scheme", "http"), (":path", "/")]))),
        ("a method that is not a word", frame(kind::HEADERS, WHOLE, 3, &request("GE T", &[]))),
        ("more content", frame(kind::DATA, 0, 1, b"123456")),
        ("less content", frame(kind::DATA, END_STREAM, 1, b"1234")),
        ("less content and trailers", trailers(&[("x", "y")])),
        ("trailers that do not end", frame(kind::HEADERS, END_HEADERS, 1, &section(&[("x", "y")]))),
        ("a pseudo-field in trailers", [frame(kind::DATA, 0, 1, b"12345"), trailers(&[(":path", "/")])].concat()),
        ("a bad value in trailers", [frame(kind::DATA, 0, 1, b"12345"), trailers(&[("x", "\n")])].concat()),
        ("a window opened by nothing", frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4])),
        ("a window opened too far", frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff])),
        ("a stream that depends on itself", frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])),
        ("a priority that is too short", frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3])),
    ] {
        let (events, error, out) = said_to(&[bytes, frame(kind::HEADERS, WHOLE, 5, &request("GET", &[]))].concat());
        assert_eq!(error, None, "{what}");
        assert_eq!(events.last().map(String::as_str), Some("5 asks for /a true Ok(())"), "{what}: {events:?}");
        let resets: Vec<_> = out.iter().filter(|frame| frame.0 == kind::RST_STREAM).collect();
        assert_eq!(resets.len(), 1, "{what}: {out:?}");
        assert!(resets[0].2 == 1 || resets[0].2 == 3, "{what}");
    }
}

#[test]
fn connection_error_ends_the_connection_with_its_code() {
    let whole = |stream| frame(kind::HEADERS, WHOLE, stream, &request("GET", &[]));
    for (what, bytes, code) in [
        (
            "a table that is too large",
            frame(kind::HEADERS, WHOLE, 3, &[0x3f, 0xff, 0xff]),
            ErrorCode::COMPRESSION_ERROR,
        ),
        ("an entry that is not there", frame(kind::HEADERS, WHOLE, 3, &[0xfe]), ErrorCode::COMPRESSION_ERROR),
        ("an even stream", whole(2), ErrorCode::PROTOCOL_ERROR),
        ("a lower stream", [whole(7), whole(5)].concat(), ErrorCode::PROTOCOL_ERROR),
        ("content of an idle stream", frame(kind::DATA, 0, 9, b"x"), ErrorCode::PROTOCOL_ERROR),
        ("content of the connection", frame(kind::DATA, 0, 0, b"x"), ErrorCode::PROTOCOL_ERROR),
        ("too much padding", frame(kind::DATA, PADDED, 1, &[5, 0, 0]), ErrorCode::PROTOCOL_ERROR),
        (
            "padding that has no room, before another frame",
            [frame(kind::DATA, PADDED, 1, b""), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
        ("a continuation of nothing", frame(kind::CONTINUATION, 0, 1, b""), ErrorCode::PROTOCOL_ERROR),
        ("a promise", frame(kind::PUSH_PROMISE, 0, 1, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        ("a large frame", frame(kind::PING, 0, 0, &[0; 16_385]), ErrorCode::FRAME_SIZE_ERROR),
        ("a short ping", frame(kind::PING, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR),
        ("settings of a stream", frame(kind::SETTINGS, 0, 1, &[]), ErrorCode::PROTOCOL_ERROR),
        ("settings cut short", frame(kind::SETTINGS, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE_ERROR),
        ("an acknowledgement with more", frame(kind::SETTINGS, ACK, 0, &[0; 6]), ErrorCode::FRAME_SIZE_ERROR),
        ("a reset of an idle stream", frame(kind::RST_STREAM, 0, 9, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        ("a window of nothing", frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (
            "a window too large",
            frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            ErrorCode::FLOW_CONTROL_ERROR,
        ),
        (
            "another frame within a section",
            [frame(kind::HEADERS, 0, 3, &[]), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            "continuations without end",
            [frame(kind::HEADERS, 0, 3, &[]), frame(kind::CONTINUATION, 0, 3, &[]).repeat(16)].concat(),
            ErrorCode::ENHANCE_YOUR_CALM,
        ),
    ] {
        assert_eq!(said_to(&bytes).1, Some(code), "{what}");
    }
    let mut other = Connection::new(Role::Server, BOUNDS, 0);
    assert_eq!(read(&mut other, b"PRI * HTTP/1.1\r\n", 3).1, Some(ErrorCode::PROTOCOL_ERROR));
    let mut early = Connection::new(Role::Server, BOUNDS, 0);
    let begin = [&PREFACE[..], &frame(kind::PING, 0, 0, &[0; 8])].concat();
    assert_eq!(read(&mut early, &begin, 100).1, Some(ErrorCode::PROTOCOL_ERROR), "settings come first");
}

#[test]
fn streams_are_limited_and_a_refused_one_keeps_the_table() {
    let mut server = server();
    let mut encoder = Encoder::default();
    for number in 0..10 {
        let mut block = Vec::new();
        for (name, value) in [(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", "/b")] {
            encoder.field(name.as_bytes(), value.as_bytes(), &mut block);
        }
        let (events, error) = read(&mut server, &frame(kind::HEADERS, END_HEADERS, 2 * number + 1, &block), 1000);
        assert_eq!((events.len(), error), (usize::from(number < 8), None), "{number}");
    }
    let refused = |stream| (kind::RST_STREAM, 0, stream, ErrorCode::REFUSED_STREAM.0.to_be_bytes().to_vec());
    assert_eq!(frames(server.output()), [refused(17), refused(19)]);
    server.reset(1, ErrorCode::CANCEL);
    let mut block = Vec::new();
    for (name, value) in [(":method", "GET"), (":scheme", "http"), (":authority", "a.test"), (":path", "/b")] {
        encoder.field(name.as_bytes(), value.as_bytes(), &mut block);
    }
    let (events, _) = read(&mut server, &frame(kind::HEADERS, WHOLE, 21, &block), 1000);
    assert_eq!(events, ["21 asks for /b true Ok(())"]);
}

#[test]
fn content_waits_for_windows() {
    let mut server = server();
    read(&mut server, &frame(kind::HEADERS, WHOLE, 1, &request("GET", &[])), 1000);
    server.respond(1, 200, false, |fields| fields.add(b"Content-Type", b"text/plain"));
    let content = vec![b'x'; 100_000];
    assert_eq!(server.send_data(1, &content, true), 65_535);
    assert_eq!(server.send_data(1, &content[65_535..], true), 0);
    let open = |stream, by: u32| frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    let (events, _) = read(&mut server, &[open(0, 100_000), open(1, 10)].concat(), 1000);
    assert_eq!(events, ["WindowOpened { key: None }", "WindowOpened { key: Some(1) }"]);
    assert_eq!(server.send_data(1, &content[65_535..], true), 10);
    // A smaller initial window reduces those of open streams, also below zero.
    let initial = |bytes: u32| frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &bytes.to_be_bytes()].concat());
    read(&mut server, &[initial(60_000), open(1, 5_000)].concat(), 1000);
    assert_eq!(server.room(1), 0);
    read(&mut server, &initial(100_000), 1000);
    assert_eq!(server.send_data(1, &content[65_545..], true), 34_455);
    assert_eq!(server.streams(), 0);
    let sent = frames(server.output());
    let data: Vec<_> = sent.iter().filter(|frame| frame.0 == kind::DATA).collect();
    assert_eq!(data.iter().map(|frame| frame.3.len()).sum::<usize>(), 100_000);
    assert!(data.iter().all(|frame| frame.3.len() <= 16_384));
    assert_eq!(data.iter().filter(|frame| frame.1 == END_STREAM).count(), 1);
}

#[test]
fn frames_after_a_refused_request_are_ignored() {
    // Behind a proxy that shares its connections, other streams belong to other users. gRPC-Web and chunked uploads with
    // trailers may be in flight when their stream ends.
    let rest = |stream| {
        [frame(kind::DATA, 0, stream, b"abc"), frame(kind::HEADERS, WHOLE, stream, &section(&[("x", "y")]))].concat()
    };
    let post = |stream, more| frame(kind::HEADERS, END_HEADERS, stream, &request("POST", more));
    let go_on = frame(kind::HEADERS, WHOLE, 99, &request("GET", &[]));
    let resets =
        |server: &mut Connection| frames(server.output()).iter().filter(|frame| frame.0 == kind::RST_STREAM).count();

    let mut malformed = server();
    let (events, error) = read(&mut malformed, &[post(1, &[("x", "\x7f")]), rest(1), go_on.clone()].concat(), 9);
    assert_eq!((events, error), (vec!["Malformed { stream: 1 }".into(), "99 asks for /a true Ok(())".into()], None));
    assert_eq!((resets(&mut malformed), malformed.receive.held()), (1, 0));

    let mut full = server();
    let open: Vec<u8> = (0..8).flat_map(|number| post(2 * number + 1, &[])).collect();
    let (_, error) =
        read(&mut full, &[open, post(17, &[]), rest(17), frame(kind::RST_STREAM, 0, 1, &[0; 4])].concat(), 9);
    assert_eq!((error, resets(&mut full)), (None, 1));
    assert_eq!(read(&mut full, &go_on, 9), (vec!["99 asks for /a true Ok(())".into()], None));

    let mut leaving = server();
    leaving.leave();
    read(&mut leaving, &post(1, &[]), 1000);
    read(&mut leaving, &frame(kind::PING, ACK, 0, &LEAVING), 1000);
    assert_eq!(read(&mut leaving, &[post(3, &[]), rest(3)].concat(), 9), (vec![], None));
    assert_eq!((resets(&mut leaving), leaving.receive.held()), (0, 0));
    // §6.8: the last stream number must not grow.
    leaving.output().clear();
    leaving.fail(ErrorCode::PROTOCOL_ERROR);
    assert_eq!(frames(leaving.output())[0].3[..4], [0, 0, 0, 1]);
}

#[test]
fn a_peer_that_leaves_is_asked_for_nothing_more() {
    let mut client = Connection::new(Role::Client, BOUNDS, 0);
    read(&mut client, &frame(kind::SETTINGS, 0, 0, &[]), 100);
    assert!(client.may_request());
    let leaves = frame(kind::GOAWAY, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert_eq!(read(&mut client, &leaves, 100).0.len(), 1);
    assert_eq!(client.request(1, Method::Get, true, |_| {}), None);
}

#[test]
fn output_for_a_peer_that_reads_nothing_is_bounded() {
    // Only clients are charged credit; an upstream's frames are answered as long as it reads the answers.
    let mut client = Connection::new(Role::Client, BOUNDS, 0);
    read(&mut client, &frame(kind::SETTINGS, 0, 0, &[]), 100);
    let pings = frame(kind::PING, 0, 0, &[0; 8]).repeat(MAX_OUTPUT_BYTES / 17 + 1000);
    assert_eq!(read(&mut client, &pings, usize::MAX).1, Some(ErrorCode::ENHANCE_YOUR_CALM));
    assert!(client.output().len() <= MAX_OUTPUT_BYTES + 17);
}

#[test]
fn a_priority_may_come_before_its_request() {
    // RFC 9218 §7.1.
    let update =
        |stream: u32, value: &[u8]| frame(kind::PRIORITY_UPDATE, 0, 0, &[&stream.to_be_bytes(), value].concat());
    let get = |stream| frame(kind::HEADERS, WHOLE, stream, &request("GET", &[("priority", "u=5")]));
    let mut server = server();
    let early: Vec<u8> = (0..100).flat_map(|number| update(2 * number + 5, b"u=6")).collect();
    let bytes = [update(3, b"u=1"), update(3, b"u=0, i"), early, get(1), get(3), get(5), update(1, b"u=2")].concat();
    assert_eq!(read(&mut server, &bytes, 1000).0.len(), 3);
    assert_eq!(server.priority(3), Priority { urgency: 0, incremental: true });
    assert_eq!((server.priority(1).urgency, server.priority(5).urgency), (2, 6));
    assert!(server.early.len() <= 8, "as many as there may be streams");
    assert_eq!(read(&mut server, &update(4, b"u=1"), 1000).1, Some(ErrorCode::PROTOCOL_ERROR), "nobody pushes");
}

#[test]
fn a_table_that_was_small_for_a_moment_is_empty() {
    // RFC 7541 §4.2: the smallest of several sizes is announced, also of those in one frame.
    let mut server = server();
    for stream in [1, 3] {
        read(&mut server, &frame(kind::HEADERS, WHOLE, stream, &request("GET", &[])), 1000);
    }
    let sizes = [&[0, 1, 0, 0, 0, 0][..], &[0, 1, 0, 0, 16, 0]].concat();
    read(&mut server, &frame(kind::SETTINGS, 0, 0, &sizes), 1000);
    server.output().clear();
    server.respond(1, 200, true, |_| {});
    server.respond(3, 200, true, |_| {});
    let sent = frames(server.output());
    assert_eq!((&sent[0].3[..], &sent[1].3[..]), (&[0x20, 0x3f, 0xe1, 0x1f, 0x88][..], &[0x88][..]));
}

#[test]
fn it_is_left_in_two_steps() {
    let mut server = server();
    server.leave();
    server.leave();
    read(&mut server, &frame(kind::HEADERS, WHOLE, 1, &request("GET", &[])), 1000);
    assert!(!server.is_done());
    let out = frames(server.output());
    assert_eq!(out[0], (kind::GOAWAY, 0, 0, vec![0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    assert_eq!((out[1].0, out.len()), (kind::PING, 2));
    server.output().clear();
    let (events, error) = read(&mut server, &frame(kind::PING, ACK, 0, &out[1].3), 1000);
    assert_eq!((events, error), (vec![], None));
    assert_eq!(frames(server.output()), [(kind::GOAWAY, 0, 0, vec![0, 0, 0, 1, 0, 0, 0, 0])]);
    let (events, _) = read(&mut server, &frame(kind::HEADERS, WHOLE, 3, &request("GET", &[])), 1000);
    assert!(events.is_empty() && !server.is_done(), "it comes too late");
    server.respond(1, 204, true, |_| {});
    assert!(server.is_done());
}

#[test]
fn both_sides_understand_each_other() {
    let (mut client, mut server) = (Connection::new(Role::Client, BOUNDS, 0), Connection::new(Role::Server, BOUNDS, 0));
    let exchange = |from: &mut Connection, to: &mut Connection| {
        let bytes = std::mem::take(from.output());
        let (events, error) = read(to, &bytes, 11);
        assert_eq!(error, None);
        events
    };
    exchange(&mut client, &mut server);
    exchange(&mut server, &mut client);
    for round in 0..3_u32 {
        let fields = |writer: &mut FieldWriter<'_>| {
            for (name, value) in [(":method", "POST"), (":scheme", "http"), (":authority", "t"), (":path", "/p")] {
                writer.add(name.as_bytes(), value.as_bytes());
            }
        };
        let asked = client.request(2 * round as usize + 1, Method::Post, false, fields);
        let (stream, _) = asked.expect("there is room");
        assert_eq!(client.send_data(stream, b"hello", false), 5);
        client.send_trailers(stream, &Trailers::from_lines(b"X-Sum: 5\r\n".to_vec()));
        let events = exchange(&mut client, &mut server);
        let trailers = ConnectionEvent::Trailers {
            key: stream as usize,
            trailers: Trailers::from_lines(b"x-sum: 5\r\n".to_vec()),
        };
        let asks = format!("{stream} asks for /p false Ok(())");
        assert_eq!(events, [asks, format!("{stream} brings hello"), format!("{trailers:?}")]);
        server.respond(stream, 103, false, |_| {});
        server.respond(stream, 200, false, |writer| writer.add(b"Content-Length", b"3"));
        server.send_data(stream, b"bye", true);
        let events = exchange(&mut server, &mut client);
        let answers = |status, end| format!("{stream} answers {status} {end} Ok(())");
        assert_eq!(events, [answers(103, false), answers(200, false), format!("{stream} brings bye.")]);
        assert_eq!((client.streams(), server.streams()), (0, 0));
    }
}

#[test]
fn a_bad_response_ends_its_stream() {
    for (what, fields, flags) in [
        ("no status", &[("x", "y")][..], WHOLE),
        ("a status of two digits", &[(":status", "20")], WHOLE),
        ("101", &[(":status", "101")], WHOLE),
        ("a status late", &[("x", "y"), (":status", "200")], WHOLE),
        ("two", &[(":status", "200"), (":status", "200")], WHOLE),
        ("a request's field", &[(":status", "200"), (":path", "/")], WHOLE),
        ("DEL", &[(":status", "200"), ("x", "a\x7f")], WHOLE),
        ("a capital", &[(":status", "200"), ("X", "a")], WHOLE),
        ("a connection's field", &[(":status", "200"), ("transfer-encoding", "chunked")], WHOLE),
        ("a length that is none", &[(":status", "200"), ("content-length", "x")], END_HEADERS),
        ("an interim response at the end", &[(":status", "103")], WHOLE),
    ] {
        let mut client = Connection::new(Role::Client, BOUNDS, 0);
        let ask = |writer: &mut FieldWriter<'_>| writer.add(b":method", b"GET");
        assert_eq!(client.request(1, Method::Get, true, ask).map(|(id, _)| id), Some(1));
        assert_eq!(client.request(3, Method::Get, true, ask).map(|(id, _)| id), Some(3));
        client.output().clear();
        let good = frame(kind::HEADERS, WHOLE, 3, &section(&[(":status", "204")]));
        let bytes = [frame(kind::SETTINGS, 0, 0, &[]), frame(kind::HEADERS, flags, 1, &section(fields)), good].concat();
        let (events, error) = read(&mut client, &bytes, 9);
        assert_eq!(error, None, "{what}");
        assert!(events[0].contains("Err("), "{what}: {events:?}");
        assert_eq!(events.last().map(String::as_str), Some("3 answers 204 true Ok(())"), "{what}");
        assert_eq!(client.streams(), 0);
    }
}

#[test]
fn a_response_of_a_stream_that_was_reset_meanwhile_leaves_nothing_behind() {
    let mut client = Connection::new(Role::Client, BOUNDS, 0);
    client.request(1, Method::Get, true, |_| {});
    client.request(3, Method::Get, true, |_| {});
    let mut response = ResponseHead::default();
    let block = section(&[(":status", "200"), ("x-of", "one")]);
    let begin = [frame(kind::SETTINGS, 0, 0, &[]), frame(kind::HEADERS, END_STREAM, 1, &block[..3])].concat();
    let ends = frame(kind::CONTINUATION, END_HEADERS, 1, &block[3..]);
    let next = frame(kind::HEADERS, WHOLE, 3, &section(&[(":status", "204")]));
    assert_eq!(client.next(&mut &begin[..], &mut HeadTarget::Response(&mut response)), Ok(None));
    client.reset(1, ErrorCode::CANCEL);
    let rest = [ends, next].concat();
    let event = client.next(&mut &rest[..], &mut HeadTarget::Response(&mut response));
    assert_eq!(event, Ok(Some(ConnectionEvent::Response { key: 3, ended: true, parsed: Ok(()) })));
    assert_eq!((response.status, response.head.fields().count()), (204, 0));
}

#[test]
fn the_framing_of_a_response_follows_its_request() {
    let mut client = Connection::new(Role::Client, BOUNDS, 0);
    client.request(1, Method::Head, true, |_| {});
    let head = frame(kind::HEADERS, END_HEADERS, 1, &section(&[(":status", "200"), ("content-length", "5")]));
    let bytes = [frame(kind::SETTINGS, 0, 0, &[]), head, frame(kind::DATA, 0, 1, b"x")].concat();
    let (mut rest, mut response) = (&bytes[..], ResponseHead::default());
    let first = client.next(&mut rest, &mut HeadTarget::Response(&mut response));
    assert_eq!(first, Ok(Some(ConnectionEvent::Response { key: 1, ended: false, parsed: Ok(()) })));
    assert_eq!(response.framing, Framing::None);
    let failed = ConnectionEvent::Failed { key: 1, code: ErrorCode::PROTOCOL_ERROR };
    assert_eq!(client.next(&mut rest, &mut HeadTarget::Response(&mut response)), Ok(Some(failed)));
}

proptest::proptest! {
    /// The events do not depend on how the bytes are cut, and no input causes a panic.
    #[test]
    fn pieces_are_as_good_as_the_whole(
        parts in proptest::collection::vec(
            (0u8..12, proptest::num::u8::ANY, 0u32..8, proptest::collection::vec(proptest::num::u8::ANY, 0..12), 0u8..4),
            0..30,
        ),
        cut in 1usize..30,
    ) {
        let bytes: Vec<u8> = parts
            .iter()
            .flat_map(|(kind, flags, stream, payload, real)| match real {
                0 => frame(kind::HEADERS, flags & 5 | 4, *stream, &request("POST", &[])),
                1 => frame(kind::DATA, flags & 9, *stream, payload),
                _ => frame(*kind, *flags, *stream, payload),
            })
            .collect();
        let (mut whole, mut pieces) = (server(), server());
        let in_one = read(&mut whole, &bytes, usize::MAX);
        let in_pieces = read(&mut pieces, &bytes, cut);
        proptest::prop_assert_eq!(in_one, in_pieces);
        let (whole, pieces) = (frames(whole.output()), frames(pieces.output()));
        let without_windows = |frames: Vec<(u8, u8, u32, Vec<u8>)>| {
            frames.into_iter().filter(|frame| frame.0 != kind::WINDOW_UPDATE).collect::<Vec<_>>()
        };
        proptest::prop_assert_eq!(without_windows(whole), without_windows(pieces));
    }
}
