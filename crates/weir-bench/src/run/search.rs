//! Runs the searches of a scenario.

use std::collections::BTreeMap;

use super::{AttemptFailure, Found, Lab, RunError};
use crate::{
    analysis::search::{highest, kept},
    result::{LoadLevel, Search, SearchAttempt, TargetRecord},
};

/// Runs the searches on the first row, for each target that supports it and each number of workers. A search whose target fails
/// has no rate, and the reason.
pub(super) fn all(
    lab: &mut Lab<'_>,
    peers: &BTreeMap<String, Found>,
    records: &mut [TargetRecord],
) -> Result<(), RunError> {
    let scenario = lab.scenario;
    let Some(row) = scenario.rows.first().filter(|_| !scenario.searches.is_empty()) else { return Ok(()) };
    let rate = scenario.rate(row);
    let levels = scenario.workers.iter().map(|workers| LoadLevel {
        connections: scenario.levels(row)[0],
        rate,
        workers: *workers,
    });
    let levels: Vec<LoadLevel> = levels.collect();
    for (target, at) in scenario.targets.iter().flat_map(|target| levels.iter().map(move |at| (target, *at))) {
        let Some(first) = lab.median_rate(&row.name, target, at) else { continue };
        for objective in &scenario.searches {
            let mut tried = Vec::new();
            let found = lab.search(row, target, at, &peers[target], records, |tries| {
                highest(first, |rate| {
                    let attempt = tries(rate)?;
                    let attempt = SearchAttempt { kept: kept(objective, &attempt), ..attempt };
                    tried.push(attempt);
                    Ok(attempt)
                })
            });
            let (rate, failed) = match found {
                Ok((rate, _)) => (rate, None),
                Err(AttemptFailure::Target(reason)) => (None, Some(reason)),
                Err(AttemptFailure::Lab(error)) => return Err(error),
            };
            lab.searches.push(Search {
                objective: objective.name.clone(),
                row: row.name.clone(),
                target: target.clone(),
                connections: at.connections,
                workers: at.workers,
                rate,
                failed,
                attempts: tried,
            });
        }
    }
    Ok(())
}
