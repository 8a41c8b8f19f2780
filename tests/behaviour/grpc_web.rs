//! Calls of gRPC-Web, as browsers make them, to other people's gRPC server and to one that breaks off.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_testkit::{Fields, Gate, Gateway};

use crate::grpc::Peers;
use crate::sides::{ClientSide, Http1, Http2, Length, Plain, Secure, UpstreamSide};

const BINARY: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text";

/// A gateway for such clients, before a gRPC server at a port.
fn gateway<C: ClientSide>(port: &str) -> Gateway {
    let listen = crate::sides::listen::<C>();
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "{listen}routes: [{{ uri: /web/*, plugins: {{ grpc-web: {{}} }}, \
         upstream: {{ scheme: grpc, retries: 0, nodes: {{ \"127.0.0.1:{port}\": 1 }} }} }}]\n"
    ))
}

/// A message in its frame.
fn message(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("it is short").to_be_bytes();
    [&[0], &length[..], content].concat()
}

/// A call whose answer is being read.
struct Call<'a, C> {
    client: &'a mut C,
    fields: Fields,
    is_text: bool,
    /// Received, and no whole group of base64 yet.
    text: Vec<u8>,
    /// Received, and no whole frame yet.
    bytes: Vec<u8>,
}

impl<'a, C: ClientSide> Call<'a, C> {
    fn begin(client: &'a mut C, method: &str, content_type: &str, fields: &[(&str, &str)], content: &[u8]) -> Self {
        let is_text = content_type == TEXT;
        let request = message(content);
        let fields = [&[("content-type", content_type), ("x-grpc-web", "1")], fields].concat();
        client.begin("POST", &format!("/web/test.Echo/{method}"), &fields, Length::Unknown);
        // In text each part may be coded for itself.
        let (first, second) = request.split_at(request.len().min(4));
        for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
            match is_text {
                // Cut within groups; many small frames would be taken for an attack.
                true => {
                    let coded = STANDARD.encode(part).into_bytes();
                    let size = if coded.len() < 100 { 1 } else { 4_001 };
                    coded.chunks(size).try_for_each(|cut| client.send(cut)).expect("it is taken");
                }
                false => client.send(part).expect("it is taken"),
            }
        }
        client.finish(&[]);
        let (status, fields) = client.response().expect("a head");
        assert_eq!((status, fields.get("content-type")), (200, Some(content_type)), "{fields:?}");
        assert_eq!(fields.get("access-control-allow-origin"), Some("*"));
        Call { client, fields, is_text, text: Vec::new(), bytes: Vec::new() }
    }

    /// The next frame: its first byte and what it holds; nothing at the end.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some(length) = self.bytes.get(1..5) {
                let end = 5 + u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
                if self.bytes.len() >= end {
                    let frame: Vec<u8> = self.bytes.drain(..end).collect();
                    return Some((frame[0], frame[5..].to_vec()));
                }
            }
            let part = self.client.part().expect("an end in order");
            if part.is_empty() {
                assert_eq!((&*self.bytes, &*self.text), (&b""[..], &b""[..]), "nothing is left over");
                return None;
            }
            match self.is_text {
                true => self.text.extend_from_slice(&part),
                false => self.bytes.extend_from_slice(&part),
            }
            for group in self.text.drain(..self.text.len() / 4 * 4).collect::<Vec<u8>>().chunks(4) {
                self.bytes.extend(STANDARD.decode(group).expect("a group of base64"));
            }
        }
    }

    fn message(&mut self) -> String {
        let (kind, content) = self.frame().expect("a frame");
        assert_eq!(kind, 0, "a message");
        String::from_utf8(content).expect("text")
    }

    /// The frame of the trailers, after which nothing comes, not even trailers of HTTP.
    fn outcome(&mut self) -> String {
        let (kind, content) = self.frame().expect("a frame");
        assert_eq!(kind, 0x80, "the trailers");
        assert_eq!(self.frame(), None);
        assert_eq!(self.client.trailers().0, []);
        String::from_utf8(content).expect("text")
    }
}

