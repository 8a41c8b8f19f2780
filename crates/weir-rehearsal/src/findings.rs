//! What a rehearsal has found so far: the differences by shape of request, and what varies in the answers of the old gateway itself.
//!
//! A difference counts at the end only if the old gateway never had it with itself in the same shape, so that what is found to vary
//! late also clears what was found early. All collections have limits: a log of any size needs the same memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::cause::{DifferenceCause, DifferenceKey};
use crate::compare::AnswerDifference;

/// The most shapes that are told apart; the rest have one in common.
const MAX_SHAPES: usize = 10_000;
/// The most kinds of differences that are kept for a shape.
const MAX_GROUPS: usize = 256;
/// The most combinations of differences that are counted for a shape.
const MAX_COMBINATIONS: usize = 64;
/// The requests that are kept as examples of a difference.
const MAX_EXAMPLES: usize = 3;
/// The most texts about lines that cannot be read.
const MAX_PROBLEMS: usize = 3;
/// The shape of what is beyond the limit.
const OTHER_SHAPES: &str = "other paths";

/// What became of the lines of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RehearsalTotals {
    pub lines: u64,
    /// Lines of an unknown format.
    pub unreadable: u64,
    /// Lines that are not about a request that can be sent, such as one that could not be parsed.
    pub without_request: u64,
    /// Requests whose method is not to be sent.
    pub other_methods: u64,
    /// Requests like one that was sent before.
    pub repeated: u64,
    /// Requests that are not in the sample.
    pub not_sampled: u64,
    /// Requests of the log that were sent.
    pub sent: u64,
    pub compared: u64,
    /// Requests that the old gateway did not answer.
    pub unanswered_by_old: u64,
    /// Requests that the old gateway answered with another status the second time.
    pub unsteady_in_old: u64,
}

/// A request in which a difference was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleRequest {
    pub method: String,
    pub host: String,
    pub target: String,
    /// `Name: value`.
    pub fields: Vec<String>,
    pub client: Option<std::net::IpAddr>,
}

#[derive(Clone, Debug)]
pub(crate) struct DifferenceGroup {
    pub(crate) count: u64,
    /// How often it was there again when the request was repeated.
    confirmed: u32,
    pub(crate) old: String,
    pub(crate) new: String,
    pub(crate) examples: Vec<ExampleRequest>,
}

#[derive(Debug, Default)]
pub(crate) struct ShapeFindings {
    /// What differs between two answers of the old gateway.
    pub(crate) varying: BTreeSet<DifferenceKey>,
    groups: BTreeMap<DifferenceKey, DifferenceGroup>,
    /// How many requests have a set of differences.
    combinations: BTreeMap<Vec<DifferenceKey>, u64>,
    /// Requests with differences whose set is beyond the limit.
    others: u64,
}

impl ShapeFindings {
    /// The differences that do not vary in the old gateway.
    pub(crate) fn real_groups(&self) -> impl Iterator<Item = (&DifferenceKey, &DifferenceGroup)> {
        self.groups.iter().filter(|(key, _)| !varies(&self.varying, key))
    }

    pub(crate) fn differing(&self) -> u64 {
        let is_real = |keys: &[DifferenceKey]| keys.iter().any(|key| !varies(&self.varying, key));
        let counted: u64 = self.combinations.iter().filter(|(keys, _)| is_real(keys)).map(|(_, count)| count).sum();
        counted + if self.real_groups().next().is_some() { self.others } else { 0 }
    }
}

/// Whether a difference is one that answers of the old gateway have among each other.
pub(crate) fn varies(varying: &BTreeSet<DifferenceKey>, key: &DifferenceKey) -> bool {
    if varying.contains(key) {
        return true;
    }
    let (cause, subject) = key;
    match cause {
        // A list whose length varies has members that are there or not.
        DifferenceCause::BodyMembers => subject.split_once("[]").is_some_and(|_| {
            let lists = subject.match_indices("[]").map(|(at, _)| &subject[..at]);
            lists.into_iter().any(|list| varying.contains(&(DifferenceCause::BodyMembers, format!("{list} length"))))
        }),
        _ => false,
    }
}

#[derive(Debug, Default)]
pub struct RehearsalFindings {
    pub totals: RehearsalTotals,
    /// Why lines could not be read, with their numbers.
    pub problems: Vec<String>,
    /// Why the rehearsal ended before the log.
    pub stopped: Option<String>,
    pub(crate) shapes: BTreeMap<String, ShapeFindings>,
    /// The time that all compared answers took, in microseconds: of the old and of the new gateway.
    pub(crate) time_us: [u64; 2],
}

