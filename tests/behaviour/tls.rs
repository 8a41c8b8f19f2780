//! What TLS from clients has of its own: certificates by name, proofs of clients, changes while serving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Gateway, Identity, KeyKind, Origin, TlsClient, eventually, scaled,
};

/// An origin that says what it was told about the client.
fn origin() -> Origin {
    Origin::serving(|request| {
        let told = ["X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Tls"];
        let told = told.map(|name| request.headers.get(name).unwrap_or("-"));
        Answer::ok(format!("{} {}", request.target, told.join(" ")))
    })
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}

/// An entry of `ssls`, with more lines of its own.
fn ssl(names: &str, identity: &Identity, more: &str) -> String {
    let (certificate, key) = (indented(&identity.certificate), indented(&identity.key));
    format!("  - snis: [{names}]\n    cert: |\n{certificate}    key: |\n{key}{more}")
}

fn clients(authority: &Authority, more: &str) -> String {
    format!("    client:\n      ca: |\n{}{more}", indented(&authority.certificate).replace("      ", "        "))
}

const LISTEN: &str = "listen: [\"127.0.0.1:0\", { address: \"127.0.0.1:0\", tls: true }]\n";

fn file(ssls: &str, origin: &Origin) -> String {
    format!(
        "{LISTEN}ssls:\n{ssls}routes:\n  - uri: /*\n    upstream: {{ nodes: {{ \"{}\": 1 }} }}\n    plugins: {{ \
         proxy-rewrite: {{ headers: {{ set: {{ X-Tls: \"$ssl_protocol/$ssl_server_name/$ssl_client_verify/\
         $ssl_session_reused/$ssl_client_s_dn\" }} }} }} }}\n",
        origin.addr()
    )
}

fn gateway(ssls: &str, origin: &Origin) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(ssls, origin))
}

/// Replaces the file by one that must be refused.
fn rewrite_refused(gateway: &Gateway, yaml: &str) {
    let failed = || gateway.status()["configuration"]["reloads_failed"].as_u64().expect("a number");
    let before = failed();
    gateway.replace_file(yaml);
    eventually("the file is refused", DEADLINE, || failed() > before);
}

fn connect(gateway: &Gateway, tls: &TlsClient, name: &str) -> Result<Client, String> {
    Client::connect_tls(gateway.tls_addr(), tls, name).map_err(|error| error.to_string())
}

/// A request for `host` on this connection: status and body.
fn ask(client: &mut Client, host: &str, path: &str) -> Result<(u16, String), String> {
    let answer =
        client.ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).map_err(|error| error.to_string())?;
    Ok((answer.status, answer.text()))
}

