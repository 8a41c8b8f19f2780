//! Clients of HTTP/3 that make work and ask for nothing: what they cost is bounded in memory, and other clients do not notice.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quinn::{ConnectionError, TransportConfig, VarInt};
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, Request, eventually, is_full, scaled};

use crate::client::{NAME, Sender, ask, client, client_config, connect, endpoint, request, run};
use crate::malformed::{EXCESSIVE_LOAD, GET, headers};
use crate::programs::Http3Program;
use crate::{Served, serve};

const MIB: u64 = 1 << 20;
const REQUEST_CANCELLED: u32 = 0x10c;

/// Opens requests and resets them until the connection has ended; returns how many.
async fn open_and_reset(quic: &quinn::Connection) -> u64 {
    let (mut count, get) = (0, headers(GET));
    while let Ok((mut send, _receive)) = quic.open_bi().await {
        if send.write_all(&get).await.is_err() {
            break;
        }
        // It fails only when the connection has ended.
        let _ = send.reset(VarInt::from_u32(REQUEST_CANCELLED));
        count += 1;
    }
    count
}

fn expect_excessive_load(end: ConnectionError) {
    match end {
        ConnectionError::ApplicationClosed(closed) => assert_eq!(u64::from(closed.error_code), EXCESSIVE_LOAD),
        error => panic!("{error}"),
    }
}

#[test]
fn requests_that_are_opened_and_reset_end_the_connection() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let mut control = quic.open_uni().await.expect("it may");
        control.write_all(&[0, 4, 0]).await.expect("it is taken");
        let before = served.gateway.rss();
        let count = open_and_reset(&quic).await;
        assert!(count < 2_000, "{count} requests");
        expect_excessive_load(quic.closed().await);
        let grown = served.gateway.rss().saturating_sub(before);
        assert!(grown < 4 * MIB, "it took {grown} bytes of memory");
    });
    assert!(origin.requests().len() <= 202, "{} requests upstream", origin.requests().len());
    assert_eq!(served.gateway.metrics().sum("weir_http_errors_total", &["cause=\"flood\""]), 1.0);
}

/// A connection whose client takes so many bytes of each response.
async fn with_small_windows(served: &Served, window: u32) -> (Sender, quinn::Connection) {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(window));
    let mut config = client_config(&served.authority);
    config.transport_config(Arc::new(transport));
    let connecting = endpoint(&served.authority).connect_with(config, served.gateway.tls_addr(), NAME);
    let quic = connecting.expect("it is begun").await.expect("it is established");
    let (mut driver, sender) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await.expect("it begins");
    tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
    (sender, quic)
}

/// 1 MiB for `/large`.
fn large_or_small(request: &Request) -> Answer {
    match &*request.target {
        "/large" => Answer::ok(vec![b'x'; MIB as usize]),
        _ => Answer::ok("ok"),
    }
}

#[test]
fn clients_that_take_nothing_of_large_responses_cost_a_bounded_amount_of_memory() {
    const CONNECTIONS: u64 = 4;
    const REQUESTS: u64 = 100;
    let origin = Origin::serving(large_or_small);
    let served = serve(&origin, "");
    run(async {
        let before = served.gateway.rss();
        let (mut open, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let (mut sender, quic) = with_small_windows(&served, 16).await;
            for _ in 0..REQUESTS {
                let mut stream = sender.send_request(request("GET", "/large")).await.expect("it is sent");
                stream.finish().await.expect("it ends");
                open.push(stream);
            }
            connections.push((sender, quic));
        }
        let all = (CONNECTIONS * REQUESTS) as usize;
        eventually("all requests are sent on", DEADLINE, || origin.requests().len() >= all);
        // What the requests may hold is held once another client has its answers.
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        for _ in 0..20 {
            assert_eq!(ask(&mut sender, request("GET", "/other")).await.0.status(), 200);
        }
        let grown = served.gateway.rss().saturating_sub(before);
        // What QUIC holds for each connection, and what each request holds.
        let most = CONNECTIONS * (MIB + REQUESTS * 64 * 1024);
        assert!(grown < most, "it took {grown} bytes of memory");
    });
}

