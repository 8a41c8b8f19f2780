//! Rules about runs on several machines.

use super::{LintVerdict, Severity, subject};
use crate::result::{GeneratorShare, ResultFile};

/// The share of a measurement by which a generator may begin late, or clocks may be uncertain, without a finding.
const SHARE_OF_RUN: f64 = 0.001;
/// The share that makes the figures invalid: rates are computed over the time of all generators.
const TOO_MUCH: f64 = 0.01;

/// Adds what is wrong with generators: lost, late, or with a clock that could not be compared.
pub(super) fn judge(result: &ResultFile, verdicts: &mut Vec<LintVerdict>) {
    let mut found: Vec<LintVerdict> = Vec::new();
    for cell in &result.cells {
        for run in cell.runs() {
            let run_us = run.measured_s() * 1e6;
            for (rule, severity, words) in run.generators.iter().filter_map(|one| problem(one, run_us)) {
                let about = Some(subject(cell));
                match found
                    .iter_mut()
                    .find(|have| have.rule == rule && have.subject == about && have.severity == severity)
                {
                    Some(have) => have.runs += 1,
                    None => {
                        found.push(LintVerdict { rule: rule.to_owned(), severity, subject: about, words, runs: 1 });
                    }
                }
            }
        }
    }
    verdicts.extend(found);
    verdicts.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
}

fn problem(one: &GeneratorShare, run_us: f64) -> Option<(&'static str, Severity, String)> {
    let GeneratorShare { machine, connections, late_us, clock_uncertainty_us, lost, .. } = one;
    let share = |us: f64| us / run_us.max(1.0);
    let words = match lost {
        Some(reason) => {
            let words =
                format!("the generator on {machine} was lost: the figures lack its {connections} clients ({reason})");
            return Some(("generator-lost", Severity::Invalid, words));
        }
        None if share(*late_us) > SHARE_OF_RUN => format!(
            "the generator on {machine} began {:.1} ms after the agreed time, {:.1} % of the measured part",
            late_us / 1e3,
            share(*late_us) * 100.0
        ),
        None if share(*clock_uncertainty_us) > TOO_MUCH => {
            let words = format!(
                "the clock of {machine} could be compared to {:.1} ms only: generators may have begun so far apart",
                clock_uncertainty_us / 1e3
            );
            return Some(("clock-uncertain", Severity::Warning, words));
        }
        None => return None,
    };
    let severity = if share(*late_us) > TOO_MUCH { Severity::Invalid } else { Severity::Warning };
    Some(("generator-late", severity, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl FnOnce(&mut GeneratorShare)) -> Option<(&'static str, Severity)> {
        let mut share = GeneratorShare {
            machine: "10.0.0.2:7000".to_owned(),
            connections: 50,
            late_us: 100.0,
            clock_uncertainty_us: 200.0,
            ..GeneratorShare::default()
        };
        change(&mut share);
        problem(&share, 1e6).map(|(rule, severity, words)| {
            assert!(words.contains("10.0.0.2:7000"), "{words}");
            (rule, severity)
        })
    }

    #[test]
    fn a_generator_that_is_lost_or_late_is_a_finding() {
        assert_eq!(found(|_| {}), None);
        let lost = found(|share| share.lost = Some("it closed the connection".to_owned()));
        assert_eq!(lost, Some(("generator-lost", Severity::Invalid)));
        assert_eq!(found(|share| share.late_us = 2_000.0), Some(("generator-late", Severity::Warning)));
        assert_eq!(found(|share| share.late_us = 20_000.0), Some(("generator-late", Severity::Invalid)));
        let uncertain = found(|share| share.clock_uncertainty_us = 20_000.0);
        assert_eq!(uncertain, Some(("clock-uncertain", Severity::Warning)));
    }
}
