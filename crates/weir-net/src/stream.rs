//! Reading and writing non-blocking TCP streams from hand-written polls.
//!
//! The same as tokio's own `poll_read` and `poll_write`, but with direct system calls: the C library's `recv` and `send`
//! are cancellation points, and pay for that with each call.

use std::io;
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Reads into `buffer`; 0 is the end. The task is woken when there is more.
pub fn poll_read(stream: &TcpStream, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    loop {
        std::task::ready!(stream.poll_read_ready(context))?;
        let length = buffer.len();
        let received = attempt(stream, Interest::READABLE, length, || {
            rustix::net::recv(stream, &mut *buffer, RecvFlags::empty()).map(|(count, _)| count)
        });
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return Poll::Ready(received),
        }
    }
}

/// Writes what the socket takes of `bytes`. The task is woken when it takes more. Waiting is asked for only after a try:
/// nearly always the socket takes everything. Whoever writes without end has to read as well, and is paused there.
pub fn poll_write(stream: &TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        let sent =
            attempt(stream, Interest::WRITABLE, bytes.len(), || rustix::net::send(stream, bytes, SendFlags::NOSIGNAL));
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return Poll::Ready(sent),
        }
        std::task::ready!(stream.poll_write_ready(context))?;
    }
}

/// One call. If it moved less than asked for, the socket is drained or full: tokio is told so, as if the call had been
/// refused, which saves the call that would be. An end of the stream stays visible all the same.
fn attempt(
    stream: &TcpStream,
    interest: Interest,
    asked: usize,
    call: impl FnOnce() -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let mut moved = None;
    let told = stream.try_io(interest, || {
        let count = call()?;
        moved = Some(count);
        match count {
            0 => Ok(()),
            count if count < asked => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    });
    match moved {
        Some(count) => Ok(count),
        None => told.map(|()| 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::io::{Read, Write};

    #[tokio::test]
    async fn bytes_and_ends_arrive() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(accepted).unwrap();
        let mut buffer = [0; 64];
        for round in 0..3 {
            peer.write_all(b"hello").unwrap();
            let count = poll_fn(|context| poll_read(&stream, context, &mut buffer)).await.unwrap();
            assert_eq!(&buffer[..count], b"hello", "round {round}");
            let count = poll_fn(|context| poll_write(&stream, context, b"world")).await.unwrap();
            let mut back = vec![0; count];
            peer.read_exact(&mut back).unwrap();
            assert_eq!(back, b"world");
        }
        peer.write_all(b"last").unwrap();
        drop(peer);
        let mut all = Vec::new();
        loop {
            match poll_fn(|context| poll_read(&stream, context, &mut buffer[..3])).await.unwrap() {
                0 => break,
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
        assert_eq!(all, b"last");
    }

    #[tokio::test]
    async fn a_full_socket_waits_for_its_reader() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(accepted).unwrap();
        const TOTAL: usize = 32 * 1024 * 1024;
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; TOTAL];
            peer.read_exact(&mut got).map(|()| got.iter().all(|&byte| byte == 7))
        });
        let bytes = vec![7; 1 << 20];
        let mut sent = 0;
        while sent < TOTAL {
            let most = bytes.len().min(TOTAL - sent);
            sent += poll_fn(|context| poll_write(&stream, context, &bytes[..most])).await.unwrap();
        }
        assert!(reader.join().unwrap().unwrap());
    }
}
