//! Attacks on the node's own addresses, that of the Admin API and that for the status: who has no key, or only reads, locks nobody
//! out; neither do streams. In the clear, over TLS and over HTTP/2, with one worker and with two.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use weir_testkit::{
    Authority, Client, ClientMode, DEADLINE, EndOfAttack, Gateway, ReadError, TlsClient, eventually, eventually_some,
    is_full, most_beside, p99, runs_for_minutes, scaled,
};

use crate::api::{ADMIN, VIEWER, admin_addr, file};
use crate::weir;

const MIB: u64 = 1 << 20;
/// The connections that are made in each attack: more than either address serves.
const MANY: usize = 160;
const ROUTE: &str = r#"{"uri":"/r","plugins":{"mocking":{"response_example":"mocked"}}}"#;

pub(crate) struct Site {
    pub gateway: Gateway,
    tls: TlsClient,
    pub mode: ClientMode,
    pub workers: usize,
}

impl Site {
    pub(crate) fn start(mode: ClientMode, workers: usize) -> Site {
        Site::with_settings(mode, workers, "")
    }

    /// Starts a node with further settings below `admin`.
    pub(crate) fn with_settings(mode: ClientMode, workers: usize, settings: &str) -> Site {
        let authority = Authority::of_tests();
        let identity = authority.identity(&["a.example"]);
        let tls = if mode == ClientMode::Tls { "  tls: { cert: admin.crt, key: admin.key }\n" } else { "" };
        let launcher = weir().file("admin.crt", &identity.certificate).file("admin.key", &identity.key);
        let gateway =
            launcher.start(&format!("worker_processes: {workers}\n{}  hosts: [a.example]\n{tls}{settings}", file()));
        Site { gateway, tls: TlsClient::trusting(authority), mode, workers }
    }

    pub(crate) fn everywhere(check: impl Fn(&Site)) {
        Site::with_workers(&[1, 2], check);
    }

    pub(crate) fn with_workers(workers: &[usize], check: impl Fn(&Site)) {
        ClientMode::with_workers(workers, |mode, workers| check(&Site::start(mode, workers)));
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        admin_addr(&self.gateway)
    }

    fn status(&self) -> SocketAddr {
        self.gateway.status_addr()
    }

    /// A client of the Admin API.
    pub(crate) fn try_client(&self) -> std::io::Result<Client> {
        self.mode.try_connect(self.admin(), &self.tls, "a.example")
    }

    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        self.try_client().expect("a connection")
    }

    /// Whether a change is made, on a new connection.
    pub(crate) fn changes(&self) -> bool {
        let Ok(mut client) = self.try_client() else { return false };
        client.ask(request("PUT", "routes/r", ADMIN, ROUTE)).is_ok_and(|put| matches!(put.status, 200 | 201))
    }

    #[track_caller]
    pub(crate) fn serves(&self, beside: &str) {
        if beside == "body" {
            // Who has a key, and sends a part of a body, gives way after a second.
            eventually("a change is made beside bodies that do not come", DEADLINE, || self.changes());
        } else {
            assert!(is_soon(|| self.changes()), "{beside}, {:?}, workers: {}", self.mode, self.workers);
        }
        assert!(is_soon(|| self.is_ready()), "{beside}, {:?}, workers: {}", self.mode, self.workers);
    }

    /// Whether the status address tells that the node is ready, on a new connection.
    fn is_ready(&self) -> bool {
        Client::try_connect(self.status())
            .is_ok_and(|mut client| client.get("/status/ready").is_ok_and(|answer| answer.status == 200))
    }

    /// Whether a resource is read, on a new connection.
    fn is_read(&self) -> bool {
        let Ok(mut client) = self.try_client() else { return false };
        client.ask(request("GET", "routes/r", ADMIN, "")).is_ok_and(|answer| answer.status == 200)
    }

    pub(crate) fn server(&self, metric: &str, server: &str) -> f64 {
        self.gateway.metrics().sum(metric, &[&format!("server=\"{server}\"")])
    }
}

