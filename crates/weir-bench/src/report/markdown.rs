//! Pages for the documentation, generated from stored results.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{
    age::{ProgramChanges, newer_rows},
    level, target_name,
};
use crate::{
    analysis::{
        lint::Severity,
        summary::{CellSummary, Findings, PolicyCost},
    },
    plot::Unit,
    result::MeasuredRun,
    scenario::{self, Ablation, Scenario, TableColumn},
    stats::{Comparison, ConfidenceInterval, median, modes},
};

/// The head of a page of figures.
pub const RESULTS_HEAD: &str = "# Results\n\n\
    Each table shows a stored result of the lab. The result files also contain the machine, all configurations and the \
    histograms (those of this project are in `bench/results`). Figures are medians over the repeats, with the lowest and the highest \
    value in brackets. Where the repeats have two modes, both modes are shown, each with its number of repeats. Ratios are \
    medians of the ratios within each repeat, beside the baseline that the head of the column names; where the lab's test (Mann and \
    Whitney, or Wilcoxon from six repeats on) finds no difference at the confidence of its scenario (95 % as a rule), the \
    ratio says so with its p-value. Figures that the lab found invalid have no ratio. The target `none` is the load without a gateway: the backend itself.\n";

/// The head of the page of prices.
pub const PRICES_HEAD: &str = "# The cost of each plugin\n\n\
    The cost that a plugin adds to the same request on a route without the plugin: instructions in user space, and processor \
    time of the gateway, including the kernel. Plugins that answer requests themselves, such as `mocking` and `redirect`, \
    save the request to the upstream and have a negative cost. The plugins have typical options; the options and the \
    requests are in [bench/scenarios/policies.yaml](../../bench/scenarios/policies.yaml), with the plugins that have no row and \
    why. The commands that measured this page:\n\n    \
    weir bench run policies --valgrind\n    \
    weir bench page --prices bench-results/policies-*.json --to docs/reference/prices.md\n\n\
    Instruction counts are reproducible to a few per cent on any machine; times depend on the machine and the day. Times are \
    not meaningful for plugins that cost less than a microsecond, because an additional plugin also makes the gateway wait \
    less for a backend that shares its processor with the load; use the instructions for these plugins. `/policies` on the \
    status address shows the costs for your own traffic.\n";

/// One result as a section: its description, method and figures.
pub fn results(findings: &Findings<'_>) -> String {
    let scenario = &findings.result.scenario;
    let mut page = format!("\n## {}\n\n{}\n\n{}\n", scenario.title, scenario.about.trim(), measured(findings));
    page.push_str(&verdict(findings));
    page.push_str(&measurements(findings));
    page
}

/// One result as a page of its own. `pictures` are names of files beside it, each with what it shows.
pub fn result_page(findings: &Findings<'_>, pictures: &[(String, String)], changes: &ProgramChanges) -> String {
    let scenario = &findings.result.scenario;
    let mut page = format!("# {}\n\n{}\n", scenario.title, scenario.about.trim());
    page.push_str(&publication(scenario));
    let _ = write!(page, "\n## Measured with the lab\n\n{}\n", measured(findings));
    page.push_str(&versions(findings));
    page.push_str(&changes.line(findings.result));
    page.push_str(&older_than_rows(findings));
    page.push_str(&verdict(findings));
    for (shows, file) in pictures {
        let _ = write!(page, "\n![{shows}]({file})\n");
    }
    page.push_str(&measurements(findings));
    page
}

/// One result as a row of the index, which links its page.
pub fn index_row(findings: &Findings<'_>, link: &str) -> String {
    let result = findings.result;
    let scenario = &result.scenario;
    let day = result.started_at.split('T').next().unwrap_or_default();
    let first = scenario.targets.first().map(String::as_str).unwrap_or_default();
    let ratios = |of: fn(&CellSummary<'_>) -> Option<Comparison>| {
        let own = findings.cells.iter().filter(|summary| summary.cell.target == first);
        let all = own.filter_map(of).map(|one| one.ratio.median).filter(|ratio| ratio.is_finite());
        let (low, high, count) =
            all.fold((f64::MAX, f64::MIN, 0), |(low, high, count), ratio| (low.min(ratio), high.max(ratio), count + 1));
        match count {
            0 => "–".to_owned(),
            1 => format!("{low:.2}"),
            _ => format!("{low:.2} to {high:.2}"),
        }
    };
    format!(
        "| [{}]({link}) | {day} | {first} / {} | {} | {} |\n",
        scenario.title,
        scenario.baseline,
        ratios(|summary| summary.cpu_against_baseline),
        ratios(|summary| summary.against_baseline)
    )
}

