//! Certificates that the gateway gets for itself, from a real authority. Where there is no Pebble the tests are skipped,
//! and say so.

mod pebble;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Gate, Gateway, Origin, Reading, Signal, TempDir, TlsClient, TlsServer,
    eventually, eventually_some,
};

use crate::weir;
use pebble::{Manners, Place};

const LISTEN: &str = "listen: [\"127.0.0.1:0\", { address: \"127.0.0.1:0\", tls: true }]\n";

/// An origin for everything, which says that it was asked, and a configuration with a route to it.
fn served() -> (Origin, String) {
    let origin = Origin::serving(|request| Answer::ok(format!("the origin was asked for {}", request.target)));
    let routes = format!("routes: [{{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n", origin.addr());
    (origin, format!("{LISTEN}{routes}"))
}

/// What stands in `/status` of a host.
fn host(gateway: &Gateway, name: &str) -> Value {
    let hosts = gateway.status()["acme"]["hosts"].take();
    hosts.as_array().and_then(|hosts| hosts.iter().find(|host| host["host"] == name).cloned()).unwrap_or_default()
}

fn expires(gateway: &Gateway, name: &str) -> Option<u64> {
    host(gateway, name)["expires"].as_u64()
}

fn orders(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metrics().sum("weir_acme_orders_total", &[&format!("outcome=\"{outcome}\"")])
}

/// Waits until so many orders were successful: a certificate may be shown before its order has ended.
#[track_caller]
fn eventually_obtained(gateway: &Gateway, count: f64) {
    eventually(&format!("{count} orders have ended well"), DEADLINE, || orders(gateway, "obtained") == count);
}

/// The same for the answers to challenges.
#[track_caller]
fn eventually_no_order_is_open(folder: &Path) {
    let challenges = folder.join("challenges");
    eventually("no order is open", DEADLINE, || fs::read_dir(&challenges).expect("a folder").count() == 0);
}

/// A handshake for this name: the certificate that was shown, if it could be trusted.
fn shown(gateway: &Gateway, tls: &TlsClient, name: &str) -> Result<Vec<u8>, String> {
    let client = Client::connect_tls(gateway.tls_addr(), tls, name).map_err(|error| error.to_string())?;
    Ok(client.agreed().expect("TLS").certificates.remove(0))
}

#[track_caller]
fn eventually_shown(gateway: &Gateway, tls: &TlsClient, name: &str) -> Vec<u8> {
    eventually_some(&format!("a certificate for {name}"), DEADLINE, || shown(gateway, tls, name).ok())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs()
}

