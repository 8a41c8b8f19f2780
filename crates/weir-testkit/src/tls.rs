//! TLS for scripted peers: a certificate authority for tests, and blocking TLS connections.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, HandshakeKind, ProtocolVersion, RootCertStore, ServerConfig,
    ServerConnection,
};

use crate::sessions::Mixed;

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())))
}

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The CA certificate, as PEM.
    pub certificate: String,
}

/// A certificate with its key, both as PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// A request for a certificate, and the key that it is for.
#[derive(Clone, Debug)]
pub struct SigningRequest {
    /// PKCS #10.
    pub der: Vec<u8>,
    /// PEM.
    pub key: String,
}

impl SigningRequest {
    /// A request with a new key that asks for these names.
    pub fn new(names: &[&str], kind: KeyKind) -> SigningRequest {
        let key = kind.generate();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("a test knows how to write names");
        let request = params.serialize_request(&key).expect("it can sign");
        SigningRequest { der: request.der().to_vec(), key: key.serialize_pem() }
    }
}

impl KeyKind {
    fn generate(self) -> KeyPair {
        let key = match self {
            KeyKind::Ecdsa => KeyPair::generate(),
            KeyKind::Rsa => KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256),
        };
        key.expect("keys can be made")
    }
}

/// What kind of key an identity has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Ecdsa,
    Rsa,
}

impl Default for Authority {
    fn default() -> Self {
        Authority::new()
    }
}

impl Authority {
    /// A new authority.
    pub fn new() -> Authority {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let key = KeyPair::generate().expect("keys can be made");
        let mut params = CertificateParams::new([]).expect("there are no names to be wrong");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("authority {number}"));
        let certificate = params.self_signed(&key).expect("it can sign").pem();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    /// The shared authority, for tests that need only one.
    pub fn of_tests() -> &'static Authority {
        static AUTHORITY: OnceLock<Authority> = OnceLock::new();
        AUTHORITY.get_or_init(Authority::new)
    }

    /// Issues a certificate for these host names or addresses, for servers and clients.
    pub fn identity(&self, names: &[&str]) -> Identity {
        self.identity_with(names, KeyKind::Ecdsa, |_| ())
    }

    /// The same, with this kind of key, and further changes to the certificate by `change`.
    pub fn identity_with(
        &self,
        names: &[&str],
        kind: KeyKind,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Identity {
        let key = kind.generate();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).expect("a test knows how to write names");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name.push(DnType::CommonName, names.first().map_or("nobody", String::as_str));
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("it can sign").pem();
        Identity { certificate, key: key.serialize_pem() }
    }

    /// Issues a certificate for a client with these alternative names: URIs, e-mail addresses and DNS names.
    pub fn client_identity(&self, names: &[&str]) -> Identity {
        self.identity_with(&[], KeyKind::Ecdsa, |params| {
            let ia5 = |name: &str| name.try_into().expect("ASCII");
            params.subject_alt_names = names
                .iter()
                .map(|name| match (name.contains("://"), name.contains('@')) {
                    (true, _) => SanType::URI(ia5(name)),
                    (_, true) => SanType::Rfc822Name(ia5(name)),
                    _ => SanType::DnsName(ia5(name)),
                })
                .collect();
        })
    }

    /// Issues a certificate as public authorities do: for 90 days, and only for servers.
    pub fn public_identity(&self, name: &str, kind: KeyKind) -> Identity {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        self.identity_with(&[name], kind, |params| {
            let begun = SystemTime::now() - DAY;
            (params.not_before, params.not_after) = (begun.into(), (begun + 90 * DAY).into());
            params.is_ca = IsCa::ExplicitNoCa;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.use_authority_key_identifier_extension = true;
        })
    }
}

/// A store with this CA certificate.
fn roots(certificate: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(certificates(certificate).remove(0)).expect("it is one");
    Arc::new(roots)
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().expect("a test writes PEM")
}

impl Identity {
    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a test writes PEM");
        (certificates(&self.certificate), key)
    }
}

