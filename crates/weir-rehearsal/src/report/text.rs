//! The report for a terminal.

use std::fmt::Arguments;

use super::{CauseReport, RehearsalReport, SubjectReport, counted, visible};

/// The most shapes whose varying parts are listed.
const MAX_VARYING: usize = 10;

pub(super) fn text(report: &RehearsalReport) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("{}", report.conclusion()));
    if let Some(reason) = &report.stopped {
        line(&mut text, format_args!("The rehearsal ended before the log: {reason}."));
    }
    line(&mut text, format_args!("{}.", report.account().join(", ")));
    for problem in &report.problems {
        line(&mut text, format_args!("  {problem}"));
    }
    for cause in &report.causes {
        add_cause(cause, &mut text);
    }
    if !report.varying.is_empty() {
        text.push_str("\nNot compared, since it varies in the answers of the old gateway:\n");
        for (shape, parts) in report.varying.iter().take(MAX_VARYING) {
            line(&mut text, format_args!("  {shape}: {}", parts.join(", ")));
        }
        if report.varying.len() > MAX_VARYING {
            line(&mut text, format_args!("  and in {} more paths", report.varying.len() - MAX_VARYING));
        }
    }
    let [old, new] = report.mean_ms;
    text.push('\n');
    line(&mut text, format_args!("Mean time of an answer: old {old:.1} ms, new {new:.1} ms."));
    text
}

fn add_cause(cause: &CauseReport, text: &mut String) {
    text.push('\n');
    line(text, format_args!("{} [{}]", cause.title, cause.cause));
    line(text, format_args!("  {}", cause.meaning));
    for one in &cause.differences {
        add_subject(one, text);
    }
    if cause.unlisted > 0 {
        line(text, format_args!("  and {} more", cause.unlisted));
    }
}

fn add_subject(one: &SubjectReport, text: &mut String) {
    let SubjectReport { subject, requests, shapes, unlisted_shapes, old, new, other_values, examples } = one;
    let title = if subject.is_empty() { "all" } else { subject };
    line(text, format_args!("  {title}: {}", counted(*requests)));
    if !(old.is_empty() && new.is_empty()) {
        let value =
            |value: &str| if value.is_empty() { "(nothing)".to_owned() } else { value.escape_debug().to_string() };
        line(text, format_args!("    old: {}", value(old)));
        line(text, format_args!("    new: {}", value(new)));
        if *other_values {
            line(text, format_args!("    These are of one request; others have other values."));
        }
    }
    for shape in shapes {
        line(text, format_args!("    {} in {}", shape.requests, shape.shape));
    }
    if *unlisted_shapes > 0 {
        line(text, format_args!("    and in {unlisted_shapes} more paths"));
    }
    for example in examples {
        let route = example.route.as_ref().map_or(String::new(), |route| format!(" ({route})"));
        line(text, format_args!("    as {}{route}", example.request));
    }
}

/// Adds a line. All texts go this way, so that none of a log or an answer can steer the terminal.
fn line(text: &mut String, told: Arguments<'_>) {
    text.push_str(&visible(&told.to_string()));
    text.push('\n');
}
