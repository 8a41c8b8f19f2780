//! F17: there are more clients than descriptors.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use std::{fs, thread};

use weir_testkit::{Authority, Client, DEADLINE, Gateway, TempDir, eventually, eventually_some};

use crate::load::{origin, routes};
use crate::{script, weir};

/// A gateway that may have `limit` files open.
fn limited(directory: &TempDir, limit: u64, yaml: &str) -> Gateway {
    let weir = env!("CARGO_BIN_EXE_weir");
    let script = script(directory, "weir", &format!("#!/bin/sh\nulimit -n {limit} && exec {weir} \"$@\"\n"));
    Gateway::with_binary(script).start(yaml)
}

/// Processor time used so far, in clock ticks of 10 ms.
fn ticks(gateway: &Gateway) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", gateway.pid())).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    fields[11..13].iter().map(|time| time.parse::<u64>().expect("a number")).sum()
}

#[test]
fn f17_more_clients_than_descriptors_harm_nobody_who_is_served() {
    let (origin, directory) = (origin(), TempDir::new());
    let gateway = limited(&directory, 300, &routes(&origin));
    gateway.wait_stderr("its limit", |line| line.starts_with("weir: limits: 300 open files"));

    // The kernel takes them all; the gateway takes what it has room for, and those are served. Each asks at once: one that is silent for
    // 120 ms would give way to the others.
    let connect = |_| {
        let mut client = Client::connect(gateway.addr());
        client.send("GET /first HTTP/1.1\r\nHost: t\r\n\r\n");
        client
    };
    let mut clients: Vec<Client> = (0..500).map(connect).collect();
    let open = || gateway.metrics().sum("weir_client_connections", &[]) as usize;
    eventually("it takes as many as it has room for", DEADLINE, || open() >= 115);
    let taken = open();
    assert!(taken < 300, "{taken} clients with 300 descriptors");

    let (served, waiting) = clients.split_at_mut(taken);
    for client in served.iter_mut() {
        assert_eq!(client.response().expect("it is served").status, 200);
    }
    for round in 0..3 {
        for (number, client) in served.iter_mut().enumerate() {
            let answer = client.get(&format!("/{round}/{number}")).expect("it is served");
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    assert_eq!(gateway.ask_status("/status/ready").status, 200, "the status address has descriptors of its own");

    // Nobody sends anything, and many wait. That must not cost the processor anything worth speaking of.
    let (before, since) = (ticks(&gateway), Instant::now());
    thread::sleep(Duration::from_secs(1));
    let used = ticks(&gateway) - before;
    // The sleep can be longer than it is to be.
    let share = used as f64 / since.elapsed().as_secs_f64();
    assert!(share <= 25.0, "{share} % of a processor while nothing happens");

    for client in waiting.iter_mut() {
        client.send("GET /late HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    }
    clients.drain(..taken);
    for client in &mut clients {
        for _ in ["first", "late"] {
            let answer = client.response().expect("it is served as soon as there is room");
            assert_eq!(answer.status, 200);
        }
    }
}

/// A listener of datagrams, and an upstream with this endpoint.
fn datagrams_to(endpoint: &UdpSocket, settings: &str) -> String {
    let endpoint = endpoint.local_addr().expect("it is bound");
    format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", protocol: udp }}]
stream_routes: [{{ id: s, upstream: {{ scheme: udp, {settings}nodes: {{ \"{endpoint}\": 1 }} }} }}]\n"
    )
}

#[test]
fn a_flood_of_datagrams_leaves_descriptors_to_connections() {
    let (origin, directory) = (origin(), TempDir::new());
    let silent = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
    let gateway = limited(&directory, 300, &(routes(&origin) + &datagrams_to(&silent, "")));
    gateway.wait_stderr("its limit", |line| line.starts_with("weir: limits: 300 open files"));
    let flooded = gateway.addrs_of("udp")[0];
    let before = gateway.rss();
    let sources: Vec<UdpSocket> = (0..400).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port")).collect();
    let dropped = || gateway.metrics().sum("weir_stream_datagrams_dropped_total", &["cause=\"sessions_full\""]);
    eventually("most find no room", DEADLINE, || {
        // The kernel drops what comes faster than it is received.
        sources.iter().for_each(|source| drop(source.send_to(&[0; 4_000], flooded)));
        dropped() >= 200.0
    });
    let sessions = gateway.metrics().sum("weir_streams", &[]) as usize;
    assert!((10..=75).contains(&sessions), "{sessions} sessions");

    let mut clients: Vec<Client> = (0..50).map(|_| Client::connect(gateway.addr())).collect();
    for client in &mut clients {
        assert_eq!(client.get("/beside").expect("it is served").status, 200);
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for {sessions} sessions and 50 connections");
}

#[test]
fn a_session_in_use_lasts_through_a_flood_of_forged_addresses() {
    let directory = TempDir::new();
    let echo = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
    let endpoint = echo.local_addr().expect("it is bound");
    thread::spawn(move || {
        let mut buffer = [0; 2_000];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            // To forged addresses alone nothing is answered.
            if length < 100 {
                let _ = echo.send_to(&buffer[..length], from);
            }
        }
    });
    let text = format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", protocol: udp }}]
stream_routes: [{{ id: s, upstream: {{ scheme: udp, nodes: {{ \"{endpoint}\": 1 }} }} }}]\n"
    );
    let gateway = limited(&directory, 300, &text);
    let flooded = gateway.addrs_of("udp")[0];
    let served = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    served.connect(flooded).expect("an address");
    served.set_read_timeout(Some(DEADLINE)).expect("an option");
    let ask = |text: &[u8]| {
        let mut answer = [0; 100];
        served.send(text).expect("sent");
        let length = served.recv(&mut answer).expect("an answer");
        assert_eq!(&answer[..length], text);
    };
    ask(b"before");
    let before = gateway.rss();
    for number in 0..3_000_u16 {
        let [high, low] = number.to_be_bytes();
        let forged = UdpSocket::bind(SocketAddr::from(([127, 1, high, low], 0))).expect("127.0.0.0/8 is this machine");
        forged.send_to(&[0; 1_000], flooded).expect("sent");
        if number % 20 == 0 {
            ask(b"meanwhile");
        }
    }
    ask(b"after");
    let metrics = gateway.metrics();
    let dropped = metrics.sum("weir_stream_datagrams_dropped_total", &["cause=\"sessions_full\""]);
    let sessions = metrics.sum("weir_streams", &[]) as usize;
    assert!(dropped >= 100.0 && sessions <= 75, "{sessions} sessions, {dropped} datagrams dropped");
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for {sessions} sessions");
}

#[test]
fn sessions_that_wait_for_an_endpoint_give_way_to_new_ones() {
    let (origin, directory) = (origin(), TempDir::new());
    let silent = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
    // One session has the only permit, and none is worth waiting for.
    let settings = "concurrency: 1, queue: { size: 1000, timeout: 1m }, ";
    let gateway = limited(&directory, 300, &(routes(&origin) + &datagrams_to(&silent, settings)));
    let flooded = gateway.addrs_of("udp")[0];
    let count = |name: &str| gateway.metrics().sum(name, &[]) as usize;
    let mut seen = 0;
    for _ in 0..3 {
        let sources: Vec<UdpSocket> = (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
        eventually("new sessions find room", DEADLINE, || {
            sources.iter().for_each(|source| drop(source.send_to(b"a", flooded)));
            count("weir_streams_opened_total") >= seen + 20
        });
        seen = count("weir_streams_opened_total");
        eventually("those that gave way have ended", DEADLINE, || count("weir_streams") <= 75);
    }
}

#[test]
fn u02_silent_connections_lock_nobody_out() {
    let (origin, directory) = (origin(), TempDir::new());
    let gateway = limited(&directory, 300, &routes(&origin));
    gateway.wait_stderr("its limit", |line| line.starts_with("weir: limits: 300 open files"));
    let mut used = Client::connect(gateway.addr());
    assert_eq!(used.get("/before").expect("an answer").status, 200);
    let silent: Vec<Client> = (0..600).map(|_| Client::connect(gateway.addr())).collect();
    let mut late = Client::connect(gateway.addr());
    assert_eq!(late.get("/late").expect("an answer, while they are silent").status, 200);
    assert_eq!(used.get("/after").expect("who has sent something stays").status, 200);
    let metrics = gateway.metrics();
    assert!(metrics.sum("weir_client_connections_shed_total", &[]) >= 300.0, "silent ones have gone");
    assert!(metrics.sum("weir_client_connections_full_seconds_total", &[]) >= 1.0);
    gateway.wait_stderr("the shortage", |line| line.contains("the connection limit of this worker is reached"));
    drop(silent);
}

#[test]
fn u02_a_client_behind_more_silent_connections_than_there_is_room_for_is_served_within_half_a_second() {
    let (origin, directory) = (origin(), TempDir::new());
    let mut waits = Vec::new();
    // The best of them: other programs may use the processor meanwhile.
    eventually("a client is served within half a second", 3 * DEADLINE, || {
        let gateway = limited(&directory, 1_024, &routes(&origin));
        gateway.wait_stderr("its limit", |line| line.starts_with("weir: limits: 1024 open files"));
        let silent: Vec<Client> = (0..1_200).map(|_| Client::connect(gateway.addr())).collect();
        let since = Instant::now();
        let mut late = Client::connect(gateway.addr());
        assert_eq!(late.get("/late").expect("an answer, while they are silent").status, 200);
        waits.push(since.elapsed());
        drop(silent);
        waits.iter().any(|wait| *wait < Duration::from_millis(500))
    });
    println!("{waits:?}");
}

/// Clients that take a place and do not use it, by how far they go: nothing sent, or begun and never finished.
fn idlers(gateway: &Gateway, kind: &str, count: usize) -> Vec<Client> {
    let addr = match kind {
        "tls" | "hello" => gateway.tls_addr(),
        "h2c" => gateway.addrs_of("h2c")[0],
        _ => gateway.addr(),
    };
    let idler = |_| {
        let mut client = Client::connect(addr);
        // Those that are refused at once have served their purpose, too.
        let _ = match kind {
            "head" => client.try_send("GET / HTTP/1.1\r\nX: "),
            "hello" => client.try_send(b"\x16\x03\x01\x02\x00\x01"),
            "h2" | "h2c" => client.try_send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
            _ => Ok(()),
        };
        client
    };
    (0..count).map(idler).collect()
}

#[test]
fn u02_nothing_begun_and_never_finished_locks_anybody_out() {
    let (origin, directory) = (origin(), TempDir::new());
    let identity = Authority::of_tests().identity(&["a.example"]);
    let indented = |text: &str| text.lines().map(|line| format!("      {line}\n")).collect::<String>();
    let (certificate, key) = (indented(&identity.certificate), indented(&identity.key));
    for workers in [1, 2] {
        let gateway = limited(
            &directory,
            300,
            &format!(
                "worker_processes: {workers}\nlisten: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", h2c: true }}, \
                 {{ address: \"127.0.0.1:0\", tls: true }}]\nssls:\n  - snis: [a.example]\n    cert: |\n{certificate}    key: |\n{key}{}",
                routes(&origin)
            ),
        );
        gateway.wait_stderr("its limit", |line| line.starts_with("weir: limits: 300 open files"));
        let mut used = Client::connect(gateway.addr());
        assert_eq!(used.get("/before").expect("an answer").status, 200);
        for kind in ["silent", "head", "h2", "h2c", "tls", "hello"] {
            let idle = idlers(&gateway, kind, 160);
            let mut late = Client::connect(gateway.addr());
            assert_eq!(late.get("/late").expect("an answer beside them").status, 200, "{kind}, {workers} workers");
            assert_eq!(used.get("/between").expect("who has been answered stays").status, 200, "{kind}");
            drop(idle);
        }
    }
}

#[test]
fn u02_a_connection_of_http2_without_a_request_ends_in_time() {
    let origin = origin();
    let gateway = weir().start(&format!("client_first_byte_timeout: 300ms\n{}", routes(&origin)));
    // On a busy machine, the time may be over before the first request is sent.
    let mut used = eventually_some("an answer", DEADLINE, || {
        let mut client = gateway.client().by_http2();
        client.get("/").ok().filter(|answer| answer.status == 200).map(|_| client)
    });
    let mut silent = idlers(&gateway, "h2", 1).remove(0);
    silent.until_closed();
    assert_eq!(used.get("/").expect("who has had an answer stays").status, 200);
}

#[test]
fn u02_a_client_has_no_more_connections_than_its_share() {
    let origin = origin();
    for workers in [1, 2] {
        let gateway = weir().start(&format!(
            "worker_processes: {workers}\nclient_max_connections: 8\ntrusted_addresses: [127.0.0.3]\n{}",
            routes(&origin)
        ));
        let connect = |last: u8| Client::connect_from([127, 0, 0, last].into(), gateway.addr());
        let from = |last: u8| connect(last).expect("it listens");
        // A connection beyond the share may be reset before its client has done anything with it.
        let is_served =
            |last: u8| connect(last).is_ok_and(|mut client| client.get("/").is_ok_and(|answer| answer.status == 200));
        let mut greedy: Vec<Client> = (0..8).map(|_| from(2)).collect();
        for client in &mut greedy {
            assert_eq!(client.get("/").expect("within its share").status, 200);
        }
        assert!(!is_served(2), "beyond its share");
        gateway.wait_stderr("who it is", |line| line.contains("connections of 127.0.0.2 are closed: the limit of 8"));
        assert_eq!(gateway.metrics().sum("weir_client_connections_over_share_total", &[]), 1.0);
        let mut trusted: Vec<Client> = (0..10).map(|_| from(3)).collect();
        assert!(
            trusted.iter_mut().all(|client| client.get("/").is_ok_and(|answer| answer.status == 200)),
            "a balancer"
        );
        assert_eq!(from(4).get("/").expect("another client").status, 200);
        greedy.pop();
        eventually("a place is free again", DEADLINE, || is_served(2));
    }
}

/// From now on the gateway can open nothing more.
fn take_descriptors(gateway: &Gateway) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let directory = format!("/proc/{}/fd", gateway.pid());
    let open: Vec<u64> = fs::read_dir(directory)
        .expect("it runs")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let first_free = (0..).find(|number| !open.contains(number)).expect("numbers do not end");
    let pid = Pid::from_raw(gateway.pid() as i32).expect("a process has a number");
    let limit = Rlimit { current: Some(first_free), maximum: Some(first_free) };
    prlimit(Some(pid), Resource::Nofile, limit).expect("it is our child");
}

#[test]
fn f17_no_descriptor_left_for_an_upstream_is_a_503_that_says_when_to_come_back() {
    use weir_testkit::{Answer, Gate, Origin, Reading};
    let gate = Gate::new();
    let slow = Origin::reading(Reading::Strict, {
        let gate = gate.clone();
        move |request| {
            if request.target == "/slow" {
                gate.wait();
            }
            Answer::ok("slow")
        }
    });
    let other = origin();
    let gateway = weir().start(&format!(
        "routes:\n  - {{ id: other, uri: /other, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n  - {{ id: slow, uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}\n",
        other.addr(),
        slow.addr()
    ));
    let (mut first, mut second) = (gateway.client(), gateway.client());
    // One connection to the upstream is there, and no more can be made.
    assert_eq!(first.get("/").expect("an answer").status, 200);
    assert_eq!(second.get("/").expect("an answer").status, 200);
    take_descriptors(&gateway);
    first.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    let refused = second.get("/").expect("an answer");
    assert_eq!((refused.status, refused.headers.get("retry-after")), (503, Some("1")));
    gate.open();
    assert_eq!(first.response().expect("an answer").status, 200);
    // Now that connection is idle, and gives way to one that is needed.
    assert_eq!(second.get("/other").expect("an answer").status, 200);
}

#[test]
fn f17_requests_wait_for_the_connections_there_are_when_no_more_can_be_made() {
    use weir_testkit::{Answer, Gate, Origin, Reading};
    for concurrency in ["auto", "unlimited", "1000"] {
        let gate = Gate::new();
        let origin = Origin::reading(Reading::Strict, {
            let gate = gate.clone();
            move |_| {
                gate.wait();
                Answer::ok("at last")
            }
        });
        let gateway = weir().start(&format!(
            "routes:\n  - {{ id: all, uri: /*, upstream: {{ concurrency: {concurrency}, nodes: {{ \"{}\": 1 }} }} }}\n",
            origin.addr()
        ));
        let mut clients: Vec<Client> = (0..80).map(|_| gateway.client()).collect();
        eventually("all are taken", DEADLINE, || gateway.metrics().sum("weir_client_connections", &[]) >= 80.0);
        let ask = |client: &mut Client| client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        clients[..40].iter_mut().for_each(ask);
        gate.wait_arrived(40);
        // Later nobody gets a new connection there.
        let mut status = Client::connect(gateway.status_addr());
        let mut queued = || status.get("/metrics").expect("metrics").text().contains("weir_upstream_queued 40\n");
        assert!(!queued());
        take_descriptors(&gateway);
        clients[40..].iter_mut().for_each(ask);
        eventually("the others wait in line", DEADLINE, queued);
        gate.open();
        for client in &mut clients {
            assert_eq!(client.response().expect("an answer").status, 200, "concurrency: {concurrency}");
        }
    }
}
