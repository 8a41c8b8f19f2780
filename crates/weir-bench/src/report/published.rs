//! Whether measured rates have the shape of published ones: they come from other machines, so only their relations can agree.

use std::fmt;

use crate::{
    analysis::{
        lint::Severity,
        summary::{CellSummary, Findings},
    },
    result::Cell,
    scenario::{PublishedFigures, Scenario, ScenarioRow},
};

/// The fewest figures that have a shape.
const ENOUGH_FIGURES: usize = 3;
/// Rates are largely consistent if the most that a target has for one published is at most this many times the least.
const LARGELY: f64 = 1.3;
/// The target without a gateway has no shape of one.
const NO_GATEWAY: &str = "none";

/// The rates of a target beside those that were published for a system.
struct PublishedShape<'a> {
    system: &'a str,
    target: &'a str,
    figures: usize,
    /// The least and the most that it has for one published, each with its row.
    least: (f64, &'a str),
    most: (f64, &'a str),
}

/// A line for each published system and each target that was measured in enough of its rows.
pub(super) fn shapes(findings: &Findings<'_>) -> Vec<String> {
    let scenario = &findings.result.scenario;
    let mut systems: Vec<&str> = Vec::new();
    for one in scenario.rows.iter().flat_map(|row| &row.published) {
        if !systems.contains(&one.system.as_str()) {
            systems.push(&one.system);
        }
    }
    let gateways = scenario.targets.iter().filter(|target| scenario.variant(target).peer != NO_GATEWAY);
    let pairs = gateways.flat_map(|target| systems.iter().map(move |system| (*system, target.as_str())));
    pairs.filter_map(|(system, target)| Some(shape(findings, system, target)?.to_string())).collect()
}

fn shape<'a>(findings: &'a Findings<'_>, system: &'a str, target: &'a str) -> Option<PublishedShape<'a>> {
    let scenario = &findings.result.scenario;
    let ratio = |summary: &CellSummary<'_>| {
        let row = scenario.row(&summary.cell.row)?;
        let published = published_for(scenario, row, summary.cell).find(|one| one.system == system)?.rps?;
        Some((summary.rps?.median / published, row.name.as_str()))
    };
    let valid = findings.cells.iter().filter(|summary| summary.worst != Some(Severity::Invalid));
    let mut ratios: Vec<(f64, &str)> =
        valid.filter(|summary| summary.cell.target == target).filter_map(ratio).collect();
    ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (least, most) = (*ratios.first()?, *ratios.last()?);
    let figures = ratios.len();
    (figures >= ENOUGH_FIGURES).then_some(PublishedShape { system, target, figures, least, most })
}

/// The published figures of a row at the level of a cell.
pub(super) fn published_for<'a>(
    scenario: &Scenario,
    row: &'a ScenarioRow,
    cell: &Cell,
) -> impl Iterator<Item = &'a PublishedFigures> {
    let connections = cell.level.connections;
    let is_first =
        scenario.levels(row).first() == Some(&connections) && scenario.workers.first() == Some(&cell.level.workers);
    row.published.iter().filter(move |one| match one.connections {
        Some(published) => published == connections,
        None => is_first,
    })
}

impl fmt::Display for PublishedShape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PublishedShape { system, target, figures, least, most } = self;
        write!(f, "{target} has {:.2} to {:.2} times the {figures} published rates of {system}: ", least.0, most.0)?;
        match most.0 <= least.0 * LARGELY {
            true => f.write_str("largely consistent"),
            false => write!(f, "not consistent, the least in \"{}\" and the most in \"{}\"", least.1, most.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_with_one_factor_are_largely_consistent_and_others_name_the_rows() {
        let shape = |most: f64| {
            let (least, most) = ((2.0, "no plugin"), (most, "key-auth"));
            PublishedShape { system: "API7 Gateway", target: "weir", figures: 12, least, most }.to_string()
        };
        assert_eq!(
            shape(2.5),
            "weir has 2.00 to 2.50 times the 12 published rates of API7 Gateway: largely consistent"
        );
        let apart = shape(4.0);
        assert!(apart.ends_with("not consistent, the least in \"no plugin\" and the most in \"key-auth\""), "{apart}");
    }
}