/// Whether something succeeds at the first or one of the next attempts. A client that stands still between connecting and asking may be
/// the one that has been idle for the longest time, and gives way to the next client.
pub(crate) fn is_soon(succeeds: impl Fn() -> bool) -> bool {
    (0..5).any(|_| succeeds())
}

pub(crate) fn request(method: &str, path: &str, key: &str, body: &str) -> String {
    format!(
        "{method} /apisix/admin/{path} HTTP/1.1\r\nHost: a.example\r\nX-API-KEY: {key}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The preface of HTTP/2, and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A connection that holds a place, by what its client has done; `None` if it has been closed at once.
fn idler(site: &Site, addr: SocketAddr, kind: &str) -> Option<Client> {
    let is_admin = addr == site.admin() && !matches!(kind, "silent" | "hello");
    let client = if is_admin { site.try_client() } else { Client::try_connect(addr) };
    let mut client = client.ok()?;
    if kind == "answered" {
        client.ask("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("an answer");
        return Some(client);
    }
    let _ = match kind {
        "head" => client.try_send("GET / HTTP/1.1\r\nX: "),
        "hello" => client.try_send(b"\x16\x03\x01\x02\x00\x01"),
        "preface" => client.try_send(PREFACE),
        "body" => client.try_send(request("POST", "configs/validate", VIEWER, "{}").replace("Length: 2", "Length: 9")),
        _ => Ok(()),
    };
    Some(client)
}

#[test]
fn u05_connections_that_send_little_or_nothing_lock_nobody_out_of_the_own_addresses() {
    Site::everywhere(|site| {
        site.serves("nobody");
        let before = site.gateway.rss();
        for kind in ["silent", "hello", "head", "preface", "answered", "body"] {
            let count = if kind == "silent" { 1_024 } else { MANY };
            for addr in [site.admin(), site.status()] {
                let idle: Vec<Client> = (0..count).filter_map(|_| idler(site, addr, kind)).collect();
                site.serves(kind);
                drop(idle);
            }
        }
        let grown = site.gateway.rss().saturating_sub(before);
        println!("{:?}, workers: {}: {} KiB more", site.mode, site.workers, grown / 1024);
        assert!(grown <= 24 * MIB, "{grown} bytes more");
        for server in ["admin", "status"] {
            assert!(site.server("weir_server_connections_closed_total", server) >= 1_000.0, "they gave way");
        }
    });
}

/// Requests without a key on many connections at once, sent without waiting for their responses. A connection that the server ends
/// is made anew.
fn pipeline(addr: SocketAddr, connections: usize, by_http2: bool, stop: &AtomicBool) {
    // The window of the connection, so that responses need no further ones.
    const WIDE: &[u8] = b"\0\0\x04\x08\0\0\0\0\0\x3f\xff\0\0";
    let begin = || {
        let mut client = Client::connect(addr);
        client.set_deadline(Duration::from_millis(1));
        let _ = by_http2.then(|| client.try_send([PREFACE, WIDE].concat()));
        (client, 0_u32)
    };
    let requests = |sent: u32| match by_http2 {
        true => (0..8).flat_map(|number| headers(2 * (sent + number) + 1, 5)).collect(),
        false => b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200),
    };
    let mut clients: Vec<(Client, u32)> = (0..connections).map(|_| begin()).collect();
    while !stop.load(Relaxed) {
        for entry in &mut clients {
            let (client, sent) = entry;
            let is_open = client.try_send(requests(*sent)).is_ok()
                && client
                    .up_to(MIB)
                    .map_or_else(|error| matches!(error, ReadError::TimedOut { .. }), |read| !read.is_empty());
            *sent += 8;
            if !is_open && !stop.load(Relaxed) {
                *entry = begin();
            }
        }
    }
}

#[test]
fn u05_pipelined_requests_lock_nobody_out_of_the_own_addresses() {
    for by_http2 in [false, true] {
        let site = Site::start(ClientMode::Clear, 1);
        site.serves("nobody");
        for (server, addr, connections) in [("admin", site.admin(), 128), ("status", site.status(), 64)] {
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| pipeline(addr, connections, by_http2, &stop));
                let _end = EndOfAttack(&stop);
                eventually("others get a place", 3 * DEADLINE, || {
                    site.serves("pipelined requests");
                    let why = ["why=\"shed\"", &format!("server=\"{server}\"")];
                    site.gateway.metrics().sum("weir_server_connections_closed_total", &why) >= 10.0
                });
            });
        }
    }
}

