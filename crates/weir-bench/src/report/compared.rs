//! The differences between two results, as texts.

use crate::{analysis::compare::Difference, result::ResultFile, stats::Comparison};

/// The columns of a comparison.
pub const COMPARED_HEADER: [&str; 6] = ["row", "clients", "target", "req/s", "CPU/req", "p99"];

/// The line of a difference, in the order of [`COMPARED_HEADER`].
pub fn compared(one: &Difference<'_>) -> [String; 6] {
    [
        one.cell.row.clone(),
        one.cell.level.connections.to_string(),
        one.cell.target.clone(),
        change(one.throughput),
        change(one.cpu),
        change(one.p99),
    ]
}

/// What the marks of a comparison mean.
pub fn compared_legend(before: &ResultFile) -> String {
    let confidence = before.scenario.method.confidence_percent();
    format!("≈ is not different at {confidence} % by Mann and Whitney's test; intervals are of the ratio")
}

fn change(comparison: Option<Comparison>) -> String {
    let Some(one) = comparison else { return "–".to_owned() };
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let sign = if one.different { "" } else { "≈ " };
    format!(
        "{sign}{:+.1} % ({:+.1} to {:+.1}), p {:.3}",
        percent(one.ratio.median),
        percent(one.ratio.low),
        percent(one.ratio.high),
        one.p
    )
}
