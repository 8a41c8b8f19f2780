//! Connections to endpoints in TLS: whom they are with, and which may be used again.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use weir_net::stream::Stream;
use weir_net::tls::{Client, ServerName, connect};

use crate::snapshot::{self, PassHost};

/// How the connections to an endpoint are secured.
pub(super) struct UpstreamTls {
    client: Client,
    /// Who the endpoint has to be; `None` is whom the request is for.
    name: Option<ServerName<'static>>,
}

/// What two pools of connections to one address differ in.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct TlsIdentity {
    terms: [u8; 32],
    name: Option<ServerName<'static>>,
}

impl UpstreamTls {
    /// `None` in the clear. The name that is asked for is the one that is sent as `Host`, except that a node with a name
    /// has to be that node: a client that may say any `Host` does not decide who is believed.
    pub(super) fn new(endpoint: &snapshot::Endpoint, upstream: &snapshot::Upstream) -> Option<UpstreamTls> {
        let client = upstream.tls.clone()?;
        let node = server_name(&endpoint.name);
        let name = match (&upstream.pass_host, node) {
            (PassHost::Rewrite(host), _) => server_name(host),
            (PassHost::Pass, Some(ServerName::IpAddress(_))) => None,
            (_, node) => node,
        };
        Some(UpstreamTls { client, name })
    }

    pub(super) fn identity(&self) -> TlsIdentity {
        TlsIdentity { terms: self.client.id(), name: self.name.clone() }
    }

    /// Resumption stays within one worker and one endpoint, so that workers share no lock.
    pub(super) fn with_own_sessions(self) -> UpstreamTls {
        UpstreamTls { client: self.client.apart(), ..self }
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
            tracing::error!("TLS with the upstream {addr} as {shown}: {error}");
        }
        connected
    }
}

/// The name or address in `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(crate) fn server_name(host: &str) -> Option<ServerName<'static>> {
    let bare = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    ServerName::try_from(bare.to_ascii_lowercase()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_without_their_ports() {
        let shown = |host| server_name(host).map(|name| name.to_str().into_owned());
        assert_eq!(shown("A.test:8443").as_deref(), Some("a.test"));
        assert_eq!(shown("a.test").as_deref(), Some("a.test"));
        assert_eq!(shown("127.0.0.1:1").as_deref(), Some("127.0.0.1"));
        assert_eq!(shown("[::1]:1").as_deref(), Some("::1"));
        assert_eq!(shown("[::1]").as_deref(), Some("::1"));
        assert!(matches!(server_name("10.0.0.1"), Some(ServerName::IpAddress(_))));
        assert_eq!(shown(""), None);
        assert_eq!(shown("no name"), None);
    }
}