#[test]
fn certificates_are_chosen_by_name() {
    let (authority, origin) = (Authority::new(), origin());
    let (exact, wild, rest) =
        (authority.identity(&["a.test"]), authority.identity(&["*.w.test"]), authority.identity(&["127.0.0.1"]));
    let named = [ssl("a.test", &exact, ""), ssl("\"*.w.test\"", &wild, "")].concat();
    let gateway = gateway(&[&*named, &ssl("\"*\"", &rest, "")].concat(), &origin);
    let tls = TlsClient::trusting(&authority);
    for name in ["a.test", "A.test", "x.w.test", "127.0.0.1"] {
        let mut client = connect(&gateway, &tls, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(ask(&mut client, name, "/").expect("an answer").0, 200, "{name}");
    }
    for name in ["b.test", "x.y.w.test", "w.test"] {
        let error = connect(&gateway, &tls, name).err().expect("no host matches the default's certificate");
        assert!(error.contains("not valid for name"), "{name}: {error}");
    }
    gateway.rewrite(&file(&named, &origin));
    for name in ["b.test", "127.0.0.1"] {
        let error = connect(&gateway, &tls, name).err().expect("there is no default any more");
        assert!(error.contains("UnrecognisedName"), "{name}: {error}");
    }
}

#[test]
fn upstreams_and_variables_are_told() {
    let (authority, origin) = (Authority::new(), origin());
    let gateway = gateway(&ssl("a.test", &authority.identity(&["a.test"]), ""), &origin);
    let port = gateway.tls_addr().port();
    let tls = TlsClient::trusting(&authority);
    let mut client = connect(&gateway, &tls, "a.test").expect("a certificate");
    let told = ask(&mut client, "a.test:1", "/x").expect("an answer").1;
    assert_eq!(told, "/x https a.test:1 1 TLSv1.3/a.test/NONE/./", "the port that the client sees");
    let mut client = connect(&gateway, &tls, "a.test").expect("a certificate");
    let told = ask(&mut client, "a.test", "/x").expect("an answer").1;
    assert_eq!(told, format!("/x https a.test {port} TLSv1.3/a.test/NONE/r/"), "the session is resumed");
    let mut old = connect(&gateway, &TlsClient::old(&authority), "a.test").expect("a certificate");
    assert!(ask(&mut old, "a.test", "/").expect("an answer").1.contains("TLSv1.2/a.test/NONE/./"));
    let plain = gateway.get("/x").text();
    assert!(plain.starts_with("/x http t "), "{plain}");
}

#[test]
fn both_kinds_of_keys_stand_side_by_side() {
    let (authority, origin) = (Authority::new(), origin());
    let rsa = authority.identity_with(&["a.test"], KeyKind::Rsa, |_| ());
    let more = format!(
        "    certs:\n      - |\n{}    keys:\n      - |\n{}",
        indented(&rsa.certificate).replace("      ", "        "),
        indented(&rsa.key).replace("      ", "        ")
    );
    let gateway = gateway(&ssl("a.test", &authority.identity(&["a.test"]), &more), &origin);
    let mut old = connect(&gateway, &TlsClient::old(&authority), "a.test").expect("a certificate");
    assert_eq!(ask(&mut old, "a.test", "/").expect("an answer").0, 200);
    assert!(old.agreed().expect("TLS").cipher.contains("ECDHE_ECDSA"), "ECDSA goes first: {:?}", old.agreed());
}

#[test]
fn versions_are_those_asked_for() {
    let (authority, origin) = (Authority::new(), origin());
    let identity = authority.identity(&["a.test"]);
    let gateway = gateway(&ssl("a.test", &identity, "    ssl_protocols: [TLSv1.3]\n"), &origin);
    assert!(connect(&gateway, &TlsClient::old(&authority), "a.test").is_err());
    let client = connect(&gateway, &TlsClient::trusting(&authority), "a.test").expect("a certificate");
    assert_eq!(client.agreed().expect("TLS").version, "TLSv1.3");
    gateway.rewrite(&file(&ssl("a.test", &identity, "    ssl_protocols: [TLSv1.2]\n"), &origin));
    let client = connect(&gateway, &TlsClient::trusting(&authority), "a.test").expect("a certificate");
    assert_eq!(client.agreed().expect("TLS").version, "TLSv1.2");
}

#[test]
fn clients_prove_who_they_are() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let identity = authority.identity(&["m.test"]);
    let gateway = gateway(&ssl("m.test", &identity, &clients(&known, "")), &origin);
    let jack = TlsClient::known_as(&authority, &known.identity(&["jack"]));
    let mut client = connect(&gateway, &jack, "m.test").expect("a certificate");
    let told = ask(&mut client, "m.test", "/").expect("an answer").1;
    assert!(told.ends_with("TLSv1.3/m.test/SUCCESS/./CN=jack"), "{told}");
    let mut client = connect(&gateway, &jack, "m.test").expect("a certificate");
    let told = ask(&mut client, "m.test", "/").expect("an answer").1;
    assert!(told.ends_with("TLSv1.3/m.test/SUCCESS/r/CN=jack"), "known again from the ticket: {told}");
    // In TLS 1.3 the client is done before it is refused, so the refusal comes with the answer.
    let stranger = TlsClient::known_as(&authority, &authority.identity(&["jack"]));
    for tls in [TlsClient::trusting(&authority), stranger, TlsClient::old(&authority)] {
        let outcome = connect(&gateway, &tls, "m.test").and_then(|mut client| ask(&mut client, "m.test", "/"));
        assert!(outcome.is_err(), "{outcome:?}");
    }
    assert_eq!(origin.requests().len(), 2);
}

