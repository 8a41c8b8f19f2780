//! Reports for people: a table in the terminal, one HTML file, figures. All are derived from a stored result.

mod age;
mod compared;
mod figures;
mod html;
pub mod markdown;
mod overview;
mod published;
mod table;

pub use self::{
    age::{OLDER_BUILD, ProgramChanges},
    compared::{COMPARED_HEADER, compared, compared_legend},
    figures::{Figure, essential, figures},
    html::{STYLE, html},
    table::{ResultTable, costs, instruction_counts, knees, result_table, searches, table},
};
use crate::{
    analysis::{
        lint::{LintVerdict, Severity},
        summary::{CellSummary, Findings},
    },
    manifest::Pinning,
    plot::{Unit, holds_zero},
    result::{
        AccessRecords, Cell, CellOutcome, Knee, MachineRecord, MachineRole, MeasuredRun, ResultFile, Search,
        SearchAttempt,
    },
    scenario::{PublishedFigures, TableColumn},
    stats::{Comparison, ConfidenceInterval},
};

/// A difference and its interval, marked if the interval contains 0: then no difference was found.
fn difference(interval: Option<ConfidenceInterval>, unit: Unit) -> String {
    let Some(ConfidenceInterval { median, low, high }) = interval else { return "–".to_owned() };
    if low == high {
        return unit.label(median);
    }
    let sign = if holds_zero((low, high)) { "≈ " } else { "" };
    format!("{sign}{} ({} to {})", unit.label(median), unit.label(low), unit.label(high))
}

/// `12.3k (12.1k–12.6k)`, or a dash.
fn with_interval(interval: Option<ConfidenceInterval>, unit: Unit) -> String {
    match interval {
        None => "–".to_owned(),
        Some(ConfidenceInterval { median, low, high }) if low == high => unit.label(median),
        Some(ConfidenceInterval { median, low, high }) => {
            format!("{} ({}–{})", unit.label(median), unit.label(low), unit.label(high))
        }
    }
}

fn plain(interval: Option<ConfidenceInterval>, unit: Unit) -> String {
    interval.map_or("–".to_owned(), |interval| unit.label(interval.median))
}

/// The rate that a search found, or why it found none.
fn found(search: &Search) -> String {
    match (search.rate, &search.failed) {
        (Some(rate), _) => Unit::Count.label(rate),
        (None, None) => "none".to_owned(),
        (None, Some(reason)) => format!("none: {reason}"),
    }
}

/// The length of a run: as planned, or the number of requests that ended it, and how long they took.
fn length(result: &ResultFile) -> String {
    let runs = || result.cells.iter().flat_map(Cell::runs);
    let planned = format!("{} s", result.scenario.method.measured_s);
    let Some(count) = runs().find_map(|run| run.plan.stop.count) else { return planned };
    let (low, high) =
        runs().fold((f64::MAX, 0.0_f64), |(low, high), run| (low.min(run.measured_s()), high.max(run.measured_s())));
    format!("{count} requests ({low:.1} s to {high:.1} s)")
}

/// `+12 %`, or `≈` if the test finds no significant difference.
fn against(comparison: Option<Comparison>) -> String {
    match comparison {
        None => String::new(),
        Some(one) if !one.ratio.median.is_finite() => String::new(),
        Some(one) if one.different => format!("{:+.1} %", (one.ratio.median - 1.0) * 100.0),
        Some(_) => "≈".to_owned(),
    }
}

/// The size of a difference, whether it is significant or not: for figures that have a limit.
fn signed_percent(comparison: Comparison) -> String {
    match comparison.ratio.median {
        ratio if ratio.is_finite() => format!("{:+.1} %", (ratio - 1.0) * 100.0),
        _ => String::new(),
    }
}

