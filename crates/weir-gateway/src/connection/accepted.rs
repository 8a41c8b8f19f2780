//! A client's connection, whatever protocol it carries.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_net::stream::Stream;
use weir_net::timer::Timer;
use weir_plugin::{Exchange, Tls};

use crate::context::lifecycle::{WorkerPhase, canonical};
use crate::message::counted_stream::{ByteCounters, CountedStream};
use crate::message::sides::Pipe;
use crate::worker::TaskGuard;

/// After an answer that came before the end of its request, the rest of the request is discarded up to this total time, also
/// over HTTP/2.
pub(super) const DISCARD_NS: u64 = 30_000_000_000;
/// The same as a number of bytes. Less than over HTTP/2, where only the stream is lost beyond it: a client that uploads without end
/// is stopped soon.
const DISCARD_BYTES: u64 = 32 * 1024 * 1024;
/// The most reads of discarded bytes in one wake-up, so that one connection does not delay the others.
const DISCARDED_READS: usize = 4;

/// The byte stream of one client, with its addresses. Most connections are idle, so it is kept small.
pub(crate) struct Accepted {
    pub worker: TaskGuard,
    pub stream: Stream,
    pub tls: Option<Rc<Tls>>,
    pub timer: Timer,
    /// Bytes received and not used yet.
    pub stash: Vec<u8>,
    pub peer: SocketAddr,
    local: SocketAddr,
    /// Unique in this process.
    number: u64,
}

impl Accepted {
    pub(crate) fn new(worker: TaskGuard, stream: Stream, peer: SocketAddr, tls: Option<Rc<Tls>>) -> Accepted {
        worker.metrics.connections_opened.increment();
        let peer = canonical(peer);
        Accepted {
            timer: worker.wheel.add(),
            // A socket without a local address has been reset; the first read reports that.
            local: worker.service().local_addr(|| stream.local_addr()).unwrap_or(peer),
            number: worker.number_connection(),
            worker,
            stream,
            tls,
            stash: Vec::new(),
            peer,
        }
    }

    /// Registers the task that the connection's timer wakes.
    pub(crate) fn watch(&self, waker: Waker) {
        self.worker.wheel.watch(&self.timer, waker);
    }

    pub(crate) fn set_deadline(&self, deadline_ns: u64) {
        self.worker.wheel.set(&self.timer, deadline_ns);
    }

    /// Reads into `buffer`; 0 is the end.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Pipe::poll_read(self, context, buffer)
    }

    /// Whether closing at once destroys nothing, once the client has asked for the end. Over TLS its closing alert is still to come.
    pub(crate) fn is_finished(&mut self) -> bool {
        self.tls.is_none() && self.stash.is_empty() && self.stream.is_quiet()
    }

    /// Closes gracefully, so that the client can read the answer: the gateway closes its sending side first, and discards
    /// what the client still sends, as long as it comes without pauses of 1 s, up to a total time and number of bytes. Closing
    /// a socket with unread bytes would reset the connection and destroy the answer (RFC 9112 §9.6).
    pub(crate) async fn linger(&mut self) {
        const PAUSE_NS: u64 = 1_000_000_000;
        let worker = Rc::clone(&self.worker);
        // With TLS, the end of the answer may still wait for the client, which has as long as for any other part.
        let write_timeout_ns = worker.current().snapshot.clients.write_timeout.as_nanos() as u64;
        let begun_ns = worker.now_ns();
        let (mut is_closed, mut pause_end_ns, mut discarded) = (false, begun_ns.saturating_add(write_timeout_ns), 0);
        poll_fn(|context| {
            let now_ns = worker.wake_up();
            if !is_closed {
                match self.stream.poll_shutdown(context) {
                    Poll::Ready(Ok(())) => (is_closed, pause_end_ns) = (true, now_ns + PAUSE_NS),
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            for _ in 0..DISCARDED_READS {
                match worker.buffers.with_read_buffer(|buffer| self.poll_read(context, buffer)) {
                    Poll::Ready(Ok(count)) if count > 0 && discarded < DISCARD_BYTES => {
                        discarded += count as u64;
                        pause_end_ns = pause_end_ns.max(now_ns + PAUSE_NS);
                    }
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => {
                        let most_ns = if is_closed { DISCARD_NS } else { write_timeout_ns.max(DISCARD_NS) };
                        let deadline_ns = pause_end_ns.min(begun_ns.saturating_add(most_ns));
                        if now_ns >= deadline_ns || self.worker.service().phase() == WorkerPhase::Stopping {
                            return Poll::Ready(());
                        }
                        self.set_deadline(deadline_ns);
                        return Poll::Pending;
                    }
                }
            }
            if self.worker.service().phase() == WorkerPhase::Stopping {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Fills in the exchange's facts about the client. `requests` is the number of this request on the connection, from 1.
    pub(crate) fn describe(&self, exchange: &mut Exchange, requests: u64, started_ns: u64) {
        exchange.started_ns = started_ns;
        exchange.client = weir_plugin::ClientFacts {
            peer: self.peer,
            local: self.local,
            addr: self.peer.ip(),
            port: self.peer.port(),
            public_port: self.local.port(),
            trusted: false,
            tls: self.tls.is_some(),
            protocol: weir_plugin::ClientProtocol::Http,
            connection: self.number,
            connection_requests: requests,
        };
        exchange.tls.clone_from(&self.tls);
    }
}

impl CountedStream for Accepted {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn counted(&mut self) -> (&mut Stream, ByteCounters<'_>) {
        let metrics = &self.worker.metrics;
        let counters = ByteCounters { received: &metrics.client_bytes_received, sent: &metrics.client_bytes_sent };
        (&mut self.stream, counters)
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.worker.buffers.release(&mut self.stash);
        self.worker.wheel.remove(&self.timer);
        self.worker.metrics.connections_closed.increment();
    }
}
