//! What is against the rules ends its stream or its connection, by the code of RFC 9114 or RFC 9204, and affects no other client.

use quinn::{ConnectionError, VarInt};
use weir_testkit::{Answer, Origin};

use crate::client::{ask, client, connect, request, run};
use crate::serve;

/// What a client does.
enum Step {
    /// Sends these bytes on a new stream without another direction.
    Uni(Vec<u8>),
    /// The same, and ends the stream.
    EndedUni(Vec<u8>),
    /// Sends these bytes on the stream of a request, and ends it.
    Request(Vec<u8>),
    /// The same without an end.
    OpenRequest(Vec<u8>),
    /// Sends these bytes on a new stream without another direction, and resets it once they have been acknowledged.
    ResetUni(Vec<u8>),
    /// Wants to hear no more of the control stream of the gateway.
    StopControl,
}

use Step::{EndedUni, OpenRequest, Request, ResetUni, StopControl, Uni};

const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
pub(crate) const EXCESSIVE_LOAD: u64 = 0x107;
const ID_ERROR: u64 = 0x108;
const SETTINGS_ERROR: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const STREAM_CREATION_ERROR: u64 = 0x103;
const CLOSED_CRITICAL_STREAM: u64 = 0x104;
const REQUEST_INCOMPLETE: u64 = 0x10d;
const MESSAGE_ERROR: u64 = 0x10e;
const DECOMPRESSION_FAILED: u64 = 0x200;
const ENCODER_STREAM_ERROR: u64 = 0x201;
const DECODER_STREAM_ERROR: u64 = 0x202;

/// A HEADERS frame with this section.
pub(crate) fn headers(section: &[u8]) -> Vec<u8> {
    let length = section.len() as u16 | 0x4000;
    [&[1][..], &length.to_be_bytes(), section].concat()
}

/// `:method`, `:scheme`, `:authority` and `:path` of `GET https://a.test/`.
pub(crate) const GET: &[u8] = b"\x00\x00\xd1\xd7\x50\x06a.test\xc1";

