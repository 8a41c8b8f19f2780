//! The sockets of a server.

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
use super::peer::ServerPeer;
use super::places::ServerPlace;

/// The byte stream of a client, over TCP, a Unix socket or TLS.
pub trait ClientBytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ClientBytes for S {}

/// A listening socket.
pub enum ServerSocket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl ServerSocket {
    pub async fn accept(&self) -> io::Result<(Box<dyn ClientBytes>, ServerPeer)> {
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
    pub fn has_client(&self) -> bool {
        let socket = match self {
            ServerSocket::Tcp(listener) => listener.as_fd(),
            ServerSocket::Unix(listener) => listener.as_fd(),
        };
        let mut ready = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

/// A client's bytes, whose first one is noted.
pub struct NotedBytes {
    inner: Box<dyn ClientBytes>,
    place: Arc<ServerPlace>,
    has_begun: bool,
}

impl NotedBytes {
    pub fn new(inner: Box<dyn ClientBytes>, place: Arc<ServerPlace>) -> NotedBytes {
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

/// Limits how often something that a client causes is logged.
#[derive(Default)]
pub struct SeldomLogged(Mutex<Option<Instant>>);

impl SeldomLogged {
    const EVERY: Duration = Duration::from_secs(60);

    /// Whether it may be logged now.
    pub fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= SeldomLogged::EVERY);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}
