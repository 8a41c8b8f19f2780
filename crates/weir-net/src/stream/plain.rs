//! Direct system calls below tokio's readiness: the C library's `recv` and `send` are cancellation points, and pay for
//! that with each call.

use std::io;
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Reads into `buffer`; 0 is the end. The task is woken when there is more.
pub(crate) fn poll_read(stream: &TcpStream, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
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
pub(crate) fn poll_write(stream: &TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
