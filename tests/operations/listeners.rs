//! Listeners come and go while the node serves: no client that is connected loses a request.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weir_testkit::{
    Authority, Client, DEADLINE, Gate, Gateway, Identity, Origin, ReadError, Reading, Signal, TempDir, TlsClient,
    eventually, eventually_some, scaled,
};

use crate::load::{Events, Load, Tunnel, origin, routes};
use crate::{script, weir};

/// A port that no process listens on now, at any address, and that no other test gets.
fn free_port() -> u16 {
    eventually_some("a port is free", DEADLINE, || {
        let port = weir_testkit::free_port();
        TcpListener::bind(("::", port)).is_ok().then_some(port)
    })
}

/// How long an idle connection of a removed listener stays open for a request that is on its way.
const DRAIN_IDLE: Duration = Duration::from_secs(5);

/// The setting `listen` with these addresses.
fn listen(addresses: &[&str]) -> String {
    format!("listen: [{}]\n", addresses.join(", "))
}

/// Certificates for the name `t`.
fn certificate(authority: &Authority) -> String {
    let Identity { certificate, key } = authority.identity(&["t"]);
    format!("ssls: [{{ id: t, sni: t, cert: {certificate:?}, key: {key:?} }}]\n")
}

fn tls_client() -> TlsClient {
    TlsClient::trusting(Authority::of_tests())
}

/// Waits until no process listens at an address any more.
#[track_caller]
fn wait_gone(gateway: &Gateway, addr: SocketAddr) {
    let gone = format!("weir: no longer listening on {addr} (");
    gateway.wait_stderr("that it has gone", |line| line.starts_with(&gone));
    eventually("no process listens", DEADLINE, || {
        TcpStream::connect_timeout(&addr, DEADLINE).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    });
}

/// The newest listener of a protocol that is not among `known`.
#[track_caller]
fn new_addr(gateway: &Gateway, protocol: &str, known: &[SocketAddr]) -> SocketAddr {
    eventually_some("it listens there", DEADLINE, || {
        gateway.addrs_of(protocol).into_iter().find(|addr| !known.contains(addr))
    })
}

/// Listeners that stay, and one that comes and goes, with clients on each, over HTTP/1, HTTP/2 and TLS.
fn reload_under_load(workers: usize) {
    let origin = origin();
    let ports = [free_port(), free_port()];
    let guests = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let stays = "\"127.0.0.1:0\", { address: \"127.0.0.1:0\", tls: true }, { address: \"127.0.0.1:0\", h2c: true }";
    let file = |guests: &[String]| {
        let all: Vec<&str> = [stays].into_iter().chain(guests.iter().map(String::as_str)).collect();
        listen(&all)
            + &format!("worker_processes: {workers}\n")
            + &certificate(Authority::of_tests())
            + &routes(&origin)
    };
    let both = [format!("\"{}\"", guests[0]), format!("{{ address: \"{}\", tls: true }}", guests[1])];
    let gateway = weir().start(&file(&[]));
    let (http, tls, h2c) = (gateway.addr(), gateway.tls_addr(), gateway.addrs_of("h2c")[0]);
    let secure = |addr| move || Client::connect_tls(addr, &tls_client(), "t");
    let stay = [
        Load::with_streams(http),
        Load::by(secure(tls)),
        Load::by(move || Client::try_connect(http).map(Client::by_http2)),
        Load::kept_by(move || Client::try_connect(h2c).map(Client::by_http2)),
    ];
    for _ in 0..scaled(3, 30) {
        gateway.rewrite(&file(&both));
        eventually("both listen", DEADLINE, || guests.iter().all(|addr| TcpStream::connect(addr).is_ok()));
        let leave =
            [Load::until_refused(move || Client::try_connect(guests[0])), Load::until_refused(secure(guests[1]))];
        leave.iter().chain(&stay).for_each(|load| load.wait_for(50));
        gateway.rewrite(&file(&[]));
        for load in leave {
            load.wait_ended();
            load.finish();
        }
        stay.iter().for_each(|load| load.wait_for(50));
    }
    stay.into_iter().for_each(Load::finish);
    assert_eq!(gateway.metrics().get("weir_config_reloads_total{outcome=\"refused\"}"), Some(0.0));
}

#[test]
fn listeners_that_change_under_load_fail_nothing_with_one_worker() {
    reload_under_load(1);
}

#[test]
fn listeners_that_change_under_load_fail_nothing_with_two_workers() {
    reload_under_load(2);
}

