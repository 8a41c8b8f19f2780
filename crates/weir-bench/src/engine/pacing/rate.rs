//! A rate that changes over time, and the arrivals that it produces.

use crate::engine::plan::Rate;

/// A period in which the rate changes linearly from `from` to `to` (requests per second).
#[derive(Clone, Copy, Debug)]
struct RateSegment {
    from: f64,
    to: f64,
    /// The length in seconds; infinite for the last segment.
    length: f64,
}

/// Integrates a [`Rate`]: finds the time until a number of arrivals has accumulated.
#[derive(Clone, Debug)]
pub(super) struct RateWalk {
    segments: std::vec::IntoIter<RateSegment>,
    segment: RateSegment,
    /// The start of the segment, in seconds from the start of the rate.
    segment_start: f64,
    /// The position within the segment, in seconds.
    inside: f64,
}

impl RateWalk {
    pub(super) fn new(rate: &Rate) -> Self {
        let flat = |rate| RateSegment { from: rate, to: rate, length: f64::INFINITY };
        let segments = match rate {
            Rate::Constant(rate) => vec![flat(*rate)],
            Rate::Steps(steps) => {
                let last = steps.last().map_or(0.0, |step| step.rate);
                let step = |rate: f64, ms: u64| RateSegment { from: rate, to: rate, length: ms as f64 / 1e3 };
                steps.iter().map(|each| step(each.rate, each.for_ms)).chain([flat(last)]).collect()
            }
            Rate::Ramp { from, to, over_ms } => {
                vec![RateSegment { from: *from, to: *to, length: *over_ms as f64 / 1e3 }, flat(*to)]
            }
        };
        let mut segments = segments.into_iter();
        let segment = segments.next().unwrap_or(flat(0.0));
        Self { segments, segment, segment_start: 0.0, inside: 0.0 }
    }

    /// Advances until `amount` arrivals (1.0 is one) have accumulated; returns the time in seconds from the start.
    /// `None` if the rate stays at zero.
    pub(super) fn advance(&mut self, mut amount: f64) -> Option<f64> {
        loop {
            let RateSegment { from, to, length } = self.segment;
            let slope = if length.is_finite() && length > 0.0 { (to - from) / length } else { 0.0 };
            let here = from + slope * self.inside;
            let left = length - self.inside;
            let area_left = if left.is_finite() { left * (here + to) / 2.0 } else { f64::INFINITY * here };
            // With a rate that stays at zero, the area is infinity times zero, which is not a number.
            if area_left.is_nan() {
                return None;
            }
            if amount < area_left {
                // here·x + slope·x²/2 = amount, in the form that stays exact for small slopes.
                let x = 2.0 * amount / (here + (here * here + 2.0 * slope * amount).max(0.0).sqrt());
                self.inside += x;
                return Some(self.segment_start + self.inside);
            }
            amount -= area_left;
            self.segment_start += length;
            self.inside = 0.0;
            self.segment = self.segments.next()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::RateStep;

    fn times(rate: &Rate, count: usize) -> Vec<f64> {
        let mut walk = RateWalk::new(rate);
        (0..count).map_while(|_| walk.advance(1.0)).collect()
    }

    #[test]
    fn a_constant_rate_is_evenly_spaced() {
        let times = times(&Rate::Constant(50_000.0), 1_000_000);
        let last = times.last().expect("a million arrivals");
        assert!((last - 20.0).abs() < 1e-6, "{last}");
    }

    #[test]
    fn steps_follow_one_another_and_the_last_one_stays() {
        let step = |rate, for_ms| RateStep { rate, for_ms };
        let times = times(&Rate::Steps(vec![step(10.0, 1_000), step(0.0, 1_000), step(20.0, 1_000)]), 1_000);
        let within = |from: f64, to: f64| times.iter().filter(|at| (from..to).contains(*at)).count();
        assert!(within(0.0, 1.01).abs_diff(10) <= 1);
        assert_eq!(within(1.01, 2.0), 0);
        assert!(within(2.0, 3.0).abs_diff(20) <= 1);
        assert!(within(10.0, 11.0).abs_diff(20) <= 1);
    }

    #[test]
    fn a_ramp_accumulates_its_triangle() {
        // From 0 to 100 per second in 10 s: 500 arrivals, half of them after 7.07 s.
        let times = times(&Rate::Ramp { from: 0.0, to: 100.0, over_ms: 10_000 }, 500);
        assert!((times[249] - 7.071).abs() < 1e-3, "{}", times[249]);
        assert!((times[499] - 10.0).abs() < 1e-6, "{}", times[499]);
        assert!(times.is_sorted());
    }

    #[test]
    fn a_rate_at_rest_ends_the_walk() {
        assert_eq!(times(&Rate::Constant(0.0), 5).len(), 0);
        assert!(times(&Rate::Ramp { from: 10.0, to: 0.0, over_ms: 1_000 }, 50).len() <= 5);
    }
}
