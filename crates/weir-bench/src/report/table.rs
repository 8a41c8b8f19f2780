use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

use super::{
    against, difference, extra, extra_headers, holds_connections, knee_figures, level, plain, published_after,
    schedule_of, shortened, target_name, with_interval, with_workers,
};
use crate::{
    analysis::{lint::Severity, summary::Findings},
    plot::Unit,
    scenario::TableColumn,
};

/// The table of a result for a terminal, `width` characters wide when given.
pub fn table(findings: &Findings<'_>, width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width {
        table.set_width(width);
    }
    let idle = holds_connections(findings.result);
    let baseline = format!("vs {}", findings.result.scenario.baseline);
    let mut header = vec!["row", "clients", "target"];
    if idle {
        header.extend(["held", "memory", "per connection", "errors"]);
    } else {
        header.extend(["req/s", baseline.as_str(), "p50", "p99", "p99.9", "CPU/req", "memory", "errors"]);
    }
    header.extend(findings.result.scenario.columns.iter().flat_map(|column| extra_headers(*column)));
    header.push("verdict");
    table.set_header(header);
    let columns = table.header().map_or(0, |header| header.cell_count());
    let mut last_row = "";
    for (index, summary) in findings.cells.iter().enumerate() {
        let cell = summary.cell;
        let name = if cell.row == last_row { "" } else { cell.row.as_str() };
        last_row = &cell.row;
        let mut line = vec![
            Cell::new(name),
            Cell::new(level(cell.level.connections, cell.level.workers)),
            Cell::new(target_name(findings, cell)),
        ];
        let number = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        if let Some(reason) = summary.absent() {
            let reason = reason.lines().next().unwrap_or_default();
            line.extend((4..columns).map(|_| Cell::new("–").set_alignment(CellAlignment::Right)));
            line.push(Cell::new(shortened(reason, 48)).fg(Color::DarkGrey));
            table.add_row(line);
            add_published(&mut table, findings, index, columns);
            continue;
        }
        if idle {
            line.push(number(plain(summary.open_connections, Unit::Count)));
            line.push(number(plain(summary.rss_bytes, Unit::Bytes)));
            line.push(number(with_interval(summary.bytes_per_connection, Unit::Bytes)));
        } else {
            line.push(number(with_interval(summary.rps, Unit::Count)));
            line.push(number(against(summary.against_baseline)));
            for latency in [summary.p50_ms, summary.p99_ms, summary.p999_ms] {
                line.push(number(plain(latency, Unit::Milliseconds)));
            }
            // Against the baseline, in the same way as throughput.
            let cpu =
                format!("{} {}", plain(summary.cpu_us, Unit::Microseconds), against(summary.cpu_against_baseline));
            line.push(number(cpu.trim_end().to_owned()));
            line.push(number(plain(summary.rss_bytes, Unit::Bytes)));
        }
        line.push(number(errors(summary.error_share.map_or(0.0, |share| share.median))));
        let extras = findings.result.scenario.columns.iter();
        line.extend(extras.flat_map(|column| extra(*column, summary)).map(number));
        line.push(match summary.worst {
            Some(Severity::Invalid) => Cell::new("invalid").fg(Color::Red),
            Some(Severity::Warning) => Cell::new("warning").fg(Color::Yellow),
            Some(Severity::Note) | None => Cell::new("ok").fg(Color::Green),
        });
        table.add_row(line);
        add_published(&mut table, findings, index, columns);
    }
    table.to_string()
}

/// What others published for the row and level that end with this cell, as lines of the table.
fn add_published(table: &mut Table, findings: &Findings<'_>, index: usize, columns: usize) {
    let idle = holds_connections(findings.result);
    for published in published_after(findings, index) {
        let mut line = vec![Cell::new(""), Cell::new(""), Cell::new(&published.system).fg(Color::Magenta)];
        line.extend((4..columns).map(|_| Cell::new("")));
        line.push(Cell::new("published").fg(Color::Magenta));
        if let Some(rps) = published.rps {
            line[3] = Cell::new(Unit::Count.label(rps)).set_alignment(CellAlignment::Right).fg(Color::Magenta);
        }
        if !idle {
            if let Some(p99) = published.p99_ms {
                line[6] =
                    Cell::new(Unit::Milliseconds.label(p99)).set_alignment(CellAlignment::Right).fg(Color::Magenta);
            }
            if let Some(mean) = published.mean_ms {
                let text = format!("mean {}", Unit::Milliseconds.label(mean));
                line[5] = Cell::new(text).set_alignment(CellAlignment::Right).fg(Color::Magenta);
            }
        }
        if let Some(percent) = published.error_percent {
            line[errors_at(idle)] =
                Cell::new(format!("{percent} %")).set_alignment(CellAlignment::Right).fg(Color::Magenta);
        }
        table.add_row(line);
    }
}

/// The column of errors.
fn errors_at(idle: bool) -> usize {
    if idle { 6 } else { 10 }
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
        let rate = search.rate.map_or("none".to_owned(), |rate| Unit::Count.label(rate));
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

/// The table of what each policy costs, where that was asked for.
pub fn costs(findings: &Findings<'_>) -> Option<String> {
    if findings.result.scenario.ablations.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["cost of", "clients", "target", "CPU more", "time more"]);
    for cost in findings.costs.iter().filter(|cost| cost.policy.is_some()) {
        table.add_row([
            cost.name(),
            level(cost.level.connections, cost.level.workers),
            cost.target.to_owned(),
            difference(cost.cpu_us, Unit::Microseconds),
            difference(cost.time_us, Unit::Microseconds),
        ]);
    }
    Some(table.to_string())
}

/// The table of knees, when there are curves.
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

fn errors(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { Unit::Percent.label(share * 100.0) }
}
