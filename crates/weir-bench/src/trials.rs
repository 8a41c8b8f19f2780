//! One scenario measured many times, to see how often its targets are called different: of equal targets no more often than chance, and of
//! targets with a planted difference always.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF as _};

use crate::{
    analysis::summary::{CellSummary, Findings, unjudged},
    manifest::Manifest,
    report::headline,
    result::{LoadLevel, ResultFile},
    scenario::Scenario,
    stats::{Comparison, ConfidenceInterval, least_p, median},
};

/// The name and version of the file's form.
const TRIALS_SCHEMA: &str = "weir-bench/trials/1";
/// Equal targets that are called different so often that chance alone does it in less than this share of all series are a fault of the
/// lab, or of the machine.
const UNLIKELY: f64 = 0.01;

/// All trials of a scenario. Their histograms are not kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrialsFile {
    pub schema: String,
    pub id: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub finished_at: String,
    pub command: Vec<String>,
    pub scenario: Scenario,
    pub manifest: Manifest,
    /// The version of each target.
    pub versions: BTreeMap<String, Option<String>>,
    /// How many trials were to be.
    pub planned: u32,
    pub trials: Vec<ScenarioTrial>,
    /// Why there are fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// The whole scenario, measured once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioTrial {
    pub seed: u64,
    pub started_at: String,
    /// The headline of its verdict, if anything weakens a figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    pub comparisons: Vec<TrialComparison>,
}

/// A target beside the baseline in one trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrialComparison {
    pub row: String,
    pub target: String,
    pub level: LoadLevel,
    pub figure: ComparedFigure,
    pub comparison: Comparison,
    /// Whether the figures are valid, so that a report of the trial would compare them.
    pub is_valid: bool,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedFigure {
    Throughput,
    CpuPerRequest,
}

impl ComparedFigure {
    fn words(self) -> &'static str {
        match self {
            ComparedFigure::Throughput => "throughput",
            ComparedFigure::CpuPerRequest => "CPU a request",
        }
    }
}

impl TrialsFile {
    /// The file for the first trial and those that follow.
    pub fn begin(result: &ResultFile, planned: u32) -> TrialsFile {
        TrialsFile {
            schema: TRIALS_SCHEMA.to_owned(),
            id: result.id.replacen(&result.scenario.name, &format!("{}-trials", result.scenario.name), 1),
            started_at: result.started_at.clone(),
            finished_at: result.finished_at.clone(),
            command: result.command.clone(),
            scenario: result.scenario.clone(),
            manifest: result.manifest.clone(),
            versions: result.targets.iter().map(|one| (one.name.clone(), one.version.clone())).collect(),
            planned,
            trials: Vec::new(),
            incomplete: None,
        }
    }

    /// Adds a trial. One that has ended early does not count.
    pub fn add(&mut self, findings: &Findings<'_>) {
        self.finished_at.clone_from(&findings.result.finished_at);
        self.incomplete.clone_from(&findings.result.incomplete);
        if self.incomplete.is_none() {
            self.trials.push(ScenarioTrial::of(findings));
        }
    }

