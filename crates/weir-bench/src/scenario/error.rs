use std::{error::Error, fmt};

use crate::errors::{FileError, from_causes};

/// Why a scenario cannot be run as it is written or chosen.
#[derive(Debug)]
pub enum ScenarioError {
    File(FileError),
    Unknown {
        name: String,
        known: Vec<String>,
    },
    Syntax {
        place: String,
        source: Box<serde_saphyr::Error>,
    },
    /// Everything that is wrong, each with its key; the place is a file or an option, and empty for what options replace.
    Problems {
        place: String,
        problems: Vec<String>,
    },
    /// `--row` chooses no row.
    NoRow {
        part: String,
        rows: Vec<String>,
    },
    /// `--ablation` needs a row with policies.
    NoPolicies,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScenarioError::File(error) => error.fmt(f),
            ScenarioError::Unknown { name, known } => {
                write!(f, "no scenario \"{name}\"; there are: {}, or give a file", known.join(", "))
            }
            ScenarioError::Syntax { place, source } => write!(f, "{place}: {source}"),
            ScenarioError::Problems { place, problems } => {
                let colon = if place.is_empty() { "" } else { ": " };
                let lines = problems.iter().map(|problem| format!("{place}{colon}{problem}"));
                f.write_str(&lines.collect::<Vec<_>>().join("\n"))
            }
            ScenarioError::NoRow { part, rows } => {
                write!(f, "--row {part}: no row name contains this; the rows are: {}", rows.join(" · "))
            }
            ScenarioError::NoPolicies => f.write_str("--ablation: no row has policies to switch off"),
        }
    }
}

impl Error for ScenarioError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ScenarioError::File(error) => Some(error),
            ScenarioError::Syntax { source, .. } => Some(source),
            _ => None,
        }
    }
}

from_causes!(ScenarioError: File(FileError));
