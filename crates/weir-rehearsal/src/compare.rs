//! Compares two answers to one request: a list of differences, each with what it concerns.

mod body;
mod cookies;
mod fields;
mod json;
mod location;
mod text;

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::answer::{AnswerAbsence, AnswerOutcome, RehearsedAnswer};
use crate::cause::{DifferenceCause, DifferenceKey};
use crate::secrets::masked;

/// The most differences that are looked for in two answers, also those that vary and are subtracted then.
const MAX_FOUND: usize = 1024;
/// The most bytes of what differs, such as the name of a field. Of longer ones a hash tells the rest.
const MAX_SUBJECT_BYTES: usize = 160;
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
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DifferenceList {
    pub(crate) found: Vec<AnswerDifference>,
    /// Differences beyond the limit.
    pub(crate) uncounted: u64,
    /// Whether the contents could not be compared.
    pub(crate) is_body_uncompared: bool,
}

impl DifferenceList {
    fn has_room(&mut self) -> bool {
        let has_room = self.found.len() < MAX_FOUND;
        self.uncounted += u64::from(!has_room);
        has_room
    }

    fn add(&mut self, cause: DifferenceCause, subject: impl AsRef<str>, old: impl AsRef<str>, new: impl AsRef<str>) {
        if self.has_room() {
            let (old, new) = (shortened(old.as_ref()), shortened(new.as_ref()));
            self.found.push(AnswerDifference { key: (cause, short_subject(subject.as_ref())), old, new });
        }
    }
}

fn short_subject(text: &str) -> String {
    if text.len() <= MAX_SUBJECT_BYTES {
        return text.to_owned();
    }
    let (begin, rest) = text.split_at(text.floor_char_boundary(MAX_SUBJECT_BYTES));
    let mut hasher = DefaultHasher::new();
    rest.hash(&mut hasher);
    format!("{begin}… ({:08x})", hasher.finish() as u32)
}

fn shortened(text: &str) -> String {
    match text.len() {
        0..=MAX_VALUE_BYTES => text.to_owned(),
        _ => format!("{}…", &text[..text.floor_char_boundary(MAX_VALUE_BYTES)]),
    }
}

/// What differs between the answers of two gateways, or of one at two times, to a request for `target`. An old gateway without an
/// answer cannot be compared with.
pub(crate) fn differences(old: ComparedAnswer, new: ComparedAnswer, target: &str, max_body: usize) -> DifferenceList {
    let mut list = DifferenceList::default();
    let Ok(before) = old.outcome else { return list };
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
                return list;
            }
            body::compare([before, after], [old.names, new.names], max_body, &mut list);
        }
    }
    list
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
        Some(place) => format!("{} to {}", answer.status, masked(place)),
        None => answer.status.to_string(),
    };
    list.add(cause, subject, told(old), told(new));
}

#[cfg(test)]
mod tests;
