//! The judge: what a result claims, held against what it shows. Pure; says everything in words.
//!
//! A run that breaks an `Invalid` rule does not measure what it says it measures. A `Warning` weakens a figure. A `Note`
//! is worth knowing. [`Evidence`] is what can be known of a result, ours or a published table, so the
//! same rules judge both.

mod evidence;
mod measured;
mod own;
mod publication;
mod row;
mod trend;

use serde::{Deserialize, Serialize};

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
    /// Short name of the rule, for scripts: `littles-law`.
    pub rule: String,
    pub severity: Severity,
    /// What the finding is about; absent when it is about the whole result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub words: String,
    /// In how many of the subject's runs; 0 for findings that are not about runs.
    #[serde(default)]
    pub runs: u32,
}

/// Rules about what the machine did besides, for a while. A figure is the median of its runs, which does not move when
/// that weakened fewer than half of them; one run that was spoilt altogether is `Invalid` whatever the others are.
const OF_THE_MOMENT: [&str; 2] = ["stolen-cpu", "busy-machine"];

/// Reads what a publication says, YAML or JSON; `place` is what errors call it.
pub fn read(place: &str, text: &str) -> Result<Evidence, String> {
    if text.trim().is_empty() {
        return Err(format!("{place}: is empty; bench/publications has examples"));
    }
    serde_saphyr::from_str(text).map_err(|error| format!("{place}: {error}"))
}

/// Judges everything there is to judge, the worst first.
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
            // The words of the first run stand for the others.
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

/// The worst there is, or nothing.
pub fn worst(verdicts: &[LintVerdict]) -> Option<Severity> {
    verdicts.iter().map(|verdict| verdict.severity).max()
}

fn about_all(rule: &str, severity: Severity, words: String) -> LintVerdict {
    LintVerdict { rule: rule.to_owned(), severity, subject: None, words, runs: 0 }
}
