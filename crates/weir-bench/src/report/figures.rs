use super::{holds_connections, shortened, with_workers};
use crate::{
    analysis::{
        lint::Severity,
        summary::{CellSummary, Findings},
    },
    engine::{LoadInterval, LoadPhase},
    plot::{Bar, BarFigure, HALF, LineFigure, PlotMark, Scale, Series, Unit, WIDTH, colour},
    result::{Cell, MeasuredRun, Process, ProcessRole, ProcessSample},
    scenario::{ScenarioRow, Speak, TableColumn},
    stats::ConfidenceInterval,
};

/// A figure with the name of its file.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Lower case, digits and hyphens: unique within a result.
    pub name: String,
    /// What it shows: a part of the name that figures of several rows share.
    kind: &'static str,
    /// The row of the figure; absent if it shows several.
    pub row: Option<String>,
    pub svg: String,
}

/// Those of a page of documentation: how figures depend on rows and clients. A result that has none of these shows them over time.
pub fn essential(findings: &Findings<'_>) -> Vec<Figure> {
    const ESSENTIAL: [&str; 9] = [
        "throughput-by-row",
        "cpu-by-row",
        "policy-cost",
        "searches",
        "per-connection",
        "throughput",
        "cpu-per-request",
        "latency",
        "mean-latency",
    ];
    const OVER_TIME: [&str; 2] = ["throughput-over-time", "latency-over-time"];
    let all = figures(findings);
    let names: &[&str] =
        if all.iter().any(|figure| ESSENTIAL.contains(&figure.kind)) { &ESSENTIAL } else { &OVER_TIME };
    all.into_iter().filter(|figure| names.contains(&figure.kind)).collect()
}

/// All figures for which a result has data, in the order of the report.
pub fn figures(findings: &Findings<'_>) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |kind: &'static str, row: Option<&ScenarioRow>, svg: Option<String>| {
        if let Some(svg) = svg {
            let row_name = row.map(|row| row.name.clone());
            let name = row.map_or(kind.to_owned(), |row| format!("{}-{kind}", slug(&row.name)));
            figures.push(Figure { name, kind, row: row_name, svg });
        }
    };
    let scenario = &findings.result.scenario;
    add("throughput-by-row", None, throughput_by_row(findings));
    add("cpu-by-row", None, cpu_by_row(findings));
    add("policy-cost", None, policy_cost(findings));
    add("searches", None, searches(findings));
    let idle = holds_connections(findings.result);
    for row in &scenario.rows {
        if idle {
            add("per-connection", Some(row), memory_per_connection(findings, row));
        }
        for (name, watch) in [
            ("throughput-over-time", TimePlot::Throughput),
            ("errors-over-time", TimePlot::Errors),
            ("latency-over-time", TimePlot::Latency),
        ] {
            add(name, Some(row), over_time(findings, row, watch));
        }
        add("throughput", Some(row), throughput(findings, row));
        add("cpu-per-request", Some(row), cpu_per_request(findings, row));
        add("latency", Some(row), latency(findings, row));
        add("mean-latency", Some(row), mean_latency(findings, row));
        add("errors", Some(row), errors(findings, row));
        add("percentiles", Some(row), percentiles(findings, row));
        add("memory", Some(row), over_time(findings, row, TimePlot::Memory));
        add("cpu", Some(row), over_time(findings, row, TimePlot::Cpu));
    }
    figures
}

