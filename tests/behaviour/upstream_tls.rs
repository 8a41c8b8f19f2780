//! What TLS to upstreams has of its own: whom to believe, who we are, and which connections may be used again.

use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Identity, Origin, Reading, TlsServer, eventually};

/// A route to these nodes, with more fields of its upstream.
fn route(nodes: &[&Origin], more: &str) -> String {
    let nodes: Vec<String> = nodes.iter().map(|origin| format!("\"{}\": 1", origin.addr())).collect();
    format!("routes:\n  - {{ uri: /*, upstream: {{ scheme: https, nodes: {{ {} }}, {more} }} }}\n", nodes.join(", "))
}

fn ca(authority: &Authority) -> String {
    format!("tls: {{ ca: {:?} }}", authority.certificate)
}

fn start(yaml: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(yaml)
}

/// Status and body of a request for a host.
fn ask(gateway: &Gateway, host: &str) -> (u16, String) {
    let answer = gateway.client().ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("an answer");
    (answer.status, answer.text())
}

/// An origin whose answers say whom it was asked for, who asked, and whether it had met them before. Each connection is
/// closed after one answer if `once`.
fn origin(tls: &TlsServer, once: bool) -> Origin {
    Origin::scripted_tls(tls, Reading::Strict, move |connection| {
        while connection.request().is_ok() {
            let agreed = connection.agreed().expect("TLS");
            let name = agreed.server_name.as_deref().unwrap_or("-");
            let body = format!("{} {name} {} {}", connection.index, agreed.resumed, agreed.certificates.len());
            let close = if once { "Connection: close\r\n" } else { "" };
            let head = format!("HTTP/1.1 200 OK\r\n{close}Content-Length: {}\r\n\r\n", body.len());
            if connection.send(head + &body).is_err() || once {
                return;
            }
        }
    })
}

#[test]
fn endpoints_prove_who_they_are_unless_nobody_asks() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let origin = origin(&TlsServer::new(&authority.identity(&["a.test"])), false);
    let gateway = start(&route(&[&origin], &ca(&authority)));
    assert_eq!(ask(&gateway, "a.test").0, 200);
    assert_eq!(ask(&gateway, "b.test").0, 502, "somebody else");
    let whom = format!("the endpoint {} has no certificate for the host of a request, b.test: ", origin.addr());
    let said = gateway.wait_stderr("whom it did not believe", |line| line.contains(&whom));
    assert!(said.contains("not valid for name"), "{said}");

    for (more, settings, status) in [
        (ca(&stranger), String::new(), 502),
        ("retries: 0".to_owned(), String::new(), 502),
        ("tls: { verify: false }".to_owned(), String::new(), 200),
        ("retries: 0".to_owned(), "upstream_tls_verify: false\n".to_owned(), 200),
        ("tls: { verify: true }".to_owned(), "upstream_tls_verify: false\n".to_owned(), 502),
        ("retries: 0".to_owned(), format!("ssl_trusted_certificate: {:?}\n", authority.certificate), 200),
    ] {
        gateway.rewrite(&format!("{settings}{}", route(&[&origin], &more)));
        assert_eq!(ask(&gateway, "a.test").0, status, "{more} {settings}");
    }
}

#[test]
fn server_name_and_subject_alt_names_replace_the_host() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let identity = authority.identity(&["internal.test", "*.wild.test"]);
    let origin = origin(&TlsServer::new(&identity), false);
    let tls = |authority: &Authority, more: &str| {
        route(&[&origin], &format!("tls: {{ ca: {:?}, {more} }}", authority.certificate))
    };
    let gateway = start(&tls(&authority, "server_name: Internal.test"));
    assert_eq!(ask(&gateway, "a.test"), (200, "0 internal.test false 0".into()));
    for (issuer, more, status) in [
        (&authority, "server_name: other.test", 502),
        (&stranger, "server_name: internal.test", 502),
        (&authority, "subject_alt_names: [other.test, internal.test]", 200),
        (&authority, "server_name: any.test, subject_alt_names: [a.wild.test]", 200),
        (&authority, "server_name: internal.test, subject_alt_names: [other.test]", 502),
        (&authority, "server_name: internal.test, subject_alt_names: [\"spiffe://internal.test/a\"]", 502),
        (&stranger, "subject_alt_names: [internal.test]", 502),
    ] {
        gateway.rewrite(&tls(issuer, more));
        assert_eq!(ask(&gateway, "a.test").0, status, "{more}");
    }
}

