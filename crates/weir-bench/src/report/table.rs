use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

use super::{
    against, difference, extra, extra_headers, found, holds_connections, knee_figures, latency, level, plain,
    published_after, schedule_of, shortened, target_name, with_interval, with_workers,
};
use crate::{
    analysis::{
        lint::Severity,
        summary::{CellSummary, Findings},
    },
    plot::Unit,
    result::CellOutcome,
    scenario::{PublishedFigures, TableColumn},
};

/// The figures of a result for a terminal: as a table if it fits into `width` characters without wrapping, otherwise as
/// a block for each figure. Without a width, always as a table.
pub fn table(findings: &Findings<'_>, width: Option<u16>) -> String {
    let header = header(findings);
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.clone());
    let lines = lines(findings, &header);
    let mut last_row = "";
    for line in &lines {
        let name = if line.row == last_row { "" } else { line.row };
        last_row = line.row;
        let mut cells = vec![Cell::new(name)];
        cells.extend(line.values.iter().enumerate().map(|(column, value)| line.cell(column, value)));
        table.add_row(cells);
    }
    let text = table.to_string();
    let needed = text.lines().map(|line| line.chars().filter(|one| !one.is_control()).count()).max().unwrap_or(0);
    match width {
        Some(width) if needed > usize::from(width) => blocks(&header, &lines, usize::from(width)),
        _ => text,
    }
}

/// The figures of a result, as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultTable {
    pub header: Vec<String>,
    /// Each with as many texts as the header.
    pub lines: Vec<Vec<String>>,
}

/// The same figures as in [`table`], for other forms of tables.
pub fn result_table(findings: &Findings<'_>) -> ResultTable {
    let header = header(findings);
    let lines = lines(findings, &header);
    let texts = |line: TableLine<'_>| [vec![line.row.to_owned()], line.values].concat();
    ResultTable { lines: lines.into_iter().map(texts).collect(), header }
}

fn header(findings: &Findings<'_>) -> Vec<String> {
    let scenario = &findings.result.scenario;
    let mut header = vec!["row".to_owned(), "clients".to_owned(), "target".to_owned()];
    if holds_connections(findings.result) {
        header.extend(["held", "memory", "per connection", "errors"].map(str::to_owned));
    } else {
        header.extend(["req/s".to_owned(), format!("vs {}", scenario.baseline)]);
        header.extend(["p50", "p99", "p99.9", "CPU/req", "memory", "errors"].map(str::to_owned));
    }
    header.extend(scenario.columns.iter().flat_map(|column| extra_headers(*column)).map(str::to_owned));
    header.push("verdict".to_owned());
    header
}

/// One line: a measured or published figure. `values` are the columns after the name of the row.
struct TableLine<'a> {
    row: &'a str,
    values: Vec<String>,
    colour: Option<Color>,
}

/// The number of text columns after the name of the row: clients and target. The last column, the verdict, is text as well.
const WORDS: usize = 2;

impl TableLine<'_> {
    fn cell(&self, column: usize, value: &str) -> Cell {
        let cell = Cell::new(value);
        let cell = if column < WORDS || column + 1 == self.values.len() {
            cell
        } else {
            cell.set_alignment(CellAlignment::Right)
        };
        match self.colour {
            Some(colour) if colour == Color::Magenta || column + 1 == self.values.len() => cell.fg(colour),
            _ => cell,
        }
    }
}

/// All figures. Unsupported cells have no line; [`super::left_out`] reports them.
fn lines<'a>(findings: &'a Findings<'_>, header: &[String]) -> Vec<TableLine<'a>> {
    let mut lines = Vec::new();
    for (index, summary) in findings.cells.iter().enumerate() {
        let cell = summary.cell;
        if !matches!(cell.outcome, CellOutcome::Unsupported { .. }) {
            let mut values = vec![level(cell.level.connections, cell.level.workers), target_name(findings, cell)];
            let colour = match summary.absent() {
                Some(reason) => {
                    values.extend((values.len() + 2..header.len()).map(|_| "–".to_owned()));
                    values.push(shortened(&format!("failed: {reason}"), 60));
                    Some(Color::Red)
                }
                None => {
                    values.extend(figures(findings, summary));
                    values.push(verdict(summary).to_owned());
                    Some(match summary.worst {
                        Some(Severity::Invalid) => Color::Red,
                        Some(Severity::Warning) => Color::Yellow,
                        Some(Severity::Note) | None => Color::Green,
                    })
                }
            };
            lines.push(TableLine { row: &cell.row, values, colour });
        }
        lines.extend(published(findings, index, header));
    }
    lines
}

