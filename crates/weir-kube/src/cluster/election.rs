//! Which of several processes writes statuses: the one that holds a Lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Cluster, LeaseAnswer, LeaseRequest};

/// After this time without renewal, another process takes the Lease.
const LEASE: Duration = Duration::from_secs(15);
/// After this time without renewal, the holder writes no more: well before another process may.
const RENEWED_WITHIN: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How long the end of a process waits until the Lease has been given up.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where the Lease is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Empty stands for the namespace of the credentials.
    pub namespace: String,
    pub name: String,
    /// The name of this process, unique among those that take part.
    pub holder: String,
}

/// How a process that may write came to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub since: Instant,
    /// Whether another process wrote before it, as far as is known.
    pub follows_another: bool,
}

/// Which process may write, as far as this one knows.
#[derive(Clone, Default)]
pub(super) struct Leadership(Arc<SharedLeadership>);

#[derive(Default)]
struct SharedLeadership {
    known: Mutex<KnownLease>,
    /// The election is to end.
    end: Notify,
    /// It has ended.
    ended: Notify,
}

#[derive(Default)]
struct KnownLease {
    /// The holder; empty if none is known.
    holder: String,
    /// When this process renewed it last.
    renewed: Option<Instant>,
    /// Since when this process has had it, without another one between.
    tenure: Option<Tenure>,
    has_seen_another: bool,
}

impl Leadership {
    pub(super) fn is_held(&self) -> bool {
        self.tenure().is_some()
    }

    /// `None` if this process may not write now.
    pub(super) fn tenure(&self) -> Option<Tenure> {
        let known = self.known();
        known.tenure.filter(|_| known.renewed.is_some_and(|at| at.elapsed() < RENEWED_WITHIN))
    }

    /// The name of the process that may write; empty if it is not known.
    pub(super) fn holder(&self) -> String {
        self.known().holder.clone()
    }

    /// Ends the election, and gives the Lease up if this process has it: within a short time, or not.
    pub(super) async fn give_up(&self) {
        self.0.end.notify_one();
        let _ = timeout(FAREWELL, self.0.ended.notified()).await;
    }

    fn known(&self) -> MutexGuard<'_, KnownLease> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownLease {
    /// This process has it, by a request that was made at `asked`; `before` had it until then.
    fn held(&mut self, own: &str, before: Option<&str>, asked: Instant) {
        let is_renewal = before == Some(own) && self.tenure.is_some();
        if !is_renewal {
            let follows_another = self.has_seen_another || before.is_some();
            self.tenure = Some(Tenure { since: Instant::now(), follows_another });
        }
        self.renewed = Some(asked);
        own.clone_into(&mut self.holder);
    }

    fn held_by_other(&mut self, holder: String) {
        (self.renewed, self.tenure, self.has_seen_another) = (None, None, true);
        self.holder = holder;
    }
}

/// Takes and renews the Lease for ever.
pub(super) async fn elect(cluster: Arc<dyn Cluster>, settings: ElectionSettings, leadership: Leadership) {
    let ElectionSettings { namespace, name, holder } = settings;
    let request = LeaseRequest { namespace, name, holder, duration: LEASE };
    let mut ticks = interval(RENEW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut other: Option<(String, Instant)> = None;
    let mut is_failing = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = leadership.0.end.notified() => {
                if std::mem::take(&mut *leadership.known()).tenure.is_some()
                    && let Err(error) = cluster.release_lease(&request).await
                {
                    tracing::warn!(lease = %request.name, %error, "the Lease of the status writer cannot be given up, others wait until it is over");
                }
                return leadership.0.ended.notify_one();
            }
        }
        // Only this process' clock counts, and only how long it has seen the same renewal: clocks of machines differ.
        let stale = other.as_ref().filter(|(_, since)| since.elapsed() > LEASE).map(|(mark, _)| mark.as_str());
        let asked = Instant::now();
        let was_held = leadership.is_held();
        match cluster.hold_lease(&request, stale).await {
            Ok(LeaseAnswer::Held { before }) => {
                is_failing = false;
                leadership.known().held(&request.holder, before.as_deref(), asked);
                other = None;
            }
            Ok(LeaseAnswer::HeldByOther { holder, mark }) => {
                is_failing = false;
                leadership.known().held_by_other(holder);
                if other.as_ref().is_none_or(|(known, _)| *known != mark) {
                    other = Some((mark, asked));
                }
            }
            // It may be that only the answer is missing; the time of the last renewal decides.
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(lease = %request.name, %error, "the Lease of the status writer cannot be renewed, it is tried again");
                }
            }
        }
        match (was_held, leadership.is_held()) {
            (false, true) => {
                tracing::info!(lease = %request.name, "this process writes the statuses of Kubernetes objects")
            }
            (true, false) => {
                tracing::warn!(lease = %request.name, "this process writes no statuses of Kubernetes objects any more")
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenure(lease: &KnownLease) -> (bool, Instant) {
        let Tenure { since, follows_another } = lease.tenure.expect("it is held");
        (follows_another, since)
    }

    #[test]
    fn a_tenure_lasts_until_another_process_has_the_lease() {
        let mut lease = KnownLease::default();
        lease.held("own", None, Instant::now());
        let (follows_another, since) = tenure(&lease);
        assert!(!follows_another, "the Lease is new");
        lease.held("own", Some("own"), Instant::now());
        assert_eq!(tenure(&lease), (false, since), "a renewal");
        lease.held_by_other("another".to_owned());
        assert_eq!((lease.tenure, &*lease.holder), (None, "another"));
        lease.held("own", Some("another"), Instant::now());
        assert!(tenure(&lease).0 && tenure(&lease).1 > since);
        assert_eq!(lease.holder, "own");
    }

    #[test]
    fn a_lease_that_was_deleted_is_that_of_the_process_that_had_it() {
        let mut lease = KnownLease::default();
        lease.held_by_other("another".to_owned());
        lease.held("own", None, Instant::now());
        assert!(tenure(&lease).0);
        for (before, which) in [("own", "another process of the same name"), ("", "one that has given it up")] {
            let mut new = KnownLease::default();
            new.held("own", Some(before), Instant::now());
            assert!(tenure(&new).0, "{which}");
        }
    }
}
