//! Whether throughput still rises or falls during the measurement: the only rule that compares all runs of a figure.
//!
//! The intervals of one run are not independent, so a machine that is fast for a second makes a slope by itself; runs
//! are independent. A trend is a slope that nearly all runs of a figure share, and that is large enough to matter.

use super::{LintVerdict, RowEvidence, Severity};
use crate::stats::{deviation, mann_kendall, median, moderated_t_test, t_test};

/// The least change from the first to the last third of a run that matters.
const MATTERS: f64 = 0.05;
/// The probability that a result without any trend is reported to have one, over all its figures.
const BY_CHANCE: f64 = 0.03;
/// With fewer runs, only the intervals of each run are left, with stricter limits.
const ENOUGH_RUNS: usize = 3;
/// The variance between runs, pooled over all figures, counts as this many runs of each: with three or five runs of its
/// own, a figure among forty would otherwise need an obvious slope.
const OTHERS_COUNT: f64 = 12.0;
const MATTERS_IN_ONE: f64 = 0.1;
const BY_CHANCE_IN_ONE: f64 = 0.01;

pub(super) fn judge(rows: &[RowEvidence]) -> Vec<LintVerdict> {
    let mut figures: Vec<(&str, Vec<ThroughputChange>)> = Vec::new();
    for row in rows.iter().filter(|row| !row.backend_limits) {
        let Some(change) = change(&row.slices_rps) else { continue };
        match figures.iter_mut().find(|(name, _)| *name == row.name) {
            Some((_, changes)) => changes.push(change),
            None => figures.push((&row.name, vec![change])),
        }
    }
    let count = figures.len() as f64;
    let variance = pooled_variance(figures.iter().map(|(_, changes)| &**changes));
    let found = figures.into_iter().filter_map(|(name, changes)| {
        let words = trend(&changes, variance, BY_CHANCE / count)?;
        Some(LintVerdict {
            rule: "warm-up-trend".to_owned(),
            severity: Severity::Warning,
            subject: Some(name.to_owned()),
            words,
            runs: changes.len() as u32,
        })
    });
    found.collect()
}

/// The variance of changes between the runs of a figure, pooled over all figures with enough runs.
fn pooled_variance<'a>(figures: impl Iterator<Item = &'a [ThroughputChange]>) -> Option<f64> {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for changes in figures.filter(|changes| changes.len() >= ENOUGH_RUNS) {
        let relative: Vec<f64> = changes.iter().map(ThroughputChange::relative).collect();
        squares += deviation(&relative)?.powi(2) * (relative.len() - 1) as f64;
        freedom += (relative.len() - 1) as f64;
    }
    // A single figure gives no information about others.
    (freedom >= OTHERS_COUNT).then(|| squares / freedom)
}

/// The change of throughput within one run.
struct ThroughputChange {
    first: f64,
    last: f64,
    /// Mann and Kendall's p-value, as if the intervals were independent.
    p: f64,
}

impl ThroughputChange {
    /// Relative to the mean of both, so that it exists for a run that began at zero as well.
    fn relative(&self) -> f64 {
        2.0 * (self.last - self.first) / (self.last + self.first)
    }
}

/// The medians of the first and the last third, when there are enough intervals and anything happened in them.
fn change(slices: &[f64]) -> Option<ThroughputChange> {
    let third = slices.len() / 3;
    let (first, last) = (median(slices.get(..third)?)?, median(&slices[slices.len() - third..])?);
    let (p, _) = mann_kendall(slices);
    (third > 1 && first + last > 0.0).then_some(ThroughputChange { first, last, p })
}

