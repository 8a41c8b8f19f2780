//! Errors of stores.

use std::fmt;

/// Why a request to a store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFailure {
    /// The failure and its cause.
    pub problem: String,
    /// How to correct it.
    pub advice: String,
    /// Whether the store is on other machines and does not answer, so that the same may succeed later.
    pub is_away: bool,
}

impl StoreFailure {
    pub fn new(problem: impl Into<String>, advice: impl Into<String>) -> StoreFailure {
        StoreFailure { problem: problem.into(), advice: advice.into(), is_away: false }
    }

    /// The store does not answer.
    pub fn away(problem: impl Into<String>, advice: impl Into<String>) -> StoreFailure {
        StoreFailure { is_away: true, ..StoreFailure::new(problem, advice) }
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.advice.as_str() {
            "" => f.write_str(&self.problem),
            advice => write!(f, "{}; {advice}", self.problem),
        }
    }
}

/// Why a commit has failed; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitFailure {
    /// The resources that the change is based on have been changed by another node.
    MovedOn,
    Failed(StoreFailure),
}

impl From<StoreFailure> for CommitFailure {
    fn from(failure: StoreFailure) -> CommitFailure {
        CommitFailure::Failed(failure)
    }
}
