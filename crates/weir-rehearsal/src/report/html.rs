//! The report as a page, without scripts, fonts or images from elsewhere.

use std::fmt::Write;

use super::{CauseReport, RehearsalReport, SubjectReport, counted, visible};

pub(super) fn html(report: &RehearsalReport, style: &str, compared: &[(&str, String)]) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>Rehearsal</title>\
         <style>{style}</style></head><body><main><header><p class=\"kicker\">weir rehearse</p><h1>Rehearsal of a migration</h1></header>"
    );
    let (class, title) = match (report.differing, &report.stopped) {
        _ if report.totals.compared == 0 => ("invalid", "No result."),
        (0, None) => ("valid", "Alike."),
        (0, Some(_)) => ("warning", "Alike so far."),
        _ => ("warning", "Different."),
    };
    let _ = write!(page, "<p class=\"banner {class}\"><strong>{title}</strong> {}", escape(&report.conclusion()));
    if let Some(reason) = &report.stopped {
        let _ = write!(page, " The rehearsal ended before the log: {}.", escape(reason));
    }
    page.push_str("</p>");
    facts(report, compared, &mut page);
    overview(report, &mut page);
    report.causes.iter().for_each(|cause| add_cause(cause, &mut page));
    varying(report, &mut page);
    page.push_str("</main></body></html>\n");
    page
}

fn escape(text: &str) -> String {
    visible(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

fn facts(report: &RehearsalReport, compared: &[(&str, String)], page: &mut String) {
    let [old, new] = report.mean_ms;
    let own = [
        ("Requests", report.account().join(", ")),
        ("Mean time of an answer", format!("old {old:.1} ms, new {new:.1} ms")),
        ("Problems", report.problems.join("; ")),
    ];
    page.push_str("<dl class=\"facts\">");
    for (name, value) in compared.iter().chain(&own).filter(|(_, value)| !value.is_empty()) {
        let _ = write!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), with_code(value));
    }
    page.push_str("</dl>");
}

fn overview(report: &RehearsalReport, page: &mut String) {
    if report.causes.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>Causes</h2><div class=\"scroll\"><table><thead><tr><th>Cause<th>What differs<th class=\"n\">Requests\
         <th>First path</thead><tbody>",
    );
    for cause in &report.causes {
        for (index, one) in cause.differences.iter().enumerate() {
            let (class, title) = if index == 0 { (" class=\"first\"", cause.title) } else { ("", "") };
            let shape = one.shapes.first().map_or("", |shape| &shape.shape);
            let _ = write!(
                page,
                "<tr{class}><td>{}<td>{}<td class=\"n\">{}<td><code>{}</code>",
                escape(title),
                escape(&one.subject),
                one.requests,
                escape(shape)
            );
        }
    }
    page.push_str("</tbody></table></div></section>");
}

fn add_cause(cause: &CauseReport, page: &mut String) {
    let _ = write!(
        page,
        "<section id=\"{}\"><h2>{}</h2><p class=\"about\">{}</p>",
        cause.cause,
        escape(cause.title),
        with_code(cause.meaning)
    );
    cause.differences.iter().for_each(|one| add_subject(one, page));
    if cause.unlisted > 0 {
        let _ = write!(page, "<p class=\"source\">and {} more</p>", cause.unlisted);
    }
    page.push_str("</section>");
}

fn add_subject(one: &SubjectReport, page: &mut String) {
    let SubjectReport { subject, requests, shapes, unlisted_shapes, old, new, other_values, examples } = one;
    let title = if subject.is_empty() { "all" } else { subject };
    let _ = write!(page, "<details open><summary>{} <small>{}</small></summary>", escape(title), counted(*requests));
    if !(old.is_empty() && new.is_empty()) {
        let value = |value: &str| if value.is_empty() { "(nothing)".to_owned() } else { escape(value) };
        let _ = write!(page, "<pre>old: {}\nnew: {}</pre>", value(old), value(new));
        if *other_values {
            page.push_str("<p>These are of one request; others have other values.</p>");
        }
    }
    page.push_str("<table><thead><tr><th>Path<th class=\"n\">Requests</thead><tbody>");
    for shape in shapes {
        let _ = write!(page, "<tr><td><code>{}</code><td class=\"n\">{}", escape(&shape.shape), shape.requests);
    }
    if *unlisted_shapes > 0 {
        let _ = write!(page, "<tr><td>and {unlisted_shapes} more<td>");
    }
    page.push_str("</tbody></table><table><thead><tr><th>Example<th>Route of the new gateway</thead><tbody>");
    for example in examples {
        let route = example.route.as_deref().unwrap_or("–");
        let _ = write!(page, "<tr><td><code>{}</code><td>{}", escape(&example.request), escape(route));
    }
    page.push_str("</tbody></table></details>");
}

fn varying(report: &RehearsalReport, page: &mut String) {
    if report.varying.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>What varies</h2><p class=\"about\">This differs between two answers of the old gateway, so it was not \
         compared.</p><div class=\"scroll\"><table><thead><tr><th>Path<th>Varying</thead><tbody>",
    );
    for (shape, parts) in &report.varying {
        let _ = write!(page, "<tr><td><code>{}</code><td>{}", escape(shape), escape(&parts.join(", ")));
    }
    page.push_str("</tbody></table></div></section>");
}

/// Text in which `backticks` mark code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(number, part)| if number % 2 == 0 { escape(part) } else { format!("<code>{}</code>", escape(part)) })
        .collect()
}