#[test]
fn an_endpoint_has_the_name_it_is_known_by() {
    let authority = Authority::new();
    let of = |name: &str| origin(&TlsServer::new(&authority.identity(&[name])), false);
    let (node, address, rewritten) = (of("localhost"), of("127.0.0.1"), of("x.test"));
    let ca = ca(&authority);
    let by_name = format!("\"localhost:{}\": 1", node.addr().port());
    let gateway =
        start(&format!("routes:\n  - {{ uri: /*, upstream: {{ scheme: https, nodes: {{ {by_name} }}, {ca} }} }}\n"));
    // On a busy machine, the lookup of the name may end after the node is ready.
    eventually("the name is looked up", DEADLINE, || ask(&gateway, "whoever.test").0 != 503);
    assert_eq!(ask(&gateway, "whoever.test"), (200, "0 localhost false 0".into()), "whatever the client says");
    gateway.rewrite(&route(&[&address], &format!("pass_host: node, {ca}")));
    assert_eq!(ask(&gateway, "whoever.test"), (200, "0 - false 0".into()), "addresses are not asked for by name");
    gateway.rewrite(&route(&[&rewritten], &format!("pass_host: rewrite, upstream_host: x.test, {ca}")));
    assert_eq!(ask(&gateway, "whoever.test"), (200, "0 x.test false 0".into()));
}

#[test]
fn connections_are_used_again_for_whom_they_were_made() {
    let authority = Authority::new();
    let origin = origin(&TlsServer::new(&authority.identity(&["a.test", "b.test"])), false);
    let gateway = start(&route(&[&origin], &ca(&authority)));
    for (host, body) in [
        ("a.test", "0 a.test false 0"),
        ("a.test", "0 a.test false 0"),
        ("b.test", "1 b.test false 0"),
        ("a.test", "0 a.test false 0"),
        ("B.test:1", "1 b.test false 0"),
    ] {
        assert_eq!(ask(&gateway, host), (200, body.into()));
    }
    // What was verified on other terms, or not at all, is another pool.
    gateway.rewrite(&route(&[&origin], "tls: { verify: false }"));
    assert_eq!(ask(&gateway, "a.test"), (200, "2 a.test false 0".into()));
}

#[test]
fn the_name_is_that_of_the_host_which_the_upstream_gets() {
    let authority = Authority::new();
    let origin = origin(&TlsServer::new(&authority.identity(&["backend.test", "a.test"])), false);
    let gateway = start(&format!(
        "routes:\n  - uri: /*\n    plugins: {{ proxy-rewrite: {{ host: \"Backend.test:8443\" }} }}\n    \
         upstream: {{ scheme: https, nodes: {{ \"{}\": 1 }}, {} }}\n",
        origin.addr(),
        ca(&authority)
    ));
    for host in ["www.test", "a.test", "[::1]"] {
        assert_eq!(ask(&gateway, host), (200, "0 backend.test false 0".into()), "{host}");
    }
}

#[test]
fn a_connection_for_a_host_that_is_no_name_is_used_again() {
    let authority = Authority::new();
    let origin = origin(&TlsServer::new(&authority.identity(&["a.test"])), false);
    let gateway = start(&route(&[&origin], "tls: { verify: false }"));
    for (host, body) in
        [("[::1]", "0 - false 0"), ("a!b", "1 - false 0"), ("[::1]", "0 - false 0"), ("a!b", "1 - false 0")]
    {
        assert_eq!(ask(&gateway, host), (200, body.into()), "{host}");
    }
}

#[test]
fn connections_for_other_names_do_not_fill_the_pool() {
    let authority = Authority::new();
    let origin = origin(&TlsServer::new(&authority.identity(&["a.test"])), false);
    let gateway = start(&route(&[&origin], "tls: { verify: false }, keepalive_pool: { size: 2 }"));
    for (host, body) in [
        ("x.test", "0 x.test false 0"),
        ("y.test", "1 y.test false 0"),
        ("a.test", "2 a.test false 0"),
        ("a.test", "2 a.test false 0"),
        ("y.test", "1 y.test false 0"),
        ("x.test", "3 x.test true 0"),
    ] {
        assert_eq!(ask(&gateway, host), (200, body.into()), "{host}");
    }
}

