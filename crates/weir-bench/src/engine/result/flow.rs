//! What came of checks and steps.

use serde::{Deserialize, Serialize};

use crate::engine::histogram::LatencyHistogram;

/// The checks of answers and the passes through the requests, of exchanges that belong to the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTally {
    /// Each check of each request, in the order of the plan. Values that are taken and redirects that are followed have one, too.
    pub checks: Vec<AnswerCheckTally>,
    /// Of plans in which each client sends several requests in sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes: Option<PassTally>,
}

/// What came of one check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerCheckTally {
    /// The label of the request.
    pub request: String,
    /// The check in words.
    pub check: String,
    pub passed: u64,
    pub failed: u64,
    /// What one of the answers that failed it had instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<String>,
}

/// Passes of clients through all requests of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassTally {
    pub completed: u64,
    /// Passes that began again because a value for the other requests was missing, or in which a request had no answer.
    pub abandoned: u64,
    /// From when the first request was due to the answer to the last one, ns.
    pub time: LatencyHistogram,
}

impl FlowTally {
    /// Counts equal checks of all requests together.
    pub fn join_requests(&mut self, label: &str) {
        for mut check in std::mem::take(&mut self.checks) {
            label.clone_into(&mut check.request);
            self.add(&Self { checks: vec![check], passes: None });
        }
    }

    pub fn add(&mut self, other: &Self) {
        let is_same = |ours: &AnswerCheckTally, theirs: &AnswerCheckTally| {
            ours.request == theirs.request && ours.check == theirs.check
        };
        // Parts of one run have the same checks in the same order; two requests of a run may have the same label.
        if self.checks.len() == other.checks.len()
            && self.checks.iter().zip(&other.checks).all(|(ours, theirs)| is_same(ours, theirs))
        {
            self.checks.iter_mut().zip(&other.checks).for_each(|(ours, theirs)| ours.add(theirs));
            return self.add_passes(other);
        }
        for theirs in &other.checks {
            match self.checks.iter_mut().find(|ours| is_same(ours, theirs)) {
                Some(ours) => ours.add(theirs),
                None => self.checks.push(theirs.clone()),
            }
        }
        self.add_passes(other);
    }

    fn add_passes(&mut self, other: &Self) {
        if let Some(theirs) = &other.passes {
            let ours = self.passes.get_or_insert_default();
            ours.completed += theirs.completed;
            ours.abandoned += theirs.abandoned;
            ours.time.add(&theirs.time);
        }
    }
}

impl AnswerCheckTally {
    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        if self.example.is_none() {
            self.example.clone_from(&other.example);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(failed: &[u64]) -> FlowTally {
        let check = |failed: &u64| AnswerCheckTally {
            request: "http://a/".to_owned(),
            check: "status is 200".to_owned(),
            failed: *failed,
            ..AnswerCheckTally::default()
        };
        FlowTally { checks: failed.iter().map(check).collect(), passes: None }
    }

    #[test]
    fn checks_of_requests_with_one_label_stay_apart_within_a_run() {
        let failed = |tally: &FlowTally| tally.checks.iter().map(|check| check.failed).collect::<Vec<_>>();
        let mut whole = tally(&[1, 20]);
        whole.add(&tally(&[2, 30]));
        assert_eq!(failed(&whole), [3, 50]);
        whole.join_requests("all");
        assert_eq!(failed(&whole), [53]);
    }
}
