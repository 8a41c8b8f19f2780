//! Which of several processes writes statuses: the one that holds a Lease.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::{Cluster, LeaseAnswer, LeaseRequest};

/// After this time without renewal, another process takes the Lease.
const LEASE: Duration = Duration::from_secs(15);
/// After this time without renewal, the holder writes no more: well before another process may.
const RENEWED_WITHIN: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(2);

/// Where the Lease is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Empty stands for the namespace of the credentials.
    pub namespace: String,
    pub name: String,
    /// The name of this process, unique among those that take part.
    pub holder: String,
}

/// Whether this process may write.
#[derive(Clone, Default)]
pub(super) struct Leadership(Arc<Mutex<Option<Instant>>>);

impl Leadership {
    pub(super) fn is_held(&self) -> bool {
        self.renewed().is_some_and(|at| at.elapsed() < RENEWED_WITHIN)
    }

    fn renewed(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, renewed: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
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
        ticks.tick().await;
        // Only this process' clock counts, and only how long it has seen the same renewal: clocks of machines differ.
        let stale = other.as_ref().filter(|(_, since)| since.elapsed() > LEASE).map(|(mark, _)| mark.as_str());
        let asked = Instant::now();
        let was_held = leadership.is_held();
        match cluster.hold_lease(&request, stale).await {
            Ok(LeaseAnswer::Held) => {
                is_failing = false;
                leadership.set(Some(asked));
                other = None;
            }
            Ok(LeaseAnswer::HeldByOther { mark }) => {
                is_failing = false;
                leadership.set(None);
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
