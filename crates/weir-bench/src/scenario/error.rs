use crate::errors::FileError;

/// Why a scenario cannot be run as it is written or chosen.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("no scenario \"{name}\"; there are: {}, or give a file", .known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("{place}: {source}")]
    Syntax { place: String, source: Box<serde_saphyr::Error> },
    /// Everything that is wrong, each with its key; the place is a file or an option, and empty for what options replace.
    #[error("{}", lines(.place, .problems))]
    Problems { place: String, problems: Vec<String> },
    /// `--row` chooses no row.
    #[error("--row {part}: no row name contains this; the rows are: {}", .rows.join(" · "))]
    NoRow { part: String, rows: Vec<String> },
    /// `--ablation` needs a row with policies.
    #[error("--ablation: no row has policies to switch off")]
    NoPolicies,
}

/// Each problem on a line of its own, with the place.
fn lines(place: &str, problems: &[String]) -> String {
    let colon = if place.is_empty() { "" } else { ": " };
    let lines = problems.iter().map(|problem| format!("{place}{colon}{problem}"));
    lines.collect::<Vec<_>>().join("\n")
}
