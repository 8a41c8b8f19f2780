use std::fmt::Write as _;

use super::{
    Figure, against, difference, extra, extra_headers, figures, found, grouped, headline, holds_connections,
    knee_figures, latency, left_out, legend, length, level, missing_flame_graphs, overview, plain, processors,
    published_after, schedule_of, target_name, with_interval, with_workers,
};
use crate::{
    analysis::{
        lint::{LintVerdict, Severity},
        summary::{CellSummary, Findings},
    },
    plot::{Unit, escape, flame_graph},
    result::CellOutcome,
    scenario::{Scenario, TableColumn},
};

/// The style of reports, in CSS.
pub const STYLE: &str = include_str!("style.css");

/// A self-contained page, without scripts, fonts or images from elsewhere.
pub fn html(findings: &Findings<'_>) -> String {
    let result = findings.result;
    let scenario = &result.scenario;
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><main><header><p class=\"kicker\">weir bench · {1}{2}</p><h1>{0}</h1>\
         </header>",
        escape(&scenario.title),
        escape(&scenario.name),
        if result.quick { " · quick" } else { "" },
    );
    verdict_banner(findings, &mut page);
    overview::overview(findings, &mut page);
    procedure(findings, &mut page);
    let drawn = figures(findings);
    for figure in drawn.iter().filter(|figure| figure.row.is_none()) {
        let _ = write!(page, "<figure id=\"{}\">{}</figure>", figure.name, figure.svg);
    }
    results_table(findings, &mut page);
    costs(findings, &mut page);
    searches(findings, &mut page);
    knees(findings, &mut page);
    row_figures(scenario, &drawn, &mut page);
    flame_graphs(findings, &mut page);
    verdicts(findings, &mut page);
    machine(findings, &mut page);
    configurations(findings, &mut page);
    page.push_str("</main></body></html>\n");
    page
}

/// What was measured, where and how, and whose figures stand beside it.
fn procedure(findings: &Findings<'_>, page: &mut String) {
    let scenario = &findings.result.scenario;
    let _ = write!(page, "<section><h2>What was measured</h2><p class=\"about\">{}</p>", with_code(&scenario.about));
    if let Some(source) = &scenario.source {
        let title = match &source.url {
            Some(url) => format!("<a href=\"{}\">{}</a>", escape(url), escape(&source.title)),
            None => escape(&source.title),
        };
        let date = source.date.as_ref().map_or(String::new(), |date| format!(", {}", escape(date)));
        let _ = write!(
            page,
            "<p class=\"source\">Published figures: {title}{date}. {}. They come from another machine, so compare the shapes of \
             the curves, not the values.</p>",
            escape(&source.setup)
        );
    }
    facts(findings, page);
    page.push_str("</section>");
}

fn row_figures(scenario: &Scenario, drawn: &[Figure], page: &mut String) {
    for row in &scenario.rows {
        let own: Vec<_> = drawn.iter().filter(|figure| figure.row.as_ref() == Some(&row.name)).collect();
        if own.is_empty() {
            continue;
        }
        let name = escape(&row.name);
        // The rows that an ablation added serve comparisons; their own curves are collapsed.
        let (open, close) = if scenario.is_variation(row) {
            (format!("<details><summary>{name}</summary>"), "</details>")
        } else {
            (format!("<section><h2>{name}</h2>"), "</section>")
        };
        page.push_str(&open);
        page.push_str("<div class=\"pair\">");
        for figure in own {
            let _ = write!(page, "<figure id=\"{}\">{}</figure>", figure.name, figure.svg);
        }
        page.push_str("</div>");
        page.push_str(close);
    }
}

fn flame_graphs(findings: &Findings<'_>, page: &mut String) {
    if findings.result.profiles.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>Where the slowest runs spent their time</h2><p>Each frame is as wide as its share of the samples, and lies \
         below its caller. What waits has no samples.</p>",
    );
    for line in missing_flame_graphs(findings) {
        let _ = write!(page, "<p>{}</p>", escape(&line));
    }
    for one in findings.result.profiles.iter().filter(|one| !one.stacks.is_empty()) {
        let clients = level(one.level.connections, one.level.workers);
        let rate = Unit::Count.label(one.rps);
        let title = format!("{} · {} · {clients} clients · repeat {}, {rate}/s", one.target, one.row, one.repeat + 1);
        let graph = flame_graph(&title, &one.stacks);
        let _ =
            write!(page, "<details><summary>{}</summary><div class=\"scroll\">{graph}</div></details>", escape(&title));
    }
    page.push_str("</section>");
}