/// The headers of an additional column of a scenario.
fn extra_headers(column: TableColumn) -> Vec<&'static str> {
    match column {
        TableColumn::Instructions => vec!["instr/req", "vs"],
        TableColumn::Mean => vec!["mean"],
        TableColumn::Goodput => vec!["good/s"],
        TableColumn::Refusals => vec!["refused p99"],
        TableColumn::Schedule => vec!["sent within", "machine"],
        TableColumn::Recovery => vec!["90 % after"],
        TableColumn::Longest => vec!["longest"],
        TableColumn::RouteChanges => vec!["changes", "visible p50", "visible p99"],
        TableColumn::Delivered => vec!["delivered"],
        TableColumn::PerClient => vec!["per client"],
        TableColumn::Kept => vec!["vs without"],
        TableColumn::P99Compared => vec!["p99 vs without"],
        TableColumn::P99Added => vec!["p99 added"],
        TableColumn::FanOut => vec!["deliveries", "failed", "last after"],
        TableColumn::NewClients => vec!["new clients", "failed", "last after"],
        TableColumn::ServedByAll => vec!["by all p50", "by all p99", "failed"],
        TableColumn::Memory => vec!["memory, begin", "memory, end"],
        TableColumn::WorkerCpu => vec!["worker CPU/req", "vs without"],
        TableColumn::Account => vec!["accepted", "delivered", "dropped", "pending", "stored", "account"],
    }
}

/// The values of an additional column.
fn extra(column: TableColumn, summary: &CellSummary<'_>) -> Vec<String> {
    match column {
        TableColumn::Instructions => {
            let against = summary.instructions_against_baseline;
            vec![plain(summary.instructions, Unit::Count), against.map_or(String::new(), signed_percent)]
        }
        TableColumn::Mean => vec![plain(summary.mean_ms, Unit::Milliseconds)],
        TableColumn::Goodput => vec![plain(summary.goodput, Unit::Count)],
        TableColumn::Refusals => vec![plain(summary.refusal_p99_ms, Unit::Milliseconds)],
        TableColumn::Schedule => {
            vec![
                plain(summary.sent_within_us, Unit::Microseconds),
                plain(summary.noticed_within_us, Unit::Microseconds),
            ]
        }
        TableColumn::Recovery => vec![plain(summary.recovery_s, Unit::Seconds)],
        TableColumn::Longest => vec![plain(summary.longest_ms, Unit::Milliseconds)],
        TableColumn::RouteChanges => vec![
            plain(summary.route_changes, Unit::Count),
            plain(summary.visible_p50_ms, Unit::Milliseconds),
            plain(summary.visible_p99_ms, Unit::Milliseconds),
        ],
        TableColumn::Delivered => vec![plain(summary.delivered_percent, Unit::Percent)],
        TableColumn::PerClient => vec![plain(summary.bytes_per_client, Unit::Bytes)],
        TableColumn::Kept => vec![against(summary.against_compared)],
        TableColumn::P99Compared => vec![summary.p99_against_compared.map_or(String::new(), signed_percent)],
        TableColumn::P99Added => vec![with_interval(summary.p99_added_ms, Unit::Milliseconds)],
        TableColumn::FanOut => vec![
            plain(summary.fan_out_delivered, Unit::Count),
            plain(summary.fan_out_failed, Unit::Count),
            plain(summary.fan_out_longest_ms, Unit::Milliseconds),
        ],
        TableColumn::NewClients => vec![
            plain(summary.new_clients_answered, Unit::Count),
            plain(summary.new_clients_failed, Unit::Count),
            plain(summary.new_clients_longest_ms, Unit::Milliseconds),
        ],
        TableColumn::ServedByAll => vec![
            plain(summary.served_p50_ms, Unit::Milliseconds),
            plain(summary.served_p99_ms, Unit::Milliseconds),
            plain(summary.route_changes_failed, Unit::Count),
        ],
        TableColumn::Memory => {
            vec![plain(summary.rss_begin_bytes, Unit::Bytes), plain(summary.rss_end_bytes, Unit::Bytes)]
        }
        TableColumn::WorkerCpu => vec![
            plain(summary.worker_cpu_us, Unit::Microseconds),
            summary.worker_cpu_against_compared.map_or(String::new(), signed_percent),
        ],
        TableColumn::Account => account(summary.cell.runs()).into(),
    }
}

