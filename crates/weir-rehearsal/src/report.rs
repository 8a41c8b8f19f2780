//! The report of a rehearsal: on the terminal, as JSON, and as a page.

mod html;
mod text;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::cause::{CauseWords, DifferenceCause, DifferenceKey};
use crate::findings::{ExampleRequest, RehearsalFindings, RehearsalTotals};
use crate::secrets::masked;

/// The most kinds of differences of a cause that are told.
const MAX_SUBJECTS: usize = 50;
/// The most shapes that are told of a difference.
const MAX_SHAPES_TOLD: usize = 5;
/// The most examples that are told of a difference.
const MAX_EXAMPLES_TOLD: usize = 3;
/// The most shapes with what varies in them.
const MAX_VARYING_TOLD: usize = 100;

/// The share of the sent requests that must have been compared before the answers count as alike.
const MIN_COMPARED_PERCENT: u64 = 90;

#[derive(Debug, Serialize)]
pub struct RehearsalReport {
    pub totals: RehearsalTotals,
    /// Compared requests with at least one difference.
    pub differing: u64,
    /// Why the rehearsal ended before the log.
    pub stopped: Option<String>,
    pub problems: Vec<String>,
    pub causes: Vec<CauseReport>,
    /// What varies in the answers of the old gateway, by the shape of the request: it was not compared.
    pub varying: BTreeMap<String, Vec<String>>,
    /// The mean time of an answer of the old and of the new gateway.
    pub mean_ms: [f64; 2],
}

#[derive(Debug, Serialize)]
pub struct CauseReport {
    pub cause: &'static str,
    pub title: &'static str,
    pub meaning: &'static str,
    pub differences: Vec<SubjectReport>,
    /// Kinds of differences that are not listed.
    pub unlisted: usize,
}

/// One difference, wherever it occurs.
#[derive(Debug, Serialize)]
pub struct SubjectReport {
    /// What differs, such as the name of a field; may be empty.
    pub subject: String,
    pub requests: u64,
    /// The shapes of these requests, those with the most requests first.
    pub shapes: Vec<ShapeCount>,
    pub unlisted_shapes: usize,
    /// Values of the first request.
    pub old: String,
    pub new: String,
    /// Whether other requests have other values.
    pub other_values: bool,
    pub examples: Vec<ExampleReport>,
}

#[derive(Debug, Serialize)]
pub struct ShapeCount {
    pub shape: String,
    pub requests: u64,
}

#[derive(Debug, Serialize)]
pub struct ExampleReport {
    /// Method, host and target, without secrets.
    pub request: String,
    /// The route of the new gateway, if it is known.
    pub route: Option<String>,
}

/// What is told of the route that a request takes in the new gateway.
pub type RouteOf<'a> = &'a mut dyn FnMut(&ExampleRequest) -> Option<String>;

impl RehearsalReport {
    pub fn of(findings: RehearsalFindings, route_of: RouteOf) -> RehearsalReport {
        let mut subjects: BTreeMap<&DifferenceKey, SubjectReport> = BTreeMap::new();
        for (shape, found) in &findings.shapes {
            for (key, group) in found.real_groups() {
                let subject = subjects.entry(key).or_insert_with(|| SubjectReport {
                    subject: key.1.clone(),
                    requests: 0,
                    shapes: Vec::new(),
                    unlisted_shapes: 0,
                    old: group.old.clone(),
                    new: group.new.clone(),
                    other_values: false,
                    examples: Vec::new(),
                });
                subject.other_values |=
                    group.has_other_values || (&subject.old, &subject.new) != (&group.old, &group.new);
                subject.requests += group.count;
                subject.shapes.push(ShapeCount { shape: shape.clone(), requests: group.count });
                let room = MAX_EXAMPLES_TOLD - subject.examples.len();
                // One of each shape tells more than several of one.
                let share = if subject.shapes.len() == 1 { room.min(2) } else { room.min(1) };
                subject.examples.extend(group.examples.iter().take(share).map(|example| ExampleReport {
                    request: format!("{} {}{}", example.method, example.host, masked(&example.target)),
                    route: route_of(example),
                }));
            }
        }
        let mut causes: BTreeMap<DifferenceCause, Vec<SubjectReport>> = BTreeMap::new();
        for ((cause, _), mut subject) in subjects {
            subject.shapes.sort_by_key(|one| std::cmp::Reverse(one.requests));
            subject.unlisted_shapes = subject.shapes.len().saturating_sub(MAX_SHAPES_TOLD);
            subject.shapes.truncate(MAX_SHAPES_TOLD);
            causes.entry(*cause).or_default().push(subject);
        }
        let compared = findings.totals.compared.max(1) as f64;
        RehearsalReport {
            differing: findings.shapes.values().map(|shape| shape.differing()).sum(),
            causes: causes.into_iter().map(|(cause, subjects)| cause_report(cause, subjects)).collect(),
            varying: varying(&findings),
            mean_ms: findings.time_us.map(|time| time as f64 / 1000.0 / compared),
            totals: findings.totals,
            stopped: findings.stopped,
            problems: findings.problems,
        }
    }

