//! Verifications of intent (W3C WebSub §5.3) that failed: why, how often, and the lines of the error log.

use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use crate::attempt::{DeliveryFailure, NoAnswerReason};
use crate::topic::origin_of;

/// The shortest time between two lines of the log: anyone may send requests with callbacks that do not answer.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Why a callback did not confirm a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerificationFailure {
    /// The callback was not reached, or its response has another status than 2xx.
    Failed(DeliveryFailure),
    /// The content of the response is not the challenge.
    WrongChallenge,
}

impl VerificationFailure {
    /// The names in metrics, in the order of [`VerificationFailure::index`].
    const NAMES: [&str; 10] = [
        "other",
        "name_lookup",
        "address_denied",
        "connect",
        "tls",
        "timed_out",
        "broken",
        "connect_timed_out",
        "status",
        "wrong_challenge",
    ];

    fn index(self) -> usize {
        match self {
            VerificationFailure::Failed(DeliveryFailure::NoAnswer(reason)) => reason as usize,
            VerificationFailure::Failed(DeliveryFailure::Status(_)) => 8,
            VerificationFailure::WrongChallenge => 9,
        }
    }
}

impl From<NoAnswerReason> for VerificationFailure {
    fn from(reason: NoAnswerReason) -> VerificationFailure {
        VerificationFailure::Failed(DeliveryFailure::NoAnswer(reason))
    }
}

impl fmt::Display for VerificationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerificationFailure::Failed(failure) => failure.fmt(f),
            VerificationFailure::WrongChallenge => f.write_str("the content of its response is not the challenge"),
        }
    }
}

/// How many verifications failed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedVerifications([u64; VerificationFailure::NAMES.len()]);

impl FailedVerifications {
    fn count(&mut self, failure: VerificationFailure) {
        self.0[failure.index()] += 1;
    }

    /// Each reason's name, and the number of verifications that failed for it.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        VerificationFailure::NAMES.into_iter().zip(self.0)
    }
}

impl AddAssign for FailedVerifications {
    fn add_assign(&mut self, other: FailedVerifications) {
        self.0.iter_mut().zip(other.0).for_each(|(own, more)| *own += more);
    }
}

/// A request that a subscriber is asked to confirm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedVerification<'a> {
    pub(crate) mode: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) callback: &'a str,
}

/// Counts and logs failed verifications.
#[derive(Debug, Default)]
pub(crate) struct VerificationReports {
    pub(crate) failed: FailedVerifications,
    told: Option<Instant>,
    /// How many failures were not logged since the last line.
    untold: u64,
}

impl VerificationReports {
    /// Counts a failure. Returns the line to log, unless there was one a moment ago.
    pub(crate) fn report(
        &mut self,
        asked: AskedVerification<'_>,
        failure: VerificationFailure,
        now: Instant,
    ) -> Option<String> {
        self.failed.count(failure);
        if self.told.is_some_and(|told| now < told + TELL_AGAIN) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        let AskedVerification { mode, topic, callback } = asked;
        // The path and the query of a callback may contain a secret.
        let host = origin_of(callback).unwrap_or_default();
        let more = match std::mem::take(&mut self.untold) {
            0 => String::new(),
            untold => format!(" (and {untold} more since the last such line)"),
        };
        Some(format!("a request to {mode} to {topic} was not verified, callback at {host}: {failure}{more}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_all_counted_and_a_few_are_told() {
        let callback = "http://c.example/hidden?token=hidden";
        let asked = AskedVerification { mode: "subscribe", topic: "http://t.example/1", callback };
        let mut reports = VerificationReports::default();
        let begin = Instant::now();
        let denied = NoAnswerReason::AddressDenied.into();
        let first = reports.report(asked, denied, begin).expect("the first one is told");
        assert_eq!(
            first,
            "a request to subscribe to http://t.example/1 was not verified, callback at http://c.example: \
             callbacks at the address of the host are not allowed by `subscribe.callbacks`"
        );
        let status = VerificationFailure::Failed(DeliveryFailure::Status(404));
        assert_eq!(reports.report(asked, status, begin), None);
        let later = reports.report(asked, VerificationFailure::WrongChallenge, begin + TELL_AGAIN);
        assert!(later.expect("it is told").ends_with("is not the challenge (and 1 more since the last such line)"));
        let counted: Vec<_> = reports.failed.by_reason().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("address_denied", 1), ("status", 1), ("wrong_challenge", 1)]);
    }

    #[test]
    fn every_reason_has_its_name() {
        let all = [
            (NoAnswerReason::Unknown, "other"),
            (NoAnswerReason::NameLookup, "name_lookup"),
            (NoAnswerReason::AddressDenied, "address_denied"),
            (NoAnswerReason::Connect, "connect"),
            (NoAnswerReason::Tls, "tls"),
            (NoAnswerReason::TimedOut, "timed_out"),
            (NoAnswerReason::Broken, "broken"),
            (NoAnswerReason::ConnectTimedOut, "connect_timed_out"),
        ];
        for (reason, name) in all {
            assert_eq!(VerificationFailure::NAMES[VerificationFailure::from(reason).index()], name);
        }
    }
}
