//! TLS connections to endpoints: the server name to verify, and which connections may be reused.

use std::cell::OnceCell;
use std::net::SocketAddr;

use tokio::net::TcpStream;
use weir_net::handshake::{connect_in_turns, is_not_tls, is_unknown_name};
use weir_net::stream::Stream;
use weir_net::tls::{ServerName, TlsConnector, server_name};
use weir_plugin::Stop;
use weir_proto::RequestHead;

use crate::context::handshake_turns::HandshakeTurns;
use crate::snapshot::{self, PassHost};

/// How the connections to an endpoint are secured.
pub(super) struct EndpointTls {
    client: TlsConnector,
    /// The server name that the endpoint's certificate must have; `None` if it is the host of the request, as
    /// the upstream gets it.
    name: Option<ServerName<'static>>,
}

/// The properties that keep connections to one address in separate pools.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct TlsIdentity {
    terms: [u8; 32],
    name: Option<ServerName<'static>>,
}

impl EndpointTls {
    /// `None` without TLS. The verified name is that of the connector (`tls.server_name`). Without one it is what is sent as `Host`,
    /// except that a node with a host name must be that host: a client, which may send any `Host`, must not choose which server is
    /// trusted.
    pub(super) fn new(endpoint: &snapshot::Endpoint, upstream: &snapshot::Upstream) -> Option<EndpointTls> {
        let client = upstream.tls.clone()?;
        let node = server_name(&endpoint.name);
        let name = match (&upstream.pass_host, node) {
            _ if client.server().is_some() => client.server().cloned(),
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

    /// Whether clients choose the verified name by the host of their requests. A handshake that fails may then be their doing,
    /// and says nothing about the endpoint's health.
    fn is_named_by_clients(&self) -> bool {
        self.name.is_none()
    }

    /// Whether a failed handshake may be due to a host that a client has chosen. Not if the endpoint is verified by its SPIFFE ID: then
    /// only a server that has no certificate for the host may say so ([`Stop::UpstreamTlsName`]).
    pub(super) fn may_fail_by_clients(&self, stop: Stop) -> bool {
        self.is_named_by_clients()
            && match stop {
                Stop::UpstreamTlsName => true,
                Stop::UpstreamTls => !self.client.verifies_workloads(),
                _ => false,
            }
    }

    /// What tells the servers of two requests apart, where the host of the request chooses the server.
    pub(super) fn chosen_by<'a>(&self, host: &'a [u8]) -> &'a [u8] {
        if self.name.is_some() { b"" } else { host }
    }

    /// The server that a request needs at `addr`.
    pub(super) fn server<'r>(&'r self, addr: SocketAddr, request: &'r RequestHead) -> RequestedTlsServer<'r> {
        RequestedTlsServer { tls: self, addr, host: request.upstream_host(), name: OnceCell::new() }
    }
}

/// The server that connections for a request must be with.
pub(super) struct RequestedTlsServer<'r> {
    tls: &'r EndpointTls,
    addr: SocketAddr,
    /// The host of the request as the upstream gets it.
    host: &'r [u8],
    /// The server name, once it is known; finding it takes an allocation.
    name: OnceCell<ServerName<'static>>,
}

impl RequestedTlsServer<'_> {
    fn name(&self) -> &ServerName<'static> {
        self.name.get_or_init(|| {
            let of_request = || std::str::from_utf8(self.host).ok().and_then(server_name);
            let name = self.tls.name.clone().or_else(of_request);
            name.unwrap_or_else(|| ServerName::IpAddress(self.addr.ip().into()))
        })
    }

    /// Whether the connection is with this server. Most hosts are written like the name of their sessions, so that the name need
    /// not be found out.
    pub(super) fn is_of(&self, stream: &Stream) -> bool {
        self.tls.name.is_some()
            || stream
                .tls()
                .and_then(|session| session.server_name())
                .is_some_and(|name| name.as_bytes() == self.host || name == self.name().to_str())
    }

    /// Performs the TLS handshake. Failures are logged, since only the operator can resolve them, unless a client has caused
    /// them by its choice of the host.
    pub(super) async fn handshake(&self, tcp: TcpStream, turns: &HandshakeTurns) -> Result<Stream, Stop> {
        let (addr, name) = (self.addr, self.name());
        connect_in_turns(tcp, &self.tls.client, name.clone(), async || turns.next().await).await.map_err(|error| {
            let name = name.to_str();
            if self.tls.is_named_by_clients() && is_unknown_name(&error) {
                tracing::warn!("the endpoint {addr} has no certificate for the host of a request, {name}: {error}");
                return Stop::UpstreamTlsName;
            }
            let advice =
                if is_not_tls(&error) { "; it does not answer with TLS: is `scheme: http` meant?" } else { "" };
            tracing::error!("TLS handshake with the endpoint {addr} (server name {name}) failed: {error}{advice}");
            Stop::UpstreamTls
        })
    }
}

#[cfg(test)]
mod tests {
    use weir_net::tls::{SpiffePeers, Trust, UpstreamTerms};

    use super::*;

    #[test]
    fn spiffe_endpoint_is_to_blame_for_its_certificate_whatever_host_a_client_names() {
        let peers = SpiffePeers::default();
        for (trust, expected) in [(Trust::Spiffe(&peers), false), (Trust::Authorities(&[]), true)] {
            let client =
                TlsConnector::new(&UpstreamTerms { trust, identity: None, protocols: &[] }).expect("good terms");
            let by_request = EndpointTls { client, name: None };
            assert_eq!(by_request.may_fail_by_clients(Stop::UpstreamTls), expected);
            assert!(by_request.may_fail_by_clients(Stop::UpstreamTlsName));
            let named = EndpointTls { name: server_name("a.test"), ..by_request };
            assert!(!named.may_fail_by_clients(Stop::UpstreamTlsName) && !named.may_fail_by_clients(Stop::UpstreamTls));
        }
    }
}
