//! Both sides of TLS over real sockets.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_net::handshake::{AcceptError, accept, connect};
use weir_net::stream::Stream;
use weir_net::tls::{
    CertificateDer, CertifiedKey, ClientDemand, ClientTerms, ClientTrust, KeyError, Server, ServerName, ServerTerms,
    SpiffeId, SpiffePeers, TlsConnector, Trust, TrustBundles, UpstreamTerms, Versions, certificates, certified,
};

/// An authority, and what it has signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Authority {
        Authority::signed(None)
    }

    fn signed(by: Option<&Authority>) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("authority {number}"));
        let certificate = match by {
            None => params.self_signed(&key),
            Some(by) => params.signed_by(&key, &by.issuer),
        };
        let certificate = certificate.expect("a certificate").der().clone();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    fn identity(&self, name: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> Arc<CertifiedKey> {
        self.identity_through(name, algorithm, &[])
    }

    fn identity_through(
        &self,
        name: &str,
        algorithm: &'static rcgen::SignatureAlgorithm,
        between: &[&Authority],
    ) -> Arc<CertifiedKey> {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let mut chain = certificates(certificate.pem().as_bytes()).expect("it is PEM");
        chain.extend(between.iter().map(|authority| authority.certificate.clone()));
        certified(chain, key.serialize_pem().as_bytes()).expect("they belong together")
    }

    fn trust(&self) -> [CertificateDer<'static>; 1] {
        [self.certificate.clone()]
    }
}

const EC: &rcgen::SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;
const RSA: &rcgen::SignatureAlgorithm = &rcgen::PKCS_RSA_SHA256;

fn server_with(keys: Vec<Arc<CertifiedKey>>, versions: Versions, clients: Option<ClientTerms<'_>>) -> Server {
    Server::new(ServerTerms { keys, versions, clients, protocols: &["http/1.1"] }).expect("good terms")
}

fn server(authority: &Authority) -> Server {
    server_with(vec![authority.identity("a.test", EC)], Versions::ALL, None)
}

fn client_with(authority: &Authority, identity: Option<Arc<CertifiedKey>>) -> TlsConnector {
    let trust = authority.trust();
    TlsConnector::new(&UpstreamTerms { trust: Trust::Authorities(&trust), identity, protocols: &["http/1.1"] })
        .expect("good terms")
}

fn client(authority: &Authority) -> TlsConnector {
    client_with(authority, None)
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let connecting = TcpStream::connect(listener.local_addr().expect("it is bound"));
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    (connected.expect("it listens"), accepted.expect("it comes").0)
}

async fn handshake(
    server: &Server,
    client: &TlsConnector,
    name: &str,
) -> (Result<Stream, AcceptError>, io::Result<Stream>) {
    let (ours, theirs) = sockets().await;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    tokio::join!(accept(theirs, |_| Some(server.clone())), connect(ours, client, name))
}

async fn pair(server: &Server, client: &TlsConnector) -> (Stream, Stream) {
    let (server, client) = handshake(server, client, "a.test").await;
    (server.expect("a client"), client.expect("a server"))
}

async fn read(stream: &mut Stream, buffer: &mut [u8]) -> io::Result<usize> {
    poll_fn(|context| stream.poll_read(context, buffer)).await
}

async fn write(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += poll_fn(|context| stream.poll_write(context, &bytes[sent..])).await?;
    }
    Ok(())
}

async fn say(from: &mut Stream, to: &mut Stream, text: &[u8]) {
    write(from, text).await.expect("it is taken");
    let mut buffer = vec![0; text.len()];
    let mut got = 0;
    while got < text.len() {
        got += read(to, &mut buffer[got..]).await.expect("it comes");
    }
    assert_eq!(buffer, text);
}