/// A ticket contains the client's certificate, and each resumption yields further tickets.
#[test]
fn a_session_does_not_outlive_the_certificate_that_it_began_with() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let except = clients(&known, "      skip_mtls_uri_regex: [\"^/open/\"]\n");
    let ssls = [
        ssl("m.test", &authority.identity(&["m.test"]), &clients(&known, "")),
        ssl("some.test", &authority.identity(&["some.test"]), &except),
    ];
    let gateway = gateway(&ssls.concat(), &origin);
    let told = |tls: &TlsClient, name: &str| {
        connect(&gateway, tls, name).and_then(|mut client| ask(&mut client, name, "/")).map(|(_, told)| told)
    };
    // On a busy machine a certificate may expire before it was shown twice; then a longer one is tried.
    for lifetime in [4, 8, 16, 32, 64].map(Duration::from_secs) {
        let end = SystemTime::now() + lifetime;
        let jack = known.identity_with(&["jack"], KeyKind::Ecdsa, |params| params.not_after = end.into());
        let both = [TlsClient::known_as(&authority, &jack), TlsClient::old_known_as(&authority, &jack)];
        let all = || both.iter().flat_map(|tls| ["m.test", "some.test"].map(|name| (tls, name)));
        let is_resumed = |(tls, name): (&TlsClient, &str)| {
            told(tls, name).is_ok_and(|told| told.contains("/SUCCESS/./"))
                && told(tls, name).is_ok_and(|told| told.contains("/SUCCESS/r/"))
        };
        if !all().all(is_resumed) {
            continue;
        }
        eventually("it has expired", DEADLINE + lifetime, || SystemTime::now() > end + Duration::from_secs(1));
        let before = origin.requests().len();
        for (tls, name) in all() {
            told(tls, name).expect_err("the certificate has expired");
        }
        assert_eq!(origin.requests().len(), before);
        return;
    }
    panic!("no session was resumed");
}

#[test]
fn some_paths_need_no_proof() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let except = clients(&known, "      skip_mtls_uri_regex: [\"^/open/\"]\n");
    let gateway = gateway(&ssl("m.test", &authority.identity(&["m.test"]), &except), &origin);
    let tls = TlsClient::trusting(&authority);
    for (path, status) in [("/open/door", 200), ("/closed", 400), ("/closed?/open/", 400), ("/open/../closed", 400)] {
        let mut client = connect(&gateway, &tls, "m.test").expect("a certificate");
        assert_eq!(ask(&mut client, "m.test", path).expect("an answer").0, status, "{path}");
    }
    let jack = TlsClient::known_as(&authority, &known.identity(&["jack"]));
    let mut client = connect(&gateway, &jack, "m.test").expect("a certificate");
    assert_eq!(ask(&mut client, "m.test", "/closed").expect("an answer").0, 200);
    assert_eq!(origin.requests().len(), 2);
}

/// H11: the name in the handshake decides what was proved, the host in the request what must have been.
#[test]
fn h11_a_host_that_asks_for_proof_is_not_reached_under_another_name() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let both = authority.identity(&["open.test", "m.test", "other.test"]);
    let other = Authority::new();
    let ssls = [
        ssl("open.test", &both, ""),
        ssl("m.test", &both, &clients(&known, "")),
        ssl("other.test", &both, &clients(&other, "")),
    ];
    let gateway = gateway(&ssls.concat(), &origin);
    let jack = TlsClient::known_as(&authority, &known.identity(&["jack"]));
    for (name, host, status) in [
        ("open.test", "open.test", 200),
        ("open.test", "m.test", 421),
        ("open.test", "M.TEST:443", 421),
        ("m.test", "m.test", 200),
        ("m.test", "open.test", 200),
        ("m.test", "other.test", 421),
        ("m.test", "unlisted.test", 200),
    ] {
        let mut client = connect(&gateway, &jack, name).expect("a certificate");
        assert_eq!(ask(&mut client, host, "/").expect("an answer").0, status, "{host} over {name}");
    }
    // A session of an open name does not become one of a closed name.
    let without_certificate = TlsClient::trusting(&authority);
    let mut client = connect(&gateway, &without_certificate, "open.test").expect("a certificate");
    assert_eq!(ask(&mut client, "open.test", "/").expect("an answer").0, 200);
    let outcome =
        connect(&gateway, &without_certificate, "m.test").and_then(|mut client| ask(&mut client, "m.test", "/"));
    assert!(outcome.is_err(), "{outcome:?}");
}

