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
    /// The same of reports of counts, which no request waits for.
    failed_reports: AtomicU64,
    /// Whether the last request or report has failed.
    is_down: AtomicBool,
    /// Whether an entry tells of the failures.
    is_told: AtomicBool,
}

impl OutageLog {
    /// The server has not answered a request, or not as it should.
    pub(crate) fn failed(&self, failure: impl Display) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.tell(failure);
    }

    /// The server has not taken a report that no request waits for.
    pub(crate) fn report_failed(&self, failure: impl Display) {
        self.failed_reports.fetch_add(1, Ordering::Relaxed);
        self.tell(failure);
    }

    fn tell(&self, failure: impl Display) {
        self.is_down.store(true, Ordering::Relaxed);
        if self.failures.error(failure) {
            self.is_told.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the server has not answered the last time, a report included.
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// A fault that is not the server's, and that its next answer does not end.
    pub(crate) fn fault(&self, fault: impl Display) {
        self.failures.error(fault);
    }

    /// The server has answered. Writes the end of an outage, if one was told of: `answers_again` says which server answers again.
    pub(crate) fn answered(&self, answers_again: impl FnOnce() -> String) {
        // Neither is written at once, since all workers read them with every answer.
        if self.is_down() {
            self.is_down.store(false, Ordering::Relaxed);
        }
        if self.is_told.load(Ordering::Relaxed) && self.is_told.swap(false, Ordering::Relaxed) {
            tracing::warn!("{}; {}", answers_again(), self.failures_before());
        }
    }

    /// What has failed since the last entry of an end, in words.
    fn failures_before(&self) -> String {
        let requests = self.failed.swap(0, Ordering::Relaxed);
        match self.failed_reports.swap(0, Ordering::Relaxed) {
            0 => format!("requests that failed before: {requests}"),
            reports => format!("requests that failed before: {requests}, reports of counts: {reports}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_reports_are_no_failed_requests() {
        let outages = OutageLog::default();
        assert!(!outages.is_down());
        outages.report_failed("no answer");
        outages.report_failed("no answer");
        assert!(outages.is_down());
        assert_eq!(outages.failures_before(), "requests that failed before: 0, reports of counts: 2");
        outages.failed("no answer");
        assert_eq!(outages.failures_before(), "requests that failed before: 1", "each end tells of its own outage");
        outages.answered(String::new);
        assert!(!outages.is_down());
    }
}