#[test]
fn certificates_are_got_from_nothing_and_kept_over_restarts_and_upgrades() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test", "b.test", "c.test"]);
    let gateway = weir().start(&file);
    let mut pebble = place.start(gateway.addr().port(), &Manners::default());
    assert_eq!(gateway.status()["acme"], Value::Null);
    assert!(gateway.metrics().iter().all(|(series, _)| !series.contains("acme")), "nobody asked for it");
    let file_of = |hosts: &str| file.clone() + &pebble.place.acme(hosts, &storage, "");
    gateway.rewrite(&file_of("a.test, B.test"));
    let tls = pebble.trusted();
    let certificate = eventually_shown(&gateway, &tls, "a.test");
    eventually_shown(&gateway, &tls, "b.test");
    assert!(shown(&gateway, &tls, "c.test").is_err(), "nobody has listed it");
    gateway.wait_stderr("what was got", |line| line.contains("new certificate for a.test, valid for 89 days"));

    // Where it is kept, nobody else can read.
    let folder = pebble.place.folder(&storage);
    let mode = |name: &str| fs::metadata(folder.join(name)).expect("it is there").permissions().mode() & 0o777;
    for name in ["account.json", "a.test.pem", "b.test.pem"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    assert_eq!(mode(""), 0o700);
    eventually_no_order_is_open(&folder);

    // The path belongs to the route, unless an order is open that has this token.
    let asked = gateway.client().ask("GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(asked.expect("an answer").text(), "the origin was asked for /.well-known/acme-challenge/x");

    // How it stands.
    let a = eventually_some("the next order has a time", DEADLINE, || {
        Some(host(&gateway, "a.test")).filter(|a| a["expires"].is_u64() && a["next_order"].is_u64())
    });
    let status = gateway.status();
    assert_eq!((&status["acme"]["role"], &status["configuration"]["routes"]), (&"ordering".into(), &1.into()));
    let (expires_at, next) = (a["expires"].as_u64().expect("a time"), a["next_order"].as_u64().expect("a time"));
    let days = |seconds: u64| (seconds - now()) / 86_400;
    assert_eq!(days(expires_at), 89);
    assert!((56..60).contains(&days(next)), "two thirds later: {a}");
    let metric = "weir_acme_certificate_expiry_timestamp_seconds{host=\"a.test\"}";
    assert_eq!(gateway.metrics().get(metric), Some(expires_at as f64));
    eventually_obtained(&gateway, 2.0);

    // A host more is a certificate more.
    gateway.rewrite(&file_of("a.test, b.test, c.test"));
    eventually_shown(&gateway, &tls, "c.test");
    eventually_obtained(&gateway, 3.0);
    // And one less is not shown any more.
    gateway.rewrite(&file_of("a.test, b.test"));
    assert!(shown(&gateway, &tls, "c.test").is_err());

    // Another process needs neither an order nor the authority.
    pebble.program.crash();
    let before = gateway.status()["pid"].clone();
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("that another serves", |line| line.ends_with(&format!("; process {before} drains")));
    eventually("the new process may order", DEADLINE, || gateway.status()["acme"]["role"] == "ordering");
    assert_ne!(gateway.status()["pid"], before);
    assert_eq!(shown(&gateway, &tls, "a.test").as_ref(), Ok(&certificate));
    assert_eq!((orders(&gateway, "obtained"), orders(&gateway, "failed")), (0.0, 0.0));
    drop(gateway);
    let gateway = weir().start(&file_of("a.test, b.test"));
    assert_eq!(shown(&gateway, &tls, "a.test"), Ok(certificate));
    eventually("it may order", DEADLINE, || gateway.status()["acme"]["role"] == "ordering");
    assert_eq!(expires(&gateway, "a.test"), Some(expires_at));
    assert_eq!((orders(&gateway, "obtained"), orders(&gateway, "failed")), (0.0, 0.0));
}

/// RFC 8737: where nothing but port 443 leads here.
#[test]
fn certificates_are_got_by_handshakes_alone() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test", "b.test"]);
    let file = file.replace(LISTEN, "listen: [{ address: \"127.0.0.1:0\", tls: true }]\n");
    let gateway = weir().start(&file);
    let manners = Manners { tls_port: gateway.tls_addr().port(), ..Manners::default() };
    // Nobody answers on its other port.
    let pebble = place.start(1, &manners);
    let file_of = |hosts: &str| file.clone() + &pebble.place.acme(hosts, &storage, "");
    gateway.rewrite(&file_of("a.test, B.test"));
    let tls = pebble.trusted();
    for name in ["a.test", "b.test"] {
        eventually_shown(&gateway, &tls, name);
    }
    eventually_obtained(&gateway, 2.0);
    eventually_no_order_is_open(&pebble.place.folder(&storage));
    // What only an authority speaks is spoken to nobody while no order is open.
    let ask = |protocols: &[&str]| Client::connect_tls(gateway.tls_addr(), &tls.speaking(protocols), "a.test");
    let refused = ask(&["acme-tls/1"]).err().expect("there is nothing to prove").to_string();
    assert!(refused.contains("NoApplicationProtocol"), "{refused}");
    let mut client = ask(&["acme-tls/1", "http/1.1"]).expect("a handshake");
    assert_eq!(client.get("/x").expect("an answer").text(), "the origin was asked for /x");
}

