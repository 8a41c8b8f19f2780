//! One client that asks for many different stored events and reads none of them: by event streams, WebSockets, long polls and
//! reads; in the clear, over TLS and over HTTP/2, with one worker and with two. What it costs is bounded, and others are served.
//!
//! With `WEIR_TEST_FULL` there are more of them, and the latency of another client is asserted; `--nocapture` shows the figures.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use weir_testkit::{Answer, Authority, Client, DEADLINE, Origin, TempDir, TlsClient, eventually, is_full, scaled};

use crate::listening::MOST_PER_STREAM;
use crate::pacing::answered;
use crate::peers::HubNode;

const MIB: u64 = 1 << 20;
/// More than the kernel takes for a connection whose client does not read.
const EVENT_BYTES: usize = 4_000_000;
/// Together more than twice of what the hub caches.
const EVENTS: usize = 50;
/// A quarter of what the node may hold.
const MOST_HELD: u64 = 16 * MIB;
/// For how memory is handed out: blocks as large as these events leave holes when they are freed by another thread.
const SPARE: u64 = 64 * MIB;
const SLOWER: Duration = Duration::from_millis(5);
/// As many as one connection of HTTP/2 may have streams, and fewer.
const STREAMS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Clear,
    Tls,
    Http2,
}

/// The ways to get events. Each has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stream,
    Socket,
    Poll,
    Read,
}

const WAYS: [Way; 4] = [Way::Stream, Way::Socket, Way::Poll, Way::Read];

impl Way {
    /// The target and the header lines of the request for an event that no other one asks for, if there are enough.
    fn request(self, number: usize) -> (String, &'static str) {
        let target = format!("/t/{}", number % EVENTS);
        match self {
            Way::Stream => (target, "Accept: text/event-stream\r\nLast-Event-ID: earliest\r\n"),
            Way::Socket => (
                format!("{target}?last_event_id=earliest"),
                "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            ),
            Way::Poll => (format!("{target}?after=earliest&wait=50"), ""),
            Way::Read => (target, ""),
        }
    }
}

struct Site {
    node: HubNode,
    tls: TlsClient,
    mode: Mode,
}

fn hub(listen: &str) -> String {
    format!("  publish: {{ anonymous: true, max_bytes: 4MiB }}\n  listen: {{ {listen} }}\n")
}

impl Site {
    fn start(data: &Arc<TempDir>, mode: Mode, workers: usize, listen: &str, plain: &Origin) -> Site {
        let authority = Authority::of_tests();
        let identity = authority.identity(&["a.example"]);
        let indented = |text: &str| text.lines().map(|line| format!("      {line}\n")).collect::<String>();
        let rest = format!(
            "worker_processes: {workers}\nheld_content_max: 64MiB\n\
             listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true }}]\n\
             ssls:\n  - snis: [a.example]\n    cert: |\n{}    key: |\n{}\
             routes:\n- {{ id: hub, uri: /hub, hub_id: h }}\n- {{ id: topics, uri: /t/*, hub_id: h }}\n\
             - {{ id: plain, uri: /plain, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
            indented(&identity.certificate),
            indented(&identity.key),
            plain.addr()
        );
        Site { node: HubNode::of(Arc::clone(data), &hub(listen), &rest), tls: TlsClient::trusting(authority), mode }
    }

    fn addr(&self) -> SocketAddr {
        self.node.gateway.addr()
    }

    /// A client for which the kernel takes little that it does not read.
    fn client(&self) -> Client {
        let client = match self.mode {
            Mode::Tls => Client::narrow_stream(self.node.gateway.tls_addr())
                .and_then(|stream| Client::over_tls(stream, &self.tls, "a.example")),
            Mode::Clear | Mode::Http2 => Client::connect_narrow(self.addr()),
        };
        client.expect("a connection")
    }

    /// Sends requests for this many events, all at once, and reads nothing. What is returned keeps the connections.
    fn attack(&self, count: usize, ways: &[Way]) -> Unread {
        if self.mode == Mode::Http2 {
            return Unread::over_http2(self.addr(), count, ways);
        }
        let ask = |number: usize| {
            let mut client = self.client();
            let (target, lines) = ways[number % ways.len()].request(number);
            client.send(format!("GET {target} HTTP/1.1\r\nHost: gw.example\r\n{lines}\r\n"));
            client
        };
        Unread { _clients: (0..count).map(ask).collect(), _http2: None }
    }

    fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.node.metrics().sum(name, labels)
    }

    fn listeners(&self) -> f64 {
        self.metric("weir_hub_listeners", &[])
    }
}