/// The columns of [`TableColumn::Account`]: sums over all runs, exact.
fn account(runs: &[MeasuredRun]) -> [String; 6] {
    let sum = runs.iter().filter_map(|run| run.records).reduce(AccessRecords::and);
    let Some(records) = sum else { return [const { String::new() }; 6] };
    let Some(account) = records.account else {
        let mut columns = [const { String::new() }; 6];
        columns[4] = records.written.to_string();
        return columns;
    };
    let agrees = runs.iter().filter_map(|run| run.records).all(|one| one.disagreement().is_none());
    [
        account.accepted.to_string(),
        account.delivered.to_string(),
        (account.dropped + account.rejected).to_string(),
        account.pending.to_string(),
        records.written.to_string(),
        if agrees { "balances" } else { "disagrees" }.to_owned(),
    ]
}

/// The columns of [`TableColumn::Schedule`] for one rate that was tried.
fn schedule_of(attempt: Option<&SearchAttempt>) -> [String; 2] {
    let times = attempt.map_or([None, None], |one| [one.sent_within_us, one.noticed_within_us]);
    times.map(|us| us.map_or("–".to_owned(), |us| Unit::Microseconds.label(us)))
}

/// Verdicts grouped by rule, in the order of the first of each rule.
pub fn grouped(verdicts: &[LintVerdict]) -> Vec<Vec<&LintVerdict>> {
    let mut groups: Vec<Vec<&LintVerdict>> = Vec::new();
    for verdict in verdicts {
        let same =
            groups.iter_mut().find(|group| (&group[0].rule, group[0].severity) == (&verdict.rule, verdict.severity));
        match same {
            Some(group) => group.push(verdict),
            None => groups.push(vec![verdict]),
        }
    }
    groups
}

/// The reason shown at the top: the rule with the most findings among the worst ones, with the text of its first finding. Notes
/// weaken no figure, so they are not shown there. What makes the result as a whole invalid comes first.
pub fn headline(findings: &Findings<'_>) -> Option<String> {
    let worst = findings.worst().filter(|worst| *worst > Severity::Note)?;
    let groups = grouped(&findings.verdicts);
    let weight = |group: &&Vec<&LintVerdict>| (worst == Severity::Invalid && group[0].subject.is_none(), group.len());
    let most = groups.iter().filter(|group| group[0].severity == worst).max_by_key(weight)?;
    let first = most[0];
    let figures = findings.cells.iter().filter(|summary| summary.absent().is_none()).count();
    let with = findings.cells.iter().filter(|summary| summary.worst == Some(worst)).count();
    let subject = first.subject.as_ref().map_or(String::new(), |subject| format!("{subject}: "));
    Some(match (worst, with) {
        (Severity::Invalid, _) if first.subject.is_none() => format!("The result is invalid: {}", first.words),
        (Severity::Invalid, 0) | (Severity::Note, _) => format!("The result is invalid. {subject}{}", first.words),
        (Severity::Invalid, _) => format!("{with} of {figures} figures are invalid. {subject}{}", first.words),
        (Severity::Warning, 0) => format!("Valid, with a warning: {subject}{}", first.words),
        (Severity::Warning, _) => {
            format!("Valid, with a warning about {with} of {figures} figures: {subject}{}", first.words)
        }
    })
}

/// The number of findings by rule, worst first: `generator-saturated ×12 (invalid)`.
pub fn counted(findings: &Findings<'_>) -> Vec<String> {
    let line = |group: Vec<&LintVerdict>| {
        let times = if group.len() > 1 { format!(" ×{}", group.len()) } else { String::new() };
        format!("{}{times} ({})", group[0].rule, group[0].severity.word())
    };
    grouped(&findings.verdicts).into_iter().map(line).collect()
}

/// The most rows listed for something that a target does not support.
const NAMED_ROWS: usize = 2;