/// The head of the table of [`index_row`].
pub const INDEX_TABLE: &str =
    "\n| result | measured | compared | CPU time a request | throughput |\n|---|---|---|--:|--:|\n";

/// The figures that a publication gives, whose procedure the scenario follows.
fn publication(scenario: &Scenario) -> String {
    let Some(source) = &scenario.source else { return String::new() };
    let title = match &source.url {
        Some(url) => format!("[{}]({url})", source.title),
        None => source.title.clone(),
    };
    let date = source.date.as_ref().map(|date| format!(", {date}")).unwrap_or_default();
    let mut page = format!("\n## Published\n\n{title}{date}. Measured with: {}.\n", source.setup.trim_end_matches('.'));
    let rows = scenario.rows.iter().flat_map(|row| row.published.iter().map(move |one| (row, one)));
    let number = |value: Option<f64>, unit: Unit| value.map_or("–".to_owned(), |value| unit.label(value));
    for (index, (row, one)) in rows.enumerate() {
        if index == 0 {
            page.push_str("\n| row | system | clients | requests/s | mean | p95 | p99 | errors | |\n");
            page.push_str("|---|---|--:|--:|--:|--:|--:|--:|---|\n");
        }
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.name,
            one.system,
            one.connections.map_or("–".to_owned(), |clients| clients.to_string()),
            number(one.rps, Unit::Count),
            number(one.mean_ms, Unit::Milliseconds),
            number(one.p95_ms, Unit::Milliseconds),
            number(one.p99_ms, Unit::Milliseconds),
            number(one.error_percent, Unit::Percent),
            one.note.as_deref().unwrap_or_default()
        );
    }
    page
}

/// The programs that were measured.
fn versions(findings: &Findings<'_>) -> String {
    let named = findings.result.targets.iter().filter_map(|one| Some((&one.name, one.version.as_ref()?)));
    let list: Vec<String> = named.map(|(name, version)| format!("{name}: {version}")).collect();
    if list.is_empty() { String::new() } else { format!("\nVersions: {}.\n", list.join("; ")) }
}

/// The rows of the lab's own scenario that came after the result.
fn older_than_rows(findings: &Findings<'_>) -> String {
    let name = &findings.result.scenario.name;
    // A name that is a path would be read as one.
    let own = scenario::names().contains(name).then(|| scenario::read(name).ok()).flatten();
    let Some(now) = own else { return String::new() };
    match newer_rows(findings.result, &now).as_slice() {
        [] => String::new(),
        newer => format!("\n> This result is older than these rows of the scenario: {}.\n", newer.join("; ")),
    }
}

fn verdict(findings: &Findings<'_>) -> String {
    super::headline(findings).map_or(String::new(), |reason| format!("\n> {reason}\n"))
}

/// The table of all cells, and what is not in it.
fn measurements(findings: &Findings<'_>) -> String {
    let mut page = String::new();
    let idle = super::holds_connections(findings.result);
    let baseline = &findings.result.scenario.baseline;
    let measured: Vec<&CellSummary<'_>> = findings.cells.iter().filter(|one| !one.cell.runs().is_empty()).collect();
    let own = own_columns(findings, &measured);
    let common = match idle {
        true => "row | clients | target | held | memory of each | errors".to_owned(),
        false => {
            format!(
                "row | clients | target | requests/s | / {baseline} | CPU a request | / {baseline} | p50 | p99 | memory | errors"
            )
        }
    };
    let heads: Vec<&str> = common.split(" | ").chain(own.iter().map(|(head, _)| *head)).collect();
    let lines = heads.iter().map(|head| if ["row", "target"].contains(head) { "---" } else { "--:" });
    let _ = writeln!(page, "\n| {} |\n|{}|", heads.join(" | "), lines.collect::<Vec<_>>().join("|"));
    for (number, summary) in measured.iter().enumerate() {
        let cell = summary.cell;
        let own = own.iter().map(|(_, values)| values[number].clone());
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            cell.row,
            level(cell.level.connections, cell.level.workers),
            target_name(findings, cell),
            figures(summary, idle).into_iter().chain(own).collect::<Vec<_>>().join(" | ")
        );
    }
    for (index, line) in super::left_out(findings).iter().enumerate() {
        page.push_str(if index == 0 { "\nNot in the table:\n\n" } else { "" });
        let _ = writeln!(page, "- {line}");
    }
    page
}