/// Text in which `backticks` mark code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let part = |(number, part)| match number % 2 {
        0 => escape(part),
        _ => format!("<code>{}</code>", escape(part)),
    };
    parts.map(part).collect()
}

fn verdict_banner(findings: &Findings<'_>, page: &mut String) {
    let (class, title) = match findings.worst() {
        Some(Severity::Invalid) => ("invalid", "Invalid."),
        Some(Severity::Warning) => ("warning", "Verdict."),
        _ => ("valid", "Valid."),
    };
    let reason = headline(findings).unwrap_or_else(|| "No finding weakens a figure.".to_owned());
    let all = match findings.verdicts.len() {
        0 => String::new(),
        1 => " <a href=\"#verdicts\">One finding</a>".to_owned(),
        count => format!(" <a href=\"#verdicts\">All {count} findings</a>"),
    };
    let _ = write!(page, "<p class=\"banner {class}\"><strong>{title}</strong> {}{all}</p>", escape(&reason));
}

fn facts(findings: &Findings<'_>, page: &mut String) {
    let result = findings.result;
    let manifest = &result.manifest;
    let method = &result.scenario.method;
    let facts = [
        ("Measured", result.started_at.clone()),
        ("Machine", format!("{}, {} processors", manifest.cpu.model, manifest.cpu.logical)),
        (
            "Method",
            format!(
                "{} interleaved repeats of {} after {} s of warm-up{}; medians with {} % bootstrap intervals",
                method.repeats,
                length(result),
                method.warmup_s,
                if method.slices > 1 { format!(", in {} slices", method.slices) } else { String::new() },
                method.confidence_percent()
            ),
        ),
        ("Processors", processors(result)),
        (
            "Targets",
            result
                .targets
                .iter()
                .map(|target| match &target.version {
                    Some(version) => format!("{} ({version})", target.name),
                    None => target.name.clone(),
                })
                .collect::<Vec<_>>()
                .join(" · "),
        ),
        ("Command", result.command.join(" ")),
    ];
    page.push_str("<dl class=\"facts\">");
    for (name, value) in facts {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    page.push_str("</dl>");
}

fn results_table(findings: &Findings<'_>, page: &mut String) {
    let idle = holds_connections(findings.result);
    page.push_str(
        "<section><h2>Figures</h2><div class=\"scroll\"><table class=\"figures\"><thead><tr><th>Row<th class=\"n\">Clients<th>Target",
    );
    let against = format!("vs {}", findings.result.scenario.baseline);
    let mut headers: Vec<&str> = if idle {
        vec!["Held", "Memory", "Per connection", "Errors"]
    } else {
        let times = ["p50", "p99", "p99.9", "CPU/request"];
        let first = ["Requests/s", &against].into_iter().chain(times);
        first.chain([&*against, "Memory", "Memory after", "Errors"]).collect()
    };
    let columns = headers.len();
    let extras = &findings.result.scenario.columns;
    headers.extend(extras.iter().flat_map(|column| extra_headers(*column)));
    headers.iter().for_each(|header| page.push_str(&format!("<th class=\"n\">{}", escape(header))));
    page.push_str("<th>Verdict</thead><tbody>");
    let mut last = "";
    for (index, summary) in findings.cells.iter().enumerate() {
        let cell = summary.cell;
        if matches!(cell.outcome, CellOutcome::Unsupported { .. }) {
            published_rows(findings, index, columns, page);
            continue;
        }
        let first = cell.row != last;
        last = &cell.row;
        let _ = write!(
            page,
            "<tr{}><td>{}<td class=\"n\" data-name=\"Clients\">{}<td class=\"target\"><span class=\"swatch\" style=\"background:{}\"></span>{}",
            if first { " class=\"first\"" } else { "" },
            if first { escape(&cell.row) } else { String::new() },
            escape(&level(cell.level.connections, cell.level.workers)),
            crate::plot::colour(&cell.target),
            escape(&target_name(findings, cell))
        );
        if let Some(reason) = summary.absent() {
            let span = headers.len() + 1;
            let line = reason.lines().next().unwrap_or_default();
            let _ =
                write!(page, "<td colspan=\"{span}\" class=\"absent\" title=\"{}\">{}", escape(reason), escape(line));
            continue;
        }
        let mut values = figures_of(summary, idle);
        values.extend(extras.iter().flat_map(|column| extra(*column, summary)));
        for (name, value) in headers.iter().zip(&values) {
            let _ = write!(page, "<td class=\"n\" data-name=\"{}\">{}", escape(name), split_interval(value));
        }
        let word =
            summary.worst.map_or("ok", |severity| if severity == Severity::Note { "ok" } else { severity.word() });
        let _ = write!(page, "<td><span class=\"badge {word}\">{word}</span>");
        published_rows(findings, index, columns, page);
    }
    page.push_str("</tbody></table></div>");
    list("legend", "", &legend(findings), page);
    list("legend", "Not in the table:", &left_out(findings), page);
    page.push_str("</section>");
}

fn list(class: &str, title: &str, lines: &[String], page: &mut String) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(page, "<div class=\"{class}\">{title}<ul>");
    for line in lines {
        let _ = write!(page, "<li>{}", escape(line));
    }
    page.push_str("</ul></div>");
}

