//! Compares two results of the same scenario, cell by cell. Pure.

use crate::{
    analysis::summary::values,
    result::{Cell, MeasuredRun, ResultFile},
    stats::{Comparison, compare_apart},
};

/// A cell that both results have, and the differences of the second from the first.
#[derive(Clone, Debug)]
pub struct Difference<'a> {
    pub cell: &'a Cell,
    pub throughput: Option<Comparison>,
    pub cpu: Option<Comparison>,
    pub p99: Option<Comparison>,
}

/// Every cell of `before` that `after` has as well. The runs of two results were not interleaved, so they are compared
/// as independent samples.
pub fn differences<'a>(before: &'a ResultFile, after: &ResultFile) -> Vec<Difference<'a>> {
    let confidence = before.scenario.method.confidence;
    let same = |cell: &Cell| {
        after
            .cells
            .iter()
            .find(|other| (&other.row, &other.target) == (&cell.row, &cell.target) && other.level == cell.level)
    };
    before
        .cells
        .iter()
        .filter_map(|cell| {
            let other = same(cell).filter(|other| !other.runs().is_empty() && !cell.runs().is_empty())?;
            let of = |figure: &dyn Fn(&MeasuredRun) -> Option<f64>| {
                compare_apart(&values(cell.runs(), figure), &values(other.runs(), figure), confidence, before.seed)
            };
            Some(Difference {
                cell,
                throughput: of(&|run| Some(run.throughput())),
                cpu: of(&MeasuredRun::target_cpu_us),
                p99: of(&|run| Some(run.latency_ms(99.0))),
            })
        })
        .collect()
}

/// Differences in the circumstances rather than the targets: machine, kernel, versions, configurations.
pub fn circumstances(before: &ResultFile, after: &ResultFile) -> Vec<String> {
    let mut notes = Vec::new();
    let mut differ = |what: &str, a: &str, b: &str| {
        if a != b {
            notes.push(format!("{what}: {a} → {b}"));
        }
    };
    differ("scenario", &before.scenario.name, &after.scenario.name);
    differ("CPU", &before.manifest.cpu.model, &after.manifest.cpu.model);
    differ("kernel", &before.manifest.kernel, &after.manifest.kernel);
    let method = |result: &ResultFile| {
        let method = &result.scenario.method;
        format!("{} repeats of {} s", method.repeats, method.measured_s)
    };
    differ("method", &method(before), &method(after));
    for target in &before.targets {
        let Some(other) = after.targets.iter().find(|other| other.name == target.name) else { continue };
        let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".to_owned());
        differ(&format!("{} version", target.name), &version(&target.version), &version(&other.version));
    }
    notes
}