/// The slowest of a hundred requests of a client, of two hundred.
async fn slowest(sender: &mut Sender) -> Duration {
    let mut times = Vec::new();
    for _ in 0..200 {
        let since = Instant::now();
        assert_eq!(ask(sender, request("GET", "/other")).await.0.status(), 200);
        times.push(since.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// What a flood may add to the slowest of a hundred requests of others, beside a factor of 2. Only the full tests check this, since they
/// run on a machine that does nothing else.
const MOST_DELAY: Duration = Duration::from_millis(10);

/// What a counter of the gateway gains at least once a flood has begun.
struct FloodSign {
    metric: &'static str,
    label: &'static str,
    least: f64,
}

/// A connection was ended because of what its client does.
const ENDED: FloodSign = FloodSign { metric: "weir_http_errors_total", label: "cause=\"flood\"", least: 1.0 };
/// A client has to prove its address.
const ASKED: FloodSign = FloodSign { metric: "weir_quic_connections_total", label: "outcome=\"retry\"", least: 1.0 };
/// Far more packets are sent than for a handshake and a few requests.
const BUSY: FloodSign = FloodSign { metric: "weir_quic_packets_total", label: "outcome=\"sent\"", least: 200.0 };

impl FloodSign {
    fn count(&self, gateway: &Gateway) -> f64 {
        gateway.metrics().sum(self.metric, &[self.label])
    }
}

/// Ends a flood, also if the test fails meanwhile.
struct EndOfFlood<'f>(&'f AtomicBool);

impl Drop for EndOfFlood<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that the requests of other clients are served while `flood` runs, from its `sign` on until they are done: of one that is connected
/// before, in full tests within [`MOST_DELAY`] in one of a few attempts, and of one that connects meanwhile.
fn others_are_served_beside(served: &Served, sign: &FloodSign, flood: impl Fn(&AtomicBool) + Sync) {
    let mut seen = Vec::new();
    let is_fine = (0..5).any(|_| {
        let is_over = AtomicBool::new(false);
        let (quiet, beside) = run(async {
            let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
            slowest(&mut sender).await;
            let quiet = slowest(&mut sender).await;
            let before = sign.count(&served.gateway);
            let runtime = tokio::runtime::Handle::current();
            let beside = std::thread::scope(|scope| {
                let end = EndOfFlood(&is_over);
                let flooding = scope.spawn(|| flood(&is_over));
                // A program that floods has to start first.
                eventually("the flood has begun", DEADLINE * 6, || sign.count(&served.gateway) >= before + sign.least);
                let beside = tokio::task::block_in_place(|| {
                    runtime.block_on(async {
                        let beside = slowest(&mut sender).await;
                        let (mut late, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
                        assert_eq!(ask(&mut late, request("GET", "/other")).await.0.status(), 200);
                        beside
                    })
                });
                drop(end);
                flooding.join().expect("it ends");
                beside
            });
            (quiet, beside)
        });
        println!("99 of 100 requests within {quiet:?}, and within {beside:?} beside a flood");
        seen.push((quiet, beside));
        !is_full() || beside < 2 * quiet + MOST_DELAY
    });
    assert!(is_fine, "without and with a flood: {seen:?}");
}

/// The same beside connections that misbehave until they end, one after the other.
fn others_are_served_beside_connections(misbehave: impl AsyncFn(&quinn::Connection) + Sync) {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    others_are_served_beside(&served, &ENDED, |is_over| {
        run(async {
            while !is_over.load(Ordering::Relaxed) {
                let quic = connect(&served.authority, served.gateway.tls_addr()).await;
                let mut control = quic.open_uni().await.expect("it may");
                // The connection may have ended.
                let _ = control.write_all(&[0, 4, 0]).await;
                misbehave(&quic).await;
            }
        });
    });
}

#[test]
fn others_are_served_beside_requests_that_are_reset() {
    others_are_served_beside_connections(async |quic| {
        open_and_reset(quic).await;
    });
}

#[test]
fn others_are_served_beside_windows_that_are_opened_by_a_few_bytes() {
    let origin = Origin::serving(large_or_small);
    let served = serve(&origin, "");
    others_are_served_beside(&served, &BUSY, |is_over| {
        run(async {
            let (mut sender, _quic) = with_small_windows(&served, 256).await;
            while !is_over.load(Ordering::Relaxed) {
                let mut stream = sender.send_request(request("GET", "/large")).await.expect("it is sent");
                stream.finish().await.expect("it ends");
                assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
                while stream.recv_data().await.expect("content").is_some() && !is_over.load(Ordering::Relaxed) {}
            }
        });
    });
}

/// Sends the head of a request and empty DATA frames without end, until the connection has ended.
async fn send_nothing(quic: &quinn::Connection) {
    let Ok((mut send, _receive)) = quic.open_bi().await else { return };
    let (empty, mut sent) = ([0_u8; 2].repeat(1_000), send.write_all(&headers(GET)).await);
    while sent.is_ok() {
        sent = send.write_all(&empty).await;
    }
}

#[test]
fn frames_without_content_end_the_connection() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let mut control = quic.open_uni().await.expect("it may");
        control.write_all(&[0, 4, 0]).await.expect("it is taken");
        let before = served.gateway.rss();
        send_nothing(&quic).await;
        expect_excessive_load(quic.closed().await);
        let grown = served.gateway.rss().saturating_sub(before);
        assert!(grown < 4 * MIB, "it took {grown} bytes of memory");
    });
    assert_eq!(ENDED.count(&served.gateway), 1.0);
}

#[test]
fn others_are_served_beside_frames_without_content() {
    others_are_served_beside_connections(send_nothing);
}

/// A ClientHello, which takes two datagrams with X25519MLKEM768.
type SplitHello = [Vec<u8>; 2];