/// Published figures as rows of the table.
fn published_rows(findings: &Findings<'_>, index: usize, columns: usize, page: &mut String) {
    for one in published_after(findings, index) {
        let mut values = vec![String::new(); columns];
        values[0] = one.rps.map_or(String::new(), |rps| Unit::Count.label(rps));
        if columns > 4 {
            values[2] = one.mean_ms.map_or(String::new(), |ms| format!("mean {}", Unit::Milliseconds.label(ms)));
            values[3] = one.p99_ms.map_or(String::new(), |ms| Unit::Milliseconds.label(ms));
        }
        values[columns - 1] = one.error_percent.map_or(String::new(), |percent| format!("{percent} %"));
        let _ = write!(
            page,
            "<tr class=\"published\"><td><td><td title=\"{}\">◇ {}",
            escape(one.note.as_deref().unwrap_or("published")),
            escape(&one.system)
        );
        for value in values {
            let _ = write!(page, "<td class=\"n\">{}", escape(&value));
        }
        page.push_str("<td>published");
    }
}

fn figures_of(summary: &CellSummary<'_>, idle: bool) -> Vec<String> {
    let errors = summary.error_share.map_or(0.0, |share| share.median);
    let errors = if errors == 0.0 { "0".to_owned() } else { Unit::Percent.label(errors * 100.0) };
    if idle {
        vec![
            plain(summary.open_connections, Unit::Count),
            plain(summary.rss_bytes, Unit::Bytes),
            with_interval(summary.bytes_per_connection, Unit::Bytes),
            errors,
        ]
    } else {
        vec![
            with_interval(summary.rps, Unit::Count),
            against(summary.against_baseline),
            latency(summary, summary.p50_ms, true),
            latency(summary, summary.p99_ms, false),
            latency(summary, summary.p999_ms, false),
            with_interval(summary.cpu_us, Unit::Microseconds),
            against(summary.cpu_against_baseline),
            plain(summary.rss_bytes, Unit::Bytes),
            memory_after(summary),
            errors,
        ]
    }
}

/// Resident memory after the load, and how much of it allocators hold.
fn memory_after(summary: &CellSummary<'_>) -> String {
    let resident = plain(summary.rss_after_bytes, Unit::Bytes);
    match summary.held_after_bytes {
        Some(held) => format!("{resident} ({} of allocators)", Unit::Bytes.label(held.median)),
        None => resident,
    }
}

/// The interval in a smaller font below the median.
fn split_interval(value: &str) -> String {
    match value.split_once(" (") {
        Some((median, interval)) => {
            format!("{}<small>{}</small>", escape(median), escape(interval.trim_end_matches(')')))
        }
        None => escape(value),
    }
}

