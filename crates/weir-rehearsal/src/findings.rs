//! What a rehearsal has found so far: the differences by shape of request, and what varies in the answers of the old gateway itself.
//!
//! A difference counts at the end only if the old gateway never had it with itself in the same shape, so that what is found to vary
//! late also clears what was found early. All collections have limits: a log of any size needs the same memory.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::cause::{DifferenceCause, DifferenceKey};
use crate::compare::AnswerDifference;

/// The most shapes that are told apart; the rest have one in common.
const MAX_SHAPES: usize = 10_000;
/// The most kinds of differences that are kept for a shape.
const MAX_GROUPS: usize = 256;
/// The most combinations of differences that are counted for a shape.
const MAX_COMBINATIONS: usize = 64;
/// The most parts that are remembered to vary in a shape.
const MAX_VARYING: usize = 1024;
/// The most differences that are kept of two answers, without those that vary.
const MAX_DIFFERENCES: usize = 32;
/// The most bytes of all differences and examples that are kept. What comes then is counted alone.
const MAX_KEPT_BYTES: usize = 128 << 20;
/// The most bytes of the target of an example, and of all its fields. Longer ones are shortened.
const MAX_EXAMPLE_BYTES: usize = 4096;
/// What a difference needs besides its texts, at most.
const GROUP_BYTES: usize = 256;
/// The requests that are kept as examples of a difference.
const MAX_EXAMPLES: usize = 3;
/// The most texts about lines that cannot be read and requests that were not answered.
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
    /// Requests that the log shows as refused.
    pub refused: u64,
    /// Requests whose path is not to be sent.
    pub excluded: u64,
    /// Requests with a secret in their query.
    pub with_secrets: u64,
    /// Requests that were answered with a part of the content, of which the log does not tell which.
    pub partial: u64,
    /// Requests for a host of which the old gateway has no certificate.
    pub foreign_hosts: u64,
    /// Compared requests whose contents could not be compared.
    pub bodies_not_compared: u64,
    /// Differences beyond what is kept.
    pub differences_not_kept: u64,
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
    /// Whether a later request had other values.
    pub(crate) has_other_values: bool,
    pub(crate) examples: Vec<ExampleRequest>,
}

impl DifferenceGroup {
    fn new(old: String, new: String) -> DifferenceGroup {
        DifferenceGroup { count: 0, confirmed: 0, old, new, has_other_values: false, examples: Vec::new() }
    }
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
        // Without a group there was no room to keep any.
        counted + if self.groups.is_empty() || self.real_groups().next().is_some() { self.others } else { 0 }
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
    /// Why lines could not be read, with their numbers, and why the old gateway did not answer.
    pub problems: Vec<String>,
    /// Why the rehearsal ended before the log.
    pub stopped: Option<String>,
    pub(crate) shapes: BTreeMap<String, ShapeFindings>,
    /// The time that all compared answers took, in microseconds: of the old and of the new gateway.
    pub(crate) time_us: [u64; 2],
    /// The bytes of all differences and examples.
    pub(crate) kept_bytes: usize,
}

