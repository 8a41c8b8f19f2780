//! Whom we believe to be a service, over TLS.

use std::io;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trust {
    /// Whom the authorities of this system vouch for.
    System,
    Anybody,
}

static SYSTEM: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err("this system has no certificates of authorities".to_owned());
    }
    let config = builder()?.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
});

static ANYBODY: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = builder()?.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)));
    Ok(Arc::new(config.with_no_client_auth()))
});

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())
}

impl Trust {
    /// Reads the system's authorities where they are needed, so that no worker has to.
    pub(super) fn of(verify: bool) -> Trust {
        if verify {
            LazyLock::force(&SYSTEM);
            Trust::System
        } else {
            Trust::Anybody
        }
    }

    pub(super) fn config(self) -> io::Result<Arc<ClientConfig>> {
        let config = match self {
            Trust::System => &*SYSTEM,
            Trust::Anybody => &*ANYBODY,
        };
        config.clone().map_err(io::Error::other)
    }
}

/// Believes everybody (`ssl_verify: false`). The connection is still secret to those who only listen.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
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
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