/// H11: wildcards in `hosts` of routes are for any number of labels, those of `ssls` for one.
#[test]
fn h11_a_host_far_below_a_closed_wildcard_is_not_reached_under_an_open_name() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let both = authority.identity(&["open.test", "*.closed.test", "*.fair.closed.test", "x.y.closed.test"]);
    let other = Authority::new();
    let named = [
        ssl("open.test", &both, ""),
        ssl("\"*.closed.test\"", &both, &clients(&known, "")),
        ssl("\"*.fair.closed.test\", x.y.closed.test", &both, ""),
    ]
    .concat();
    let without_certificate = TlsClient::trusting(&authority);
    let jack = TlsClient::known_as(&authority, &known.identity(&["jack"]));
    // What clients get who ask for a name without an entry does not matter to names below the wildcard.
    for default in ["".to_owned(), ssl("\"*\"", &both, ""), ssl("\"*\"", &both, &clients(&other, ""))] {
        let gateway = gateway(&(named.clone() + &default), &origin);
        for (tls, name, host, status) in [
            (&without_certificate, "open.test", "open.test", 200),
            (&without_certificate, "open.test", "a.closed.test", 421),
            (&without_certificate, "open.test", "a.b.closed.test", 421),
            (&without_certificate, "open.test", "A.B.c.Closed.test.:443", 421),
            (&jack, "open.test", "a.b.closed.test", 421),
            (&jack, "a.closed.test", "a.b.closed.test", 200),
            // Their own certificates open these, and those alone.
            (&without_certificate, "open.test", "x.y.closed.test", 200),
            (&without_certificate, "open.test", "a.fair.closed.test", 200),
            (&without_certificate, "open.test", "a.b.fair.closed.test", 421),
        ] {
            let mut client = connect(&gateway, tls, name).expect("a certificate");
            assert_eq!(ask(&mut client, host, "/").expect("an answer").0, status, "{host} over {name}");
        }
    }
}

/// H11: where proof is a matter of paths, a host that has no certificate of its own is no way around it.
#[test]
fn h11_the_rule_of_the_handshake_holds_for_hosts_without_one() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let both = authority.identity(&["open.test", "m.test"]);
    let except = clients(&known, "      skip_mtls_uri_regex: [\"^/open/\"]\n");
    let ssls = [ssl("m.test", &both, &except), ssl("open.test", &both, "")].concat();
    let gateway = gateway(&ssls, &origin);
    let (without_certificate, jack) =
        (TlsClient::trusting(&authority), TlsClient::known_as(&authority, &known.identity(&["jack"])));
    let requests = [
        ("GET /closed HTTP/1.1\r\nHost: unlisted.test\r\n\r\n", 400),
        ("GET /closed HTTP/1.1\r\nHost: sub.m.test\r\n\r\n", 400),
        ("GET /closed HTTP/1.1\r\nHost: [::1]\r\n\r\n", 400),
        ("GET /closed HTTP/1.0\r\n\r\n", 400),
        ("GET /open/door HTTP/1.1\r\nHost: unlisted.test\r\n\r\n", 200),
        ("GET /open/door HTTP/1.0\r\n\r\n", 200),
        // It has a certificate of its own, and anybody may come to it.
        ("GET /closed HTTP/1.1\r\nHost: open.test\r\n\r\n", 200),
    ];
    for (request, status) in requests {
        let mut client = connect(&gateway, &without_certificate, "m.test").expect("a certificate");
        assert_eq!(client.ask(request).expect("an answer").status, status, "{request}");
        let mut client = connect(&gateway, &jack, "m.test").expect("a certificate");
        assert_eq!(client.ask(request).expect("an answer").status, 200, "{request}");
        let mut client = connect(&gateway, &without_certificate, "open.test").expect("a certificate");
        assert_eq!(client.ask(request).expect("an answer").status, 200, "{request}");
    }
    // A connection from before is subject to what holds now.
    let mut client = connect(&gateway, &without_certificate, "open.test").expect("a certificate");
    assert_eq!(ask(&mut client, "unlisted.test", "/").expect("an answer").0, 200);
    gateway.rewrite(&file(
        &[ssl("m.test", &both, &except), ssl("open.test", &both, &clients(&known, ""))].concat(),
        &origin,
    ));
    assert_eq!(ask(&mut client, "unlisted.test", "/").expect("an answer").0, 421);
}

