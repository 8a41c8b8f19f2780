//! TLS connections to endpoints: the server name to verify, and which connections may be reused.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use weir_net::stream::Stream;
use weir_net::tls::{ServerName, TlsConnector, connect, server_name};

use crate::snapshot::{self, PassHost};

/// How the connections to an endpoint are secured.
pub(super) struct EndpointTls {
    client: TlsConnector,
    /// The server name that the endpoint's certificate must have; `None` if it is the host of the request.
    name: Option<ServerName<'static>>,
}

/// The properties that keep connections to one address in separate pools.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct TlsIdentity {
    terms: [u8; 32],
    name: Option<ServerName<'static>>,
}

impl EndpointTls {
    /// `None` without TLS. The verified name is the one sent as `Host`, except that a node with a host name must be that
    /// host: a client, which may send any `Host`, must not choose which server is trusted.
    pub(super) fn new(endpoint: &snapshot::Endpoint, upstream: &snapshot::Upstream) -> Option<EndpointTls> {
        let client = upstream.tls.clone()?;
        let node = server_name(&endpoint.name);
        let name = match (&upstream.pass_host, node) {
            (PassHost::Rewrite(host), _) => server_name(host),
            (PassHost::Pass, Some(ServerName::IpAddress(_))) => None,
            (_, node) => node,
        };
        Some(EndpointTls { client, name })
    }

    pub(super) fn identity(&self) -> TlsIdentity {
        TlsIdentity { terms: self.client.id(), name: self.name.clone() }
    }

    /// TLS sessions are resumed only within one worker and one endpoint, so that workers share no lock.
    pub(super) fn with_own_sessions(self) -> EndpointTls {
        EndpointTls { client: self.client.apart(), ..self }
    }

    /// Whether a connection is with the server that a request for `host` needs.
    pub(super) fn is_with(&self, stream: &Stream, host: &[u8]) -> bool {
        self.name.is_some()
            || stream.tls().and_then(|session| session.server_name()).is_some_and(|name| name.as_bytes() == host)
    }

    /// What tells the servers of two requests apart, where the host of the request chooses the server.
    pub(super) fn chosen_by<'a>(&self, host: &'a [u8]) -> &'a [u8] {
        if self.name.is_some() { b"" } else { host }
    }

    /// Performs the TLS handshake with an endpoint for a request for `host`. Failures are logged, since only the operator
    /// can resolve them.
    pub(super) async fn handshake(&self, tcp: TcpStream, addr: SocketAddr, host: &[u8]) -> std::io::Result<Stream> {
        let of_request = || std::str::from_utf8(host).ok().and_then(server_name);
        let name = self.name.clone().or_else(of_request).unwrap_or_else(|| ServerName::IpAddress(addr.ip().into()));
        let shown = name.to_str().into_owned();
        let connected = connect(tcp, &self.client, name).await;
        if let Err(error) = &connected {
            tracing::error!("TLS handshake with the endpoint {addr} (server name {shown}) failed: {error}");
        }
        connected
    }
}