fn slug(name: &str) -> String {
    let mut slug = String::new();
    for character in name.chars() {
        if character.is_ascii_alphanumeric() {
            slug.push(character.to_ascii_lowercase());
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_matches('-').to_owned()
}

fn summaries<'a>(findings: &'a Findings<'_>, row: &str, target: &str) -> Vec<&'a CellSummary<'a>> {
    let found = findings.cells.iter().filter(|summary| summary.cell.row == row && summary.cell.target == target);
    found.filter(|summary| summary.rps.is_some()).collect()
}

/// One bar per target, grouped by rows, if each row has a single level.
fn throughput_by_row(findings: &Findings<'_>) -> Option<String> {
    let single = findings.result.scenario.rows.iter().all(|row| findings.result.scenario.levels(row).len() == 1);
    (single && !holds_connections(findings.result)).then(|| {
        by_row(
            findings,
            "Throughput",
            "requests/s, median and interval",
            Unit::Count,
            |summary| summary.rps,
            |one| one.rps,
        )
    })
}

fn cpu_by_row(findings: &Findings<'_>) -> Option<String> {
    let any = findings.cells.iter().any(|summary| summary.cpu_us.is_some());
    let single = findings.result.scenario.rows.iter().all(|row| findings.result.scenario.levels(row).len() == 1);
    (single && any && !holds_connections(findings.result)).then(|| {
        let title = "CPU time of the target for each request";
        by_row(findings, title, "microseconds, user and system", Unit::Microseconds, |summary| summary.cpu_us, |_| None)
    })
}

fn by_row(
    findings: &Findings<'_>,
    title: &str,
    axis: &str,
    unit: Unit,
    value: impl Fn(&CellSummary<'_>) -> Option<ConfidenceInterval>,
    published: impl Fn(&crate::scenario::PublishedFigures) -> Option<f64>,
) -> String {
    let mut groups = Vec::new();
    for row in &findings.result.scenario.rows {
        let mut bars = Vec::new();
        for summary in findings.cells.iter().filter(|summary| summary.cell.row == row.name) {
            let interval = value(summary);
            if interval.is_none() && summary.absent().is_none() {
                continue;
            }
            bars.push(Bar {
                name: with_workers(&summary.cell.target, summary.cell.level.workers),
                colour: colour(&summary.cell.target),
                value: interval.map_or(0.0, |interval| interval.median),
                interval: interval.map(|interval| (interval.low, interval.high)),
                published: None,
                absent: summary.absent().map(|reason| shortened(reason, 70)),
            });
        }
        let mark = row.published.iter().find_map(|one| Some((one.system.clone(), published(one)?)));
        if let (Some(mark), Some(bar)) = (mark, bars.iter_mut().find(|bar| bar.absent.is_none())) {
            bar.published = Some(mark);
        }
        groups.push((row.name.clone(), bars));
    }
    BarFigure { title: title.to_owned(), axis: (axis.to_owned(), unit), groups, width: WIDTH + 160.0 }.svg()
}

fn policy_cost(findings: &Findings<'_>) -> Option<String> {
    let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
    // At the lowest level of each row, because the cost of a policy per request does not depend on concurrency.
    for cost in &findings.costs {
        let first = findings.result.scenario.levels(cost.row).first().copied();
        let Some(interval) = cost.cpu_us.filter(|_| Some(cost.level.connections) == first) else { continue };
        let bar = Bar {
            name: with_workers(cost.target, cost.level.workers),
            colour: colour(cost.target),
            value: interval.median,
            interval: Some((interval.low, interval.high)),
            published: cost.published_us.map(|value| ("published, from 1/throughput".to_owned(), value)),
            absent: None,
        };
        let of = cost.name();
        match groups.iter_mut().find(|(name, _)| *name == of) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((of, vec![bar])),
        }
    }
    (!groups.is_empty()).then(|| {
        let axis = ("CPU microseconds more for each request than without the policy".to_owned(), Unit::Microseconds);
        BarFigure { title: "The cost of each plugin".to_owned(), axis, groups, width: WIDTH + 160.0 }.svg()
    })
}

fn searches(findings: &Findings<'_>) -> Option<String> {
    let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
    for search in &findings.result.searches {
        let bar = Bar {
            name: with_workers(&search.target, search.workers),
            colour: colour(&search.target),
            value: search.rate.unwrap_or(0.0),
            interval: None,
            published: None,
            absent: search.rate.is_none().then(|| "not at any rate".to_owned()),
        };
        match groups.iter_mut().find(|(name, _)| *name == search.objective) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((search.objective.clone(), vec![bar])),
        }
    }
    // The published rate is shown with the objective it was measured for: a mean latency.
    let scenario = &findings.result.scenario;
    for objective in scenario.searches.iter().filter(|objective| objective.mean_ms.is_some()) {
        let published = scenario.rows.first().and_then(|row| {
            row.published.iter().find_map(|one| Some((one.system.clone(), one.rps.filter(|_| one.mean_ms.is_some())?)))
        });
        let group = groups.iter_mut().find(|(name, _)| *name == objective.name);
        if let Some(bar) = group.and_then(|(_, bars)| bars.first_mut()) {
            bar.published = published;
        }
    }
    (!groups.is_empty()).then(|| {
        let axis = ("requests/s, open loop, latency from when each was due".to_owned(), Unit::Count);
        BarFigure { title: "Highest rate within an objective".to_owned(), axis, groups, width: WIDTH + 160.0 }.svg()
    })
}

