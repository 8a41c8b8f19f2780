//! Writes a repeated failure to the error log at most once in ten seconds, rather than for every request.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock;

/// The least number of seconds between two entries.
const EVERY_S: u64 = 10;

/// When the last entry was written, in seconds of `clock::now`.
#[derive(Debug, Default)]
pub struct RateLimitedLog(AtomicU64);

impl RateLimitedLog {
    /// Writes to the error log, unless the last entry is less than `EVERY_S` old.
    pub fn error(&self, what: impl Display) {
        let now_s = clock::now().as_secs();
        let before_s = self.0.load(Ordering::Relaxed);
        let is_due = now_s.saturating_sub(before_s) >= EVERY_S;
        let is_ours = || self.0.compare_exchange(before_s, now_s, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_due && is_ours() {
            tracing::error!("{what}");
        }
    }
}
