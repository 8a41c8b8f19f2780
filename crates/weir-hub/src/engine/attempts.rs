//! The latest attempts of a subscription, packed into little memory: a hub may have hundreds of thousands of subscriptions.

use crate::attempt::{DeliveryAttempt, DeliveryFailure};

/// Attempts kept of each subscription: 128 bytes.
const ATTEMPTS_KEPT: usize = 8;

/// The latest attempts. They are kept in memory only.
#[derive(Default)]
pub(super) struct LatestAttempts(Box<[PackedAttempt]>);

/// An attempt in 16 bytes.
#[derive(Clone, Copy)]
struct PackedAttempt {
    /// The time in milliseconds, with the duration in the lowest bits.
    time: u64,
    /// The event, with a replay flag and the failure's code in the lowest bits.
    event: u64,
}

/// Up to 17 minutes in milliseconds. A longer attempt is shown with this duration.
const DURATION_BITS: u32 = 20;
const CODE_BITS: u32 = 15;
/// The code for success: below all statuses, above the other reasons.
const NO_FAILURE: u16 = 99;

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl PackedAttempt {
    fn pack(attempt: &DeliveryAttempt) -> PackedAttempt {
        let code = attempt.failure.map_or(NO_FAILURE, DeliveryFailure::code);
        PackedAttempt {
            time: attempt.at_ms << DURATION_BITS | u64::from(attempt.took_ms).min(low(DURATION_BITS)),
            event: (attempt.event << 1 | u64::from(attempt.is_replay)) << CODE_BITS | u64::from(code) & low(CODE_BITS),
        }
    }

    fn unpack(self) -> DeliveryAttempt {
        let code = (self.event & low(CODE_BITS)) as u16;
        DeliveryAttempt {
            at_ms: self.time >> DURATION_BITS,
            event: self.event >> (CODE_BITS + 1),
            took_ms: (self.time & low(DURATION_BITS)) as u32,
            is_replay: self.event >> CODE_BITS & 1 == 1,
            failure: (code != NO_FAILURE).then(|| DeliveryFailure::from_code(code)),
        }
    }
}

impl LatestAttempts {
    pub(super) fn add(&mut self, attempt: &DeliveryAttempt) {
        let attempt = PackedAttempt::pack(attempt);
        if self.0.len() == ATTEMPTS_KEPT {
            self.0.rotate_left(1);
            self.0[ATTEMPTS_KEPT - 1] = attempt;
            return;
        }
        let mut longer = Vec::with_capacity(self.0.len() + 1);
        longer.extend_from_slice(&self.0);
        longer.push(attempt);
        self.0 = longer.into_boxed_slice();
    }

    /// Whether there is one, and the latest has failed.
    pub(super) fn last_has_failed(&self) -> bool {
        self.0.last().is_some_and(|attempt| attempt.unpack().failure.is_some())
    }

    /// The latest first.
    pub(super) fn list(&self) -> Vec<DeliveryAttempt> {
        self.0.iter().rev().map(|attempt| attempt.unpack()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::NoAnswerReason;

    #[test]
    fn the_latest_attempts_come_back_as_they_were() {
        let failures = [
            None,
            Some(DeliveryFailure::Status(503)),
            Some(DeliveryFailure::NoAnswer(NoAnswerReason::Unknown)),
            Some(DeliveryFailure::NoAnswer(NoAnswerReason::Broken)),
        ];
        let attempt = |number: u64| DeliveryAttempt {
            at_ms: 1_795_000_000_000 + number,
            event: 1 << 40 | number,
            took_ms: 30_000 + number as u32,
            is_replay: number.is_multiple_of(3),
            failure: failures[number as usize % failures.len()],
        };
        let mut latest = LatestAttempts::default();
        assert!(latest.list().is_empty());
        (0..20).for_each(|number| latest.add(&attempt(number)));
        let expected: Vec<_> = (0..20).rev().take(ATTEMPTS_KEPT).map(attempt).collect();
        assert_eq!(latest.list(), expected);
    }

    #[test]
    fn a_duration_that_is_too_long_is_cut() {
        let mut latest = LatestAttempts::default();
        latest.add(&DeliveryAttempt { at_ms: 5, event: 1, took_ms: u32::MAX, is_replay: false, failure: None });
        assert_eq!((latest.list()[0].took_ms, latest.list()[0].at_ms), (1_048_575, 5));
    }
}
