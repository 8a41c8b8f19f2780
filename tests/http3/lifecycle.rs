//! Connections from their beginning to their end: handshakes, moving clients, reloads, shutdown.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use quinn::{ConnectionError, VarInt};
use weir_testkit::{Answer, Authority, DEADLINE, Gate, Gateway, Origin, Signal, TempDir, free_port, scaled};

use crate::client::{NAME, Sender, ask, client, connect, endpoint, request, rest, run};
use crate::{Served, file, serve};

#[test]
fn a_name_without_a_certificate_is_refused() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    run(async {
        let connecting = endpoint(&served.authority).connect(served.gateway.tls_addr(), "other.test").expect("begun");
        match connecting.await.map(|_| ()) {
            // The alert `unrecognized_name`.
            Err(ConnectionError::ConnectionClosed(closed)) => assert_eq!(u64::from(closed.error_code), 0x100 + 112),
            outcome => panic!("{outcome:?}"),
        }
    });
}

/// So many connections, of which each has had so many requests at once.
async fn idle_connections(served: &Served, count: u64, requests: usize) -> Vec<(Sender, quinn::Connection)> {
    let mut open = Vec::new();
    for _ in 0..count {
        let (sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let asked = (0..requests).map(|_| {
            let mut sender = sender.clone();
            tokio::spawn(async move { ask(&mut sender, request("GET", "/")).await.0.status() })
        });
        for asked in asked.collect::<Vec<_>>() {
            assert_eq!(asked.await.expect("it does not panic"), 200);
        }
        open.push((sender, quic));
    }
    open
}

#[test]
fn an_idle_connection_takes_little_memory() {
    const KIB: u64 = 1024;
    let origin = Origin::serving(|_| Answer::ok("ok"));
    for (requests, most) in [(1, 36 * KIB), (60, 80 * KIB)] {
        let served = serve(&origin, "worker_processes: 1\n");
        run(async {
            // What all connections share is there after the first ones.
            let first = idle_connections(&served, 50, requests).await;
            let (before, count) = (served.gateway.rss(), scaled(200, 2_000) as u64);
            let open = idle_connections(&served, count, requests).await;
            let each = served.gateway.rss().saturating_sub(before) / count;
            println!("{each} bytes for a connection after {requests} requests");
            assert!(each < most, "{each} bytes for a connection after {requests} requests");
            drop((first, open));
        });
    }
}

#[test]
fn a_client_may_have_as_many_requests_open_as_the_settings_say() {
    const REQUESTS: usize = 200;
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, &format!("http2_max_concurrent_streams: {REQUESTS}\n"));
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        let mut open = Vec::new();
        for _ in 0..REQUESTS {
            let (mut send, receive) = quic.open_bi().await.expect("it may");
            // HEADERS without its length.
            send.write_all(&[1]).await.expect("it is taken");
            open.push((send, receive));
        }
    });
}

#[test]
fn a_client_that_moves_keeps_its_connection_on_two_workers() {
    let origin = Origin::serving(|request| Answer::ok(request.headers.get("X-Port").unwrap_or("-")));
    let port = "global_rules: [{ id: g, plugins: { proxy-rewrite: { headers: { set: { X-Port: $remote_port } } } } }]";
    let served = serve(&origin, &format!("worker_processes: 2\n{port}\n"));
    let mut ports = std::collections::BTreeSet::new();
    run(async {
        let endpoint = endpoint(&served.authority);
        let quic = endpoint.connect(served.gateway.tls_addr(), NAME).expect("begun").await.expect("established");
        let (mut driver, mut sender) =
            h3::client::new(h3_quinn::Connection::new(quic.clone())).await.expect("it begins");
        tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
        for _ in 0..20 {
            let (response, port) = ask(&mut sender, request("GET", "/")).await;
            assert_eq!(response.status(), 200);
            ports.insert(port);
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
            endpoint.rebind(socket).expect("it moves");
        }
    });
    assert_eq!(ports.len(), 1, "another address may be forged, until the client has proven it");
    let metrics = served.gateway.metrics();
    assert_eq!(metrics.sum("weir_client_connections_opened_total", &[]) as u64, 1);
    assert_eq!(metrics.sum("weir_quic_connections_total", &["outcome=\"accepted\""]) as u64, 1);
    assert!(metrics.sum("weir_quic_packets_total", &["outcome=\"sent\""]) >= 20.0, "a response for each request");
}

