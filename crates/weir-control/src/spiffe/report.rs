//! The state of the Workload API, as the status, the metrics and the console show it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use serde::Serialize;

use super::SharedWorkload;
use crate::document::WorkloadIdentity;

/// A handle to the state of the Workload API that is followed.
#[derive(Clone, Default)]
pub struct WorkloadHandle(Arc<Mutex<Option<Arc<SharedWorkload>>>>);

/// The state of the Workload API. Without keys.
#[derive(Clone, Debug, Serialize)]
pub struct SpiffeReport {
    pub socket: String,
    /// Whether it answers at present.
    pub connected: bool,
    /// Why it does not.
    pub error: Option<String>,
    /// When it answered last, in milliseconds since 1970.
    pub received_at: Option<u64>,
    /// Answers that had something new.
    pub updates: u64,
    /// The first is the default.
    pub svids: Vec<SvidReport>,
    /// The trust domains with a bundle.
    pub trust_domains: Vec<String>,
    /// Why trust bundles are left out, and what others lack.
    pub bundle_problems: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SvidReport {
    pub spiffe_id: String,
    pub hint: Option<String>,
    /// Its validity, in seconds since 1970.
    pub since: i64,
    pub expires: i64,
    pub fingerprint: String,
}

impl WorkloadHandle {
    pub(super) fn show(&self, followed: Option<&Arc<SharedWorkload>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = followed.map(Arc::clone);
    }

    fn followed(&self) -> Option<Arc<SharedWorkload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the Workload API has given last.
    pub(crate) fn identity(&self) -> Option<Arc<WorkloadIdentity>> {
        self.followed()?.state().identity.clone()
    }

    /// Why the node has no identity; `None` if it has one, or no Workload API.
    pub fn absence(&self) -> Option<String> {
        self.followed()?.absence()
    }

    /// `None` if the node has none.
    pub fn report(&self) -> Option<SpiffeReport> {
        let followed = self.followed()?;
        let state = followed.state();
        let identity = state.identity.as_deref();
        let ms = |at: std::time::SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let svids = identity.into_iter().flat_map(|identity| &identity.svids).map(|svid| SvidReport {
            spiffe_id: svid.id.to_string(),
            hint: Some(svid.hint.to_string()).filter(|hint| !hint.is_empty()),
            since: svid.since,
            expires: svid.until,
            fingerprint: svid.fingerprint.clone(),
        });
        let trust_domains = identity.into_iter().flat_map(|identity| identity.bundles.trust_domains());
        Some(SpiffeReport {
            socket: followed.endpoint.to_string(),
            connected: state.failure.is_none() && identity.is_some(),
            error: state.failure.clone(),
            received_at: state.received_at.map(ms),
            updates: state.updates,
            svids: svids.collect(),
            trust_domains: trust_domains.map(str::to_owned).collect(),
            bundle_problems: identity.map(|identity| identity.complaints.clone()).unwrap_or_default(),
        })
    }
}
