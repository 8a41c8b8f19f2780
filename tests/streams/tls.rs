//! TLS that ends here, and TLS that is passed through, chosen by the server name.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use weir_testkit::{Authority, DEADLINE, Gate, Identity, TlsClient, TlsServer, eventually, free_port};

use crate::peers::{Endpoint, connect, expect, ping, rest};
use crate::weir;

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A TLS client that asks for a server name, or for an address, which sends none.
fn tls(addr: SocketAddr, name: &'static str, client: &TlsClient) -> TlsStream {
    let name = ServerName::try_from(name).expect("a name");
    let session = ClientConnection::new(Arc::clone(client.config()), name).expect("a session");
    StreamOwned::new(session, connect(addr))
}

/// An endpoint with a certificate for this name, which greets with its name.
fn secured(name: &'static str) -> Endpoint {
    let server = TlsServer::new(&Authority::of_tests().identity(&[name]));
    let config = Arc::clone(server.config());
    Endpoint::new(move |tcp| {
        let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
        let mut stream = StreamOwned::new(session, tcp);
        let _ = stream.write_all(format!("{name}\n").as_bytes());
        let mut buffer = [0; 4096];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        stream.conn.send_close_notify();
        let _ = stream.flush();
    })
}

fn certificate(names: &[&str]) -> String {
    let Identity { certificate, key } = Authority::of_tests().identity(names);
    format!("ssls: [{{ id: c, snis: {names:?}, cert: {certificate:?}, key: {key:?} }}]\n")
}

fn listen(settings: &str) -> String {
    format!("listen: [{{ address: \"127.0.0.1:0\", protocol: tcp, {settings} }}]\n")
}

fn trusting() -> TlsClient {
    TlsClient::trusting(Authority::of_tests())
}

/// A stream route with keys, to one node.
fn route(id: &str, keys: &str, scheme: &str, endpoint: &Endpoint) -> String {
    let upstream = format!("{{ scheme: {scheme}, tls: {{ verify: false }}, nodes: {{ {} }} }}", endpoint.node());
    let upstream = if scheme == "tcp" { upstream.replace(" tls: { verify: false },", "") } else { upstream };
    format!("- {{ id: {id}, {keys} upstream: {upstream} }}\n")
}

#[test]
fn tls_ends_here_and_the_name_chooses_the_route() {
    let [a, b] = ["a\n", "b\n"].map(Endpoint::echo);
    let file = listen("tls: true")
        + &certificate(&["a.test", "b.test"])
        + "stream_routes:\n"
        + &route("a", "sni: a.test,", "tcp", &a)
        + &route("b", "sni: \"*.test\",", "tcp", &b);
    let gateway = weir().start(&file);
    let addr = gateway.addrs_of("tls")[0];
    for (name, greeting) in [("a.test", "a\n"), ("b.test", "b\n")] {
        let mut client = tls(addr, name, &trusting());
        expect(&mut client, greeting);
        ping(&mut client, "over TLS\n");
    }
}

#[test]
fn a_client_that_offers_its_own_protocol_is_not_refused() {
    let endpoint = Endpoint::echo("x\n");
    let file = listen("tls: true") + &certificate(&["a.test"]) + "stream_routes:\n" + &route("a", "", "tcp", &endpoint);
    let gateway = weir().start(&file);
    for protocol in ["postgresql", "h2"] {
        let mut client = tls(gateway.addrs_of("tls")[0], "a.test", &trusting().speaking(&[protocol]));
        expect(&mut client, "x\n");
        assert_eq!(client.conn.alpn_protocol(), None, "the gateway does not know what the endpoint speaks");
    }
}

#[test]
fn the_endpoint_is_reached_over_tls() {
    let endpoint = secured("a.test");
    let file = format!(
        "listen: [{{ address: \"127.0.0.1:0\", protocol: tcp }}]\nstream_routes:\n{}",
        route("a", "", "tls", &endpoint)
    );
    let gateway = weir().start(&file);
    let mut client = connect(gateway.addrs_of("tcp")[0]);
    expect(&mut client, "a.test\n");
    ping(&mut client, "plain here\n");
}

/// Over TLS, an end without its closing alert may be forged.
#[test]
fn a_client_with_tls_is_told_the_end_by_tls_if_both_sides_have_closed() {
    let gate = Gate::new();
    let held = gate.clone();
    let endpoint = Endpoint::new(move |mut stream| {
        let got = rest(&mut stream).expect("a clean end");
        stream.write_all(got.to_uppercase().as_bytes()).expect("the client still reads");
        held.wait();
    });
    let file = listen("tls: true") + &certificate(&["a.test"]) + "stream_routes:\n" + &route("a", "", "tcp", &endpoint);
    let gateway = weir().start(&file);
    let mut client = tls(gateway.addrs_of("tls")[0], "a.test", &trusting());
    client.write_all(b"all of it").expect("sent");
    client.conn.send_close_notify();
    client.flush().expect("sent");
    expect(&mut client, "ALL OF IT");
    // The end comes alone.
    gate.open();
    assert_eq!(rest(&mut client).expect("the closing alert came"), "");
}

