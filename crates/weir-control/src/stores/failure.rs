//! Why a store does not do what it is asked.

use std::fmt;

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFailure {
    /// What failed, and why.
    pub problem: String,
    /// What to do.
    pub advice: String,
}

impl StoreFailure {
    pub fn new(problem: impl Into<String>, advice: impl Into<String>) -> StoreFailure {
        StoreFailure { problem: problem.into(), advice: advice.into() }
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

/// Why nothing was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitFailure {
    /// Others have changed what the change builds on.
    MovedOn,
    Failed(StoreFailure),
}

impl From<StoreFailure> for CommitFailure {
    fn from(failure: StoreFailure) -> CommitFailure {
        CommitFailure::Failed(failure)
    }
}
