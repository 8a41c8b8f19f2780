//! A message on its way into a stream of HTTP/2.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use weir_proto::Trailers;

use super::{broken, fields};
use crate::context::WorkerContext;

/// Content for which the peer has opened no window yet waits here, so that the library never holds more than it sends.
#[derive(Default)]
pub struct Outgoing {
    /// `None` until the head has left.
    stream: Option<SendStream<Bytes>>,
    unsent: Vec<u8>,
    /// What follows the content; `None` until it is known, and after it has left.
    end: Option<HeaderMap>,
}

impl Outgoing {
    /// The head has left; content follows.
    pub fn begin(&mut self, stream: SendStream<Bytes>) {
        self.stream = Some(stream);
    }

    /// All of the content has been given.
    pub fn end(&mut self, trailers: Option<&Trailers>) {
        self.end = Some(trailers.map(fields::trailers).unwrap_or_default());
    }

    /// Whether the message ends with its head, if this is all that is known of its content.
    pub fn ends_with_head(&mut self, content: &[u8]) -> bool {
        let ends = content.is_empty() && self.end.as_ref().is_some_and(HeaderMap::is_empty);
        if ends {
            self.end = None;
        }
        ends
    }

    pub fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Bytes that wait for the peer's window.
    pub fn held(&self) -> usize {
        self.unsent.len()
    }

    /// Sends what the peer takes and keeps the rest; says how much it took.
    pub fn send(&mut self, worker: &WorkerContext, bytes: &[u8]) -> io::Result<usize> {
        let taken = if self.is_blocked() { 0 } else { self.pass(bytes)? };
        worker.buffers.stash(&mut self.unsent, &bytes[taken..]);
        Ok(taken)
    }

    pub fn poll_flush(&mut self, worker: &WorkerContext, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.poll_capacity(context))?;
        let unsent = std::mem::take(&mut self.unsent);
        let taken = self.pass(&unsent);
        self.unsent = unsent;
        if let Ok(taken) = taken {
            worker.buffers.consume(&mut self.unsent, taken);
        }
        Poll::Ready(taken)
    }

    /// Sends what the peer takes of `bytes`, and keeps nothing.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.pass(bytes)? {
                0 => {}
                taken => return Poll::Ready(Ok(taken)),
            }
            ready!(self.poll_capacity(context))?;
        }
    }

    fn poll_capacity(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let capacity = match &mut self.stream {
            Some(stream) => ready!(stream.poll_capacity(context)),
            None => None,
        };
        Poll::Ready(match capacity {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(broken(error)),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    /// Gives the library what it may send at once, and after all of it the end.
    fn pass(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(stream) = &mut self.stream else { return Ok(0) };
        let mut taken = 0;
        if !bytes.is_empty() {
            stream.reserve_capacity(bytes.len());
            taken = stream.capacity().min(bytes.len());
        }
        let end = if taken == bytes.len() { self.end.take() } else { None };
        let is_last = end.as_ref().is_some_and(HeaderMap::is_empty);
        if taken > 0 || is_last {
            stream.send_data(Bytes::copy_from_slice(&bytes[..taken]), is_last).map_err(broken)?;
        }
        match end {
            Some(trailers) if !is_last => stream.send_trailers(trailers).map_err(broken)?,
            _ => {}
        }
        Ok(taken)
    }

    /// The stream content goes into, once the head has left.
    pub fn stream(&mut self) -> Option<&mut SendStream<Bytes>> {
        self.stream.as_mut()
    }

    pub fn release(&mut self, worker: &WorkerContext) {
        worker.buffers.release(&mut self.unsent);
    }
}
