//! The metrics of a gateway: one set of cells per worker, and a few for the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cell::{ByStatus, ByWord, Counter, Gauge, Histogram};
use crate::exemplar::{Exemplars, SampledTrace};
use crate::log_file::LogCounters;
use crate::routes::{LIMIT, RouteCells, RouteMetrics, RouteSlot, RouteSlots};
use crate::upstreams::UpstreamRegistry;

/// Outcomes of messages of WebSockets or of server-sent events, on routes with a message filter. Once a stream has ended, `seen`
/// is the sum of the others.
#[derive(Debug, Default)]
pub struct EventCounters {
    pub seen: Counter,
    pub passed: Counter,
    /// Not passed on, because a quota was used up.
    pub throttled: Counter,
    /// Not passed on for another reason, or only in part.
    pub failed: Counter,
}

/// What the sockets of HTTP/3 have done.
#[derive(Debug, Default)]
pub struct QuicCounters {
    /// Connections that clients began: accepted, refused, and those that had to prove their address first.
    pub accepted: Counter,
    pub refused: Counter,
    pub retried: Counter,
    /// Packets of connections sent, and those that the network has lost.
    pub packets_sent: Counter,
    pub packets_lost: Counter,
}

/// The cells of one worker. Only that worker's thread may write them.
///
/// The alignment keeps two workers' cells off one cache line, and off the pair of lines a processor fetches together.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// Request heads read, complete or malformed.
    pub requests: Counter,
    /// Final responses sent.
    pub statuses: ByStatus,
    /// From the first byte of the request head to the last byte of the response, without upgraded connections.
    pub request_duration: Histogram,
    /// Of `request_duration`.
    pub request_exemplars: Exemplars,
    /// Exchanges that ended early, by cause.
    pub errors: ByWord,

    /// Bytes read from clients and written to them, heads included.
    pub client_bytes_received: Counter,
    pub client_bytes_sent: Counter,
    /// Bytes read from upstreams and written to them, heads included.
    pub upstream_bytes_received: Counter,
    pub upstream_bytes_sent: Counter,

    /// Client connections opened and closed on this worker. The difference is the number of open ones.
    pub connections_opened: Counter,
    pub connections_closed: Counter,
    /// Connections of this worker, including those in the handshake. Other workers read this before they hand over a connection.
    pub connections_held: Gauge,
    /// Connections handed over to another worker because it had fewer.
    pub connections_handed_over: Counter,
    /// Failures of `accept`, for example for lack of file descriptors.
    pub accept_errors: Counter,
    /// Seconds in which the connection limit was reached, and idle connections closed because of that.
    pub connections_full: Counter,
    pub connections_shed: Counter,
    /// Connections closed because their client had reached its limit.
    pub connections_over_share: Counter,
    /// TLS handshakes with clients: completed, resumed among them, and failed.
    pub tls_handshakes: Counter,
    pub tls_resumptions: Counter,
    pub tls_failures: Counter,
    /// Connections that became tunnels after a 101, and tunnels closed.
    pub tunnels_opened: Counter,
    pub tunnels_closed: Counter,
    /// Streams without HTTP that have begun, and ended; those that did not end by themselves, by cause.
    pub streams_opened: Counter,
    pub streams_closed: Counter,
    pub stream_errors: ByWord,
    /// Datagrams of stream routes from clients and from endpoints that were dropped, by cause.
    pub datagrams_dropped: ByWord,
    /// Messages of WebSockets, by sender, and server-sent events.
    pub client_messages: EventCounters,
    pub upstream_messages: EventCounters,
    pub server_sent_events: EventCounters,

    /// Connections to upstreams opened, and closed.
    pub upstream_connects: Counter,
    pub upstream_connections_closed: Counter,
    /// Connections to upstreams that could not be opened.
    pub upstream_connect_failures: Counter,
    /// Exchanges sent over a connection that had carried another one before.
    pub upstream_reuses: Counter,
    /// Attempts after the first.
    pub upstream_retries: Counter,
    /// Attempts after the first that the retry budget did not allow.
    pub upstream_retries_refused: Counter,
    /// Idle connections to upstreams in the pool.
    pub upstream_idle: Gauge,
    /// Exchanges that wait for a permit of an upstream.
    pub upstream_queued: Gauge,

    /// Delay of the worker's timer, which is due 50 times a second: how long the thread was blocked.
    pub tick_delay: Histogram,
    /// Durations of the steps in which a worker adopts a configuration; it serves requests between the steps.
    pub adoption_slice: Histogram,

    pub quic: QuicCounters,

    /// One per slot of [`RouteSlots`].
    routes: Box<[RouteMetrics]>,
}