impl RehearsalFindings {
    pub(crate) fn add_problem(&mut self, number: u64, problem: &str) {
        self.totals.unreadable += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("line {number} {problem}"));
        }
    }

    /// Tells why the old gateway did not answer, for the first such requests.
    pub(crate) fn add_unanswered(&mut self, host: &str, reason: &str) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("the old gateway did not answer for {host}: {reason}"));
        }
    }

    fn has_room_for(&self, shape: &str) -> bool {
        self.shapes.contains_key(shape) || self.shapes.len() < MAX_SHAPES
    }

    /// The name under which findings of a shape are kept.
    fn kept_name<'s>(&self, shape: &'s str) -> &'s str {
        if self.has_room_for(shape) { shape } else { OTHER_SHAPES }
    }

    /// Whether a request of the shape was compared.
    pub(crate) fn was_compared(&self, shape: &str) -> bool {
        self.shapes.contains_key(shape)
    }

    /// Learns what varies in the old gateway's answers. What varies in one of the shapes that are not told apart says nothing about
    /// the others.
    pub(crate) fn learn(&mut self, shape: &str, varying: impl IntoIterator<Item = DifferenceKey>) {
        if !self.has_room_for(shape) {
            return;
        }
        let of_shape = &mut self.shapes.entry(shape.to_owned()).or_default().varying;
        for key in varying {
            let bytes = key.1.len() + GROUP_BYTES;
            if of_shape.len() < MAX_VARYING && self.kept_bytes + bytes <= MAX_KEPT_BYTES && of_shape.insert(key) {
                self.kept_bytes += bytes;
            }
        }
    }

    /// Whether a difference is known to vary.
    pub(crate) fn is_known_to_vary(&self, shape: &str, key: &DifferenceKey) -> bool {
        self.shapes.get(self.kept_name(shape)).is_some_and(|shape| varies(&shape.varying, key))
    }

    /// Whether a difference was confirmed `times` times already.
    pub(crate) fn is_confirmed(&self, shape: &str, key: &DifferenceKey, times: u32) -> bool {
        let group = self.shapes.get(self.kept_name(shape)).and_then(|shape| shape.groups.get(key));
        group.is_some_and(|group| group.confirmed >= times)
    }

    /// Adds the differences of one request.
    pub(crate) fn add(
        &mut self,
        shape: &str,
        mut found: Vec<AnswerDifference>,
        confirmed: bool,
        example: impl Fn() -> ExampleRequest,
    ) {
        if found.is_empty() {
            return;
        }
        self.totals.differences_not_kept += found.len().saturating_sub(MAX_DIFFERENCES) as u64;
        found.truncate(MAX_DIFFERENCES);
        let mut kept_bytes = self.kept_bytes;
        let shape = self.shapes.entry(self.kept_name(shape).to_owned()).or_default();
        let keys: Vec<DifferenceKey> = found.iter().map(|one| one.key.clone()).collect();
        let bytes: usize = keys.iter().map(|key| key.1.len() + GROUP_BYTES).sum();
        if shape.combinations.contains_key(&keys) {
            *shape.combinations.entry(keys).or_default() += 1;
        } else if shape.combinations.len() < MAX_COMBINATIONS && kept_bytes + bytes <= MAX_KEPT_BYTES {
            kept_bytes += bytes;
            shape.combinations.insert(keys, 1);
        } else {
            shape.others += 1;
        }
        for AnswerDifference { key, old, new } in found {
            let bytes = key.1.len() + old.len() + new.len() + GROUP_BYTES;
            let has_room = shape.groups.len() < MAX_GROUPS && kept_bytes + bytes <= MAX_KEPT_BYTES;
            if !shape.groups.contains_key(&key) {
                if !has_room {
                    self.totals.differences_not_kept += 1;
                    continue;
                }
                kept_bytes += bytes;
            }
            let group = match shape.groups.entry(key) {
                Entry::Occupied(group) => {
                    let group = group.into_mut();
                    group.has_other_values |= group.old != old || group.new != new;
                    group
                }
                Entry::Vacant(place) => place.insert(DifferenceGroup::new(old, new)),
            };
            group.count += 1;
            group.confirmed += u32::from(confirmed);
            if group.examples.len() < MAX_EXAMPLES {
                let example = example().shortened();
                if kept_bytes + example.bytes() <= MAX_KEPT_BYTES {
                    kept_bytes += example.bytes();
                    group.examples.push(example);
                }
            }
        }
        self.kept_bytes = kept_bytes;
    }
}

impl ExampleRequest {
    fn bytes(&self) -> usize {
        let fields: usize = self.fields.iter().map(|field| field.len() + GROUP_BYTES).sum();
        self.host.len() + self.target.len() + fields + GROUP_BYTES
    }

    fn shortened(mut self) -> ExampleRequest {
        if self.target.len() > MAX_EXAMPLE_BYTES {
            self.target.truncate(self.target.floor_char_boundary(MAX_EXAMPLE_BYTES));
        }
        let mut room = MAX_EXAMPLE_BYTES;
        self.fields.retain(|field| {
            let fits = field.len() <= room;
            room -= if fits { field.len() } else { 0 };
            fits
        });
        self
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

    #[test]
    fn memory_has_a_limit_in_bytes_and_every_request_is_counted() {
        let mut findings = RehearsalFindings { kept_bytes: MAX_KEPT_BYTES - 1000, ..RehearsalFindings::default() };
        let large = || ExampleRequest { target: "/".repeat(1 << 20), fields: vec!["a".repeat(1 << 20)], ..example() };
        for number in 0..100 {
            findings.add(&format!("{number}"), vec![difference(DifferenceCause::Status, "1")], true, large);
        }
        assert!(findings.kept_bytes <= MAX_KEPT_BYTES);
        assert_eq!(findings.shapes.values().map(ShapeFindings::differing).sum::<u64>(), 100);
        let short = large().shortened();
        assert!(short.bytes() < 2 * MAX_EXAMPLE_BYTES && short.fields.is_empty());
    }

    #[test]
    fn shapes_that_are_not_told_apart_learn_nothing_and_are_confirmed_together() {
        let key = (DifferenceCause::Status, "1".to_owned());
        let mut findings = RehearsalFindings::default();
        for number in 0..MAX_SHAPES {
            findings.learn(&format!("{number}"), []);
        }
        findings.learn("beyond", [key.clone()]);
        assert!(!findings.is_known_to_vary("beyond", &key) && !findings.is_known_to_vary("other", &key));
        findings.add("beyond", vec![difference(DifferenceCause::Status, "1")], true, example);
        assert!(findings.is_confirmed("other", &key, 1));
    }

    #[test]
    fn differences_beyond_what_is_kept_are_counted() {
        let mut findings = RehearsalFindings::default();
        let all = (0..40).map(|number| difference(DifferenceCause::BodyValues, &number.to_string())).collect();
        findings.add("s", all, true, example);
        assert_eq!((findings.shapes["s"].groups.len(), findings.totals.differences_not_kept), (MAX_DIFFERENCES, 8));
    }
}
