//! What holds for all calls of a client, and what holds for one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use weir_net::tls::{CertificateDer, TlsConnector as TlsTerms};

use crate::filter::AddressFilter;
use crate::resolver::DnsSettings;

/// What holds for every call of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HttpClientSettings {
    pub dns: DnsSettings,
    pub authorities: Authorities,
    pub addresses: AddressFilter,
}

/// Who vouches for servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Authorities {
    /// Those this system trusts. They are read when the first server is verified.
    #[default]
    System,
    /// These and no others.
    Own(Arc<[CertificateDer<'static>]>),
}

/// What holds for one call.
#[derive(Clone, Debug)]
pub struct CallSettings {
    /// For the name, the connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// From the call to the last byte of the answer, connecting included. Of a streamed answer: to the end of its head,
    /// and from each piece of content to the next.
    pub timeout: Duration,
    pub idle: IdleConnections,
    pub protocol: HttpProtocol,
    pub verification: ServerVerification,
    /// A longer content of an answer is an error.
    pub max_content_bytes: usize,
    /// How many redirects are followed; with none, the redirect is the answer.
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

/// Connections that are kept for the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleConnections {
    /// How many each thread keeps to one origin; 0 closes each connection after its answer.
    pub max_per_origin: usize,
    /// How long one is kept.
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
    /// By ALPN over TLS, and with prior knowledge without it (RFC 9113 §3.3).
    Http2,
    /// HTTP/2 where the server chooses it in the TLS handshake, HTTP/1.1 otherwise.
    Negotiate,
}

/// How a server proves over TLS that it is the one that was meant.
#[derive(Clone, Debug, Default)]
pub enum ServerVerification {
    /// By a certificate that an authority of the client vouches for.
    #[default]
    Verify,
    /// Any certificate does.
    Skip,
    /// On terms of the caller's own, as far as HTTP is concerned: their ALPN protocols decide over [`HttpProtocol`].
    Terms(TlsTerms),
}

/// Settings with their hash, so that finding a connection does not hash certificates.
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
