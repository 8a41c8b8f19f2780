//! TLS configurations of a client, each built when the first call needs it.

use std::io;
use std::sync::{Arc, LazyLock, OnceLock};

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use weir_net::tls::{CertificateDer, TlsConnector as TlsTerms, Trust, UpstreamTerms};

use crate::settings::{Authorities, HttpProtocol, ServerVerification};

/// The system's CAs. Loading takes milliseconds and there are hundreds, so it is done once.
static SYSTEM: LazyLock<Vec<CertificateDer<'static>>> =
    LazyLock::new(|| rustls_native_certs::load_native_certs().certs);

/// Calls with equal keys may share a TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TlsKey {
    Verify(HttpProtocol),
    Skip(HttpProtocol),
    Terms([u8; 32]),
}

impl TlsKey {
    pub(crate) fn of(verification: &ServerVerification, protocol: HttpProtocol) -> TlsKey {
        match verification {
            ServerVerification::Verify => TlsKey::Verify(protocol),
            ServerVerification::Skip => TlsKey::Skip(protocol),
            ServerVerification::Terms(terms) => TlsKey::Terms(terms.id()),
        }
    }
}

/// The configurations built so far, by protocol: four that verify, then four that do not.
#[derive(Debug, Default)]
pub(crate) struct TlsConfigs([OnceLock<Result<Arc<ClientConfig>, String>>; 8]);

impl TlsConfigs {
    /// The connector for HTTP with `protocol`, or without ALPN for other protocols.
    ///
    /// # Errors
    /// A CA certificate cannot be used, or the system has none.
    pub(crate) fn connector(
        &self,
        authorities: &Authorities,
        verification: &ServerVerification,
        protocol: Option<HttpProtocol>,
    ) -> io::Result<TlsConnector> {
        let (verify, offset) = match verification {
            ServerVerification::Terms(terms) => return Ok(Arc::clone(terms.config()).into()),
            ServerVerification::Verify => (true, 0),
            ServerVerification::Skip => (false, 4),
        };
        let (number, protocols): (usize, &[&str]) = match protocol {
            Some(HttpProtocol::Http1) => (0, &["http/1.1"]),
            Some(HttpProtocol::Http2) => (1, &["h2"]),
            Some(HttpProtocol::Negotiate) => (2, &["h2", "http/1.1"]),
            None => (3, &[]),
        };
        let config = self.0[offset + number].get_or_init(|| {
            let trust = match authorities {
                _ if !verify => Trust::Unverified,
                Authorities::Own(own) => Trust::Authorities(own),
                Authorities::System if SYSTEM.is_empty() => {
                    return Err("this system has no CA certificates; install ca-certificates".to_owned());
                }
                Authorities::System => Trust::System(&SYSTEM),
            };
            let terms = UpstreamTerms { trust, identity: None, protocols };
            let client = TlsTerms::new(&terms).map_err(|wrong| wrong.to_string())?;
            Ok(Arc::clone(client.config()))
        });
        config.clone().map(TlsConnector::from).map_err(io::Error::other)
    }
}