/// A request with a key that only reads, from another client address, whose body of a megabyte and a half lacks its end.
fn half_body(site: &Site) -> Option<Client> {
    let body = "x".repeat(1_400_000);
    let head = request("POST", "configs/validate", VIEWER, "").replace("Length: 0", "Length: 1500000");
    let mut client = Client::connect_from([127, 0, 0, 2].into(), site.admin()).ok()?;
    let _ = client.try_send(head + &body);
    Some(client)
}

#[test]
fn u05_half_bodies_of_one_client_are_bounded_in_bytes_and_delay_no_other_client() {
    for workers in [1, 2] {
        let site = Site::start(ClientMode::Clear, workers);
        site.serves("nobody");
        let before = site.gateway.rss();
        let mut half: Vec<Client> = (0..60).filter_map(|_| half_body(&site)).collect();
        site.serves("half bodies");
        let grown = site.gateway.rss().saturating_sub(before);
        println!("{} KiB more", grown / 1024);
        // Half of what may be held, and as much again for how memory is handed out.
        assert!(grown <= 128 * MIB, "{grown} bytes more");
        half.iter().for_each(|client| client.set_deadline(Duration::from_millis(10)));
        // They are read side by side, so that any of them may be the one too many.
        let refused =
            eventually_some("one is refused", 3 * DEADLINE, || half.iter_mut().find_map(|half| half.response().ok()));
        assert_eq!(refused.status, 503, "{}", refused.text());
        assert!(refused.text().contains("all the memory that there is for bodies"), "{}", refused.text());
        drop(half);
        let mut whole = site.client();
        let answer = whole.ask(request("POST", "configs/validate", VIEWER, "{}")).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn u05_the_commands_reach_an_admin_api_that_is_attacked() {
    let site = Site::start(ClientMode::Clear, 1);
    let _idle: Vec<Client> = (0..1_024).filter_map(|_| idler(&site, site.admin(), "silent")).collect();
    let _answered: Vec<Client> = (0..MANY).filter_map(|_| idler(&site, site.admin(), "answered")).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["get", "routes"]).env("WEIR_ADMIN", format!("http://{}", site.admin())).env("WEIR_ADMIN_KEY", ADMIN);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn u05_a_connection_ends_that_sends_no_first_byte_no_head_or_no_request() {
    let site = Site::start(ClientMode::Http2, 1);
    let secure = Site::start(ClientMode::Tls, 1);
    let mut idle = Vec::new();
    for kind in ["silent", "head", "preface"] {
        idle.extend(idler(&site, site.admin(), kind));
        idle.extend(idler(&site, site.status(), kind));
    }
    for kind in ["silent", "hello", "head"] {
        idle.extend(idler(&secure, secure.admin(), kind));
    }
    for client in &mut idle {
        client.until_closed();
    }
    for (site, why) in [(&site, "first_byte"), (&site, "head"), (&secure, "first_byte"), (&secure, "handshake")] {
        let why = format!("why=\"{why}\"");
        assert!(site.gateway.metrics().sum("weir_server_connections_closed_total", &[&why]) >= 1.0, "{why}");
    }
}

/// A request over HTTP/2 without a body, in a frame of type HEADERS.
fn headers(stream: u32, flags: u8) -> Vec<u8> {
    let block = b"\x82\x86\x84\x41\x01t";
    [&[0, 0, block.len() as u8, 1, flags][..], &stream.to_be_bytes(), block].concat()
}

#[test]
fn u05_rapid_resets_and_endless_heads_end_their_connection_of_http2() {
    let site = Site::start(ClientMode::Http2, 1);
    let before = site.gateway.rss();
    for addr in [site.admin(), site.status()] {
        let mut resets = Client::connect(addr);
        resets.send(PREFACE);
        let mut endless = Client::connect(addr);
        endless.send(PREFACE);
        endless.send(headers(1, 1));
        let is_closed = |client: &mut Client, frames: &dyn Fn(u32) -> Vec<u8>| {
            // What is sent is not read any more once the connection is closed.
            (0..1_000_000_u32).any(|number| client.try_send(frames(number)).is_err())
        };
        assert!(is_closed(&mut resets, &|number| {
            let stream = 2 * number + 1;
            let reset = [&[0, 0, 4, 3, 0][..], &stream.to_be_bytes(), &[0, 0, 0, 8]].concat();
            [headers(stream, 5), reset].concat()
        }));
        // A new value for the same field again and again.
        assert!(is_closed(&mut endless, &|_| {
            let field = [b"\0\x01x\x7f\x81\x7e".as_slice(), &[b'v'; 255]].concat();
            let length = (field.len() as u32).to_be_bytes();
            [&length[1..], &[9, 0], &1_u32.to_be_bytes(), &field].concat()
        }));
    }
    site.serves("resets and endless heads");
    for server in ["admin", "status"] {
        // The one that asks for the metrics, and one of `serves` that is closing.
        eventually("nothing is left of them", DEADLINE, || site.server("weir_server_connections", server) <= 1.0);
    }
    let grown = site.gateway.rss().saturating_sub(before);
    assert!(grown <= 16 * MIB, "{grown} bytes more");
}

fn tail(site: &Site, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("tail").args(arguments).arg("--status").arg(site.status().to_string());
    command.output().expect("it runs")
}

#[test]
fn u05_streams_that_nobody_reads_delay_nobody_and_end() {
    let site = Site::start(ClientMode::Clear, 2);
    site.serves("nobody");
    let before = site.gateway.rss();
    let open = |_| {
        let mut client = Client::connect_narrow(site.status()).expect("a connection");
        client.send("GET /tail HTTP/1.1\r\nHost: t\r\n\r\n");
        let head = client.response_head("GET").expect("an answer");
        (client, head.status)
    };
    let streams: Vec<(Client, u16)> = (0..64).map(open).collect();
    let count = |status: u16| streams.iter().filter(|(_, of)| *of == status).count();
    assert_eq!((count(200), count(503)), (8, 56), "half of the streams, for one client address");
    site.serves("streams");

    let refused = tail(&site, &["-n", "1"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{said}");
    assert!(said.contains("as many streams as there may be"), "{said}");

    let mut client = site.gateway.client();
    let long = format!("/r?{}", "a".repeat(4_000));
    let unread = || site.server("weir_server_streams_unread_total", "status") as usize;
    eventually("they are ended", 3 * DEADLINE, || {
        for _ in 0..100 {
            assert_eq!(client.get(&long).expect("an answer").status, 200);
        }
        site.serves("streams while traffic flows");
        let grown = site.gateway.rss().saturating_sub(before);
        assert!(grown <= 24 * MIB, "{grown} bytes more");
        unread() == 8
    });
    eventually("their connections are closed", 2 * DEADLINE, || site.server("weir_server_streams", "status") == 0.0);
    let traffic = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while traffic.load(Relaxed) {
                site.gateway.get("/r");
            }
        });
        let shown = tail(&site, &["-n", "1"]);
        traffic.store(false, Relaxed);
        assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    });
}

