//! `stream` blocks of nginx: connections reach the same origin, or none.

use std::net::SocketAddr;

use weir_testkit::{Answer, Authority, Client, Nginx, Origin, TlsClient, TlsServer, free_port, skipped};

use super::convert;
use crate::weir;

/// A `stream` block, with `PORT`, `ONE` and `TWO`; and the server names of clients, `-` for one without TLS, with the origin that
/// each of them reaches.
const CASES: [(&str, &[(&str, &str)]); 4] = [
    (
        "upstream all { least_conn; server ONE weight=2; server TWO backup; }\n\
         server { listen 127.0.0.1:PORT; proxy_connect_timeout 1s; proxy_timeout 5m; proxy_pass all; }",
        &[("one.example", "one")],
    ),
    (
        "map $ssl_preread_server_name $target {\n\
         hostnames; one.example ONE; .two.example TWO; closed.example \"\"; default TWO; }\n\
         server { listen 127.0.0.1:PORT; ssl_preread on; proxy_pass $target; }",
        &[
            ("one.example", "one"),
            ("ONE.example", "one"),
            ("two.example", "two"),
            ("a.b.two.example", "two"),
            ("closed.example", "none"),
            ("other.example", "two"),
        ],
    ),
    (
        "map $ssl_preread_server_name $target { one.example ONE; }\n\
         server { listen 127.0.0.1:PORT; ssl_preread on; proxy_pass $target; }",
        &[("one.example", "one"), ("other.example", "none"), ("-", "none")],
    ),
    (
        "server { listen 127.0.0.1:PORT; allow 10.0.0.0/8; deny all; proxy_pass ONE; }",
        &[("one.example", "none"), ("-", "none")],
    ),
];

/// The origin that a client reaches.
fn reached(addr: SocketAddr, authority: &Authority, name: &str) -> String {
    let client = match name {
        "-" => Client::try_connect(addr),
        name => Client::connect_tls(addr, &TlsClient::trusting(authority), name),
    };
    let answer = client.ok().and_then(|mut client| client.ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").ok());
    answer.map_or("none".to_owned(), |answer| answer.text())
}

#[test]
fn streams_reach_the_origins_that_they_reach_through_nginx() {
    let authority = Authority::new();
    let names = ["one.example", "two.example", "a.b.two.example", "closed.example", "other.example"];
    let tls = TlsServer::new(&authority.identity(&names));
    let [one, two] = ["one", "two"].map(|name| Origin::serving_tls(&tls, move |_| Answer::ok(name)));
    let at = |text: &str, port: u16| {
        let (one, two) = (one.addr().to_string(), two.addr().to_string());
        text.replace("PORT", &port.to_string()).replace("ONE", &one).replace("TWO", &two)
    };
    let mut wrong = Vec::new();
    for (text, names) in CASES {
        let Some(nginx) = Nginx::start_stream(|port| at(text, port)) else {
            return skipped("there is no nginx with its module for streams");
        };
        let port = free_port();
        let (yaml, findings) = convert("nginx", "stream.conf", &format!("stream {{\n{}\n}}\n", at(text, port)));
        assert!(findings.is_empty(), "{findings:?}");
        let _weir = weir().start(&yaml);
        for &(name, origin) in names {
            let theirs = reached(nginx.addr(), &authority, name);
            let ours = reached(([127, 0, 0, 1], port).into(), &authority, name);
            if [&ours, &theirs].iter().any(|reached| *reached != origin) {
                wrong.push(format!("{text}: {name}: {theirs} through nginx, {ours} through Weir"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
