//! A rule for every TCP connection that Weir opens.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

/// Turns a connection to `peer` that is one of a socket to itself into a refused one.
///
/// TCP makes such a connection when a program connects to a loopback port that nothing listens on, and the kernel happens
/// to choose the same port as the local one (simultaneous open, RFC 9293 §3.5). The port would look open, and its server
/// could not listen on it while the connection lasts.
///
/// # Errors
/// The socket is connected to itself.
pub fn refuse_self_connection(stream: TcpStream, peer: SocketAddr) -> io::Result<TcpStream> {
    if stream.local_addr()? == peer {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    Ok(stream)
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        assert!(refuse_self_connection(stream, address).is_ok());
    }
}