/// The TLS settings of a client. Clones share their sessions, so that these can be resumed.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
}

impl TlsClient {
    /// Trusts certificates issued by `authority`, and has no client certificate.
    pub fn trusting(authority: &Authority) -> TlsClient {
        TlsClient::trusting_certificate(&authority.certificate)
    }

    /// The same for another authority, given by its certificate in PEM.
    pub fn trusting_certificate(certificate: &str) -> TlsClient {
        TlsClient::with(certificate, None, &[&rustls::version::TLS13, &rustls::version::TLS12])
    }

    /// The same with a client certificate.
    pub fn known_as(authority: &Authority, identity: &Identity) -> TlsClient {
        TlsClient::known_to(&authority.certificate, identity)
    }

    /// The same for an authority given by its certificate in PEM.
    pub fn known_to(certificate: &str, identity: &Identity) -> TlsClient {
        TlsClient::with(certificate, Some(identity), &[&rustls::version::TLS13, &rustls::version::TLS12])
    }

    /// The same with a client certificate and only TLS 1.2.
    pub fn old_known_as(authority: &Authority, identity: &Identity) -> TlsClient {
        TlsClient::with(&authority.certificate, Some(identity), &[&rustls::version::TLS12])
    }

    /// Without a client certificate and with only TLS 1.2.
    pub fn old(authority: &Authority) -> TlsClient {
        TlsClient::with(&authority.certificate, None, &[&rustls::version::TLS12])
    }

    fn with(
        authority: &str,
        identity: Option<&Identity>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> TlsClient {
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority), provider()).build();
        let builder =
            builder.expect("they are supported").with_webpki_verifier(verifier.expect("there is an authority"));
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = identity.parts();
                builder.with_client_auth_cert(chain, key).expect("they belong together")
            }
        };
        TlsClient { config: Arc::new(config) }
    }

    /// The same, and offers these protocols with ALPN (RFC 7301), the preferred one first.
    pub fn speaking(&self, protocols: &[&str]) -> TlsClient {
        let mut config = (*self.config).clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsClient { config: Arc::new(config) }
    }

    /// The same, and offers its sessions to every server, whichever server they are from.
    pub fn mixing_sessions(&self) -> TlsClient {
        let mut config = (*self.config).clone();
        config.resumption = Resumption::store(Arc::new(Mixed::new()));
        TlsClient { config: Arc::new(config) }
    }

    /// The rustls configuration, for clients of other libraries.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    pub(crate) fn begin(&self, name: &str, tcp: TcpStream) -> io::Result<Wire> {
        let name = ServerName::try_from(name.to_owned()).expect("a test gives a valid name");
        let connection = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        let wire = Wire::secured(connection.into(), tcp);
        wire.handshake()?;
        Ok(wire)
    }
}

/// The TLS settings of an origin.
#[derive(Clone, Debug)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
}

impl TlsServer {
    /// Presents this certificate to every client.
    pub fn new(identity: &Identity) -> TlsServer {
        TlsServer::with(identity, None)
    }

    /// The same, and requires a client certificate issued by `authority`.
    pub fn asking(identity: &Identity, authority: &Authority) -> TlsServer {
        TlsServer::with(identity, Some(authority))
    }

    fn with(identity: &Identity, authority: Option<&Authority>) -> TlsServer {
        let (chain, key) = identity.parts();
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.expect("they are supported");
        let builder = match authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots(&authority.certificate), provider()).build();
                builder.with_client_cert_verifier(verifier.expect("there is an authority"))
            }
        };
        TlsServer { config: Arc::new(builder.with_single_cert(chain, key).expect("they belong together")) }
    }

    /// The same, and offers these protocols with ALPN (RFC 7301).
    pub fn speaking(&self, protocols: &[&str]) -> TlsServer {
        let mut config = (*self.config).clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsServer { config: Arc::new(config) }
    }

    /// The rustls configuration, for servers of other libraries.
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    pub(crate) fn begin(&self, tcp: TcpStream) -> io::Result<Wire> {
        let connection = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let wire = Wire::secured(connection.into(), tcp);
        wire.handshake()?;
        Ok(wire)
    }
}