fn costs(findings: &Findings<'_>, page: &mut String) {
    if findings.costs.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>The cost of each plugin</h2><p>The difference between the row with the plugin and the row without it, in \
         the same repeat. CPU is that of the target; time is 1/throughput, as for published throughputs. \
         ≈ marks a difference whose interval contains 0.</p>\
         <div class=\"scroll\"><table><thead><tr><th>Plugin<th>Compared with<th class=\"n\">Clients<th>Target\
         <th class=\"n\">CPU<th class=\"n\">Time<th class=\"n\">Published</thead><tbody>",
    );
    for cost in &findings.costs {
        let _ = write!(
            page,
            "<tr><td>{}<td>{}<td class=\"n\">{}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}",
            escape(&cost.name()),
            escape(&cost.base.name),
            level(cost.level.connections, cost.level.workers),
            escape(cost.target),
            split_interval(&difference(cost.cpu_us, Unit::Microseconds)),
            split_interval(&difference(cost.time_us, Unit::Microseconds)),
            cost.published_us.map_or("–".to_owned(), |us| Unit::Microseconds.label(us)),
        );
    }
    page.push_str("</tbody></table></div></section>");
}

fn searches(findings: &Findings<'_>, page: &mut String) {
    if findings.result.searches.is_empty() && findings.scaling.is_empty() {
        return;
    }
    if !findings.result.searches.is_empty() {
        page.push_str(
            "<section><h2>Searches</h2><div class=\"scroll\"><table><thead><tr><th>Highest rate with<th>Row\
             <th class=\"n\">Clients<th>Target<th class=\"n\">Requests/s<th>Rates tried</thead><tbody>",
        );
        let by_schedule = findings.result.scenario.columns.contains(&TableColumn::Schedule);
        for search in &findings.result.searches {
            let tried: Vec<String> = search
                .attempts
                .iter()
                .map(|one| {
                    let mark = if one.kept { "✓" } else { "✗" };
                    let schedule = match schedule_of(Some(one)) {
                        [sent, noticed] if by_schedule => format!(" ({sent}, machine {noticed})"),
                        _ => String::new(),
                    };
                    format!("{} {mark}{schedule}", Unit::Count.label(one.rate))
                })
                .collect();
            let _ = write!(
                page,
                "<tr><td>{}<td>{}<td class=\"n\">{}<td>{}<td class=\"n\">{}<td class=\"tried\">{}",
                escape(&search.objective),
                escape(&search.row),
                escape(&level(search.connections, search.workers)),
                escape(&search.target),
                escape(&found(search)),
                tried.join(" · ")
            );
        }
        page.push_str("</tbody></table></div></section>");
    }
    if !findings.scaling.is_empty() {
        page.push_str(
            "<section><h2>Capacity</h2><p>The Universal Scalability Law, fitted over workers.</p><table><thead><tr><th>Row\
             <th>Target<th class=\"n\">One worker<th class=\"n\">Contention<th class=\"n\">Coherency<th class=\"n\">Error</thead><tbody>",
        );
        for one in &findings.scaling {
            let _ = write!(
                page,
                "<tr><td>{}<td>{}<td class=\"n\">{}/s<td class=\"n\">{:.4}<td class=\"n\">{:.6}<td class=\"n\">{:.1} %",
                escape(one.row),
                escape(one.target),
                Unit::Count.label(one.fit.rate),
                one.fit.contention,
                one.fit.coherency,
                one.fit.error * 100.0
            );
        }
        page.push_str("</tbody></table></section>");
    }
}

fn knees(findings: &Findings<'_>, page: &mut String) {
    if findings.knees.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>Knees</h2><p>The level beyond which throughput gains less than it costs in latency: where their \
         quotient is largest (Kleinrock's power).</p><div class=\"scroll\"><table><thead><tr><th>Row<th>Target\
         <th class=\"n\">Clients<th class=\"n\">Requests/s<th class=\"n\">Mean</thead><tbody>",
    );
    for knee in &findings.knees {
        let _ = write!(page, "<tr><td>{}<td>{}", escape(&knee.row), escape(&with_workers(&knee.target, knee.workers)));
        if let Some(note) = &knee.note {
            let _ = write!(page, "<td colspan=\"3\" class=\"absent\">{}", escape(note));
            continue;
        }
        for value in knee_figures(knee) {
            let _ = write!(page, "<td class=\"n\">{}", escape(&value));
        }
    }
    page.push_str("</tbody></table></div></section>");
}

