//! The log of deliveries that fail.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::attempt::DeliveryFailure;
use crate::topic::origin_of;

/// How often failures of one subscription are logged.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// The most lines in this time. Many subscriptions fail at once if a host is down.
const MOST_LINES: usize = 32;

/// Logs failed deliveries, each subscription once a minute at most.
#[derive(Debug, Default)]
pub(crate) struct DeliveryReports {
    /// When failures of a subscription were logged, by its number.
    told: HashMap<u64, Instant>,
    /// How many failures were not logged since the last line.
    untold: u64,
}

impl DeliveryReports {
    /// The line to log about a failed delivery, unless there were enough of them in the last minute.
    pub(crate) fn report(
        &mut self,
        subscription: u64,
        callback: &str,
        failure: DeliveryFailure,
        now: Instant,
    ) -> Option<String> {
        self.told.retain(|_, told| now < *told + TELL_AGAIN);
        if self.told.contains_key(&subscription) || self.told.len() >= MOST_LINES {
            self.untold += 1;
            return None;
        }
        self.told.insert(subscription, now);
        // The path and the query of a callback may contain a secret.
        let host = origin_of(callback).unwrap_or_default();
        let more = match std::mem::take(&mut self.untold) {
            0 => String::new(),
            untold => format!(" (and {untold} more failed attempts since the last such line)"),
        };
        Some(format!("a delivery to subscription {subscription}, callback at {host}, has failed: {failure}{more}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_once_a_minute_and_subscription_and_without_the_path() {
        let mut reports = DeliveryReports::default();
        let begin = Instant::now();
        let mut told = |subscription, now| {
            reports.report(subscription, "http://c.example/hidden?token=hidden", DeliveryFailure::Status(500), now)
        };
        let first = told(1, begin).expect("the first one is told");
        assert_eq!(first, "a delivery to subscription 1, callback at http://c.example, has failed: status 500");
        assert_eq!(told(1, begin), None);
        assert!(
            told(2, begin).expect("another one").ends_with(" (and 1 more failed attempts since the last such line)")
        );
        assert!(told(1, begin + TELL_AGAIN).is_some());
    }

    #[test]
    fn lines_about_many_subscriptions_are_limited() {
        let mut reports = DeliveryReports::default();
        let begin = Instant::now();
        let lines = (0..1_000).filter_map(|number| reports.report(number, "", DeliveryFailure::Status(500), begin));
        assert_eq!(lines.count(), MOST_LINES);
        let later = reports.report(0, "", DeliveryFailure::Status(500), begin + TELL_AGAIN).expect("a minute later");
        assert!(later.contains(&format!("and {} more", 1_000 - MOST_LINES)), "{later}");
    }
}
