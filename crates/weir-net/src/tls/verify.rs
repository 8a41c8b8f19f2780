//! Verification of certificates: of clients, and of upstreams that are verified otherwise than by their name.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::facts::has_uri;
use super::provider;
use super::spiffe::SpiffePeers;

/// What is demanded of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientDemand {
    /// They send a certificate, and it is valid.
    Valid,
    /// They may send none; one that is sent is valid.
    ValidOrNone,
    /// Nothing: one that is not valid is taken for none. Even then, a client owns the key of the one that it sends.
    Nothing,
}

/// Verifies client certificates.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    trust: VerifiedTrust,
    demand: ClientDemand,
}

#[derive(Debug)]
enum VerifiedTrust {
    /// One of these CAs, with a limit of the chain's length.
    Authorities {
        roots: Arc<RootCertStore>,
        inner: Arc<dyn ClientCertVerifier>,
        /// Limit of the intermediate certificates between the client's certificate and the CA.
        depth: usize,
    },
    Spiffe(SpiffePeers),
}

impl ClientVerifier {
    /// # Errors
    /// There is no CA.
    pub(crate) fn new(
        authorities: Arc<RootCertStore>,
        depth: usize,
        demand: ClientDemand,
    ) -> Result<Self, VerifierBuilderError> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&authorities), provider());
        let builder = if demand == ClientDemand::Valid { builder } else { builder.allow_unauthenticated() };
        let trust = VerifiedTrust::Authorities { inner: builder.build()?, roots: authorities, depth };
        Ok(ClientVerifier { trust, demand })
    }

    pub(crate) fn of_spiffe(peers: SpiffePeers, demand: ClientDemand) -> ClientVerifier {
        ClientVerifier { trust: VerifiedTrust::Spiffe(peers), demand }
    }

    /// Whether the certificates that a client has sent, its own first, are valid at this time.
    pub(crate) fn is_valid(&self, sent: &[CertificateDer<'_>], now: UnixTime) -> bool {
        sent.split_first().is_some_and(|(client, between)| self.verify(client, between, now).is_ok())
    }

    fn verify(
        &self,
        client: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match &self.trust {
            VerifiedTrust::Authorities { roots, inner, depth } => {
                let verified = inner.verify_client_cert(client, between, now)?;
                // No chain is longer than the certificates sent, so a short list needs no search.
                match between.len() <= *depth || is_short(roots, *depth, client, between, now) {
                    true => Ok(verified),
                    false => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
                }
            }
            VerifiedTrust::Spiffe(peers) => {
                peers.verify(client, between, now, webpki::KeyUsage::client_auth())?;
                Ok(ClientCertVerified::assertion())
            }
        }
    }
}

/// Whether a chain to a CA exists that is short enough.
fn is_short(
    roots: &RootCertStore,
    depth: usize,
    client: &CertificateDer<'_>,
    between: &[CertificateDer<'_>],
    now: UnixTime,
) -> bool {
    let Ok(client) = webpki::EndEntityCert::try_from(client) else { return false };
    let short = |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count() <= depth {
        true => Ok(()),
        false => Err(webpki::Error::UnknownIssuer),
    };
    let algorithms = provider().signature_verification_algorithms.all;
    let usage = webpki::KeyUsage::client_auth();
    client.verify_for_usage(algorithms, &roots.roots, between, now, usage, None, Some(&short)).is_ok()
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.demand == ClientDemand::Valid
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &self.trust {
            VerifiedTrust::Authorities { inner, .. } => inner.root_hint_subjects(),
            // Workloads have one identity for all peers, and choose none by its authority.
            VerifiedTrust::Spiffe(_) => &[],
        }
    }

    fn verify_client_cert(
        &self,
        client: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.demand {
            ClientDemand::Valid | ClientDemand::ValidOrNone => self.verify(client, between, now),
            // The handshake goes on; `accept` asks `is_valid` whether the certificate counts.
            ClientDemand::Nothing => Ok(ClientCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Verifies certificates of servers otherwise than by an authority and the name of the server. The server must still own the key of
/// its certificate.
#[derive(Debug)]
pub(super) enum ServerVerifier {
    /// Every certificate is accepted, for upstreams with `tls.verify: false`.
    Any,
    /// An authority has issued the certificate, and it has one of these names in place of the server's.
    OneOf { roots: RootCertStore, names: Box<[AltName]> },
    /// It is that of one of these workloads.
    Spiffe(SpiffePeers),
}

/// A subject alternative name that a certificate must have.
#[derive(Debug)]
pub(super) enum AltName {
    /// A wildcard of the certificate may cover it.
    Host(ServerName<'static>),
    /// The same text.
    Uri(Box<str>),
}

impl AltName {
    pub(super) fn new(text: &str) -> AltName {
        match ServerName::try_from(text) {
            Ok(name) => AltName::Host(name.to_owned()),
            Err(_) => AltName::Uri(text.into()),
        }
    }

    fn is_of(&self, certificate: &CertificateDer<'_>, parsed: &ParsedCertificate<'_>) -> bool {
        match self {
            AltName::Host(name) => verify_server_name(parsed, name).is_ok(),
            AltName::Uri(uri) => has_uri(certificate, uri),
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self {
            ServerVerifier::Any => {}
            ServerVerifier::OneOf { roots, names } => {
                let algorithms = provider().signature_verification_algorithms.all;
                let parsed = ParsedCertificate::try_from(server)?;
                verify_server_cert_signed_by_trust_anchor(&parsed, roots, between, now, algorithms)?;
                if !names.iter().any(|name| name.is_of(server, &parsed)) {
                    return Err(Error::InvalidCertificate(CertificateError::NotValidForName));
                }
            }
            ServerVerifier::Spiffe(peers) => {
                peers.verify(server, between, now, webpki::KeyUsage::server_auth())?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn alternative_names_are_host_names_and_uris() {
        let mut params = CertificateParams::new(["a.test".to_owned(), "*.b.test".to_owned()]).expect("names");
        params.subject_alt_names.push(SanType::URI("spiffe://a.test/ns/One".try_into().expect("ASCII")));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").der().clone();
        let parsed = ParsedCertificate::try_from(&certificate).expect("a certificate");
        let has = |name: &str| AltName::new(name).is_of(&certificate, &parsed);
        assert!(has("A.test") && has("x.b.test") && has("spiffe://a.test/ns/One"));
        assert!(!has("b.test") && !has("x.y.b.test") && !has("spiffe://a.test/ns/one") && !has(""));
    }
}
