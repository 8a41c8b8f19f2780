//! Why a target did not start, and what its cells show then.

use super::SetupError;
use crate::result::{Cell, CellOutcome, Configuration};

/// Why a target did not start.
pub struct StartFailure {
    pub kind: StartFailureKind,
    pub reason: String,
    pub configuration: Option<Configuration>,
}

#[derive(Clone, Copy)]
pub enum StartFailureKind {
    /// The target itself reports that it does not support the row.
    Unsupported,
    Failed,
}

impl StartFailureKind {
    pub fn outcome(self, reason: String, cell: &Cell) -> CellOutcome {
        match self {
            StartFailureKind::Unsupported => CellOutcome::Unsupported { reason },
            StartFailureKind::Failed => CellOutcome::Failed { reason, runs: cell.runs().to_vec() },
        }
    }
}

impl StartFailure {
    pub fn failed(reason: String) -> StartFailure {
        StartFailure { kind: StartFailureKind::Failed, reason, configuration: None }
    }
}

impl From<SetupError> for Box<StartFailure> {
    fn from(error: SetupError) -> Box<StartFailure> {
        Box::new(StartFailure::failed(error.to_string()))
    }
}
