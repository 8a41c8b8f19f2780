//! R09: TLS, attacked record by record. Whoever sends records that bring nothing is let go, what that has cost is
//! bounded, and other clients do not notice.

mod records;

use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::aws_lc_rs::{self, kx_group};
use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use weir_testkit::{
    Answer, Authority, Client, DEADLINE, Gate, Gateway, Identity, Origin, Reading, TlsClient, TlsServer, eventually,
    scaled,
};

use crate::harness::{own_answer, routes, weir};
use records::{
    ALERT, CLOSE_NOTIFY, DATA, HANDSHAKE, NO_RENEGOTIATION, Records, complete, fragmented, record, said, shake_hands,
};

/// What a connection under attack may add to the gateway's resident memory, with the pages a first connection touches.
const LITTLE: u64 = 8 << 20;

/// A gateway that speaks TLS as `t`, before one origin.
struct Rig {
    gateway: Gateway,
    origin: Origin,
    tls: TlsClient,
    old: TlsClient,
}

impl Rig {
    fn echo(settings: &str) -> Rig {
        Rig::before(Origin::echo(Reading::Strict), settings)
    }

    fn before(origin: Origin, settings: &str) -> Rig {
        let authority = Authority::of_tests();
        let Identity { certificate, key } = authority.identity(&["t"]);
        let gateway = weir().start(&format!(
            "listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\n{settings}\n\
             ssls: [{{ sni: t, cert: {certificate:?}, key: {key:?} }}]\n{}",
            routes(origin.addr())
        ));
        Rig { gateway, origin, tls: TlsClient::trusting(authority), old: TlsClient::old(authority) }
    }