fn verdicts(findings: &Findings<'_>, page: &mut String) {
    page.push_str("<section id=\"verdicts\"><h2>Verdicts</h2>");
    if findings.verdicts.is_empty() {
        page.push_str("<p>There are no findings.</p>");
    }
    page.push_str("<ul class=\"verdicts\">");
    for group in grouped(&findings.verdicts) {
        let LintVerdict { rule, severity, subject, words, .. } = group[0];
        let subject = subject.as_ref().map_or(String::new(), |subject| format!("<b>{}</b>: ", escape(subject)));
        let _ = write!(
            page,
            "<li><span class=\"badge {0}\">{0}</span> {subject}{1} <code>{2}</code>",
            severity.word(),
            escape(words),
            escape(rule)
        );
        if group.len() > 1 {
            let _ = write!(page, "<details><summary>and {} more</summary><ul>", group.len() - 1);
            for verdict in &group[1..] {
                let subject = verdict.subject.as_deref().unwrap_or_default();
                let _ = write!(page, "<li><b>{}</b>: {}", escape(subject), escape(&verdict.words));
            }
            page.push_str("</ul></details>");
        }
    }
    page.push_str("</ul></section>");
}

fn machine(findings: &Findings<'_>, page: &mut String) {
    let manifest = &findings.result.manifest;
    let mut lines = vec![
        ("Kernel".to_owned(), manifest.kernel_release()),
        ("Distribution".to_owned(), manifest.distribution.clone().unwrap_or_default()),
        ("Machine".to_owned(), manifest.machine.clone().unwrap_or_else(|| "unknown".to_owned())),
        (
            "CPU".to_owned(),
            format!(
                "{}: {} sockets, {} cores, {} threads per core",
                manifest.cpu.model, manifest.cpu.sockets, manifest.cpu.cores, manifest.cpu.threads_per_core
            ),
        ),
        ("Memory".to_owned(), Unit::Bytes.label(manifest.memory_bytes as f64)),
        ("Open files".to_owned(), format!("{} soft, {} hard", manifest.open_files.0, manifest.open_files.1)),
        ("Hardware counters".to_owned(), if manifest.counters { "yes" } else { "not readable" }.to_owned()),
    ];
    lines.extend(manifest.sysctl.iter().map(|(name, value)| (name.clone(), value.clone())));
    lines.extend(manifest.versions.iter().map(|(name, value)| (name.clone(), value.clone())));
    page.push_str("<section><h2>Machine</h2><dl class=\"facts\">");
    for (name, value) in lines {
        let _ = write!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escape(&name), escape(&value));
    }
    page.push_str("</dl></section>");
}

fn configurations(findings: &Findings<'_>, page: &mut String) {
    page.push_str("<section><h2>Configurations</h2>");
    for target in &findings.result.targets {
        for configuration in &target.configurations {
            let check = match &configuration.check {
                Some(check) if check.passed => "accepted by the target's own check",
                Some(_) => "refused by the target's own check",
                None => "the target has no configuration check",
            };
            let _ = write!(
                page,
                "<details><summary>{} · {} <small>{check} · sha256 {}</small></summary><p><code>{}</code></p>",
                escape(&target.name),
                escape(&configuration.row),
                &configuration.sha256[..configuration.sha256.len().min(12)],
                escape(&configuration.command.join(" "))
            );
            for (name, text) in &configuration.files {
                // The certificate of a run is of no use after it, so its content is left out.
                let text = if name.ends_with(".pem") { "…" } else { text.as_str() };
                let _ = write!(page, "<h4>{}</h4><pre>{}</pre>", escape(name), escape(text));
            }
            page.push_str("</details>");
        }
    }
    page.push_str("</section>");
}