/// Connections from which nothing is read.
struct Unread {
    _clients: Vec<Client>,
    /// A thread of its own runs the connections.
    _http2: Option<tokio::runtime::Runtime>,
}

impl Unread {
    fn over_http2(addr: SocketAddr, count: usize, ways: &[Way]) -> Unread {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        for first in (0..count).step_by(STREAMS) {
            let numbers = first..count.min(first + STREAMS);
            let asked: Vec<_> = numbers.map(|number| (ways[number % ways.len()], number)).collect();
            let asking = async { tokio::time::timeout(DEADLINE, ask_over_http2(addr, asked)).await.expect("in time") };
            let answers = runtime.block_on(asking);
            runtime.spawn(async move {
                let _answers = answers;
                std::future::pending::<()>().await;
            });
        }
        Unread { _clients: Vec::new(), _http2: Some(runtime) }
    }
}

/// Streams whose responses are not read. A stream is reset when its part is dropped.
type OpenStreams = Vec<(h2::client::ResponseFuture, h2::SendStream<bytes::Bytes>)>;

async fn ask_over_http2(
    addr: SocketAddr,
    asked: Vec<(Way, usize)>,
) -> (h2::client::SendRequest<bytes::Bytes>, OpenStreams) {
    let tcp = tokio::net::TcpStream::connect(addr).await.expect("it listens");
    let (mut requests, connection) = h2::client::handshake(tcp).await.expect("HTTP/2 is spoken");
    tokio::spawn(async move { drop(connection.await) });
    // The settings of the gateway, which allow extended CONNECT, have come with the first answer.
    let first = http::Request::get("http://gw.example/plain").body(()).expect("a request");
    assert_eq!(requests.send_request(first, true).expect("it stands").0.await.expect("an answer").status(), 200);
    let mut streams = Vec::new();
    for (way, number) in asked {
        let (target, lines) = way.request(number);
        let method = if way == Way::Socket { http::Method::CONNECT } else { http::Method::GET };
        let mut request = http::Request::builder().method(method).uri(format!("http://gw.example{target}"));
        match way {
            Way::Socket => {
                request = request.extension(h2::ext::Protocol::from_static("websocket"));
                request = request.header("sec-websocket-version", "13");
            }
            _ => {
                for (name, value) in lines.lines().filter_map(|line| line.split_once(": ")) {
                    request = request.header(name, value);
                }
            }
        }
        let request = request.body(()).expect("a request");
        requests = requests.ready().await.expect("it stands");
        streams.push(requests.send_request(request, way != Way::Socket).expect("it stands"));
    }
    (requests, streams)
}

/// Publishes the events, each to its own topic.
fn publish(data: &Arc<TempDir>, plain: &Origin) {
    let site = Site::start(data, Mode::Clear, 1, "", plain);
    let (next, content) = (AtomicUsize::new(0), "x".repeat(EVENT_BYTES));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= EVENTS {
                        return;
                    }
                    let answer = site.node.post(&format!("/t/{number}"), "text/plain", content.as_bytes());
                    assert_eq!(answer.status, 202, "{}", answer.text());
                }
            });
        }
    });
}

/// Reads all events, one after the other: afterwards the cache of the hub is full.
fn read_all(site: &Site) {
    let mut client = Client::connect(site.addr());
    for number in 0..EVENTS {
        assert_eq!(client.get(&format!("/t/{number}")).expect("an answer").body.len(), EVENT_BYTES);
    }
}

