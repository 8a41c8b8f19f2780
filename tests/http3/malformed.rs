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
}

use Step::{EndedUni, OpenRequest, Request, Uni};

const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
const EXCESSIVE_LOAD: u64 = 0x107;
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
fn headers(section: &[u8]) -> Vec<u8> {
    let length = section.len() as u16 | 0x4000;
    [&[1][..], &length.to_be_bytes(), section].concat()
}

/// `:method`, `:scheme`, `:authority` and `:path` of `GET https://a.test/`.
const GET: &[u8] = b"\x00\x00\xd1\xd7\x50\x06a.test\xc1";

fn get(more: &[u8]) -> Vec<u8> {
    headers(&[GET, more].concat())
}

fn with_settings(frames: &[u8]) -> Vec<Step> {
    vec![Uni([&[0, 4, 0][..], frames].concat())]
}

/// What ends the connection.
fn connection_errors() -> Vec<(&'static str, Vec<Step>, u64)> {
    let request = |bytes: &[u8]| vec![Request(bytes.to_vec())];
    vec![
        ("a frame before SETTINGS", vec![Uni(vec![0, 7, 1, 0])], MISSING_SETTINGS),
        ("a frame without a meaning before SETTINGS", vec![Uni(vec![0, 0x21, 0])], MISSING_SETTINGS),
        ("SETTINGS twice", with_settings(&[4, 0]), FRAME_UNEXPECTED),
        ("a setting of HTTP/2", vec![Uni(vec![0, 4, 2, 2, 0])], SETTINGS_ERROR),
        ("a setting twice", vec![Uni(vec![0, 4, 4, 6, 1, 6, 1])], SETTINGS_ERROR),
        ("a setting that is neither 0 nor 1", vec![Uni(vec![0, 4, 2, 8, 2])], SETTINGS_ERROR),
        ("a setting without its value", vec![Uni(vec![0, 4, 1, 6])], FRAME_ERROR),
        ("SETTINGS that are too long", vec![Uni(vec![0, 4, 0x80, 1, 0, 0])], EXCESSIVE_LOAD),
        ("DATA on the control stream", with_settings(&[0, 0]), FRAME_UNEXPECTED),
        ("HEADERS on the control stream", with_settings(&[1, 0]), FRAME_UNEXPECTED),
        ("PUSH_PROMISE on the control stream", with_settings(&[5, 0]), FRAME_UNEXPECTED),
        ("PING of HTTP/2", with_settings(&[6, 0]), FRAME_UNEXPECTED),
        ("WINDOW_UPDATE of HTTP/2", with_settings(&[8, 0]), FRAME_UNEXPECTED),
        ("a MAX_PUSH_ID that decreases", with_settings(&[0xd, 1, 5, 0xd, 1, 4]), ID_ERROR),
        ("CANCEL_PUSH of a push that is not there", with_settings(&[3, 1, 0]), ID_ERROR),
        ("a GOAWAY that increases", with_settings(&[7, 1, 4, 7, 1, 8]), ID_ERROR),
        ("a GOAWAY with more than a number", with_settings(&[7, 2, 0, 0]), FRAME_ERROR),
        ("the priority of a stream that is none of a request", with_settings(&[0x80, 0xf, 7, 0, 1, 2]), ID_ERROR),
        ("two control streams", vec![Uni(vec![0, 4, 0]), Uni(vec![0, 4, 0])], STREAM_CREATION_ERROR),
        ("two encoder streams", vec![Uni(vec![2]), Uni(vec![2])], STREAM_CREATION_ERROR),
        ("two decoder streams", vec![Uni(vec![3]), Uni(vec![3])], STREAM_CREATION_ERROR),
        ("a push of a client", vec![Uni(vec![1, 0])], STREAM_CREATION_ERROR),
        ("the end of the control stream", vec![EndedUni(vec![0, 4, 0])], CLOSED_CRITICAL_STREAM),
        ("the end of the encoder stream", vec![EndedUni(vec![2])], CLOSED_CRITICAL_STREAM),
        ("a dynamic table", vec![Uni(vec![2, 0x3f, 0x45])], ENCODER_STREAM_ERROR),
        ("an entry of a dynamic table", vec![Uni(vec![2, 0x41, b'a', 0])], ENCODER_STREAM_ERROR),
        ("an acknowledgement of nothing", vec![Uni(vec![3, 0x80])], DECODER_STREAM_ERROR),
        ("an increment of nothing", vec![Uni(vec![3, 0x01])], DECODER_STREAM_ERROR),
        ("DATA before HEADERS", request(&[0, 1, b'x']), FRAME_UNEXPECTED),
        ("SETTINGS on a request", request(&[4, 0]), FRAME_UNEXPECTED),
        ("GOAWAY on a request", request(&[7, 1, 0]), FRAME_UNEXPECTED),
        ("PRIORITY of HTTP/2 on a request", request(&[2, 0]), FRAME_UNEXPECTED),
        ("a push promise of a client", request(&[5, 1, 0]), FRAME_UNEXPECTED),
        ("a frame that is cut by the end", request(&[1, 9, 0]), FRAME_ERROR),
        ("a section that needs insertions", request(&headers(&[2, 0, 0x80])), DECOMPRESSION_FAILED),
        ("an entry of the dynamic table", request(&headers(&[0, 0, 0x80])), DECOMPRESSION_FAILED),
        ("an entry that is not there", request(&headers(&[0, 0, 0xff, 0x24])), DECOMPRESSION_FAILED),
        ("a section that is cut", request(&headers(&[0, 0, 0x51, 9, b'/'])), DECOMPRESSION_FAILED),
        ("an empty section", request(&headers(&[])), DECOMPRESSION_FAILED),
    ]
}