fn trend(changes: &[ThroughputChange], variance: Option<f64>, by_chance: f64) -> Option<String> {
    let relative: Vec<f64> = changes.iter().map(ThroughputChange::relative).collect();
    let size = median(&relative)?;
    let is_trend = if changes.len() < ENOUGH_RUNS {
        size.abs() > MATTERS_IN_ONE && changes.iter().all(|change| change.p <= BY_CHANCE_IN_ONE)
    } else {
        let p =
            variance.map_or_else(|| t_test(&relative), |variance| moderated_t_test(&relative, variance, OTHERS_COUNT));
        size.abs() > MATTERS && p <= by_chance
    };
    is_trend.then(|| {
        // The change relative to the mean of both ends, converted to one relative to the beginning.
        let (first, last) = (1.0 - size / 2.0, 1.0 + size / 2.0);
        let how = match size > 0.0 {
            true if first <= 0.0 => "began at zero".to_owned(),
            true => format!("rose by {:.0} %", (last / first - 1.0) * 100.0),
            false => format!("fell by {:.0} %", (1.0 - last / first) * 100.0),
        };
        let why = if size > 0.0 {
            "the warm-up was too short"
        } else {
            "a buffer or cache fills up, or the processor heats up"
        };
        format!("throughput {how} during the measured part: {why}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::SeededRandom;

    fn run(name: &str, slices: impl IntoIterator<Item = f64>) -> RowEvidence {
        RowEvidence { name: name.to_owned(), slices_rps: slices.into_iter().collect(), ..RowEvidence::default() }
    }

    fn words(rows: &[RowEvidence]) -> String {
        judge(rows).into_iter().map(|verdict| verdict.words).collect()
    }

    /// Correlated noise, as on a machine with phases of a second, with a deviation of about 0.1.
    fn moody(random: &mut SeededRandom) -> Vec<f64> {
        let mut noise = || (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
        let mut mood = 0.1 * noise();
        let mut next = || {
            mood = 0.8 * mood + 0.06 * noise();
            50_000.0 * (1.0 + mood)
        };
        (0..10).map(|_| next()).collect()
    }

    #[test]
    fn moods_of_the_machine_are_no_trend() {
        let mut random = SeededRandom::new(5);
        let mut accused = 0;
        for _ in 0..400 {
            let rows: Vec<RowEvidence> =
                (0..9 * 5).map(|run_of| run(&(run_of / 5).to_string(), moody(&mut random))).collect();
            accused += u32::from(!judge(&rows).is_empty());
        }
        // At most one in twenty of 400 results with nine figures each.
        assert!(accused <= 20, "{accused}");
    }

    #[test]
    fn a_warm_up_that_every_run_repeats_is_found_through_moods() {
        let mut random = SeededRandom::new(6);
        let mut found = 0;
        for _ in 0..100 {
            // Begins a quarter below its final throughput.
            let warming = |random: &mut SeededRandom| {
                let mood = moody(random).into_iter().enumerate();
                run("a", mood.map(|(at, rps)| (rps - 50_000.0) / 3.0 + 50_000.0 * (1.0 - 0.25 * (-(at as f64)).exp2())))
            };
            let rows: Vec<RowEvidence> = (0..5).map(|_| warming(&mut random)).collect();
            found += u32::from(words(&rows).starts_with("throughput rose by"));
        }
        assert!(found >= 90, "{found}");
    }

    #[test]
    fn a_warm_up_is_found_among_many_figures() {
        let mut random = SeededRandom::new(7);
        let mut found = 0;
        for _ in 0..50 {
            let mut rows: Vec<RowEvidence> =
                (0..39 * 5).map(|run_of| run(&(run_of / 5).to_string(), moody(&mut random))).collect();
            // All others have no trend; this one rises by half in each of its five runs.
            rows.extend((0..5).map(|_| {
                let mood = moody(&mut random).into_iter().enumerate();
                run("warming", mood.map(|(at, rps)| rps * (0.7 + 0.04 * at as f64)))
            }));
            found += u32::from(judge(&rows).iter().any(|verdict| verdict.subject.as_deref() == Some("warming")));
        }
        assert!(found >= 45, "{found}");
    }

    #[test]
    fn trend_of_one_run_is_no_trend_of_the_figure() {
        let level = || run("a", vec![100.0, 101.0, 99.0, 100.0, 102.0, 98.0]);
        let falling = run("a", (0..6).map(|step| 100.0 - 8.0 * f64::from(step)));
        assert_eq!(words(&[level(), falling, level(), level(), level()]), "");
        let falling = || run("a", (0..6).map(|step| 100.0 - 8.0 * f64::from(step)));
        assert!(words(&[falling(), falling(), falling()]).contains("fell by 33 %"));
        let small = || run("a", (0..6).map(|step| 100.0 + f64::from(step)));
        assert_eq!(words(&[small(), small(), small()]), "", "four percent, however sure");
    }

    #[test]
    fn a_run_that_stands_alone_is_judged_by_its_intervals() {
        let rising = run("a", (0..10).map(|step| 100.0 + 3.0 * f64::from(step)));
        assert!(words(&[rising]).contains("rose by 20 %"));
        let nothing_first = run("a", [0.0, 0.0, 0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
        assert!(words(&[nothing_first]).contains("began at zero"));
        assert_eq!(words(&[run("a", [0.0; 10])]), "");
        assert_eq!(words(&[run("a", [1.0, 9.0])]), "");
    }
}
