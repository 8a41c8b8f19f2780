//! Clients announced by a balancer in front.

use std::io::Write;
use std::net::TcpStream;

use weir_testkit::{Answer, Authority, Client, DEADLINE, Gateway, Identity, Origin, TlsClient, eventually};

fn origin() -> Origin {
    Origin::serving(|request| {
        let told = ["X-Real-IP", "X-Forwarded-For", "X-Forwarded-Proto"];
        Answer::ok(told.map(|name| request.headers.get(name).unwrap_or("-")).join(" "))
    })
}

fn gateway(origin: &Origin, trusted: &str) -> Gateway {
    let Identity { certificate, key } = Authority::of_tests().identity(&["t"]);
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "listen:\n  - {{ address: \"127.0.0.1:0\", proxy_protocol: true }}\n  - {{ address: \"127.0.0.1:0\", tls: true, \
         proxy_protocol: true }}\ntrusted_addresses: [{trusted}]\nclient_header_timeout: 5s\n\
         ssls: [{{ sni: t, cert: {certificate:?}, key: {key:?} }}]\n\
         routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
        origin.addr()
    ))
}

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x03\xe8\x01\xbb";
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: t\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n";

#[test]
fn the_announced_client_is_the_client() {
    let origin = origin();
    let gateway = gateway(&origin, "127.0.0.0/8");
    let addr = gateway.addrs_of("proxy-http")[0];
    for (header, told) in [
        (&b"PROXY TCP4 1.2.3.4 5.6.7.8 1000 443\r\n"[..], "1.2.3.4 1.2.3.4 http"),
        (V2, "1.2.3.4 1.2.3.4 http"),
        (b"PROXY TCP6 2001:db8::1 ::2 1000 443\r\n", "2001:db8::1 2001:db8::1 http"),
        // The balancer asks for itself, and is believed.
        (b"PROXY UNKNOWN\r\n", "6.6.6.6 6.6.6.6, 127.0.0.1 http"),
    ] {
        let mut client = Client::connect(addr);
        // The header comes in parts, and the request right behind it.
        let (first, rest) = header.split_at(header.len() / 2);
        client.send(first);
        client.send([rest, REQUEST.as_bytes()].concat());
        assert_eq!(client.response().expect("an answer").text(), told);
        assert_eq!(client.ask(REQUEST).expect("an answer").text(), told, "it holds for the whole connection");
    }
}

/// As on listeners for both versions of IP.
#[test]
fn clients_of_ipv4_have_the_address_they_are_known_by() {
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(
        "listen: [{ address: \"127.0.0.1:0\", proxy_protocol: true }]\ntrusted_addresses: [127.0.0.1]\n\
         routes: [{ uri: /*, vars: [[remote_addr, '==', 1.2.3.4], [remote_addr, '~~', '^1[.]']], plugins: { mocking: \
         { response_status: 200, response_example: $remote_addr } } }]\n",
    );
    let mut client = Client::connect(gateway.addrs_of("proxy-http")[0]);
    client.send([b"PROXY TCP6 ::ffff:1.2.3.4 ::ffff:5.6.7.8 1000 443\r\n", REQUEST.as_bytes()].concat());
    assert_eq!(client.response().expect("an answer").text(), "1.2.3.4");
}

#[test]
fn tls_begins_behind_the_header() {
    let origin = origin();
    let gateway = gateway(&origin, "127.0.0.0/8");
    let mut tcp = TcpStream::connect(gateway.addrs_of("proxy-https")[0]).expect("it listens");
    tcp.write_all(V2).expect("it is taken");
    let tls = TlsClient::trusting(Authority::of_tests());
    let mut client = Client::over_tls(tcp, &tls, "t").expect("a handshake");
    assert_eq!(client.ask(REQUEST).expect("an answer").text(), "1.2.3.4 1.2.3.4 https");
}

#[test]
fn p01_only_trusted_peers_announce_and_they_must() {
    let origin = origin();
    let stranger = gateway(&origin, "10.0.0.0/8");
    let mut client = Client::connect(stranger.addrs_of("proxy-http")[0]);
    let _ = client.try_send([V2, REQUEST.as_bytes()].concat());
    assert!(client.until_closed().is_empty());
    let gateway = gateway(&origin, "127.0.0.0/8");
    let told = [REQUEST.as_bytes(), b"PROXY TCP4 1.2.3.4\r\n", b"PROXY TCP4 1.2", b""].map(|said| {
        let mut client = Client::connect(gateway.addrs_of("proxy-http")[0]);
        client.send(said);
        (said, client)
    });
    for (said, mut client) in told {
        assert!(client.until_closed().is_empty(), "after {said:?}");
    }
    assert!(origin.requests().is_empty());
    eventually("nobody is left", DEADLINE, || gateway.metrics().sum("weir_client_connections", &[]) == 0.0);
}

/// A gateway that announces its clients to `upstream`, which are options of one.
fn announcing(upstream: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start(&format!("routes: [{{ uri: /*, upstream: {{ pass_host: pass, {upstream} }} }}]\n"))
}

/// Two clients of the same gateway, each asking twice, are told who they are.
fn told_who_they_are(front: &Gateway) {
    let mut clients = [5, 6].map(|last| {
        let source = std::net::Ipv4Addr::new(127, 0, 0, last);
        (source, Client::connect_from(source, front.addr()).expect("it listens"))
    });
    for _ in 0..2 {
        for (source, client) in &mut clients {
            let told = client.ask("GET / HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer").text();
            assert_eq!(told, format!("{source} {source}, {source} http"));
        }
    }
}

#[test]
fn upstreams_are_told_who_the_client_is() {
    let origin = origin();
    let back = gateway(&origin, "127.0.0.0/8");
    for version in ["v1", "v2"] {
        let plain = back.addrs_of("proxy-http")[0];
        let front = announcing(&format!("proxy_protocol: {version}, nodes: {{ \"{plain}\": 1 }}"));
        told_who_they_are(&front);
        assert_eq!(front.metrics().sum("weir_upstream_connects_total", &[]), 2.0, "one for each client");
        let secured = back.addrs_of("proxy-https")[0];
        let front = announcing(&format!(
            "proxy_protocol: {version}, scheme: https, tls: {{ verify: false }}, nodes: {{ \"{secured}\": 1 }}"
        ));
        told_who_they_are(&front);
    }
}

#[test]
fn checks_speak_for_nobody() {
    let origin = origin();
    let back = gateway(&origin, "127.0.0.0/8");
    let addr = back.addrs_of("proxy-http")[0];
    let front = announcing(&format!(
        "proxy_protocol: v2, nodes: {{ \"{addr}\": 1 }}, checks: {{ active: {{ type: http, http_path: /health, healthy: \
         {{ interval: 1 }} }} }}"
    ));
    eventually("it is asked", DEADLINE, || {
        front.metrics().sum("weir_health_checks_total", &["outcome=\"healthy\""]) > 0.0
    });
    assert!(origin.targets().iter().all(|target| target == "/health"));
}
