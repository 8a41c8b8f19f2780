//! The decision whether a trace is recorded, made when the request is received.

use std::num::NonZeroU128;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_plugin::ConfigError;

/// Decides by the parent's decision and by the trace id, so that all nodes decide alike; or by a rate, which each node has for
/// itself.
#[derive(Clone, Debug)]
pub(crate) enum Sampler {
    AlwaysOn,
    AlwaysOff,
    Ratio(SampleRatio),
    Rate(SampleRate),
    /// As the parent decided; without a parent's decision, by another sampler.
    Parent(Box<Sampler>),
}

/// Samples a fraction of all traces: those whose random bits are at least a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleRatio {
    threshold: u64,
}

/// The random bits of a trace id: the last 56 (W3C Trace Context, level 2).
const RANDOM_BITS: u64 = (1 << 56) - 1;

impl SampleRatio {
    /// Of a fraction from 0 to 1.
    pub(crate) fn new(fraction: f64) -> SampleRatio {
        SampleRatio { threshold: ((1.0 - fraction) * (1_u64 << 56) as f64) as u64 }
    }

    pub(crate) fn holds(self, trace: u128) -> bool {
        trace as u64 & RANDOM_BITS >= self.threshold
    }
}

/// Samples a number of traces per second, and after a pause as many at once as a second allows, at least one.
#[derive(Clone, Debug)]
pub(crate) struct SampleRate {
    interval_ns: u64,
    /// How far `next_ns` may be ahead of a request that is sampled.
    burst_ns: u64,
    /// When the next trace is due if the traces are evenly spaced (GCRA), on the monotonic clock. Shared by all workers; a
    /// request that is not sampled only reads it.
    next_ns: Arc<AtomicU64>,
}

impl SampleRate {
    /// # Errors
    /// The rate is not from 0.001 to 1,000,000.
    pub(crate) fn new(per_second: f64, option: &str, next_ns: Arc<AtomicU64>) -> Result<SampleRate, ConfigError> {
        if !(1e-3..=1e6).contains(&per_second) {
            return Err(ConfigError::new(option, "must be from 0.001 to 1000000 traces per second"));
        }
        let interval_ns = (1e9 / per_second) as u64;
        let burst_ns = interval_ns * (per_second.ceil() as u64 - 1);
        Ok(SampleRate { interval_ns, burst_ns, next_ns })
    }

    fn holds(&self, now_ns: u64) -> bool {
        let mut next_ns = self.next_ns.load(Relaxed);
        loop {
            let due_ns = next_ns.max(now_ns);
            if due_ns - now_ns > self.burst_ns {
                return false;
            }
            match self.next_ns.compare_exchange_weak(next_ns, due_ns + self.interval_ns, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(newer_ns) => next_ns = newer_ns,
            }
        }
    }
}

impl Sampler {
    /// `parent`: the sampling decision of the caller, if it has sent one. `now_ns`: on the monotonic clock.
    pub(crate) fn samples(&self, trace: u128, parent: Option<bool>, now_ns: u64) -> bool {
        match self {
            Sampler::AlwaysOn => true,
            Sampler::AlwaysOff => false,
            Sampler::Ratio(ratio) => ratio.holds(trace),
            Sampler::Rate(rate) => rate.holds(now_ns),
            Sampler::Parent(root) => parent.unwrap_or_else(|| root.samples(trace, None, now_ns)),
        }
    }
}

/// A random trace id.
pub(crate) fn new_trace() -> u128 {
    rand::random::<NonZeroU128>().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_decide_as_they_are_called() {
        let ratio = |fraction| Sampler::Ratio(SampleRatio::new(fraction));
        let parent = |root| Sampler::Parent(Box::new(root));
        for (sampler, without, unsampled, sampled) in [
            (Sampler::AlwaysOn, true, true, true),
            (Sampler::AlwaysOff, false, false, false),
            (ratio(1.0), true, true, true),
            (ratio(0.0), false, false, false),
            (parent(Sampler::AlwaysOn), true, false, true),
            (parent(Sampler::AlwaysOff), false, false, true),
            (parent(ratio(0.0)), false, false, true),
        ] {
            for trace in [1, u128::MAX] {
                let found = [None, Some(false), Some(true)].map(|parent| sampler.samples(trace, parent, 0));
                assert_eq!(found, [without, unsampled, sampled], "{sampler:?}");
            }
        }
    }

    #[test]
    fn a_rate_is_kept_over_all_workers() {
        let rate = |per_second| SampleRate::new(per_second, "rate", Arc::default()).expect("valid");
        let sampled = |rate: &SampleRate, times_ms: std::ops::Range<u64>| {
            times_ms.filter(|time_ms| rate.holds(time_ms * 1_000_000)).count()
        };
        let ten = rate(10.0);
        let other_worker = ten.clone();
        assert_eq!((0..20).filter(|_| ten.holds(1_000_000_000)).count(), 10, "at once, what a second allows");
        assert!(!other_worker.holds(1_000_000_000));
        assert_eq!(sampled(&other_worker, 1_001..6_001), 50);
        let slow = rate(0.5);
        assert_eq!(sampled(&slow, 10_000..20_000), 5);
        let all = std::thread::scope(|scope| {
            let worker =
                |rate: SampleRate| scope.spawn(move || (0..10_000).filter(|_| rate.holds(60_000_000_000)).count());
            [worker(ten.clone()), worker(ten)].map(|thread| thread.join().expect("no panic")).iter().sum::<usize>()
        });
        assert_eq!(all, 10);
        for wrong in [0.0, -1.0, 2e6, f64::NAN] {
            assert!(SampleRate::new(wrong, "options.max_traces_per_second", Arc::default()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_ratio_is_a_share_of_all_ids() {
        let ratio = SampleRatio::new(0.25);
        let count = (0..1_u128 << 12).filter(|index| ratio.holds(index << 44)).count();
        assert_eq!(count, 1 << 10);
    }
}
