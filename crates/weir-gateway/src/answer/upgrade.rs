//! Changing to another protocol: the relay after a 101.

use std::io;
use std::task::{Context, Poll};

use weir_telemetry::metrics::WorkerMetrics;

use super::{tunnel, websocket};
use crate::context::WorkerContext;
use crate::context::served_exchange::ServedExchange;
use crate::message::AfterExchange;
use crate::message::sides::{ClientSide, Pipe};

/// After a 101: relays bytes, or the messages of a WebSocket if plugins filter them.
pub(crate) async fn tunneled(
    worker: &WorkerContext,
    client: &mut impl ClientSide,
    upstream: &mut impl Pipe,
    exchange: &mut ServedExchange,
) -> AfterExchange {
    let mut upstream = CountingPipe::new(upstream, &worker.metrics);
    let early = std::mem::take(&mut exchange.early);
    let after = match exchange.opening.take() {
        None => Box::pin(tunnel::run(worker, client, &mut upstream, exchange, early)).await,
        Some(opening) => Box::pin(websocket::run(worker, client, &mut upstream, exchange, *opening, early)).await,
    };
    exchange.upstream.bytes_received += upstream.received;
    exchange.upstream.bytes_sent += upstream.sent;
    after
}

/// The upstream of a tunnel, which counts the bytes that pass. A client's pipe counts its own.
struct CountingPipe<'a, P> {
    pipe: &'a mut P,
    metrics: &'a WorkerMetrics,
    received: u64,
    sent: u64,
}

impl<'a, P> CountingPipe<'a, P> {
    fn new(pipe: &'a mut P, metrics: &'a WorkerMetrics) -> CountingPipe<'a, P> {
        CountingPipe { pipe, metrics, received: 0, sent: 0 }
    }

    fn count_received(&mut self, count: usize) {
        self.received += count as u64;
        self.metrics.upstream_bytes_received.add(count as u64);
    }

    fn count_sent(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = written {
            self.sent += count as u64;
            self.metrics.upstream_bytes_sent.add(count as u64);
        }
        written
    }
}

impl<P: Pipe> Pipe for CountingPipe<'_, P> {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.pipe.poll_read(context, buffer);
        if let Poll::Ready(Ok(count)) = read {
            self.count_received(count);
        }
        read
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.pipe.poll_write(context, bytes);
        self.count_sent(written)
    }

    fn read_on(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let read = self.pipe.read_on(buffer);
        if let Some(Ok(count)) = read {
            self.count_received(count);
        }
        read
    }

    fn poll_write_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.pipe.poll_write_last(context, bytes);
        self.count_sent(written)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.poll_shutdown(context)
    }

    fn poll_unread(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.pipe.poll_unread(context)
    }
}
