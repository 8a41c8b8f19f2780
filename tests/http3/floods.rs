//! Clients of HTTP/3 that make work and ask for nothing: what they cost is bounded in memory, and other clients do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quinn::{ConnectionError, TransportConfig, VarInt};
use weir_testkit::{Answer, DEADLINE, Origin, Request, eventually, is_full};

use crate::client::{NAME, Sender, ask, client, client_config, connect, endpoint, request, run_within};
use crate::malformed::{EXCESSIVE_LOAD, GET, headers};
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
