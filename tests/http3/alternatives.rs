//! Clients of HTTP/1.1 and HTTP/2 are told that HTTP/3 is served.

use std::net::SocketAddr;

use weir_testkit::{Answer, Client, Origin, TlsClient, free_port};

use crate::client::{NAME, ask, client, request, run};
use crate::{Served, file, serve_file};

/// What `Alt-Svc` of a response over HTTP/1.1 says.
fn told(served: &Served, address: SocketAddr, path: &str) -> Option<String> {
    let tls = TlsClient::trusting(&served.authority);
    let mut client = Client::connect_tls(address, &tls, NAME).expect("a connection");
    let answer = client.ask(format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\n\r\n")).expect("an answer");
    answer.headers.get("Alt-Svc").map(str::to_owned)
}

/// A gateway with HTTP/3 at one port, and an address with TLS and without HTTP/3 behind it.
pub(crate) fn with_http3_at(port: u16, origin: &Origin, more: &str) -> Served {
    let listen = format!(
        "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:{port}\", tls: true, http3: true }}, {{ address: \
         \"127.0.0.1:0\", tls: true }}]\n"
    );
    serve_file(|identity| {
        let written = file(identity, origin, more);
        let (_, rest) = written.split_once('\n').expect("a line for `listen`");
        format!("{listen}{rest}")
    })
}

#[test]
fn responses_on_an_address_with_http3_say_so() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let port = free_port();
    let served = with_http3_at(port, &origin, "");
    let told_here = Some(format!("h3=\":{port}\"; ma=86400"));
    let addresses = served.gateway.addrs_of("https");
    assert_eq!(told(&served, addresses[0], "/"), told_here);
    assert_eq!(told(&served, addresses[1], "/"), None);
    let plain = served.gateway.client().ask(format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n")).expect("an answer");
    assert_eq!(plain.headers.get("Alt-Svc"), None);
    run(async {
        let (mut sender, _quic) = client(&served.authority, addresses[0]).await;
        let (response, _) = ask(&mut sender, request("GET", "/")).await;
        assert_eq!(
            response.headers().get("alt-svc").map(|value| value.as_bytes()),
            told_here.as_deref().map(str::as_bytes)
        );
    });
}

#[test]
fn a_global_rule_decides_in_place_of_the_address() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    for (rule, want) in [
        ("alt-svc: { port: 443, max_age: 60 }", Some("h3=\":443\"; ma=60")),
        ("alt-svc: { _meta: { disable: true } }", None),
        ("response-rewrite: { headers: { set: { Alt-Svc: clear } } }", Some("clear")),
    ] {
        let served =
            with_http3_at(free_port(), &origin, &format!("global_rules: [{{ id: g, plugins: {{ {rule} }} }}]\n"));
        assert_eq!(told(&served, served.gateway.tls_addr(), "/").as_deref(), want, "{rule}");
    }
}