/// The columns that the scenario adds, with the value of each cell. One in which no cell has a value is left out: what it shows could
/// not be measured.
fn own_columns(findings: &Findings<'_>, cells: &[&CellSummary<'_>]) -> Vec<(&'static str, Vec<String>)> {
    let of_column = |column: &TableColumn| {
        let values: Vec<Vec<String>> = cells.iter().map(|summary| super::extra(*column, summary)).collect();
        let heads = super::extra_headers(*column).into_iter().enumerate();
        heads.map(|(place, head)| (head, values.iter().map(|row| row[place].clone()).collect())).collect::<Vec<_>>()
    };
    let mut columns: Vec<(&str, Vec<String>)> = findings.result.scenario.columns.iter().flat_map(of_column).collect();
    columns.retain(|(_, values)| values.iter().any(|value| !["", "–"].contains(&&**value)));
    columns
}

/// Where and how a result was measured, and the command that repeats it.
fn measured(findings: &Findings<'_>) -> String {
    let result = findings.result;
    let (manifest, method) = (&result.manifest, &result.scenario.method);
    let day = result.started_at.split('T').next().unwrap_or_default();
    let runs = match method.repeats {
        0 => "counted by valgrind".to_owned(),
        1 => format!("1 run of {}", super::length(result)),
        repeats => format!("{repeats} interleaved repeats of {}", super::length(result)),
    };
    let command = result.command.iter().map(String::as_str).skip_while(|word| *word != "bench").collect::<Vec<_>>();
    format!(
        "{}, {} processors, {}, {day}; {runs}. To repeat: `weir {}`",
        manifest.cpu.model,
        manifest.cpu.logical,
        manifest.kernel_release(),
        command.join(" ")
    )
}

fn figures(summary: &CellSummary<'_>, idle: bool) -> Vec<String> {
    let runs = summary.cell.runs();
    let errors = summary.error_share.map_or(0.0, |share| share.median);
    let errors = if errors == 0.0 { "0".to_owned() } else { Unit::Percent.label(errors * 100.0) };
    let memory = summary.rss_bytes.map_or("–".to_owned(), |bytes| Unit::Bytes.label(bytes.median));
    if idle {
        let each = summary.bytes_per_connection.map_or("–".to_owned(), |bytes| Unit::Bytes.label(bytes.median));
        let held = summary.open_connections.map_or("–".to_owned(), |held| Unit::Count.label(held.median));
        return vec![held, each, errors];
    }
    let invalid = if summary.worst == Some(Severity::Invalid) { " (invalid)" } else { "" };
    let latency = |interval: Option<ConfidenceInterval>, percentile: f64| match interval {
        None => "–".to_owned(),
        Some(_) => spread(runs, |run| Some(run.latency_ms(percentile)), Unit::Milliseconds),
    };
    vec![
        format!("{}{invalid}", spread(runs, |run| Some(run.throughput()), Unit::Count)),
        ratio(summary.against_baseline, runs.len()),
        spread(runs, MeasuredRun::target_cpu_us, Unit::Microseconds),
        ratio(summary.cpu_against_baseline, runs.len()),
        latency(summary.p50_ms, 50.0),
        latency(summary.p99_ms, 99.0),
        memory,
        errors,
    ]
}

