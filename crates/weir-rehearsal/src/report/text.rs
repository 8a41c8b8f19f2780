//! The report for a terminal.

use std::fmt::Write;

use super::{CauseReport, RehearsalReport, SubjectReport, counted};

/// The most shapes whose varying parts are listed.
const MAX_VARYING: usize = 10;

pub(super) fn text(report: &RehearsalReport) -> String {
    let mut text = format!("{}\n", report.conclusion());
    if let Some(reason) = &report.stopped {
        let _ = writeln!(text, "The rehearsal ended before the log: {reason}.");
    }
    let _ = writeln!(text, "{}.", report.account().join(", "));
    for problem in &report.problems {
        let _ = writeln!(text, "  {problem}");
    }
    for cause in &report.causes {
        add_cause(cause, &mut text);
    }
    if !report.varying.is_empty() {
        text.push_str("\nNot compared, since it varies in the answers of the old gateway:\n");
        for (shape, parts) in report.varying.iter().take(MAX_VARYING) {
            let _ = writeln!(text, "  {shape}: {}", parts.join(", "));
        }
        if report.varying.len() > MAX_VARYING {
            let _ = writeln!(text, "  and in {} more paths", report.varying.len() - MAX_VARYING);
        }
    }
    let [old, new] = report.mean_ms;
    let _ = writeln!(text, "\nMean time of an answer: old {old:.1} ms, new {new:.1} ms.");
    text
}

fn add_cause(cause: &CauseReport, text: &mut String) {
    let _ = writeln!(text, "\n{} [{}]\n  {}", cause.title, cause.cause, cause.meaning);
    for one in &cause.differences {
        add_subject(one, text);
    }
    if cause.unlisted > 0 {
        let _ = writeln!(text, "  and {} more", cause.unlisted);
    }
}

fn add_subject(one: &SubjectReport, text: &mut String) {
    let SubjectReport { subject, requests, shapes, unlisted_shapes, old, new, examples } = one;
    let title = if subject.is_empty() { "all" } else { subject };
    let _ = writeln!(text, "  {title}: {}", counted(*requests));
    if !(old.is_empty() && new.is_empty()) {
        let value =
            |value: &str| if value.is_empty() { "(nothing)".to_owned() } else { value.escape_debug().to_string() };
        let _ = writeln!(text, "    old: {}\n    new: {}", value(old), value(new));
    }
    for shape in shapes {
        let _ = writeln!(text, "    {} in {}", shape.requests, shape.shape);
    }
    if *unlisted_shapes > 0 {
        let _ = writeln!(text, "    and in {unlisted_shapes} more paths");
    }
    for example in examples {
        let route = example.route.as_ref().map_or(String::new(), |route| format!(" ({route})"));
        let _ = writeln!(text, "    as {}{route}", example.request);
    }
}