#[test]
fn an_endpoint_with_tls_is_told_the_end_by_tls_if_both_sides_have_closed() {
    let (sender, received) = std::sync::mpsc::channel();
    let server = TlsServer::new(&Authority::of_tests().identity(&["a.test"]));
    let config = Arc::clone(server.config());
    let endpoint = Endpoint::new(move |tcp| {
        let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
        let mut stream = StreamOwned::new(session, tcp);
        stream.write_all(b"bye").expect("sent");
        stream.conn.send_close_notify();
        stream.flush().expect("sent");
        let mut got = [0; 12];
        let first = stream.read_exact(&mut got).map(|()| String::from_utf8_lossy(&got).into_owned());
        sender.send(first).expect("the test waits");
        sender.send(rest(&mut stream)).expect("the test waits");
    });
    let gateway = weir().start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", protocol: tcp }}]\nstream_routes:\n{}",
        route("a", "", "tls", &endpoint)
    ));
    let mut client = connect(gateway.addrs_of("tcp")[0]);
    assert_eq!(rest(&mut client).expect("a clean end"), "bye");
    client.write_all(b"and the rest").expect("sent");
    let next = || received.recv_timeout(DEADLINE).expect("it came");
    assert_eq!(next().expect("bytes"), "and the rest");
    // The end comes alone.
    drop(client);
    assert_eq!(next().expect("the closing alert came"), "");
}

#[test]
fn tls_is_passed_through_by_its_name_without_a_certificate_here() {
    let [a, b] = ["a.test", "b.test"].map(secured);
    let file = listen("tls_passthrough: true")
        + "stream_routes:\n"
        + &route("a", "sni: a.test,", "tcp", &a)
        + &route("b", "snis: [b.test],", "tcp", &b);
    let gateway = weir().start(&file);
    let addr = gateway.addrs_of("tls-passthrough")[0];
    for name in ["a.test", "b.test"] {
        // The client verifies the certificate of the endpoint itself.
        let mut client = tls(addr, name, &trusting());
        expect(&mut client, &format!("{name}\n"));
        ping(&mut client, "end to end\n");
    }
    let mut unknown = tls(addr, "c.test", &trusting());
    assert!(unknown.write_all(b"x").and_then(|()| rest(&mut unknown)).is_err());
}

#[test]
fn on_one_port_tls_ends_here_or_is_passed_through_as_the_route_says() {
    let (through, ends) = (secured("through.test"), Endpoint::echo("ends\n"));
    let file = listen("tls: true, tls_passthrough: true")
        + &certificate(&["ends.test"])
        + "stream_routes:\n"
        + &route("through", "sni: through.test, tls_passthrough: true,", "tcp", &through)
        + &route("ends", "sni: ends.test,", "tcp", &ends);
    let gateway = weir().start(&file);
    let addr = gateway.addrs_of("tls-by-route")[0];
    expect(&mut tls(addr, "through.test", &trusting()), "through.test\n");
    expect(&mut tls(addr, "ends.test", &trusting()), "ends\n");
}

#[test]
fn a_client_without_tls_does_not_pass_a_route_at_which_tls_ends() {
    let (ends, through) = (Endpoint::echo("ends\n"), Endpoint::echo("through\n"));
    let file = |routes: &str| {
        listen("tls: true, tls_passthrough: true") + &certificate(&["ends.test"]) + "stream_routes:\n" + routes
    };
    let gateway = weir().start(&file(&route("ends", "", "tcp", &ends)));
    let addr = gateway.addrs_of("tls-by-route")[0];
    let mut client = connect(addr);
    client.write_all(b"SSH-2.0-x\n").expect("sent");
    assert!(rest(&mut client).is_err(), "TLS is required");
    assert_eq!(ends.accepted(), 0);
    expect(&mut tls(addr, "ends.test", &trusting()), "ends\n");
    gateway.rewrite(&file(&route("through", "tls_passthrough: true,", "tcp", &through)));
    let mut client = connect(addr);
    client.write_all(b"SSH-2.0-x\n").expect("sent");
    expect(&mut client, "through\nSSH-2.0-x\n");
}