    /// Both versions of TLS.
    fn versions(&self) -> [(&'static str, &TlsClient); 2] {
        [("TLS 1.3", &self.tls), ("TLS 1.2", &self.old)]
    }

    /// A GET from another client gets its own answer.
    #[track_caller]
    fn canary(&self) {
        let mut client = Client::connect_tls(self.gateway.tls_addr(), &self.tls, "t").expect("a handshake");
        let answer = client.get("/canary").expect("an answer");
        own_answer(&answer, "GET", "/canary", 0).unwrap_or_else(|what| panic!("another client: {what}"));
    }

    /// What other clients cost while somebody keeps the gateway busy, or tries to.
    #[track_caller]
    fn is_not_busy(&self, what: &str) {
        let mut client = Client::connect_tls(self.gateway.tls_addr(), &self.tls, "t").expect("a handshake");
        let before = self.gateway.cpu_ms();
        for _ in 0..200 {
            let answer = client.get("/canary").expect("an answer");
            own_answer(&answer, "GET", "/canary", 0).unwrap_or_else(|told| panic!("{what}: {told}"));
        }
        let spent = self.gateway.cpu_ms() - before;
        assert!(spent < 1_000, "{what}: two hundred requests took {spent} ms of processor");
    }

    /// Sends what `piece` makes until the gateway takes no more. It closes, and has not grown.
    #[track_caller]
    fn flood(&self, what: &str, attacker: &mut Records, mut piece: impl FnMut(&mut Records) -> Vec<u8>) {
        self.canary();
        let before = self.gateway.rss();
        for _ in 0..scaled(20_000, 1_000_000) {
            let bytes = piece(attacker);
            if !attacker.send(bytes) {
                break;
            }
        }
        attacker.until_closed();
        let grown = self.gateway.rss().saturating_sub(before);
        assert!(grown <= LITTLE, "{what}: it took {grown} bytes of memory");
        self.canary();
    }
}

#[test]
fn r09_keys_may_change() {
    let rig = Rig::echo("");
    let mut client = Records::connect(&rig.gateway, &rig.tls);
    for (number, wants_answer) in [true, false, true].into_iter().enumerate() {
        let update = client.update_keys(wants_answer);
        client.send(update);
        client.ask(&format!("/after-{number}")).expect("an answer under the next keys");
    }
    // What both sides change at once.
    let mut updates = Vec::new();
    for _ in 0..32 {
        updates.extend(client.update_keys(true));
    }
    client.send(updates);
    client.ask("/after-many").expect("an answer under the next keys");
    assert_eq!(rig.origin.requests().len(), 4);
}

#[test]
fn r09_keys_may_change_while_an_answer_is_on_its_way() {
    let gate = Gate::new();
    let origin = Origin::scripted(Reading::Strict, {
        let gate = gate.clone();
        move |connection| {
            while connection.request().is_ok() {
                let _ = connection.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
                gate.wait();
                let _ = connection.send("half");
            }
        }
    });
    let rig = Rig::before(origin, "");
    let mut client = Records::connect(&rig.gateway, &rig.tls);
    let request = client.seal(DATA, "GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    client.send(request);
    client.receive_text("half").expect("half an answer");
    let update = client.update_keys(true);
    client.send(update);
    // The update is read before the end of the answer is sent, or after it: both are right, and neither is garbled.
    gate.open();
    client.receive_text("half").expect("the other half");
    let request = client.seal(DATA, "GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    client.send(request);
    client.receive_text("halfhalf").expect("an answer under the next keys");
}

#[test]
fn r09_keys_change_without_end() {
    let rig = Rig::echo("");
    for wants_answer in [true, false] {
        let what = format!("updates, answers wanted: {wants_answer}");
        // 32 and no more.
        let mut attacker = Records::connect(&rig.gateway, &rig.tls);
        let mut updates = Vec::new();
        for _ in 0..33 {
            updates.extend(attacker.update_keys(wants_answer));
        }
        attacker.send(updates);
        attacker.until_closed();
        let mut attacker = Records::connect(&rig.gateway, &rig.tls);
        rig.flood(&what, &mut attacker, |attacker| attacker.update_keys(wants_answer));
        let mut attacker = Records::connect(&rig.gateway, &rig.tls);
        attacker.ask("/before").expect("an answer");
        rig.flood(&format!("{what}, and nothing between them"), &mut attacker, |attacker| {
            [attacker.update_keys(wants_answer), attacker.seal(DATA, "")].concat()
        });
    }
}

#[test]
fn r09_records_that_bring_nothing() {
    let rig = Rig::echo("");
    for (version, tls) in rig.versions() {
        let begun = [
            ("a connection", ""),
            ("a head", "GET / HTTP/1.1\r\nHost: t\r\n"),
            ("content", "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nhalf"),
        ];
        for (what, begin) in begun {
            let mut attacker = Records::connect(&rig.gateway, tls);
            if !begin.is_empty() {
                let begin = attacker.seal(DATA, begin);
                attacker.send(begin);
            }
            rig.flood(&format!("{version}, in {what}"), &mut attacker, |attacker| attacker.seal(DATA, ""));
        }
    }
    assert!(rig.origin.targets().iter().all(|target| target == "/canary"));
}

#[test]
fn r09_records_of_a_byte() {
    let rig = Rig::echo("");
    for (version, tls) in rig.versions() {
        let mut client = Records::connect_with(&rig.gateway, tls, |hello, client| client.send(fragmented(hello, 1)));
        let request = format!("POST /tiny HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n{}", "x".repeat(1000));
        let mut bytes = Vec::new();
        for byte in request.as_bytes() {
            bytes.extend(client.seal(DATA, [*byte]));
            // Now and then one that brings nothing, as some libraries send them.
            bytes.extend(client.seal(DATA, ""));
        }
        client.send(bytes);
        client.receive_text("POST /tiny 1000").unwrap_or_else(|| panic!("{version}: no answer"));
        client.ask("/next").unwrap_or_else(|| panic!("{version}: no second answer"));
    }
}

/// An origin that answers `/held` when the gate opens, and everything else at once, with what it was asked.
fn held() -> (Gate, Origin) {
    let gate = Gate::new();
    let origin = Origin::serving({
        let gate = gate.clone();
        move |request| {
            if request.target == "/held" {
                gate.wait();
            }
            Answer::ok(format!("{} {} {}", request.method, request.target, request.body.len()))
        }
    });
    (gate, origin)
}

/// rustls CVE-2024-11738, CVE-2024-32650: neither a panic nor a loop.
#[test]
fn r09_words_after_the_last() {
    let (gate, origin) = held();
    let rig = Rig::before(origin, "");
    let mut open = Vec::new();
    for (version, tls) in rig.versions() {
        for begin in ["", "GET / HTTP/1.1\r\n", "GET /held HTTP/1.1\r\nHost: t\r\n\r\n"] {
            for what in ["nothing", "a part of a record", "a part of a message", "content", "not a record"] {
                let mut attacker = Records::connect(&rig.gateway, tls);
                let begin = if begin.is_empty() { Vec::new() } else { attacker.seal(DATA, begin) };
                let last = attacker.seal(ALERT, CLOSE_NOTIFY);
                let trailing = match what {
                    "nothing" => Vec::new(),
                    "a part of a record" => vec![DATA, 3, 3, 0x40],
                    "a part of a message" => attacker.seal(HANDSHAKE, [1, 0]),
                    "content" => attacker.seal(DATA, "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n"),
                    _ => b"GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n".to_vec(),
                };
                attacker.send([begin, last, trailing].concat());
                open.push((format!("{version}: {what}"), attacker));
            }
        }
    }
    gate.wait_arrived(10);
    rig.is_not_busy("connections that have said goodbye");
    gate.open();
    for (what, mut attacker) in open {
        let alerts = attacker.until_closed();
        assert!(alerts.iter().all(|alert| alert[..] == CLOSE_NOTIFY), "{what}: {alerts:?}");
    }
    assert!(!rig.origin.targets().iter().any(|target| target == "/smuggled"));
}

/// RFC 8446 §6.2, RFC 5246 §7.2.2: the peer learns why, whether it is heard or answered at the time.
#[test]
fn r09_an_error_after_the_handshake_is_an_alert() {
    const FATAL: u8 = 2;
    let (gate, origin) = held();
    let rig = Rig::before(origin, "");
    for (version, tls) in rig.versions() {
        for begin in ["", "GET / HTTP/1.1\r\n", "GET /held HTTP/1.1\r\nHost: t\r\n\r\n"] {
            for what in ["a wrong code", "an unknown kind", "a record too long", "a message of the handshake"] {
                let mut attacker = Records::connect(&rig.gateway, tls);
                let begin = if begin.is_empty() { Vec::new() } else { attacker.seal(DATA, begin) };
                let wrong = match what {
                    "a wrong code" => {
                        let mut record = attacker.seal(DATA, "GET");
                        *record.last_mut().expect("it has a code") ^= 1;
                        record
                    }
                    "an unknown kind" => record(99, b"x"),
                    "a record too long" => [&[DATA, 3, 3, 0x7f, 0xff][..], &[0; 0x7fff]].concat(),
                    _ => attacker.seal(HANDSHAKE, [20, 0, 0, 0]),
                };
                attacker.send([begin, wrong].concat());
                let alerts = attacker.until_closed();
                assert!(matches!(&alerts[..], [alert] if alert[0] == FATAL), "{version}: {what}: {alerts:?}");
            }
        }
    }
    gate.open();
    rig.canary();
}

#[test]
fn r09_handshakes_that_are_not_finished() {
    let rig = Rig::echo("ssl_handshake_timeout: 4s");
    rig.canary();
    let failed = || rig.gateway.metrics().get("weir_tls_handshakes_total{outcome=\"failed\"}").unwrap_or_default();
    let hello = said(&mut shake_hands(ClientConfig::clone(rig.tls.config())));
    // It says that it will be long, and comes in records of a byte: all that the gateway listens to.
    let long = fragmented(&record(HANDSHAKE, &[&[1, 0, 0xff, 0][..], &[3; 10_000]].concat()), 1);
    let count = scaled(400, 2_000);
    let mut clients = Vec::new();
    for (what, said, most) in [
        ("nothing", &b""[..], 16 << 10),
        ("half a message", &hello[..hello.len() / 2], 24 << 10),
        ("a message", &hello, 32 << 10),
        ("a long message", &long, 192 << 10),
    ] {
        let before = rig.gateway.rss();
        for number in 1..=count {
            let mut client = Client::connect(rig.gateway.tls_addr());
            // On a busy machine its time may be over already.
            let _ = client.try_send(said);
            clients.push(client);
            // None has to wait until the gateway has read what hundreds have said.
            if number % 50 == 0 {
                rig.canary();
            }
        }
        let grown = rig.gateway.rss().saturating_sub(before) / count as u64;
        assert!(grown <= most, "{what}: {grown} bytes for each of {count}");
    }
    let count = clients.len();
    for mut client in clients {
        client.until_closed();
    }
    eventually("all are counted", DEADLINE, || failed() == count as f64);
    rig.canary();
}

#[test]
fn r09_a_first_message_of_64_kib() {
    let rig = Rig::echo("");
    for length in [16_000, 60_000, 0xff_ffff_usize] {
        for size in [1, 100, 1 << 14] {
            let mut client = Client::connect(rig.gateway.tls_addr());
            let message =
                [&[1, (length >> 16) as u8, (length >> 8) as u8, length as u8][..], &vec![3; length]].concat();
            for part in message.chunks(size) {
                if client.try_send(record(HANDSHAKE, part)).is_err() {
                    break;
                }
            }
            client.until_closed();
        }
    }
    rig.canary();
}

#[test]
fn r09_early_data_is_refused_and_not_replayed() {
    let rig = Rig::echo("");
    let mut config = ClientConfig::clone(rig.tls.config());
    config.enable_early_data = true;
    // The gateway itself never offers to take any.
    let (mut client, mut connection) = (Client::connect(rig.gateway.tls_addr()), shake_hands(config.clone()));
    client.send(said(&mut connection));
    complete(&mut connection, &mut client);
    ask(&mut connection, &mut client, "/first");
    assert!(shake_hands(config).early_data().is_none(), "a ticket of the gateway allows early data");
    // Another server of that name did, before, and took less or more than a record of it. The gateway may also ask for another key.
    let server = TlsServer::new(&Authority::of_tests().identity(&["t"]));
    let mut server = (**server.config()).clone();
    server.max_early_data_size = 512 << 10;
    let server = Arc::new(server);
    let request = b"GET /early HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut flight = Vec::new();
    let own = [kx_group::X25519];
    let unknown_first = [kx_group::MLKEM768, kx_group::SECP256R1];
    for size in [request.len(), 16 << 10, 17 << 10, 100 << 10, 512 << 10] {
        for keys in [&own[..], &unknown_first] {
            let usual = early_client(&own);
            let mut config = early_client(keys);
            config.resumption = usual.resumption.clone();
            config.client_auth_cert_resolver = Arc::clone(&usual.client_auth_cert_resolver);
            talk(&usual, ServerConnection::new(Arc::clone(&server)).expect("it can begin"));
            let mut connection = shake_hands(config);
            connection.set_buffer_limit(None);
            let mut early = request.to_vec();
            early.resize(size, b' ');
            connection.early_data().expect("the ticket allows it").write_all(&early).expect("it fits");
            flight = said(&mut connection);
            assert!(flight.len() > size, "all of it is on its way");
            let mut client = Client::connect(rig.gateway.tls_addr());
            client.send(&flight);
            complete(&mut connection, &mut client);
            assert!(!connection.is_early_data_accepted(), "{size}");
            ask(&mut connection, &mut client, "/early");
        }
    }
    let asked = rig.origin.targets().iter().filter(|target| *target == "/early").count();
    // Somebody has recorded it, and says it again.
    for _ in 0..3 {
        let mut replay = Client::connect(rig.gateway.tls_addr());
        replay.send(&flight);
        replay.finish_sending();
        replay.until_closed();
    }
    assert_eq!(rig.origin.targets().iter().filter(|target| *target == "/early").count(), asked);
    assert_eq!(asked, 10, "once for each connection, after its handshake");
    rig.canary();
}

/// A GET for `target` gets its own answer from an echoing origin.
#[track_caller]
fn ask(connection: &mut ClientConnection, client: &mut Client, target: &str) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n");
    connection.writer().write_all(request.as_bytes()).expect("it fits");
    client.send(said(connection));
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(&format!("GET {target} 0")) {
        let received = client.some().expect("an answer");
        assert!(!received.is_empty(), "closed after {:?}", String::from_utf8_lossy(&answer));
        connection.read_tls(&mut &received[..]).expect("it is in memory");
        connection.process_new_packets().expect("records in order");
        // It ends with what has come until now.
        let _ = connection.reader().read_to_end(&mut answer);
    }
}

/// A client that sends early data if it may, with key shares for the first of these groups.
fn early_client(keys: &[&'static dyn SupportedKxGroup]) -> ClientConfig {
    static VERIFIER: OnceLock<Arc<WebPkiServerVerifier>> = OnceLock::new();
    let verifier = VERIFIER.get_or_init(|| {
        let authority = CertificateDer::from_pem_slice(Authority::of_tests().certificate.as_bytes()).expect("PEM");
        let mut roots = RootCertStore::empty();
        roots.add(authority).expect("a certificate");
        let provider = Arc::new(aws_lc_rs::default_provider());
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("it has a root")
    });
    let provider = CryptoProvider { kx_groups: keys.to_vec(), ..aws_lc_rs::default_provider() };
    let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions();
    let config = config.expect("valid").dangerous().with_custom_certificate_verifier(Arc::clone(verifier) as _);
    let mut config = config.with_no_client_auth();
    config.enable_early_data = true;
    config
}

/// A handshake in memory, for the tickets that come of it.
fn talk(config: &ClientConfig, mut server: ServerConnection) {
    let mut client = shake_hands(config.clone());
    while client.is_handshaking() || server.wants_write() {
        server.read_tls(&mut &said(&mut client)[..]).expect("it is in memory");
        server.process_new_packets().expect("a handshake in order");
        let mut answer = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut answer).expect("it is in memory");
        }
        client.read_tls(&mut &answer[..]).expect("it is in memory");
        client.process_new_packets().expect("a handshake in order");
        server.read_tls(&mut &said(&mut client)[..]).expect("it is in memory");
        server.process_new_packets().expect("a handshake in order");
    }
}

/// CVE-2009-3555, CVE-2011-1473.
#[test]
fn r09_a_connection_is_not_negotiated_again() {
    let rig = Rig::echo("");
    let hello = said(&mut shake_hands(ClientConfig::clone(rig.old.config())));
    for (version, tls) in rig.versions() {
        let mut attacker = Records::connect(&rig.gateway, tls);
        attacker.ask("/before").expect("an answer");
        let again = attacker.seal(HANDSHAKE, &hello[5..]);
        attacker.send(again);
        if version == "TLS 1.2" {
            // Refused politely once, and nothing has changed.
            let told = std::iter::from_fn(|| attacker.receive()).find(|(kind, _)| *kind == ALERT);
            assert_eq!(told, Some((ALERT, NO_RENEGOTIATION.to_vec())));
            attacker.ask("/between").expect("an answer");
            let again = attacker.seal(HANDSHAKE, &hello[5..]);
            attacker.send(again);
        }
        let alerts = attacker.until_closed();
        assert!(alerts.iter().all(|alert| alert[0] == 2), "{version}: {alerts:?}");
    }
    rig.canary();
}
