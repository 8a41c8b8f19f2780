//! TCP connections that Weir opens.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::limits::local_ports;

/// Opens a connection.
///
/// # Errors
/// That of [`connect`], or no descriptor or memory is left.
pub async fn open(peer: SocketAddr) -> io::Result<TcpStream> {
    connect(unconnected(peer)?, peer).await
}

/// A socket for a connection to `peer`, as [`connect`] takes it.
///
/// # Errors
/// No descriptor or memory is left.
pub fn unconnected(peer: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(peer), Type::STREAM.nonblocking(), Some(Protocol::TCP))
}

/// Connects a socket of [`unconnected`]. The poller says whether that has failed, and only then the socket is asked why: that saves a system
/// call for each connection.
///
/// # Errors
/// That of the system; a connection of the socket to itself counts as refused.
pub async fn connect(socket: Socket, peer: SocketAddr) -> io::Result<TcpStream> {
    match socket.connect(&peer.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        connected => connected?,
    }
    let stream = TcpStream::from_std(socket.into())?;
    // A socket whose writing direction has ended before it was used has an error.
    if stream.ready(Interest::WRITABLE).await?.is_write_closed()
        && let Some(error) = stream.take_error()?
    {
        return Err(error);
    }
    refuse_self_connection(stream, peer)
}

/// Turns a connection to `peer` that is one of a socket to itself into a refused one.
///
/// TCP makes such a connection when a program connects to a loopback port that nothing listens on, and the kernel happens
/// to choose the same port as the local one (simultaneous open, RFC 9293 §3.5). The port would look open, and its server
/// could not listen on it while the connection lasts.
fn refuse_self_connection(stream: TcpStream, peer: SocketAddr) -> io::Result<TcpStream> {
    if may_be_chosen(peer.port()) && stream.local_addr()? == peer {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    Ok(stream)
}

/// Whether the kernel may have chosen the port as a local one. The range is read once, with the first connection; it has to include the
/// ports of later ones, so a sysctl that widens it needs a restart.
fn may_be_chosen(port: u16) -> bool {
    static CHOSEN: LazyLock<RangeInclusive<u32>> = LazyLock::new(|| local_ports().unwrap_or(0..=u32::MAX));
    CHOSEN.contains(&u32::from(port))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test]
    async fn a_socket_that_connects_to_itself_is_refused() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        let stream = socket.connect(address).await.unwrap();
        assert_eq!(refuse_self_connection(stream, address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_connection_to_a_server_is_kept() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = match TcpListener::bind(address).await {
                Err(error) if matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported) => {
                    continue; // there is no IPv6
                }
                listener => listener.unwrap(),
            };
            let address = listener.local_addr().unwrap();
            assert_eq!(open(address).await.unwrap().peer_addr().unwrap(), address);
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_refused_is_an_error() {
        // It is bound, so that it is no other's, and does not listen.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(open(address).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn the_ports_that_are_asked_about_are_those_which_the_kernel_chooses() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(may_be_chosen(stream.local_addr().unwrap().port()));
        let ports = local_ports().expect("/proc is there");
        assert_eq!(may_be_chosen(80), ports.contains(&80));
    }
}