    /// How often each target was called different, in the order of the first trial that has it.
    pub fn summaries(&self) -> Vec<TrialSummary<'_>> {
        let mut summaries: Vec<TrialSummary<'_>> = Vec::new();
        for one in self.trials.iter().flat_map(|trial| &trial.comparisons) {
            let is_its = |have: &&mut TrialSummary<'_>| {
                (have.row, have.target, have.level, have.figure) == (&*one.row, &*one.target, one.level, one.figure)
            };
            match summaries.iter_mut().find(is_its) {
                Some(summary) => summary.add(one),
                None => {
                    let mut summary = TrialSummary::new(one, self.is_equal(&one.target));
                    summary.add(one);
                    summaries.push(summary);
                }
            }
        }
        // They share it: each further comparison of equal targets is another chance to be called different.
        let equal = summaries.iter().filter(|one| one.is_equal).count().max(1);
        summaries.iter_mut().for_each(|one| one.unlikely = UNLIKELY / equal as f64);
        summaries
    }

    /// What is wrong with the lab or the machine by this series, or why it cannot be said. Empty if equal targets were called different
    /// no more often than by chance, and the others were found.
    pub fn problems(&self) -> Vec<String> {
        let (method, mut problems) = (&self.scenario.method, Vec::new());
        if let Some(reason) = &self.incomplete {
            problems.push(format!("{} of {} trials: {reason}", self.trials.len(), self.planned));
        }
        if least_p(method.repeats) >= 1.0 - method.confidence {
            let (repeats, percent) = (method.repeats, method.confidence_percent());
            problems.push(format!("{repeats} repeats cannot show any difference at {percent} %"));
        }
        let summaries = self.summaries();
        if summaries.iter().all(|one| one.compared() == 0) {
            problems.push("no figure is valid".to_owned());
            return problems;
        }
        for one in summaries.iter().filter(|one| one.is_equal) {
            if one.compared() == 0 {
                problems.push(format!("{}: no valid {}", one.target, one.figure.words()));
            } else if one.is_false_too_often(method.confidence) {
                let words = format!("{}: {} different more often than by chance", one.target, one.figure.words());
                problems.push(words);
            }
        }
        for target in self.scenario.targets.iter().filter(|target| **target != self.scenario.baseline) {
            let mut of_it = summaries.iter().filter(|one| one.target == target.as_str()).peekable();
            if of_it.peek().is_none() {
                problems.push(format!("{target}: never compared"));
            } else if of_it.all(|one| !one.is_equal && one.different == 0) {
                problems.push(format!("{target}: never found to be different, though it is"));
            }
        }
        problems
    }

    /// Whether a target is the baseline under another name.
    fn is_equal(&self, target: &str) -> bool {
        self.scenario.variant(target) == self.scenario.variant(&self.scenario.baseline)
    }
}

impl ScenarioTrial {
    fn of(findings: &Findings<'_>) -> ScenarioTrial {
        let of_cell = |summary: &CellSummary<'_>| {
            let [throughput, cpu] = unjudged(findings.result, summary.cell);
            let figures = [
                (ComparedFigure::Throughput, throughput, summary.against_baseline.is_some()),
                (ComparedFigure::CpuPerRequest, cpu, summary.cpu_against_baseline.is_some()),
            ];
            let (row, target, level) = (summary.cell.row.clone(), summary.cell.target.clone(), summary.cell.level);
            figures.into_iter().filter_map(move |(figure, comparison, is_valid)| {
                let comparison = comparison.filter(|one| {
                    [one.ratio.median, one.ratio.low, one.ratio.high, one.p].iter().all(|value| value.is_finite())
                })?;
                Some(TrialComparison { row: row.clone(), target: target.clone(), level, figure, comparison, is_valid })
            })
        };
        ScenarioTrial {
            seed: findings.result.seed,
            started_at: findings.result.started_at.clone(),
            verdict: headline(findings),
            comparisons: findings.cells.iter().flat_map(of_cell).collect(),
        }
    }

    /// The targets that were called different, in words.
    pub fn words(&self) -> String {
        let valid = self.comparisons.iter().filter(|one| one.is_valid);
        let none_is_valid = valid.clone().next().is_none();
        let different = valid.filter(|one| one.comparison.different);
        let words = different.map(|one| {
            let percent = (one.comparison.ratio.median - 1.0) * 100.0;
            format!("{} {} {percent:+.1} %", one.target, one.figure.words())
        });
        match words.collect::<Vec<_>>() {
            words if !words.is_empty() => format!("different: {}", words.join(", ")),
            _ if none_is_valid => "no figure is valid".to_owned(),
            _ => "no difference".to_owned(),
        }
    }
}

/// How often a figure of a target was called different from the baseline's.
#[derive(Clone, Debug)]
pub struct TrialSummary<'a> {
    pub row: &'a str,
    pub target: &'a str,
    pub level: LoadLevel,
    pub figure: ComparedFigure,
    /// The target is the baseline under another name.
    pub is_equal: bool,
    /// In trials with valid figures, and in all.
    pub different: usize,
    pub different_of_all: usize,
    /// The ratio to the baseline in each trial with valid figures, and in each.
    ratios: Vec<f64>,
    all_ratios: Vec<f64>,
    /// What is unlikely for this figure, so that [`UNLIKELY`] is for the whole series.
    unlikely: f64,
}

