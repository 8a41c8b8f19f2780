//! The times of renewals, and of attempts after failures.

use std::time::{Duration, SystemTime};

use weir_net::backoff::Backoff;

use super::storage::Validity;

/// The delay after the first refusal by the authority. Let's Encrypt allows five failures an hour.
const AFTER_REFUSAL: Duration = Duration::from_secs(5 * 60);
/// The delay after the first failure without a response.
const AFTER_SILENCE: Duration = Duration::from_secs(5);
/// The longest delay, unless the authority requests a longer one.
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
/// The longest delay after the start of a process, counted from the last failure: the operator may have corrected the cause.
pub(super) const AFTER_START: Duration = Duration::from_secs(15 * 60);

/// Failures since the last success.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FailuresInRow {
    pub refusals: u32,
    /// Attempts without an answer since the last refusal. They lengthen no pause after a refusal.
    silences: u32,
}

impl FailuresInRow {
    pub(super) fn of_refusals(refusals: u32) -> FailuresInRow {
        FailuresInRow { refusals, silences: 0 }
    }

    /// Counts a failure, and returns how many of its kind there were.
    pub(super) fn add(&mut self, refused: bool) -> u32 {
        if refused {
            *self = FailuresInRow::of_refusals(self.refusals.saturating_add(1));
            return self.refusals;
        }
        self.silences = self.silences.saturating_add(1);
        self.silences
    }

    pub(super) fn all(self) -> u32 {
        self.refusals.saturating_add(self.silences)
    }
}

/// The time of a renewal. `chance`, from 0 to 1, spreads the renewals of certificates that were ordered together.
pub(super) fn renewal(validity: Validity, renew_before: Option<Duration>, chance: f64) -> SystemTime {
    let lifetime = validity.until.duration_since(validity.since).unwrap_or_default();
    // More than half of the lifetime would mean to order all the time.
    let before = renew_before.unwrap_or(lifetime / 3).min(lifetime / 2);
    let earlier = (lifetime / 30).mul_f64(chance.clamp(0.0, 1.0));
    validity.until.checked_sub(before + earlier).unwrap_or(validity.until)
}

/// The delay after this many consecutive failures. `lifetime` is that of the present certificate, and limits the delay if it is
/// short.
pub(super) fn pause(failures: u32, refused: bool, lifetime: Option<Duration>, chance: f64) -> Duration {
    let first = if refused { AFTER_REFUSAL } else { AFTER_SILENCE };
    let longest = lifetime.map_or(LONGEST, |lifetime| (lifetime / 24).min(LONGEST)).max(first);
    Backoff::new(first, longest).after(failures).mul_f64(0.75 + chance.clamp(0.0, 1.0) / 2.0)
}

/// The time until then, such as `89 days`.
pub(super) fn left_until(then: SystemTime) -> String {
    readable(then.duration_since(SystemTime::now()).unwrap_or_default().as_secs())
}

fn readable(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn days(since: u32, until: u32) -> Validity {
        Validity { since: UNIX_EPOCH + DAY * since, until: UNIX_EPOCH + DAY * until }
    }

    #[test]
    fn a_certificate_is_renewed_with_a_third_of_its_life_left() {
        let due = |validity, before, chance| {
            renewal(validity, before, chance).duration_since(UNIX_EPOCH).expect("later").as_secs_f64() / 86_400.0
        };
        assert_eq!(due(days(10, 100), None, 0.0), 70.0);
        assert_eq!(due(days(10, 100), None, 1.0), 67.0);
        assert_eq!(due(days(10, 100), Some(DAY * 7), 0.0), 93.0);
        assert_eq!(due(days(10, 100), Some(DAY * 365), 0.0), 55.0, "not all the time");
        assert_eq!(due(days(100, 10), None, 0.0), 10.0, "it makes no sense, and is over");
    }

    #[test]
    fn a_refusal_after_a_long_silence_is_the_first_one() {
        let mut failures = FailuresInRow::default();
        assert_eq!([false; 3].map(|refused| failures.add(refused)), [1, 2, 3]);
        assert_eq!((failures.add(true), failures.all()), (1, 1));
        assert_eq!((failures.add(false), failures.all()), (1, 2));
        assert_eq!((failures.add(true), failures.refusals), (2, 2));
    }

    #[test]
    fn pauses_grow_and_are_never_short_for_who_was_refused() {
        let minutes = |failures, refused| pause(failures, refused, None, 0.5).as_secs_f64() / 60.0;
        assert_eq!([1, 2, 3].map(|failures| minutes(failures, true)), [5.0, 10.0, 20.0]);
        assert_eq!(minutes(1_000, true), 720.0);
        assert_eq!(minutes(1, false) * 60.0, 5.0);
        assert_eq!(minutes(1_000, false), 720.0);
        assert_eq!(pause(9, true, Some(DAY), 0.5), Duration::from_secs(60 * 60));
        assert_eq!(pause(9, true, Some(Duration::from_secs(60)), 0.5), AFTER_REFUSAL);
        assert_eq!(pause(1, true, None, 0.0), AFTER_REFUSAL.mul_f64(0.75));
        assert_eq!(pause(1, true, None, 1.0), AFTER_REFUSAL.mul_f64(1.25));
    }

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        let told = [40, 119, 120, 7_199, 7_200, 172_799, 172_800, 89 * 86_400].map(readable);
        assert_eq!(told, ["40 s", "119 s", "2 min", "119 min", "2 hours", "47 hours", "2 days", "89 days"]);
    }
}
