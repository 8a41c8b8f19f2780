//! H13: what is wrong with one response ends that exchange with 502, with seven others on the same upstream connection that
//! all complete. What breaks the connection itself ends those that have no answer yet, and the next request gets another.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use weir_testkit::{Client, DEADLINE, Gateway, Origin, Reading, Response, eventually};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, MALFORMED_FIELDS, PING, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WHOLE, WINDOW_UPDATE, frame, headers, remembered, section,
};
use super::peer::Peer;
use crate::harness::weir;

/// Exchanges of other clients that share the connection.
const HEALTHY: usize = 7;

/// What the client of the bad response gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// 502, counted under this cause.
    Refused(&'static str),
    /// The same, or where the head has left already, a message that is seen to be incomplete.
    Broken,
    /// The response was complete before something was wrong.
    Complete,
}

use Expected::{Broken, Complete, Refused};

const SYNTAX: Expected = Refused("upstream_bad_syntax");
const FRAMING: Expected = Refused("upstream_bad_framing");

/// What the origin sends on a stream.
type Bytes = Box<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

struct BadResponse {
    what: String,
    expected: Expected,
    bytes: Bytes,
}

#[derive(Default)]
struct Table(Vec<BadResponse>);

impl Table {
    fn add(&mut self, what: &str, expected: Expected, bytes: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) {
        self.0.push(BadResponse { what: what.to_owned(), expected, bytes: Box::new(bytes) });
    }

    /// A head of these fields, and nothing behind it.
    fn add_head(&mut self, what: &str, expected: Expected, fields: &[(&str, &str)]) {
        let fields = section(fields);
        self.add(what, expected, move |id| frame(HEADERS, WHOLE, id, &fields));
    }

    /// A good head of these fields besides the status, and `then` behind it.
    fn add_behind(
        &mut self,
        what: &str,
        expected: Expected,
        fields: &'static [(&str, &str)],
        then: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static,
    ) {
        let head = move |id| headers(id, END_HEADERS, &[&[(":status", "200")], fields].concat());
        self.add(what, expected, move |id| [head(id), then(id)].concat());
    }
}

fn bad_responses() -> Vec<BadResponse> {
    let mut table = Table::default();
    bad_fields(&mut table);
    bad_statuses(&mut table);
    bad_lengths(&mut table);
    bad_trailers(&mut table);
    bad_frames(&mut table);
    table.0
}

fn bad_fields(table: &mut Table) {
    let more = [(":path", "/")];
    for (name, value) in MALFORMED_FIELDS.into_iter().chain(more) {
        table.add_head(&format!("{name:?}: {value:?}"), SYNTAX, &[(":status", "200"), (name, value)]);
    }
    let many: Vec<_> = [(":status", "200")].into_iter().chain([("x", "y"); 257]).collect();
    table.add_head("more fields than a head may have", Refused("upstream_head_too_large"), &many);
    let long = "x".repeat(15_000);
    // Over the default of `response_max_header_size`, 64 KiB.
    let large = [(":status", "200"), ("a", &long), ("b", &long), ("c", &long), ("d", &long), ("e", &long)];
    table.add("a larger head than may be", Refused("upstream_head_too_large"), {
        let block = section(&large);
        move |id| {
            let mut pieces = block.chunks(16_000);
            let first = frame(HEADERS, END_STREAM, id, pieces.next().unwrap_or_default());
            let mut others: Vec<_> = pieces.map(|piece| frame(CONTINUATION, 0, id, piece)).collect();
            others.last_mut().expect("it is larger than a frame")[4] |= END_HEADERS;
            [first, others.concat()].concat()
        }
    });
}

fn bad_statuses(table: &mut Table) {
    for status in ["", "2", "20", "2000", "abc", "+20", " 200", "200 ", "2 0", "000", "099", "101", "20\n"] {
        table.add_head(&format!("the status {status:?}"), SYNTAX, &[(":status", status)]);
    }
    table.add_head("no status", SYNTAX, &[("x", "y")]);
    table.add_head("nothing", SYNTAX, &[]);
    table.add_head("two statuses", SYNTAX, &[(":status", "200"), (":status", "200")]);
    table.add_head("a status behind a field", SYNTAX, &[("x", "y"), (":status", "200")]);
    table.add_head("an interim response that ends", SYNTAX, &[(":status", "103")]);
}

fn bad_lengths(table: &mut Table) {
    let length = |value| [(":status", "200"), ("content-length", value)];
    for value in ["5", "-1", "+5", "x", "", "5, 5", "0x5", "99999999999999999999"] {
        table.add_head(&format!("the length {value:?} and no content"), FRAMING, &length(value));
    }
    let twice = [(":status", "200"), ("content-length", "0"), ("content-length", "0")];
    table.add_head("a length twice", FRAMING, &twice);
    let sized: &[(&str, &str)] = &[("content-length", "5")];
    table.add_behind("more content than was said", Broken, sized, |id| frame(DATA, 0, id, b"123456"));
    table.add_behind("less content than was said", Broken, sized, |id| frame(DATA, END_STREAM, id, b"1234"));
    table.add_behind("no content where some was said", Broken, sized, |id| frame(DATA, END_STREAM, id, b""));
    table.add_behind("less content and trailers", Broken, sized, |id| headers(id, WHOLE, &[("x", "y")]));
    for status in ["204", "304"] {
        let head = move |id| headers(id, END_HEADERS, &[(":status", status)]);
        let what = format!("content of a {status}");
        table.add(&what, Complete, move |id| [head(id), frame(DATA, END_STREAM, id, b"x")].concat());
    }
}