/// What ends the stream of the request.
fn stream_errors() -> Vec<(&'static str, Vec<u8>, u64)> {
    let field = |name: &str, value: &str| {
        [&[0x27, name.len() as u8 - 7][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    vec![
        ("nothing at all", Vec::new(), REQUEST_INCOMPLETE),
        ("a frame without a meaning alone", vec![0x21, 0], REQUEST_INCOMPLETE),
        ("no method", headers(b"\x00\x00\xd7\x50\x06a.test\xc1"), MESSAGE_ERROR),
        ("no path", headers(b"\x00\x00\xd1\xd7\x50\x06a.test"), MESSAGE_ERROR),
        ("two paths", get(&[0xc1]), MESSAGE_ERROR),
        ("a status", get(&[0xd9]), MESSAGE_ERROR),
        ("a field of the connection", get(&field("connection", "close")), MESSAGE_ERROR),
        ("a transfer coding", get(&field("transfer-encoding", "chunked")), MESSAGE_ERROR),
        ("a name in upper case", get(&field("X-Upper-Case", "1")), MESSAGE_ERROR),
        ("a line feed in a value", get(&field("x-line-feed", "a\nb")), MESSAGE_ERROR),
        ("content that is longer than announced", [get(b"\x54\x011"), vec![0, 2, b'a', b'b']].concat(), MESSAGE_ERROR),
        ("content that is shorter than announced", [get(b"\x54\x019"), vec![0, 1, b'a']].concat(), MESSAGE_ERROR),
    ]
}

async fn run_steps(quic: &quinn::Connection, steps: Vec<Step>) -> Vec<(quinn::SendStream, Option<quinn::RecvStream>)> {
    let mut open = Vec::new();
    for step in steps {
        let (mut stream, receive, bytes, ends) = match step {
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
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let _control = run_steps(&quic, with_settings(&[])).await;
        for (what, bytes, code) in stream_errors() {
            let (_, receive) = run_steps(&quic, vec![Request(bytes)]).await.remove(0);
            match receive.expect("it has both directions").read_to_end(1_000).await {
                Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(reset))) => {
                    assert_eq!(reset, VarInt::from_u64(code).expect("a code"), "{what}");
                }
                outcome => panic!("{what}: {outcome:?}"),
            }
            let (_, receive) = run_steps(&quic, vec![Request(get(&[]))]).await.remove(0);
            let answer = receive.expect("it has both directions").read_to_end(10_000).await.expect("a response");
            assert!(answer.ends_with(b"\x00\x02ok"), "{what}");
        }
    });
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
