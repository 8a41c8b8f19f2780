//! Rules about a whole result.

use super::{
    Evidence, LintVerdict, Severity, about_all,
    evidence::{ALWAYS, EXPECTED},
};
use crate::result::PacingKind;

/// The least number of repeats for an interval: with 4 + 4 runs, no order of them is rarer than 1 in 35.
const ENOUGH_REPEATS: u32 = 5;

/// Instance types with shared and throttled processors, by the prefix of their names, in lower case.
const BURSTABLE: [&str; 13] = [
    "t1.",
    "t2.",
    "t3.",
    "t3a.",
    "t4g.",
    "e2-micro",
    "e2-small",
    "e2-medium",
    "f1-micro",
    "g1-small",
    "standard_b",
    "db.t",
    "ecs.t",
];

/// The word of `machine` that is a burstable type. A publication has only the type; what a machine reports begins with
/// the vendor, as in `Amazon EC2 t3.medium`. Machines of Google and Azure do not report their type.
fn burstable_type(machine: &str) -> Option<&str> {
    let words = machine.split(|letter: char| !letter.is_alphanumeric() && !matches!(letter, '.' | '-' | '_'));
    words.into_iter().find(|word| {
        let word = word.to_ascii_lowercase();
        // Every type has a size after its family, so "t2." alone is the end of a sentence.
        BURSTABLE.iter().any(|prefix| word.starts_with(prefix) && (word.len() > prefix.len() || !prefix.ends_with('.')))
    })
}

pub(super) fn judge(evidence: &Evidence) -> Vec<LintVerdict> {
    let mut verdicts = Vec::new();
    burstable(evidence, &mut verdicts);
    placement(evidence, &mut verdicts);
    repeats(evidence, &mut verdicts);
    unstated(evidence, &mut verdicts);
    resolution(evidence, &mut verdicts);
    scaling(evidence, &mut verdicts);
    claims(evidence, &mut verdicts);
    not_measured(evidence, &mut verdicts);
    verdicts
}

fn burstable(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    if let Some(instance) = evidence.machine.instance.as_deref().and_then(burstable_type) {
        let words = format!(
            "{instance} is a burstable machine: its processors are shared and throttled, so the figure depends on other \
             load before and during the measurement"
        );
        verdicts.push(about_all("burstable-machine", Severity::Warning, words));
    }
}

fn placement(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    let says = |words: &str| evidence.topology.iter().any(|one| one.contains(words));
    if says("one machine") && says("separate machines") {
        let words = "the publication says both that everything ran on one machine and on separate machines".to_owned();
        verdicts.push(about_all("contradictory-topology", Severity::Warning, words));
    }
    if !evidence.machine.shared_cpus.is_empty() {
        let words = format!(
            "target and load share processors {:?} and compete for them, so the throughput is that of the machine, not of \
             the target",
            evidence.machine.shared_cpus
        );
        verdicts.push(about_all("shared-processors", Severity::Warning, words));
    }
    if evidence.machine.threads_per_core.is_some_and(|threads| threads > 1) {
        let words = "the processors are hardware threads: two threads of a core are not two cores".to_owned();
        verdicts.push(about_all("hardware-threads", Severity::Note, words));
    }
}

fn repeats(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    match evidence.repeats {
        Some(repeats) if repeats < ENOUGH_REPEATS => {
            let times = if repeats == 1 { "once".to_owned() } else { format!("{repeats} times") };
            let words = format!(
                "measured {times}: at least {ENOUGH_REPEATS} repeats are needed to tell a difference from noise"
            );
            verdicts.push(about_all("too-few-repeats", Severity::Warning, words));
        }
        None if !evidence.rows.is_empty() => {
            let words = "how often it was measured is not stated".to_owned();
            verdicts.push(about_all("too-few-repeats", Severity::Warning, words));
        }
        _ => {}
    }
    if evidence.spread == Some(false) {
        let words = "the figures have no deviation or interval, so their differences cannot be judged".to_owned();
        verdicts.push(about_all("no-spread", Severity::Warning, words));
    }
}

fn unstated(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    let any = |missing: fn(&super::RowEvidence) -> bool| evidence.rows.iter().any(missing);
    let mut missing = Vec::new();
    if any(|row| row.connections.is_none()) {
        missing.push("connections");
    }
    if any(|row| row.pacing.is_none() || (row.pacing == Some(PacingKind::Open) && row.target_rps.is_none())) {
        missing.push("the rate or the kind of loop");
    }
    if evidence.machine.cpu_model.is_none() {
        missing.push("the CPU model");
    }
    if !missing.is_empty() {
        let words = format!("not stated: {}; the measurement cannot be repeated", missing.join(", "));
        verdicts.push(about_all("unstated-parameters", Severity::Warning, words));
    }
}

