use std::fmt::Write as _;

use crate::{
    analysis::summary::{CellSummary, findings},
    result::ResultFile,
    stats::ConfidenceInterval,
};

type FigureOf = fn(&CellSummary<'_>) -> Option<ConfidenceInterval>;

/// Every cell as gauges: medians over the repeats. <https://prometheus.io/docs/specs/om/open_metrics_spec/>
pub(super) fn text(result: &ResultFile) -> String {
    let findings = findings(result);
    let families: [(&str, &str, &str, FigureOf); 7] = [
        ("weir_bench_requests_per_second", "", "Completed requests per second.", |one| one.rps),
        ("weir_bench_latency_p50_seconds", "seconds", "Median latency from when requests were due.", |one| {
            seconds(one.p50_ms)
        }),
        ("weir_bench_latency_p99_seconds", "seconds", "99th percentile of latency from when due.", |one| {
            seconds(one.p99_ms)
        }),
        ("weir_bench_latency_p999_seconds", "seconds", "99.9th percentile of latency.", |one| seconds(one.p999_ms)),
        ("weir_bench_cpu_per_request_seconds", "seconds", "CPU time of the target for each request.", |one| {
            one.cpu_us.map(|us| scaled(us, 1e-6))
        }),
        ("weir_bench_memory_bytes", "bytes", "Highest resident memory of the target.", |one| one.rss_bytes),
        ("weir_bench_error_ratio", "ratio", "Share of exchanges that failed.", |one| one.error_share),
    ];
    let mut text = String::new();
    for (name, unit, help, figure) in families {
        let _ = writeln!(text, "# TYPE {name} gauge");
        if !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name} {help}");
        for summary in &findings.cells {
            let Some(interval) = figure(summary) else { continue };
            let cell = summary.cell;
            let _ = writeln!(
                text,
                "{name}{{scenario=\"{}\",row=\"{}\",target=\"{}\",connections=\"{}\",workers=\"{}\"}} {}",
                escape(&result.scenario.name),
                escape(&cell.row),
                escape(&cell.target),
                cell.level.connections,
                cell.level.workers,
                interval.median
            );
        }
    }
    text.push_str("# EOF\n");
    text
}

fn seconds(milliseconds: Option<ConfidenceInterval>) -> Option<ConfidenceInterval> {
    milliseconds.map(|one| scaled(one, 1e-3))
}

fn scaled(one: ConfidenceInterval, factor: f64) -> ConfidenceInterval {
    ConfidenceInterval { median: one.median * factor, low: one.low * factor, high: one.high * factor }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