#[test]
fn connections_in_the_queue_of_a_removed_listener_are_served() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        if connection.request().is_ok() {
            held.wait();
        }
    });
    let directory = TempDir::new();
    let limited = format!("#!/bin/sh\nulimit -n 300 && exec {} \"$@\"\n", env!("CARGO_BIN_EXE_weir"));
    let queued = "  - { id: queued, uri: /queued, priority: 1, plugins: { mocking: { response_example: queued } } }\n";
    let file = |addresses: &[&str]| listen(addresses) + &routes(&origin) + queued;
    let limited = Gateway::with_binary(script(&directory, "weir", &limited));
    let gateway = limited.start(&file(&["\"127.0.0.1:0\"", "\"127.0.0.1:0\""]));
    let [stays, goes] = gateway.addrs()[..] else { panic!("two listeners") };
    // These are not closed early, and it has room for no others. Each asks at once: one that is silent for 120 ms would give way.
    let connect = |_| {
        let mut client = Client::connect(stays);
        client.send("GET /held HTTP/1.1\r\nHost: t\r\n\r\n");
        client
    };
    let _waiting: Vec<Client> = (0..150).map(connect).collect();
    gateway.wait_stderr("the shortage", |line| line.contains("the connection limit of this worker is reached"));
    // It has begun to accept from the other listener as well, and takes one more there.
    let taken = Client::connect(goes).get("/queued").expect("there is room for one");
    assert_eq!(taken.text(), "queued");
    let mut queued: Vec<Client> = (0..20).map(|_| Client::connect(goes)).collect();
    queued.iter_mut().for_each(|client| client.send("GET /queued HTTP/1.1\r\nHost: t\r\n\r\n"));
    gateway.rewrite(&file(&["\"127.0.0.1:0\""]));
    wait_gone(&gateway, goes);
    for mut client in queued {
        let answer = client.response().expect("it was connected");
        assert_eq!((answer.text().as_str(), answer.closes()), ("queued", true));
    }
    gate.open();
}

#[test]
fn an_address_that_cannot_be_listened_on_refuses_the_whole_change() {
    // Later it is given back, and no client is to get it then.
    let taken = TcpListener::bind(("127.0.0.1", free_port())).expect("it is free");
    let in_use = taken.local_addr().expect("it is bound");
    let fixed = |answer: &str| {
        format!(
            "routes:\n  - id: version\n    uri: /version\n    plugins: {{ mocking: {{ response_example: \"{answer}\" }} }}\n"
        )
    };
    let gateway = weir().start(&(listen(&["\"127.0.0.1:0\"", "\"127.0.0.1:0\""]) + &fixed("before")));
    let before = gateway.addrs();
    let revision = gateway.revision();
    let refused = "weir_config_reloads_total{outcome=\"refused\"}";
    let strangers =
        [(in_use.to_string(), "Address already in use"), ("192.0.2.1:80".into(), "Cannot assign requested address")];
    for (addr, error) in strangers {
        let count = gateway.metrics().get(refused);
        // A free one comes first: it is closed again.
        let port = free_port();
        let wanted = listen(&[&format!("\"127.0.0.1:{port}\""), &format!("\"{addr}\"")]);
        gateway.replace_file(&(wanted + &fixed("after")));
        eventually("it is refused", DEADLINE, || gateway.metrics().get(refused) > count);
        let said = format!(": listen[1]: cannot listen on {addr}: {error}");
        gateway.wait_stderr("the address and the reason", |line| line.contains(&said));
        let last = &gateway.status()["configuration"]["last_error"]["diagnostics"][0];
        assert_eq!(last["path"], "listen[1]", "{last}");
        assert_eq!(gateway.revision(), revision);
        for addr in &before {
            assert_eq!(Client::connect(*addr).get("/version").expect("it listens").text(), "before");
        }
        TcpListener::bind(("127.0.0.1", port)).expect("no process listens there");
    }
    drop(taken);
    gateway.rewrite(&(listen(&[&format!("\"{in_use}\"")]) + &fixed("after")));
    wait_gone(&gateway, before[0]);
    assert_eq!(Client::connect(in_use).get("/version").expect("it listens").text(), "after");
}

