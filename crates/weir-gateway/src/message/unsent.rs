//! Bytes that wait until their receiver takes them.

use std::io;
use std::task::{Context, Poll, ready};

use weir_net::stream::Stream;

use crate::context::WorkerContext;

/// Bytes that a stream has not taken yet. If there are none, it owns no memory.
#[derive(Default)]
pub struct UnsentBytes(Vec<u8>);

impl UnsentBytes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends what the stream takes of `bytes`, after the bytes that already wait, and keeps the rest; returns how many were
    /// sent.
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
        worker.buffers.append_unread(&mut self.0, &bytes[sent..]);
        Ok(sent)
    }

    /// Sends some of the waiting bytes; ready with how many were taken.
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
