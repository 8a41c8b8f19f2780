//! What a single run says about itself: whether the generator, and not the target, was measured.

use crate::engine::{LoadPlan, LoadResult};

/// A thread busier than this has no room left to be on time.
const BUSY: f64 = 0.9;
/// Lag that matters: this much of the median latency, and no less than [`LAG_FLOOR_NS`].
const LAG_SHARE: f64 = 0.1;
const LAG_FLOOR_NS: f64 = 1e6;
/// Below this many answers the 99.9th percentile is the luck of a few.
const FEW: u64 = 10_000;

/// Sentences about what limits the meaning of the result; none when nothing does.
pub fn verdict(plan: &LoadPlan, result: &LoadResult) -> Vec<String> {
    let mut sentences = Vec::new();
    let total = &result.total;
    let busy = result.generator_busy();
    if busy > BUSY {
        let advice = if plan.threads == 1 { "; try more threads (-t)" } else { "" };
        sentences.push(format!(
            "The generator's busiest thread was {:.0} % busy: this is its limit, not the target's{advice}.",
            busy.min(1.0) * 100.0
        ));
    }
    let lag = total.lag.quantile(0.99) as f64;
    if plan.pacing.is_open() && lag > LAG_FLOOR_NS.max(total.latency.quantile(0.5) as f64 * LAG_SHARE) {
        sentences.push(format!(
            "The generator itself was late: 1 % of the requests were sent more than {:.1} ms after they were due.",
            lag / 1e6
        ));
    }
    if total.missed > 0 {
        sentences.push(format!(
            "{} of {} requests were due and never sent, because no connection was free: the target does not keep up \
             with this rate (or needs more connections), and latency grows with the length of the run.",
            total.missed, total.due
        ));
    }
    if total.errors.sum() > 0 {
        sentences
            .push(format!("{} requests had no complete answer; latency is that of the others.", total.errors.sum()));
    }
    if total.errors.local + result.connections.failed.local > 0 {
        sentences.push("This machine ran out of ports or file descriptors; try --source or `ulimit -n`.".to_owned());
    }
    if total.unexpected > 0 {
        sentences.push(format!("{} answers had a status that is not a success.", total.unexpected));
    }
    if total.completed > 0 && total.completed < FEW {
        sentences.push(format!(
            "Only {} answers: the 99.9th percentile stands on the slowest {}.",
            total.completed,
            (total.completed / 1_000).max(1)
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CpuTime, Errors, StopCondition};

    fn result() -> LoadResult {
        let mut result: LoadResult = serde_json::from_value(serde_json::json!({
            "started_unix_ns": 0, "warm_up_ns": 0, "measured_ns": 1_000_000_000, "drain_ns": 0,
            "total": crate::engine::LoadTally::default(), "intervals": [],
            "connections": crate::engine::Connections::default(), "generator": crate::engine::Generator::default(),
        }))
        .expect("the fields of a result");
        result.total.completed = FEW;
        result.generator.threads = vec![CpuTime { user_ns: 100_000_000, ..CpuTime::default() }];
        result
    }

    #[test]
    fn a_good_run_draws_no_remark() {
        let plan = LoadPlan::closed("http://a/", 1, StopCondition::after_ms(1_000));
        assert_eq!(verdict(&plan, &result()), Vec::<String>::new());
    }

    #[test]
    fn each_weakness_is_said() {
        let plan = LoadPlan::open("http://a/", 1.0, 1, StopCondition::after_ms(1_000));
        let said = |change: fn(&mut LoadResult)| {
            let mut result = result();
            change(&mut result);
            verdict(&plan, &result).join(" ")
        };
        assert!(said(|result| result.generator.threads[0].system_ns = 850_000_000).contains("95 % busy"));
        assert!(said(|result| (0..100).for_each(|_| result.total.lag.record(5_000_000))).contains("itself was late"));
        assert!(said(|result| result.total.missed = 7).contains("7 of"));
        assert!(said(|result| result.total.errors = Errors { local: 2, ..Errors::default() }).contains("ran out"));
        assert!(said(|result| result.total.unexpected = 3).contains("3 answers"));
        assert!(said(|result| result.total.completed = 10).contains("Only 10"));
    }
}
