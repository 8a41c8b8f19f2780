//! What a person reads: a table in the terminal, one HTML file, figures. All drawn from a result, nothing is measured.

mod figures;
mod html;
mod table;

pub use self::{
    figures::{Figure, figures},
    html::html,
    table::{searches, table},
};
use crate::{
    plot::Unit,
    result::ResultFile,
    stats::{Comparison, Interval},
    summary::Summary,
};

/// `12.3k (12.1k–12.6k)`, or a dash.
fn with_interval(interval: Option<Interval>, unit: Unit) -> String {
    match interval {
        None => "–".to_owned(),
        Some(Interval { median, low, high }) if low == high => unit.label(median),
        Some(Interval { median, low, high }) => {
            format!("{} ({}–{})", unit.label(median), unit.label(low), unit.label(high))
        }
    }
}

fn plain(interval: Option<Interval>, unit: Unit) -> String {
    interval.map_or("–".to_owned(), |interval| unit.label(interval.median))
}

/// `+12 %`, `≈` when the test does not call it different.
fn against(comparison: Option<Comparison>) -> String {
    match comparison {
        None => String::new(),
        Some(one) if one.different => format!("{:+.1} %", (one.ratio.median - 1.0) * 100.0),
        Some(_) => "≈".to_owned(),
    }
}

/// What the row's level is called.
fn level(summary: &Summary<'_>) -> String {
    let level = summary.cell.level;
    let mut text = level.connections.to_string();
    if level.workers > 1 {
        text.push_str(&format!(" × {} workers", level.workers));
    }
    text
}

/// What others published for the cell, with whose it is.
fn published(summary: &Summary<'_>) -> String {
    let one = |published: &&crate::scenario::Published| {
        let figures = [
            published.rps.map(|rps| format!("{}/s", Unit::Count.label(rps))),
            published.mean_ms.map(|ms| format!("mean {}", Unit::Milliseconds.label(ms))),
            published.p99_ms.map(|ms| format!("p99 {}", Unit::Milliseconds.label(ms))),
            published.error_percent.map(|percent| format!("{percent} % errors")),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        format!("{} {}", published.system, figures.join(", "))
    };
    summary.published.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Whether the rows hold connections rather than ask for throughput.
fn holds_connections(result: &ResultFile) -> bool {
    result.scenario.rows.iter().all(|row| matches!(row.speak, crate::scenario::Speak::Idle))
}
