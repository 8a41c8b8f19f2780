//! Listening sockets and their protocols.

use std::net::TcpListener;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    pub spoken: ListenerProtocol,
}

/// The protocols that clients speak on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerProtocol {
    pub tls: bool,
    /// A PROXY protocol header comes first, in which a load balancer names the client.
    pub proxy_protocol: bool,
    /// HTTP/2 without TLS, and nothing else.
    pub h2c: bool,
}
