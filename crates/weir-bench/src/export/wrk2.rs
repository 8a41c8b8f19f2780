use std::fmt::Write as _;

use super::hdr::distribution;
use crate::{engine::LoadResult, result::Cell};

/// The output of wrk2 with `--latency`; its latencies also begin when requests were due.
pub(super) fn text(cell: &Cell, load: &LoadResult) -> String {
    let Some(run) = cell.runs().first() else { return String::new() };
    let latency = &load.total.latency;
    let seconds = load.measured_ns as f64 / 1e9;
    let url = run.plan.requests.first().map_or("", |request| request.url.as_str());
    let mut text = format!(
        "Running {seconds:.0}s test @ {url}\n  {} threads and {} connections\n  Thread Stats   Avg      Stdev     Max\n",
        run.plan.threads, run.plan.connections
    );
    let _ = writeln!(
        text,
        "    Latency {:>9} {:>9} {:>9}",
        time(latency.mean()),
        time(latency.deviation()),
        time(latency.max() as f64)
    );
    text.push_str("  Latency Distribution (HdrHistogram - Recorded Latency)\n");
    for percentile in [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0] {
        let value = latency.quantile(percentile / 100.0) as f64;
        let _ = writeln!(text, "{percentile:7.3}% {:>9}", time(value));
    }
    text.push_str("\n  Detailed Percentile spectrum:\n");
    text.push_str(&distribution(latency));
    text.push_str("----------------------------------------------------------\n");
    let _ = writeln!(
        text,
        "  {} requests in {seconds:.2}s, {:.2}MB read",
        load.total.completed,
        load.total.bytes_received as f64 / 1e6
    );
    let errors = &load.total.errors;
    if errors.sum() > 0 {
        let connect = errors.connect + errors.connect_timeout + errors.tls + errors.local;
        let read = errors.reset + errors.closed + errors.protocol + errors.mismatch;
        let _ = writeln!(text, "  Socket errors: connect {connect}, read {read}, write 0, timeout {}", errors.timeout);
    }
    let bad = load.total.completed - load.total.successes();
    if bad > 0 && !load.total.statuses.is_empty() {
        let _ = writeln!(text, "  Non-2xx or 3xx responses: {bad}");
    }
    let _ = writeln!(text, "Requests/sec: {:9.2}", load.rate());
    let _ = writeln!(text, "Transfer/sec: {:9.2}MB", load.total.bytes_received as f64 / 1e6 / seconds.max(1e-9));
    text
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{:.2}s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2}ms", ns / 1e6),
        ns => format!("{:.2}us", ns / 1e3),
    }
}
