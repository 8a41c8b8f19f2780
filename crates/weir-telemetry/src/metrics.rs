//! The numbers a gateway keeps: one set of cells for each worker, and a few for the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cell::{ByStatus, ByWord, Counter, Gauge, Histogram};
use crate::log_file::LogCounters;
use crate::routes::{LIMIT, RouteCells, RouteMetrics, RouteSlot, RouteSlots};
use crate::upstreams::UpstreamRegistry;

/// What became of messages of WebSockets or of server-sent events, where a plugin looks at them. Once a stream has ended, those seen
/// are the sum of the others.
#[derive(Debug, Default)]
pub struct EventCounters {
    pub seen: Counter,
    pub passed: Counter,
    /// Not passed, because a quota was used up.
    pub throttled: Counter,
    /// Not passed for another reason, or not completely.
    pub failed: Counter,
}

/// The cells of one worker. Only that worker's thread may write them.
///
/// The alignment keeps two workers' cells off one cache line, and off the pair of lines a processor fetches together.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// Request heads read, whole or broken.
    pub requests: Counter,
    /// Final responses sent.
    pub statuses: ByStatus,
    /// From the first byte of the request head to the last byte of the response. Upgraded connections are left out.
    pub request_duration: Histogram,
    /// Exchanges that ended early, by what ended them.
    pub errors: ByWord,

    /// Bytes read from clients and written to them, heads included.
    pub client_bytes_received: Counter,
    pub client_bytes_sent: Counter,
    /// Bytes read from upstreams and written to them, heads included.
    pub upstream_bytes_received: Counter,
    pub upstream_bytes_sent: Counter,

    /// Client connections this worker took on, and those that ended. Their difference is what is open.
    pub connections_opened: Counter,
    pub connections_closed: Counter,
    /// Connections this worker has, those included whose handshake is not done. Others look here before they hand one over.
    pub connections_held: Gauge,
    /// Connections given to another worker because it had fewer.
    pub connections_handed_over: Counter,
    /// `accept` failed, for example because no file descriptor was left.
    pub accept_errors: Counter,
    /// Times that there was no room for another connection, once a second at most; idle ones closed because of that.
    pub connections_full: Counter,
    pub connections_shed: Counter,
    /// Connections closed because their client has as many as it may.
    pub connections_over_share: Counter,
    /// Handshakes with clients over TLS: complete ones, those of them that resumed a session, and failed ones.
    pub tls_handshakes: Counter,
    pub tls_resumptions: Counter,
    pub tls_failures: Counter,
    /// Connections that became tunnels after a 101, and those that ended.
    pub tunnels_opened: Counter,
    pub tunnels_closed: Counter,
    /// Messages of WebSockets, by who sent them, and server-sent events.
    pub client_messages: EventCounters,
    pub upstream_messages: EventCounters,
    pub server_sent_events: EventCounters,

    /// New connections to upstreams, and those that ended.
    pub upstream_connects: Counter,
    pub upstream_connections_closed: Counter,
    /// Connections to upstreams that could not be made.
    pub upstream_connect_failures: Counter,
    /// Exchanges sent over a connection that had carried one before.
    pub upstream_reuses: Counter,
    /// Attempts beyond the first.
    pub upstream_retries: Counter,
    /// Attempts beyond the first that the budget did not allow.
    pub upstream_retries_refused: Counter,
    /// Connections to upstreams that wait in the pool.
    pub upstream_idle: Gauge,
    /// Exchanges that wait for a permit of an upstream.
    pub upstream_queued: Gauge,

    /// How late the worker came to its timer, which is due 50 times a second: so long something had held up its thread.
    pub tick_delay: Histogram,
    /// Pieces of work between which a worker serves while it adopts a configuration.
    pub adoption_slice: Histogram,

    /// One for each slot of [`RouteSlots`].
    routes: Box<[RouteMetrics]>,
}

impl WorkerMetrics {
    fn new(routes: usize) -> Self {
        Self {
            requests: Counter::default(),
            request_duration: Histogram::default(),
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
            // The slot that is shared comes first.
            routes: (0..=routes).map(|_| RouteMetrics::default()).collect(),
        }
    }

    /// Client connections open on this worker now.
    pub fn connections(&self) -> u64 {
        // Read in this order a connection that ends in between cannot make the difference negative.
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

/// The control plane's numbers: few, and rarely written.
#[derive(Debug, Default)]
pub struct ControlMetrics {
    pub reloads_applied: AtomicU64,
    pub reloads_refused: AtomicU64,
    /// The revision accepted last.
    pub revision: AtomicU64,
    pub upgrades_failed: AtomicU64,
    /// The last change was refused.
    is_refused: AtomicBool,
    last_applied_unix: AtomicI64,
}

impl ControlMetrics {
    /// Notes a configuration that was accepted.
    pub fn served(&self, revision: u64) {
        self.revision.store(revision, Relaxed);
        self.is_refused.store(false, Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_applied_unix.store(now.as_secs() as i64, Relaxed);
    }

    /// Notes a change that was refused.
    pub fn refused(&self) {
        self.reloads_refused.fetch_add(1, Relaxed);
        self.is_refused.store(true, Relaxed);
    }

    /// Whether what was read last is what serves.
    pub fn is_current(&self) -> bool {
        !self.is_refused.load(Relaxed)
    }

    /// Seconds since 1970; 0 when no configuration was ever applied.
    pub fn last_applied_unix(&self) -> i64 {
        self.last_applied_unix.load(Relaxed)
    }
}

/// Every number of one gateway process.
#[derive(Debug)]
pub struct Metrics {
    workers: Vec<Arc<WorkerMetrics>>,
    pub routes: RouteSlots,
    pub upstreams: UpstreamRegistry,
    /// Routes, upstreams and endpoints with series of their own, of each kind at most so many.
    pub names: usize,
    pub control: ControlMetrics,
    pub access_log: Arc<LogCounters>,
    pub audit_log: Arc<LogCounters>,
}

impl Metrics {
    pub fn new(workers: usize) -> Self {
        Metrics::with_names(workers, LIMIT)
    }

    /// With series for so many routes, upstreams and endpoints each.
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

    /// The cells of one worker, for that worker to keep.
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