#[test]
fn a_challenge_that_a_process_before_has_open_is_answered_in_handshakes() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    let folder = place.folder(&storage).join("challenges");
    fs::create_dir_all(&folder).expect("a folder");
    let authority = Authority::new();
    let identity = authority.identity(&["a.test"]);
    fs::write(folder.join("t.pem"), identity.key + &identity.certificate).expect("it can be written");
    // Somebody else has the lock: an order is open.
    let lock = fs::File::create(folder.with_file_name("lock")).expect("it can be made");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("nobody has it");
    let file = file + &place.acme("a.test", &storage, "  challenge: tls-alpn-01\n");
    let gateway = weir().start(&file);
    let tls = TlsClient::trusting(&authority);
    let ask = |protocols: &[&str]| Client::connect_tls(gateway.tls_addr(), &tls.speaking(protocols), "a.test");
    let mut client = ask(&["acme-tls/1"]).expect("the answer");
    client.send("GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(client.until_closed().is_empty(), "nothing is spoken after the handshake");
    for protocols in [&["http/1.1"][..], &["acme-tls/1", "http/1.1"], &[]] {
        let error = ask(protocols).err().expect("there is no certificate yet").to_string();
        assert!(error.contains("UnrecognisedName"), "{protocols:?}: {error}");
    }
    // There is a key in it.
    for token in ["t", "t.pem"] {
        let asked = format!("GET /.well-known/acme-challenge/{token} HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let answer = gateway.client().ask(asked).expect("an answer").text();
        assert_eq!(answer, format!("the origin was asked for /.well-known/acme-challenge/{token}"));
    }
}

#[test]
fn certificates_are_renewed_without_a_failed_handshake() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test"]);
    let gateway = weir().start(&file);
    // It is renewed after two thirds, and the last third is the time that machines may stand still meanwhile.
    let pebble = place.start(gateway.addr().port(), &Manners { lifetime_s: 45, ..Manners::default() });
    gateway.rewrite(&(file + &pebble.place.acme("a.test", &storage, "")));
    let tls = pebble.trusted();
    let first = eventually_shown(&gateway, &tls, "a.test");
    let (mut of_first, mut of_next) = (0, 0);
    eventually("another certificate is shown for a while", 4 * DEADLINE, || {
        let shown = shown(&gateway, &tls, "a.test");
        let shown = shown.unwrap_or_else(|error| panic!("after {of_first} and {of_next} handshakes: {error}"));
        if shown == first {
            of_first += 1;
            assert_eq!(of_next, 0, "the first one is shown again");
        } else {
            of_next += 1;
        }
        of_next == 100
    });
    eventually("both orders have ended", DEADLINE, || orders(&gateway, "obtained") >= 2.0);
    assert_eq!(orders(&gateway, "failed"), 0.0);
}

#[test]
fn an_authority_that_is_away_is_asked_again() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test"]);
    let gateway = weir().start(&(file + &place.acme("a.test", &storage, "")));
    let line = gateway.wait_stderr("why there is none", |line| line.contains("no certificate for `a.test`"));
    assert!(line.contains("weir.yaml:") && line.contains(": acme.hosts[0]: "), "{line}");
    assert!(line.contains("no answer from 127.0.0.1: ") && line.contains("; the next attempt is in "), "{line}");
    assert_eq!(gateway.get("/x").text(), "the origin was asked for /x");
    let why = || host(&gateway, "a.test")["last_error"].as_str().map(str::to_owned);
    let why = eventually_some("why stands in the status as well", DEADLINE, why);
    assert!(why.contains("no answer from "), "{why}");
    assert_eq!(gateway.ask_status("/status/ready").status, 200);
    let pebble = place.start(gateway.addr().port(), &Manners::default());
    let tls = pebble.trusted();
    let minute = 3 * DEADLINE;
    eventually("there is a certificate", minute, || shown(&gateway, &tls, "a.test").is_ok());
    eventually("the failures are forgotten", DEADLINE, || {
        let a = host(&gateway, "a.test");
        a["expires"].is_u64() && a["last_error"].is_null() && a["failures"] == 0
    });
}

