//! The connection of a stream to an endpoint. It is never one that was used before, and never used again.

use std::time::Duration;

use socket2::SockRef;
use tokio::time::timeout;
use weir_net::stream::Stream;
use weir_net::timer::NEVER;
use weir_plugin::{Exchange, Stop};

use super::connect::watch_peer;
use super::{Permit, connected};
use crate::message::counted_stream::{ByteCounters, CountedStream};
use crate::snapshot::Timeouts;

/// A connection to an endpoint, with the permit of the stream that it carries.
pub(crate) struct StreamConnection<'w> {
    permit: Permit<'w>,
    stream: Stream,
    /// When the kernel begins to watch the endpoint; `NEVER` once it does. Most streams end before.
    watched_from_ns: u64,
    send_timeout_ns: u64,
    writes: FewWrites,
}

/// How often something was sent to an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FewWrites {
    None,
    One,
    /// The kernel sends each at once (`TCP_NODELAY`). It does so with the first without being told, and many streams have no other.
    More,
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
                    let stream = opened?;
                    let watched_from_ns = worker.now_ns().saturating_add(UNWATCHED_NS);
                    let send_timeout_ns = u64::try_from(timeouts.send.as_nanos()).unwrap_or(u64::MAX);
                    let writes = FewWrites::None;
                    return Ok(StreamConnection { permit: self, stream, watched_from_ns, send_timeout_ns, writes });
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
            let _ = watch_peer(SockRef::from(&self.stream), Duration::from_nanos(self.send_timeout_ns));
        }
        self.watched_from_ns
    }

    /// Ends the connection in a way that the endpoint does not take what it has received for complete.
    pub(crate) fn abort(&self) {
        self.stream.reset_on_drop();
    }
}

impl CountedStream for StreamConnection<'_> {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn counted(&mut self) -> (&mut Stream, ByteCounters<'_>) {
        let metrics = &self.permit.worker.metrics;
        let counters = ByteCounters { received: &metrics.upstream_bytes_received, sent: &metrics.upstream_bytes_sent };
        (&mut self.stream, counters)
    }

    fn before_write(&mut self) {
        self.writes = match self.writes {
            FewWrites::None => FewWrites::One,
            FewWrites::One => {
                // If the option cannot be set, the connection is already closed.
                let _ = SockRef::from(&self.stream).set_tcp_nodelay(true);
                FewWrites::More
            }
            FewWrites::More => FewWrites::More,
        };
    }
}

impl Drop for StreamConnection<'_> {
    fn drop(&mut self) {
        self.permit.worker.metrics.upstream_connections_closed.increment();
    }
}
