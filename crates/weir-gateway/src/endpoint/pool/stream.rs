//! The connection of a stream to an endpoint. It is never one that was used before, and never used again.

use std::io;
use std::task::{Context, Poll};

use tokio::time::timeout;
use weir_net::stream::Stream;
use weir_plugin::{Exchange, Stop};

use super::{Permit, connected};
use crate::message::sides::Pipe;
use crate::snapshot::Timeouts;

/// A connection to an endpoint, with the permit of the stream that it carries.
pub(crate) struct StreamConnection<'w> {
    permit: Permit<'w>,
    stream: Stream,
}

impl<'w> Permit<'w> {
    /// Connects to the endpoint.
    pub(crate) async fn connect_stream(
        mut self,
        timeouts: Timeouts,
        exchange: &mut Exchange,
    ) -> Result<StreamConnection<'w>, Stop> {
        let worker = self.worker;
        let began_ns = worker.now_ns();
        loop {
            let connecting = self.endpoint.connect(worker, timeouts.send, exchange);
            match connected(worker, timeout(timeouts.connect, connecting).await) {
                Err(Stop::Overloaded)
                    if self.endpoint.should_wait_for_connection(began_ns, timeouts.connect, worker.now_ns()) =>
                {
                    self = self.again(timeouts.connect).await?;
                }
                opened => return Ok(StreamConnection { stream: opened?, permit: self }),
            }
        }
    }
}

impl StreamConnection<'_> {
    /// Ends the connection in a way that the endpoint does not take what it has received for complete.
    pub(crate) fn abort(&self) {
        self.stream.reset_on_drop();
    }

    fn count_received(&self, count: usize) {
        self.permit.worker.metrics.upstream_bytes_received.add(count as u64);
    }

    fn count_sent(&self, sent: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = sent {
            self.permit.worker.metrics.upstream_bytes_sent.add(count as u64);
        }
        sent
    }
}

impl Pipe for StreamConnection<'_> {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.stream.poll_read(context, buffer);
        if let Poll::Ready(Ok(count)) = read {
            self.count_received(count);
        }
        read
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = self.stream.poll_write(context, bytes);
        self.count_sent(sent)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(context)
    }

    fn read_on(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let read = self.stream.read_on(buffer);
        if let Some(Ok(count)) = read {
            self.count_received(count);
        }
        read
    }

    fn poll_write_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = self.stream.poll_write_last(context, bytes);
        self.count_sent(sent)
    }

    fn is_closed_by_drop(&self) -> bool {
        self.stream.is_ended_by_drop()
    }
}

impl Drop for StreamConnection<'_> {
    fn drop(&mut self) {
        self.permit.worker.metrics.upstream_connections_closed.increment();
    }
}
