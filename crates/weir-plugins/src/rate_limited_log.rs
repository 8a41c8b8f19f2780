//! Saying that something fails, without saying it for every request.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock;

/// Seconds between two complaints about the same thing.
const EVERY_S: u64 = 10;

/// When something was last complained about, in seconds of the limits' clock.
#[derive(Debug, Default)]
pub struct RateLimitedLog(AtomicU64);

impl RateLimitedLog {
    /// Writes to the error log, unless that was done a moment ago.
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