#[test]
fn the_protocol_and_the_certificate_of_a_listener_change_for_new_connections() {
    let origin = origin();
    let port = free_port();
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let file = |options: &str, authority: &Authority| {
        let address = format!("{{ address: \"{addr}\"{options} }}");
        listen(&[&address, "\"127.0.0.1:0\""])
            + "trusted_addresses: [127.0.0.1]\n"
            + &certificate(authority)
            + &routes(&origin)
    };
    let of_tests = Authority::of_tests();
    let gateway = weir().start(&file("", of_tests));
    let mut old = Client::connect(addr);
    assert_eq!(old.get("/a").expect("an answer").status, 200);

    let became = |protocol: &str| {
        let line = format!("weir: listening on {addr} ({protocol})");
        gateway.wait_stderr("its protocol", |said| said == line);
    };
    gateway.rewrite(&file(", tls: true", of_tests));
    became("https");
    let over_tls = |authority: &Authority| Client::connect_tls(addr, &TlsClient::trusting(authority), "t");
    let trusted = |authority: &Authority| over_tls(authority).is_ok_and(|mut client| client.get("/a").is_ok());
    eventually("it speaks TLS", DEADLINE, || trusted(of_tests));
    assert_eq!(old.get("/a").expect("it was accepted before").status, 200);

    let other = Authority::new();
    gateway.rewrite(&file(", tls: true", &other));
    eventually("the new certificate is used", DEADLINE, || trusted(&other));
    assert!(!trusted(of_tests), "the old one is not");

    gateway.rewrite(&file(", h2c: true", &other));
    became("h2c");
    eventually("it speaks HTTP/2", DEADLINE, || Client::connect(addr).by_http2().get("/a").is_ok());

    gateway.rewrite(&file(", proxy_protocol: true", &other));
    became("proxy-http");
    let announced = || {
        let mut client = Client::connect(addr);
        client.send("PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n");
        client.get("/a")
    };
    eventually("it expects a PROXY header", DEADLINE, || announced().is_ok_and(|answer| answer.status == 200));
}

#[test]
fn an_address_gives_way_to_a_wider_or_narrower_one_on_the_same_port() {
    let origin = origin();
    let port = free_port();
    let file = |host: &str| listen(&[&format!("\"{host}:{port}\""), "\"127.0.0.1:0\""]) + &routes(&origin);
    let gateway = weir().start(&file("127.0.0.1"));
    let load = Load::start(SocketAddr::from(([127, 0, 0, 1], port)));
    for host in ["0.0.0.0", "[::]", "127.0.0.1", "", "127.0.0.1"] {
        load.wait_for(50);
        gateway.rewrite(&file(host));
    }
    load.wait_for(50);
    load.finish();
    let both = format!("\"127.0.0.1:{port}\", \"[::1]:{port}\"");
    gateway.rewrite(&(listen(&[&both]) + &routes(&origin)));
    for addr in [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))] {
        eventually("both address families are served", DEADLINE, || {
            Client::try_connect(addr).is_ok_and(|mut client| client.get("/a").is_ok())
        });
    }
}

