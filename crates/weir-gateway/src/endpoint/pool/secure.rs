//! Connections to endpoints in TLS: whom they are with, and which may be used again.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use weir_net::stream::Stream;
use weir_net::tls::{ServerName, TlsConnector, connect, server_name};

use crate::snapshot::{self, PassHost};

/// How the connections to an endpoint are secured.
pub(super) struct EndpointTls {
    client: TlsConnector,
    /// Who the endpoint has to be; `None` is whom the request is for.
    name: Option<ServerName<'static>>,
}

/// What two pools of connections to one address differ in.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct TlsIdentity {
    terms: [u8; 32],
    name: Option<ServerName<'static>>,
}

impl EndpointTls {
    /// `None` in the clear. The name that is asked for is the one that is sent as `Host`, except that a node with a name
    /// has to be that node: a client that may say any `Host` does not decide who is believed.
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

    /// Resumption stays within one worker and one endpoint, so that workers share no lock.
    pub(super) fn with_own_sessions(self) -> EndpointTls {
        EndpointTls { client: self.client.apart(), ..self }
    }

    /// Whether a connection is with the one that a request for `host` needs.
    pub(super) fn is_with(&self, stream: &Stream, host: &[u8]) -> bool {
        self.name.is_some()
            || stream.tls().and_then(|session| session.server_name()).is_some_and(|name| name.as_bytes() == host)
    }

    /// Shakes hands with an endpoint on behalf of a request for `host`. Failures are told to the operator, who alone
    /// can do something about them.
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
