//! The connection of a stream to an endpoint. It is never one that was used before, and never used again.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::time::timeout;
use weir_net::stream::Stream;
use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Stop};

use super::connect::watch_peer;
use super::{Permit, connected};
use crate::message::sides::Pipe;
use crate::snapshot::Timeouts;

/// A connection to an endpoint, with the permit of the stream that it carries.
pub(crate) struct StreamConnection<'w> {
    permit: Permit<'w>,
    stream: Stream,
    /// When the kernel begins to watch the endpoint; `NEVER` once it does. Most streams end before.
    watched_from_ns: u64,
    send_timeout: Duration,
}

/// How long the kernel need not watch the endpoint of a stream: it would find nothing out within this time. It saves four system calls
/// and a timer of the kernel for each stream that is shorter.
const UNWATCHED_NS: u64 = 10_000_000_000;

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
            let connecting = self.endpoint.connect(worker, None, exchange);
            match connected(worker, timeout(timeouts.connect, connecting).await) {
                Err(Stop::Overloaded)
                    if self.endpoint.should_wait_for_connection(began_ns, timeouts.connect, worker.now_ns()) =>
                {
                    self = self.again(timeouts.connect).await?;
                }
                opened => {
                    let (stream, send_timeout) = (opened?, timeouts.send);
                    let watched_from_ns = worker.now_ns().saturating_add(UNWATCHED_NS);
                    return Ok(StreamConnection { permit: self, stream, watched_from_ns, send_timeout });
                }
            }
        }
    }
}

impl StreamConnection<'_> {
    /// Has the kernel watch the endpoint if it is time; returns when to call it next, at the latest.
    pub(crate) fn watch_peer(&mut self, now_ns: u64) -> u64 {
        if now_ns >= self.watched_from_ns {
            self.watched_from_ns = NEVER;
            // If an option cannot be set, the connection is already closed.
            let _ = watch_peer(SockRef::from(&self.stream), self.send_timeout);
        }
        self.watched_from_ns
    }

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
