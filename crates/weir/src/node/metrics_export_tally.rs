//! How the exports of `otlp_metrics` ended, as metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use weir_telemetry::page::Page;

/// How often metrics were exported since the start.
#[derive(Debug, Default)]
pub(super) struct MetricsExportTally {
    pub delivered: AtomicU64,
    pub failed: AtomicU64,
    pub refused: AtomicU64,
    pub rejected_points: AtomicU64,
}

impl MetricsExportTally {
    /// Writes the series; none before the first export.
    pub(super) fn write(&self, page: &mut Page) {
        let outcomes = [("delivered", &self.delivered), ("failed", &self.failed), ("refused", &self.refused)];
        if outcomes.iter().all(|(_, count)| count.load(Relaxed) == 0) {
            return;
        }
        page.counter("weir_otlp_metrics_exports", "Exports of metrics to the collector of otlp_metrics, by outcome.");
        for (outcome, count) in outcomes {
            page.total(&[("outcome", outcome)], count.load(Relaxed));
        }
        page.counter("weir_otlp_metrics_rejected_points", "Data points that the collector has rejected.");
        page.total(&[], self.rejected_points.load(Relaxed));
    }
}
