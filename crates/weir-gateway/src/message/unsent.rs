//! Bytes on their way to a peer that does not take them yet.

use std::io;
use std::task::{Context, Poll, ready};

use weir_net::stream::Stream;

use crate::context::WorkerContext;

/// What a stream has not taken yet. Empty, it owns no memory.
#[derive(Default)]
pub struct Unsent(Vec<u8>);

impl Unsent {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends what it can of `bytes` after what waits already, and keeps the rest; says how much was taken of them.
    pub fn send(
        &mut self,
        worker: &WorkerContext,
        stream: &mut Stream,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let mut sent = 0;
        while self.0.is_empty() && sent < bytes.len() {
            match stream.poll_write(context, &bytes[sent..]) {
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        worker.buffers.stash(&mut self.0, &bytes[sent..]);
        Ok(sent)
    }

    /// Sends some of what waits; ready with how much was taken.
    pub fn poll_flush(
        &mut self,
        worker: &WorkerContext,
        stream: &mut Stream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.0.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let written = ready!(stream.poll_write(context, &self.0));
        match &written {
            Ok(count) => worker.buffers.consume(&mut self.0, *count),
            Err(_) => self.release(worker),
        }
        Poll::Ready(written)
    }

    pub fn release(&mut self, worker: &WorkerContext) {
        worker.buffers.release(&mut self.0);
    }
}