fn bad_trailers(table: &mut Table) {
    table.add_behind("trailers that do not end", Broken, &[], |id| headers(id, END_HEADERS, &[("x", "y")]));
    for (name, value) in [(":status", "200"), (":path", "/"), ("X", "y"), ("x", "\n"), ("connection", "close")] {
        let what = format!("{name:?}: {value:?} in trailers");
        table.add_behind(&what, Broken, &[], move |id| headers(id, WHOLE, &[(name, value)]));
    }
}

fn bad_frames(table: &mut Table) {
    table.add("content before a head", Refused("upstream_bad_body"), |id| frame(DATA, END_STREAM, id, b"x"));
    table.add("content behind an interim head", Refused("upstream_bad_body"), |id| {
        [headers(id, END_HEADERS, &[(":status", "103")]), frame(DATA, END_STREAM, id, b"x")].concat()
    });
    table.add_behind("a window opened by nothing", Broken, &[], |id| frame(WINDOW_UPDATE, 0, id, [0; 4]));
    let far = [0x7f, 0xff, 0xff, 0xff];
    table.add_behind("a window opened too far", Broken, &[], move |id| frame(WINDOW_UPDATE, 0, id, far));
    let itself = |id: u32| [&id.to_be_bytes()[..], &[0]].concat();
    table.add_behind("a stream that depends on itself", Broken, &[], move |id| frame(PRIORITY, 0, id, itself(id)));
    table.add_behind("a priority that is too short", Broken, &[], |id| frame(PRIORITY, 0, id, [0; 4]));
    table.add_behind("a reset", Broken, &[], |id| frame(RST_STREAM, 0, id, [0, 0, 0, 2]));
    table.add("content after the end", Complete, |id| {
        [headers(id, WHOLE, &[(":status", "200")]), frame(DATA, END_STREAM, id, b"x")].concat()
    });
    table.add("a head after the end", Complete, |id| headers(id, WHOLE, &[(":status", "200")]).repeat(2));
    table.add("a window opened by nothing after the end", Complete, |id| {
        [headers(id, WHOLE, &[(":status", "200")]), frame(WINDOW_UPDATE, 0, id, [0; 4])].concat()
    });
}

/// An origin that takes eight requests at a time: the heads of seven responses, then what it is told on the eighth stream,
/// then the content of the seven.
fn origin(bytes: Receiver<Bytes>, arrived: Sender<()>) -> Origin {
    let (bytes, arrived) = (Mutex::new(bytes), Mutex::new(arrived));
    Origin::scripted(Reading::Strict, move |connection| {
        let Some(mut peer) = Peer::begin(connection) else { return };
        loop {
            let mut streams = Vec::new();
            for _ in 0..=HEALTHY {
                let Some(stream) = peer.request() else { return };
                streams.push(stream);
                arrived.lock().expect("no test has failed").send(()).expect("the test waits for it");
            }
            let bad = streams.pop().expect("there are eight");
            let heads = streams.iter().map(|&id| headers(id, END_HEADERS, &[(":status", "200"), ("x", "healthy")]));
            peer.send(heads.collect::<Vec<_>>().concat());
            let bytes = bytes.lock().expect("no test has failed").recv().expect("the test says what to send");
            peer.send(bytes(bad));
            peer.send(streams.iter().map(|&id| frame(DATA, END_STREAM, id, "healthy")).collect::<Vec<_>>().concat());
        }
    })
}

struct Round {
    gateway: Gateway,
    origin: Origin,
    bytes: Sender<Bytes>,
    arrived: Receiver<()>,
}

impl Round {
    fn new() -> Round {
        let ((bytes, to_send), (arrives, arrived)) = (channel(), channel());
        let origin = origin(to_send, arrives);
        // Taken out for its faults, it would lose the connection that others use.
        let checks = "{ passive: { unhealthy: { http_failures: 0, tcp_failures: 0, timeouts: 0 } } }";
        let gateway = weir().start(&format!(
            "routes: [{{ uri: /*, upstream: {{ scheme: grpc, retries: 0, checks: {checks}, nodes: {{ \"{}\": 1 }} }} }}]\n",
            origin.addr()
        ));
        Round { gateway, origin, bytes, arrived }
    }

    /// Seven clients whose requests have reached the origin, and then an eighth.
    fn clients(&self) -> (Vec<Client>, Client) {
        let ask = || {
            let mut client = self.gateway.client();
            client.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
            self.arrived.recv_timeout(DEADLINE).expect("the request arrives");
            client
        };
        ((0..HEALTHY).map(|_| ask()).collect(), ask())
    }