#[test]
fn a_session_that_proved_nothing_is_not_resumed_where_proof_was_asked_for_since() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let identity = authority.identity(&["m.test"]);
    let gateway = gateway(&ssl("m.test", &identity, ""), &origin);
    let tls = TlsClient::trusting(&authority);
    let mut open = connect(&gateway, &tls, "m.test").expect("a certificate");
    assert_eq!(ask(&mut open, "m.test", "/").expect("an answer").0, 200);
    gateway.rewrite(&file(&ssl("m.test", &identity, &clients(&known, "")), &origin));
    let outcome = connect(&gateway, &tls, "m.test").and_then(|mut client| ask(&mut client, "m.test", "/"));
    assert!(outcome.is_err(), "{outcome:?}");
    assert_eq!(ask(&mut open, "m.test", "/").expect("an answer").0, 421, "nor is the connection from before served");
}

/// CVE-2025-23419.
#[test]
fn h11_a_session_of_one_name_is_not_resumed_under_another() {
    let (authority, known, origin) = (Authority::new(), Authority::new(), origin());
    let identity = authority.identity(&["a.test", "m.test"]);
    let ssls = [ssl("a.test", &identity, ""), ssl("m.test", &identity, &clients(&known, ""))].concat();
    let gateway = gateway(&ssls, &origin);
    for tls in [TlsClient::trusting(&authority), TlsClient::old(&authority)] {
        let tls = tls.mixing_sessions();
        for is_known in [false, true] {
            let mut client = connect(&gateway, &tls, "a.test").expect("a certificate");
            assert_eq!(ask(&mut client, "a.test", "/").expect("an answer").0, 200);
            assert_eq!(client.agreed().expect("TLS").resumed, is_known);
        }
        let outcome = connect(&gateway, &tls, "m.test").and_then(|mut client| ask(&mut client, "m.test", "/"));
        assert!(outcome.is_err(), "{outcome:?}");
    }
    assert_eq!(origin.requests().len(), 4);
}

#[test]
fn tickets_outlive_reloads() {
    let (authority, origin) = (Authority::new(), origin());
    let names = ["a.test"];
    let gateway = gateway(&ssl("a.test", &authority.identity(&names), ""), &origin);
    for tls in [TlsClient::trusting(&authority), TlsClient::old(&authority)] {
        let mut client = connect(&gateway, &tls, "a.test").expect("a certificate");
        assert_eq!(ask(&mut client, "a.test", "/").expect("an answer").0, 200);
        gateway.rewrite(&file(&ssl("a.test", &authority.identity(&names), ""), &origin));
        let mut client = connect(&gateway, &tls, "a.test").expect("a certificate");
        assert_eq!(ask(&mut client, "a.test", "/").expect("an answer").0, 200);
        assert!(client.agreed().expect("TLS").resumed);
    }
}

#[test]
fn a_bad_certificate_is_refused_and_the_old_one_stays() {
    let (authority, origin) = (Authority::new(), origin());
    let (good, other) = (authority.identity(&["a.test"]), authority.identity(&["a.test"]));
    let gateway = gateway(&ssl("a.test", &good, ""), &origin);
    let mixed = Identity { certificate: good.certificate.clone(), key: other.key };
    rewrite_refused(&gateway, &file(&ssl("a.test", &mixed, ""), &origin));
    gateway.wait_stderr("it is said", |text| text.contains("ssls[0].key: is not the key of this certificate"));
    assert!(connect(&gateway, &TlsClient::trusting(&authority), "a.test").is_ok());
}

