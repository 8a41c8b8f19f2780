//! How long an endpoint takes to answer, as one worker measures it.

use std::cell::Cell;

/// After this time without answers an average has decayed to half, as with APISIX's `ewma`.
const FORGET_NS: f64 = 10e9;

/// The times from a granted permit to the head of the response, averaged in two ways.
#[derive(Debug, Default)]
pub(crate) struct LatencyEstimate {
    /// For `least_time`: an average in which older answers weigh less.
    pub mean: PeakAverage,
    /// For `ewma`: the same, except that a slower answer replaces the average.
    pub peak: PeakAverage,
}

impl LatencyEstimate {
    pub(crate) fn record(&self, took_ns: u64, now_ns: u64) {
        let took_ns = took_ns as f64;
        self.mean.add_sample(took_ns, now_ns);
        if took_ns > self.peak.decayed(now_ns) {
            self.peak.set(took_ns, now_ns);
        } else {
            self.peak.add_sample(took_ns, now_ns);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PeakAverage {
    /// 0 before the first answer.
    ns: Cell<f64>,
    at_ns: Cell<u64>,
}

impl PeakAverage {
    fn set(&self, ns: f64, now_ns: u64) {
        self.ns.set(ns.max(1.0));
        self.at_ns.set(now_ns);
    }

    /// The decay factor for the time since the last answer. A quotient and not an exponential: it starts alike, decays more
    /// slowly, and costs one division.
    fn decay_factor(&self, now_ns: u64) -> f64 {
        FORGET_NS / (FORGET_NS + now_ns.saturating_sub(self.at_ns.get()) as f64)
    }

    /// Adds a new time to the average. Answers in quick succession weigh little each, but never less than a hundredth.
    fn add_sample(&self, took_ns: f64, now_ns: u64) {
        let kept = if self.ns.get() == 0.0 { 0.0 } else { self.decay_factor(now_ns).min(0.99) };
        self.set(self.ns.get() * kept + took_ns * (1.0 - kept), now_ns);
    }

    /// The decayed average: an endpoint that was slow gets another exchange after a while.
    fn decayed(&self, now_ns: u64) -> f64 {
        self.ns.get() * self.decay_factor(now_ns)
    }

    /// The expected time of a further exchange beside those in flight. An endpoint without an answer yet gets one exchange,
    /// and no further one before the first answer.
    pub(crate) fn cost(&self, now_ns: u64, in_flight: u32) -> f64 {
        match (self.ns.get() == 0.0, in_flight) {
            (true, 0) => 0.0,
            (true, waiting) => f64::MAX / 1e6 + f64::from(waiting),
            (false, others) => self.decayed(now_ns) * (f64::from(others) + 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_counts_at_once_and_fades() {
        let latency = LatencyEstimate::default();
        latency.record(1_000_000, 1);
        latency.record(100_000_000, 2);
        assert!(latency.peak.cost(2, 0) > 99e6);
        assert!(latency.mean.cost(2, 0) < 3e6, "one answer among others");
        assert!(latency.peak.cost(10_000_000_002, 0) < 51e6, "half of it after ten seconds");
        for answer in 0..1_000 {
            latency.record(1_000_000, 3 + answer);
        }
        assert!(latency.peak.cost(1_003, 0) < 2e6);
    }

    #[test]
    fn the_unknown_is_tried_once() {
        let (unknown, known) = (PeakAverage::default(), PeakAverage::default());
        known.add_sample(1e6, 1);
        assert!(unknown.cost(1, 0) < known.cost(1, 0));
        assert!(unknown.cost(1, 1) > known.cost(1, 1_000));
    }
}