fn resolution(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    let Some(resolution) = evidence.resolution_ms else { return };
    let tool = evidence.tool.as_deref().unwrap_or("the tool");
    let below: Vec<f64> = evidence
        .rows
        .iter()
        .filter_map(|row| [row.p50_ms, row.p95_ms, row.p99_ms].into_iter().flatten().reduce(f64::max))
        .filter(|largest| *largest < resolution)
        .collect();
    if let Some(largest) = below.iter().copied().reduce(f64::max) {
        let words = format!(
            "{} rows show latencies of at most {largest} ms, and {tool} is accurate to {resolution} ms: neither the \
             latencies nor their differences are meaningful",
            below.len()
        );
        verdicts.push(about_all("below-resolution", Severity::Invalid, words));
    }
}

fn scaling(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    for (index, first) in evidence.scaling.iter().enumerate() {
        if evidence.scaling[..index].iter().any(|before| before.name == first.name) {
            continue;
        }
        let sizes = evidence.scaling.iter().filter(|size| size.name == first.name);
        let per_core = sizes.map(|size| (size, size.rps / size.cores / (first.rps / first.cores)));
        let Some((size, factor)) = per_core.max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        if factor <= 1.05 || evidence.scaling_cause.is_some() {
            continue;
        }
        let words = format!(
            "with {} cores, the throughput per core is {factor:.2} times that with {}: scaling is more than linear, so \
             something limits the smaller size, and no measurement shows what",
            size.cores, first.cores
        );
        let subject = first.name.clone();
        verdicts.push(LintVerdict { subject, ..about_all("super-linear-scaling", Severity::Warning, words) });
    }
}

fn claims(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    for claim in &evidence.claims {
        let rows = evidence.rows.iter().filter(|row| row.name == claim.row);
        let highest = rows.clone().filter_map(|row| row.connections).max();
        let broken = rows.clone().find(|row| row.error_share.is_some_and(|share| share > 0.01));
        let beyond = claim.connections.zip(highest).filter(|(claimed, shown)| claimed > shown);
        if let Some((claimed, shown)) = beyond {
            let errors = broken.map_or(String::new(), |row| {
                format!(", and already shows {:.2} % errors", row.error_share.unwrap_or(0.0) * 100.0)
            });
            let words =
                format!("\"{}\": the claim is {claimed} connections, the table ends at {shown}{errors}", claim.words);
            verdicts.push(LintVerdict {
                subject: Some(claim.row.clone()),
                ..about_all("claim-beyond-table", Severity::Invalid, words)
            });
        }
    }
}

fn not_measured(evidence: &Evidence, verdicts: &mut Vec<LintVerdict>) {
    let is_missing = |name: &&'static str| !evidence.measured.iter().any(|have| have == name);
    let missing: Vec<&str> = EXPECTED.iter().filter(|name| is_missing(name)).copied().collect();
    if !missing.is_empty() {
        // Only a note if all that is missing are measurements that need rows of their own.
        let severity = if EXPECTED[..ALWAYS].iter().any(is_missing) { Severity::Warning } else { Severity::Note };
        verdicts.push(about_all("not-measured", severity, format!("not measured: {}", missing.join(", "))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burstable_type_is_found_wherever_it_stands() {
        let cases = [
            ("Amazon EC2 t3.medium", Some("t3.medium")),
            ("Amazon EC2 t4g.2xlarge", Some("t4g.2xlarge")),
            ("Alibaba Cloud ecs.t6-c1m2.large", Some("ecs.t6-c1m2.large")),
            ("e2-medium", Some("e2-medium")),
            ("GCP e2-medium (2 shared vCPU)", Some("e2-medium")),
            ("Azure Standard_B2s", Some("Standard_B2s")),
            // What DMI reports on other machines; those of Google and Azure do not report their type.
            ("Amazon EC2 m7a.xlarge", None),
            ("Google Google Compute Engine", None),
            ("Microsoft Corporation Virtual Machine", None),
            ("QEMU Standard PC (i440FX + PIIX, 1996)", None),
            ("Xen HVM domU", None),
            ("Dell Inc. PowerEdge R740", None),
            ("Standard_D4s_v5", None),
        ];
        for (machine, expected) in cases {
            assert_eq!(burstable_type(machine), expected, "{machine}");
        }
    }
}