#[test]
fn connections_of_a_removed_listener_finish_what_they_have_begun() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::scripted(Reading::Strict, move |connection| {
        while connection.request().is_ok() {
            held.wait();
            if connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    });
    let gateway = weir().start(&(listen(&["\"127.0.0.1:0\"", "\"127.0.0.1:0\""]) + &routes(&origin)));
    let [stays, goes] = gateway.addrs()[..] else { panic!("two listeners") };
    let mut begun = Client::connect(goes);
    begun.send("GET /a HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    let mut http2 = Client::connect(goes);
    http2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let mut idle = Client::connect(goes);
    let mut kept = Client::connect(stays);
    eventually("all are accepted", DEADLINE, || gateway.metrics().sum("weir_client_connections", &[]) >= 4.0);

    let removed = Instant::now();
    gateway.rewrite(&(listen(&["\"127.0.0.1:0\""]) + &routes(&origin)));
    wait_gone(&gateway, goes);
    gate.open();
    match idle.get("/a") {
        Ok(answer) => assert_eq!((answer.status, answer.closes()), (200, true)),
        Err(ReadError::TimedOut { partial }) => panic!("a request that was on its way is not answered: {partial}"),
        Err(error) => assert!(removed.elapsed() >= DRAIN_IDLE, "a request that was on its way: {error}"),
    }
    let answer = begun.response().expect("it was in progress");
    assert_eq!((answer.status, answer.text().as_str(), answer.closes()), (200, "ok", true));
    let mut goaway = false;
    while !goaway {
        let head = http2.exact(9).expect("a frame");
        let length = u64::from(head[0]) << 16 | u64::from(head[1]) << 8 | u64::from(head[2]);
        http2.exact(length).expect("its content");
        goaway = head[3] == 7;
    }
    let answer = kept.get("/a").expect("another listener is not affected");
    assert_eq!((answer.status, answer.closes()), (200, false));
}

#[test]
fn connections_of_a_removed_listener_are_ended_when_their_time_is_up() {
    let origin = origin();
    let file = |addresses: &[&str]| listen(addresses) + "worker_shutdown_timeout: 1\n" + &routes(&origin);
    let gateway = weir().start(&file(&["\"127.0.0.1:0\"", "\"127.0.0.1:0\""]));
    let [stays, goes] = gateway.addrs()[..] else { panic!("two listeners") };
    let (mut events, mut tunnel) = (Events::open(goes), Tunnel::open(goes));
    let mut kept = Tunnel::open(stays);
    events.next().and_then(|()| tunnel.echo()).and_then(|()| kept.echo()).expect("all are open");
    gateway.rewrite(&file(&["\"127.0.0.1:0\""]));
    wait_gone(&gateway, goes);
    eventually("the events end", DEADLINE, || events.next().is_err());
    eventually("the tunnel ends", DEADLINE, || tunnel.echo().is_err());
    for _ in 0..20 {
        kept.echo().expect("another listener is not affected");
    }
}

fn descriptors(gateway: &Gateway) -> usize {
    fs::read_dir(format!("/proc/{}/fd", gateway.pid())).expect("it runs").count()
}

#[test]
fn listeners_that_come_and_go_leave_nothing_behind() {
    let origin = origin();
    let gateway = weir().start(&format!("worker_processes: 2\n{}{}", listen(&["\"127.0.0.1:0\""]), routes(&origin)));
    let stays = gateway.addr();
    let port = free_port();
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let guest = format!("\"{addr}\"");
    let file = |addresses: &[&str]| format!("worker_processes: 2\n{}{}", listen(addresses), routes(&origin));
    let change = |addresses: &[&str], is_open: bool| {
        gateway.replace_file(&file(addresses));
        gateway.signal(Signal::HUP);
        eventually("the change is made", DEADLINE, || {
            let asked = Client::try_connect(addr).map(|mut client| client.get("/a"));
            asked.is_ok_and(|answer| answer.is_ok()) == is_open
        });
    };
    let cycles = |count: usize| {
        for _ in 0..count {
            change(&["\"127.0.0.1:0\"", &guest], true);
            change(&["\"127.0.0.1:0\""], false);
        }
        eventually("its clients have gone", DEADLINE, || gateway.metrics().sum("weir_client_connections", &[]) == 0.0);
    };
    cycles(10);
    let (before, memory) = (descriptors(&gateway), gateway.rss());
    cycles(scaled(50, 500));
    eventually("as many descriptors as before", DEADLINE, || descriptors(&gateway) <= before);
    let after = gateway.rss();
    assert!(after as f64 <= memory as f64 * 1.05, "{memory} bytes before, {after} after");
    assert_eq!(Client::connect(stays).get("/a").expect("it listens").status, 200);
}

#[test]
fn an_upgrade_hands_over_the_listeners_that_are_there_then() {
    let origin = origin();
    let file = |addresses: &[&str]| listen(addresses) + &certificate(Authority::of_tests()) + &routes(&origin);
    let (fixed, moved) = (free_port(), free_port());
    let plain = |port: u16| format!("\"127.0.0.1:{port}\"");
    let gateway = weir().start(&file(&["\"127.0.0.1:0\"", &plain(fixed)]));
    let first = gateway.addrs();
    let secured = format!("{{ address: \"127.0.0.1:{moved}\", tls: true }}");
    gateway.rewrite(&file(&["\"127.0.0.1:0\"", "\"127.0.0.1:0\"", &secured]));
    wait_gone(&gateway, first[1]);
    let added = new_addr(&gateway, "http", &first);
    let loads = [Load::start(first[0]), Load::start(added)];
    let before = gateway.pid();
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("that another serves", |line| line.ends_with(&format!("; process {before} drains")));
    loads.into_iter().for_each(|load| {
        load.wait_for(50);
        load.finish();
    });
    let tls = SocketAddr::from(([127, 0, 0, 1], moved));
    let mut client = Client::connect_tls(tls, &tls_client(), "t").expect("it listens");
    assert_eq!(client.get("/a").expect("an answer").status, 200);
    let refused = TcpStream::connect(first[1]).expect_err("it was removed before");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    // The new process can close what it has inherited.
    gateway.rewrite(&file(&["\"127.0.0.1:0\""]));
    wait_gone(&gateway, added);
}

#[test]
fn routes_can_be_limited_to_a_listener() {
    let port = free_port();
    let file = |addresses: &[&str]| {
        listen(addresses)
            + &format!(
                "routes:\n  - id: internal\n    uri: /*\n    priority: 1\n    vars: [[\"server_port\", \"==\", \"{port}\"]]\n    \
                 plugins: {{ mocking: {{ response_example: \"internal\" }} }}\n  - id: public\n    uri: /*\n    \
                 plugins: {{ mocking: {{ response_example: \"public\" }} }}\n"
            )
    };
    let gateway = weir().start(&file(&["\"127.0.0.1:0\""]));
    let asked = |addr: SocketAddr| Client::try_connect(addr).ok()?.get("/a").ok().map(|answer| answer.text());
    gateway.rewrite(&file(&["\"127.0.0.1:0\"", &format!("\"127.0.0.1:{port}\"")]));
    eventually("the new listener has its route", DEADLINE, || {
        asked(SocketAddr::from(([127, 0, 0, 1], port))).as_deref() == Some("internal")
    });
    assert_eq!(asked(gateway.addr()).as_deref(), Some("public"));
}
