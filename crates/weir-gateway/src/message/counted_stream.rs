//! Connections that carry bytes without HTTP, as sides of a stream.

use std::io;
use std::task::{Context, Poll};

use weir_net::kernel_pipe::KernelPipe;
use weir_net::stream::Stream;
use weir_telemetry::cell::Counter;

use super::sides::Pipe;

/// A connection whose bytes are counted.
pub(crate) trait CountedStream {
    fn stream(&self) -> &Stream;

    /// The stream, and the counters of the bytes that are received and sent.
    fn counted(&mut self) -> (&mut Stream, ByteCounters<'_>);

    /// Called before bytes are written, and not before the kernel moves some by itself.
    #[inline]
    fn before_write(&mut self) {}
}

/// The counters of the bytes of a connection.
pub(crate) struct ByteCounters<'m> {
    pub received: &'m Counter,
    pub sent: &'m Counter,
}

/// Counts the bytes that were moved, if any were.
fn count(moved: Poll<io::Result<usize>>, counter: &Counter) -> Poll<io::Result<usize>> {
    if let Poll::Ready(Ok(count)) = moved {
        counter.add(count as u64);
    }
    moved
}

impl<C: CountedStream> Pipe for C {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let (stream, counters) = self.counted();
        count(stream.poll_read(context, buffer), counters.received)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.before_write();
        let (stream, counters) = self.counted();
        count(stream.poll_write(context, bytes), counters.sent)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.counted().0.poll_shutdown(context)
    }

    fn read_on(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let (stream, counters) = self.counted();
        let read = stream.read_on(buffer);
        if let Some(Ok(count)) = read {
            counters.received.add(count as u64);
        }
        read
    }

    fn poll_write_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.before_write();
        let (stream, counters) = self.counted();
        count(stream.poll_write_last(context, bytes), counters.sent)
    }

    fn is_plain(&self) -> bool {
        self.stream().is_plain()
    }

    fn poll_fill(&mut self, context: &mut Context<'_>, pipe: &mut KernelPipe) -> Poll<usize> {
        let (stream, counters) = self.counted();
        let filled = stream.poll_fill(context, pipe);
        if let Poll::Ready(count) = filled {
            counters.received.add(count as u64);
        }
        filled
    }

    fn poll_drain(&mut self, context: &mut Context<'_>, pipe: &mut KernelPipe) -> Poll<io::Result<usize>> {
        let (stream, counters) = self.counted();
        count(stream.poll_drain(context, pipe), counters.sent)
    }
}
