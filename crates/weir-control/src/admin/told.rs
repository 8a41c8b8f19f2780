//! What a caller is told of the findings about a change: nothing about resources, or secrets in them, that it may not read.

use super::keys::Caller;
use crate::document::AdminRole;
use crate::stores::live::LiveResources;
use crate::stores::resources::{PendingResources, ResourceKey, ResourceView};
use crate::text::diagnostic::{Diagnostic, FaultCause};

/// The findings, in place of those that say too much others that say why the change is refused.
pub(super) fn told_to(caller: &Caller, live: &LiveResources, findings: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let reads_all = caller.scopes.is_empty() && caller.role != AdminRole::Viewer;
    if reads_all {
        return findings;
    }
    let (set, nothing) = (live.committed(), PendingResources::new());
    let view = ResourceView { set: &set, pending: &nothing, revision: set.revision };
    // What is not there yet is the caller's own.
    let sees = |key: &str| {
        let Some(key) = ResourceKey::parse(key) else { return true };
        view.get(&key).is_none_or(|resource| caller.sees(&view, &key, resource))
    };
    findings.into_iter().map(|finding| told(caller, &sees, finding)).collect()
}

fn told(caller: &Caller, sees: &dyn Fn(&str) -> bool, mut finding: Diagnostic) -> Diagnostic {
    if let FaultCause::SameSecret(keys) = &finding.cause
        && (caller.role == AdminRole::Viewer || !keys.iter().all(|key| sees(key)))
    {
        let problem = "a key in this request is that of another consumer already".to_owned();
        let advice = Some("choose keys at random, so that they are different".to_owned());
        return Diagnostic { path: "consumers".to_owned(), problem, advice, cause: FaultCause::Text, ..finding };
    }
    let key = finding.path.split_once(": ").map_or(&*finding.path, |(key, _)| key);
    if !sees(key) {
        let problem = "a resource that this key or token does not cover would be invalid with this change".to_owned();
        return Diagnostic { path: String::new(), problem, advice: None, cause: FaultCause::Text, ..finding };
    }
    if !caller.scopes.is_empty() && matches!(finding.cause, FaultCause::Missing(_)) {
        // A suggestion would name resources of others.
        finding.advice = Some("refer to a resource that exists".to_owned());
    }
    finding
}