/// The ClientHellos of so many clients, each with a connection id of its own. None of these clients goes on.
async fn hellos(served: &Served, count: usize) -> Vec<SplitHello> {
    let sink = tokio::net::UdpSocket::bind(("127.0.0.1", 0)).await.expect("a port");
    let to = sink.local_addr().expect("it is bound");
    let endpoint = endpoint(&served.authority);
    let (mut hellos, mut ids, mut buffer) = (Vec::new(), HashSet::new(), [0; 2_000]);
    while hellos.len() < count {
        let client = endpoint.connect(to, NAME).expect("it is begun");
        let (mut parts, mut of) = (Vec::new(), Vec::new());
        while parts.len() < 2 {
            let (length, _) = sink.recv_from(&mut buffer).await.expect("a datagram");
            // A long header: its sixth byte is the length of the id behind it.
            let id = buffer[6..6 + usize::from(buffer[5])].to_vec();
            // Earlier clients say that they are gone.
            if !ids.contains(&id) {
                parts.push(buffer[..length].to_vec());
                of = id;
            }
        }
        ids.insert(of);
        drop(client);
        hellos.push(parts.try_into().expect("there are two"));
    }
    hellos
}

/// So many ClientHellos are sent before the gateway has taken them: the kernel keeps the queue of a socket for all its clients, and drops what
/// does not fit.
const SENT_AT_ONCE: usize = 25;

/// How many connections were accepted, and how often a client was asked to prove its address.
fn begun(served: &Served) -> [u64; 2] {
    let metrics = served.gateway.metrics();
    let count = |outcome| metrics.sum("weir_quic_connections_total", &[outcome]) as u64;
    [count("outcome=\"accepted\""), count(ASKED.label)]
}

/// Sends each ClientHello from an address of its own, at which answers are lost.
fn send_from_forged_addresses(served: &Served, hellos: &[SplitHello]) {
    let to = served.gateway.tls_addr();
    for (number, some) in hellos.chunks(SENT_AT_ONCE).enumerate() {
        let address = |host| SocketAddr::from(([127, 2, number as u8, host as u8], 0));
        let clients: Vec<UdpSocket> =
            (1..=some.len()).map(|host| UdpSocket::bind(address(host)).expect("it is of this machine")).collect();
        let send = |part: usize| {
            clients.iter().zip(some).for_each(|(client, hello)| drop(client.send_to(&hello[part], to)));
        };
        let [accepted, asked] = begun(served);
        send(0);
        let all = accepted + asked + some.len() as u64;
        let sum = || begun(served).iter().sum::<u64>();
        eventually("the first datagrams are taken", DEADLINE * 6, || sum() >= all);
        let [accepted, asked_now] = begun(served);
        // Without a connection, the second datagram is the first of a client as well, and makes one if there is room for it again.
        let again = (asked_now - asked).min(some.len() as u64);
        send(1);
        eventually("the second datagrams are taken", DEADLINE * 6, || sum() >= accepted + asked_now + again);
    }
}

/// Handshakes that are in progress before clients have to prove their addresses, with some more than the setting says.
const HANDSHAKES: usize = 110;

#[test]
fn first_packets_from_forged_addresses_cost_a_bounded_amount_of_memory() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "worker_processes: 1\nssl_handshake_timeout: 5s\n");
    run(async {
        let hellos = hellos(&served, scaled(800, 4_000)).await;
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        ask(&mut sender, request("GET", "/other")).await;
        let before = served.gateway.rss();
        tokio::task::block_in_place(|| send_from_forged_addresses(&served, &hellos));
        let grown = served.gateway.rss().saturating_sub(before);
        println!("{grown} bytes for {} first packets", hellos.len());
        // A handshake takes less than 64 KiB. Those that have run out of time are not forgotten at once.
        let most = 2 * HANDSHAKES as u64 * 64 * 1024;
        assert!(grown < most, "it took {grown} bytes of memory");
        assert_eq!(ask(&mut sender, request("GET", "/other")).await.0.status(), 200);
        let open = || served.gateway.metrics().sum("weir_client_connections", &[]);
        eventually("handshakes that do not go on have ended", DEADLINE, || open() <= 1.0);
    });
}

#[test]
fn others_are_served_beside_first_packets_from_forged_addresses() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    // No handshake ends during the flood, so that all further ones have to prove their addresses.
    let served = serve(&origin, "worker_processes: 1\nssl_handshake_timeout: 10m\n");
    let hellos = run(hellos(&served, HANDSHAKES + SENT_AT_ONCE));
    let (first, others) = hellos.split_at(HANDSHAKES);
    send_from_forged_addresses(&served, first);
    let [accepted, asked] = begun(&served);
    assert!(accepted < HANDSHAKES as u64 && asked > 0, "{accepted} handshakes in progress");
    others_are_served_beside(&served, &ASKED, |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            send_from_forged_addresses(&served, others);
        }
    });
}

#[test]
fn others_are_served_beside_path_challenges() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    if Http3Program::Aioquic.command().is_none() {
        return;
    }
    let before = served.gateway.rss();
    others_are_served_beside(&served, &BUSY, |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            let said = Http3Program::Aioquic.ask(&served, &["challenges", "50000"]).expect("it is installed");
            assert_eq!(said["after"], "ok");
            assert!(said["sent"].as_u64().is_some_and(|sent| sent >= 50_000), "{said}");
        }
    });
    let grown = served.gateway.rss().saturating_sub(before);
    assert!(grown < 8 * MIB, "it took {grown} bytes of memory");
}