#[test]
fn u05_streams_of_http2_that_nobody_reads_end() {
    let site = Site::start(ClientMode::Clear, 1);
    site.serves("nobody");
    let mut client = Client::connect(site.status());
    client.send(PREFACE);
    for number in 0..8 {
        let block = b"\x82\x86\x04\x05/tail\x41\x01t";
        let stream = 2 * number + 1_u32;
        client.send([&[0, 0, block.len() as u8, 1, 5][..], &stream.to_be_bytes(), block].concat());
    }
    // A client that answers no PING would lose its connection for that.
    let answering = thread::spawn(move || until_reset(client, 0));
    eventually("they are open", DEADLINE, || site.server("weir_server_streams", "status") == 8.0);
    let mut traffic = site.gateway.client();
    let long = format!("/r?{}", "a".repeat(4_000));
    eventually("they are ended", 3 * DEADLINE, || {
        for _ in 0..100 {
            assert_eq!(traffic.get(&long).expect("an answer").status, 200);
        }
        site.serves("streams of HTTP/2");
        site.server("weir_server_streams_unread_total", "status") == 8.0
    });
    eventually("their connection is closed", 2 * DEADLINE, || site.server("weir_server_streams", "status") == 0.0);
    eventually("nothing is left of it", DEADLINE, || site.server("weir_server_connections", "status") <= 1.0);
    assert!(answering.join().expect("it ends with its connection").is_none());
}

