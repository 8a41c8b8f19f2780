//! References between resources, in both directions. They are checked as part of the change, so no other change can come between.

use serde_json::Value;

use super::kinds::{self, ResourceKind};
use crate::document::kinds::KINDS;
use crate::stores::resources::{ResourceKey, ResourceView};
use crate::stores::writes::PlanRefusal;

/// Checks that every resource of a store that a resource refers to exists.
pub(super) fn check(view: &ResourceView, kind: &ResourceKind, value: &Value) -> Result<(), PlanRefusal> {
    for (member, list) in kind.references() {
        let Some(referred) = kinds::find(list) else { continue };
        let Some(id) = value.get(member).and_then(id_text) else { continue };
        if view.get(&ResourceKey::new(list, &id)).is_none() {
            let name = referred.name;
            let problem = format!("failed to fetch {name} info by {name} id [{id}], response code: 404");
            return Err(PlanRefusal::Wrong(problem));
        }
    }
    Ok(())
}

/// The text of an id, which may be a text or a number.
pub(super) fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Refuses to delete a resource that others refer to, and names one of these.
pub(super) fn refuse_if_used(view: &ResourceView, key: &ResourceKey) -> Result<(), PlanRefusal> {
    let Some(kind) = kinds::find(key.list()) else { return Ok(()) };
    if let Some((user, id)) = user(view, key) {
        let directly = if key.list() == "services" { " directly" } else { "" };
        let (name, user) = (kind.name, user.name);
        let problem = format!("can not delete this {name}{directly}, {user} [{id}] is still using it now");
        return Err(PlanRefusal::Wrong(problem));
    }
    if key.list() == "upstreams"
        && let Some((user, id)) = split_with(view, key.id())
    {
        let problem =
            format!("can not delete this upstream, plugin in {} [{id}] is still using it now", user.schema_name());
        return Err(PlanRefusal::Wrong(problem));
    }
    Ok(())
}

/// The first resource with a key that refers to this one: its kind and its id.
fn user(view: &ResourceView, key: &ResourceKey) -> Option<(&'static ResourceKind, String)> {
    let all = KINDS.iter().flat_map(|kind| kind.references().map(move |(member, list)| (kind, member, list)));
    for (kind, member, _) in all.filter(|(_, _, list)| *list == key.list()) {
        let uses = |json: &str, value: &dyn Fn() -> Value| {
            json.contains(member) && value().get(member).and_then(id_text).as_deref() == Some(key.id())
        };
        let all = view.list(kind.list);
        let found = all.iter().find(|(_, resource)| uses(&resource.json, &|| resource.value()));
        if let Some((user, _)) = found {
            return Some((kind, user.id().to_owned()));
        }
    }
    None
}

/// The first resource whose `traffic-split` refers to the upstream.
fn split_with(view: &ResourceView, id: &str) -> Option<(&'static ResourceKind, String)> {
    for kind in KINDS.iter().filter(|kind| kind.has_plugins()) {
        for (key, resource) in view.list(kind.list) {
            if resource.json.contains("traffic-split") && names(&resource.value()["plugins"]["traffic-split"], id) {
                return Some((kind, key.id().to_owned()));
            }
        }
    }
    None
}

fn names(options: &Value, id: &str) -> bool {
    match options {
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| name == "upstream_id" && id_text(value).as_deref() == Some(id) || names(value, id)),
        Value::Array(items) => items.iter().any(|item| names(item, id)),
        _ => false,
    }
}
