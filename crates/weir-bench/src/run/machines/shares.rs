//! Divides a plan among several generators.

use crate::{
    engine::{LoadPlan, Pacing, PlanVariable, Rate, RateStep, Spacing, StopCondition},
    run::plan::ALONE_SPIN_NS,
};

/// The processors of one generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GeneratorPlace {
    pub cpus: Vec<u32>,
    /// Other processes of the run use processors of the same machine.
    pub is_shared: bool,
}

/// One generator's part of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanShare {
    /// Its position among the generators.
    pub generator: usize,
    pub plan: LoadPlan,
    /// How much later than the first it begins, so that requests of a constant rate, evenly spaced, are so all together. With
    /// other rates the generators begin at one time.
    pub after_ns: u64,
}

/// The parts of a plan: clients, rates, counts and numbers add up to those of the plan. A generator without clients or without
/// requests has none.
pub(super) fn shares(plan: &LoadPlan, places: &[GeneratorPlace]) -> Vec<PlanShare> {
    let count = places.len().clamp(1, plan.connections.max(1));
    let bound = |index: usize| plan.connections * index / count;
    places[..count]
        .iter()
        .enumerate()
        .map(|(index, place)| {
            let connections = bound(index + 1) - bound(index);
            let share = connections as f64 / plan.connections.max(1) as f64;
            let mut data = plan.data.clone();
            data.variables.values_mut().for_each(|variable| own_numbers(variable, index as i64, count as i64));
            let of = |total: u64, index: usize| total * bound(index) as u64 / plan.connections.max(1) as u64;
            let count_of_all = plan.stop.count.map(|total| of(total, index + 1) - of(total, index));
            let plan = LoadPlan {
                connections,
                threads: place.cpus.len().clamp(1, connections.max(1)),
                cpus: place.cpus.iter().map(|cpu| *cpu as usize).collect(),
                spin_ns: if place.is_shared { 0 } else { ALONE_SPIN_NS },
                pacing: pacing(&plan.pacing, share, (index, count)),
                stop: StopCondition { count: count_of_all, ..plan.stop },
                seed: plan.seed ^ (index as u64) << 32,
                data,
                ..plan.clone()
            };
            PlanShare { generator: index, after_ns: after_ns(&plan.pacing, share, index), plan }
        })
        // A share of nothing is no plan.
        .filter(|share| plan.stop.count == Some(0) || share.plan.stop.count != Some(0))
        .collect()
}

/// The numbers of a sequence that the generators before and after do not use.
fn own_numbers(variable: &mut PlanVariable, index: i64, count: i64) {
    if let PlanVariable::Sequence { from, step } = variable {
        *from = from.saturating_add(step.saturating_mul(index));
        *step = step.saturating_mul(count);
    }
}

fn pacing(pacing: &Pacing, share: f64, (index, count): (usize, usize)) -> Pacing {
    match pacing {
        Pacing::Closed { .. } => pacing.clone(),
        Pacing::Open { rate, spacing } => {
            let rate = match rate {
                Rate::Constant(rate) => Rate::Constant(rate * share),
                Rate::Steps(steps) => {
                    Rate::Steps(steps.iter().map(|step| RateStep { rate: step.rate * share, ..*step }).collect())
                }
                Rate::Ramp { from, to, over_ms } => {
                    Rate::Ramp { from: from * share, to: to * share, over_ms: *over_ms }
                }
            };
            Pacing::Open { rate, spacing: *spacing }
        }
        Pacing::Replay { at_ns } => {
            Pacing::Replay { at_ns: at_ns.iter().copied().skip(index).step_by(count).collect() }
        }
    }
}

/// `pacing` is that of the share.
fn after_ns(pacing: &Pacing, share: f64, index: usize) -> u64 {
    match pacing {
        Pacing::Open { rate: Rate::Constant(rate), spacing: Spacing::Even } if *rate > 0.0 => {
            (index as f64 * share / rate * 1e9) as u64
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(count: usize) -> Vec<GeneratorPlace> {
        vec![GeneratorPlace { cpus: vec![0, 1], is_shared: false }; count]
    }

    fn plan(connections: usize) -> LoadPlan {
        LoadPlan::closed("http://localhost:1/", connections, StopCondition { duration_ms: Some(1), count: Some(1_000) })
    }

    #[test]
    fn the_parts_add_up_to_the_plan() {
        let whole =
            LoadPlan { pacing: Pacing::Open { rate: Rate::Constant(900.0), spacing: Spacing::Even }, ..plan(100) };
        let parts = shares(&whole, &places(3));
        let sum = |of: fn(&LoadPlan) -> u64| parts.iter().map(|part| of(&part.plan)).sum::<u64>();
        assert_eq!(sum(|plan| plan.connections as u64), 100);
        assert_eq!(sum(|plan| plan.stop.count.unwrap()), 1_000);
        let rates: Vec<f64> = parts
            .iter()
            .map(|part| match &part.plan.pacing {
                Pacing::Open { rate: Rate::Constant(rate), .. } => *rate,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!((rates.iter().sum::<f64>() - 900.0).abs() < 1e-9, "{rates:?}");
        assert_eq!(parts.iter().map(|part| part.after_ns).collect::<Vec<_>>(), [0, 1_111_111, 2_222_222]);
        assert_eq!(parts[1].plan.cpus, [0, 1]);
        let seeds: std::collections::BTreeSet<u64> = parts.iter().map(|part| part.plan.seed).collect();
        assert_eq!(seeds.len(), 3);
    }

    #[test]
    fn a_generator_without_clients_has_no_part() {
        assert_eq!(shares(&plan(2), &places(5)).len(), 2);
        assert_eq!(shares(&plan(1), &places(1)).len(), 1);
    }

    #[test]
    fn a_generator_without_requests_has_no_part() {
        let mut whole = plan(4);
        whole.stop.count = Some(1);
        let counts: Vec<_> = shares(&whole, &places(2)).iter().map(|part| part.plan.stop.count).collect();
        assert_eq!(counts, [Some(1)]);
    }

    #[test]
    fn times_and_numbers_are_used_once() {
        let mut whole = LoadPlan { pacing: Pacing::Replay { at_ns: vec![1, 2, 3, 4, 5] }, ..plan(10) };
        whole.data.variables.insert("id".to_owned(), PlanVariable::Sequence { from: 10, step: 2 });
        let parts = shares(&whole, &places(2));
        assert_eq!(parts[0].plan.pacing, Pacing::Replay { at_ns: vec![1, 3, 5] });
        assert_eq!(parts[1].plan.pacing, Pacing::Replay { at_ns: vec![2, 4] });
        assert_eq!(parts[0].plan.data.variables["id"], PlanVariable::Sequence { from: 10, step: 4 });
        assert_eq!(parts[1].plan.data.variables["id"], PlanVariable::Sequence { from: 12, step: 4 });
    }

    #[test]
    fn a_generator_that_shares_its_machine_does_not_spin() {
        let mut places = places(2);
        places[1].is_shared = true;
        let spins: Vec<u64> = shares(&plan(2), &places).iter().map(|part| part.plan.spin_ns).collect();
        assert!(spins[0] > 0 && spins[1] == 0, "{spins:?}");
    }
}
