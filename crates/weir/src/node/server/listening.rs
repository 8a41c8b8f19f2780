//! The sockets of a server.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::bounds::SOCKET_BUFFER;
use super::peer::{ServerClient, ServerPeer};
use super::places::ServerPlace;

/// The byte stream of a client, over TCP, a Unix socket or TLS.
pub(super) trait ClientBytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ClientBytes for S {}

/// A listening socket.
pub(super) enum ServerSocket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl ServerSocket {
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn ClientBytes>, ServerPeer)> {
        match self {
            ServerSocket::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                let local = stream.local_addr()?;
                // Responses are small, and their last segment must not be delayed by Nagle's algorithm.
                let _ = stream.set_nodelay(true);
                let _ = set_socket_send_buffer_size(&stream, SOCKET_BUFFER);
                Ok((Box::new(stream), ServerPeer::Tcp { local, remote }))
            }
            ServerSocket::Unix(listener) => Ok((Box::new(listener.accept().await?.0), ServerPeer::Unix)),
        }
    }

    /// Whether a client waits to be accepted. Without file descriptors, `accept` fails also if nobody does.
    pub(super) fn has_client(&self) -> bool {
        let socket = match self {
            ServerSocket::Tcp(listener) => listener.as_fd(),
            ServerSocket::Unix(listener) => listener.as_fd(),
        };
        let mut ready = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

/// A client's bytes, whose first one is noted.
pub(super) struct NotedBytes {
    inner: Box<dyn ClientBytes>,
    place: Arc<ServerPlace>,
    has_begun: bool,
}

impl NotedBytes {
    pub(super) fn new(inner: Box<dyn ClientBytes>, place: Arc<ServerPlace>) -> NotedBytes {
        NotedBytes { inner, place, has_begun: false }
    }
}

impl AsyncRead for NotedBytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if !self.has_begun && !buffer.filled().is_empty() {
            self.has_begun = true;
            self.place.note(|progress, now| progress.received(now));
        }
        read
    }
}

impl AsyncWrite for NotedBytes {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// How often something that a client causes is logged.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// The most clients whose times are kept.
const LOGGED_CLIENTS: usize = 64;

/// Limits how often something that clients cause is logged: for each client once a minute, so that none hides what others cause.
#[derive(Default)]
pub(super) struct SeldomLogged(Mutex<LoggedClients>);

#[derive(Default)]
struct LoggedClients {
    /// When it was logged for each client, or last for all of them.
    last: Vec<(Option<ServerClient>, Instant)>,
    left_out: u64,
}

impl SeldomLogged {
    /// Whether it may be logged now for a client, or for an unknown one (`None`). Returns how often it was left out since it was last logged.
    pub(super) fn is_due(&self, client: Option<ServerClient>) -> Option<LeftOut> {
        self.is_due_at(client, Instant::now())
    }

    fn is_due_at(&self, client: Option<ServerClient>, now: Instant) -> Option<LeftOut> {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.last.retain(|(_, at)| now.saturating_duration_since(*at) < LOGGED_EVERY);
        let is_known = logged.last.iter().any(|(other, _)| *other == client);
        if is_known || logged.last.len() >= LOGGED_CLIENTS {
            logged.left_out += 1;
            return None;
        }
        logged.last.push((client, now));
        Some(LeftOut(std::mem::take(&mut logged.left_out)))
    }
}

/// How often something was not logged. Displays as the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(out, " ({count} more since the last message of this kind)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn client(last: u8) -> Option<ServerClient> {
        Some(ServerClient::Network(IpAddr::from([192, 0, 2, last])))
    }

    #[test]
    fn one_noisy_client_hides_no_other_and_what_is_left_out_is_counted() {
        let (log, now) = (SeldomLogged::default(), Instant::now());
        assert_eq!(log.is_due_at(client(1), now), Some(LeftOut(0)));
        (0..10).for_each(|_| assert_eq!(log.is_due_at(client(1), now), None));
        assert_eq!(log.is_due_at(client(2), now), Some(LeftOut(10)));
        assert_eq!(log.is_due_at(client(1), now + LOGGED_EVERY), Some(LeftOut(0)));
        assert_eq!(LeftOut(3).to_string(), " (3 more since the last message of this kind)");
    }

    #[test]
    fn the_table_of_clients_is_bounded() {
        let (log, now) = (SeldomLogged::default(), Instant::now());
        let logged = (0..200).filter(|last| log.is_due_at(client(*last), now).is_some()).count();
        assert_eq!(logged, LOGGED_CLIENTS);
        assert_eq!(log.is_due_at(client(201), now + LOGGED_EVERY), Some(LeftOut(200 - LOGGED_CLIENTS as u64)));
    }
}