impl RehearsalFindings {
    pub(crate) fn add_problem(&mut self, number: u64, problem: &str) {
        self.totals.unreadable += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("line {number} {problem}"));
        }
    }

    fn shape(&mut self, shape: &str) -> &mut ShapeFindings {
        let known = self.shapes.contains_key(shape) || self.shapes.len() < MAX_SHAPES;
        self.shapes.entry(if known { shape } else { OTHER_SHAPES }.to_owned()).or_default()
    }

    /// Learns what varies in the old gateway's answers.
    pub(crate) fn learn(&mut self, shape: &str, varying: impl IntoIterator<Item = DifferenceKey>) {
        let shape = self.shape(shape);
        for key in varying {
            if shape.varying.len() < MAX_GROUPS {
                shape.varying.insert(key);
            }
        }
    }

    /// Whether a difference is known to vary.
    pub(crate) fn is_known_to_vary(&self, shape: &str, key: &DifferenceKey) -> bool {
        self.shapes.get(shape).is_some_and(|shape| varies(&shape.varying, key))
    }

    /// Whether a difference was confirmed `times` times already.
    pub(crate) fn is_confirmed(&self, shape: &str, key: &DifferenceKey, times: u32) -> bool {
        self.shapes.get(shape).and_then(|shape| shape.groups.get(key)).is_some_and(|group| group.confirmed >= times)
    }

    pub(crate) fn add(
        &mut self,
        shape: &str,
        found: Vec<AnswerDifference>,
        confirmed: bool,
        example: impl Fn() -> ExampleRequest,
    ) {
        if found.is_empty() {
            return;
        }
        let shape = self.shape(shape);
        let keys: Vec<DifferenceKey> = found.iter().map(|one| one.key.clone()).collect();
        let known = shape.combinations.contains_key(&keys) || shape.combinations.len() < MAX_COMBINATIONS;
        *if known { shape.combinations.entry(keys).or_default() } else { &mut shape.others } += 1;
        for AnswerDifference { key, old, new } in found {
            if !shape.groups.contains_key(&key) && shape.groups.len() >= MAX_GROUPS {
                continue;
            }
            let empty = DifferenceGroup { count: 0, confirmed: 0, old, new, examples: Vec::new() };
            let group = shape.groups.entry(key).or_insert(empty);
            group.count += 1;
            group.confirmed += u32::from(confirmed);
            if group.examples.len() < MAX_EXAMPLES {
                group.examples.push(example());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(cause: DifferenceCause, subject: &str) -> AnswerDifference {
        AnswerDifference { key: (cause, subject.to_owned()), old: "a".to_owned(), new: "b".to_owned() }
    }

    fn example() -> ExampleRequest {
        ExampleRequest {
            method: "GET".to_owned(),
            host: "a".to_owned(),
            target: "/".to_owned(),
            fields: Vec::new(),
            client: None,
        }
    }

    #[test]
    fn varying_parts_are_cleared_also_if_they_are_learnt_late() {
        let mut findings = RehearsalFindings::default();
        let found =
            vec![difference(DifferenceCause::FieldChanged, "x-id"), difference(DifferenceCause::FieldMissing, "x-a")];
        findings.add("s", found, true, example);
        findings.add("s", vec![difference(DifferenceCause::FieldChanged, "x-id")], true, example);
        assert_eq!(findings.shapes["s"].differing(), 2);
        findings.learn("s", [(DifferenceCause::FieldChanged, "x-id".to_owned())]);
        let shape = &findings.shapes["s"];
        assert_eq!(shape.differing(), 1);
        assert_eq!(shape.real_groups().map(|(key, _)| key.1.as_str()).collect::<Vec<_>>(), ["x-a"]);
        assert!(!findings.is_known_to_vary("other", &(DifferenceCause::FieldChanged, "x-id".to_owned())));
    }

    #[test]
    fn lists_of_varying_length_have_varying_members() {
        let varying = BTreeSet::from([(DifferenceCause::BodyMembers, "$.items length".to_owned())]);
        assert!(varies(&varying, &(DifferenceCause::BodyMembers, "$.items[].name missing".to_owned())));
        assert!(!varies(&varying, &(DifferenceCause::BodyMembers, "$.name missing".to_owned())));
        assert!(!varies(&varying, &(DifferenceCause::BodyValues, "$.items[].name".to_owned())));
    }

    #[test]
    fn memory_has_limits() {
        let mut findings = RehearsalFindings::default();
        for number in 0..2 * MAX_SHAPES {
            findings.add(&format!("{number}"), vec![difference(DifferenceCause::Status, "1")], true, example);
        }
        assert_eq!(findings.shapes.len(), MAX_SHAPES + 1);
        assert_eq!(findings.shapes[OTHER_SHAPES].differing(), MAX_SHAPES as u64);
        for number in 0..1000 {
            findings.add("0", vec![difference(DifferenceCause::BodyValues, &format!("{number}"))], true, example);
        }
        let shape = &findings.shapes["0"];
        assert_eq!(
            (shape.groups.len(), shape.combinations.len(), shape.differing()),
            (MAX_GROUPS, MAX_COMBINATIONS, 1001)
        );
    }
}