#[test]
fn u05_a_stream_of_http2_that_is_not_read_is_reset_alone() {
    let site = Site::start(ClientMode::Clear, 1);
    site.serves("nobody");
    let mut client = Client::connect(site.status());
    client.send(PREFACE);
    for stream in [1_u32, 3] {
        let block = b"\x82\x86\x04\x05/tail\x41\x01t";
        client.send([&[0, 0, block.len() as u8, 1, 5][..], &stream.to_be_bytes(), block].concat());
    }
    // The windows of the connection and of the second stream.
    for stream in [0_u32, 3] {
        client.send([b"\0\0\x04\x08\0", &stream.to_be_bytes()[..], b"\x3f\xff\0\0"].concat());
    }
    let reading = thread::spawn(move || until_reset(client, 1));
    let mut traffic = site.gateway.client();
    let long = format!("/r?{}", "a".repeat(4_000));
    eventually("the first stream is reset", 3 * DEADLINE, || {
        for _ in 0..100 {
            assert_eq!(traffic.get(&long).expect("an answer").status, 200);
        }
        reading.is_finished()
    });
    let _client = reading.join().expect("no panic").expect("the connection is open");
    eventually("the other stream is left", DEADLINE, || site.server("weir_server_streams", "status") == 1.0);
    assert_eq!(site.gateway.metrics().sum("weir_server_connections_closed_total", &["why=\"untaken\""]), 0.0);
}

/// Reads frames of HTTP/2, and gives the server no room for more content, until the server resets a stream; `None` if it closes the
/// connection before.
fn until_reset(mut client: Client, stream: u32) -> Option<Client> {
    client.set_deadline(6 * DEADLINE);
    while let Ok(head) = client.exact(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = client.exact(length.into()).ok()?;
        match (head[3], head[4]) {
            (3, _) if head[5..9] == stream.to_be_bytes() => return Some(client),
            (6, 0) => client.try_send([b"\0\0\x08\x06\x01\0\0\0\0", payload.as_slice()].concat()).ok()?,
            _ => {}
        }
    }
    None
}