fn calls_pass<C: ClientSide>() {
    let Some(mut peers) = Peers::start() else { return };
    let gateway = gateway::<C>(&peers.port);
    let mut client = C::connect(&gateway);
    for form in [BINARY, TEXT] {
        let mut unary = Call::begin(&mut client, "Unary", form, &[("x-said", "well")], b"hello");
        assert_eq!(unary.message(), "hello well");
        let outcome = unary.outcome();
        for line in ["grpc-status:0\r\n", "x-sum:5\r\n", "bytes-bin:AP8"] {
            assert!(outcome.contains(line), "{line} in {outcome}");
        }
        // A server that has nothing to say ends with its head, and so does the gateway. It may do so before the request has ended, which
        // ends a connection of HTTP/1.1: each of these calls has its own.
        for (method, content, status) in [("Unary", &b"refuse"[..], "7"), ("Nothing", b"", "12")] {
            let mut client = C::connect(&gateway);
            let mut call = Call::begin(&mut client, method, form, &[], content);
            assert_eq!(call.fields.get("grpc-status"), Some(status));
            assert_eq!(call.fields.get("grpc-message").is_some_and(|said| said == "no: %C3%BC"), status == "7");
            assert_eq!(call.frame(), None);
        }
    }
    let mut stream = Call::begin(&mut client, "ServerStream", TEXT, &[], b"5");
    assert_eq!([stream.message(), stream.message(), stream.message()], ["0", "1", "2"], "they come one by one");
    assert_eq!(peers.ask("more -"), "ok");
    assert_eq!([stream.message(), stream.message()], ["3", "4"]);
    assert!(stream.outcome().starts_with("grpc-status:0\r\n"));
    // Larger than any window, chunk or buffer, and no multiple of three.
    let large = vec![b'x'; 1_000_001];
    for form in [BINARY, TEXT] {
        let mut call = Call::begin(&mut client, "Unary", form, &[], &large);
        assert!(call.message() == String::from_utf8_lossy(&large).into_owned() + " ", "{form}");
        assert!(call.outcome().contains("grpc-status:0\r\n"));
    }
}

#[test]
fn calls_pass_over_http1() {
    calls_pass::<Http1<Plain>>();
}

#[test]
fn calls_pass_over_http2() {
    calls_pass::<Http2<Plain>>();
}

#[test]
fn calls_pass_over_http2_and_tls() {
    calls_pass::<Http2<Secure>>();
}

fn a_broken_call_is_an_error<C: ClientSide>() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Http2::<Plain>::origin(move |exchange| {
        assert_eq!(exchange.fields().get("te"), Some("trailers"));
        exchange.respond(200, &[("Content-Type", "application/grpc")], Length::Unknown);
        let _ = exchange.send(b"\0\0\0\0\x02hi");
        held.wait(); // a reset would overtake what has not left
        exchange.abort();
    });
    let gateway = gateway::<C>(&origin.addr().port().to_string());
    let mut client = C::connect(&gateway);
    for form in [BINARY, TEXT] {
        let mut call = Call::begin(&mut client, "Half", form, &[], b"");
        assert_eq!(call.message(), "hi");
        gate.open_once();
        let outcome = call.outcome();
        assert_eq!(outcome, "grpc-status:13\r\ngrpc-message:upstream_reset\r\n", "{form}");
        client = C::connect(&gateway); // an HTTP/1 connection ends with such a response
    }
    // Where there is no server, the head says it.
    drop(origin);
    let mut call = Call::begin(&mut client, "Unary", BINARY, &[], b"");
    assert_eq!(call.fields.get("grpc-status"), Some("14"));
    assert_eq!(call.frame(), None);
}

#[test]
fn h12_a_broken_call_is_an_error_over_http1() {
    a_broken_call_is_an_error::<Http1<Plain>>();
}

#[test]
fn h12_a_broken_call_is_an_error_over_http2() {
    a_broken_call_is_an_error::<Http2<Plain>>();
}

fn others_are_refused<C: ClientSide>() {
    let gateway = gateway::<C>("1");
    let ask = |method: &str, content_type: &str, content: &[u8]| {
        let fields = [("content-type", content_type), ("origin", "https://a.example")];
        C::connect(&gateway).ask(method, "/web/s/m", &fields, content).expect("an answer")
    };
    let preflight = ask("OPTIONS", "text/plain", b"");
    assert_eq!((preflight.status, &*preflight.body), (204, ""));
    assert_eq!(preflight.fields.get("access-control-allow-methods"), Some("POST, OPTIONS"));
    let allowed = preflight.fields.get("access-control-allow-headers");
    assert_eq!(allowed, Some("content-type,x-grpc-web,x-user-agent"));
    for (method, content_type, status) in [("GET", BINARY, 405), ("POST", "application/grpc", 415), ("POST", "", 415)] {
        let answer = ask(method, content_type, b"");
        assert_eq!(answer.status, status, "{method} {content_type}");
        assert_eq!(answer.fields.get("access-control-allow-origin"), Some("*"));
    }
}

#[test]
fn others_are_refused_over_http1() {
    others_are_refused::<Http1<Plain>>();
}

#[test]
fn others_are_refused_over_http2() {
    others_are_refused::<Http2<Plain>>();
}

/// What is not base64 is known only once the request is on its way: the call is refused, and its server sees it end.
#[test]
fn broken_text_is_refused() {
    let origin = Http2::<Plain>::origin(|exchange| {
        let _ = exchange.body();
        exchange.wait_gone();
    });
    let gateway = gateway::<Http1<Plain>>(&origin.addr().port().to_string());
    for content in ["AAA", "*AAA", "AAAAA=AA"] {
        let mut client = Http1::<Plain>::connect(&gateway);
        let answer = client.ask("POST", "/web/s/m", &[("content-type", TEXT)], content.as_bytes());
        assert_eq!(answer.expect("an answer").status, 400, "{content}");
    }
}
