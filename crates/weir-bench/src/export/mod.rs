//! Exports a result to the formats of other tools. Pure.

mod error;
mod hdr;
mod jtl;
mod k6;
mod openmetrics;
mod wrk2;

use clap::ValueEnum;

pub use self::error::ExportError;
use crate::{
    engine::LoadResult,
    result::{Cell, ResultFile},
};

/// A format that other tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// The output format of wrk2, with its detailed percentile spectrum.
    Wrk2,
    /// HdrHistogram percentile distribution.
    Hgrm,
    /// HdrHistogram interval log, version 1.3.
    Hlog,
    /// The data object of k6's handleSummary.
    K6,
    /// JMeter's CSV: one line per interval, with its number of samples.
    Jtl,
    /// OpenMetrics text: every cell of the result.
    Openmetrics,
}

impl ExportFormat {
    /// Whether the format holds one cell only.
    pub fn is_of_one_cell(self) -> bool {
        self != ExportFormat::Openmetrics
    }
}

/// Exports a cell, or the whole result for formats that can contain it.
pub fn export(result: &ResultFile, cell: &Cell, format: ExportFormat) -> Result<String, ExportError> {
    if format == ExportFormat::Openmetrics {
        return Ok(openmetrics::text(result));
    }
    let unmeasured = || ExportError::NotMeasured { row: cell.row.clone(), target: cell.target.clone() };
    let merged = merged(cell).ok_or_else(unmeasured)?;
    Ok(match format {
        ExportFormat::Wrk2 => wrk2::text(cell, &merged),
        ExportFormat::Hgrm => hdr::distribution(&merged.total.latency),
        ExportFormat::Hlog => hdr::interval_log(cell)?,
        ExportFormat::K6 => k6::text(&merged),
        ExportFormat::Jtl => jtl::text(cell)?,
        ExportFormat::Openmetrics => openmetrics::text(result),
    })
}

/// All repeats of a cell as one: counts and histograms added, times one after the other.
fn merged(cell: &Cell) -> Option<LoadResult> {
    let (first, rest) = cell.runs().split_first()?;
    let mut all = first.load.clone();
    for run in rest {
        all.total.add(&run.load.total);
        all.connections.add(&run.load.connections);
        all.measured_ns += run.load.measured_ns;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{LatencyHistogram, LoadPlan, StopCondition},
        result::{CellOutcome, LoadLevel, MeasuredRun},
    };

    fn cell() -> Cell {
        let mut latency = LatencyHistogram::new();
        for value in 1..=1_000u64 {
            latency.record(value * 10_000);
        }
        let tally = crate::engine::LoadTally {
            due: 1_000,
            completed: 1_000,
            statuses: [(200, 990), (503, 10)].into(),
            bytes_received: 150_000,
            service_time: latency.clone(),
            latency,
            ..Default::default()
        };
        let interval = crate::engine::LoadInterval {
            phase: crate::engine::LoadPhase::Measured,
            start_ns: 500_000_000,
            length_ns: 1_000_000_000,
            tally: tally.clone(),
            cpu: Default::default(),
        };
        let load = LoadResult {
            started_unix_ns: 1_764_000_000_000_000_000,
            warm_up_ns: 500_000_000,
            measured_ns: 1_000_000_000,
            drain_ns: 0,
            completed_in_time: None,
            total: tally,
            requests: Vec::new(),
            intervals: vec![interval],
            connections: Default::default(),
            flow: None,
            generator: Default::default(),
        };
        let run = MeasuredRun {
            repeat: 0,
            order: 0,
            started_at: "2026-11-21T00:00:00Z".to_owned(),
            plan: LoadPlan::closed("http://localhost:1/", 64, StopCondition::after_ms(1_000)),
            load,
            slices: Vec::new(),
            generator_cpus: vec![1],
            generators: Vec::new(),
            processes: Vec::new(),
            host: Vec::new(),
            target_errors: Vec::new(),
            instructions: None,
            records: None,
            route_changes: None,
            fan_out: None,
            new_clients: None,
            rss_before_bytes: None,
            target_files: None,
            interruptions: None,
            rss_after_bytes: None,
            memory_after: None,
            stacks: Default::default(),
        };
        Cell {
            row: "GET".to_owned(),
            target: "weir".to_owned(),
            level: LoadLevel { connections: 64, rate: None, workers: 1 },
            outcome: CellOutcome::Measured { runs: vec![run.clone(), run] },
        }
    }

    #[test]
    fn wrk2_text_has_the_lines_its_readers_look_for() {
        let text = wrk2::text(&cell(), &merged(&cell()).unwrap());
        for line in ["Running 2s test @ http://localhost:1/", "1 threads and 64 connections", "Requests/sec:   1000.00"]
        {
            assert!(text.contains(line), "{line} is missing from\n{text}");
        }
        assert!(text.contains("Latency Distribution (HdrHistogram - Recorded Latency)"));
        assert!(text.contains("Non-2xx or 3xx responses: 20"));
        assert!(text.contains("#[Mean    ="));
    }

    #[test]
    fn a_distribution_ends_at_one_and_counts_everything() {
        let text = hdr::distribution(&merged(&cell()).unwrap().total.latency);
        assert!(text.contains("1.000000000000       2000"), "{text}");
        assert!(text.trim_end().ends_with(']'));
    }

    #[test]
    fn an_interval_log_is_read_back_by_the_library() {
        use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
        let text = hdr::interval_log(&cell()).unwrap();
        let entries: Vec<_> = IntervalLogIterator::new(text.as_bytes()).map(|entry| entry.unwrap()).collect();
        let intervals = entries.iter().filter(|entry| matches!(entry, LogEntry::Interval(_))).count();
        assert_eq!(intervals, 2, "{text}");
    }

    #[test]
    fn a_k6_summary_has_its_metrics() {
        let value: serde_json::Value = serde_json::from_str(&k6::text(&merged(&cell()).unwrap())).unwrap();
        assert_eq!(value["metrics"]["http_reqs"]["values"]["count"], 2_000);
        assert!(value["metrics"]["http_req_duration"]["values"]["p(95)"].as_f64().unwrap() > 9.0);
        assert!((value["metrics"]["http_req_failed"]["values"]["rate"].as_f64().unwrap() - 0.01).abs() < 1e-9);
    }

    #[test]
    fn a_jtl_has_jmeters_columns() {
        let text = jtl::text(&cell()).unwrap();
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("timeStamp,elapsed,label,responseCode,responseMessage,threadName"));
        assert_eq!(lines.count(), 2);
    }
}
