//! The decision whether a trace is recorded, made when the request is received.

use std::num::NonZeroU128;

use weir_plugin::ConfigError;

/// Decides by the parent's decision and by the trace id, so that all nodes decide alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sampler {
    AlwaysOn,
    AlwaysOff,
    Ratio(SampleRatio),
    /// As the parent decided; without a parent's decision, by another sampler.
    Parent(Box<Sampler>),
}

/// Samples a fraction of all traces: those whose random bits are at least a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRatio {
    threshold: u64,
}

/// The random bits of a trace id: the last 56 (W3C Trace Context, level 2).
const RANDOM_BITS: u64 = (1 << 56) - 1;

impl SampleRatio {
    /// # Errors
    /// The fraction is not from 0 to 1.
    pub fn new(fraction: f64, option: &str) -> Result<SampleRatio, ConfigError> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(ConfigError::new(option, "must be from 0 to 1"));
        }
        Ok(SampleRatio { threshold: ((1.0 - fraction) * (1_u64 << 56) as f64) as u64 })
    }

    pub fn holds(self, trace: u128) -> bool {
        trace as u64 & RANDOM_BITS >= self.threshold
    }
}

impl Sampler {
    /// `parent`: the sampling decision of the caller, if it has sent one.
    pub fn samples(&self, trace: u128, parent: Option<bool>) -> bool {
        match self {
            Sampler::AlwaysOn => true,
            Sampler::AlwaysOff => false,
            Sampler::Ratio(ratio) => ratio.holds(trace),
            Sampler::Parent(root) => parent.unwrap_or_else(|| root.samples(trace, None)),
        }
    }
}

/// A random trace id.
pub fn new_trace() -> u128 {
    rand::random::<NonZeroU128>().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_decide_as_they_are_called() {
        let ratio = |fraction| Sampler::Ratio(SampleRatio::new(fraction, "fraction").expect("valid"));
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
                let found = [None, Some(false), Some(true)].map(|parent| sampler.samples(trace, parent));
                assert_eq!(found, [without, unsampled, sampled], "{sampler:?}");
            }
        }
    }

    #[test]
    fn a_ratio_is_a_share_of_all_ids() {
        let ratio = SampleRatio::new(0.25, "fraction").expect("valid");
        let count = (0..1_u128 << 12).filter(|index| ratio.holds(index << 44)).count();
        assert_eq!(count, 1 << 10);
        for fraction in [-0.1, 1.1, f64::NAN] {
            let error = SampleRatio::new(fraction, "options.fraction").expect_err("refused").to_string();
            assert_eq!(error, "options.fraction: must be from 0 to 1");
        }
    }
}