/// What targets do not support, each with the rows it affects: listed once below the table instead of as rows without figures.
pub fn left_out(findings: &Findings<'_>) -> Vec<String> {
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for cell in findings.cells.iter().map(|summary| summary.cell) {
        let CellOutcome::Unsupported { reason } = &cell.outcome else { continue };
        let reason = reason.lines().next().unwrap_or_default();
        let reason = reason.strip_prefix("not supported by ").unwrap_or(reason);
        let known = reasons.iter_mut().find(|(target, known, _)| (*target, *known) == (&*cell.target, reason));
        match known {
            Some((_, _, rows)) if rows.contains(&cell.row.as_str()) => {}
            Some((_, _, rows)) => rows.push(&cell.row),
            None => reasons.push((&cell.target, reason, vec![&cell.row])),
        }
    }
    let all = findings.result.scenario.rows.len();
    let line = |(target, reason, rows): (&str, &str, Vec<&str>)| {
        let reason = match reason.strip_prefix(&format!("{target}: ")) {
            Some(feature) => format!("does not support {feature}"),
            None => format!("was left out: {reason}"),
        };
        let named = rows.iter().take(NAMED_ROWS).map(|row| format!("\"{row}\"")).collect::<Vec<_>>().join(", ");
        let of = match rows.len() {
            count if count == all => "every row".to_owned(),
            count if count > NAMED_ROWS => format!("{named} and {} more rows", count - NAMED_ROWS),
            _ => named,
        };
        format!("{target} {reason} ({of})")
    };
    reasons.into_iter().map(line).collect()
}

/// Why figures have no flame graph, if `--flame-graph` asked for them: a line for each reason.
pub fn missing_flame_graphs(findings: &Findings<'_>) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for one in &findings.result.profiles {
        let Some(reason) = one.missing.as_deref() else { continue };
        let figure = format!("{} · {} · {}", one.target, one.row, level(one.level.connections, one.level.workers));
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, figures)) => figures.push(figure),
            None => reasons.push((reason, vec![figure])),
        }
    }
    let line = |(reason, figures): (&str, Vec<String>)| match figures.len() {
        1 => format!("no flame graph of {}: {reason}", figures[0]),
        count => format!("no flame graph of {} and {} more figures: {reason}", figures[0], count - 1),
    };
    reasons.into_iter().map(line).collect()
}

/// The explanations of the marks that occur in the table.
pub fn legend(findings: &Findings<'_>) -> Vec<String> {
    let scenario = &findings.result.scenario;
    let percent = scenario.method.confidence_percent();
    let mut lines = Vec::new();
    let compared = |summary: &CellSummary<'_>| {
        [summary.against_baseline, summary.cpu_against_baseline].into_iter().flatten().any(|one| !one.different)
    };
    if findings.cells.iter().any(compared) {
        lines.push(format!("≈ no difference from {} was found at {percent} % confidence", scenario.baseline));
    }
    if findings.cells.iter().any(|summary| summary.worst == Some(Severity::Invalid)) {
        lines.push("invalid figures are not compared; the verdicts explain why".to_owned());
    }
    if findings.cells.iter().any(|summary| summary.survivors_only.is_some()) {
        lines.push(
            "lost N %: this share of the requests of an open loop was never sent or not answered; the latency of the other \
             requests is not shown, because it would be misleading"
                .to_owned(),
        );
    }
    if findings.cells.iter().any(|summary| summary.rps.is_some_and(|rps| rps.low < rps.high)) {
        lines.push(format!("(low–high) is the {percent} % bootstrap interval of the median over repeats"));
    }
    if scenario.rows.iter().any(|row| !row.published.is_empty()) {
        lines.push(
            "published figures come from another machine: compare the shapes of the curves, not the values".to_owned(),
        );
    }
    lines.extend(published::shapes(findings));
    lines
}

/// A latency. If too many requests were lost, the first latency column shows their share instead, and the others a dash.
fn latency(summary: &CellSummary<'_>, interval: Option<ConfidenceInterval>, first: bool) -> String {
    match summary.survivors_only {
        Some(lost) if first => format!("lost {:.0} %", (lost * 100.0).max(1.0)),
        Some(_) => "–".to_owned(),
        None => plain(interval, Unit::Milliseconds),
    }
}

fn with_workers(target: &str, workers: u32) -> String {
    if workers > 1 { format!("{target} × {workers}") } else { target.to_owned() }
}