    fn refusals(&self, cause: &str) -> f64 {
        self.gateway.metrics().sum("weir_http_errors_total", &[&format!("cause=\"{cause}\"")])
    }
}

fn is_healthy(answer: &Response) -> bool {
    answer.status == 200 && answer.text() == "healthy"
}

#[test]
fn malformed_response_ends_only_its_exchange_beside_seven_others() {
    let all = bad_responses();
    assert!(all.len() >= 60, "{} ways", all.len());
    let round = Round::new();
    for BadResponse { what, expected, bytes } in all {
        let refused = |cause| round.refusals(cause);
        let before = if let Refused(cause) = expected { refused(cause) } else { 0.0 };
        let (healthy, mut bad) = round.clients();
        round.bytes.send(bytes).expect("the origin waits for it");
        for (number, mut client) in healthy.into_iter().enumerate() {
            let answer = client.response().unwrap_or_else(|error| panic!("{what}: exchange {number}: {error}"));
            assert!(is_healthy(&answer), "{what}: exchange {number}: {answer:?}");
        }
        let outcome = bad.response();
        match (expected, &outcome) {
            (Refused(cause), Ok(answer)) => {
                assert_eq!(answer.status, 502, "{what}: {answer:?}");
                eventually(&format!("{what} is counted as {cause}"), DEADLINE, || refused(cause) == before + 1.0);
            }
            (Broken, Err(_)) => {}
            (Broken, Ok(answer)) => assert_eq!(answer.status, 502, "{what}: {answer:?}"),
            (Complete, Ok(answer)) => assert!([200, 204, 304].contains(&answer.status), "{what}: {answer:?}"),
            (expected, outcome) => panic!("{what}: {outcome:?} instead of {expected:?}"),
        }
    }
    assert_eq!(round.origin.connections(), 1, "all of them on one connection");
}

#[test]
fn broken_upstream_connection_ends_its_exchanges_and_no_others() {
    type Breaking = fn(u32) -> Vec<u8>;
    let broken: [(&str, Breaking); 16] = [
        ("an entry that is not there", |id| frame(HEADERS, WHOLE, id, [0xfe])),
        ("a table that is too large", |id| frame(HEADERS, WHOLE, id, [0x3f, 0xff, 0xff, 0x03])),
        ("a string without its end", |id| frame(HEADERS, WHOLE, id, [0, 9, b'x'])),
        ("padding of Huffman that is none", |id| frame(HEADERS, WHOLE, id, [0, 0x81, 0, 1, b'a'])),
        ("a head of a stream that has not begun", |_| frame(HEADERS, WHOLE, 9_999, remembered("x", "y"))),
        ("content of a stream that has not begun", |_| frame(DATA, 0, 9_999, b"x")),
        ("content of no stream", |_| frame(DATA, 0, 0, b"x")),
        ("a continuation of nothing", |id| frame(CONTINUATION, END_HEADERS, id, b"")),
        ("another frame within a head", |id| [frame(HEADERS, 0, id, b""), frame(PING, 0, 0, [0; 8])].concat()),
        ("a promise", |id| frame(PUSH_PROMISE, END_HEADERS, id, [0, 0, 0, 2])),
        ("a short ping", |_| frame(PING, 0, 0, [0; 7])),
        ("settings cut short", |_| frame(SETTINGS, 0, 0, [0; 5])),
        ("a window of nothing", |_| frame(WINDOW_UPDATE, 0, 0, [0; 4])),
        ("a window too large", |_| frame(WINDOW_UPDATE, 0, 0, [0x7f, 0xff, 0xff, 0xff])),
        ("a short farewell", |_| frame(GOAWAY, 0, 0, [0; 7])),
        ("a frame that is too large", |_| frame(DATA, 0, 1, vec![0; 16_385])),
    ];
    for (what, bytes) in broken {
        let round = Round::new();
        let (healthy, mut bad) = round.clients();
        round.bytes.send(Box::new(bytes)).expect("the origin waits for it");
        for mut client in healthy {
            // Their heads have left: what they get is seen to be incomplete.
            let outcome = client.response();
            assert!(outcome.as_ref().map_or(true, |answer| answer.status == 502), "{what}: {outcome:?}");
        }
        assert_eq!(bad.response().map(|answer| answer.status), Ok(502), "{what}: it is not sent again");
        assert_eq!(round.origin.connections(), 1, "{what}");
        let (healthy, mut last) = round.clients();
        round.bytes.send(Box::new(|id| headers(id, WHOLE, &[(":status", "200")]))).expect("the origin waits for it");
        assert!(healthy.into_iter().all(|mut client| client.response().as_ref().is_ok_and(is_healthy)), "{what}");
        assert_eq!(last.response().map(|answer| answer.status), Ok(200), "{what}");
        assert_eq!(round.origin.connections(), 2, "{what}");
    }
}