#[test]
fn a_reload_keeps_connections() {
    let (first, second) = (Origin::serving(|_| Answer::ok("first")), Origin::serving(|_| Answer::ok("second")));
    let served = serve(&first, "");
    let identity = served.authority.identity(&[NAME]);
    run(async {
        let (mut sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
        assert_eq!(ask(&mut sender, request("GET", "/")).await.1, b"first");
        served.gateway.rewrite(&file(&identity, &second, ""));
        assert_eq!(ask(&mut sender, request("GET", "/")).await.1, b"second");
        assert_eq!(quic.close_reason(), None);
    });
}

#[test]
fn a_client_of_a_process_that_was_killed_is_told_by_the_next_one() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let directory = TempDir::new();
    let port = free_port();
    let authority = Authority::new();
    let identity = authority.identity(&[NAME]);
    let text = file(&identity, &origin, &format!("data_dir: {}\n", directory.path().display()))
        .replace("{ address: \"127.0.0.1:0\", tls", &format!("{{ address: \"127.0.0.1:{port}\", tls"));
    let start = || Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&text);
    let mut first = start();
    run(async {
        let (mut sender, quic) = client(&authority, first.tls_addr()).await;
        assert_eq!(ask(&mut sender, request("GET", "/")).await.1, b"ok");
        first.signal(Signal::KILL);
        assert!(!first.wait_exit(DEADLINE).success());
        let second = start();
        assert_eq!(second.tls_addr().port(), port);
        let refused = sender.send_request(request("GET", "/")).await;
        drop(refused);
        match quic.closed().await {
            ConnectionError::Reset => {}
            error => panic!("{error}"),
        }
        let key = directory.path().join("http3-reset.key");
        assert_eq!(std::fs::metadata(key).expect("a file").permissions().mode() & 0o777, 0o600);
    });
}

/// The body of a response that a node gives while it drains, and how the connection ends.
fn answered_while_it_drains(content: Vec<u8>) -> (Vec<u8>, ConnectionError) {
    let gate = Gate::new();
    let opener = gate.clone();
    let origin = Origin::serving(move |_| {
        gate.wait();
        Answer::ok(content.clone())
    });
    let mut served = serve(&origin, "");
    let outcome = run(async {
        let (mut sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let mut stream = sender.send_request(request("GET", "/")).await.expect("it is sent");
        stream.finish().await.expect("it ends");
        origin.wait_requests(1);
        served.gateway.signal(Signal::TERM);
        served.gateway.wait_stderr("it drains", |text| text.contains("drain"));
        opener.open();
        assert_eq!(stream.recv_response().await.expect("a response").status(), 200);
        (rest(&mut stream).await.0, quic.closed().await)
    });
    assert!(served.gateway.wait_exit(DEADLINE).success());
    outcome
}

#[track_caller]
fn expect_no_error(end: ConnectionError) {
    match end {
        ConnectionError::ApplicationClosed(closed) => assert_eq!(closed.error_code, VarInt::from_u32(0x100)),
        error => panic!("{error}"),
    }
}

#[test]
fn a_node_that_ends_serves_what_has_begun_and_says_goodbye() {
    let (body, end) = answered_while_it_drains(b"late".to_vec());
    assert_eq!(body, b"late");
    expect_no_error(end);
}

/// More than the network takes at once, so that it is not acknowledged yet when the gateway has given all of it to QUIC.
const LARGE: usize = 900 * 1024;

#[test]
fn a_response_is_whole_if_the_node_ends_right_after_it() {
    assert_eq!(answered_while_it_drains(vec![b'x'; LARGE]).0.len(), LARGE);
}

#[test]
fn an_idle_connection_gets_a_goaway_before_it_is_closed() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    for (settings, is_told) in [("", true), ("client_first_byte_timeout: 1s\n", false)] {
        let served = serve(&origin, settings);
        run(async {
            let quic = connect(&served.authority, served.gateway.tls_addr()).await;
            let mut control = quic.accept_uni().await.expect("the control stream");
            if is_told {
                served.gateway.signal(Signal::TERM);
            }
            let mut received = Vec::new();
            while let Ok(Some(chunk)) = control.read_chunk(64, true).await {
                received.extend_from_slice(&chunk.bytes);
            }
            // No request has begun: RFC 9114 section 7.2.6.
            assert!(received.ends_with(&[7, 1, 0]), "{received:?}");
            // Before that, requests that are on their way may arrive.
            let announced = [7, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc, 7, 1, 0];
            assert_eq!(received.ends_with(&announced), is_told, "{received:?}");
            expect_no_error(quic.closed().await);
        });
    }
}

