//! Builds the TLS configurations of both sides from plain terms.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::client::{Resumption, WantsClientCert};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, SupportedProtocolVersion, WantsVerifier};

use super::hashing::{add, finish};
use super::keys::Keys;
use super::provider;
use super::spiffe::SpiffePeers;
use super::tickets::{FullHandshakes, Scope, TicketKeys, Tickets};
use super::verify::{AltName, ClientDemand, ClientVerifier, ServerVerifier};

/// The TLS versions allowed; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub tls12: bool,
    pub tls13: bool,
}

impl Versions {
    pub const ALL: Versions = Versions { tls12: true, tls13: true };

    fn list(self) -> Vec<&'static SupportedProtocolVersion> {
        [(self.tls13, &TLS13), (self.tls12, &TLS12)].iter().filter(|(on, _)| *on).map(|(_, version)| *version).collect()
    }
}

/// The most early data, in bytes of records, that is skipped before a handshake goes on without it. A client sends it before it can
/// know that it is not accepted, with a ticket of another server of the same name; that server decides how much.
const MOST_SKIPPED: u32 = 1 << 20;

/// The TLS settings of a server name.
#[derive(Debug)]
pub struct ServerTerms<'a> {
    /// A client gets the first one it supports, ECDSA before RSA. Without any, every handshake is refused.
    pub keys: Vec<Arc<CertifiedKey>>,
    pub versions: Versions,
    /// `Some` requests certificates from clients.
    pub clients: Option<ClientTerms<'a>>,
    /// The ALPN protocols, in order of preference (RFC 7301).
    pub protocols: &'a [&'a str],
}

/// Which client certificates are accepted.
#[derive(Debug)]
pub struct ClientTerms<'a> {
    pub trust: ClientTrust<'a>,
    pub demand: ClientDemand,
}

/// Who vouches for clients.
#[derive(Clone, Copy, Debug)]
pub enum ClientTrust<'a> {
    /// One of these CAs, with at most this many intermediate certificates between a client's certificate and the CA.
    Authorities(&'a [CertificateDer<'static>], usize),
    /// The trust domain of the client. Each handshake is a full one: a ticket would let a client in whose authority has been taken out
    /// of the bundle.
    Spiffe(&'a SpiffePeers),
}

/// Terms that rustls cannot implement.
#[derive(Debug)]
pub struct InvalidTerms(String);

impl fmt::Display for InvalidTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn wrong(error: impl fmt::Display) -> InvalidTerms {
    InvalidTerms(error.to_string())
}

/// The TLS configuration for a server name.
#[derive(Clone, Debug)]
pub struct Server {
    pub(crate) config: Arc<ServerConfig>,
    /// The same without resumption, if clients are asked for certificates: a ticket must not outlive the certificate in it. `None` also
    /// if `config` resumes nothing: see [`ClientTrust::Spiffe`].
    pub(crate) full: Option<Arc<ServerConfig>>,
    /// Tells whether a client's certificate counts, if the handshake accepts every one.
    pub(crate) judge: Option<Arc<ClientVerifier>>,
    scope: Scope,
    has_keys: bool,
}

impl Server {
    /// # Errors
    /// A certificate of an authority is invalid.
    pub fn new(terms: ServerTerms<'_>) -> Result<Server, InvalidTerms> {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(&terms.versions.list()).map_err(wrong)?;
        let (builder, scope, judge) = match &terms.clients {
            None => (builder.with_no_client_auth(), Scope::default(), None),
            Some(clients) => {
                let verifier = Arc::new(match clients.trust {
                    ClientTrust::Authorities(authorities, depth) => {
                        let authorities = Arc::new(roots(authorities)?);
                        ClientVerifier::new(authorities, depth, clients.demand).map_err(wrong)?
                    }
                    ClientTrust::Spiffe(peers) => ClientVerifier::of_spiffe(peers.clone(), clients.demand),
                });
                let judge = (clients.demand == ClientDemand::Nothing).then(|| Arc::clone(&verifier));
                (builder.with_client_cert_verifier(verifier), scope(clients), judge)
            }
        };
        let has_keys = !terms.keys.is_empty();
        let mut config = builder.with_cert_resolver(Arc::new(Keys::new(terms.keys)));
        config.alpn_protocols = terms.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        // The server stores no sessions: clients send them in tickets.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        let tickets = Arc::new(Tickets::new(TicketKeys::of_process().map_err(wrong)?, scope));
        config.ticketer = Arc::clone(&tickets) as _;
        // Nothing of it is accepted: with a ticketer, rustls neither takes early data nor offers to in its tickets.
        config.max_early_data_size = MOST_SKIPPED;
        let full = match terms.clients.map(|clients| clients.trust) {
            None => None,
            Some(ClientTrust::Authorities(..)) => {
                let mut full = config.clone();
                full.ticketer = Arc::new(FullHandshakes(tickets));
                Some(Arc::new(full))
            }
            Some(ClientTrust::Spiffe(_)) => {
                config.ticketer = Arc::new(FullHandshakes(tickets));
                None
            }
        };
        Ok(Server { config: Arc::new(config), full, judge, scope, has_keys })
    }