impl WorkerMetrics {
    fn new(routes: usize) -> Self {
        Self {
            requests: Counter::default(),
            request_duration: Histogram::default(),
            request_exemplars: Exemplars::default(),
            statuses: ByStatus::default(),
            errors: ByWord::default(),
            client_bytes_received: Counter::default(),
            client_bytes_sent: Counter::default(),
            upstream_bytes_received: Counter::default(),
            upstream_bytes_sent: Counter::default(),
            connections_opened: Counter::default(),
            connections_closed: Counter::default(),
            connections_held: Gauge::default(),
            connections_handed_over: Counter::default(),
            accept_errors: Counter::default(),
            connections_full: Counter::default(),
            connections_shed: Counter::default(),
            connections_over_share: Counter::default(),
            tls_handshakes: Counter::default(),
            tls_resumptions: Counter::default(),
            tls_failures: Counter::default(),
            tunnels_opened: Counter::default(),
            tunnels_closed: Counter::default(),
            streams_opened: Counter::default(),
            streams_closed: Counter::default(),
            stream_errors: ByWord::default(),
            datagrams_dropped: ByWord::default(),
            client_messages: EventCounters::default(),
            upstream_messages: EventCounters::default(),
            server_sent_events: EventCounters::default(),
            upstream_connects: Counter::default(),
            upstream_connections_closed: Counter::default(),
            upstream_connect_failures: Counter::default(),
            upstream_reuses: Counter::default(),
            upstream_retries: Counter::default(),
            upstream_retries_refused: Counter::default(),
            upstream_idle: Gauge::default(),
            upstream_queued: Gauge::default(),
            tick_delay: Histogram::default(),
            adoption_slice: Histogram::default(),
            quic: QuicCounters::default(),
            // The shared slot comes first.
            routes: (0..=routes).map(|_| RouteMetrics::default()).collect(),
        }
    }

    /// Keeps an exchange of a sampled trace as an exemplar of its duration, for all requests and for its route.
    #[cold]
    pub fn exemplify(&self, route: &RouteMetrics, duration_ns: u64, trace: SampledTrace) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = now.as_millis() as u64;
        self.request_exemplars.record(duration_ns, trace, unix_ms);
        route.exemplars.record(duration_ns, trace, unix_ms);
    }

    /// Client connections open on this worker now.
    pub fn connections(&self) -> u64 {
        // In this order, a connection closed in between cannot make the difference negative.
        let closed = self.connections_closed.value();
        self.connections_opened.value().saturating_sub(closed)
    }
}

impl RouteCells for WorkerMetrics {
    #[inline]
    fn route(&self, slot: RouteSlot) -> &RouteMetrics {
        &self.routes[usize::from(slot.0)]
    }
}

/// Metrics of the control plane: few, and rarely written.
#[derive(Debug, Default)]
pub struct ControlMetrics {
    pub reloads_applied: AtomicU64,
    pub reloads_refused: AtomicU64,
    /// The last accepted revision.
    pub revision: AtomicU64,
    pub upgrades_failed: AtomicU64,
    /// Whether the last change was refused.
    is_refused: AtomicBool,
    last_applied_unix: AtomicI64,
}

