//! TCP connections to endpoints.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// A peer that acknowledges nothing for this long is dead (RFC 5482). To the kernel so is a peer that keeps its window
/// closed, so this time-out is raised to the send time-out if that is longer.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// After this long without a word, a peer is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(15);

/// The time-out of a connection on which requests with this send time-out are sent.
pub(super) fn user_timeout(send_timeout: Duration) -> Duration {
    USER_TIMEOUT.max(send_timeout)
}

/// No file descriptor or memory is left here: not the endpoint's fault, and no reason to try another.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM, rustix::io::Errno::NOBUFS]
        .iter()
        .any(|shortage| code == Some(shortage.raw_os_error()))
}

/// `send_timeout`: that of what is sent first; `None` for a stream, which needs no option at first.
pub(super) async fn connect(addr: SocketAddr, send_timeout: Option<Duration>) -> io::Result<TcpStream> {
    let socket = weir_net::connect::unconnected(addr)?;
    if let Some(send_timeout) = send_timeout {
        socket.set_tcp_nodelay(true)?;
        watch_peer(SockRef::from(&socket), send_timeout)?;
    }
    weir_net::connect::connect(socket, addr).await
}

/// Has the kernel find out that a peer is gone, whether something is sent to it or not.
pub(super) fn watch_peer(socket: SockRef<'_>, send_timeout: Duration) -> io::Result<()> {
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(SILENCE).with_interval(Duration::from_secs(5)))?;
    socket.set_tcp_user_timeout(Some(user_timeout(send_timeout)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_is_given_up_by_the_kernel_no_sooner_than_by_the_send_timeout() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let addr = listener.local_addr().expect("a bound socket has an address");
        for (send_s, want_s) in [(1, 30), (50, 50)] {
            let stream = connect(addr, Some(Duration::from_secs(send_s))).await.expect("it listens");
            let found = SockRef::from(&stream).tcp_user_timeout().expect("an option of the socket");
            assert_eq!(found, Some(Duration::from_secs(want_s)), "timeout.send: {send_s}");
        }
    }

    #[tokio::test]
    async fn a_peer_is_watched_from_when_it_is_asked_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let stream = connect(addr, None).await.expect("it listens");
        let socket = SockRef::from(&stream);
        assert!(!socket.keepalive().expect("an option of the socket") && !socket.tcp_nodelay().expect("another one"));
        watch_peer(SockRef::from(&stream), Duration::from_secs(50)).expect("it is open");
        assert!(socket.keepalive().expect("an option of the socket"));
        assert_eq!(socket.tcp_keepalive_time().expect("an option of the socket"), SILENCE);
        assert_eq!(socket.tcp_user_timeout().expect("an option of the socket"), Some(Duration::from_secs(50)));
    }
}