/// A field with a literal name.
fn field(name: &str, value: &str) -> Vec<u8> {
    let length = match name.len() {
        short @ 0..7 => vec![0x20 | short as u8],
        long => vec![0x27, long as u8 - 7],
    };
    [&length[..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

fn get(more: &[u8]) -> Vec<u8> {
    headers(&[GET, more].concat())
}

fn with_settings(frames: &[u8]) -> Vec<Step> {
    vec![Uni([&[0, 4, 0][..], frames].concat())]
}

/// What ends the connection.
fn connection_errors() -> Vec<BrokenConnection> {
    [settings_errors(), control_errors(), unidirectional_errors(), request_errors(), section_errors()]
        .into_iter()
        .flatten()
        .collect()
}

/// What a client does, and the code that ends its connection.
type BrokenConnection = (&'static str, Vec<Step>, u64);

fn settings_errors() -> Vec<BrokenConnection> {
    let settings = |payload: &[u8]| vec![Uni([&[0, 4, payload.len() as u8][..], payload].concat())];
    let many: Vec<u8> = (0..65).flat_map(|number| [0x40, 0x40 + number, 0]).collect();
    let of_many = [&[0, 4, 0x40, many.len() as u8][..], &many].concat();
    vec![
        ("a frame before SETTINGS", vec![Uni(vec![0, 7, 1, 0])], MISSING_SETTINGS),
        ("a frame without a meaning before SETTINGS", vec![Uni(vec![0, 0x21, 0])], MISSING_SETTINGS),
        ("SETTINGS twice", with_settings(&[4, 0]), FRAME_UNEXPECTED),
        ("a table of header fields of HTTP/2", settings(&[1, 0, 0, 0]), SETTINGS_ERROR),
        ("a push setting of HTTP/2", settings(&[2, 0]), SETTINGS_ERROR),
        ("a number of streams of HTTP/2", settings(&[3, 1]), SETTINGS_ERROR),
        ("a window of HTTP/2", settings(&[4, 1]), SETTINGS_ERROR),
        ("a frame size of HTTP/2", settings(&[5, 1]), SETTINGS_ERROR),
        ("a setting twice", settings(&[6, 1, 6, 1]), SETTINGS_ERROR),
        ("a setting without a meaning twice", settings(&[0x21, 1, 0x21, 1]), SETTINGS_ERROR),
        ("a setting that is neither 0 nor 1", settings(&[8, 2]), SETTINGS_ERROR),
        ("a setting without its value", settings(&[6]), FRAME_ERROR),
        ("a setting whose number is cut", settings(&[6, 0x40]), FRAME_ERROR),
        ("SETTINGS that are too long", vec![Uni(vec![0, 4, 0x80, 1, 0, 0])], EXCESSIVE_LOAD),
        ("65 settings", vec![Uni(of_many)], EXCESSIVE_LOAD),
    ]
}

fn control_errors() -> Vec<BrokenConnection> {
    let long = [&[0x21, 0x7f, 0xff][..], &[0; 0x3fff]].concat().repeat(17);
    vec![
        ("DATA on the control stream", with_settings(&[0, 0]), FRAME_UNEXPECTED),
        ("HEADERS on the control stream", with_settings(&[1, 0]), FRAME_UNEXPECTED),
        ("PUSH_PROMISE on the control stream", with_settings(&[5, 0]), FRAME_UNEXPECTED),
        ("PRIORITY of HTTP/2", with_settings(&[2, 0]), FRAME_UNEXPECTED),
        ("PING of HTTP/2", with_settings(&[6, 0]), FRAME_UNEXPECTED),
        ("WINDOW_UPDATE of HTTP/2", with_settings(&[8, 0]), FRAME_UNEXPECTED),
        ("CONTINUATION of HTTP/2", with_settings(&[9, 0]), FRAME_UNEXPECTED),
        ("a MAX_PUSH_ID that decreases", with_settings(&[0xd, 1, 5, 0xd, 1, 4]), ID_ERROR),
        ("a MAX_PUSH_ID without a number", with_settings(&[0xd, 0]), FRAME_ERROR),
        ("CANCEL_PUSH of a push that is not there", with_settings(&[3, 1, 0]), ID_ERROR),
        ("CANCEL_PUSH without a number", with_settings(&[3, 0]), FRAME_ERROR),
        ("a GOAWAY that increases", with_settings(&[7, 1, 4, 7, 1, 8]), ID_ERROR),
        ("a GOAWAY without a number", with_settings(&[7, 0]), FRAME_ERROR),
        ("a GOAWAY with more than a number", with_settings(&[7, 2, 0, 0]), FRAME_ERROR),
        ("the priority of a stream that is none of a request", with_settings(&[0x80, 0xf, 7, 0, 1, 2]), ID_ERROR),
        ("the priority of a push that is not there", with_settings(&[0x80, 0xf, 7, 1, 1, 0]), ID_ERROR),
        ("the priority of no stream", with_settings(&[0x80, 0xf, 7, 0, 0]), FRAME_ERROR),
        ("more than 256 KiB without a meaning", with_settings(&long), EXCESSIVE_LOAD),
        ("frames without a meaning again and again", with_settings(&[0x21, 0].repeat(2_000)), EXCESSIVE_LOAD),
        ("priorities again and again", with_settings(&[0x80, 0xf, 7, 0, 1, 0].repeat(2_000)), EXCESSIVE_LOAD),
        ("the end of the control stream", vec![EndedUni(vec![0, 4, 0])], CLOSED_CRITICAL_STREAM),
        ("a reset of the control stream", vec![ResetUni(vec![0, 4, 0])], CLOSED_CRITICAL_STREAM),
        ("no interest in the control stream", vec![StopControl], CLOSED_CRITICAL_STREAM),
    ]
}

fn unidirectional_errors() -> Vec<BrokenConnection> {
    vec![
        ("two control streams", vec![Uni(vec![0, 4, 0]), Uni(vec![0])], STREAM_CREATION_ERROR),
        ("two encoder streams", vec![Uni(vec![2]), Uni(vec![2])], STREAM_CREATION_ERROR),
        ("two decoder streams", vec![Uni(vec![3]), Uni(vec![3])], STREAM_CREATION_ERROR),
        ("a push of a client", vec![Uni(vec![1, 0])], STREAM_CREATION_ERROR),
        ("the end of the encoder stream", vec![EndedUni(vec![2])], CLOSED_CRITICAL_STREAM),
        ("the end of the decoder stream", vec![EndedUni(vec![3])], CLOSED_CRITICAL_STREAM),
        ("a reset of the encoder stream", vec![ResetUni(vec![2, 0x20])], CLOSED_CRITICAL_STREAM),
        ("a reset of the decoder stream", vec![ResetUni(vec![3, 0x40])], CLOSED_CRITICAL_STREAM),
        ("a dynamic table", vec![Uni(vec![2, 0x3f, 0x45])], ENCODER_STREAM_ERROR),
        ("an entry of a dynamic table", vec![Uni(vec![2, 0x41, b'a', 0])], ENCODER_STREAM_ERROR),
        ("an entry with a name of the static table", vec![Uni(vec![2, 0xc0, 0])], ENCODER_STREAM_ERROR),
        ("an entry once more", vec![Uni(vec![2, 0x00])], ENCODER_STREAM_ERROR),
        ("an acknowledgement of nothing", vec![Uni(vec![3, 0x80])], DECODER_STREAM_ERROR),
        ("an increment of nothing", vec![Uni(vec![3, 0x01])], DECODER_STREAM_ERROR),
        ("an increment by 0", vec![Uni(vec![3, 0x00])], DECODER_STREAM_ERROR),
        (
            "the number of a stream without an end",
            vec![Uni([&[3, 0x7f][..], &[0xff; 20]].concat())],
            DECODER_STREAM_ERROR,
        ),
    ]
}

fn request_errors() -> Vec<BrokenConnection> {
    let request = |bytes: &[u8]| vec![Request(bytes.to_vec())];
    let after = |bytes: &[u8]| vec![Request([&get(&[]), bytes].concat())];
    let trailers = headers(&[0, 0]);
    let long = [&[0x21, 0x7f, 0xff][..], &[0; 0x3fff]].concat().repeat(5);
    vec![
        ("DATA before HEADERS", request(&[0, 1, b'x']), FRAME_UNEXPECTED),
        ("CANCEL_PUSH on a request", request(&[3, 1, 0]), FRAME_UNEXPECTED),
        ("SETTINGS on a request", request(&[4, 0]), FRAME_UNEXPECTED),
        ("GOAWAY on a request", request(&[7, 1, 0]), FRAME_UNEXPECTED),
        ("MAX_PUSH_ID on a request", request(&[0xd, 1, 0]), FRAME_UNEXPECTED),
        ("PRIORITY_UPDATE on a request", request(&[0x80, 0xf, 7, 0, 1, 0]), FRAME_UNEXPECTED),
        ("PRIORITY of HTTP/2 on a request", request(&[2, 0]), FRAME_UNEXPECTED),
        ("PING of HTTP/2 on a request", request(&[6, 0]), FRAME_UNEXPECTED),
        ("WINDOW_UPDATE of HTTP/2 on a request", after(&[8, 0]), FRAME_UNEXPECTED),
        ("CONTINUATION of HTTP/2 on a request", after(&[9, 0]), FRAME_UNEXPECTED),
        ("a push promise of a client", request(&[5, 1, 0]), FRAME_UNEXPECTED),
        ("DATA after trailers", after(&[&trailers[..], &[0, 1, b'x']].concat()), FRAME_UNEXPECTED),
        ("HEADERS after trailers", after(&[&trailers[..], &trailers].concat()), FRAME_UNEXPECTED),
        ("SETTINGS after trailers", after(&[&trailers[..], &[4, 0]].concat()), FRAME_UNEXPECTED),
        ("a frame that is cut by the end", request(&[1, 9, 0]), FRAME_ERROR),
        ("content that is cut by the end", after(&[0, 9, b'x']), FRAME_ERROR),
        ("the type of a frame alone", after(&[0]), FRAME_ERROR),
        ("more than 64 KiB without a meaning", request(&long), EXCESSIVE_LOAD),
        ("empty content again and again", after(&[0, 0].repeat(2_000)), EXCESSIVE_LOAD),
    ]
}

fn section_errors() -> Vec<BrokenConnection> {
    let section = |bytes: &[u8]| vec![Request(headers(bytes))];
    let trailers = |bytes: &[u8]| vec![Request([get(&[]), headers(bytes)].concat())];
    vec![
        ("a section that needs insertions", section(&[2, 0, 0x80]), DECOMPRESSION_FAILED),
        ("a section with a negative base", section(&[0, 0x80, 0xd1]), DECOMPRESSION_FAILED),
        ("an entry of the dynamic table", section(&[0, 0, 0x80]), DECOMPRESSION_FAILED),
        ("a name of the dynamic table", section(&[0, 0, 0x40, 1, b'a']), DECOMPRESSION_FAILED),
        ("an entry behind the base", section(&[0, 0, 0x10]), DECOMPRESSION_FAILED),
        ("a name behind the base", section(&[0, 0, 0x00, 1, b'a']), DECOMPRESSION_FAILED),
        ("an entry that is not there", section(&[0, 0, 0xff, 0x24]), DECOMPRESSION_FAILED),
        ("a name that is not there", section(&[0, 0, 0x5f, 0x54, 1, b'a']), DECOMPRESSION_FAILED),
        ("an index without an end", section(&[&[0, 0, 0xff][..], &[0xff; 20]].concat()), DECOMPRESSION_FAILED),
        ("a section that is cut", section(&[0, 0, 0x51, 9, b'/']), DECOMPRESSION_FAILED),
        ("Huffman coding with a wrong end", section(&[0, 0, 0x51, 0x81, 0x00]), DECOMPRESSION_FAILED),
        ("Huffman coding of the end", section(&[0, 0, 0x51, 0x84, 0xff, 0xff, 0xff, 0xff]), DECOMPRESSION_FAILED),
        ("an empty section", section(&[]), DECOMPRESSION_FAILED),
        ("trailers with an entry of the dynamic table", trailers(&[0, 0, 0x80]), DECOMPRESSION_FAILED),
    ]
}

/// What ends the stream of the request.
fn stream_errors() -> Vec<(&'static str, Vec<u8>, u64)> {
    let with = |name: &str, value: &str| get(&field(name, value));
    let content = |announced: &[u8], frames: &[u8]| [&get(announced), frames].concat();
    let trailers = |name: &str, value: &str| [get(&[]), headers(&[&[0, 0], &field(name, value)[..]].concat())].concat();
    vec![
        ("nothing at all", Vec::new(), REQUEST_INCOMPLETE),
        ("a frame without a meaning alone", vec![0x21, 0], REQUEST_INCOMPLETE),
        ("no method", headers(b"\x00\x00\xd7\x50\x06a.test\xc1"), MESSAGE_ERROR),
        ("no scheme", headers(b"\x00\x00\xd1\x50\x06a.test\xc1"), MESSAGE_ERROR),
        ("no path", headers(b"\x00\x00\xd1\xd7\x50\x06a.test"), MESSAGE_ERROR),
        ("an empty path", headers(b"\x00\x00\xd1\xd7\x50\x06a.test\x51\x00"), MESSAGE_ERROR),
        ("two methods", get(&[0xd1]), MESSAGE_ERROR),
        ("two schemes", get(&[0xd7]), MESSAGE_ERROR),
        ("two authorities", get(b"\x50\x06a.test"), MESSAGE_ERROR),
        ("two paths", get(&[0xc1]), MESSAGE_ERROR),
        ("a status", get(&[0xd9]), MESSAGE_ERROR),
        ("a field with a colon that is not known", with(":unknown", "1"), MESSAGE_ERROR),
        ("a protocol without CONNECT", with(":protocol", "websocket"), MESSAGE_ERROR),
        ("a path behind a field", headers(b"\x00\x00\xd1\xd7\x50\x06a.test\x5f\x50\x01x\xc1"), MESSAGE_ERROR),
        ("a field of the connection", with("connection", "close"), MESSAGE_ERROR),
        ("a field of connections that are kept", with("keep-alive", "timeout=5"), MESSAGE_ERROR),
        ("a field of connections to proxies", with("proxy-connection", "close"), MESSAGE_ERROR),
        ("a field of upgrades", with("upgrade", "websocket"), MESSAGE_ERROR),
        ("a transfer coding", with("transfer-encoding", "chunked"), MESSAGE_ERROR),
        ("another coding of transfers than trailers", with("te", "gzip"), MESSAGE_ERROR),
        ("a name in upper case", with("X-Upper-Case", "1"), MESSAGE_ERROR),
        ("a name with a space", with("x with space", "1"), MESSAGE_ERROR),
        ("an empty name", with("", "1"), MESSAGE_ERROR),
        ("a line feed in a value", with("x-line-feed", "a\nb"), MESSAGE_ERROR),
        ("a carriage return in a value", with("x-return", "a\rb"), MESSAGE_ERROR),
        ("a zero byte in a value", with("x-zero", "a\0b"), MESSAGE_ERROR),
        ("a space before a value", with("x-space", " a"), MESSAGE_ERROR),
        ("content that is longer than announced", content(b"\x54\x011", b"\x00\x02ab"), MESSAGE_ERROR),
        ("content that is shorter than announced", content(b"\x54\x019", b"\x00\x01a"), MESSAGE_ERROR),
        ("trailers in place of content", content(b"\x54\x019", &headers(&[0, 0])), MESSAGE_ERROR),
        ("trailers with a path", trailers(":path", "/"), MESSAGE_ERROR),
        ("trailers with a name in upper case", trailers("X-Upper-Case", "1"), MESSAGE_ERROR),
        ("trailers with a field of the connection", trailers("connection", "close"), MESSAGE_ERROR),
        ("trailers with a line feed", trailers("x-line-feed", "a\nb"), MESSAGE_ERROR),
    ]
}

/// What is understood, and refused with a status: what HTTP/1.1 answers with 400 or 501.
fn refused_requests() -> Vec<(&'static str, Vec<u8>, u16)> {
    let with = |name: &str, value: &str| get(&field(name, value));
    vec![
        ("another `Host` than the authority", with("host", "b.test"), 400),
        ("a length that is no number", get(b"\x54\x01x"), 400),
        ("a negative length", get(b"\x54\x02-1"), 400),
        ("two lengths", get(b"\x54\x011\x54\x012"), 400),
        ("a path without a slash", headers(b"\x00\x00\xd1\xd7\x50\x06a.test\x51\x03abc"), 400),
        ("a path with a space", headers(b"\x00\x00\xd1\xd7\x50\x06a.test\x51\x04/a b"), 400),
        ("an authority with a user", headers(b"\x00\x00\xd1\xd7\x50\x08u@a.test\xc1"), 400),
    ]
}

/// What comes back on the stream of a request with these bytes.
async fn respond(quic: &quinn::Connection, bytes: Vec<u8>) -> Result<Vec<u8>, quinn::ReadToEndError> {
    let (mut send, mut receive) = quic.open_bi().await.expect("a stream");
    // It fails if the gateway has refused the request already.
    let _ = send.write_all(&bytes).await;
    let _ = send.finish();
    receive.read_to_end(10_000).await
}

/// The status of a response: its field is the first of the section, an entry of the static table.
fn status_of(response: &[u8]) -> Option<u16> {
    let section = match response {
        [1, length, section @ ..] if *length < 0x40 => section,
        [1, _, _, section @ ..] => section,
        _ => return None,
    };
    match section {
        [0, 0, 0xd9, ..] => Some(200),
        [0, 0, 0xff, 4, ..] => Some(400),
        _ => None,
    }
}

async fn run_steps(quic: &quinn::Connection, steps: Vec<Step>) -> Vec<(quinn::SendStream, Option<quinn::RecvStream>)> {
    let mut open = Vec::new();
    for step in steps {
        let (mut stream, receive, bytes, ends) = match step {
            StopControl => {
                let mut control = quic.accept_uni().await.expect("the control stream");
                control.stop(VarInt::from_u32(0)).expect("it is open");
                continue;
            }
            ResetUni(bytes) => {
                let mut stream = quic.open_uni().await.expect("a stream");
                stream.write_all(&bytes).await.expect("it is sent");
                // What is reset before it has come is forgotten, with the type of the stream.
                let answer = respond(quic, get(&[])).await.expect("a response");
                assert!(answer.ends_with(b"\x00\x02ok"));
                stream.reset(VarInt::from_u32(0)).expect("it is open");
                continue;
            }
            Uni(bytes) => (quic.open_uni().await.expect("a stream"), None, bytes, false),
            EndedUni(bytes) => (quic.open_uni().await.expect("a stream"), None, bytes, true),
            Request(bytes) => {
                let (stream, receive) = quic.open_bi().await.expect("a stream");
                (stream, Some(receive), bytes, true)
            }
            OpenRequest(bytes) => {
                let (stream, receive) = quic.open_bi().await.expect("a stream");
                (stream, Some(receive), bytes, false)
            }
        };
        // It fails if the connection has ended by a step before.
        let _ = stream.write_all(&bytes).await;
        if ends {
            let _ = stream.finish();
        }
        open.push((stream, receive));
    }
    open
}

#[test]
fn a_broken_connection_ends_with_its_code_and_no_other_does() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let to = served.gateway.tls_addr();
        let (mut other, _quic) = client(&served.authority, to).await;
        for (what, steps, code) in connection_errors() {
            let quic = connect(&served.authority, to).await;
            let _open = run_steps(&quic, steps).await;
            match quic.closed().await {
                ConnectionError::ApplicationClosed(closed) => {
                    assert_eq!(closed.error_code, VarInt::from_u64(code).expect("a code"), "{what}");
                }
                error => panic!("{what}: {error}"),
            }
            let (response, _) = ask(&mut other, request("GET", "/")).await;
            assert_eq!(response.status(), 200, "{what}");
        }
    });
}

#[test]
fn a_malformed_request_ends_its_stream_and_no_other() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let to = served.gateway.tls_addr();
        let (mut other, _quic) = client(&served.authority, to).await;
        let quic = connect(&served.authority, to).await;
        let _control = run_steps(&quic, with_settings(&[])).await;
        for (what, bytes, code) in stream_errors() {
            match respond(&quic, bytes).await {
                Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(reset))) => {
                    assert_eq!(reset, VarInt::from_u64(code).expect("a code"), "{what}");
                }
                outcome => panic!("{what}: {outcome:?}"),
            }
            let answer = respond(&quic, get(&[])).await.expect("a response");
            assert!(answer.ends_with(b"\x00\x02ok"), "{what}");
            assert_eq!(ask(&mut other, request("GET", "/")).await.0.status(), 200, "{what}");
        }
    });
    assert!(origin.violations().is_empty(), "{:?}", origin.violations());
}