#[test]
fn an_endpoint_is_not_blamed_for_the_hosts_that_clients_ask_for() {
    let authority = Authority::new();
    let tls = TlsServer::new(&authority.identity(&["a.test"]));
    let (one, two) = (origin(&tls, true), origin(&tls, true));
    let strict = format!("all_down: refuse, {}", ca(&authority));
    let gateway = start(&route(&[&one, &two], &strict));
    for _ in 0..8 {
        assert_eq!(ask(&gateway, "evil.test").0, 502);
    }
    assert!(gateway.metrics().sum("weir_upstream_retries_total", &[]) > 0.0, "another endpoint may know the host");
    for _ in 0..8 {
        assert_eq!(ask(&gateway, "a.test").0, 200);
    }
    assert_eq!((one.requests().len(), two.requests().len()), (4, 4), "both are in rotation");

    // Some end the connection instead of saying that they do not know the name; the first one that does not is the proof that
    // the others are at fault.
    let plain = || Origin::serving(|_| Answer::ok("in the clear"));
    let (third, fourth) = (plain(), plain());
    gateway.rewrite(&route(&[&third, &fourth], &strict));
    for _ in 0..8 {
        assert_eq!(ask(&gateway, "a.test").0, 502, "503 would mean that both are out of rotation");
    }
    gateway.rewrite(&route(&[&third, &one], &strict));
    for _ in 0..8 {
        assert_eq!(ask(&gateway, "a.test").0, 200);
    }
    let out = format!("endpoint={}", third.addr());
    gateway.wait_stderr("that it is out", |line| line.contains("out of rotation") && line.contains(&out));

    // So is an endpoint whose certificate is for another host than those of the others.
    let wrong = origin(&TlsServer::new(&authority.identity(&["b.test"])), true);
    gateway.rewrite(&route(&[&wrong, &one], &strict));
    for _ in 0..8 {
        assert_eq!(ask(&gateway, "a.test").0, 200);
    }
    let out = format!("endpoint={}", wrong.addr());
    gateway.wait_stderr("that it is out", |line| line.contains("out of rotation") && line.contains(&out));
}

#[test]
fn sessions_are_resumed() {
    let authority = Authority::new();
    let origin = origin(&TlsServer::new(&authority.identity(&["a.test"])), true);
    let gateway = start(&route(&[&origin], &ca(&authority)));
    assert_eq!(ask(&gateway, "a.test"), (200, "0 a.test false 0".into()));
    assert_eq!(ask(&gateway, "a.test"), (200, "1 a.test true 0".into()));
    gateway.rewrite(&route(&[&origin], &format!("retries: 1, {}", ca(&authority))));
    assert_eq!(ask(&gateway, "a.test"), (200, "2 a.test true 0".into()), "across a reload");
}

#[test]
fn upstreams_learn_who_we_are() {
    let (authority, known) = (Authority::new(), Authority::new());
    let origin = origin(&TlsServer::asking(&authority.identity(&["a.test"]), &known), false);
    let Identity { certificate, key } = known.identity(&["gateway"]);
    let trusted = format!("ssl_trusted_certificate: {:?}\n", authority.certificate);
    let own = route(&[&origin], &format!("tls: {{ client_cert: {certificate:?}, client_key: {key:?} }}"));
    let gateway = start(&format!("{trusted}{own}"));
    assert_eq!(ask(&gateway, "a.test"), (200, "0 a.test false 1".into()));
    let named = route(&[&origin], "tls: { client_cert_id: me }");
    let ssls = format!("ssls:\n  - {{ id: me, type: client, cert: {certificate:?}, key: {key:?} }}\n");
    gateway.rewrite(&format!("{trusted}{ssls}{named}"));
    assert_eq!(ask(&gateway, "a.test").0, 200);
    gateway.rewrite(&format!("{trusted}{}", route(&[&origin], "retries: 0")));
    assert_eq!(ask(&gateway, "a.test").0, 502, "who shows nothing is refused");
}

#[test]
fn another_endpoint_is_tried_where_there_is_no_tls_to_be_had() {
    let authority = Authority::new();
    let good = origin(&TlsServer::new(&authority.identity(&["a.test"])), true);
    let plain = Origin::serving(|_| Answer::ok("in the clear"));
    let gateway = start(&route(&[&plain, &good], &ca(&authority)));
    for _ in 0..6 {
        let answer =
            gateway.client().ask("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi").expect("an answer");
        assert_eq!(answer.status, 200, "nothing of the request was seen, so any method may be sent elsewhere");
    }
    assert_eq!(good.requests().len(), 6);
    gateway.rewrite(&route(&[&plain], &ca(&authority)));
    assert_eq!(ask(&gateway, "a.test").0, 502);
}