#[test]
fn refused_order_is_reported_once_and_waits_also_after_a_restart() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test"]); // and nobody knows b.test
    let gateway = weir().start(&file);
    let pebble = place.start(gateway.addr().port(), &Manners::default());
    let file = file + &pebble.place.acme("a.test, b.test", &storage, "");
    gateway.rewrite(&file);
    let tls = pebble.trusted();
    eventually_shown(&gateway, &tls, "a.test");
    let of_b = |line: &str| line.contains("no certificate for `b.test`");
    let line = gateway.wait_stderr("why there is none", of_b);
    assert!(line.contains("acme.hosts[1]: ") && line.contains("could not resolve URL"), "{line}");
    // It is recorded first, and shown then.
    let failures = || gateway.metrics().get("weir_acme_failures{host=\"b.test\"}");
    eventually("the failure is shown", DEADLINE, || failures() == Some(1.0));
    assert_eq!(orders(&gateway, "failed"), 1.0);
    eventually_no_order_is_open(&pebble.place.folder(&storage));
    assert_eq!(gateway.stderr().lines().filter(|line| of_b(line)).count(), 1);
    drop(gateway);

    let gateway = weir().start(&file);
    eventually("it knows what was", DEADLINE, || host(&gateway, "b.test")["failures"] == 1);
    let b = host(&gateway, "b.test");
    let next = b["next_order"].as_u64().expect("a time");
    assert!((now() + 120..=now() + 400).contains(&next), "{b}");
    assert!(b["last_error"].as_str().is_some_and(|error| error.contains("b.test")), "{b}");
    assert!(!b["ordering"].as_bool().expect("it says"));
    assert_eq!((orders(&gateway, "obtained"), orders(&gateway, "failed")), (0.0, 0.0));
    assert!(shown(&gateway, &tls, "a.test").is_ok());
}

#[test]
fn a_host_is_ordered_again_at_once_when_the_record_of_its_refusals_is_deleted() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test"]); // and no name server knows b.test
    let gateway = weir().start(&file);
    let pebble = place.start(gateway.addr().port(), &Manners::default());
    gateway.rewrite(&(file + &pebble.place.acme("a.test, b.test", &storage, "")));
    let record = pebble.place.folder(&storage).join("b.test.failed");
    eventually("the refusal is recorded", DEADLINE, || record.exists());
    pebble.place.resolve(&["a.test", "b.test"]);
    fs::remove_file(record).expect("it is there");
    eventually_shown(&gateway, &pebble.trusted(), "b.test");
}

#[test]
fn the_end_of_a_certificate_without_a_successor_is_reported() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    let folder = place.folder(&storage);
    fs::create_dir_all(&folder).expect("a folder");
    let identity = Authority::new().identity_with(&["a.test"], weir_testkit::KeyKind::Ecdsa, |params| {
        params.not_after = params.not_before + std::time::Duration::from_secs(now() + 8 - 157_766_400);
    });
    fs::write(folder.join("a.test.pem"), identity.key + &identity.certificate).expect("it can be written");
    // No authority answers there.
    let gateway = weir().start(&(file + &place.acme("a.test", &storage, "")));
    gateway.wait_stderr("its end", |line| line.contains("the certificate of a.test has expired"));
}

