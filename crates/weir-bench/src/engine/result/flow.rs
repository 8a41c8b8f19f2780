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
    /// Passes that began again, because a value for the other requests was missing.
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
        for theirs in &other.checks {
            match self.checks.iter_mut().find(|ours| ours.request == theirs.request && ours.check == theirs.check) {
                Some(ours) => ours.add(theirs),
                None => self.checks.push(theirs.clone()),
            }
        }
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
