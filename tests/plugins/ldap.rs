//! Names and passwords of a real OpenLDAP.

use std::io::Read;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Origin, TempDir, eventually, is_full};

use crate::slapd::Slapd;

/// A gateway with two routes. Requests to `/guarded/*` are checked with the directory, which can answer slowly on a busy machine; requests
/// to `/free` are not checked.
fn gateway(origin: &Origin, uri: &str, more: &str) -> Gateway {
    let timeout = if more.contains("timeout:") { "" } else { "timeout: 20000, " };
    let directory = TempDir::new();
    let roots = directory.write("roots.pem", &Authority::of_tests().certificate);
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("SSL_CERT_FILE", &roots.to_string_lossy()).start(&format!(
        "routes:
  - id: guarded
    uri: /guarded/*
    plugins: {{ ldap-auth: {{ base_dn: \"ou=users,dc=example,dc=org\", ldap_uri: \"{uri}\", {timeout}{more} }} }}
    upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }}
  - {{ id: free, uri: /free, upstream: {{ nodes: {{ \"{addr}\": 1 }}, type: roundrobin }} }}
consumers:
  - {{ username: jack, plugins: {{ ldap-auth: {{ user_dn: \"cn=jack,ou=users,dc=example,dc=org\" }} }} }}
  - {{ username: neill, plugins: {{ ldap-auth: {{ user_dn: 'cn=O\\2cNeill\\2c J,ou=users,dc=example,dc=org' }} }} }}
",
        addr = origin.addr()
    ))
}

/// Answers with who it was told the client is.
fn origin() -> Origin {
    Origin::serving(|request| {
        let told =
            ["x-consumer-username", "authorization"].map(|name| request.headers.get(name).unwrap_or("-").to_owned());
        Answer::ok(told.join(" "))
    })
}

fn request(name_and_password: &[u8]) -> String {
    let shown = STANDARD.encode(name_and_password);
    format!("GET /guarded/a HTTP/1.1\r\nHost: t\r\nAuthorization: Basic {shown}\r\n\r\n")
}

fn ask(gateway: &Gateway, name_and_password: impl AsRef<[u8]>) -> (u16, String) {
    let answer = gateway.client().ask(request(name_and_password.as_ref())).expect("an answer");
    (answer.status, answer.text())
}

#[test]
fn the_directory_knows_who_somebody_is() {
    let Some(slapd) = Slapd::start(None) else { return };
    let origin = origin();
    let gateway = gateway(&origin, &format!("127.0.0.1:{}", slapd.port), "");
    for _ in 0..2 {
        assert_eq!(ask(&gateway, "jack:jacks:word"), (200, "jack -".to_owned()), "from memory the second time");
        assert_eq!(ask(&gateway, "O,Neill, J:js"), (200, "neill -".to_owned()));
    }
    let refused = |said: &str| (401, format!("{{\"message\":\"{said}\"}}\n"));
    for wrong in ["jack:roses", "jack:Jacks:word", "nobody:a", "rose:jacks:word"] {
        assert_eq!(ask(&gateway, wrong), refused("Invalid user authorization"), "{wrong}");
    }
    assert_eq!(ask(&gateway, "rose:roses"), refused("Missing related consumer"));
    assert_eq!(ask(&gateway, "jack"), refused("Invalid authorization in request"));
    let nothing = gateway.get("/guarded/a");
    assert_eq!((nothing.status, nothing.headers.get("www-authenticate")), (401, Some("Basic realm=\"ldap\"")));
    assert_eq!(origin.requests().len(), 4);
}

#[test]
fn p07_nobody_gets_in_by_what_a_name_says() {
    let Some(slapd) = Slapd::start(None) else { return };
    let origin = origin();
    let gateway = gateway(&origin, &format!("127.0.0.1:{}", slapd.port), "cache_ttl: 0");
    assert_eq!(ask(&gateway, "jack:jacks:word").0, 200);
    for wrong in [
        &b"*)(uid=*))(|(uid=*:a"[..],
        b"admin)(&):a",
        b"\\00:a",
        b"\0:a",
        b"a,ou=x:a",
        b"jack,ou=users,dc=example,dc=org#:jacks:word",
        b"jack\0:jacks:word",
        b"*:jacks:word",
        b"jack:",
        b":",
        b":jacks:word",
        b"ja\xffck:jacks:word",
    ] {
        assert_eq!(ask(&gateway, wrong).0, 401, "{}", String::from_utf8_lossy(wrong));
    }
    assert_eq!(ask(&gateway, format!("{}:a", "x".repeat(5000))).0, 401);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn passwords_go_over_tls() {
    let identity = Authority::of_tests().identity(&["localhost"]);
    let Some(slapd) = Slapd::start(Some(&identity)) else { return };
    let origin = origin();
    for (uri, more) in [
        (format!("ldaps://localhost:{}", slapd.tls_port), ""),
        (format!("localhost:{}", slapd.tls_port), "use_tls: true"),
        (format!("localhost:{}", slapd.port), "start_tls: true"),
    ] {
        let gateway = gateway(&origin, &uri, &format!("cache_ttl: 0, {more}"));
        for _ in 0..3 {
            assert_eq!(ask(&gateway, "jack:jacks:word").0, 200, "{uri} {more}");
        }
        assert_eq!(ask(&gateway, "jack:a").0, 401);
    }
}

#[test]
fn f26_a_directory_that_cannot_be_trusted_is_told_nothing() {
    let stranger = Authority::new().identity(&["localhost"]);
    let (Some(slapd), Some(plain)) = (Slapd::start(Some(&stranger)), Slapd::start(None)) else { return };
    let origin = origin();
    for (uri, more) in [
        (format!("ldaps://localhost:{}", slapd.tls_port), ""),
        (format!("localhost:{}", slapd.port), "start_tls: true"),
        // It refuses StartTLS; it is not spoken to in the clear then.
        (format!("localhost:{}", plain.port), "start_tls: true"),
    ] {
        let gateway = gateway(&origin, &uri, more);
        assert_eq!(ask(&gateway, "jack:jacks:word").0, 503, "{uri} {more}");
        gateway.wait_stderr("it is said", |said| said.contains("ldap-auth: ldap"));
    }
    let lenient = gateway(&origin, &format!("localhost:{}", slapd.port), "start_tls: true, tls_verify: false");
    assert_eq!(ask(&lenient, "jack:jacks:word").0, 200);
}

#[test]
fn f26_a_frozen_directory_holds_only_its_own_route() {
    let Some(slapd) = Slapd::start(None) else { return };
    let origin = origin();
    let uri = format!("127.0.0.1:{}", slapd.port);
    let gateway = gateway(&origin, &uri, "timeout: 1000, connections: 4, cache_ttl: 3600");
    eventually("it is asked in time", DEADLINE, || ask(&gateway, "jack:jacks:word").0 == 200);
    slapd.freeze();
    let mut waiting: Vec<_> = (0..16).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(request(b"jack:other")));
    for _ in 0..50 {
        assert_eq!(gateway.get("/free").status, 200);
        assert_eq!(ask(&gateway, "jack:jacks:word").0, 200, "from memory");
    }
    for mut client in waiting {
        assert_eq!(client.response().expect("an answer").status, 503);
    }
    slapd.thaw();
    eventually("it answers again", DEADLINE, || ask(&gateway, "jack:other").0 == 401);
}

#[test]
fn f26_a_directory_that_is_gone_fails_closed_and_may_come_back() {
    let Some(slapd) = Slapd::start(None) else { return };
    let origin = origin();
    let port = slapd.port;
    let gateway = gateway(&origin, &format!("127.0.0.1:{port}"), "cache_ttl: 0");
    assert_eq!(ask(&gateway, "jack:jacks:word").0, 200);
    drop(slapd);
    assert_eq!([ask(&gateway, "jack:jacks:word").0, gateway.get("/free").status], [503, 200]);
    let said = format!("ldap-auth: ldap://127.0.0.1:{port}: ");
    gateway.wait_stderr("it is said", |text| text.contains(&said));
    let _back = Slapd::start_on(port, None);
    eventually("it is asked again", DEADLINE, || ask(&gateway, "jack:jacks:word").0 == 200);
}

#[test]
fn f26_connections_to_a_silent_directory_are_few_and_do_not_stay() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let uri = format!("{}", silent.local_addr().expect("it is bound"));
    let hold = thread::spawn(move || {
        let held: Vec<_> = silent.incoming().take(2).collect();
        held.into_iter().flatten().for_each(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    });
    let origin = origin();
    let gateway = gateway(&origin, &uri, "timeout: 500, connections: 2");
    let began = Instant::now();
    let mut waiting: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(request(b"jack:other")));
    for mut client in waiting {
        assert_eq!(client.response().expect("an answer").status, 503);
    }
    // They wait together, each for its own time; how long a busy machine takes beside that, only the full test judges.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(500), "{took:?}");
    assert!(!is_full() || took < Duration::from_millis(2_000), "{took:?}");
    hold.join().expect("each connection was ended by the gateway");
}

#[test]
fn a_directory_may_be_one_of_several_doors() {
    let Some(slapd) = Slapd::start(None) else { return };
    let origin = origin();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes:
  - uri: /*
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
    plugins:
      multi-auth:
        auth_plugins:
          - ldap-auth: {{ base_dn: \"ou=users,dc=example,dc=org\", ldap_uri: \"127.0.0.1:{}\", timeout: 5000, cache_ttl: 0 }}
          - key-auth: {{}}
consumers:
  - {{ username: jack, plugins: {{ ldap-auth: {{ user_dn: \"cn=jack,ou=users,dc=example,dc=org\" }} }} }}
  - {{ username: kim, plugins: {{ key-auth: {{ key: k1 }} }} }}
",
        origin.addr(),
        slapd.port
    ));
    let with_key = |fields: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
        let answer = gateway.client().ask(request).expect("an answer");
        (answer.status, answer.text())
    };
    assert_eq!(ask(&gateway, "jack:jacks:word"), (200, "jack -".to_owned()));
    assert_eq!(with_key("apikey: k1\r\n"), (200, "kim -".to_owned()));
    assert_eq!(with_key(""), (401, "{\"message\":\"Authorization Failed\"}\n".to_owned()));
    assert_eq!(ask(&gateway, "jack:a").0, 401);
    slapd.freeze();
    assert_eq!(with_key("apikey: k1\r\n").0, 200, "the directory was not shown anything");
    let both = format!("apikey: k1\r\nAuthorization: Basic {}\r\n", STANDARD.encode("jack:jacks:word"));
    assert_eq!(with_key(&both).0, 503, "nobody is let in by luck");
}
