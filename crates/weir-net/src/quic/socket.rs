//! A UDP socket of a worker: several datagrams in one system call, with their ECN bits and local addresses.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::task::{Context, Poll, ready};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::SockRef;
use tokio::io::Interest;

/// The memory that is asked for datagrams which the worker has not read yet, in bytes. The kernel gives less if
/// `net.core.rmem_max` is less.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Where the datagrams of an endpoint come from and go to: a UDP socket, or a simulated network.
pub trait QuicLink {
    /// The address that it is bound to.
    fn local_addr(&self) -> SocketAddr;

    /// The most datagrams that are sent in one call.
    fn max_segments(&self) -> usize;

    /// Receives into some buffers; ready with how many were used.
    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>>;

    /// Sends datagrams. Errors that concern a single destination are none of the link: the datagrams count as lost.
    fn poll_send(&self, context: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<()>;
}

/// A UDP socket whose datagrams are read and written by one task.
pub struct QuicSocket {
    socket: tokio::net::UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
}

impl QuicSocket {
    /// # Errors
    /// The socket cannot be registered with the poller, or does not take the options that QUIC needs.
    pub fn new(socket: UdpSocket) -> io::Result<QuicSocket> {
        // It is no error to get less: more datagrams are lost under load.
        let _ = SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER);
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        let (local, socket) = (socket.local_addr()?, tokio::net::UdpSocket::from_std(socket)?);
        Ok(QuicSocket { socket, state, local })
    }

    /// The bytes of datagrams that the kernel keeps until they are read, and those that were asked for.
    pub fn receive_buffer(&self) -> (usize, usize) {
        // The kernel counts its own book-keeping, and reports twice the number that it was given (socket(7)).
        let has = SockRef::from(&self.socket).recv_buffer_size().unwrap_or(2 * RECEIVE_BUFFER);
        (has / 2, RECEIVE_BUFFER)
    }

    /// There are no more datagrams for now, so that the next attempt need not ask the system. The runtime of a worker has one thread: one
    /// that comes meanwhile is announced by the poller later, and is not forgotten by this.
    fn note_drained(&self) {
        let drained = || Err::<(), io::Error>(io::ErrorKind::WouldBlock.into());
        let _ = self.socket.try_io(Interest::READABLE, drained);
    }
}

impl QuicLink for QuicSocket {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_recv_ready(context))?;
            let received =
                self.socket.try_io(Interest::READABLE, || self.state.recv((&self.socket).into(), buffers, meta));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    if count < buffers.len() {
                        self.note_drained();
                    }
                    return Poll::Ready(Ok(count));
                }
                failed => return Poll::Ready(failed),
            }
        }
    }

    fn poll_send(&self, context: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<()> {
        loop {
            let sent = self.socket.try_io(Interest::WRITABLE, || self.state.send((&self.socket).into(), transmit));
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if ready!(self.socket.poll_send_ready(context)).is_err() {
                        return Poll::Ready(());
                    }
                }
                _ => return Poll::Ready(()),
            }
        }
    }
}