#[test]
fn certificates_in_files_are_followed() {
    let (authority, origin) = (Authority::new(), origin());
    let newer = Authority::new();
    let first = authority.identity(&["a.test"]);
    let launcher = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).env("A_KEY", &first.key);
    let directory = weir_testkit::TempDir::new();
    let certificate = directory.write("a.pem", &first.certificate);
    let ssls = format!("  - {{ sni: a.test, cert: \"{}\", key: \"$env://A_KEY\" }}\n", certificate.display());
    let gateway = launcher.start(&file(&ssls, &origin));
    assert!(connect(&gateway, &TlsClient::trusting(&authority), "a.test").is_ok());

    let second = newer.identity(&["a.test"]);
    let key = directory.write("a.key", &second.key);
    let ssls = format!("  - {{ sni: a.test, cert: \"{}\", key: \"{}\" }}\n", certificate.display(), key.display());
    rewrite_refused(&gateway, &file(&ssls, &origin));
    // Then the certificate comes, too, and nobody touches the configuration itself.
    directory.write("a.pem", &second.certificate);
    let tls = TlsClient::trusting(&newer);
    eventually("the new certificate is shown", DEADLINE, || connect(&gateway, &tls, "a.test").is_ok());
}

/// In full as many as a hosting provider has; `--nocapture` shows how long they took.
#[test]
fn many_certificates_are_loaded_and_each_is_shown_to_whom_it_concerns() {
    let (authority, origin) = (Authority::new(), origin());
    let name = |number: usize| format!("host{number}.test");
    let many = scaled(300, 10_000);
    let ssls: String = (0..many).map(|number| ssl(&name(number), &authority.identity(&[&name(number)]), "")).collect();
    let gateway = gateway(&ssls, &origin);
    let tls = TlsClient::trusting(&authority);
    let all_are_shown = || {
        for number in [0, 1, many / 2, many - 1] {
            let mut client = connect(&gateway, &tls, &name(number)).expect("its own certificate");
            assert_eq!(ask(&mut client, &name(number), "/").expect("an answer").0, 200);
        }
        assert!(connect(&gateway, &tls, &name(many)).is_err(), "there is none for it");
    };
    all_are_shown();
    println!("{many} certificates: {} ms", gateway.status()["configuration"]["publish_ms"]);
    gateway.rewrite(&file(&[&*ssls, &ssl("more.test", &authority.identity(&["more.test"]), "")].concat(), &origin));
    all_are_shown();
    println!("once more: {} ms", gateway.status()["configuration"]["publish_ms"]);
    println!("resident: {} MiB", gateway.rss() >> 20);
}

/// F29: one after the other while clients come.
#[test]
fn f29_certificates_change_under_load_without_a_failed_handshake() {
    let (authority, origin) = (Authority::new(), origin());
    let gateway = Arc::new(gateway(&ssl("a.test", &authority.identity(&["a.test"]), ""), &origin));
    let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (gateway, done, served) = (Arc::clone(&gateway), Arc::clone(&done), Arc::clone(&served));
            let tls = TlsClient::trusting(&authority);
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let mut client = connect(&gateway, &tls, "a.test").expect("a handshake");
                    assert_eq!(ask(&mut client, "a.test", "/").expect("an answer").0, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // In full they last a minute or so.
    for _ in 0..scaled(8, 60) {
        let before = served.load(Ordering::Relaxed);
        gateway.rewrite(&file(&ssl("a.test", &authority.identity(&["a.test"]), ""), &origin));
        eventually("clients are served", DEADLINE, || served.load(Ordering::Relaxed) > before + scaled(8, 3_000));
    }
    done.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().expect("no handshake failed"));
}

