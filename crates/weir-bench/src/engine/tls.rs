//! The TLS settings of the generator: no verification, or the given CA certificates.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::plan::{ClientTls, PlanError, Protocol};

/// The client configuration for a plan.
pub(super) fn client_config(tls: &ClientTls, protocol: &Protocol) -> Result<Arc<ClientConfig>, PlanError> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions");
    let mut config = match &tls.ca_file {
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(algorithms))),
        Some(path) => {
            let wrong = |problem: String| PlanError::new("tls.ca_file", format!("{}: {problem}", path.display()));
            let mut roots = RootCertStore::empty();
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("holds no certificate".to_owned()));
            }
            builder.with_root_certificates(roots)
        }
    }
    .with_no_client_auth();
    if !tls.resume {
        config.resumption = Resumption::disabled();
    }
    config.alpn_protocols = match protocol {
        Protocol::Http2 { .. } => vec![b"h2".to_vec()],
        Protocol::Http3 { .. } => vec![b"h3".to_vec()],
        Protocol::Tcp { .. } => Vec::new(),
        _ => vec![b"http/1.1".to_vec()],
    };
    Ok(Arc::new(config))
}

/// The crypto provider that the whole program uses.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Accepts any certificate, but still verifies that the peer has its key.
#[derive(Debug)]
struct AcceptAnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
