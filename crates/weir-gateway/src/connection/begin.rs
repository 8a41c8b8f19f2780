//! Begins to serve a connection whose client is known, by the protocol of its listener.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use weir_net::stream::Stream;

use super::accepted::Accepted;
use super::{h1, h2, secure, stream};
use crate::snapshot::ListenerProtocol;
use crate::worker::TaskGuard;

/// Serves the connection in a task of its own, of the size that its protocol needs.
pub(crate) fn spawn(worker: TaskGuard, tcp: TcpStream, protocol: ListenerProtocol, client: SocketAddr) {
    match protocol {
        ListenerProtocol::Http => {
            tokio::task::spawn_local(h1::run(Accepted::new(worker, Stream::plain(tcp), client, None)));
        }
        ListenerProtocol::Http2 => h2::spawn(Accepted::new(worker, Stream::plain(tcp), client, None)),
        ListenerProtocol::Https => {
            tokio::task::spawn_local(secure::run(worker, tcp, client));
        }
        ListenerProtocol::Tcp => stream::spawn_plain(worker, tcp, client),
        ListenerProtocol::Tls => drop(tokio::task::spawn_local(stream::terminated(worker, tcp, client))),
        ListenerProtocol::TlsPassthrough | ListenerProtocol::TlsByRoute => {
            let by_route = protocol == ListenerProtocol::TlsByRoute;
            tokio::task::spawn_local(stream::passed_through(worker, tcp, client, by_route));
        }
        ListenerProtocol::Udp => unreachable!("a listener of UDP accepts no connections"),
    }
}