/// F29: what nobody accepts replaces nothing, and keeps nothing from changing where it is served already.
#[test]
fn f29_a_certificate_out_of_its_time_is_refused_and_the_old_one_kept() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let (authority, origin) = (Authority::new(), origin());
    let identity = |begin: SystemTime| {
        authority.identity_with(&["a.test"], KeyKind::Ecdsa, |params| {
            (params.not_before, params.not_after) = (begin.into(), (begin + DAY).into());
        })
    };
    let (expired, early) = (identity(SystemTime::now() - 2 * DAY), identity(SystemTime::now() + DAY));
    let good = authority.identity(&["a.test"]);
    let tls = TlsClient::trusting(&authority);
    let served = |gateway: &Gateway| connect(gateway, &tls, "a.test").map(|mut client| ask(&mut client, "a.test", "/"));

    let with_good = gateway(&ssl("a.test", &good, ""), &origin);
    for (bad, problem) in [(&expired, "has expired"), (&early, "is not valid yet")] {
        rewrite_refused(&with_good, &file(&ssl("a.test", bad, ""), &origin));
        let told = with_good.status()["configuration"]["last_error"].to_string();
        assert!(told.contains("ssls[0].cert") && told.contains(problem), "{told}");
        assert_eq!(served(&with_good).expect("the old one serves").expect("an answer").0, 200);
    }

    let with_expired = gateway(&ssl("a.test", &expired, ""), &origin);
    served(&with_expired).expect_err("nobody accepts it");
    let warnings = with_expired.status()["configuration"]["warnings"].to_string();
    assert!(warnings.contains("has expired"), "{warnings}");
    let other = ssl("b.test", &authority.identity(&["b.test"]), "");
    with_expired.rewrite(&file(&[ssl("a.test", &expired, ""), other].concat(), &origin));
    with_expired.rewrite(&file(&ssl("a.test", &good, ""), &origin));
    assert_eq!(served(&with_expired).expect("it is good now").expect("an answer").0, 200);
}

#[test]
fn client_without_tls_gets_400_or_is_closed() {
    let (authority, origin) = (Authority::new(), origin());
    let gateway = gateway(&ssl("a.test", &authority.identity(&["a.test"]), ""), &origin);
    let mut client = Client::connect(gateway.tls_addr());
    let answer = client.get("/").expect("an answer in the clear");
    assert_eq!((answer.status, answer.closes()), (400, true));
    assert!(answer.text().contains("TLS"), "{}", answer.text());
    let mut client = Client::connect(gateway.tls_addr());
    client.send(b"\x00\x01\x02\x03");
    assert!(client.until_closed().is_empty());
    assert!(origin.requests().is_empty());
}

/// R01 within a handshake: whoever does not get on is let go.
#[test]
fn r01_a_slow_handshake_has_a_deadline() {
    let (authority, origin) = (Authority::new(), origin());
    let file = file(&ssl("a.test", &authority.identity(&["a.test"]), ""), &origin);
    let gateway =
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!("ssl_handshake_timeout: 200ms\n{file}"));
    for said in [&b""[..], &[22, 3, 1], &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc]] {
        let mut client = Client::connect(gateway.tls_addr());
        client.send(said);
        assert!(client.until_closed().is_empty(), "after {said:?}");
    }
    let failed = || gateway.metrics().get("weir_tls_handshakes_total{outcome=\"failed\"}");
    eventually("all are counted", DEADLINE, || failed() == Some(3.0));
}

#[test]
fn a_response_cut_short_is_not_ended_in_order() {
    let authority = Authority::new();
    let origin = Origin::serving(|_| Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").then_close());
    let gateway = gateway(&ssl("a.test", &authority.identity(&["a.test"]), ""), &origin);
    let tls = TlsClient::trusting(&authority);
    let mut client = connect(&gateway, &tls, "a.test").expect("a certificate");
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let error = client.response().expect_err("half of it is missing");
    assert!(matches!(error, weir_testkit::ReadError::Reset { .. }), "without close_notify: {error}");
    // And a whole one is.
    let origin = self::origin();
    gateway.rewrite(&file(&ssl("a.test", &authority.identity(&["a.test"]), ""), &origin));
    let mut client = connect(&gateway, &tls, "a.test").expect("a certificate");
    let last = client.ask("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").expect("an answer");
    assert_eq!(last.status, 200);
    assert_eq!(client.up_to(1), Ok(Vec::new()), "close_notify");
}
