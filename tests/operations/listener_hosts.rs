//! Several listeners share a port, each with its own hosts, routes and certificates.

use std::net::SocketAddr;

use weir_testkit::{Authority, Client, Gateway, Identity, TlsClient, free_port};

use crate::weir;

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Status and body of the answer to a request for a host.
#[track_caller]
fn ask(client: &mut Client, host: &str, path: &str) -> (u16, String) {
    let answer = client.ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("an answer");
    (answer.status, answer.text())
}

#[track_caller]
fn asked(port: u16, host: &str, path: &str) -> (u16, String) {
    ask(&mut Client::connect(loopback(port)), host, path)
}

/// Routes whose answers are their ids.
fn route(id: &str, more: &str) -> String {
    format!("- {{ id: {id}, {more}, plugins: {{ mocking: {{ response_example: {id} }} }} }}\n")
}

#[test]
fn a_request_belongs_to_the_listener_with_the_most_specific_host() {
    let (one, two) = (free_port(), free_port());
    let listeners = [
        ("any", one, "[]"),
        ("wild", one, "[\"*.example.com\"]"),
        ("exact", one, "[very.specific.com, www.example.com]"),
        ("only", two, "[www.example.com]"),
    ];
    let mut yaml = "listeners:\n".to_owned();
    for (id, port, hosts) in listeners {
        let hosts = if hosts == "[]" { String::new() } else { format!(", hosts: {hosts}") };
        yaml += &format!("- {{ id: {id}, address: \"127.0.0.1:{port}\"{hosts} }}\n");
    }
    yaml += "routes:\n";
    yaml += &route("of-any", "uri: /any, listeners: [any]");
    yaml += &route("of-wild", "uri: /wild, listeners: [wild]");
    yaml += &route("of-exact", "uri: /exact, listeners: [exact]");
    yaml += &route("of-several", "uri: /several, listeners: [wild, only]");
    yaml += &route("of-all", "uri: /all");
    let _gateway = weir().start(&yaml);
    for (port, host, path, wanted) in [
        (one, "foo.org", "/any", Some("of-any")),
        (one, "a.example.com", "/wild", Some("of-wild")),
        (one, "www.example.com", "/exact", Some("of-exact")),
        (one, "very.specific.com:80", "/exact", Some("of-exact")),
        (one, "a.example.com", "/several", Some("of-several")),
        (two, "www.example.com", "/several", Some("of-several")),
        (one, "foo.org", "/all", Some("of-all")),
        (two, "www.example.com", "/all", Some("of-all")),
        // The listener that the request belongs to has no such route.
        (one, "a.example.com", "/any", None),
        (one, "www.example.com", "/wild", None),
        (one, "foo.org", "/exact", None),
        (two, "www.example.com", "/exact", None),
        // No listener of the port has the host.
        (two, "foo.org", "/all", None),
    ] {
        let answer = asked(port, host, path);
        match wanted {
            Some(id) => assert_eq!(answer, (200, id.to_owned()), "{host}{path}"),
            None => assert_eq!(answer.0, 404, "{host}{path}"),
        }
    }
}

