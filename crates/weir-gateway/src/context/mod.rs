//! What all code on one worker's thread uses: time, buffers, metrics. It does not depend on endpoints, messages or plugins.

pub(crate) mod buffers;
pub(crate) mod clock;
pub(crate) mod frame;
pub(crate) mod handshake_turns;
pub(crate) mod identity_watch;
pub(crate) mod kept_content;
pub(crate) mod lifecycle;
pub(crate) mod meter;
pub(crate) mod pipes;
pub(crate) mod served_exchange;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use weir_net::clock::Clock;
use weir_net::timer::Wheel;
use weir_telemetry::metrics::WorkerMetrics;

use crate::access_log::AccessLogWriter;
use buffers::Buffers;
use clock::WorkerClock;
use handshake_turns::HandshakeTurns;
use identity_watch::IdentityWatch;
use lifecycle::{Lifecycle, ServicePhase, WaitsFor, WorkerPhase};
use meter::Meter;

/// Used by the worker's own thread only.
pub(crate) struct WorkerContext {
    pub clock: WorkerClock,
    pub buffers: Buffers,
    pub lifecycle: Lifecycle,
    pub metrics: Arc<WorkerMetrics>,
    pub meter: Meter,
    pub access_log: Option<AccessLogWriter>,
    /// A timer for each client connection. All are woken when the phase changes.
    pub wheel: Wheel,
    pub identities: IdentityWatch,
    /// Of clients.
    pub handshakes: HandshakeTurns,
    /// Of connections to endpoints, which do not wait for those of clients.
    pub upstream_handshakes: HandshakeTurns,
    /// How many exchanges wait for a page for their error.
    pub pages: Cell<u32>,
}

impl WorkerContext {
    /// `pipes`: the most pipes of the worker.
    pub(crate) fn new(
        clock: Clock,
        metrics: Arc<WorkerMetrics>,
        access_log: Option<AccessLogWriter>,
        pipes: usize,
    ) -> WorkerContext {
        WorkerContext {
            clock: WorkerClock::new(clock),
            buffers: Buffers::new(pipes),
            lifecycle: Lifecycle::default(),
            metrics,
            meter: Meter::default(),
            access_log,
            wheel: Wheel::new(clock.now_ns()),
            identities: IdentityWatch::default(),
            handshakes: HandshakeTurns::default(),
            upstream_handshakes: HandshakeTurns::default(),
            pages: Cell::new(0),
        }
    }

    /// [`WorkerClock::now_ns`].
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// [`WorkerClock::wake_up`].
    #[inline]
    pub(crate) fn wake_up(&self) -> u64 {
        self.clock.wake_up()
    }

    /// [`Lifecycle::phase`].
    #[inline]
    pub(crate) fn phase(&self) -> WorkerPhase {
        self.lifecycle.phase()
    }

    /// Notes that the worker is at its connection limit: idle connections are woken and closed early.
    pub(crate) fn note_shortage(&self) {
        let now_ns = self.wake_up();
        let wakes = self.lifecycle.note_shortage(now_ns);
        if self.lifecycle.is_counted_second(now_ns) {
            self.metrics.connections_full.increment();
        }
        if !wakes {
            return;
        }
        if self.lifecycle.is_logged_shortage(now_ns) {
            tracing::warn!(
                "the connection limit of this worker is reached, with {} connections; idle connections are closed early: \
                 raise the limit of open files, or find the clients that hold the connections",
                self.lifecycle.tasks()
            );
        }
        self.wheel.wake_all();
    }

    /// Whether the worker is at its connection limit.
    pub(crate) fn is_full(&self) -> bool {
        self.lifecycle.is_full(self.now_ns())
    }

    /// Until when a connection that has waited since `since_ns` may wait: until its deadline, or shorter at the connection
    /// limit. `None` if its time is over.
    pub(crate) fn wait_until_ns(&self, waits_for: WaitsFor, since_ns: u64, deadline_ns: u64) -> Option<u64> {
        let now_ns = self.now_ns();
        let until_ns = since_ns.saturating_add(self.lifecycle.patience_ns(waits_for, now_ns)).min(deadline_ns);
        if until_ns <= now_ns && now_ns < deadline_ns {
            self.metrics.connections_shed.increment();
        }
        (until_ns > now_ns).then_some(until_ns)
    }

    /// Enters the phase of draining, which ends after `patience` at the latest.
    pub(crate) fn drain(&self, patience: Duration) {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.lifecycle.set_end(self.wake_up().saturating_add(patience_ns));
        self.enter(WorkerPhase::Draining);
    }

    /// Begins to drain the connections of one listener, for `patience` at most.
    pub(crate) fn drain_service(&self, service: &ServicePhase, patience: Duration) {
        let now_ns = self.wake_up();
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.lifecycle.drain_service(service, now_ns, now_ns.saturating_add(patience_ns));
        self.wheel.wake_all();
    }

    /// Stops the connections of closed listeners whose time to drain is over.
    pub(crate) fn stop_drained(&self, now_ns: u64) {
        if self.lifecycle.stop_drained(now_ns) {
            self.wheel.wake_all();
        }
    }

    /// Enters a later phase and wakes every connection.
    pub(crate) fn enter(&self, phase: WorkerPhase) {
        if self.lifecycle.enter(phase, self.wake_up()) {
            self.wheel.wake_all();
        }
    }
}
