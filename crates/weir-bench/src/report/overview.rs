//! The beginning of the report: the targets of each row beside each other, at the row's highest level, with a bar for the
//! figure that answers the row's question.

use std::fmt::Write as _;

use super::{against, level, target_name};
use crate::{
    analysis::{
        lint::Severity,
        summary::{CellSummary, Findings},
    },
    plot::{Unit, colour, escape},
    scenario::{Scenario, ScenarioRow, Speak},
};

/// The most rows shown; the table below has all of them.
const MAX_ROWS: usize = 12;

/// The figure of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowFigure {
    /// Closed loop: the target sets the rate.
    Throughput,
    /// Open loop: the rate is given, so that the targets differ in latency.
    Latency,
    /// Idle connections.
    MemoryPerConnection,
}

impl RowFigure {
    fn of(scenario: &Scenario, row: &ScenarioRow) -> RowFigure {
        match row.speak {
            Speak::Idle => RowFigure::MemoryPerConnection,
            Speak::WebSocket { .. } | Speak::Sse { .. } | Speak::WebSub { .. } => RowFigure::Latency,
            Speak::Http1 | Speak::Http2 { .. } | Speak::Http3 { .. } if scenario.is_closed(row) => {
                RowFigure::Throughput
            }
            Speak::Http1 | Speak::Http2 { .. } | Speak::Http3 { .. } => RowFigure::Latency,
        }
    }

    fn caption(self) -> &'static str {
        match self {
            RowFigure::Throughput => "requests/s, more is better",
            RowFigure::Latency => "p99, less is better",
            RowFigure::MemoryPerConnection => "memory per connection, less is better",
        }
    }

    /// The value in its unit; `None` if it was not measured.
    fn value(self, summary: &CellSummary<'_>) -> Option<(f64, Unit)> {
        let (interval, unit) = match self {
            RowFigure::Throughput => (summary.rps, Unit::Count),
            RowFigure::Latency => (summary.p99_ms, Unit::Milliseconds),
            RowFigure::MemoryPerConnection => (summary.bytes_per_connection, Unit::Bytes),
        };
        interval.map(|interval| (interval.median, unit))
    }
}

/// Writes the section, if there is something to compare.
pub(super) fn overview(findings: &Findings<'_>, page: &mut String) {
    let scenario = &findings.result.scenario;
    let is_of_a_policy =
        |row: &ScenarioRow| scenario.ablations.iter().any(|pair| pair.with == row.name) || scenario.is_variation(row);
    let cards: Vec<String> =
        scenario.rows.iter().filter(|row| !is_of_a_policy(row)).filter_map(|row| card(findings, row)).collect();
    if cards.is_empty() {
        return;
    }
    page.push_str("<section class=\"overview\"><h2>At a glance</h2><div class=\"cards\">");
    cards.iter().take(MAX_ROWS).for_each(|card| page.push_str(card));
    page.push_str("</div>");
    if cards.len() > MAX_ROWS {
        let _ = write!(page, "<p>{} more rows are in the table of figures.</p>", cards.len() - MAX_ROWS);
    }
    page.push_str("</section>");
}

/// A row at its highest level: a line for each target.
fn card(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let scenario = &findings.result.scenario;
    let figure = RowFigure::of(scenario, row);
    let measured = || findings.cells.iter().filter(|one| one.cell.row == row.name && one.absent().is_none());
    let highest = measured().map(|one| (one.cell.level.connections, one.cell.level.workers)).max()?;
    let at_highest = |one: &&CellSummary<'_>| (one.cell.level.connections, one.cell.level.workers) == highest;
    let cells: Vec<&CellSummary<'_>> = measured().filter(at_highest).collect();
    let is_invalid = |summary: &CellSummary<'_>| summary.worst == Some(Severity::Invalid);
    let values = cells.iter().filter(|one| !is_invalid(one)).filter_map(|one| figure.value(one));
    let largest = values.map(|(value, _)| value).fold(0.0, f64::max);
    let mut card = format!(
        "<div class=\"card\"><h3>{}</h3><p>{} clients · {}</p><div class=\"bars\">",
        escape(&row.name),
        level(highest.0, highest.1),
        figure.caption()
    );
    for summary in cells {
        let value = figure.value(summary).filter(|_| !is_invalid(summary));
        let width = value.map_or(0.0, |(value, _)| if largest > 0.0 { value / largest * 100.0 } else { 0.0 });
        let shown = match (value, summary.survivors_only) {
            (Some((value, unit)), _) => unit.label(value),
            (None, Some(lost)) if !is_invalid(summary) => format!("lost {:.0} %", (lost * 100.0).max(1.0)),
            _ if is_invalid(summary) => "invalid".to_owned(),
            _ => "–".to_owned(),
        };
        let _ = write!(
            card,
            "<span>{}</span><span class=\"bar\"><i style=\"width:{width:.1}%;background:{}\"></i></span><b>{shown}</b><small>{}</small>",
            escape(&target_name(findings, summary.cell)),
            colour(&summary.cell.target),
            remark(figure, summary, &scenario.baseline)
        );
    }
    card.push_str("</div></div>");
    Some(card)
}

/// The comparison with the baseline.
fn remark(figure: RowFigure, summary: &CellSummary<'_>, baseline: &str) -> String {
    if summary.cell.target == *baseline {
        return "baseline".to_owned();
    }
    match figure {
        RowFigure::Throughput => {
            let throughput = against(summary.against_baseline);
            let cpu = against(summary.cpu_against_baseline);
            let cpu = if cpu.is_empty() { cpu } else { format!(", CPU {cpu}") };
            format!("{throughput}{cpu}")
        }
        RowFigure::Latency | RowFigure::MemoryPerConnection => {
            let cpu = against(summary.cpu_against_baseline);
            if cpu.is_empty() { cpu } else { format!("CPU {cpu}") }
        }
    }
}
