//! The bytes of a connection as the HTTP/2 library wants them.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::context::WorkerContext;
use crate::context::buffers::READ_BYTES;
use crate::message::sides::Pipe;

/// Frames of one wake-up leave together, in one call. What the socket does not take waits here; that it does so stops
/// the library from making more.
pub struct Io<P> {
    pipe: P,
    worker: Rc<WorkerContext>,
    unsent: Vec<u8>,
}

impl<P: Pipe + Unpin> Io<P> {
    pub fn new(pipe: P, worker: Rc<WorkerContext>) -> Io<P> {
        Io { pipe, worker, unsent: Vec::new() }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let count = ready!(self.pipe.poll_write(context, &self.unsent))?;
            self.worker.buffers.consume(&mut self.unsent, count);
        }
        Poll::Ready(Ok(()))
    }
}

impl<P: Pipe + Unpin> AsyncRead for Io<P> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // By way of the worker's buffer: the library's would have to be filled with zeros first.
        this.worker.buffers.with_read_buffer(|buffer| {
            let room = out.remaining().min(READ_BYTES);
            let count = ready!(this.pipe.poll_read(context, &mut buffer[..room]))?;
            out.put_slice(&buffer[..count]);
            Poll::Ready(Ok(()))
        })
    }
}

impl<P: Pipe + Unpin> AsyncWrite for Io<P> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.unsent.len() + bytes.len() > READ_BYTES {
            ready!(this.poll_send(context))?;
        }
        this.worker.buffers.stash(&mut this.unsent, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        this.pipe.poll_shutdown(context)
    }
}

impl<P> Drop for Io<P> {
    fn drop(&mut self) {
        self.worker.buffers.release(&mut self.unsent);
    }
}
