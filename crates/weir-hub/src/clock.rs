//! The hub's time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The system's time, except that it never decreases and never stands still: after the system's clock was set back, it advances at half
/// the speed until the system's clock has caught up. Retries, pauses and limits go on meanwhile.
pub(crate) struct HubClock {
    now_us: u64,
    looked: Instant,
}

/// Milliseconds since 1970, by the system's clock.
pub(crate) fn unix_ms() -> u64 {
    unix_us() / 1_000
}

/// Microseconds since 1970, by the system's clock.
fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

impl HubClock {
    pub(crate) fn new() -> HubClock {
        HubClock { now_us: unix_us(), looked: Instant::now() }
    }

    /// Milliseconds since 1970, when [`HubClock::look`] was called last.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// Advances to the present.
    pub(crate) fn look(&mut self) {
        self.advance(unix_us(), Instant::now());
    }

    fn advance(&mut self, unix_us: u64, now: Instant) {
        let passed_us = now.saturating_duration_since(self.looked).as_micros() as u64;
        self.looked = now;
        self.now_us = unix_us.max(self.now_us + passed_us / 2);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_goes_on_after_the_clock_was_set_back() {
        let began = Instant::now();
        let mut clock = HubClock { now_us: 10_000_000, looked: began };
        let mut at = |seconds: u64, unix_s: u64| {
            clock.advance(unix_s * 1_000_000, began + Duration::from_secs(seconds));
            clock.now_ms()
        };
        assert_eq!(at(1, 11), 11_000);
        assert_eq!(at(2, 3_612), 3_612_000, "it was set forward by an hour");
        assert_eq!(at(4, 14), 3_613_000, "it was set back");
        assert_eq!(at(3_600, 3_610), 3_613_000 + 1_798_000);
        assert_eq!(at(7_200, 7_210), 7_211_000, "the system's clock is nearly there");
        assert_eq!(at(7_204, 7_214), 7_214_000);
    }
}