#[test]
fn u05_a_stream_that_is_read_again_in_time_says_why_it_ended() {
    let site = Site::start(ClientMode::Clear, 1);
    site.serves("nobody");
    let mut reader = Client::connect_narrow(site.status()).expect("a connection");
    reader.send("GET /tail HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(reader.response_head("GET").expect("an answer").status, 200);
    let mut client = site.gateway.client();
    let long = format!("/r?{}", "a".repeat(4_000));
    eventually("the stream is ended", 3 * DEADLINE, || {
        for _ in 0..100 {
            client.get(&long).expect("an answer");
        }
        site.server("weir_server_streams_unread_total", "status") == 1.0
    });
    let mut last = Vec::new();
    loop {
        let chunk = reader.chunk().expect("the stream ends in order");
        if chunk.is_empty() {
            break;
        }
        last = chunk;
    }
    assert_eq!(String::from_utf8_lossy(&last), "{\"ended\":\"nothing was read for 20 s\"}\n");
}

#[test]
fn u05_a_body_that_comes_byte_by_byte_is_not_waited_for() {
    if !runs_for_minutes("its client sends for a minute") {
        return;
    }
    let site = Site::start(ClientMode::Clear, 1);
    let mut slow = site.client();
    let body = request("POST", "configs/validate", VIEWER, "{}").replace("Length: 2", "Length: 1000");
    slow.send(body);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(65) && slow.try_send(" ").is_ok() {
        thread::sleep(Duration::from_millis(500)); // this is the pace of the client
    }
    assert_eq!(slow.response().expect("an answer").status, 408);
    slow.until_closed();
}

#[test]
fn u05_without_descriptors_the_longest_idle_connection_gives_way() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let site = Site::start(ClientMode::Clear, 1);
    let idle: Vec<Client> = (0..8).filter_map(|_| idler(&site, site.admin(), "answered")).collect();
    let pid = Pid::from_raw(site.gateway.pid() as i32).expect("a process has a number");
    let limit = Rlimit { current: Some(3), maximum: Some(3) };
    prlimit(Some(pid), Resource::Nofile, limit).expect("it is our child");
    let before = site.gateway.cpu_ms();
    let waiting = Client::connect(site.admin());
    let mut idle = idle.into_iter();
    idle.next().expect("there are eight").until_closed();
    for mut client in idle {
        client.until_closed();
    }
    let used = site.gateway.cpu_ms() - before;
    assert!(used <= 500, "{used} ms of processor time while nothing can be accepted");
    drop(waiting);
}

/// A name, and a request that others make beside the attack.
type OtherClient<'a> = (&'a str, &'a dyn Fn(&Site));

#[test]
fn u05_attacks_on_the_own_addresses_cost_others_little() {
    let others: [OtherClient<'_>; 3] = [
        ("traffic", &|site| assert_eq!(site.gateway.get("/r").status, 200)),
        ("readiness", &|site| assert!(is_soon(|| site.is_ready()))),
        ("admin", &|site| assert!(is_soon(|| site.is_read()))),
    ];
    let workers: &[usize] = if is_full() { &[1, 2] } else { &[1] };
    Site::with_workers(workers, |site| {
        site.serves("nobody");
        let alone = others.map(|(_, ask)| p99(scaled(20, 2_000), || ask(site)));
        let memory = site.gateway.rss();
        for kind in ["silent", "hello", "preface", "answered"] {
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                for addr in [site.admin(), site.status()] {
                    let (stop, site) = (&stop, &site);
                    scope.spawn(move || {
                        let mut kept = Vec::new();
                        while !stop.load(Relaxed) {
                            let Ok(connection) = Client::connect_from([127, 0, 0, 2].into(), addr) else { continue };
                            let mut connection = connection;
                            let _ = match kind {
                                "hello" => connection.try_send(b"\x16\x03\x01\x02\x00\x01"),
                                "preface" => connection.try_send(PREFACE),
                                "answered" if site.mode != ClientMode::Tls => {
                                    connection.try_send("GET /livez HTTP/1.1\r\nHost: a.example\r\n\r\n")
                                }
                                _ => Ok(()),
                            };
                            kept.push(connection);
                            if kept.len() > 200 {
                                kept.remove(0);
                            }
                            thread::sleep(Duration::from_millis(1)); // this test is not about the cost of accepting
                        }
                    });
                }
                let _end = EndOfAttack(&stop);
                eventually("they give way", 3 * DEADLINE, || {
                    site.gateway.metrics().sum("weir_server_connections_closed_total", &["why=\"shed\""]) >= 100.0
                });
                for ((other, ask), alone) in others.iter().zip(alone) {
                    let beside = p99(scaled(20, 2_000), || ask(site));
                    println!("{kind}, {:?}, workers: {}, {other}: {alone:?} {beside:?}", site.mode, site.workers);
                    if is_full() {
                        assert!(
                            beside <= most_beside(alone),
                            "{kind}, {other}: {beside:?} beside it, {alone:?} without"
                        );
                    }
                }
            });
        }
        let grown = site.gateway.rss().saturating_sub(memory);
        assert!(grown <= 24 * MIB, "{grown} bytes more");
    });
}