/// A ratio, and whether it is a difference; a single run cannot be tested.
fn ratio(comparison: Option<Comparison>, runs: usize) -> String {
    let Some(one) = comparison.filter(|one| one.ratio.median.is_finite()) else { return "–".to_owned() };
    let ratio = one.ratio.median;
    match one.different {
        true => format!("{ratio:.2}"),
        false if runs < 2 => format!("{ratio:.2} (one run)"),
        false => format!("{ratio:.2} (no difference, p {:.2})", one.p),
    }
}

/// The median with the lowest and highest value, or both modes if there are two.
fn spread(runs: &[MeasuredRun], figure: impl Fn(&MeasuredRun) -> Option<f64>, unit: Unit) -> String {
    let values: Vec<f64> = runs.iter().filter_map(figure).filter(|value| value.is_finite()).collect();
    if let Some(two) = modes(&values) {
        let mode = |(value, count): (f64, usize)| format!("{} ×{count}", unit.label(value));
        return format!("{} or {}", mode(two.low), mode(two.high));
    }
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(*one), high.max(*one)));
    match median(&values) {
        None => "–".to_owned(),
        Some(middle) if low == high => unit.label(middle),
        Some(middle) => format!("{} ({}–{})", unit.label(middle), unit.label(low), unit.label(high)),
    }
}

/// The cost of each policy, from results with an ablation: instructions from the first one that counted them, and times from the
/// first one that measured them. Counting needs no quiet machine, so it may be a run of its own.
pub fn prices(all: &[Findings<'_>]) -> String {
    let mut page = String::new();
    let mut costs: BTreeMap<&str, (Option<f64>, Option<ConfidenceInterval>)> = BTreeMap::new();
    for findings in all {
        let result = findings.result;
        let counts = |one: &Ablation| {
            let of = |target: &String| Some(result.counted(&one.with, target)? - result.counted(&one.without, target)?);
            result.scenario.targets.iter().find_map(of)
        };
        let time = |one: &Ablation| {
            let is_it = |cost: &&PolicyCost<'_>| cost.row.name == one.with && cost.base.name == one.without;
            findings.costs.iter().find(is_it)?.cpu_us
        };
        let kinds = [("Instructions", !result.counts.is_empty()), ("Times", !result.cells.is_empty())];
        let kinds: Vec<&str> = kinds.iter().filter(|(_, has)| *has).map(|(kind, _)| *kind).collect();
        let _ = writeln!(page, "\n{}: {}.", kinds.join(" and "), measured(findings));
        for one in &result.scenario.ablations {
            let (count, interval) = costs.entry(&one.policy).or_default();
            *count = count.or_else(|| counts(one));
            *interval = interval.or_else(|| time(one));
        }
    }
    page.push_str("\n| plugin | instructions | time |\n|---|--:|--:|\n");
    for (policy, (count, interval)) in costs {
        let count = count.map_or("–".to_owned(), thousands);
        let time =
            interval.map_or("–".to_owned(), |us| format!("{:.2} µs ({:.2}–{:.2})", us.median, us.low, us.high));
        let _ = writeln!(page, "| `{policy}` | {count} | {time} |");
    }
    page
}

/// A rounded number with separators, such as `-4,546`.
fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{compare, mann_whitney};

    #[test]
    fn a_ratio_that_is_no_difference_says_so() {
        let beside = |theirs: &[f64], ours: &[f64]| {
            let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
            ratio(compare(theirs, ours, &ratios, 0.95, 1), ours.len())
        };
        let (nginx, faster) = ([100.0, 101.0, 102.0, 103.0, 104.0], [110.0, 111.0, 112.0, 113.0, 114.0]);
        assert_eq!(beside(&nginx, &faster), "1.10");
        let same = [100.5, 101.5, 102.5, 99.5, 104.5];
        assert!(beside(&nginx, &same).ends_with(&format!("(no difference, p {:.2})", mann_whitney(&nginx, &same))));
        assert_eq!(beside(&nginx[..1], &faster[..1]), "1.10 (one run)");
        assert_eq!(ratio(None, 5), "–");
    }

    #[test]
    fn instructions_are_grouped_by_thousands() {
        assert_eq!([-4_546.0, 999.4, 2_517_245.0].map(thousands), ["-4,546", "999", "2,517,245"]);
    }
}
