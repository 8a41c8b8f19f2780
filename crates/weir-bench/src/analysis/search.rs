//! Finds the highest rate that keeps an objective.

use crate::{result::SearchAttempt, scenario::Objective};

/// The share of a rate that must be carried.
const CARRIED: f64 = 0.98;
/// The relative precision at which a search ends.
const PRECISION: f64 = 0.02;
const MOST_RATES: usize = 12;

/// Finds the highest rate that `attempt` keeps: `first` is doubled while it is kept, then the interval is halved.
///
/// A rate that is not kept is tried once more, because a disturbance of the machine would otherwise limit the result.
/// Returns the rate and all attempts in order; `None` if nothing above a hundredth of `first` was kept.
pub fn highest<E>(
    first: f64,
    mut attempt: impl FnMut(f64) -> Result<SearchAttempt, E>,
) -> Result<(Option<f64>, Vec<SearchAttempt>), E> {
    let mut attempts: Vec<SearchAttempt> = Vec::new();
    let (mut low, mut high): (f64, Option<f64>) = (0.0, None);
    let mut rate = first;
    for _ in 0..MOST_RATES {
        attempts.push(attempt(rate)?);
        if attempts.last().is_some_and(|first| !first.kept) {
            attempts.push(attempt(rate)?);
        }
        if attempts.last().is_some_and(|last| last.kept) {
            low = rate;
        } else {
            high = Some(rate);
        }
        rate = match high {
            None => rate * 2.0,
            Some(high) if low == 0.0 && high < first / 100.0 => break,
            Some(high) if (high - low) / high < PRECISION => break,
            Some(high) => (low + high) / 2.0,
        };
    }
    Ok(((low > 0.0).then_some(low), attempts))
}

/// Whether a rate was carried within the objective.
pub fn kept(objective: &Objective, attempt: &SearchAttempt) -> bool {
    attempt.achieved >= attempt.rate * CARRIED
        && attempt.error_share < 0.001
        && objective.mean_ms.is_none_or(|limit| attempt.mean_ms <= limit)
        && objective.p99_ms.is_none_or(|limit| attempt.p99_ms <= limit)
        && objective.sent_within_us.is_none_or(|limit| attempt.sent_within_us.is_some_and(|us| us <= limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(rate: f64, capacity: f64) -> SearchAttempt {
        let p99_ms = if rate < capacity { 1.0 / (1.0 - rate / capacity) } else { 1e3 };
        SearchAttempt { rate, achieved: rate.min(capacity), mean_ms: p99_ms / 3.0, p99_ms, ..SearchAttempt::default() }
    }

    fn p99_within(ms: f64) -> Objective {
        Objective { name: "p99".to_owned(), p99_ms: Some(ms), ..Objective::default() }
    }

    /// The result, and the number of rates that were tried.
    fn find(objective: &Objective, first: f64) -> (Option<f64>, usize) {
        let (rate, attempts) = highest::<()>(first, |rate| {
            let attempt = attempt(rate, 10_000.0);
            Ok(SearchAttempt { kept: kept(objective, &attempt), ..attempt })
        })
        .unwrap();
        let mut rates: Vec<f64> = attempts.iter().map(|attempt| attempt.rate).collect();
        rates.dedup();
        (rate, rates.len())
    }

    #[test]
    fn finds_the_rate_where_the_queue_begins_to_hurt() {
        // 1 / (1 - u) = 5 at u = 0.8.
        let objective = p99_within(5.0);
        for first in [1_000.0, 9_000.0, 40_000.0] {
            let (rate, tried) = find(&objective, first);
            let rate = rate.unwrap();
            assert!((7_800.0..=8_000.0).contains(&rate), "{rate} from {first}");
            assert!(tried <= MOST_RATES);
        }
    }

    #[test]
    fn one_hiccup_does_not_decide() {
        let objective = p99_within(5.0);
        // Every rate fails at the first attempt.
        let mut tried = Vec::new();
        let (rate, attempts) = highest::<()>(1_000.0, |rate| {
            let hiccup = !tried.contains(&rate);
            tried.push(rate);
            let attempt = attempt(rate, 10_000.0);
            Ok(SearchAttempt { kept: kept(&objective, &attempt) && !hiccup, ..attempt })
        })
        .unwrap();
        assert!((7_800.0..=8_000.0).contains(&rate.unwrap()), "{rate:?}");
        assert!(attempts.chunks(2).all(|twice| twice[0].rate == twice[1].rate && !twice[0].kept));
    }

    #[test]
    fn says_when_no_rate_keeps_the_objective() {
        let objective = p99_within(0.5);
        assert_eq!(find(&objective, 8_000.0).0, None);
    }

    #[test]
    fn a_schedule_is_kept_when_nearly_all_are_sent_in_time_and_none_had_to_wait() {
        let objective = Objective { name: "schedule".to_owned(), sent_within_us: Some(100.0), ..Objective::default() };
        let on_schedule =
            |sent_within_us| kept(&objective, &SearchAttempt { sent_within_us, ..attempt(1_000.0, 10_000.0) });
        assert_eq!([Some(99.0), Some(101.0), None].map(on_schedule), [true, false, false]);
    }
}
