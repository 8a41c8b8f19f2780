//! Compares two answers to one request: a list of differences, each with what it concerns.

mod body;
mod cookies;
mod fields;
mod json;
mod location;
mod text;

use crate::answer::{AnswerAbsence, AnswerOutcome, RehearsedAnswer};
use crate::cause::{DifferenceCause, DifferenceKey};

/// The most differences that are told of two answers.
const MAX_DIFFERENCES: usize = 32;
/// The most bytes of a value that are kept for the report.
const MAX_VALUE_BYTES: usize = 120;

/// What one gateway is called by its answers: it is not the same for the other, and no difference.
#[derive(Clone, Debug)]
pub(crate) struct OwnNames {
    pub(crate) scheme: &'static str,
    /// Host and port of its address.
    pub(crate) authority: String,
    pub(crate) port: u16,
    /// The value of `Host` that it was sent.
    pub(crate) host: String,
}

/// One answer, and the names of the gateway that gave it.
#[derive(Clone, Copy)]
pub(crate) struct ComparedAnswer<'a> {
    pub(crate) outcome: &'a AnswerOutcome,
    pub(crate) names: &'a OwnNames,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnswerDifference {
    pub(crate) key: DifferenceKey,
    pub(crate) old: String,
    pub(crate) new: String,
}

/// The differences found so far.
#[derive(Default)]
struct DifferenceList(Vec<AnswerDifference>);

impl DifferenceList {
    fn add(&mut self, cause: DifferenceCause, subject: impl Into<String>, old: impl AsRef<str>, new: impl AsRef<str>) {
        if self.0.len() < MAX_DIFFERENCES {
            let (old, new) = (shortened(old.as_ref()), shortened(new.as_ref()));
            self.0.push(AnswerDifference { key: (cause, subject.into()), old, new });
        }
    }
}

fn shortened(text: &str) -> String {
    match text.len() {
        0..=MAX_VALUE_BYTES => text.to_owned(),
        _ => format!("{}…", &text[..text.floor_char_boundary(MAX_VALUE_BYTES)]),
    }
}

/// What differs between the answers of two gateways, or of one at two times, to a request for `target`. An old gateway without an
/// answer cannot be compared with.
pub(crate) fn differences(
    old: ComparedAnswer,
    new: ComparedAnswer,
    target: &str,
    max_body: usize,
) -> Vec<AnswerDifference> {
    let mut list = DifferenceList::default();
    let Ok(before) = old.outcome else { return list.0 };
    match new.outcome {
        Err(missing) => {
            let cause = match missing {
                AnswerAbsence::Connect(_) => DifferenceCause::Connect,
                AnswerAbsence::Tls(_) => DifferenceCause::Tls,
                AnswerAbsence::TimedOut(_) => DifferenceCause::TimedOut,
                AnswerAbsence::Broken(_) => DifferenceCause::Closed,
            };
            list.add(cause, "", before.status.to_string(), missing.reason());
        }
        // The rest follows from the status.
        Ok(after) if before.status != after.status => {
            statuses([before, after], [old.names, new.names], target, &mut list)
        }
        Ok(after) => {
            fields::compare([before, after], [old.names, new.names], &mut list);
            // The text beside a redirect is for clients that cannot follow it, and each program has its own.
            if is_redirect(before) && is_redirect(after) {
                return list.0;
            }
            body::compare([before, after], [old.names, new.names], max_body, &mut list);
        }
    }
    list.0
}

fn is_redirect(answer: &RehearsedAnswer) -> bool {
    (300..400).contains(&answer.status) && answer.value("location").is_some()
}

fn statuses(answers: [&RehearsedAnswer; 2], names: [&OwnNames; 2], target: &str, list: &mut DifferenceList) {
    let [old, new] = answers;
    let subject = format!("{} -> {}", old.status, new.status);
    let (path, _) = target.split_once('?').unwrap_or((target, ""));
    let adds_slash = |index: usize| {
        let place = location::of(answers[index], names[index]);
        place.is_some_and(|place| location::is_apart_by_slash(place.split('?').next().unwrap_or_default(), path))
    };
    let cause = if adds_slash(0) != adds_slash(1) { DifferenceCause::TrailingSlash } else { DifferenceCause::Status };
    let told = |answer: &RehearsedAnswer| match answer.value("location") {
        Some(place) => format!("{} to {place}", answer.status),
        None => answer.status.to_string(),
    };
    list.add(cause, subject, told(old), told(new));
}

#[cfg(test)]
mod tests;
