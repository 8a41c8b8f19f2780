//! Verification of certificates: of clients, and of upstreams without verification.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::facts::has_alt_name;
use super::provider;

/// Verifies client certificates against CAs, with a limit of the chain's length.
#[derive(Debug)]
pub struct ClientVerifier {
    authorities: Arc<RootCertStore>,
    inner: Arc<dyn ClientCertVerifier>,
    /// Limit of the intermediate certificates between the client's certificate and the CA.
    depth: usize,
    optional: bool,
}

impl ClientVerifier {
    /// `optional` accepts clients that send no certificate; one that is sent must be valid.
    ///
    /// # Errors
    /// There is no CA.
    pub fn new(authorities: Arc<RootCertStore>, depth: usize, optional: bool) -> Result<Self, VerifierBuilderError> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&authorities), provider());
        let builder = if optional { builder.allow_unauthenticated() } else { builder };
        Ok(ClientVerifier { inner: builder.build()?, authorities, depth, optional })
    }

    /// Whether a chain to a CA exists that is short enough.
    fn is_short(&self, client: &CertificateDer<'_>, between: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Ok(client) = webpki::EndEntityCert::try_from(client) else { return false };
        let short = |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count() <= self.depth {
            true => Ok(()),
            false => Err(webpki::Error::UnknownIssuer),
        };
        let algorithms = provider().signature_verification_algorithms.all;
        let usage = webpki::KeyUsage::client_auth();
        let path =
            client.verify_for_usage(algorithms, &self.authorities.roots, between, now, usage, None, Some(&short));
        path.is_ok()
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.optional
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        client: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(client, between, now)?;
        // No chain is longer than the certificates sent, so a short list needs no search.
        match between.len() <= self.depth || self.is_short(client, between, now) {
            true => Ok(verified),
            false => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Accepts certificates of servers that an authority has issued, and that have one of several names in place of the server's.
#[derive(Debug)]
pub struct AltNameVerifier {
    pub roots: RootCertStore,
    /// Host names and URIs.
    pub names: Box<[Box<str>]>,
}

impl ServerCertVerifier for AltNameVerifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let algorithms = provider().signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(server)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, algorithms)?;
        match self.names.iter().any(|name| has_alt_name(server, name)) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
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

/// Accepts every server certificate, for upstreams with `tls.verify: false`. The server must still own the certificate's key.
#[derive(Debug)]
pub struct AcceptAnyServer;

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _server: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
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
