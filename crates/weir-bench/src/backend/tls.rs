//! The certificate of the backend.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsFiles;

/// The server side of TLS: HTTP/1.1 and HTTP/2 by ALPN.
pub(super) fn acceptor(files: &TlsFiles) -> io::Result<Arc<ServerConfig>> {
    let (certificates, key) = match files {
        TlsFiles::SelfSigned => self_signed().map_err(io::Error::other)?,
        TlsFiles::Files { certificate, key } => {
            let wrong = |path: &std::path::Path, error: rustls::pki_types::pem::Error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {error}", path.display()))
            };
            let chain = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect)
                .map_err(|error| wrong(certificate, error))?;
            (chain, PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error))?)
        }
    };
    let mut config = ServerConfig::builder_with_provider(crate::engine::provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    Ok(Arc::new(config))
}

fn self_signed() -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), rcgen::Error> {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names)?;
    Ok((vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into())))
}