fn verdict(summary: &CellSummary<'_>) -> &'static str {
    match summary.worst {
        Some(Severity::Invalid) => "invalid",
        Some(Severity::Warning) => "warning",
        Some(Severity::Note) | None => "ok",
    }
}

fn figures(findings: &Findings<'_>, summary: &CellSummary<'_>) -> Vec<String> {
    let mut values = if holds_connections(findings.result) {
        vec![
            plain(summary.open_connections, Unit::Count),
            plain(summary.rss_bytes, Unit::Bytes),
            with_interval(summary.bytes_per_connection, Unit::Bytes),
        ]
    } else {
        // Against the baseline, in the same way as throughput.
        let cpu = format!("{} {}", plain(summary.cpu_us, Unit::Microseconds), against(summary.cpu_against_baseline));
        vec![
            with_interval(summary.rps, Unit::Count),
            against(summary.against_baseline),
            latency(summary, summary.p50_ms, true),
            latency(summary, summary.p99_ms, false),
            latency(summary, summary.p999_ms, false),
            cpu.trim_end().to_owned(),
            plain(summary.rss_bytes, Unit::Bytes),
        ]
    };
    values.push(errors(summary.error_share.map_or(0.0, |share| share.median)));
    values.extend(findings.result.scenario.columns.iter().flat_map(|column| extra(*column, summary)));
    values
}

/// The published figures for the row and level that end with this cell, as lines of the table.
fn published<'a>(findings: &'a Findings<'_>, index: usize, header: &[String]) -> Vec<TableLine<'a>> {
    let row = findings.cells[index].cell.row.as_str();
    let line = |one: &PublishedFigures| {
        let mut values = vec![String::new(); header.len() - 1];
        let mut set = |name: &str, value: Option<String>| {
            if let (Some(at), Some(value)) = (header.iter().position(|have| have == name), value) {
                values[at - 1] = value;
            }
        };
        set("target", Some(one.system.clone()));
        set("req/s", one.rps.map(|rps| Unit::Count.label(rps)));
        set("p50", one.mean_ms.map(|mean| format!("mean {}", Unit::Milliseconds.label(mean))));
        set("p99", one.p99_ms.map(|p99| Unit::Milliseconds.label(p99)));
        set("errors", one.error_percent.map(|percent| format!("{percent} %")));
        set("verdict", Some("published".to_owned()));
        TableLine { row, values, colour: Some(Color::Magenta) }
    };
    published_after(findings, index).into_iter().map(line).collect()
}

/// The same figures below each other: a line with the name of each row, and a paragraph for each figure.
fn blocks(header: &[String], lines: &[TableLine<'_>], width: usize) -> String {
    let mut text = String::new();
    let mut last_row = "";
    for line in lines {
        if line.row != last_row {
            text.push_str(if text.is_empty() { "" } else { "\n" });
            text.push_str(line.row);
            text.push('\n');
            last_row = line.row;
        }
        let (clients, target) = (&line.values[0], &line.values[1]);
        let verdict = line.values.last().map_or("", String::as_str);
        let clients = if clients.is_empty() { String::new() } else { format!(", {clients} clients") };
        text.push_str(&format!("  {target}{clients}: {verdict}\n"));
        let figures = header[WORDS + 1..].iter().zip(&line.values[WORDS..]);
        let named = figures.filter(|(name, value)| !value.is_empty() && *value != "–" && *name != "verdict");
        let mut used = 0;
        for (name, value) in named {
            let figure = format!("{name} {value}");
            if used > 0 && used + 3 + figure.chars().count() > width {
                text.push('\n');
                used = 0;
            }
            let lead = if used == 0 { "    " } else { " · " };
            text.push_str(lead);
            text.push_str(&figure);
            used += lead.chars().count() + figure.chars().count();
        }
        text.push_str(if used > 0 { "\n" } else { "" });
    }
    text.trim_end().to_owned()
}

/// The table of searches, when there are any.
pub fn searches(findings: &Findings<'_>) -> Option<String> {
    if findings.result.searches.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let mut header = vec!["highest rate with", "row", "clients", "target", "req/s", "attempts"];
    let schedule = findings.result.scenario.columns.contains(&TableColumn::Schedule);
    if schedule {
        header.extend(extra_headers(TableColumn::Schedule));
    }
    table.set_header(header);
    for search in &findings.result.searches {
        let rate = found(search);
        let mut line = vec![
            search.objective.clone(),
            search.row.clone(),
            level(search.connections, search.workers),
            search.target.clone(),
            rate,
            search.attempts.len().to_string(),
        ];
        if schedule {
            let best = search.attempts.iter().rfind(|one| one.kept && Some(one.rate) == search.rate);
            line.extend(schedule_of(best));
        }
        table.add_row(line);
    }
    Some(table.to_string())
}

/// The table of the costs of policies, for a result with an ablation.
pub fn costs(findings: &Findings<'_>) -> Option<String> {
    if findings.result.scenario.ablations.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["cost of", "clients", "target", "CPU more", "time more", "instructions more"]);
    for cost in findings.costs.iter().filter(|cost| cost.policy.is_some()) {
        table.add_row([
            cost.name(),
            level(cost.level.connections, cost.level.workers),
            cost.target.to_owned(),
            difference(cost.cpu_us, Unit::Microseconds),
            difference(cost.time_us, Unit::Microseconds),
            cost.instructions.map_or("–".to_owned(), |count| Unit::Count.label(count)),
        ]);
    }
    Some(table.to_string())
}

/// The table of knees, if there are curves.
pub fn knees(findings: &Findings<'_>) -> Option<String> {
    if findings.knees.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["knee of", "target", "clients", "req/s", "mean"]);
    for knee in &findings.knees {
        table.add_row(
            [vec![knee.row.clone(), with_workers(&knee.target, knee.workers)], knee_figures(knee).into()].concat(),
        );
    }
    Some(table.to_string())
}

/// The table of user instructions per request, if they were counted.
pub fn instruction_counts(findings: &Findings<'_>) -> Option<String> {
    let result = findings.result;
    if result.counts.is_empty() {
        return None;
    }
    let baseline = &result.scenario.baseline;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["counted".to_owned(), "target".to_owned(), "instr/req".to_owned(), format!("vs {baseline}")]);
    for count in &result.counts {
        let ratio = match result.counted(&count.row, baseline) {
            Some(base) if base > 0.0 && count.target != *baseline => format!("{:.2}", count.per_request / base),
            _ => String::new(),
        };
        let figure = format!("{:.0}", count.per_request);
        table.add_row([count.row.clone(), count.target.clone(), figure, ratio]);
    }
    Some(table.to_string())
}

fn errors(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { Unit::Percent.label(share * 100.0) }
}