#[test]
fn a_request_that_is_refused_is_answered() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let to = served.gateway.tls_addr();
        let (mut other, _quic) = client(&served.authority, to).await;
        let quic = connect(&served.authority, to).await;
        let _control = run_steps(&quic, with_settings(&[])).await;
        for (what, bytes, status) in refused_requests() {
            let answer = respond(&quic, bytes).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(status_of(&answer), Some(status), "{what}: {answer:?}");
            assert_eq!(ask(&mut other, request("GET", "/")).await.0.status(), 200, "{what}");
        }
    });
    assert!(origin.requests().iter().all(|request| request.target == "/"), "none of them is forwarded");
}

#[test]
fn heads_that_come_in_part_take_a_bounded_amount_of_memory() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let _control = run_steps(&quic, with_settings(&[])).await;
        // All but the last byte of a section.
        let head = [&[1][..], &(60_000_u32 | 0x8000_0000).to_be_bytes(), &[0; 59_999]].concat();
        let (ended, mut first) = tokio::sync::mpsc::unbounded_channel();
        let mut open = Vec::new();
        for _ in 0..20 {
            let (stream, receive) = run_steps(&quic, vec![OpenRequest(head.clone())]).await.remove(0);
            let (ended, mut receive) = (ended.clone(), receive.expect("it has both directions"));
            tokio::spawn(async move { ended.send(receive.read_to_end(1_000).await) });
            open.push(stream);
        }
        match first.recv().await {
            Some(Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(reset)))) => {
                assert_eq!(reset, VarInt::from_u64(EXCESSIVE_LOAD).expect("a code"));
            }
            outcome => panic!("{outcome:?}"),
        }
        let (_, receive) = run_steps(&quic, vec![Request(get(&[]))]).await.remove(0);
        let answer = receive.expect("it has both directions").read_to_end(10_000).await.expect("a response");
        assert!(answer.ends_with(b"\x00\x02ok"), "the connection is not affected");
    });
}

#[test]
fn frames_and_streams_without_meaning_are_ignored() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let control = [&[0x21, 3, 1, 2, 3][..], &[0x0d, 1, 7], &[0x80, 0xf, 7, 0, 4, 0], b"u=1"].concat();
        let mut steps = with_settings(&control);
        steps.extend([
            Uni(vec![2, 0x20]),
            Uni(vec![3, 0x44, 0x7f, 0x05]),
            Uni(vec![0x40, 0x5f, 9, 9]),
            EndedUni(vec![0x21]),
        ]);
        let _open = run_steps(&quic, steps).await;
        let bytes = [&[0x21, 1, 9][..], &get(&[]), &[0x40, 0x5f, 0], &[0, 0]].concat();
        let (_, receive) = run_steps(&quic, vec![Request(bytes)]).await.remove(0);
        let answer = receive.expect("it has both directions").read_to_end(10_000).await.expect("a response");
        assert!(answer.ends_with(b"\x00\x02ok"));
    });
}