impl ControlMetrics {
    /// Records that a configuration was accepted.
    pub fn served(&self, revision: u64) {
        self.revision.store(revision, Relaxed);
        self.is_refused.store(false, Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_applied_unix.store(now.as_secs() as i64, Relaxed);
    }

    /// Records that a change was refused.
    pub fn refused(&self) {
        self.reloads_refused.fetch_add(1, Relaxed);
        self.is_refused.store(true, Relaxed);
    }

    /// Whether the configuration read last is the one in use.
    pub fn is_current(&self) -> bool {
        !self.is_refused.load(Relaxed)
    }

    /// Seconds since 1970; 0 when no configuration was ever applied.
    pub fn last_applied_unix(&self) -> i64 {
        self.last_applied_unix.load(Relaxed)
    }
}

/// All metrics of one gateway process.
#[derive(Debug)]
pub struct Metrics {
    workers: Vec<Arc<WorkerMetrics>>,
    pub routes: RouteSlots,
    pub upstreams: UpstreamRegistry,
    /// The most routes, upstreams and endpoints, each, with series of their own.
    pub names: usize,
    pub control: ControlMetrics,
    pub access_log: Arc<LogCounters>,
    pub audit_log: Arc<LogCounters>,
}

impl Metrics {
    pub fn new(workers: usize) -> Self {
        Metrics::with_names(workers, LIMIT)
    }

    /// With series for this many routes, upstreams and endpoints each.
    pub fn with_names(workers: usize, names: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Arc::new(WorkerMetrics::new(names))).collect(),
            routes: RouteSlots::new(names),
            upstreams: UpstreamRegistry::new(workers, names),
            names,
            control: ControlMetrics::default(),
            access_log: Arc::default(),
            audit_log: Arc::default(),
        }
    }

    /// The cells of one worker.
    pub fn worker(&self, worker: usize) -> Arc<WorkerMetrics> {
        Arc::clone(&self.workers[worker])
    }

    pub fn workers(&self) -> &[Arc<WorkerMetrics>] {
        &self.workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_apart_up_to_a_limit() {
        let words = ByWord::default();
        words.increment("no_route");
        words.increment("read_timeout");
        words.increment("no_route");
        assert_eq!(words.values().collect::<Vec<_>>(), [("no_route", 2), ("read_timeout", 1)]);
        for number in 0..100 {
            words.increment(format!("word {number}").leak());
        }
        assert_eq!(words.values().count(), ByWord::LIMIT);
        assert_eq!(words.values().last(), Some(("other", 102 - (ByWord::LIMIT as u64 - 1))));
    }

    #[test]
    fn any_status_has_a_class() {
        let (classes, statuses) = (crate::cell::ByClass::default(), ByStatus::default());
        for status in [0, 99, 100, 204, 304, 404, 599, 600, u16::MAX] {
            classes.increment(status);
            statuses.increment(status);
        }
        assert_eq!(classes.values(), [1, 1, 1, 1, 1, 4]);
        let counted: Vec<_> = statuses.values().collect();
        assert_eq!(counted, [(100, 1), (204, 1), (304, 1), (404, 1), (599, 1), (ByStatus::INVALID, 4)]);
        assert_eq!(statuses.by_class(), classes.values());
    }

    #[test]
    fn workers_keep_their_cells_apart() {
        let metrics = Metrics::new(2);
        metrics.worker(0).connections_opened.add(3);
        metrics.worker(0).connections_closed.increment();
        metrics.worker(1).errors.increment("no_route");
        assert_eq!(metrics.workers()[0].connections(), 2);
        assert_eq!(metrics.workers()[1].connections(), 0);
        assert_eq!(metrics.workers()[0].errors.values().count(), 0);
        assert_eq!(metrics.workers()[1].errors.values().next(), Some(("no_route", 1)));
    }
}
