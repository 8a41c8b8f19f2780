//! Which of the expected measurements a result has, and how its targets scale.

use super::ScalingEvidence;
use crate::{
    result::{Cell, MeasuredRun, ProcessRole, ResultFile},
    scenario::{EventAction, RowEvent},
    stats::median,
    target,
};

/// The least number of values for a 99.9th percentile: ten values are then beyond it.
const ENOUGH_FOR_P999: u64 = 10_000;

/// Those of [`super::evidence::EXPECTED`] that the result has.
pub(super) fn measured(result: &ResultFile) -> Vec<String> {
    let runs = || result.cells.iter().flat_map(Cell::runs);
    // A result of the load engine and its backend alone has no gateway to measure.
    let no_gateway = result.scenario.targets.iter().all(|name| direct(result, name));
    let any = |holds: fn(&MeasuredRun) -> bool| runs().any(holds);
    let values = |cell: &Cell| cell.runs().iter().map(|run| run.load.total.latency.count()).sum::<u64>();
    [
        ("p99.9", result.cells.iter().any(|cell| values(cell) >= ENOUGH_FOR_P999)),
        ("cpu per request", no_gateway || any(|run| run.target_cpu_us().is_some())),
        ("memory after load", no_gateway || any(|run| run.rss_after_bytes.is_some())),
        // Both are part of every run.
        ("errors by cause", runs().next().is_some()),
        ("generator saturation", any(|run| !run.load.generator.threads.is_empty())),
        ("cost per policy", costs(result)),
        ("behaviour during a configuration change", changes(result)),
        ("log loss", any(|run| run.records.is_some())),
        ("TLS handshakes/s", any(|run| !run.plan.keep_alive && run.load.connections.handshakes > 0)),
    ]
    .into_iter()
    .filter(|(_, is_measured)| *is_measured)
    .map(|(name, _)| name.to_owned())
    .collect()
}

/// Whether routes were changed, or the configuration reloaded, while a row was measured.
fn changes(result: &ResultFile) -> bool {
    let reloads = |event: &RowEvent| matches!(event.action, EventAction::ReloadOneRoute | EventAction::ReloadAllRoutes);
    let in_row = |cell: &Cell| result.scenario.row(&cell.row).is_some_and(|row| row.events.iter().any(reloads));
    let in_run = |run: &MeasuredRun| run.route_changes.as_ref().is_some_and(|one| !one.visible_after_ms.is_empty());
    result.cells.iter().any(|cell| cell.runs().iter().any(|run| in_row(cell) || in_run(run)))
}

pub(super) fn direct(result: &ResultFile, target: &str) -> bool {
    target::read(&result.scenario.variant(target).peer).is_ok_and(|peer| peer.direct)
}

/// Whether a row with policies and the row without them were measured on the same target.
fn costs(result: &ResultFile) -> bool {
    let rows = result.scenario.rows.iter().filter(|row| !row.policies.is_empty());
    let named = rows.filter_map(|row| Some((row.name.as_str(), row.compare_with.as_deref()?)));
    let ablations = result.scenario.ablations.iter().map(|one| (one.with.as_str(), one.without.as_str()));
    let mut pairs = named.chain(ablations);
    let measured = |row: &str, target: &str| result.series(row, target).any(|cell| !cell.runs().is_empty());
    pairs.any(|(with, without)| {
        result.scenario.targets.iter().any(|target| measured(with, target) && measured(without, target))
    })
}

/// The median throughput for each number of workers, if each worker had a processor of its own.
pub(super) fn scaling(result: &ResultFile) -> Vec<ScalingEvidence> {
    let sizes = result.cells.iter().filter(|cell| {
        let alone =
            |run: &MeasuredRun| run.role(ProcessRole::Target).all(|one| one.cpus.len() >= cell.level.workers as usize);
        // Idle connections, and events at a fixed rate, do not increase with the number of workers.
        !direct(result, &cell.target)
            && cell.runs().iter().all(|run| alone(run) && run.plan.protocol.is_http() && !run.plan.pacing.is_open())
    });
    let points = sizes.filter_map(|cell| {
        let rates: Vec<f64> = cell.runs().iter().map(MeasuredRun::throughput).collect();
        Some(ScalingEvidence {
            name: Some(format!("{}: {}, {} connections", cell.target, cell.row, cell.level.connections)),
            cores: f64::from(cell.level.workers),
            rps: median(&rates)?,
        })
    });
    points.collect()
}