#[test]
fn the_last_response_of_a_connection_is_whole() {
    let origin = Origin::serving(|_| Answer::ok(vec![b'x'; LARGE]));
    let served = serve(&origin, "keepalive_requests: 1\n");
    run(async {
        let (mut sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
        let (_, content) = ask(&mut sender, request("GET", "/")).await;
        assert_eq!(content.len(), LARGE);
        match quic.closed().await {
            ConnectionError::ApplicationClosed(closed) => assert_eq!(closed.error_code, VarInt::from_u32(0x100)),
            error => panic!("{error}"),
        }
    });
}

#[test]
fn a_listener_without_http3_any_more_closes_its_connections() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "");
    let identity = served.authority.identity(&[NAME]);
    run(async {
        let (mut sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
        ask(&mut sender, request("GET", "/")).await;
        served.gateway.rewrite(&file(&identity, &origin, "").replace(", http3: true", ""));
        expect_no_error(tokio::time::timeout(DEADLINE, quic.closed()).await.expect("it ends"));
    });
}

/// The files of traces in a directory.
fn traces(directory: &TempDir) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(directory.join("qlog")) else { return Vec::new() };
    files.map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text")).collect()
}

/// Whether a trace has records of packets in both directions. All of its records are JSON.
fn is_whole(trace: &str) -> bool {
    let records = trace.split_terminator('\x1e').filter(|record| record.ends_with('\n'));
    let events: Vec<serde_json::Value> = records.map(|record| serde_json::from_str(record).expect("JSON")).collect();
    let has = |name| events.iter().any(|event| event["name"].as_str().is_some_and(|it| it.ends_with(name)));
    events.len() > 10 && has("packet_sent") && has("packet_received")
}

#[test]
fn a_connection_of_a_named_client_is_traced() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let directory = TempDir::new();
    for (clients, is_traced) in [("[198.51.100.1]", false), ("[\"127.0.0.0/8\"]", true)] {
        let served = serve(&origin, &format!("data_dir: {}\nhttp3_qlog: {clients}\n", directory.path().display()));
        run(async {
            let (mut sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
            assert_eq!(ask(&mut sender, request("GET", "/")).await.1, b"ok");
            quic.close(VarInt::from_u32(0x100), b"");
            // Within the runtime, which sends the end meanwhile.
            let is_gone = || served.gateway.metrics().sum("weir_client_connections", &[]) == 0.0;
            weir_testkit::eventually("the connection has ended", DEADLINE, is_gone);
        });
        if !is_traced {
            assert!(traces(&directory).is_empty());
            continue;
        }
        weir_testkit::eventually("the trace is written", DEADLINE, || traces(&directory).iter().any(|it| is_whole(it)));
        assert_eq!(traces(&directory).len(), 1);
    }
}

#[test]
fn traces_stay_in_the_directory_that_the_node_started_with() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let [first, second] = [TempDir::new(), TempDir::new()];
    let settings =
        |directory: &TempDir| format!("data_dir: {}\nhttp3_qlog: [\"127.0.0.0/8\"]\n", directory.path().display());
    let served = serve(&origin, &settings(&first));
    let identity = served.authority.identity(&[NAME]);
    for count in 1..=2 {
        run(async {
            let (mut sender, quic) = client(&served.authority, served.gateway.tls_addr()).await;
            assert_eq!(ask(&mut sender, request("GET", "/")).await.1, b"ok");
            quic.close(VarInt::from_u32(0x100), b"");
            let is_written = || traces(&first).iter().filter(|it| is_whole(it)).count() == count;
            weir_testkit::eventually("the trace is written", DEADLINE, is_written);
        });
        // Where a node keeps its files takes effect at its next start, as the reload says.
        served.gateway.rewrite(&file(&identity, &origin, &settings(&second)));
    }
    assert!(traces(&second).is_empty());
    served.gateway.wait_stderr("what a reload leaves as it is", |line| line.contains("data_dir"));
}

#[test]
fn a_client_that_sends_no_request_is_closed_in_time() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let served = serve(&origin, "client_first_byte_timeout: 1s\n");
    run(async {
        let quic = connect(&served.authority, served.gateway.tls_addr()).await;
        expect_no_error(tokio::time::timeout(DEADLINE + Duration::from_secs(1), quic.closed()).await.expect("it ends"));
    });
}