fn attacked(data: &Arc<TempDir>, mode: Mode, workers: usize) {
    let plain = Origin::serving(|_| Answer::ok("ok"));
    // No listener is ended for not reading, however long this takes.
    let site = Site::start(data, mode, workers, "unread_timeout: 1h", &plain);
    read_all(&site);
    let count = scaled(4 * EVENTS, 18 * EVENTS);
    let (requests, before) = (scaled(50, 2_000), site.node.gateway.rss());
    let quiet = answered(&site.node, |count| count >= requests);
    let attackers = site.attack(count, &WAYS);
    eventually("the client has used up its share", 2 * DEADLINE, || {
        site.metric("weir_held_content_refused_total", &["limit=\"client\""]) >= 1.0
    });
    let during = answered(&site.node, |count| count >= requests);
    eventually("it holds its share", 2 * DEADLINE, || {
        site.metric("weir_held_content_bytes", &[]) >= (MOST_HELD - EVENT_BYTES as u64) as f64
    });
    let (held, listeners) = (site.metric("weir_held_content_bytes", &[]), site.listeners());
    let grown = site.node.gateway.rss().saturating_sub(before);
    println!(
        "{mode:?}, workers: {workers}: {count} requests, {listeners} listeners, {} KiB held, {} KiB grown; p50 and p99 of \
         another client {quiet:?} before, {during:?} beside",
        held as u64 >> 10,
        grown >> 10
    );
    assert!(held as u64 <= MOST_HELD, "{held} bytes are held");
    let allowed = MOST_HELD + count as u64 * MOST_PER_STREAM + SPARE;
    assert!(grown <= allowed, "grown by {grown} bytes, and {allowed} are allowed");
    assert!(!is_full() || during[1] <= (quiet[1] * 11 / 10).max(quiet[1] + SLOWER), "{quiet:?} {during:?}");
    // Another client gets events from storage as before.
    let mut other = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), site.addr()).expect("a connection");
    for target in ["/t/1?after=earliest", "/t/2"] {
        let answer = other.get(target).expect("an answer");
        assert_eq!((answer.status, answer.body.len()), (200, EVENT_BYTES), "{target}");
    }
    drop(attackers);
    eventually("nothing is held any more", 2 * DEADLINE, || {
        site.listeners() == 0.0 && site.metric("weir_held_content_bytes", &[]) == 0.0
    });
}

#[test]
fn events_that_one_client_asks_for_and_does_not_read_are_held_content() {
    let (data, plain) = (Arc::new(TempDir::new()), Origin::serving(|_| Answer::ok("ok")));
    publish(&data, &plain);
    for mode in [Mode::Clear, Mode::Tls, Mode::Http2] {
        for workers in [1, 2] {
            attacked(&data, mode, workers);
        }
    }
}

#[test]
fn a_listener_that_does_not_read_is_ended() {
    let (data, plain) = (Arc::new(TempDir::new()), Origin::serving(|_| Answer::ok("ok")));
    publish(&data, &plain);
    for mode in [Mode::Clear, Mode::Tls, Mode::Http2] {
        for way in WAYS {
            let site = Site::start(&data, mode, 1, "unread_timeout: 1s", &plain);
            let clients = site.attack(3, &[way]);
            eventually(&format!("{mode:?}, {way:?}: they are ended"), DEADLINE, || {
                site.metric("weir_hub_unread_listeners_total", &[]) >= 3.0
            });
            eventually("nothing is left", DEADLINE, || {
                site.listeners() == 0.0 && site.metric("weir_held_content_bytes", &[]) == 0.0
            });
            drop(clients);
        }
    }
}

#[test]
fn a_client_has_a_limited_number_of_listeners_and_so_has_the_hub() {
    let (data, plain) = (Arc::new(TempDir::new()), Origin::serving(|_| Answer::ok("ok")));
    for workers in [1, 2] {
        let site = Site::start(&data, Mode::Clear, workers, "max: 10, max_per_client: 7", &plain);
        let ask = |source: u8, way: Way| {
            let source = Ipv4Addr::new(127, 0, 0, source);
            let mut client = Client::connect_from(source, site.addr()).expect("a connection");
            let (target, lines) = way.request(0);
            client.send(format!("GET {target} HTTP/1.1\r\nHost: gw.example\r\n{lines}\r\n"));
            client
        };
        let refused = |source: u8, way: Way| {
            let answer = ask(source, way).response_head("GET").expect("an answer");
            (answer.status, answer.headers.get("Retry-After").map(str::to_owned))
        };
        let listening = [Way::Stream, Way::Socket, Way::Poll];
        let mut clients: Vec<Client> = (0..7).map(|number| ask(1, listening[number % 3])).collect();
        eventually("they listen", DEADLINE, || site.listeners() == 7.0);
        for way in listening {
            assert_eq!(refused(1, way), (429, Some("10".to_owned())), "{way:?}");
        }
        assert_eq!(refused(1, Way::Read).0, 204, "it is no listener");
        clients.extend((0..3).map(|number| ask(2, listening[number % 3])));
        eventually("others listen, too", DEADLINE, || site.listeners() == 10.0);
        assert_eq!(refused(3, Way::Stream), (503, Some("10".to_owned())));
        let count = |limit| site.metric("weir_hub_refused_listeners_total", &[&format!("limit=\"{limit}\"")]);
        assert_eq!((count("client"), count("hub")), (3.0, 1.0));
        clients.remove(0);
        eventually("its place is left to another", DEADLINE, || site.listeners() == 9.0);
        clients.push(ask(1, Way::Stream));
        assert_eq!(clients.last_mut().map(|client| client.response_head("GET").expect("an answer").status), Some(200));
    }
}