#[test]
fn urls_have_the_port_that_clients_use() {
    let ports = [free_port(), free_port(), free_port()];
    let [plain, usual, secure] = ports;
    let gateway = weir().start(&format!(
        "listeners:
- {{ id: plain, address: \"127.0.0.1:{plain}\", public_port: 8080 }}
- {{ id: usual, address: \"127.0.0.1:{usual}\", public_port: 80 }}
- {{ id: secure, address: \"127.0.0.1:{secure}\", tls: true, public_port: 8443 }}
{}
routes:
- {{ uri: /there, plugins: {{ redirect: {{ uri: \"$scheme://b.example$public_port_suffix/x\" }} }} }}
- {{ uri: /tls, plugins: {{ redirect: {{ http_to_https: true }} }} }}
- {{ uri: /said, plugins: {{ mocking: {{ response_example: \"$public_port $http_x_forwarded_port\" }} }} }}
",
        certificates(&[("a.example", "")])
    ));
    let location = |client: &mut Client, path: &str| {
        let answer = client.ask(format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n")).expect("an answer");
        answer.headers.get("location").map(str::to_owned)
    };
    let place = |text: &str| Some(text.to_owned());
    let mut client = Client::connect(loopback(plain));
    assert_eq!(location(&mut client, "/there"), place("http://b.example:8080/x"));
    assert_eq!(location(&mut client, "/tls"), place("https://a.example:8443/tls"));
    assert_eq!(ask(&mut client, "a.example", "/said"), (200, "8080 8080".to_owned()));
    assert_eq!(location(&mut Client::connect(loopback(usual)), "/there"), place("http://b.example/x"));
    let tls = TlsClient::trusting(Authority::of_tests());
    let mut client = Client::connect_tls(loopback(secure), &tls, "a.example").expect("a handshake");
    assert_eq!(location(&mut client, "/there"), place("https://b.example:8443/x"));
    drop(gateway);
}

/// Certificates for names, each with more keys of its entry.
fn certificates(names: &[(&str, &str)]) -> String {
    let mut yaml = "ssls:\n".to_owned();
    for (name, more) in names {
        let Identity { certificate, key } = Authority::of_tests().identity(&[name]);
        yaml += &format!("- {{ sni: \"{name}\", cert: {certificate:?}, key: {key:?}{more} }}\n");
    }
    yaml
}

/// Two listeners on a port, and a third on another.
fn secure(one: u16, two: u16, authority: &Authority) -> Gateway {
    let client = format!(", client: {{ ca: {:?} }}", authority.certificate);
    weir().start(&format!(
        "listeners:
- {{ id: a, address: \"127.0.0.1:{one}\", tls: true, hosts: [a.example] }}
- {{ id: wild, address: \"127.0.0.1:{one}\", tls: true, hosts: [\"*.w.example\"] }}
- {{ id: proved, address: \"127.0.0.1:{two}\", tls: true, hosts: [a.example] }}
{}
routes:
{}",
        certificates(&[
            ("a.example", ""),
            ("*.w.example", ""),
            ("a.example", &format!(", listeners: [proved]{client}"))
        ]),
        route("all", "uri: /*")
    ))
}

#[test]
fn a_connection_serves_only_the_hosts_of_its_listener() {
    let authority = Authority::new();
    let (one, two) = (free_port(), free_port());
    let _gateway = secure(one, two, &authority);
    let tls = TlsClient::trusting(Authority::of_tests());
    for (server_name, host, wanted) in [
        ("a.example", "a.example", 200),
        ("a.example", "b.w.example", 421),
        ("b.w.example", "c.w.example", 200),
        ("b.w.example", "a.example", 421),
        // No listener has it.
        ("a.example", "b.test", 404),
    ] {
        let mut client = Client::connect_tls(loopback(one), &tls, server_name).expect("a handshake");
        assert_eq!(ask(&mut client, host, "/").0, wanted, "{server_name} {host}");
    }
}

#[test]
fn a_listener_may_require_client_certificates_that_another_does_not() {
    let authority = Authority::new();
    let (one, two) = (free_port(), free_port());
    let _gateway = secure(one, two, &authority);
    let unknown = TlsClient::trusting(Authority::of_tests());
    let mut client = Client::connect_tls(loopback(one), &unknown, "a.example").expect("a handshake");
    assert_eq!(ask(&mut client, "a.example", "/").0, 200);
    let refused = Client::connect_tls(loopback(two), &unknown, "a.example")
        .map(|mut client| client.ask("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").map(|answer| answer.status));
    assert!(!matches!(refused, Ok(Ok(200))), "{refused:?}");
    let known = TlsClient::known_as(Authority::of_tests(), &authority.identity(&["client"]));
    let mut client = Client::connect_tls(loopback(two), &known, "a.example").expect("a handshake");
    assert_eq!(ask(&mut client, "a.example", "/").0, 200);
}

#[test]
fn listeners_that_cannot_share_a_port_are_refused() {
    let port = free_port();
    let gateway = weir().start("routes: []");
    let file = |more: &str| {
        let address = format!("address: \"127.0.0.1:{port}\"");
        format!("listeners: [{{ id: a, {address}, hosts: [a.example] }}, {{ id: b, {address}{more} }}]\nroutes: []\n")
    };
    for (more, why) in [
        (", hosts: [a.example]", "has the host `a.example`"),
        (", tls: true", "with other settings"),
        (", hosts: [\"a.*\"]", "is not a host"),
    ] {
        gateway.replace_file(&file(more));
        gateway.wait_stderr(why, |line| line.contains(why));
    }
    gateway.rewrite(&file(""));
    assert_eq!(asked(port, "b.example", "/").0, 404);
}