/// Clients, throughput and mean latency at a knee, or the reason why there is none.
fn knee_figures(knee: &Knee) -> [String; 3] {
    let shown = |value: Option<f64>, unit: Unit| value.map_or("–".to_owned(), |value| unit.label(value));
    let clients = knee.connections.map(|connections| connections.to_string());
    [
        clients.or(knee.note.clone()).unwrap_or_default(),
        shown(knee.rps, Unit::Count),
        shown(knee.mean_ms, Unit::Milliseconds),
    ]
}

/// The label of a level.
fn level(connections: u32, workers: u32) -> String {
    if workers > 1 { format!("{connections} × {workers} workers") } else { connections.to_string() }
}

/// The processors of each role, with a remark if there are fewer than workers.
pub fn processors(result: &ResultFile) -> String {
    if !result.machines.is_empty() {
        return result.machines.iter().map(machine).collect::<Vec<_>>().join(" · ");
    }
    placed(&result.manifest.pinning, result.scenario.workers.iter().copied().max().unwrap_or(1))
}

/// A machine of several, with its roles.
fn machine(one: &MachineRecord) -> String {
    let mut roles: Vec<&str> = one
        .roles
        .iter()
        .map(|role| match role {
            MachineRole::Generator => "generator",
            MachineRole::Gateway => "target",
            MachineRole::Backend => "backend",
        })
        .collect();
    roles.dedup();
    let cpu = &one.manifest.cpu;
    format!("{} on {} ({}, {} processors)", roles.join(" and "), one.name, cpu.model, cpu.logical)
}

fn placed(pinning: &Pinning, workers: u32) -> String {
    let list = |cpus: &[u32]| match cpus {
        [] => "none".to_owned(),
        _ => cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
    };
    let Pinning { target, generator, backend } = pinning;
    let share = if !target.is_empty() && workers as usize > target.len() {
        format!(" ({workers} workers share {})", if target.len() == 1 { "it" } else { "them" })
    } else {
        String::new()
    };
    format!("target {}{share} · generator {} · backend {}", list(target), list(generator), list(backend))
}

/// A target in a row, with its replacements of the row's policies: `nginx (limit_req)`.
fn target_name(findings: &Findings<'_>, cell: &crate::result::Cell) -> String {
    let short = |(_, words): (&str, &str)| words.split([',', ' ']).next().unwrap_or_default().to_owned();
    let instead: Vec<String> = findings.result.stand_ins(&cell.row, &cell.target).map(short).collect();
    if instead.is_empty() { cell.target.clone() } else { format!("{} ({})", cell.target, instead.join(", ")) }
}

/// The figures that others published for the row and level that end with cell `index`: those for exactly this level, and at the
/// row's first level also those without a level.
fn published_after<'a>(findings: &'a Findings<'_>, index: usize) -> Vec<&'a PublishedFigures> {
    let cell = findings.cells[index].cell;
    let key = |cell: &crate::result::Cell| (cell.row.clone(), cell.level.connections, cell.level.workers);
    if findings.cells.get(index + 1).is_some_and(|next| key(next.cell) == key(cell)) {
        return Vec::new();
    }
    let scenario = &findings.result.scenario;
    let Some(row) = scenario.row(&cell.row) else { return Vec::new() };
    published::published_for(scenario, row, cell).collect()
}

/// The first line of a text, at most `most` characters of it.
fn shortened(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= most { line.to_owned() } else { line.chars().take(most - 1).chain(['…']).collect() }
}

/// Whether all rows only hold idle connections.
fn holds_connections(result: &ResultFile) -> bool {
    result.scenario.rows.iter().all(|row| matches!(row.speak, crate::scenario::Speak::Idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_share_a_processor_are_said_to() {
        let two = Pinning { target: vec![0], generator: vec![1], backend: vec![1] };
        assert_eq!(placed(&two, 1), "target 0 · generator 1 · backend 1");
        assert_eq!(placed(&two, 2), "target 0 (2 workers share it) · generator 1 · backend 1");
        let direct = Pinning { target: vec![], generator: vec![0], backend: vec![1] };
        assert_eq!(placed(&direct, 2), "target none · generator 0 · backend 1");
    }
}