#[test]
fn a_route_takes_no_connection_of_a_listener_with_a_more_specific_host() {
    let (bank, other) = (Endpoint::echo("bank\n"), Endpoint::echo("other\n"));
    let address = format!("127.0.0.1:{}", free_port());
    let listener =
        |id: &str, hosts: &str| format!("- {{ id: {id}, address: \"{address}\", protocol: tcp, tls: true{hosts} }}\n");
    let file = |routes: &str| {
        format!("listen: [\"127.0.0.1:0\"]\nresource_listeners: [\"{address}\"]\nlisteners:\n")
            + &listener("wide", "")
            + &listener("bank", ", hosts: [\"*.bank.test\"]")
            + &certificate(&["*.bank.test", "other.test"])
            + "stream_routes:\n"
            + &route("greedy", "listeners: [wide], snis: [api.bank.test, other.test],", "tcp", &other)
            + routes
    };
    let gateway = weir().start(&file(""));
    let addr = address.parse().expect("an address");
    expect(&mut tls(addr, "other.test", &trusting()), "other\n");
    let mut client = tls(addr, "api.bank.test", &trusting());
    assert!(client.write_all(b"x").and_then(|()| rest(&mut client)).is_err(), "its listener has no route");
    gateway.rewrite(&file(&route("bank", "listeners: [bank],", "tcp", &bank)));
    expect(&mut tls(addr, "api.bank.test", &trusting()), "bank\n");
    assert_eq!(other.accepted(), 1);
}

#[test]
fn a_client_hello_in_single_bytes_is_read_to_its_end() {
    let endpoint = secured("a.test");
    let file = listen("tls_passthrough: true") + "stream_routes:\n" + &route("a", "sni: a.test,", "tcp", &endpoint);
    let gateway = weir().start(&file);
    let mut client = tls(gateway.addrs_of("tls-passthrough")[0], "a.test", &trusting());
    client.sock.set_nodelay(true).expect("set");
    let mut hello = Vec::new();
    client.conn.write_tls(&mut hello).expect("a ClientHello");
    for byte in hello {
        client.sock.write_all(&[byte]).expect("sent");
    }
    expect(&mut client, "a.test\n");
}

#[test]
fn without_a_name_only_a_route_without_names_is_taken() {
    let (named, any) = (Endpoint::echo("named\n"), Endpoint::echo("any\n"));
    let named_route = route("named", "sni: a.test,", "tcp", &named);
    let file = |routes: &str| listen("tls_passthrough: true") + "stream_routes:\n" + routes;
    let gateway = weir().start(&file(&named_route));
    let addr = gateway.addrs_of("tls-passthrough")[0];
    let mut client = connect(addr);
    client.write_all(b"SSH-2.0-x\n").expect("sent");
    assert!(rest(&mut client).is_err(), "it is not TLS, so it has no name");
    gateway.rewrite(&file(&(named_route + &route("any", "", "tcp", &any))));
    let mut client = connect(addr);
    client.write_all(b"SSH-2.0-x\n").expect("sent");
    expect(&mut client, "any\nSSH-2.0-x\n");
}

/// With and without a session to resume: neither may stand for a certificate.
#[test]
fn u24_a_name_that_requires_a_certificate_carries_no_stream_without_one() {
    let endpoint = Endpoint::echo("in\n");
    let (known, own) = (Authority::new(), Authority::of_tests().identity(&["a.test"]));
    let Identity { certificate, key } = own;
    let file = listen("tls: true")
        + &format!(
            "ssls: [{{ id: c, snis: [a.test], cert: {certificate:?}, key: {key:?}, client: {{ ca: {:?} }} }}]\n",
            known.certificate
        )
        + "stream_routes:\n"
        + &route("a", "", "tcp", &endpoint);
    let gateway = weir().start(&file);
    let addr = gateway.addrs_of("tls")[0];
    for stranger in [trusting(), TlsClient::known_as(Authority::of_tests(), &Authority::new().identity(&["client"]))] {
        for _ in 0..2 {
            let mut client = tls(addr, "a.test", &stranger);
            let read = client.write_all(b"x").and_then(|()| rest(&mut client));
            assert!(read.as_ref().map_or(true, String::is_empty), "{read:?}");
        }
    }
    assert_eq!(endpoint.accepted(), 0);
    let client = TlsClient::known_as(Authority::of_tests(), &known.identity(&["client"]));
    expect(&mut tls(addr, "a.test", &client), "in\n");
}

#[test]
fn u21_a_client_that_sends_no_client_hello_is_closed_in_time() {
    let endpoint = Endpoint::echo("");
    let file = listen("tls_passthrough: true")
        + "ssl_handshake_timeout: 200ms\nstream_routes:\n"
        + &route("a", "sni: a.test,", "tcp", &endpoint);
    let gateway = weir().start(&file);
    let addr = gateway.addrs_of("tls-passthrough")[0];
    let mut silent = connect(addr);
    // The beginning of a handshake record whose end never comes.
    let mut partial = connect(addr);
    partial.write_all(&[22, 3, 1, 2, 0, 1]).expect("sent");
    assert!(rest(&mut silent).map_or(true, |rest| rest.is_empty()));
    assert!(rest(&mut partial).map_or(true, |rest| rest.is_empty()));
    eventually("both have ended", DEADLINE, || gateway.metrics().sum("weir_client_connections", &[]) == 0.0);
    assert_eq!(endpoint.accepted(), 0);
}
