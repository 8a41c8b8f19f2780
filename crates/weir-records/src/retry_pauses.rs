//! The pauses before a batch is tried again.

use std::time::Duration;

use weir_net::backoff::Backoff;

use crate::batching::Retries;

const FIRST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(FIRST, MOST);
/// The longest pause that a receiver can ask for; a longer one is shortened to this.
const MOST_ASKED_FOR: Duration = Duration::from_secs(300);

/// Counts consecutive failures.
#[derive(Debug, Default)]
pub struct RetryPauses {
    failures: u32,
}

impl RetryPauses {
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether the last try has failed.
    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// The pause after a failure, or `None` if no try is left. `after` is the pause that the receiver asks for.
    pub fn next(&mut self, retries: Retries, after: Option<Duration>) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        match retries {
            Retries::Some { most, .. } if self.failures > most => None,
            Retries::Some { pause, .. } => Some(pause),
            Retries::Always => {
                // Jitter over the whole range, so that nodes that failed at the same time do not retry at the same time.
                let pause = BACKOFF.after(self.failures).mul_f64(fastrand::f64());
                Some(after.map_or(pause, |after| after.min(MOST_ASKED_FOR) + pause / 10))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_where_they_are_told_to() {
        let mut retries = RetryPauses::default();
        let some = Retries::Some { most: 2, pause: Duration::from_secs(1) };
        let pauses: Vec<_> = (0..3).map(|_| retries.next(some, None)).collect();
        assert_eq!(pauses, [Some(Duration::from_secs(1)), Some(Duration::from_secs(1)), None]);
        retries.reset();
        for turn in 0..100 {
            let pause = retries.next(Retries::Always, None).expect("it never ends");
            assert!(pause <= MOST && (turn > 0 || pause <= FIRST), "{pause:?}");
        }
        let asked = retries.next(Retries::Always, Some(Duration::from_secs(7))).expect("it never ends");
        assert!((7.0..=10.0).contains(&asked.as_secs_f64()), "{asked:?}");
    }
}
