//! Writes a repeated failure to the error log at most once in ten seconds, rather than for every request, and the end of it.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock;

/// The least number of seconds between two entries.
const EVERY_S: u64 = 10;

/// When the last entry was written, in seconds of `clock::now`.
#[derive(Debug, Default)]
pub struct RateLimitedLog(AtomicU64);

impl RateLimitedLog {
    /// Writes to the error log, unless the last entry is less than `EVERY_S` old. Returns whether it has.
    pub fn error(&self, what: impl Display) -> bool {
        let now_s = clock::now().as_secs();
        let before_s = self.0.load(Ordering::Relaxed);
        let is_due = now_s.saturating_sub(before_s) >= EVERY_S;
        let is_ours = || self.0.compare_exchange(before_s, now_s, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let is_written = is_due && is_ours();
        if is_written {
            tracing::error!("{what}");
        }
        is_written
    }
}

/// The failures of a server that requests wait for. An outage that the error log tells of ends with an entry, too, so that there are
/// at most as many entries of ends as of failures.
#[derive(Debug, Default)]
pub(crate) struct OutageLog {
    failures: RateLimitedLog,
    /// How many requests have failed since the last entry of an end.
    failed: AtomicU64,
    /// Whether an entry tells of the failures.
    is_told: AtomicBool,
}

impl OutageLog {
    /// The server has not answered a request, or not as it should.
    pub(crate) fn failed(&self, failure: impl Display) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        if self.failures.error(failure) {
            self.is_told.store(true, Ordering::Relaxed);
        }
    }

    /// A fault that is not the server's, and that its next answer does not end.
    pub(crate) fn fault(&self, fault: impl Display) {
        self.failures.error(fault);
    }

    /// The server has answered. Writes the end of an outage, if one was told of: `answers_again` says which server answers again.
    pub(crate) fn answered(&self, answers_again: impl FnOnce() -> String) {
        // Not exchanged at once, since all workers read it with every answer.
        if self.is_told.load(Ordering::Relaxed) && self.is_told.swap(false, Ordering::Relaxed) {
            let failed = self.failed.swap(0, Ordering::Relaxed);
            tracing::warn!("{}; requests that failed before: {failed}", answers_again());
        }
    }
}
