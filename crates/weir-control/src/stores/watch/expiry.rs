//! Logs certificates that will expire: 30 days, 7 days and a day before, and when they have expired. An X.509-SVID lasts for an hour
//! rather than for months: it is logged when the Workload API is late with the next one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::compile::CertificateEnd;
use crate::document::{WorkloadIdentity, X509Svid};

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

/// The reminders of X.509-SVIDs that were logged.
#[derive(Debug, Default)]
pub(super) struct SvidReminders {
    /// By the fingerprint: whether it has expired.
    told: HashMap<String, bool>,
    due: Option<Instant>,
}

/// How often X.509-SVIDs are looked at.
const SVIDS_EVERY: Duration = Duration::from_secs(5);
/// An X.509-SVID is late if less than this part of its life is left. Implementations renew at about a half.
const LATE_PART: i64 = 6;

impl SvidReminders {
    /// Logs the reminders that are due.
    pub(super) fn follow(&mut self, identity: Option<Arc<WorkloadIdentity>>) {
        let now = Instant::now();
        let Some(identity) = identity.filter(|_| self.due.is_none_or(|due| due <= now)) else { return };
        self.due = Some(now + SVIDS_EVERY);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for (svid, is_over) in self.due(&identity.svids, i64::try_from(now).unwrap_or(i64::MAX)) {
            match is_over {
                true => {
                    tracing::error!(spiffe_id = %svid.id, "an X.509-SVID has expired, and the Workload API has given no other")
                }
                false => {
                    tracing::warn!(spiffe_id = %svid.id, "an X.509-SVID expires soon, and the Workload API has given no other")
                }
            }
        }
    }

    fn due<'s>(&mut self, svids: &'s [X509Svid], now_s: i64) -> Vec<(&'s X509Svid, bool)> {
        let late = |svid: &X509Svid| match svid.until.saturating_sub(now_s) {
            ..=0 => Some(true),
            left => (left < svid.until.saturating_sub(svid.since) / LATE_PART).then_some(false),
        };
        let late: Vec<_> = svids.iter().filter_map(|svid| Some((svid, late(svid)?))).collect();
        let is_new = |(svid, is_over): &&(&X509Svid, bool)| self.told.get(&svid.fingerprint) != Some(is_over);
        let due = late.iter().filter(is_new).copied().collect();
        self.told = late.iter().map(|(svid, is_over)| (svid.fingerprint.clone(), *is_over)).collect();
        due
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use weir_net::tls::{self, SpiffeId};

    use super::*;

    #[test]
    fn svid_is_told_once_when_it_is_late_and_once_when_it_has_expired() {
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::default().self_signed(&key).expect("a certificate");
        let svid = |name: &str, since, until| X509Svid {
            id: SpiffeId::parse("spiffe://a.test/x").expect("an id"),
            hint: "".into(),
            certified: tls::certified_der(vec![certificate.der().clone()], key.serialize_der()).expect("a pair"),
            since,
            until,
            fingerprint: name.to_owned(),
        };
        let mut reminders = SvidReminders::default();
        let mut told = |svid: &X509Svid, now_s| -> Vec<bool> {
            reminders.due(std::slice::from_ref(svid), now_s).into_iter().map(|(_, is_over)| is_over).collect()
        };
        let (first, next) = (svid("1", 0, 3_600), svid("2", 3_500, 7_100));
        assert_eq!(told(&first, 3_000), [false; 0]);
        assert_eq!(told(&first, 3_001), [false]);
        assert_eq!(told(&first, 3_002), [false; 0]);
        assert_eq!(told(&first, 3_600), [true]);
        assert_eq!(told(&first, 3_700), [false; 0]);
        assert_eq!(told(&next, 3_700), [false; 0]);
        assert_eq!(told(&next, 6_600), [false]);
    }

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
