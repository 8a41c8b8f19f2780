//! Scopes: keys and tokens that give access to some resources only.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Refused, json_of};
use super::keys::{Caller, may_write};
use crate::document::{AdminRole, AdminScope};
use crate::stores::live::ResourceEdit;
use crate::stores::resources::{ResourceChange, ResourceKey, ResourceView, StoredResource};
use crate::stores::writes::{Plan, PlanRefusal};

/// Lists whose resources have an effect on those of others, whatever their labels are: a scope includes them only if it names them.
const SHARED_LISTS: &[&str] = &["global_rules", "plugin_metadata", "secrets"];

/// Whether scopes include a resource. A credential has the labels of its consumer, which `consumer` looks up.
fn covers(
    scopes: &[AdminScope],
    key: &ResourceKey,
    value: &Value,
    consumer: impl Fn(&ResourceKey) -> Option<Value>,
) -> bool {
    let owner = key.consumer_of_credential().map(|name| consumer(&ResourceKey::new("consumers", name)));
    let labelled = match &owner {
        Some(owner) => owner.as_ref(),
        None => Some(value),
    };
    let has_label = |name: &str, text: &str| {
        let label = labelled.and_then(|value| value.get("labels")?.get(name)?.as_str());
        label == Some(text)
    };
    let is_of = |scope: &AdminScope| {
        let is_meant = scope.kinds.is_empty() && !SHARED_LISTS.contains(&key.list());
        (is_meant || scope.kinds.contains(&key.list()))
            && key.id().starts_with(&*scope.id_prefix)
            && scope.labels.iter().all(|(name, text)| has_label(name, text))
    };
    scopes.is_empty() || scopes.iter().any(is_of)
}

impl Caller {
    /// Whether the caller may see a resource of the store.
    pub(super) fn sees(&self, view: &ResourceView, key: &ResourceKey, resource: &StoredResource) -> bool {
        self.scopes.is_empty() || covers(&self.scopes, key, &resource.value(), |key| value_of(view, key))
    }

    /// Whether the caller may see a change, that is the resource before and after it.
    pub(super) fn sees_change(&self, view: &ResourceView, change: &ResourceChange) -> bool {
        [&change.before, &change.after].into_iter().flatten().all(|resource| self.sees(view, &change.key, resource))
    }

    /// Refuses operations on all resources to callers with scopes.
    pub(super) fn needs_all(&self, what: &str) -> Refused<()> {
        match self.scopes.is_empty() {
            true => Ok(()),
            false => {
                let problem = format!("{what} needs a key or a token without scopes");
                Err(Box::new(json_of(StatusCode::FORBIDDEN, &json!({ "error_msg": problem }))))
            }
        }
    }
}

fn value_of(view: &ResourceView, key: &ResourceKey) -> Option<Value> {
    view.get(key).map(StoredResource::value)
}

/// Wraps a plan so that it is refused if the caller may not make it: every change of resources passes through here. The scopes have
/// to cover each resource before and after the change.
pub(super) fn within(caller: &Caller, plan: Box<Plan>) -> Box<Plan> {
    let role = caller.role;
    let plan = within_scopes(caller, plan);
    Box::new(move |view| {
        let edits = plan(view)?;
        match edits.iter().map(edited).find(|key| !may_write(role, key.list())) {
            Some(key) => Err(PlanRefusal::NotOfRole(role.name(), key.clone())),
            None => Ok(edits),
        }
    })
}

/// Like [`within`], for a check: a viewer may check what only others may change.
pub(super) fn within_for_check(caller: &Caller, plan: Box<Plan>) -> Box<Plan> {
    match caller.role {
        AdminRole::Viewer => within_scopes(caller, plan),
        _ => within(caller, plan),
    }
}

fn within_scopes(caller: &Caller, plan: Box<Plan>) -> Box<Plan> {
    if caller.scopes.is_empty() {
        return plan;
    }
    let scopes = Arc::clone(&caller.scopes);
    Box::new(move |view| {
        let edits = plan(view)?;
        // The consumer of a credential may be created by the same plan.
        let consumer = |wanted: &ResourceKey| {
            let made = edits.iter().find_map(|edit| match edit {
                ResourceEdit::Put { key, value, .. } if key == wanted => Some(value.clone()),
                _ => None,
            });
            made.or_else(|| value_of(view, wanted))
        };
        for edit in &edits {
            let (key, after) = match edit {
                ResourceEdit::Put { key, value, .. } => (key, Some(value)),
                ResourceEdit::Delete { key } => (key, None),
            };
            let before = value_of(view, key);
            if ![before.as_ref(), after].into_iter().flatten().all(|value| covers(&scopes, key, value, consumer)) {
                return Err(PlanRefusal::OutOfScope(key.clone()));
            }
        }
        Ok(edits)
    })
}

fn edited(edit: &ResourceEdit) -> &ResourceKey {
    match edit {
        ResourceEdit::Put { key, .. } | ResourceEdit::Delete { key } => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::resources::{PendingResources, ResourceSet};

    fn scope(kinds: &[&'static str], id_prefix: &str, labels: &[(&str, &str)]) -> AdminScope {
        let labels = labels.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        AdminScope { kinds: kinds.to_vec(), id_prefix: id_prefix.into(), labels }
    }

    #[test]
    fn all_of_a_scope_must_hold_and_one_scope_is_enough() {
        let scopes = [scope(&["routes"], "a-", &[]), scope(&[], "", &[("team", "a")])];
        let none = |_: &ResourceKey| None;
        let of = |key: &str, value: Value| covers(&scopes, &ResourceKey::parse(key).expect("a key"), &value, none);
        assert!(of("routes/a-1", json!({})));
        assert!(!of("routes/b-1", json!({})));
        for list in ["global_rules", "plugin_metadata", "secrets"] {
            let key = format!("{list}/a-1");
            assert!(!of(&key, json!({"labels": {"team": "a"}})), "{list} concern others, so they have to be named");
        }
        assert!(!of("services/a-1", json!({"labels": {"team": "b"}})));
        assert!(of("services/b-1", json!({"labels": {"team": "a", "x": "y"}})));
        assert!(!of("consumers/jack/credentials/1", json!({"labels": {"team": "a"}})), "the consumer decides");
        let jack = |_: &ResourceKey| Some(json!({"labels": {"team": "a"}}));
        let key = ResourceKey::parse("consumers/jack/credentials/1").expect("a key");
        assert!(covers(&scopes, &key, &json!({}), jack));
    }

    #[test]
    fn scope_allows_no_change_of_labels_into_or_out_of_it() {
        let scopes: Arc<[AdminScope]> = [scope(&[], "", &[("team", "a")])].into();
        let caller = Caller { name: "ed".into(), role: AdminRole::Editor, scopes };
        let key = ResourceKey::new("routes", "r");
        let value = |team: &str| json!({"labels": {"team": team}});
        let planned = |before: &str, after: &str| {
            let stored =
                StoredResource { json: value(before).to_string().into(), created: 1, modified: 1, expires_ms: None };
            let set = ResourceSet { revision: 1, all: [(key.clone(), stored)].into() };
            let view = ResourceView { set: &set, pending: &PendingResources::new(), revision: 1 };
            let edit = ResourceEdit::Put { key: key.clone(), value: value(after), expires_ms: None };
            within(&caller, Box::new(move |_| Ok(vec![edit.clone()])))(&view).is_ok()
        };
        assert!(planned("a", "a"));
        assert!(!planned("b", "a"));
        assert!(!planned("a", "b"));
    }
}
