//! The times at which the requests of an open loop are due.

use super::rate::RateWalk;
use crate::engine::plan::{Pacing, Spacing};
use crate::stats::SeededRandom;

/// The times at which one thread's requests are due, in ns from the start of the run, ascending.
///
/// All threads generate the same schedule from the same seed, and each takes every `threads`-th arrival: so the run as
/// a whole follows the plan, independent of the number of threads.
#[derive(Clone, Debug)]
pub struct Arrivals {
    all: ArrivalSource,
    /// Arrivals to skip before the next one of this thread.
    skip: usize,
    threads: usize,
}

#[derive(Clone, Debug)]
enum ArrivalSource {
    Rate { walk: RateWalk, poisson: Option<SeededRandom>, first: bool },
    Times(std::vec::IntoIter<u64>),
}

impl Arrivals {
    /// The part of thread number `thread` of `threads`; `None` for a closed loop.
    pub fn new(pacing: &Pacing, seed: u64, thread: usize, threads: usize) -> Option<Self> {
        let all = match pacing {
            Pacing::Closed { .. } => return None,
            Pacing::Open { rate, spacing } => ArrivalSource::Rate {
                walk: RateWalk::new(rate),
                poisson: (*spacing == Spacing::Poisson).then(|| SeededRandom::new(seed)),
                first: true,
            },
            Pacing::Replay { at_ns } => ArrivalSource::Times(at_ns.clone().into_iter()),
        };
        Some(Self { all, skip: thread, threads })
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        for _ in 0..self.skip {
            self.all.next()?;
        }
        self.skip = self.threads - 1;
        self.all.next()
    }
}

impl Iterator for ArrivalSource {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self {
            ArrivalSource::Rate { walk, poisson, first } => {
                // An evenly spaced arrival is in the middle of its gap: 500 per second for a second are exactly 500. In
                // a Poisson process, the gaps measured in accumulated rate are exponential with mean 1, however the
                // rate changes meanwhile.
                let even = if std::mem::take(first) { 0.5 } else { 1.0 };
                let amount = poisson.as_mut().map_or(even, |random| -(1.0 - random.unit()).ln());
                walk.advance(amount).map(|seconds| (seconds * 1e9) as u64)
            }
            ArrivalSource::Times(times) => times.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::Rate;

    fn open(rate: f64, spacing: Spacing) -> Pacing {
        Pacing::Open { rate: Rate::Constant(rate), spacing }
    }

    #[test]
    fn threads_share_one_schedule() {
        let pacing = open(1_000.0, Spacing::Poisson);
        let whole: Vec<u64> = Arrivals::new(&pacing, 7, 0, 1).expect("open").take(300).collect();
        let mut shares: Vec<u64> =
            (0..3).flat_map(|thread| Arrivals::new(&pacing, 7, thread, 3).expect("open").take(100)).collect();
        shares.sort_unstable();
        assert_eq!(shares, whole);
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let times: Vec<u64> =
            Arrivals::new(&open(1_000.0, Spacing::Poisson), 1, 0, 1).expect("open").take(100_000).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean - 1.0).abs() < 0.02, "mean {mean} ms");
        assert!((deviation - 1.0).abs() < 0.03, "deviation {deviation} ms");
    }

    #[test]
    fn replay_gives_each_thread_its_turns() {
        let pacing = Pacing::Replay { at_ns: vec![5, 10, 20, 40, 80] };
        let share = |thread| Arrivals::new(&pacing, 0, thread, 2).expect("open").collect::<Vec<_>>();
        assert_eq!((share(0), share(1)), (vec![5, 20, 80], vec![10, 40]));
    }

    #[test]
    fn a_closed_loop_has_no_arrivals() {
        assert!(Arrivals::new(&Pacing::default(), 0, 0, 1).is_none());
    }
}
