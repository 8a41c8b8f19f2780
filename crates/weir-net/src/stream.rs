//! A connection, plain or TLS, with poll functions for reading and writing.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::net::Shutdown;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::kernel_pipe::KernelPipe;
use crate::plain::{poll_drain, poll_fill, poll_read, poll_write, poll_write_last, read_on};
use crate::tls::TlsSession;

/// One connection, to a client or an upstream.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    /// Boxed, so that a plain stream only pays for a null check.
    tls: Option<Box<TlsSession>>,
}

impl Stream {
    pub fn plain(tcp: TcpStream) -> Stream {
        Stream { tcp, tls: None }
    }

    /// A stream whose TLS handshake is complete.
    pub(crate) fn secured(tcp: TcpStream, session: Box<TlsSession>) -> Stream {
        Stream { tcp, tls: Some(session) }
    }

    /// Reads into `buffer`; 0 is the end. When pending, the task is woken once there is more to read.
    pub fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_read(&self.tcp, context, buffer),
            Some(session) => session.poll_read(&self.tcp, context, buffer),
        }
    }

    /// Writes as many of `bytes` as the socket accepts. When pending, the task is woken once it accepts more; the next call must
    /// then start with the same bytes, as they may have been encrypted already.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_write(&self.tcp, context, bytes),
            Some(session) => session.poll_write(&self.tcp, context, bytes),
        }
    }

    /// Reads without waiting, after a read that has not filled its buffer; `None` if there is nothing, or it is not known. A system call is
    /// made only if the poller has seen that the peer has closed, or an event since that read.
    pub fn read_on(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        match &self.tls {
            None => read_on(&self.tcp, buffer),
            Some(_) => None,
        }
    }

    /// Writes bytes after which the writing direction is ended at once, so that both can leave in one segment.
    pub fn poll_write_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &self.tls {
            None => poll_write_last(&self.tcp, context, bytes),
            Some(_) => self.poll_write(context, bytes),
        }
    }

    /// Whether the bytes of the socket are those of the stream, so that the kernel can move them by itself. Dropping it then tells the
    /// peer the same as ending the writing direction, if everything that the peer has sent is read.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Moves bytes of a plain stream into an empty pipe; 0 says only that it has to be read. When pending, the task is woken once there is more to read.
    pub fn poll_fill(&mut self, context: &mut Context<'_>, pipe: &mut KernelPipe) -> Poll<usize> {
        poll_fill(&self.tcp, context, pipe)
    }

    /// Moves bytes of a pipe that is not empty to a plain stream. When pending, the task is woken once the socket accepts more.
    pub fn poll_drain(&mut self, context: &mut Context<'_>, pipe: &mut KernelPipe) -> Poll<io::Result<usize>> {
        poll_drain(&self.tcp, context, pipe)
    }

    /// Ends the writing direction. Reading remains possible.
    pub fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(session) = &mut self.tls {
            std::task::ready!(session.poll_close(&self.tcp, context))?;
        }
        Poll::Ready(rustix::net::shutdown(&self.tcp, Shutdown::Write).map_err(io::Error::from))
    }

    /// Whether there is nothing to read and the peer has not closed, as expected of an idle connection. Makes a system call only
    /// if the poller has seen an event on the socket.
    pub fn is_quiet(&mut self) -> bool {
        match &mut self.tls {
            None => matches!(self.tcp.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock),
            // A session ticket may arrive, which carries no data for the reader.
            Some(session) => {
                session.poll_read(&self.tcp, &mut Context::from_waker(Waker::noop()), &mut [0]).is_pending()
            }
        }
    }

    /// The same by a system call, which also finds what the poller has not seen yet.
    pub fn is_alive(&self) -> bool {
        self.peek().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether the peer has closed or reset the connection and there is nothing to read before that, by a system call.
    pub fn has_ended(&self) -> bool {
        match self.peek() {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(count) => count == 0,
        }
    }

    fn peek(&self) -> io::Result<usize> {
        SockRef::from(&self.tcp).peek(&mut [MaybeUninit::uninit()])
    }

    /// The local address of the connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The TLS session; `None` for a plain stream.
    pub fn tls(&self) -> Option<&TlsSession> {
        self.tls.as_deref()
    }

    /// Sends the TLS close_notify alert, without waiting if the socket is full. Plain streams have no equivalent.
    pub fn send_close_notify(&mut self) {
        if let Some(session) = &mut self.tls {
            let _ = session.poll_close(&self.tcp, &mut Context::from_waker(Waker::noop()));
        }
    }

    /// Sets how long sent bytes may stay unacknowledged before the kernel gives the connection up (RFC 5482).
    pub fn set_user_timeout(&self, timeout: Duration) {
        // If the option cannot be set, the connection is already closed.
        let _ = SockRef::from(&self.tcp).set_tcp_user_timeout(Some(timeout));
    }

    /// Makes dropping the stream reset the connection (RST), so that the peer cannot take truncated data for complete.
    pub fn reset_on_drop(&self) {
        // If the option cannot be set, the connection is already closed.
        let _ = SockRef::from(&self.tcp).set_linger(Some(Duration::ZERO));
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::io::{Read, Write};

    /// A stream, and the socket of its peer.
    fn connected() -> (Stream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        (Stream::plain(TcpStream::from_std(accepted).unwrap()), peer)
    }

    #[tokio::test]
    async fn bytes_and_ends_arrive() {
        let (mut stream, mut peer) = connected();
        let mut buffer = [0; 64];
        for round in 0..3 {
            peer.write_all(b"hello").unwrap();
            let count = poll_fn(|context| stream.poll_read(context, &mut buffer)).await.unwrap();
            assert_eq!(&buffer[..count], b"hello", "round {round}");
            let count = poll_fn(|context| stream.poll_write(context, b"world")).await.unwrap();
            let mut back = vec![0; count];
            peer.read_exact(&mut back).unwrap();
            assert_eq!(back, b"world");
        }
        peer.write_all(b"last").unwrap();
        drop(peer);
        let mut all = Vec::new();
        loop {
            match poll_fn(|context| stream.poll_read(context, &mut buffer[..3])).await.unwrap() {
                0 => break,
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
        assert_eq!(all, b"last");
    }

    #[tokio::test]
    async fn an_end_is_found_with_the_bytes_before_it_and_only_then() {
        let (mut stream, mut peer) = connected();
        let mut buffer = [0; 64];
        peer.write_all(b"first").unwrap();
        assert_eq!(poll_fn(|context| stream.poll_read(context, &mut buffer)).await.unwrap(), 5);
        assert!(stream.read_on(&mut buffer).is_none(), "there is nothing");
        assert!(stream.read_on(&mut []).is_none(), "no room is no end");
        peer.write_all(b"last").unwrap();
        // Processes that other tests start have a copy for a moment: the end does not wait until that is closed, too.
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(poll_fn(|context| stream.poll_read(context, &mut buffer)).await.unwrap(), 4);
        assert!(stream.read_on(&mut []).is_none(), "no room is no end");
        assert_eq!(stream.read_on(&mut buffer).map(Result::ok), Some(Some(0)));
    }

    #[tokio::test]
    async fn last_bytes_arrive_with_the_end() {
        // The kernel waits for the end for 200 ms, in which this thread may not run.
        let mut has_waited = false;
        for _ in 0..10 {
            let (mut stream, mut peer) = connected();
            let sent = poll_fn(|context| stream.poll_write_last(context, b"last")).await.unwrap();
            peer.set_nonblocking(true).unwrap();
            has_waited |= peer.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            poll_fn(|context| stream.poll_shutdown(context)).await.unwrap();
            peer.set_nonblocking(false).unwrap();
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            assert_eq!((sent, &*all), (4, &b"last"[..]));
        }
        assert!(has_waited, "the bytes have left before the end");
    }

    #[tokio::test]
    async fn bytes_and_ends_pass_a_pipe_in_the_kernel_unchanged() {
        let ((mut from, mut sender), (mut to, mut receiver)) = (connected(), connected());
        let pattern = || (0..=250).cycle().take(8 << 20).collect::<Vec<u8>>();
        let sending = std::thread::spawn(move || sender.write_all(&pattern()).map(|()| drop(sender)));
        let receiving = std::thread::spawn(move || {
            let mut got = Vec::new();
            receiver.read_to_end(&mut got).map(|_| got == pattern())
        });
        let (mut pipe, mut buffer) = (KernelPipe::new().expect("a descriptor is left"), [0; 1024]);
        loop {
            let count = poll_fn(|context| from.poll_fill(context, &mut pipe)).await;
            assert_eq!(pipe.held(), count);
            if count == 0 {
                let count = poll_fn(|context| from.poll_read(context, &mut buffer)).await.unwrap();
                if count == 0 {
                    break;
                }
                let mut left = &buffer[..count];
                while !left.is_empty() {
                    let sent = poll_fn(|context| to.poll_write(context, left)).await.unwrap();
                    left = &left[sent..];
                }
            }
            while pipe.held() > 0 {
                poll_fn(|context| to.poll_drain(context, &mut pipe)).await.unwrap();
            }
        }
        drop(to);
        sending.join().unwrap().unwrap();
        assert!(receiving.join().unwrap().unwrap());
    }

    #[tokio::test]
    async fn a_full_socket_waits_for_its_reader() {
        let (mut stream, mut peer) = connected();
        const TOTAL: usize = 32 * 1024 * 1024;
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; TOTAL];
            peer.read_exact(&mut got).map(|()| got.iter().all(|&byte| byte == 7))
        });
        let bytes = vec![7; 1 << 20];
        let mut sent = 0;
        while sent < TOTAL {
            let most = bytes.len().min(TOTAL - sent);
            sent += poll_fn(|context| stream.poll_write(context, &bytes[..most])).await.unwrap();
        }
        assert!(reader.join().unwrap().unwrap());
    }
}
