//! Settings of a client, and of one call.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_net::tls::{CertificateDer, TlsConnector as TlsTerms};

use crate::filter::AddressFilter;
use crate::resolver::DnsSettings;

/// Settings that apply to every call of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HttpClientSettings {
    pub dns: DnsSettings,
    pub authorities: Authorities,
    pub addresses: AddressFilter,
    /// Where connections lead in place of the host and port of the URL, which stay the name in the handshake and `Host`.
    pub connect_to: Option<SocketAddr>,
}

/// The CAs that are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Authorities {
    /// Those of this system. They are loaded when the first server is verified.
    #[default]
    System,
    /// Only these.
    Own(Arc<[CertificateDer<'static>]>),
}

/// Settings of one call.
#[derive(Clone, Debug)]
pub struct CallSettings {
    /// For name lookup, connection and TLS handshake together.
    pub connect_timeout: Duration,
    /// From the call to the last byte of the response, including the connection. For a streamed response: to the end of its
    /// head, and from each piece of content to the next.
    pub timeout: Duration,
    pub idle: IdleConnections,
    pub protocol: HttpProtocol,
    pub verification: ServerVerification,
    /// Limit of the response's content in bytes; longer content is an error.
    pub max_content_bytes: usize,
    /// Limit of redirects followed; 0 returns a redirect as the response.
    pub max_redirects: u8,
}

impl Default for CallSettings {
    fn default() -> Self {
        CallSettings {
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            idle: IdleConnections::default(),
            protocol: HttpProtocol::Http1,
            verification: ServerVerification::Verify,
            max_content_bytes: 1 << 20,
            max_redirects: 0,
        }
    }
}

/// Limits of idle connections kept for further calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleConnections {
    /// Connections each thread keeps per origin; 0 closes each connection after its response.
    pub max_per_origin: usize,
    /// How long an idle connection is kept.
    pub timeout: Duration,
}

impl Default for IdleConnections {
    fn default() -> Self {
        IdleConnections { max_per_origin: 4, timeout: Duration::from_secs(60) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HttpProtocol {
    #[default]
    Http1,
    /// Over TLS with ALPN, without TLS with prior knowledge (RFC 9113 §3.3).
    Http2,
    /// HTTP/2 if the server selects it with ALPN, HTTP/1.1 otherwise.
    Negotiate,
}

/// How a server's certificate is verified.
#[derive(Clone, Debug, Default)]
pub enum ServerVerification {
    /// It must be issued by a CA of [`HttpClientSettings::authorities`].
    #[default]
    Verify,
    /// Any certificate is accepted.
    Skip,
    /// A TLS configuration of the caller; its ALPN protocols override [`HttpProtocol`].
    Terms(TlsTerms),
}

/// Settings with their hash, so that a pool lookup does not hash certificates.
#[derive(Clone, Debug)]
pub(crate) struct SharedSettings(Arc<HashedSettings>);

#[derive(Debug)]
struct HashedSettings {
    hash: u64,
    settings: HttpClientSettings,
}

impl SharedSettings {
    pub(crate) fn new(settings: HttpClientSettings) -> SharedSettings {
        let mut hasher = DefaultHasher::new();
        settings.hash(&mut hasher);
        SharedSettings(Arc::new(HashedSettings { hash: hasher.finish(), settings }))
    }

    pub(crate) fn get(&self) -> &HttpClientSettings {
        &self.0.settings
    }
}

impl PartialEq for SharedSettings {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.hash == other.0.hash && self.0.settings == other.0.settings
    }
}

impl Eq for SharedSettings {}

impl Hash for SharedSettings {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}