/// The result of a TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedTls {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: String,
    pub cipher: String,
    pub resumed: bool,
    /// The server name that the client has requested; only in an origin.
    pub server_name: Option<String>,
    /// The certificates of the peer, in DER.
    pub certificates: Vec<Vec<u8>>,
}

/// A connection with or without TLS. Clones are the same connection.
#[derive(Clone)]
pub(crate) enum Wire {
    Plain(Arc<TcpStream>),
    Tls(Arc<TcpStream>, Arc<Mutex<Connection>>),
}

impl Wire {
    pub(crate) fn plain(tcp: TcpStream) -> Wire {
        Wire::Plain(Arc::new(tcp))
    }

    fn secured(connection: Connection, tcp: TcpStream) -> Wire {
        Wire::Tls(Arc::new(tcp), Arc::new(Mutex::new(connection)))
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Wire::Plain(tcp) | Wire::Tls(tcp, _) => tcp,
        }
    }

    fn handshake(&self) -> io::Result<()> {
        let Wire::Tls(tcp, connection) = self else { return Ok(()) };
        let mut connection = lock(connection);
        while connection.is_handshaking() {
            flush(&mut connection, tcp)?;
            if connection.is_handshaking() {
                receive(&mut connection, tcp)?;
            }
        }
        flush(&mut connection, tcp)
    }

    /// Sends close_notify with TLS, then closes the sending side.
    pub(crate) fn finish_sending(&self) {
        if let Wire::Tls(tcp, connection) = self {
            let mut connection = lock(connection);
            connection.send_close_notify();
            let _ = flush(&mut connection, tcp);
        }
        // Fails if the peer has closed already, which is fine.
        let _ = self.tcp().shutdown(std::net::Shutdown::Write);
    }

    /// `None` without TLS.
    pub(crate) fn agreed(&self) -> Option<NegotiatedTls> {
        let Wire::Tls(_, connection) = self else { return None };
        let connection = lock(connection);
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            _ => "",
        };
        let suite = connection.negotiated_cipher_suite();
        let server_name = match &*connection {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        };
        Some(NegotiatedTls {
            version: version.to_owned(),
            cipher: suite.map(|suite| format!("{:?}", suite.suite())).unwrap_or_default(),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            server_name,
            certificates: connection.peer_certificates().unwrap_or_default().iter().map(|der| der.to_vec()).collect(),
        })
    }
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flush(connection: &mut Connection, mut tcp: &TcpStream) -> io::Result<()> {
    while connection.wants_write() {
        uninterrupted(|| connection.write_tls(&mut tcp))?;
    }
    Ok(())
}

/// Repeats a call that a stop signal has interrupted: with a socket time-out, the system does not restart it (signal(7)).
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn receive(connection: &mut Connection, mut tcp: &TcpStream) -> io::Result<()> {
    let count = uninterrupted(|| connection.read_tls(&mut tcp))?;
    if let Err(error) = connection.process_new_packets() {
        let _ = flush(connection, tcp);
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    match count {
        0 if connection.is_handshaking() => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(tcp) => (&**tcp).read(buffer),
            Wire::Tls(tcp, connection) => {
                let mut connection = lock(connection);
                loop {
                    match connection.reader().read(buffer) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            // Writing may fail if the peer no longer reads, but what it has sent can still be read;
                            // reading reports its own error.
                            let _ = flush(&mut connection, tcp);
                            receive(&mut connection, tcp)?;
                        }
                        read => return read,
                    }
                }
            }
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(tcp) => (&**tcp).write(bytes),
            Wire::Tls(tcp, connection) => {
                let mut connection = lock(connection);
                let count = connection.writer().write(bytes)?;
                flush(&mut connection, tcp)?;
                Ok(count)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