impl<'a> TrialSummary<'a> {
    fn new(one: &'a TrialComparison, is_equal: bool) -> TrialSummary<'a> {
        let TrialComparison { row, target, level, figure, .. } = one;
        let (ratios, all_ratios) = (Vec::new(), Vec::new());
        let (level, figure) = (*level, *figure);
        let (different, different_of_all, unlikely) = (0, 0, UNLIKELY);
        TrialSummary { row, target, level, figure, is_equal, different, different_of_all, ratios, all_ratios, unlikely }
    }

    fn add(&mut self, one: &TrialComparison) {
        let Comparison { ratio, different, .. } = one.comparison;
        self.different_of_all += usize::from(different);
        self.all_ratios.push(ratio.median);
        if one.is_valid {
            self.different += usize::from(different);
            self.ratios.push(ratio.median);
        }
    }

    /// The trials in which it was compared with valid figures.
    pub fn compared(&self) -> usize {
        self.ratios.len()
    }

    /// The median of the ratios of all trials, the lowest and the highest.
    pub fn ratio(&self) -> Option<ConfidenceInterval> {
        let all = &self.all_ratios;
        let (low, high) = all.iter().fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(*one), high.max(*one)));
        Some(ConfidenceInterval { median: median(all)?, low, high })
    }

    /// Whether an equal target was called different more often than chance does at this confidence.
    pub fn is_false_too_often(&self, confidence: f64) -> bool {
        if !self.is_equal || self.different == 0 {
            return false;
        }
        let chance = Binomial::new(1.0 - confidence, self.compared() as u64);
        chance.is_ok_and(|chance| chance.sf(self.different as u64 - 1) < self.unlikely)
    }

    /// The texts of a line of a table: row, clients, target, figure, how often of valid figures and of all, ratio.
    pub fn line(&self, confidence: f64) -> [String; 7] {
        let target = if self.is_equal { format!("{} (equal)", self.target) } else { self.target.to_owned() };
        let too_often = if self.is_false_too_often(confidence) { ", more often than by chance" } else { "" };
        let ratio = self
            .ratio()
            .map_or(String::new(), |ratio| format!("{:.3} ({:.3} to {:.3})", ratio.median, ratio.low, ratio.high));
        [
            self.row.to_owned(),
            self.level.connections.to_string(),
            target,
            self.figure.words().to_owned(),
            format!("{} of {}{too_often}", self.different, self.compared()),
            format!("{} of {}", self.different_of_all, self.all_ratios.len()),
            ratio,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::RankTest;

    const SCENARIO: &str =
        "{name: s, title: S, about: A, targets: [one, same, slowed], baseline: one, connections: [8],
        variants: {one: {peer: none}, same: {peer: none}, again: {peer: none}, slowed: {peer: none, path: /cpu/42us}}, rows: [{name: r}]}";

    /// Each comparison is whether it was called different. Those of the target `disturbed` are invalid, and count as of `same`.
    fn file(trials: &[&[(&str, bool)]]) -> TrialsFile {
        let comparison = |(target, different): &(&str, bool)| TrialComparison {
            row: "r".to_owned(),
            target: target.replace("disturbed", "same"),
            is_valid: *target != "disturbed",
            level: LoadLevel { connections: 8, rate: None, workers: 1 },
            figure: ComparedFigure::Throughput,
            comparison: Comparison {
                ratio: ConfidenceInterval { median: if *different { 0.96 } else { 1.001 }, low: 0.9, high: 1.1 },
                test: RankTest::Wilcoxon,
                p: if *different { 0.0001 } else { 0.5 },
                different: *different,
            },
        };
        let trial = |(number, comparisons): (usize, &&[(&str, bool)])| ScenarioTrial {
            seed: number as u64,
            started_at: String::new(),
            verdict: None,
            comparisons: comparisons.iter().map(comparison).collect(),
        };
        TrialsFile {
            schema: TRIALS_SCHEMA.to_owned(),
            id: "s-trials".to_owned(),
            started_at: String::new(),
            finished_at: String::new(),
            command: Vec::new(),
            scenario: serde_saphyr::from_str(SCENARIO).expect("it is one"),
            manifest: Manifest::default(),
            versions: BTreeMap::new(),
            planned: trials.len() as u32,
            trials: trials.iter().enumerate().map(trial).collect(),
            incomplete: None,
        }
    }

    #[test]
    fn each_target_is_counted_by_itself() {
        // In the last two trials, the figures of the second target were invalid.
        let file = file(&[
            &[("same", false), ("slowed", true)],
            &[("same", false), ("slowed", true)],
            &[("disturbed", true), ("slowed", false)],
            &[("disturbed", true)],
        ]);
        let text = serde_json::to_string(&file).expect("it has finite numbers");
        let file: TrialsFile = serde_json::from_str(&text).expect("it is read as it was written");
        let lines: Vec<[String; 7]> = file.summaries().iter().map(|one| one.line(0.9995)).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0][2..6], ["same (equal)", "throughput", "0 of 2", "2 of 4"]);
        assert_eq!(lines[1][2..], ["slowed", "throughput", "2 of 3", "2 of 3", "0.960 (0.960 to 1.001)"]);
        assert_eq!(file.trials[0].words(), "different: slowed throughput -4.0 %");
        assert_eq!(file.trials[2].words(), "no difference");
        assert_eq!(file.trials[3].words(), "no figure is valid");
    }

    #[test]
    fn equal_targets_may_be_called_different_as_often_as_by_chance() {
        let alarms = |false_alarms: usize, target: &'static str| {
            let trials: Vec<Vec<(&str, bool)>> = (0..50).map(|number| vec![(target, number < false_alarms)]).collect();
            let trials: Vec<&[(&str, bool)]> = trials.iter().map(Vec::as_slice).collect();
            let file = file(&trials);
            let summaries = file.summaries();
            [0.95, 0.9995].map(|confidence| summaries[0].is_false_too_often(confidence))
        };
        assert_eq!(alarms(0, "same"), [false, false]);
        assert_eq!(alarms(1, "same"), [false, false], "chance does it in one of forty cases at 99.95 %");
        assert_eq!(alarms(3, "same"), [false, true]);
        assert_eq!(alarms(8, "same"), [true, true]);
        assert_eq!(alarms(50, "slowed"), [false, false], "it is different");
    }

    #[test]
    fn several_equal_figures_share_what_is_unlikely() {
        let alone: &[(&str, bool)] = &[("same", true)];
        let both: &[(&str, bool)] = &[("same", true), ("again", true)];
        // By chance, one figure is called different twice in 0.64 % of all cases.
        let too_often = [file(&[alone, alone]), file(&[both, both])]
            .map(|file| file.summaries().iter().map(|one| one.is_false_too_often(0.92)).collect::<Vec<_>>());
        assert_eq!(too_often, [vec![true], vec![false, false]]);
    }

    #[test]
    fn a_series_tells_what_is_wrong() {
        let fine: &[(&str, bool)] = &[("same", false), ("slowed", true)];
        let alarm: &[(&str, bool)] = &[("same", true), ("slowed", true)];
        let missed: &[(&str, bool)] = &[("same", false), ("slowed", false)];
        let one_invalid: &[(&str, bool)] = &[("disturbed", false), ("slowed", true)];
        let invalid: &[(&str, bool)] = &[("disturbed", true)];
        let without_planted: &[(&str, bool)] = &[("same", false)];
        for (trials, problems) in [
            ([fine, fine, fine], vec![]),
            ([alarm, fine, missed], vec![]),
            ([alarm, alarm, alarm], vec!["same: throughput different more often than by chance"]),
            ([missed, missed, missed], vec!["slowed: never found to be different, though it is"]),
            ([one_invalid, one_invalid, one_invalid], vec!["same: no valid throughput"]),
            ([invalid, invalid, invalid], vec!["no figure is valid"]),
            ([without_planted, without_planted, without_planted], vec!["slowed: never compared"]),
        ] {
            assert_eq!(file(&trials).problems(), problems);
        }
        let mut interrupted = file(&[fine, fine]);
        (interrupted.planned, interrupted.incomplete) = (3, Some("interrupted".to_owned()));
        assert_eq!(interrupted.problems(), ["2 of 3 trials: interrupted"]);
        let mut few = file(&[fine, fine]);
        few.scenario.method.confidence = 0.9995;
        for (repeats, problems) in [(12, vec![]), (11, vec!["11 repeats cannot show any difference at 99.95 %"])] {
            few.scenario.method.repeats = repeats;
            assert_eq!(few.problems(), problems);
        }
    }
}
