//! Clients of HTTP/3 that make work and ask for nothing: what they cost is bounded in memory, and other clients do not notice.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quinn::{ConnectionError, TransportConfig, VarInt};
use weir_testkit::{Answer, DEADLINE, Origin, Request, eventually, is_full, scaled};

use crate::client::{NAME, Sender, ask, client, client_config, connect, endpoint, request, run_within};
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
    run_within(DEADLINE * 2, async {
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
    run_within(DEADLINE * 2, async {
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

/// Checks that the requests of another client are served while `flood` runs, until it is over: in full tests within [`MOST_DELAY`], in one
/// of a few attempts.
fn others_are_served_beside(served: &Served, flood: impl Fn(&AtomicBool) + Sync) {
    let mut seen = Vec::new();
    let is_fine = (0..5).any(|_| {
        let is_over = AtomicBool::new(false);
        let (quiet, beside) = run_within(DEADLINE * 3, async {
            let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
            slowest(&mut sender).await;
            let quiet = slowest(&mut sender).await;
            let beside = std::thread::scope(|scope| {
                let flooding = scope.spawn(|| flood(&is_over));
                let runtime = tokio::runtime::Handle::current();
                let beside = tokio::task::block_in_place(|| runtime.block_on(slowest(&mut sender)));
                is_over.store(true, Ordering::Relaxed);
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

#[test]
fn others_are_served_beside_requests_that_are_reset() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    others_are_served_beside(&served, |is_over| {
        run_within(DEADLINE * 3, async {
            while !is_over.load(Ordering::Relaxed) {
                let quic = connect(&served.authority, served.gateway.tls_addr()).await;
                let mut control = quic.open_uni().await.expect("it may");
                // The connection may have ended.
                let _ = control.write_all(&[0, 4, 0]).await;
                tokio::select! {
                    _ = open_and_reset(&quic) => {}
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
        });
    });
}

#[test]
fn others_are_served_beside_windows_that_are_opened_by_a_few_bytes() {
    let origin = Origin::serving(large_or_small);
    let served = serve(&origin, "");
    others_are_served_beside(&served, |is_over| {
        run_within(DEADLINE * 3, async {
            let (mut sender, _quic) = with_small_windows(&served, 256).await;
            let mut stream = sender.send_request(request("GET", "/large")).await.expect("it is sent");
            stream.finish().await.expect("it ends");
            assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
            while !is_over.load(Ordering::Relaxed) {
                if stream.recv_data().await.expect("content").is_none() {
                    return;
                }
            }
        });
    });
}

/// The first packets of so many clients, each with a connection id of its own. None of them goes on.
async fn first_packets(served: &Served, count: usize) -> Vec<Vec<u8>> {
    let sink = tokio::net::UdpSocket::bind(("127.0.0.1", 0)).await.expect("a port");
    let to = sink.local_addr().expect("it is bound");
    let endpoint = endpoint(&served.authority);
    let (mut packets, mut ids, mut begun, mut buffer) = (Vec::new(), HashSet::new(), Vec::new(), [0; 2_000]);
    while packets.len() < count {
        begun.push(endpoint.connect(to, NAME).expect("it is begun"));
        loop {
            let (length, _) = sink.recv_from(&mut buffer).await.expect("a packet");
            // A long header: its sixth byte is the length of the id behind it. Others repeat or complete what came before.
            let id = buffer[6..6 + usize::from(buffer[5])].to_vec();
            if ids.insert(id) {
                packets.push(buffer[..length].to_vec());
                break;
            }
        }
    }
    packets
}

/// Sends packets to the gateway, each from another address, until `is_over`. Ten come in some milliseconds: one who sends more than the gateway
/// can take fills the queue of its socket, which the kernel keeps for all clients.
fn send_from_many(packets: &[Vec<u8>], to: SocketAddr, is_over: impl Fn() -> bool) {
    for (number, packet) in packets.iter().cycle().enumerate() {
        if is_over() {
            return;
        }
        if number % 10 == 9 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let [high, low] = (number as u16).to_be_bytes();
        let forged = UdpSocket::bind(SocketAddr::from(([127, 2, high, low], 0))).expect("127.0.0.0/8 is this machine");
        // What the gateway answers is lost.
        let _ = forged.send_to(packet, to);
    }
}

#[test]
fn first_packets_from_forged_addresses_cost_a_bounded_amount_of_memory() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "ssl_handshake_timeout: 2s\n");
    run_within(DEADLINE * 3, async {
        let packets = first_packets(&served, scaled(400, 4_000)).await;
        let (mut sender, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        ask(&mut sender, request("GET", "/other")).await;
        let before = served.gateway.rss();
        let left = std::cell::Cell::new(packets.len());
        send_from_many(&packets, served.gateway.tls_addr(), || left.replace(left.get().saturating_sub(1)) == 0);
        let count = |outcome: &str| served.gateway.metrics().sum("weir_quic_connections_total", &[outcome]);
        eventually("clients have to prove their addresses", DEADLINE, || count("outcome=\"retry\"") >= 100.0);
        // A handshake takes some 30 KiB, and a hundred of them may be in progress.
        let grown = served.gateway.rss().saturating_sub(before);
        assert!(grown < 8 * MIB, "it took {grown} bytes of memory");
        let (mut other, _quic) = client(&served.authority, served.gateway.tls_addr()).await;
        assert_eq!(ask(&mut other, request("GET", "/other")).await.0.status(), 200, "a client that proves its address");
        assert_eq!(ask(&mut sender, request("GET", "/other")).await.0.status(), 200, "one that was there before");
        let open = || served.gateway.metrics().sum("weir_client_connections", &[]);
        eventually("handshakes that do not go on have ended", DEADLINE, || open() <= 2.0);
    });
}

#[test]
fn others_are_served_beside_first_packets_from_forged_addresses() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    let packets = run_within(DEADLINE * 3, first_packets(&served, scaled(400, 4_000)));
    others_are_served_beside(&served, |is_over| {
        send_from_many(&packets, served.gateway.tls_addr(), || is_over.load(Ordering::Relaxed));
    });
}

#[test]
fn others_are_served_beside_empty_content() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    let before = served.gateway.rss();
    let empty = [headers(GET), [0, 0].repeat(2_000)].concat();
    others_are_served_beside(&served, |is_over| {
        run_within(DEADLINE * 3, async {
            while !is_over.load(Ordering::Relaxed) {
                let quic = connect(&served.authority, served.gateway.tls_addr()).await;
                let mut control = quic.open_uni().await.expect("it may");
                // The connection may end at any time.
                let _ = control.write_all(&[0, 4, 0]).await;
                if let Ok((mut send, mut receive)) = quic.open_bi().await {
                    let _ = send.write_all(&empty).await;
                    // The response may come before all frames have, and the rest is not read then.
                    let _ = receive.read_to_end(1_000).await;
                }
            }
        });
    });
    assert!(served.gateway.metrics().sum("weir_http_errors_total", &["cause=\"flood\""]) >= 1.0);
    let grown = served.gateway.rss().saturating_sub(before);
    assert!(grown < 16 * MIB, "it took {grown} bytes of memory");
}

#[test]
fn others_are_served_beside_path_challenges() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    let before = served.gateway.rss();
    others_are_served_beside(&served, |is_over| {
        while !is_over.load(Ordering::Relaxed) {
            let Some(said) = Http3Program::Aioquic.ask(&served, &["challenges", "300"]) else { return };
            assert_eq!(said["after"], "ok");
            assert!(said["sent"].as_u64().is_some_and(|sent| sent > 1_000), "{said}");
        }
    });
    let grown = served.gateway.rss().saturating_sub(before);
    assert!(grown < 16 * MIB, "it took {grown} bytes of memory");
}
