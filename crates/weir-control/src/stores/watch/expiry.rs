//! Logs certificates that will expire: 30 days, 7 days and a day before, and when they have expired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::compile::CertificateEnd;

const DAY_S: i64 = 24 * 60 * 60;
/// How often certificates are checked while the configuration does not change.
const EVERY: Duration = Duration::from_secs(60);

/// The time left until a certificate expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nearness {
    Month,
    Week,
    Day,
    Over,
}

impl Nearness {
    fn of(left_s: i64) -> Option<Nearness> {
        match left_s {
            ..=0 => Some(Nearness::Over),
            _ if left_s <= DAY_S => Some(Nearness::Day),
            _ if left_s <= 7 * DAY_S => Some(Nearness::Week),
            _ if left_s <= 30 * DAY_S => Some(Nearness::Month),
            _ => None,
        }
    }

    fn log(self, certificate: &str) {
        match self {
            Nearness::Over => tracing::error!(%certificate, "a certificate has expired"),
            Nearness::Day => tracing::error!(%certificate, "a certificate expires within a day"),
            Nearness::Week => tracing::warn!(%certificate, "a certificate expires within 7 days"),
            Nearness::Month => tracing::info!(%certificate, "a certificate expires within 30 days"),
        }
    }
}

/// The reminders logged so far, so that each is logged once.
#[derive(Debug, Default)]
pub(super) struct ExpiryReminders {
    told: HashMap<Arc<str>, Nearness>,
    /// The snapshot revision of the last check, and when the next one is due.
    looked_at: Option<(u64, Instant)>,
}

impl ExpiryReminders {
    /// Logs the reminders that are due.
    pub(super) fn follow(&mut self, revision: u64, certificates: &[CertificateEnd]) {
        let now = Instant::now();
        if self.looked_at.is_some_and(|(seen, due)| seen == revision && now < due) {
            return;
        }
        self.looked_at = Some((revision, now + EVERY));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for (name, nearness) in self.due(certificates, i64::try_from(now).unwrap_or(i64::MAX)) {
            nearness.log(&name);
        }
    }

    fn due(&mut self, certificates: &[CertificateEnd], now_s: i64) -> Vec<(Arc<str>, Nearness)> {
        let near: HashMap<Arc<str>, Nearness> = certificates
            .iter()
            .filter_map(|end| Some((Arc::clone(&end.name), Nearness::of(end.at.saturating_sub(now_s))?)))
            .collect();
        let is_new = |(name, nearness): &(&Arc<str>, &Nearness)| self.told.get(*name) != Some(nearness);
        let due = near.iter().filter(is_new).map(|(name, nearness)| (Arc::clone(name), *nearness)).collect();
        self.told = near;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nearness_is_told_once_and_again_after_a_renewal() {
        let at = |at| [CertificateEnd { name: "a.test".into(), at }];
        let mut reminders = ExpiryReminders::default();
        let end = 100 * DAY_S;
        let mut told = |at_s: i64, now_s| -> Vec<Nearness> {
            reminders.due(&at(at_s), now_s).into_iter().map(|(_, nearness)| nearness).collect()
        };
        assert_eq!(told(end, end - 31 * DAY_S), []);
        assert_eq!(told(end, end - 30 * DAY_S), [Nearness::Month]);
        assert_eq!(told(end, end - 29 * DAY_S), []);
        assert_eq!(told(end, end - 7 * DAY_S), [Nearness::Week]);
        assert_eq!(told(end, end - DAY_S), [Nearness::Day]);
        assert_eq!(told(end, end), [Nearness::Over]);
        assert_eq!(told(end + 90 * DAY_S, end), []);
        assert_eq!(told(end + 90 * DAY_S, end + 60 * DAY_S), [Nearness::Month]);
    }
}
