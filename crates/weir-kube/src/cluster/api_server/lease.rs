//! A Lease of Kubernetes: what several processes agree by on who of them writes.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};

use super::super::{ClusterError, LeaseAnswer, LeaseRequest};
use super::within;

/// Takes or renews a Lease. Each write names the version that it is based on, so of two writers only one succeeds.
pub(super) async fn hold(
    api: Api<Lease>,
    request: &LeaseRequest,
    stale: Option<&str>,
) -> Result<LeaseAnswer, ClusterError> {
    let now = Timestamp::now();
    let (written, before, mark) = match within(api.get_opt(&request.name)).await? {
        None => {
            let metadata = ObjectMeta { name: Some(request.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(spec(request, None, now)) };
            (within(api.create(&PostParams::default(), &lease)).await, None, String::new())
        }
        Some(mut lease) => {
            let before = lease.spec.take().unwrap_or_default();
            let mark = mark(&before);
            if !is_own(&before, request) && !is_free(&before) && stale != Some(&*mark) {
                return Ok(LeaseAnswer::HeldByOther { holder: holder(&before), mark });
            }
            let holder = holder(&before);
            lease.spec = Some(spec(request, Some(before), now));
            (within(api.replace(&request.name, &PostParams::default(), &lease)).await, Some(holder), mark)
        }
    };
    match written {
        Ok(_) => Ok(LeaseAnswer::Held { before }),
        // Another process was faster; which one, the next request says.
        Err(error) if error.is_conflict() => Ok(LeaseAnswer::HeldByOther { holder: String::new(), mark }),
        Err(error) => Err(error),
    }
}

/// Gives a Lease up that this process has. What it says of the time stays: it was held.
pub(super) async fn release(api: Api<Lease>, request: &LeaseRequest) -> Result<(), ClusterError> {
    let Some(mut lease) = within(api.get_opt(&request.name)).await? else { return Ok(()) };
    match &mut lease.spec {
        Some(spec) if is_own(spec, request) => spec.holder_identity = None,
        _ => return Ok(()),
    }
    within(api.replace(&request.name, &PostParams::default(), &lease)).await.map(drop)
}

/// Names a renewal.
fn mark(lease: &LeaseSpec) -> String {
    let renewed = lease.renew_time.as_ref().map(|MicroTime(at)| at.to_string()).unwrap_or_default();
    format!("{} {renewed}", holder(lease))
}

fn holder(lease: &LeaseSpec) -> String {
    lease.holder_identity.clone().unwrap_or_default()
}

fn is_free(lease: &LeaseSpec) -> bool {
    holder(lease).is_empty()
}

fn is_own(lease: &LeaseSpec, request: &LeaseRequest) -> bool {
    lease.holder_identity.as_deref() == Some(&*request.holder)
}

fn spec(request: &LeaseRequest, before: Option<LeaseSpec>, now: Timestamp) -> LeaseSpec {
    let before = before.unwrap_or_default();
    let stays = is_own(&before, request);
    LeaseSpec {
        holder_identity: Some(request.holder.clone()),
        lease_duration_seconds: Some(request.duration.as_secs() as i32),
        acquire_time: if stays { before.acquire_time } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(before.lease_transitions.unwrap_or_default() + i32::from(!stays)),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(holder: &str) -> LeaseRequest {
        let (namespace, name) = ("weir".to_owned(), "weir".to_owned());
        LeaseRequest { namespace, name, holder: holder.to_owned(), duration: Duration::from_secs(15) }
    }

    #[test]
    fn each_renewal_has_another_mark() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let first = spec(&request("a"), None, at(1_000));
        assert_eq!(mark(&first), mark(&first.clone()));
        assert_ne!(mark(&first), mark(&spec(&request("a"), Some(first.clone()), at(1_002))));
        assert!(is_free(&LeaseSpec::default()) && !is_free(&first));
    }

    #[test]
    fn another_holder_counts_as_a_transition() {
        let start = Timestamp::from_second(1_000).expect("a time");
        let first = spec(&request("a"), None, start);
        let later = Timestamp::from_second(1_010).expect("a time");
        let renewed = spec(&request("a"), Some(first.clone()), later);
        assert_eq!((&renewed.acquire_time, renewed.lease_transitions), (&first.acquire_time, first.lease_transitions));
        let taken = spec(&request("b"), Some(renewed.clone()), later);
        assert_eq!(taken.lease_transitions, renewed.lease_transitions.map(|count| count + 1));
        assert_eq!(taken.holder_identity.as_deref(), Some("b"));
    }
}
