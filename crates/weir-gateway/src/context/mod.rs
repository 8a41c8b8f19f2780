//! What everything on one worker's thread uses: time, buffers, metrics. Knows nothing of endpoints, messages or plugins.

pub mod buffers;
pub mod clock;
pub mod lifecycle;
pub mod meter;

use std::sync::Arc;

use weir_net::clock::Clock;
use weir_net::timer::Wheel;
use weir_telemetry::metrics::WorkerMetrics;

use crate::access_log::AccessLogWriter;
use buffers::Buffers;
use clock::WorkerClock;
use lifecycle::{Lifecycle, WorkerPhase};
use meter::Meter;

/// Only the worker's own thread touches it.
pub struct WorkerContext {
    pub clock: WorkerClock,
    pub buffers: Buffers,
    pub lifecycle: Lifecycle,
    pub metrics: Arc<WorkerMetrics>,
    pub meter: Meter,
    pub access_log: Option<AccessLogWriter>,
    /// A timer for each client connection. All are woken when the phase changes.
    pub wheel: Wheel,
}

impl WorkerContext {
    pub fn new(clock: Clock, metrics: Arc<WorkerMetrics>, access_log: Option<AccessLogWriter>) -> WorkerContext {
        WorkerContext {
            clock: WorkerClock::new(clock),
            buffers: Buffers::default(),
            lifecycle: Lifecycle::default(),
            metrics,
            meter: Meter::default(),
            access_log,
            wheel: Wheel::new(clock.now_ns()),
        }
    }

    /// [`WorkerClock::now_ns`].
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// [`WorkerClock::wake_up`].
    #[inline]
    pub fn wake_up(&self) -> u64 {
        self.clock.wake_up()
    }

    /// [`Lifecycle::phase`].
    #[inline]
    pub fn phase(&self) -> WorkerPhase {
        self.lifecycle.phase()
    }

    /// Says whether there is room for another connection. Where there is none, idle ones give theirs up.
    pub fn set_full(&self, is_full: bool) {
        if is_full && self.lifecycle.set_full(true, self.wake_up()) {
            self.metrics.connections_full.increment();
            self.wheel.wake_all();
        } else if !is_full {
            self.lifecycle.set_full(false, self.now_ns());
        }
    }

    /// Enters a later phase and wakes every connection.
    pub fn enter(&self, phase: WorkerPhase) {
        if self.lifecycle.enter(phase, self.wake_up()) {
            self.wheel.wake_all();
        }
    }
}
