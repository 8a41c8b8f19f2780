//! The knee of each curve of a result, computed from its levels.

use crate::{
    result::{Cell, Knee, MeasuredRun},
    scenario::{Scenario, ScenarioRow},
    stats::{ENOUGH_LEVELS, NoKnee, knee, median},
};

/// The knees of all rows, targets and worker counts that were to be measured at enough levels of a closed loop. With a rate, the
/// load does not depend on the number of clients.
pub fn knees(scenario: &Scenario, cells: &[Cell]) -> Vec<Knee> {
    let rows = scenario
        .rows
        .iter()
        .filter(|row| scenario.is_closed(row) && row.speak.asks() && scenario.levels(row).len() >= ENOUGH_LEVELS);
    let curves = rows.flat_map(|row| {
        let targets = scenario.targets.iter();
        targets.flat_map(move |target| scenario.workers.iter().map(move |workers| (row, target, *workers)))
    });
    curves.filter_map(|(row, target, workers)| of_curve(cells, row, target, workers)).collect()
}

fn of_curve(cells: &[Cell], row: &ScenarioRow, target: &str, workers: u32) -> Option<Knee> {
    let mut levels: Vec<(u32, f64, f64)> = cells
        .iter()
        .filter(|cell| cell.row == row.name && cell.target == target && cell.level.workers == workers)
        .filter_map(|cell| {
            let median_of =
                |figure: fn(&MeasuredRun) -> f64| median(&cell.runs().iter().map(figure).collect::<Vec<_>>());
            Some((
                cell.level.connections,
                median_of(MeasuredRun::throughput)?,
                median_of(MeasuredRun::mean_latency_ms)?,
            ))
        })
        .collect();
    levels.sort_by_key(|level| level.0);
    let (first, last) = (levels.first()?.0, levels.last()?.0);
    let curve: Vec<(f64, f64)> = levels.iter().map(|(_, rps, mean_ms)| (*rps, *mean_ms)).collect();
    let mut found = Knee { row: row.name.clone(), target: target.to_owned(), workers, ..Knee::default() };
    match knee(&curve) {
        Ok(index) => {
            let (connections, rps, mean_ms) = levels[index];
            (found.connections, found.rps, found.mean_ms) = (Some(connections), Some(rps), Some(mean_ms));
        }
        Err(NoKnee::TooFewLevels) => {
            let levels = levels.len();
            found.note = Some(format!("{levels} levels are too few to find a knee: {ENOUGH_LEVELS} are needed"));
        }
        Err(NoKnee::BelowTheFirst) => found.note = Some(format!("below {first} clients, the first level")),
        Err(NoKnee::BeyondTheLast) => found.note = Some(format!("beyond {last} clients, the last level")),
    }
    Some(found)
}