fn line(
    findings: &Findings<'_>,
    row: &ScenarioRow,
    name: impl Fn(&str) -> String,
    dashed: bool,
    value: impl Fn(&CellSummary<'_>) -> Option<ConfidenceInterval>,
) -> Vec<Series> {
    let mut series = Vec::new();
    for target in &findings.result.scenario.targets {
        let mut one = Series {
            name: name(target),
            colour: colour(target),
            dashed: dashed || target == "none",
            dots: true,
            points: Vec::new(),
            band: Vec::new(),
        };
        // With several worker counts, only the first is shown.
        let workers = findings.result.scenario.workers.first();
        // A figure that says something else than it seems to is in the table, with the reason, and not in a plot.
        let valid = |summary: &&CellSummary<'_>| summary.worst != Some(Severity::Invalid);
        for summary in summaries(findings, &row.name, target).into_iter().filter(valid) {
            if let Some(interval) = value(summary).filter(|_| Some(&summary.cell.level.workers) == workers) {
                let x = f64::from(summary.cell.level.connections);
                one.points.push((x, interval.median));
                one.band.push((x, interval.low, interval.high));
            }
        }
        if !one.points.is_empty() {
            series.push(one);
        }
    }
    series
}

fn clients() -> (String, Scale, Unit) {
    ("concurrent clients".to_owned(), Scale::Log, Unit::Count)
}

fn several_levels(findings: &Findings<'_>, row: &ScenarioRow) -> bool {
    findings.result.scenario.levels(row).len() > 1
}

fn marks(row: &ScenarioRow, value: impl Fn(&crate::scenario::PublishedFigures) -> Option<f64>) -> Vec<PlotMark> {
    row.published
        .iter()
        .filter_map(|one| {
            Some(PlotMark { name: one.system.clone(), x: one.connections.map(f64::from), y: value(one)? })
        })
        .collect()
}

fn throughput(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let series = line(findings, row, str::to_owned, false, |summary| summary.rps);
    let what = match row.speak {
        Speak::Http1 | Speak::Http2 { .. } | Speak::Http3 { .. } => "requests/s",
        Speak::Idle => return None,
        _ => "messages/s",
    };
    (several_levels(findings, row) && !series.is_empty()).then(|| {
        LineFigure {
            title: "Throughput".to_owned(),
            x: clients(),
            y: (what.to_owned(), Scale::Linear, Unit::Count),
            series,
            marks: marks(row, |one| one.rps),
            width: HALF,
        }
        .svg()
    })
}

fn cpu_per_request(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let series = line(findings, row, str::to_owned, false, |summary| summary.cpu_us);
    (several_levels(findings, row) && !series.is_empty() && row.speak.asks()).then(|| {
        LineFigure {
            title: "CPU time of the gateway for each request".to_owned(),
            x: clients(),
            y: ("microseconds, user and system".to_owned(), Scale::Linear, Unit::Microseconds),
            series,
            marks: Vec::new(),
            width: HALF,
        }
        .svg()
    })
}

fn latency(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let has_means = findings.result.scenario.columns.contains(&TableColumn::Mean);
    let mut series = line(findings, row, |target| format!("{target} p50"), false, |summary| summary.p50_ms);
    for one in &mut series {
        one.dashed = false;
    }
    series.extend(line(findings, row, |target| format!("{target} p99"), true, |summary| summary.p99_ms));
    (several_levels(findings, row) && !series.is_empty() && row.speak != Speak::Idle).then(|| {
        LineFigure {
            title: "Latency from when a request was due".to_owned(),
            x: clients(),
            y: ("latency".to_owned(), Scale::Log, Unit::Milliseconds),
            series,
            // Published means have a plot of their own, if the scenario asks for it.
            marks: marks(row, |one| one.mean_ms.filter(|_| !has_means).or(one.p99_ms)),
            width: HALF,
        }
        .svg()
    })
}

/// The mean latency, of scenarios that have its column.
fn mean_latency(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let wanted = findings.result.scenario.columns.contains(&TableColumn::Mean);
    let series = line(findings, row, str::to_owned, false, |summary| summary.mean_ms);
    (wanted && several_levels(findings, row) && !series.is_empty() && row.speak != Speak::Idle).then(|| {
        LineFigure {
            title: "Mean latency from when a request was due".to_owned(),
            x: clients(),
            y: ("mean latency".to_owned(), Scale::Log, Unit::Milliseconds),
            series,
            marks: marks(row, |one| one.mean_ms),
            width: HALF,
        }
        .svg()
    })
}

fn errors(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let percent = |interval: ConfidenceInterval| ConfidenceInterval {
        median: interval.median * 100.0,
        low: interval.low * 100.0,
        high: interval.high * 100.0,
    };
    let series = line(findings, row, str::to_owned, false, |summary| summary.error_share.map(percent));
    let marks = marks(row, |one| one.error_percent);
    (several_levels(findings, row) && !marks.is_empty()).then(|| {
        LineFigure {
            title: "Messages that failed".to_owned(),
            x: clients(),
            y: ("failed messages".to_owned(), Scale::Linear, Unit::Percent),
            series,
            marks,
            width: HALF,
        }
        .svg()
    })
}

fn memory_per_connection(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let series = line(findings, row, str::to_owned, false, |summary| summary.bytes_per_connection);
    (!series.is_empty()).then(|| {
        LineFigure {
            title: "Memory of the target for each idle connection".to_owned(),
            x: ("open connections".to_owned(), Scale::Log, Unit::Count),
            y: ("memory per connection".to_owned(), Scale::Linear, Unit::Bytes),
            series,
            marks: Vec::new(),
            width: HALF,
        }
        .svg()
    })
}

/// The run with the median throughput, where one run represents all.
fn typical(cell: &Cell) -> Option<&MeasuredRun> {
    let mut runs: Vec<&MeasuredRun> = cell.runs().iter().collect();
    runs.sort_by(|a, b| a.throughput().total_cmp(&b.throughput()));
    runs.get(runs.len() / 2).copied()
}

/// The cells of a row at its highest level, one for each target.
fn at_highest<'a>(findings: &'a Findings<'_>, row: &'a ScenarioRow) -> impl Iterator<Item = &'a Cell> {
    let highest = findings.result.scenario.levels(row).last().copied();
    let workers = findings.result.scenario.workers.first().copied();
    findings.result.cells.iter().filter(move |cell| {
        cell.row == row.name && Some(cell.level.connections) == highest && Some(cell.level.workers) == workers
    })
}

