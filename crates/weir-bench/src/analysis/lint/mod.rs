//! The rules that judge a result: they compare what it claims with what it shows. Pure; the verdicts are texts.
//!
//! A run that breaks an `Invalid` rule does not measure what it claims to. A `Warning` weakens a figure. A `Note` is
//! for information. [`Evidence`] is what is known of a result, whether of the lab or of a publication, so the same
//! rules judge both.

mod builds;
mod evidence;
mod machines;
mod measured;
mod own;
mod publication;
mod row;
mod trend;

use serde::{Deserialize, Serialize};

use crate::result::ResultFile;

pub use self::{
    evidence::{Claim, Evidence, LatencyFrom, Machine, RowEvidence, ScalingEvidence},
    own::{evidence_of, subject},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Note,
    Warning,
    Invalid,
}

impl Severity {
    pub fn word(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Invalid => "invalid",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LintVerdict {
    /// The short name of the rule, for scripts, such as `littles-law`.
    pub rule: String,
    pub severity: Severity,
    /// The subject of the finding; absent if it is about the whole result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub words: String,
    /// The number of runs with the finding; 0 for findings that are not about runs.
    #[serde(default)]
    pub runs: u32,
}

/// Rules about disturbances of the machine. A figure is the median of its runs, which does not change if fewer than
/// half of them were disturbed; a single run that is unusable is `Invalid` whatever the others are.
const OF_THE_MOMENT: [&str; 3] = ["stolen-cpu", "busy-machine", "edges-count"];

/// Reads a publication, YAML or JSON; `place` names it in errors.
pub fn read(place: &str, text: &str) -> Result<Evidence, PublicationError> {
    if text.trim().is_empty() {
        return Err(PublicationError::Empty { place: place.to_owned() });
    }
    let wrong = |error| PublicationError::Syntax { place: place.to_owned(), source: Box::new(error) };
    serde_saphyr::from_str(text).map_err(wrong)
}

/// Why a publication cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PublicationError {
    #[error("{place}: is empty; bench/publications has examples")]
    Empty { place: String },
    #[error("{place}: {source}")]
    Syntax { place: String, source: Box<serde_saphyr::Error> },
}

/// Applies all rules; the worst verdicts are first.
pub fn judge(evidence: &Evidence) -> Vec<LintVerdict> {
    let mut verdicts = publication::judge(evidence);
    for row in &evidence.rows {
        verdicts.extend(row::judge(row));
    }
    verdicts.extend(trend::judge(&evidence.rows));
    let mut merged: Vec<LintVerdict> = Vec::new();
    for verdict in verdicts {
        let same = merged.iter_mut().find(|have| {
            (&have.rule, &have.subject) == (&verdict.rule, &verdict.subject) && have.severity == verdict.severity
        });
        match same {
            // The text of the first run is kept for all.
            Some(have) => have.runs += verdict.runs,
            None => merged.push(verdict),
        }
    }
    merged.retain(|verdict| {
        let of_subject = evidence.rows.iter().filter(|row| Some(&row.name) == verdict.subject.as_ref()).count();
        verdict.severity == Severity::Invalid
            || !OF_THE_MOMENT.contains(&verdict.rule.as_str())
            || verdict.runs as usize * 2 > of_subject
    });
    merged.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
    merged
}

/// Adds what a result lacks: the rest of a run that ended early, any figure, or generators. Evidence of publications has none of
/// these.
pub fn judge_completeness(result: &ResultFile, verdicts: &mut Vec<LintVerdict>) {
    machines::judge(result, verdicts);
    verdicts.extend(builds::judge(result));
    verdicts.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
    if let Some(reason) = &result.incomplete {
        let words = format!("the run ended before everything was measured: {reason}");
        verdicts.insert(0, about_all("incomplete", Severity::Invalid, words));
    }
    if result.counts.is_empty() && result.cells.iter().all(|cell| cell.runs().is_empty()) {
        let words = "nothing was measured; below the table stands what each target lacks".to_owned();
        verdicts.insert(0, about_all("no-figures", Severity::Invalid, words));
    }
}

/// The worst severity; `None` without verdicts.
pub fn worst(verdicts: &[LintVerdict]) -> Option<Severity> {
    verdicts.iter().map(|verdict| verdict.severity).max()
}

fn about_all(rule: &str, severity: Severity, words: String) -> LintVerdict {
    LintVerdict { rule: rule.to_owned(), severity, subject: None, words, runs: 0 }
}