    /// The same terms for other certificates; `keys` as in [`ServerTerms`].
    pub fn with_keys(&self, keys: Vec<Arc<CertifiedKey>>) -> Server {
        let has_keys = !keys.is_empty();
        let keys = Arc::new(Keys::new(keys));
        Server { has_keys, ..self.changed(|config| config.cert_resolver = Arc::clone(&keys) as _) }
    }

    /// The same terms without application protocols (ALPN), for connections whose protocol is not known. A client that insists on one
    /// of its protocols would otherwise be refused.
    pub fn without_protocols(&self) -> Server {
        self.changed(|config| config.alpn_protocols.clear())
    }

    /// The same terms for HTTP/3, over QUIC (RFC 9001 §4.6.1: it has no early data, or any amount). A client that has shown a
    /// certificate makes a full handshake each time.
    pub(crate) fn quic_config(&self) -> Arc<ServerConfig> {
        let mut config = (**self.full.as_ref().unwrap_or(&self.config)).clone();
        config.alpn_protocols = vec![b"h3".to_vec()];
        config.max_early_data_size = 0;
        Arc::new(config)
    }

    fn changed(&self, change: impl Fn(&mut ServerConfig)) -> Server {
        let with = |config: &Arc<ServerConfig>| {
            let mut config = (**config).clone();
            change(&mut config);
            Arc::new(config)
        };
        Server {
            config: with(&self.config),
            full: self.full.as_ref().map(with),
            judge: self.judge.clone(),
            scope: self.scope,
            has_keys: self.has_keys,
        }
    }

    /// Whether it has a certificate. Without any, every handshake is refused.
    pub fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// The configuration with which a client that must prove who it is does so with each connection.
    pub fn full_config(&self) -> &Arc<ServerConfig> {
        self.full.as_ref().unwrap_or(&self.config)
    }

    /// The rustls configuration, for other users of rustls than this module.
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Equal for servers with the same requirements of client certificates.
    pub fn scope(&self) -> Scope {
        self.scope
    }
}

fn scope(clients: &ClientTerms<'_>) -> Scope {
    let mut hash = Context::new(&SHA256);
    hash.update(&[clients.demand as u8]);
    match clients.trust {
        ClientTrust::Authorities(authorities, depth) => {
            hash.update(&depth.to_be_bytes());
            authorities.iter().for_each(|authority| add(&mut hash, authority));
        }
        ClientTrust::Spiffe(peers) => peers.add_ids(&mut hash),
    }
    finish(hash)
}

fn hash_authorities(hash: &mut Context, authorities: &[CertificateDer<'static>]) {
    hash.update(b"authorities");
    authorities.iter().for_each(|authority| add(hash, authority));
}

fn roots(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, InvalidTerms> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).map_err(wrong)?;
    }
    Ok(roots)
}

/// The TLS settings for connections to upstreams.
#[derive(Debug)]
pub struct UpstreamTerms<'a> {
    pub trust: Trust<'a>,
    /// The client certificate.
    pub identity: Option<Arc<CertifiedKey>>,
    pub protocols: &'a [&'a str],
}

/// Which server certificates are trusted.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Any, without verification.
    Unverified,
    /// Those issued by one of these CAs.
    Authorities(&'a [CertificateDer<'static>]),
    /// Those issued by one of the system's CAs; unusable ones are skipped, since they are not in the user's hands.
    System(&'a [CertificateDer<'static>]),
    /// Those of these workloads, whatever the name of the server is. No session is resumed: it would go on with a server whose
    /// certificate has expired.
    Spiffe(&'a SpiffePeers),
}