#[tokio::test]
async fn bytes_pass_in_both_versions_and_with_both_kinds_of_keys() {
    let authority = Authority::new();
    for (tls12, tls13, version) in [(true, false, "TLSv1.2"), (false, true, "TLSv1.3"), (true, true, "TLSv1.3")] {
        for algorithm in [EC, RSA] {
            let keys = vec![authority.identity("a.test", algorithm)];
            let server = server_with(keys, Versions { tls12, tls13 }, None);
            let (mut server, mut client) = pair(&server, &client(&authority)).await;
            for round in 0..3 {
                say(&mut client, &mut server, format!("question {round}").as_bytes()).await;
                say(&mut server, &mut client, format!("answer {round}").as_bytes()).await;
            }
            let session = server.tls().expect("it is TLS");
            assert_eq!((session.version(), session.server_name()), (version, Some("a.test")));
            assert_eq!(session.protocol(), Some(&b"http/1.1"[..]));
            assert!(!session.cipher().is_empty() && !session.is_resumed());
            assert_eq!(session.cipher(), client.tls().expect("it is TLS").cipher());
        }
    }
}

#[tokio::test]
async fn a_megabyte_passes_to_readers_of_any_size() {
    let authority = Authority::new();
    let (mut server, mut client) = pair(&server(&authority), &client(&authority)).await;
    let bytes: Vec<u8> = (0..1 << 20).map(|at| (at * 7 % 251) as u8).collect();
    for size in [1, 7, 1000, 16 * 1024, 64 * 1024] {
        let part = if size == 1 { &bytes[..40_000] } else { &bytes[..] };
        let reading = async {
            let mut got = Vec::new();
            let mut buffer = vec![0; size];
            while got.len() < part.len() {
                let count = read(&mut server, &mut buffer).await.expect("it comes");
                got.extend_from_slice(&buffer[..count]);
            }
            got
        };
        let (sent, got) = tokio::join!(write(&mut client, part), reading);
        sent.expect("it is taken");
        assert!(got == part, "to a reader of {size} bytes");
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_makes_the_writer_wait() {
    let authority = Authority::new();
    let (mut server, mut client) = pair(&server(&authority), &client(&authority)).await;
    let block = vec![7; 1 << 20];
    let mut taken = 0_usize;
    // Pending means that nothing more fits on the way; the bytes offered then are offered again.
    loop {
        let written =
            poll_fn(|context| std::task::Poll::Ready(server.poll_write(context, &block[taken % 1000..]))).await;
        match written {
            std::task::Poll::Ready(count) => taken += count.expect("it is taken"),
            std::task::Poll::Pending => break,
        }
        assert!(taken < 1 << 28, "the writer never waits");
    }
    let reading = async {
        let mut got = 0;
        let mut buffer = vec![0; 64 * 1024];
        while got < taken + 5 {
            got += read(&mut client, &mut buffer).await.expect("it comes");
        }
        got
    };
    let finishing = async {
        let count = poll_fn(|context| server.poll_write(context, &block[taken % 1000..])).await.expect("it is taken");
        write(&mut server, b"done!").await.expect("it is taken");
        count
    };
    let (got, last) = tokio::join!(reading, finishing);
    assert!(got >= taken + 5 && got <= taken + last + 5, "{got} of {taken} + {last} + 5");
}

#[tokio::test]
async fn an_end_in_order_is_an_end_and_any_other_is_not() {
    let authority = Authority::new();
    let (server, client) = (server(&authority), client(&authority));
    let (mut left, mut right) = pair(&server, &client).await;
    write(&mut left, b"last words").await.expect("it is taken");
    poll_fn(|context| left.poll_shutdown(context)).await.expect("it is said");
    let mut buffer = [0; 64];
    assert_eq!(read(&mut right, &mut buffer).await.expect("it comes"), 10);
    assert_eq!(read(&mut right, &mut buffer).await.expect("the end"), 0);
    say(&mut right, &mut left, b"the other direction goes on").await;

    let (left, mut right) = pair(&server, &client).await;
    drop(left);
    let error = read(&mut right, &mut buffer).await.expect_err("it was cut off");
    assert!(matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{error}");
}

#[tokio::test]
async fn an_idle_client_takes_tickets_for_nothing() {
    let authority = Authority::new();
    let (server, client) = (server(&authority), client(&authority));
    let (mut served, mut idle) = pair(&server, &client).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(idle.is_quiet(), "tickets are not for readers");
    assert!(idle.is_alive());
    say(&mut idle, &mut served, b"hello").await;
    say(&mut served, &mut idle, b"hello").await;
    write(&mut served, b"unasked").await.expect("it is taken");
    while idle.is_quiet() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn sessions_are_resumed_under_the_same_scope_and_name_alone() {
    let authority = Authority::new();
    let (mine, other) = (authority.trust(), Authority::new().trust());
    let terms = |authorities, demand| ClientTerms { trust: ClientTrust::Authorities(authorities, 1), demand };
    let keys = || vec![authority.identity("a.test", EC), authority.identity("b.test", EC)];
    let identity = authority.identity("somebody", EC);
    for versions in [Versions { tls12: true, tls13: false }, Versions { tls12: false, tls13: true }] {
        let plain = server_with(keys(), versions, None);
        let strict = server_with(keys(), versions, Some(terms(&mine, ClientDemand::Valid)));
        let lax = server_with(keys(), versions, Some(terms(&mine, ClientDemand::ValidOrNone)));
        let laxest = server_with(keys(), versions, Some(terms(&other, ClientDemand::Nothing)));
        let foreign = server_with(keys(), versions, Some(terms(&other, ClientDemand::ValidOrNone)));
        let again = server_with(keys(), versions, Some(terms(&mine, ClientDemand::Valid)));
        let client = client_with(&authority, Some(identity.clone()));
        let resumes = async |server: &Server| {
            let (server, client) = handshake(server, &client, "a.test").await;
            let (Ok(mut server), Ok(mut client)) = (server, client) else { return None };
            say(&mut server, &mut client, b"tickets come before this").await;
            let session = server.tls().expect("it is TLS");
            Some((session.is_resumed(), session.peer_certificate().is_some()))
        };
        assert_eq!(resumes(&strict).await, Some((false, true)));
        assert_eq!(resumes(&strict).await, Some((true, true)));
        assert_eq!(resumes(&again).await, Some((true, true)), "a configuration that asks the same");
        assert_eq!(resumes(&lax).await, Some((false, true)), "{versions:?}");
        assert_eq!(resumes(&plain).await, Some((false, false)), "{versions:?}");
        assert_eq!(resumes(&strict).await, Some((false, true)), "a session without proof is worth nothing here");
        assert_eq!(resumes(&foreign).await, None, "its certificate is not good there, whatever was agreed elsewhere");
        assert_eq!(resumes(&laxest).await, Some((false, false)), "it does not count");
        assert_eq!(resumes(&laxest).await, Some((true, false)), "nor does the one in a ticket");
    }
}

/// An X.509-SVID.
fn svid(authority: &Authority, id: &str, between: &[&Authority]) -> Arc<CertifiedKey> {
    let key = KeyPair::generate_for(EC).expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![rcgen::SanType::URI(id.try_into().expect("ASCII"))];
    let certificate = params.signed_by(&key, &authority.issuer).expect("a certificate");
    let mut chain = vec![certificate.der().clone()];
    chain.extend(between.iter().map(|authority| authority.certificate.clone()));
    certified(chain, key.serialize_pem().as_bytes()).expect("they belong together")
}

fn peers(authority: &Authority, id: &str) -> SpiffePeers {
    let mut bundles = TrustBundles::default();
    bundles.add("a.test", &authority.trust()).expect("a bundle");
    SpiffePeers { bundles: Arc::new(bundles), ids: [SpiffeId::parse(id).expect("an id")].into() }
}

/// Whether the client's certificate counts, and whether the session was resumed; `None` if the handshake fails. Tickets are exchanged.
async fn proves(server: &Server, client: &TlsConnector) -> Option<(bool, bool)> {
    let (server, client) = handshake(server, client, "a.test").await;
    let (Ok(mut server), Ok(mut client)) = (server, client) else { return None };
    say(&mut server, &mut client, b"tickets come before this").await;
    let session = server.tls().expect("it is TLS");
    Some((session.peer_certificate().is_some(), session.is_resumed()))
}

#[tokio::test]
async fn spiffe_client_of_a_removed_authority_is_refused_in_spite_of_its_tickets() {
    let (old, new) = (Authority::new(), Authority::new());
    for versions in [Versions { tls12: true, tls13: false }, Versions { tls12: false, tls13: true }] {
        let server = |peers: &SpiffePeers, demand| {
            let clients = ClientTerms { trust: ClientTrust::Spiffe(peers), demand };
            server_with(vec![old.identity("a.test", EC)], versions, Some(clients))
        };
        let (before, after) = (peers(&old, "spiffe://a.test"), peers(&new, "spiffe://a.test"));
        let client = client_with(&old, Some(svid(&old, "spiffe://a.test/x", &[])));
        assert_eq!(proves(&server(&before, ClientDemand::Valid), &client).await, Some((true, false)));
        assert_eq!(proves(&server(&before, ClientDemand::Valid), &client).await, Some((true, false)), "{versions:?}");
        assert_eq!(proves(&server(&after, ClientDemand::Valid), &client).await, None, "{versions:?}");
        let lax = ClientDemand::Nothing;
        assert_eq!(proves(&server(&before, lax), &client).await, Some((true, false)), "{versions:?}");
        assert_eq!(proves(&server(&after, lax), &client).await, Some((false, false)), "{versions:?}");
    }
}

#[tokio::test]
async fn spiffe_clients_prove_who_they_are_as_far_as_asked() {
    let authority = Authority::new();
    let middle = Authority::signed(Some(&authority));
    let accepted = peers(&authority, "spiffe://a.test/x");
    let (direct, far) = (svid(&authority, "spiffe://a.test/x", &[]), svid(&middle, "spiffe://a.test/x", &[&middle]));
    let other = svid(&authority, "spiffe://a.test/y", &[]);
    for (demand, identity, expected) in [
        (ClientDemand::Valid, Some(&direct), Some(true)),
        (ClientDemand::Valid, Some(&far), Some(true)),
        (ClientDemand::Valid, Some(&other), None),
        (ClientDemand::Valid, None, None),
        (ClientDemand::ValidOrNone, None, Some(false)),
        (ClientDemand::ValidOrNone, Some(&other), None),
        (ClientDemand::Nothing, Some(&far), Some(true)),
        (ClientDemand::Nothing, Some(&other), Some(false)),
        (ClientDemand::Nothing, None, Some(false)),
    ] {
        let clients = ClientTerms { trust: ClientTrust::Spiffe(&accepted), demand };
        let server = server_with(vec![authority.identity("a.test", EC)], Versions::ALL, Some(clients));
        let counts = proves(&server, &client_with(&authority, identity.cloned())).await;
        assert_eq!(counts.map(|(counts, _)| counts), expected, "{demand:?}");
    }
}

#[tokio::test]
async fn spiffe_server_is_verified_with_each_connection() {
    let authority = Authority::new();
    let trusted = peers(&authority, "spiffe://a.test/x");
    let terms = UpstreamTerms { trust: Trust::Spiffe(&trusted), identity: None, protocols: &["http/1.1"] };
    let client = TlsConnector::new(&terms).expect("good terms");
    for versions in [Versions { tls12: true, tls13: false }, Versions { tls12: false, tls13: true }] {
        let server = server_with(vec![svid(&authority, "spiffe://a.test/x", &[])], versions, None);
        // The same server with another certificate, as one has whose own has expired: its tickets are good.
        let expired = server.with_keys(vec![svid(&authority, "spiffe://a.test/y", &[])]);
        for client in [&client, &client.apart()] {
            assert_eq!(proves(&server, client).await, Some((false, false)), "{versions:?}");
            assert_eq!(proves(&server, client).await, Some((false, false)), "it is not resumed with {versions:?}");
            assert_eq!(proves(&expired, client).await, None, "{versions:?}");
        }
    }
}

#[tokio::test]
async fn clients_must_prove_who_they_are_as_far_as_asked() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let middle = Authority::signed(Some(&authority));
    let far = Authority::signed(Some(&middle));
    let mine = authority.trust();
    let keys = || vec![authority.identity("a.test", EC)];
    let good = authority.identity("good", EC);
    let near = middle.identity_through("near", EC, &[&middle]);
    let remote = far.identity_through("remote", EC, &[&far, &middle]);
    let bad = stranger.identity("bad", EC);
    // Whether the certificate counts; `None` if the handshake fails.
    for (depth, demand, identity, expected) in [
        (1, ClientDemand::Valid, Some(&good), Some(true)),
        (1, ClientDemand::Valid, None, None),
        (1, ClientDemand::ValidOrNone, None, Some(false)),
        (1, ClientDemand::Nothing, None, Some(false)),
        (1, ClientDemand::Valid, Some(&bad), None),
        (1, ClientDemand::ValidOrNone, Some(&bad), None),
        (1, ClientDemand::Nothing, Some(&bad), Some(false)),
        (1, ClientDemand::Nothing, Some(&good), Some(true)),
        (0, ClientDemand::Valid, Some(&good), Some(true)),
        (0, ClientDemand::Valid, Some(&near), None),
        (0, ClientDemand::Nothing, Some(&near), Some(false)),
        (1, ClientDemand::Valid, Some(&near), Some(true)),
        (1, ClientDemand::Valid, Some(&remote), None),
        (2, ClientDemand::Valid, Some(&remote), Some(true)),
    ] {
        let server = server_with(
            keys(),
            Versions::ALL,
            Some(ClientTerms { trust: ClientTrust::Authorities(&mine, depth), demand }),
        );
        let client = client_with(&authority, identity.cloned());
        let (server, _) = handshake(&server, &client, "a.test").await;
        let counts = server.as_ref().map(|stream| stream.tls().is_some_and(|tls| tls.peer_certificate().is_some()));
        assert_eq!(counts.ok(), expected, "depth {depth}, {demand:?}: {:?}", server.err());
    }
}

#[tokio::test]
async fn servers_must_be_who_they_should_be_unless_nobody_cares() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = server(&authority);
    let (_, refused) = handshake(&server, &client(&authority), "b.test").await;
    let error = refused.expect_err("it is for another user").to_string();
    assert!(error.contains("b.test") && error.contains("a.test"), "{error}");
    let (_, refused) = handshake(&server, &client(&stranger), "a.test").await;
    let error = refused.expect_err("nobody known vouches for it").to_string();
    assert!(error.contains("UnknownIssuer"), "{error}");
    let careless = UpstreamTerms { trust: Trust::Unverified, identity: None, protocols: &[] };
    let careless = TlsConnector::new(&careless).expect("good terms");
    assert!(handshake(&server, &careless, "b.test").await.1.is_ok());
}

#[tokio::test]
async fn names_nobody_has_and_what_is_not_tls_are_told_apart() {
    let authority = Authority::new();
    let (ours, theirs) = sockets().await;
    let client = client(&authority);
    let name = ServerName::try_from("NoBody.test").expect("a name");
    let (refused, error) = tokio::join!(accept(theirs, |_| None), connect(ours, &client, name));
    assert!(matches!(refused, Err(AcceptError::UnknownName(Some(name))) if &*name == "nobody.test"));
    assert!(error.expect_err("it is refused").to_string().contains("UnrecognisedName"));

    let (mut ours, theirs) = sockets().await;
    ours.write_all(b"GET / HTTP/1.1\r\n").await.expect("it is taken");
    let refused = accept(theirs, |_| panic!("nobody is asked for")).await;
    let Err(AcceptError::NotTls(mut stream, said)) = refused else { panic!("it is not TLS") };
    assert_eq!(said, b"GET / HTTP/1.1\r\n");
    write(&mut stream, b"no").await.expect("it is taken");

    // A record that promises a ClientHello and holds none.
    let (mut ours, theirs) = sockets().await;
    ours.write_all(&[22, 3, 1, 0, 5, 9, 0, 0, 1, 0]).await.expect("it is taken");
    let refused = accept(theirs, |_| panic!("nobody is asked for")).await;
    assert!(matches!(refused, Err(AcceptError::Failed(_))));
    let mut told = Vec::new();
    ours.read_to_end(&mut told).await.expect("it is closed in order");
}

#[tokio::test]
async fn r09_a_client_that_trickles_its_hello_is_served() {
    let authority = Authority::new();
    let (server, client) = (server(&authority), client(&authority));
    let (ours, theirs) = sockets().await;
    let (front, mut back) = sockets().await;
    let (mut read_half, mut write_half) = ours.into_split();
    let name = ServerName::try_from("a.test").expect("a name");
    // Between the two sits somebody who passes the first bytes on one by one.
    let slow = tokio::spawn(async move {
        let mut hello = [0; 4096];
        let count = back.read(&mut hello).await.expect("a hello");
        for byte in &hello[..count] {
            write_half.write_all(&[*byte]).await.expect("it is taken");
            write_half.flush().await.expect("it is taken");
            tokio::task::yield_now().await;
        }
        let (mut back_read, mut back_write) = back.into_split();
        let _ = tokio::join!(
            tokio::io::copy(&mut read_half, &mut back_write),
            tokio::io::copy(&mut back_read, &mut write_half)
        );
    });
    let (server, client) = tokio::join!(accept(theirs, |_| Some(server.clone())), connect(front, &client, name));
    say(&mut client.expect("a server"), &mut server.expect("a client"), b"hello").await;
    slow.abort();
}

#[tokio::test]
async fn post_quantum_key_exchange_is_offered_and_taken() {
    // The named group stands in the ServerHello, so the traffic is looked at: 0x11ec is X25519MLKEM768.
    let authority = Authority::new();
    let (mut ours, theirs) = sockets().await;
    let (front, mut back) = sockets().await;
    let (server, client) = (server(&authority), client(&authority));
    let name = ServerName::try_from("a.test").expect("a name");
    let between = async {
        let mut answer = vec![0; 64 * 1024];
        let count = back.read(&mut answer).await.expect("a hello");
        ours.write_all(&answer[..count]).await.expect("it is taken");
        let count = ours.read(&mut answer).await.expect("an answer");
        let found =
            answer[..count].windows(4).any(|part| part == [0x00, 0x33, 0x04, 0x64] || part[..2] == [0x11, 0xec]);
        back.write_all(&answer[..count]).await.expect("it is taken");
        let _ = tokio::io::copy_bidirectional(&mut back, &mut ours).await;
        found
    };
    let talk = async {
        let (server, client) = tokio::join!(accept(theirs, |_| Some(server.clone())), connect(front, &client, name));
        say(&mut client.expect("a server"), &mut server.expect("a client"), b"hello").await;
    };
    assert!(tokio::join!(between, talk).0);
}

#[test]
fn keys_are_refused_with_their_reason() {
    let authority = Authority::new();
    let key = KeyPair::generate().expect("a key");
    let other = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["a.test".to_owned()]).expect("a name");
    let pem = params.signed_by(&key, &authority.issuer).expect("a certificate").pem();
    let chain = || certificates(pem.as_bytes()).expect("it is PEM");
    let refused = |key: &str| certified(chain(), key.as_bytes()).expect_err("it is refused");
    assert_eq!(refused(&other.serialize_pem()), KeyError::Mismatch);
    assert_eq!(refused(&pem), KeyError::NoKey);
    assert_eq!(refused(""), KeyError::NoKey);
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    assert_eq!(refused(encrypted), KeyError::Encrypted);
    let cut = &key.serialize_pem()[..60];
    assert!(matches!(refused(cut), KeyError::Damaged(_)), "{:?}", refused(cut));
    let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert!(matches!(refused(nonsense), KeyError::Unusable(_)), "{:?}", refused(nonsense));
    assert_eq!(certificates(key.serialize_pem().as_bytes()), Err(KeyError::NoCertificate));
}
