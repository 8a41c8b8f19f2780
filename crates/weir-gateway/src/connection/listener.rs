//! Sockets that accept clients.

use std::net::TcpListener;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    pub spoken: ListenerProtocol,
}

/// What clients speak on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerProtocol {
    pub tls: bool,
    /// A balancer says first whom it speaks for.
    pub proxy_protocol: bool,
    /// HTTP/2 in the clear, and nothing else.
    pub h2c: bool,
}