/// The number of points of a percentile curve for each nine.
const STEPS_PER_NINE: u32 = 12;

fn percentiles(findings: &Findings<'_>, row: &ScenarioRow) -> Option<String> {
    let mut series = Vec::new();
    for cell in at_highest(findings, row) {
        let mut all = crate::engine::LatencyHistogram::new();
        for run in cell.runs() {
            all.add(&run.load.total.latency);
        }
        if all.count() < 100 {
            continue;
        }
        // Up to the percentile beyond which ten values are left.
        let nines = (all.count() as f64 / 10.0).log10().min(5.0);
        let steps = (nines * f64::from(STEPS_PER_NINE)) as u32;
        let points = (0..=steps).map(|step| {
            let share = 1.0 - 10f64.powf(-f64::from(step) / f64::from(STEPS_PER_NINE));
            (share * 100.0, all.quantile(share) as f64 / 1e6)
        });
        series.push(Series {
            name: cell.target.clone(),
            colour: colour(&cell.target),
            dashed: cell.target == "none",
            dots: false,
            points: points.collect(),
            band: Vec::new(),
        });
    }
    let level = findings.result.scenario.levels(row).last()?;
    (!series.is_empty() && row.speak != Speak::Idle).then(|| {
        LineFigure {
            title: format!("Latency by percentile, {level} clients, all repeats"),
            x: ("percentile".to_owned(), Scale::Nines, Unit::Percentile),
            y: ("latency".to_owned(), Scale::Log, Unit::Milliseconds),
            series,
            marks: Vec::new(),
            width: HALF,
        }
        .svg()
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TimePlot {
    Throughput,
    Errors,
    Latency,
    Memory,
    Cpu,
}

fn over_time(findings: &Findings<'_>, row: &ScenarioRow, plot: TimePlot) -> Option<String> {
    let of_load = matches!(plot, TimePlot::Throughput | TimePlot::Errors | TimePlot::Latency);
    if of_load && row.speak == Speak::Idle {
        return None;
    }
    let mut series = Vec::new();
    for cell in at_highest(findings, row) {
        let Some(run) = typical(cell) else { continue };
        let points = match plot {
            TimePlot::Memory | TimePlot::Cpu => run.role(ProcessRole::Target).next().map(|one| of_process(one, plot)),
            TimePlot::Throughput | TimePlot::Errors | TimePlot::Latency => Some(of_intervals(run, plot)),
        };
        let Some(points) = points.filter(|points| points.len() > 1) else { continue };
        series.push(Series {
            name: cell.target.clone(),
            colour: colour(&cell.target),
            dashed: cell.target == "none",
            dots: false,
            points,
            band: Vec::new(),
        });
    }
    // A figure with only zeros is left out; the column of errors shows the same.
    if plot == TimePlot::Errors && series.iter().all(|one| one.points.iter().all(|point| point.1 == 0.0)) {
        return None;
    }
    let level = findings.result.scenario.levels(row).last()?;
    let messages = if row.speak.asks() { "requests/s" } else { "messages/s" };
    let (title, axis, scale, unit) = match plot {
        TimePlot::Throughput => ("Throughput over time", messages, Scale::Linear, Unit::Count),
        TimePlot::Errors => ("Errors over time", "failed or refused per second", Scale::Linear, Unit::Count),
        TimePlot::Latency => ("Latency over time, p99 from when due", "p99 latency", Scale::Log, Unit::Milliseconds),
        TimePlot::Memory => ("Memory of the target", "resident memory", Scale::Linear, Unit::Bytes),
        TimePlot::Cpu => ("CPU of the target", "share of one processor", Scale::Linear, Unit::Percent),
    };
    (!series.is_empty()).then(|| {
        LineFigure {
            title: format!("{title}, {level} clients"),
            x: (
                "seconds of the measured part, the run with the median throughput".to_owned(),
                Scale::Linear,
                Unit::Seconds,
            ),
            y: (axis.to_owned(), scale, unit),
            series,
            marks: Vec::new(),
            width: HALF,
        }
        .svg()
    })
}

/// The usage of a process, by the time since its first sample.
fn of_process(process: &Process, plot: TimePlot) -> Vec<(f64, f64)> {
    if plot == TimePlot::Memory {
        return process.samples.iter().map(|sample| (sample.at_s, sample.rss_bytes as f64)).collect();
    }
    let used = |sample: &ProcessSample| sample.cpu_user_s + sample.cpu_system_s;
    let pairs = process.samples.windows(2).filter(|pair| pair[1].at_s - pair[0].at_s > 0.02);
    pairs
        .map(|pair| (pair[1].at_s, (used(&pair[1]) - used(&pair[0])) / (pair[1].at_s - pair[0].at_s) * 100.0))
        .collect()
}

/// The measurements of the load engine, by the time since the measured part began. A short last interval is left out,
/// because its rate would be random.
fn of_intervals(run: &MeasuredRun, plot: TimePlot) -> Vec<(f64, f64)> {
    let measured = || run.load.intervals.iter().filter(|interval| interval.phase == LoadPhase::Measured);
    let longest = measured().map(|interval| interval.length_ns).max().unwrap_or(0);
    let first = measured().map(|interval| interval.start_ns).min().unwrap_or(0);
    let whole = measured().filter(|interval| interval.length_ns * 2 > longest);
    let point = |interval: &LoadInterval| {
        let tally = &interval.tally;
        let per_second = |count: u64| count as f64 * 1e9 / interval.length_ns.max(1) as f64;
        let value = match plot {
            TimePlot::Errors => per_second(tally.failed()),
            TimePlot::Latency if tally.latency.is_empty() => return None,
            TimePlot::Latency => tally.latency.quantile(0.99) as f64 / 1e6,
            _ => per_second(tally.completed),
        };
        Some(((interval.start_ns + interval.length_ns - first) as f64 / 1e9, value))
    };
    whole.filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{analysis::summary::findings, result::ResultFile};

    #[test]
    fn means_have_a_plot_where_the_scenario_has_their_column() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/results");
        let mut files = std::fs::read_dir(folder).expect("there are results").flatten().map(|entry| entry.path());
        let is_gwlb = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("gwlb-");
        let file = files.find(|path| path.file_name().is_some_and(is_gwlb)).expect("one of each publication");
        let mut result = ResultFile::read(&file).expect("a result");
        for (columns, count) in [(Vec::new(), 0), (vec![TableColumn::Mean], result.scenario.rows.len())] {
            result.scenario.columns = columns;
            let figures = figures(&findings(&result));
            let means: Vec<&Figure> = figures.iter().filter(|figure| figure.kind == "mean-latency").collect();
            assert_eq!(means.len(), count);
            assert!(means.iter().all(|figure| figure.svg.contains("Mean latency from when a request was due")));
        }
    }
}
