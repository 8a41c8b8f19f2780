//! Who is at the other end of a connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use weir_proto::address::client_network;

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerPeer {
    Tcp {
        local: SocketAddr,
        remote: SocketAddr,
    },
    /// A process on this machine that may connect to the Unix socket.
    Unix,
}

/// Connections with the same client count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerClient {
    /// An IPv4 address, or an IPv6 network.
    Network(IpAddr),
    /// All peers of the Unix socket: its file lets only one user connect.
    Unix,
}

impl ServerPeer {
    pub(crate) fn client(self) -> ServerClient {
        match self {
            ServerPeer::Tcp { remote, .. } => ServerClient::Network(client_network(remote.ip())),
            ServerPeer::Unix => ServerClient::Unix,
        }
    }
}

impl ServerClient {
    pub(crate) fn is_remote(self) -> bool {
        matches!(self, ServerClient::Network(address) if !address.is_loopback())
    }
}

impl fmt::Display for ServerPeer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerPeer::Tcp { remote, .. } => remote.fmt(out),
            ServerPeer::Unix => "a client of the Unix socket".fmt(out),
        }
    }
}