/// The TLS configuration of a client for upstreams. Clones share their sessions.
#[derive(Clone, Debug)]
pub struct TlsConnector {
    pub(crate) config: Arc<ClientConfig>,
    id: [u8; 32],
    /// The server that connections must be with; `None` if that depends on their address or the request.
    server: Option<ServerName<'static>>,
    /// See [`Trust::Spiffe`].
    verifies_workloads: bool,
}

fn verifying(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    roots: RootCertStore,
    alt_names: &[Box<str>],
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    match alt_names.is_empty() {
        true => builder.with_root_certificates(roots),
        false => {
            let names = alt_names.iter().map(|name| AltName::new(name)).collect();
            let verifier = ServerVerifier::OneOf { roots, names };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    }
}

/// Limit of sessions stored for resumption, by server name.
const SESSIONS: usize = 64;

fn resumption(verifies_workloads: bool) -> Resumption {
    if verifies_workloads { Resumption::disabled() } else { Resumption::in_memory_sessions(SESSIONS) }
}

impl TlsConnector {
    /// # Errors
    /// A certificate of an authority is invalid.
    pub fn new(terms: &UpstreamTerms<'_>) -> Result<TlsConnector, InvalidTerms> {
        TlsConnector::accepting(terms, &[])
    }

    /// Certificates must have one of `alt_names`, host names and URIs; if there are none, the name of the server.
    ///
    /// # Errors
    /// A certificate of an authority is invalid.
    pub fn accepting(terms: &UpstreamTerms<'_>, alt_names: &[Box<str>]) -> Result<TlsConnector, InvalidTerms> {
        let mut hash = Context::new(&SHA256);
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(&Versions::ALL.list()).map_err(wrong)?;
        let builder = match terms.trust {
            Trust::Unverified => builder.dangerous().with_custom_certificate_verifier(Arc::new(ServerVerifier::Any)),
            Trust::Authorities(authorities) => {
                hash_authorities(&mut hash, authorities);
                verifying(builder, roots(authorities)?, alt_names)
            }
            Trust::System(authorities) => {
                hash_authorities(&mut hash, authorities);
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(authorities.iter().cloned());
                verifying(builder, roots, alt_names)
            }
            Trust::Spiffe(peers) => {
                peers.add_all(&mut hash);
                let verifier = ServerVerifier::Spiffe(peers.clone());
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        alt_names.iter().for_each(|name| add(&mut hash, name.as_bytes()));
        let mut config = match &terms.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                hash.update(b"identity");
                identity.cert.iter().for_each(|certificate| add(&mut hash, certificate));
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(identity))))
            }
        };
        config.alpn_protocols = terms.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        terms.protocols.iter().for_each(|name| add(&mut hash, name.as_bytes()));
        let verifies_workloads = matches!(terms.trust, Trust::Spiffe(_));
        config.resumption = resumption(verifies_workloads);
        Ok(TlsConnector { config: Arc::new(config), id: finish(hash), server: None, verifies_workloads })
    }

    /// The same terms for one server, whose name is sent and verified in place of any other.
    pub fn for_server(self, name: ServerName<'static>) -> TlsConnector {
        TlsConnector { server: Some(name), ..self }
    }

    /// The server that connections are to be with; `None` if that depends on their address or the request.
    pub fn server(&self) -> Option<&ServerName<'static>> {
        self.server.as_ref()
    }

    /// The same terms with a session store of its own.
    pub fn apart(&self) -> TlsConnector {
        let mut config = (*self.config).clone();
        config.resumption = resumption(self.verifies_workloads);
        TlsConnector { config: Arc::new(config), server: self.server.clone(), ..*self }
    }

    /// Whether the certificates of servers are verified by their SPIFFE IDs, and not by the name of the server.
    pub fn verifies_workloads(&self) -> bool {
        self.verifies_workloads
    }

    /// The same terms, which are equal to no others: no connection is shared with other users of these terms.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn unshared(&self) -> Result<TlsConnector, InvalidTerms> {
        let mut id = [0; 32];
        aws_lc_rs::rand::fill(&mut id).map_err(wrong)?;
        Ok(TlsConnector { id, ..self.apart() })
    }

    /// The rustls configuration, for other users of rustls than this module.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Equal for connectors with the same terms.
    pub fn id(&self) -> [u8; 32] {
        self.id
    }
}
