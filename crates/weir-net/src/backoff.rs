//! Pauses between tries.

use std::time::Duration;

/// Pauses that double with each failure in a row, up to a longest one. Callers add what spreads them, so that those that failed
/// together do not try again together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// `longest` also limits the first pause.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest }
    }

    /// The pause after this many failures in a row: the first one counts as 1, and 0 is taken for 1.
    pub fn after(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(u32::BITS - 1);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        let pauses: Vec<u64> = (0..7).map(|failures| backoff.after(failures).as_secs()).collect();
        assert_eq!(pauses, [1, 1, 2, 4, 8, 10, 10]);
        assert_eq!(backoff.after(u32::MAX), Duration::from_secs(10));
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).after(2), Duration::MAX);
        let short = Backoff::new(Duration::from_secs(5), Duration::from_secs(3));
        assert_eq!(short.after(1), Duration::from_secs(3));
    }
}