#[test]
fn a_certificate_stays_when_its_renewal_is_refused() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test"]);
    let folder = place.folder(&storage);
    fs::create_dir_all(&folder).expect("a folder");
    // Its end is so near that it should have been renewed.
    let authority = Authority::new();
    let identity = authority.identity_with(&["a.test"], weir_testkit::KeyKind::Ecdsa, |params| {
        params.not_after = params.not_before + std::time::Duration::from_secs(now() + 3_600 - 157_766_400);
    });
    fs::write(folder.join("a.test.pem"), identity.key + &identity.certificate).expect("it can be written");
    let gateway = weir().start(&file);
    let pebble = place.start(gateway.addr().port(), &Manners { refused_nonces: 100, ..Manners::default() });
    gateway.rewrite(&(file + &pebble.place.acme("a.test", &storage, "")));
    let line = gateway.wait_stderr("why there is none", |line| line.contains("certificate for `a.test`: "));
    assert!(line.contains("no new certificate for `a.test`"), "{line}");
    assert!(line.contains("(badNonce); the next attempt is in "), "{line}");
    assert!(line.contains("the present one stays in use and is valid for "), "{line}");
    shown(&gateway, &TlsClient::trusting(&authority), "a.test").expect("the one there was");
}

#[test]
fn certificate_in_ssls_wins_and_no_plugin_blocks_a_challenge() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage, authority) = (served(), TempDir::new(), Authority::new());
    place.resolve(&["a.test", "b.test"]);
    let gateway = weir().start(&file);
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let manners = Manners { external_account: Some(("kid-1", key)), ..Manners::default() };
    let pebble = place.start(gateway.addr().port(), &manners);
    let identity = authority.identity(&["a.test"]);
    let ssls = format!("ssls: [{{ sni: a.test, cert: {:?}, key: {:?} }}]\n", identity.certificate, identity.key);
    let more = format!("  external_account: {{ key_id: kid-1, hmac_key: {key} }}\n");
    // What holds for every request does not hold for the authority, which cannot log in.
    let rules = "global_rules: [{ id: everybody, plugins: { key-auth: {} } }]\n";
    gateway.rewrite(&(file + rules + &ssls + &pebble.place.acme("a.test, b.test", &storage, &more)));
    gateway.wait_stderr("a warning", |line| line.contains("acme.hosts[0]: `a.test` has a certificate in `ssls`"));
    eventually_shown(&gateway, &pebble.trusted(), "b.test");
    shown(&gateway, &TlsClient::trusting(&authority), "a.test").expect("the one of `ssls`");
    assert_eq!(host(&gateway, "a.test"), Value::Null);
    eventually_obtained(&gateway, 1.0);
}

#[test]
fn a_host_below_a_wildcard_that_asks_for_proof_is_not_opened_by_its_certificate() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage, authority, known) = (served(), TempDir::new(), Authority::new(), Authority::new());
    let hosts = ["www.x.test", "far.away.x.test", "open.test"];
    place.resolve(&hosts);
    let gateway = weir().start(&file);
    let pebble = place.start(gateway.addr().port(), &Manners::default());
    let identity = authority.identity(&["*.x.test"]);
    let ssls = format!(
        "ssls: [{{ sni: \"*.x.test\", cert: {:?}, key: {:?}, client: {{ ca: {:?} }} }}]\n",
        identity.certificate, identity.key, known.certificate
    );
    gateway.rewrite(&(file + &ssls + &pebble.place.acme(&hosts.join(", "), &storage, "")));
    let jack = TlsClient::known_to(&pebble.root(), &known.identity(&["jack"]));
    hosts.iter().for_each(|host| drop(eventually_shown(&gateway, &jack, host)));
    let without_certificate = pebble.trusted();
    let status = |tls: &TlsClient, name: &str, host: &str| {
        let client = Client::connect_tls(gateway.tls_addr(), tls, name);
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        client.ok().and_then(|mut client| client.ask(request).ok()).map(|answer| answer.status)
    };
    for host in &hosts[..2] {
        assert_eq!(status(&jack, host, host), Some(200), "{host}");
        assert_eq!(status(&without_certificate, host, host), None, "{host}: the handshake fails");
        assert_eq!(status(&without_certificate, "open.test", host), Some(421), "{host}");
    }
    assert_eq!(status(&without_certificate, "open.test", "open.test"), Some(200));
}

