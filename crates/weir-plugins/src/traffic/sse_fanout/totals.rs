//! What the metrics show of shared streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_plugin::state;

use super::delays::EventDelays;
use super::streams::OpenStreams;
use crate::rate_limited_log::RateLimitedLog;

/// A gauge.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The totals of this process.
#[derive(Default)]
pub struct FanoutTotals {
    /// Clients that currently follow a shared stream.
    pub clients: Count,
    pub open: Arc<OpenStreams>,
    /// For streams that end because their events cannot be held.
    pub lack: RateLimitedLog,
    /// Streams that have been opened.
    pub streams: Count,
    /// Streams that have ended or failed, and were requested again.
    pub reconnects: Count,
    /// Blocks received from upstreams: events, and lines that set an id or retry time.
    pub events: Count,
    /// Blocks that slow clients have missed.
    pub missed: Count,
    /// The time from when an event was received until it was given to a client's connection: once for each client, without events
    /// that a client gets from the kept ones when it connects.
    pub delays: EventDelays,
}

/// The totals, for `/metrics`.
pub fn totals() -> Arc<FanoutTotals> {
    state::permanent("sse-fanout")
}