    /// Whether more than this share of the compared requests is answered differently.
    pub fn differs_by_more_than(&self, percent: f64) -> bool {
        self.differing as f64 * 100.0 > percent * self.totals.compared as f64
    }

    /// Whether so few of the requests that were sent were compared that equal answers say little.
    pub fn compares_too_few(&self) -> bool {
        self.totals.compared * 100 < self.totals.sent * MIN_COMPARED_PERCENT
    }

    /// The report for a terminal.
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// A page that needs nothing else. `style` is CSS of the lab's reports, and `compared` says what was compared.
    pub fn html(&self, style: &str, compared: &[(&str, String)]) -> String {
        html::html(self, style, compared)
    }

    /// The conclusion in one sentence.
    fn conclusion(&self) -> String {
        let compared = self.totals.compared;
        match self.differing {
            _ if compared == 0 => "No request was compared.".to_owned(),
            0 if self.compares_too_few() => format!(
                "Both gateways answered all {compared} compared requests alike, but only {compared} of {} were compared: less than \
                 {MIN_COMPARED_PERCENT} %.",
                self.totals.sent
            ),
            0 => format!("Both gateways answered all {compared} compared requests alike."),
            differing => format!("The gateways answered {differing} of {compared} compared requests differently."),
        }
    }

    /// What became of the lines of the log, in words, without what did not happen.
    fn account(&self) -> Vec<String> {
        let totals = &self.totals;
        let told = [
            (totals.lines, "lines read"),
            (totals.sent, "requests sent"),
            (totals.repeated, "like an earlier request"),
            (totals.other_methods, "with a method that is not sent (see `--methods`)"),
            (totals.not_sampled, "not in the sample"),
            (totals.without_request, "without a request that can be sent"),
            (totals.unreadable, "of an unknown format"),
            (totals.refused, "refused when they were logged (see `--with-refused`)"),
            (totals.with_secrets, "with a secret in the query (see `--with-credentials`)"),
            (totals.excluded, "excluded"),
            (totals.partial, "for a part of which the range is not known"),
            (totals.unanswered_by_old, "not answered by the old gateway"),
            (totals.foreign_hosts, "for a host with which the old gateway has no TLS handshake"),
            (totals.unsteady_in_old, "answered by the old gateway with two statuses, or not each time"),
            (
                totals.bodies_not_compared,
                "compared without their contents (not decodable, too long, or a stream of events)",
            ),
            (totals.differences_not_kept, "differences that were too many to keep"),
        ];
        told.iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}")).collect()
    }
}

/// Whether a character changes what a terminal or a page shows, without being shown: control characters, and marks of the direction of
/// writing.
pub fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A text of a log or an answer, in which hidden characters are written as `\u{…}`.
fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let told = |char: char| if is_hidden(char) { char.escape_unicode().to_string() } else { char.to_string() };
    Cow::Owned(text.chars().map(told).collect())
}

fn counted(requests: u64) -> String {
    format!("{requests} {}", if requests == 1 { "request" } else { "requests" })
}

fn cause_report(cause: DifferenceCause, mut differences: Vec<SubjectReport>) -> CauseReport {
    differences.sort_by_key(|one| std::cmp::Reverse(one.requests));
    let unlisted = differences.len().saturating_sub(MAX_SUBJECTS);
    differences.truncate(MAX_SUBJECTS);
    let CauseWords { name, title, meaning } = cause.words();
    CauseReport { cause: name, title, meaning, differences, unlisted }
}

fn varying(findings: &RehearsalFindings) -> BTreeMap<String, Vec<String>> {
    let told = |(cause, subject): &DifferenceKey| match subject.as_str() {
        "" => cause.name().to_owned(),
        subject => format!("{} {subject}", cause.name()),
    };
    let of_shape = |keys: &BTreeSet<DifferenceKey>| keys.iter().map(told).collect();
    let shapes = findings.shapes.iter().filter(|(_, found)| !found.varying.is_empty()).take(MAX_VARYING_TOLD);
    shapes.map(|(shape, found)| (shape.clone(), of_shape(&found.varying))).collect()
}

#[cfg(test)]
mod tests;