#[test]
fn an_authority_that_has_forgotten_the_account_gets_another_one() {
    let Some(place) = Place::find() else { return };
    let ((_origin, file), storage) = (served(), TempDir::new());
    place.resolve(&["a.test", "b.test", "c.test"]);
    let gateway = weir().start(&file);
    let mut pebble = place.start(gateway.addr().port(), &Manners::default());
    gateway.rewrite(&(file.clone() + &pebble.place.acme("a.test", &storage, "")));
    eventually_shown(&gateway, &pebble.trusted(), "a.test");
    let folder = pebble.place.folder(&storage);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (account, registration) = (read("account.json"), read("registration.json"));
    assert!(registration.contains("mailto:ops@weir.test"), "{registration}");

    // Pebble keeps everything in memory.
    pebble.program.crash();
    let pebble = pebble.place.start(gateway.addr().port(), &Manners::default());
    gateway.rewrite(&(file.clone() + &pebble.place.acme("a.test, b.test", &storage, "")));
    eventually_shown(&gateway, &pebble.trusted(), "b.test");
    assert_eq!(orders(&gateway, "failed"), 0.0);
    assert_eq!(read("account.old.json"), account);
    assert_ne!(read("account.json"), account);

    // The authority is told of another address at once, though no certificate is due.
    let account = read("account.json");
    let acme = pebble.place.acme("a.test, b.test", &storage, "").replace("ops@weir.test", "new@weir.test");
    gateway.rewrite(&(file.clone() + &acme));
    eventually("the address is told", DEADLINE, || read("registration.json").contains("mailto:new@weir.test"));
    assert_eq!(read("account.json"), account);
    gateway.rewrite(&(file + &acme.replace("b.test", "b.test, c.test")));
    eventually_shown(&gateway, &pebble.trusted(), "c.test");
}

/// An order that is broken off leaves authorizations behind, which authorities count.
#[test]
fn an_order_goes_on_when_another_host_is_added() {
    let gate = Gate::new();
    let tls = TlsServer::new(&Authority::of_tests().identity(&["127.0.0.1"]));
    let authority = {
        let gate = gate.clone();
        Origin::scripted_tls(&tls, Reading::Strict, move |connection| {
            while connection.request().is_ok() {
                if connection.index == 0 {
                    gate.wait();
                    return;
                }
                if connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").is_err() {
                    return;
                }
            }
        })
    };
    let ((_origin, file), storage) = (served(), TempDir::new());
    let ca = storage.write("ca.pem", &Authority::of_tests().certificate);
    let file_of = |hosts: &str| {
        format!(
            "{file}acme:\n  hosts: [{hosts}]\n  terms_of_service_agreed: true\n  directory: https://{}/dir\n  \
             ca: {}\n  storage: {}\n",
            authority.addr(),
            ca.display(),
            storage.path().display()
        )
    };
    let gateway = weir().start(&file_of("a.test"));
    gate.wait_arrived(1);
    gateway.rewrite(&file_of("a.test, b.test, c.test"));
    eventually("they are ordered, too", DEADLINE, || host(&gateway, "c.test")["ordering"] == true);
    gateway.rewrite(&file_of("a.test, b.test"));
    eventually("it is gone", DEADLINE, || host(&gateway, "c.test").is_null());
    assert_eq!(host(&gateway, "a.test")["ordering"], true);
    gate.open();
    gateway.wait_stderr("the end of the first order", |line| line.contains("no certificate for `a.test`: no answer"));
    gateway.wait_stderr("the end of the other one", |line| {
        line.contains("no certificate for `b.test`: ") && line.contains("newNonce")
    });
}
