//! How much the clocks of two machines differ.

use serde::{Deserialize, Serialize};

/// One reading of another machine's clocks: sent at `asked_ns` and answered at `answered_ns` of the own monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub asked_ns: u64,
    pub answered_ns: u64,
    /// The own wall clock at `asked_ns`.
    pub own_unix_ns: u64,
    pub their_monotonic_ns: u64,
    pub their_unix_ns: u64,
}

/// Another machine's clocks, as seen from this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ClockOffset {
    /// Its monotonic clock less that of this machine.
    monotonic_ns: i128,
    /// Its wall clock less that of this machine.
    unix_ns: i128,
    /// Both are exact to this, in each direction: half of the shortest round trip.
    uncertainty_ns: u64,
}

impl ClockOffset {
    /// The offset by the shortest of several round trips, since the error is at most half of one. `None` without a reading.
    pub(super) fn of(readings: &[ClockReading]) -> Option<ClockOffset> {
        let trip_ns = |one: &&ClockReading| one.answered_ns.saturating_sub(one.asked_ns);
        let best = readings.iter().min_by_key(trip_ns)?;
        let half_ns = trip_ns(&best) / 2;
        let at_that_time = |ns: u64| i128::from(ns) + i128::from(half_ns);
        Some(ClockOffset {
            monotonic_ns: i128::from(best.their_monotonic_ns) - at_that_time(best.asked_ns),
            unix_ns: i128::from(best.their_unix_ns) - at_that_time(best.own_unix_ns),
            uncertainty_ns: half_ns,
        })
    }

    /// A time of this machine's monotonic clock in that of the other one.
    pub(super) fn there_ns(self, here_ns: u64) -> u64 {
        u64::try_from(i128::from(here_ns) + self.monotonic_ns).unwrap_or(0)
    }

    /// Microseconds that the other wall clock is ahead.
    pub(super) fn unix_us(self) -> f64 {
        self.unix_ns as f64 / 1e3
    }

    pub(super) fn uncertainty_us(self) -> f64 {
        self.uncertainty_ns as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading on the way to and from a machine whose clocks are ahead by 1,000 s and behind by 3 s.
    fn reading(asked_ns: u64, there_ns: u64, back_ns: u64) -> ClockReading {
        let wall_ns = 1_000_000_000_000_000 + asked_ns;
        ClockReading {
            asked_ns,
            answered_ns: asked_ns + there_ns + back_ns,
            own_unix_ns: wall_ns,
            their_monotonic_ns: asked_ns + there_ns + 1_000_000_000_000,
            their_unix_ns: wall_ns + there_ns - 3_000_000_000,
        }
    }

    #[test]
    fn clocks_that_differ_are_compared_by_the_shortest_round_trip() {
        let slow = reading(5_000, 40_000_000, 2_000_000);
        let even = reading(90_000_000, 10_000, 10_000);
        let offset = ClockOffset::of(&[slow, even, slow]).unwrap();
        assert_eq!(offset.there_ns(500), 1_000_000_000_500);
        assert_eq!(offset.unix_us(), -3_000_000.0);
        assert_eq!(offset.uncertainty_us(), 10.0);
    }

    #[test]
    fn the_error_of_an_uneven_way_is_within_the_uncertainty() {
        let uneven = reading(0, 900_000, 100_000);
        let offset = ClockOffset::of(&[uneven]).unwrap();
        let error_us = (offset.there_ns(0) as f64 - 1e12).abs() / 1e3;
        assert!(error_us > 0.0 && error_us <= offset.uncertainty_us(), "{error_us}");
        assert_eq!(ClockOffset::of(&[]), None);
    }

    #[test]
    fn a_clock_that_is_behind_gives_earlier_times() {
        let mut behind = reading(10_000_000_000, 0, 0);
        behind.their_monotonic_ns = 4_000_000_000;
        assert_eq!(ClockOffset::of(&[behind]).unwrap().there_ns(11_000_000_000), 5_000_000_000);
    }
}
