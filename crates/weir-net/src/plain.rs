//! Direct system calls with tokio's readiness. The C library's `recv` and `send` are cancellation points, which costs time in
//! each call.

use std::io;
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::kernel_pipe::KernelPipe;

/// Reads into `buffer`; 0 is the end. When pending, the task is woken once there is more to read.
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

/// See [`crate::stream::Stream::read_on`].
pub(crate) fn read_on(stream: &TcpStream, buffer: &mut [u8]) -> Option<io::Result<usize>> {
    let length = buffer.len();
    if length == 0 {
        return None;
    }
    let received = attempt(stream, Interest::READABLE, length, || {
        rustix::net::recv(stream, &mut *buffer, RecvFlags::empty()).map(|(count, _)| count)
    });
    match received {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        received => Some(received),
    }
}

/// Writes as many of `bytes` as the socket accepts. When pending, the task is woken once it accepts more. Readiness is polled
/// only after an attempt, which nearly always writes everything. This skips tokio's cooperative budget, too; a task that writes
/// without end also reads, and yields there.
pub(crate) fn poll_write(stream: &TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    poll_send(stream, context, bytes, SendFlags::NOSIGNAL)
}

/// The same, for bytes after which the writing direction is ended at once: the kernel keeps a last part that fills no segment for the
/// segment that tells the end.
pub(crate) fn poll_write_last(stream: &TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    poll_send(stream, context, bytes, SendFlags::NOSIGNAL | SendFlags::MORE)
}

#[inline]
fn poll_send(stream: &TcpStream, context: &mut Context<'_>, bytes: &[u8], flags: SendFlags) -> Poll<io::Result<usize>> {
    loop {
        let sent = attempt(stream, Interest::WRITABLE, bytes.len(), || rustix::net::send(stream, bytes, flags));
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return Poll::Ready(sent),
        }
        std::task::ready!(stream.poll_write_ready(context))?;
    }
}

/// Fills an empty pipe. 0 says nothing of the stream, which has to be read then: the kernel moves nothing past an urgent byte, which a
/// read leaves out, and tells that as the end or as nothing to read. When pending, the task is woken once there is more to read.
pub(crate) fn poll_fill(stream: &TcpStream, context: &mut Context<'_>, pipe: &mut KernelPipe) -> Poll<usize> {
    // A failure is that of the read that follows.
    let is_ready = std::task::ready!(stream.poll_read_ready(context)).is_ok();
    Poll::Ready(if is_ready { pipe.fill(stream).unwrap_or(0) } else { 0 })
}

/// Writes what a pipe holds, or a part. When pending, the task is woken once the socket accepts more.
pub(crate) fn poll_drain(
    stream: &TcpStream,
    context: &mut Context<'_>,
    pipe: &mut KernelPipe,
) -> Poll<io::Result<usize>> {
    loop {
        match attempt(stream, Interest::WRITABLE, 0, || pipe.drain(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Not told by calls that do not wait, but by this one.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            drained => return Poll::Ready(drained),
        }
        std::task::ready!(stream.poll_write_ready(context))?;
    }
}

/// One system call. If it moved fewer bytes than requested, the socket is drained or full: tokio's readiness is cleared as by
/// `WouldBlock`, which saves the call that would return it. The end of the stream (0 bytes) keeps the readiness.
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
