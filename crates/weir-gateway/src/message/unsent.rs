//! Bytes that wait until their receiver takes them.

use std::io;
use std::task::{Context, Poll, ready};

use weir_net::stream::Stream;

use crate::context::WorkerContext;
use crate::context::buffers::Buffers;

/// Bytes that a peer has not taken yet. If there are none, it owns no memory.
#[derive(Default)]
pub(crate) struct UnsentBytes {
    bytes: Vec<u8>,
    /// How many of them, from the front, have been sent: a long message that is taken in small parts is not moved for each part.
    sent: usize,
}

impl UnsentBytes {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// The bytes that wait, in their order.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(crate) fn append(&mut self, buffers: &Buffers, bytes: &[u8]) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..std::mem::take(&mut self.sent));
        }
        buffers.append_unread(&mut self.bytes, bytes);
    }

    /// Removes the first `count` bytes, which were sent.
    pub(crate) fn consume(&mut self, buffers: &Buffers, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.release(buffers);
        }
    }

    pub(crate) fn release(&mut self, buffers: &Buffers) {
        self.sent = 0;
        buffers.release(&mut self.bytes);
    }

    /// Sends what the stream takes of `bytes`, after the bytes that already wait, and keeps the rest; returns how many were
    /// sent.
    pub(crate) fn send(
        &mut self,
        worker: &WorkerContext,
        stream: &mut Stream,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let mut sent = 0;
        while self.is_empty() && sent < bytes.len() {
            match stream.poll_write(context, &bytes[sent..]) {
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        if sent < bytes.len() {
            self.append(&worker.buffers, &bytes[sent..]);
        }
        Ok(sent)
    }

    /// Sends some of the waiting bytes; ready with how many were taken.
    pub(crate) fn poll_flush(
        &mut self,
        worker: &WorkerContext,
        stream: &mut Stream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let written = ready!(stream.poll_write(context, self.waiting()));
        match &written {
            Ok(count) => self.consume(&worker.buffers, *count),
            Err(_) => self.release(&worker.buffers),
        }
        Poll::Ready(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_their_order_however_they_are_taken() {
        let (buffers, mut unsent) = (Buffers::default(), UnsentBytes::default());
        let (mut came, mut left) = (Vec::new(), Vec::new());
        for round in 0..200_usize {
            let more: Vec<u8> = (0..round * 7 % 50).map(|byte| (round + byte) as u8).collect();
            unsent.append(&buffers, &more);
            came.extend(more);
            let count = (round * 11 % 60).min(unsent.len());
            left.extend_from_slice(&unsent.waiting()[..count]);
            unsent.consume(&buffers, count);
            assert_eq!((unsent.len(), unsent.is_empty()), (came.len() - left.len(), came.len() == left.len()));
        }
        left.extend_from_slice(unsent.waiting());
        assert_eq!(left, came);
        unsent.release(&buffers);
        assert!(unsent.is_empty() && unsent.waiting().is_empty());
    }
}
