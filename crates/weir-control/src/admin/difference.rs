//! The difference that a change makes, member by member.

use serde_json::{Value, json};

use super::redact::redact;
use crate::document::{AdminRole, MASK};
use crate::stores::resources::{ResourceChange, StoredResource};

/// A change, member by member, without secrets that the reader's role may not see.
pub(super) fn difference(change: &ResourceChange, role: AdminRole) -> Value {
    let value = |resource: &Option<StoredResource>| {
        let mut value = resource.as_ref().map(StoredResource::value)?;
        redact(change.key.list(), &mut value, role);
        Some(value)
    };
    let (before, after) = (value(&change.before), value(&change.after));
    let mut members = Vec::new();
    compare("", before.as_ref(), after.as_ref(), &mut members);
    json!({ "key": change.key, "action": action(change), "members": members })
}

/// What a change did to its resource.
pub(super) fn action(change: &ResourceChange) -> &'static str {
    match (&change.before, &change.after) {
        (None, _) => "created",
        (_, None) => "deleted",
        _ => "changed",
    }
}

/// The names of the members that a change modified, including members whose values are secret.
pub(super) fn changed_members(change: &ResourceChange) -> Vec<String> {
    let value = |resource: &Option<StoredResource>| resource.as_ref().map(StoredResource::value);
    let mut members = Vec::new();
    compare("", value(&change.before).as_ref(), value(&change.after).as_ref(), &mut members);
    members.iter().filter_map(|member| member["path"].as_str().map(str::to_owned)).collect()
}

/// The members in which two versions of a resource differ, as `path`, `before` and `after`. Values of secrets are masked.
pub fn masked_members(list: &str, before: Option<&Value>, after: Option<&Value>) -> Vec<Value> {
    let masked = |value: Option<&Value>| {
        let mut value = value?.clone();
        redact(list, &mut value, AdminRole::Viewer);
        Some(value)
    };
    let (mut members, mut shown) = (Vec::new(), Vec::new());
    compare("", before, after, &mut members);
    compare("", masked(before).as_ref(), masked(after).as_ref(), &mut shown);
    for member in &mut members {
        // A member of which only a secret differs is equal once it is masked.
        *member = match shown.iter().find(|shown| shown["path"] == member["path"]) {
            Some(shown) => shown.clone(),
            None => json!({ "path": member["path"], "before": MASK, "after": MASK }),
        };
    }
    members
}

/// Compares two values and appends each member that differs. `update_time` of a changed resource is left out: the server sets it at
/// every change.
fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, members: &mut Vec<Value>) {
    if before == after {
        return;
    }
    let maps = (before.and_then(Value::as_object), after.and_then(Value::as_object));
    let (Some(old), Some(new)) = maps else {
        if path.is_empty() {
            let all = before.or(after).and_then(Value::as_object).into_iter().flatten();
            return all.for_each(|(name, _)| {
                compare(
                    name,
                    before.and_then(|value| value.get(name)),
                    after.and_then(|value| value.get(name)),
                    members,
                );
            });
        }
        return members.push(json!({ "path": path, "before": before, "after": after }));
    };
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for (name, value) in old.iter().filter(|(name, _)| !path.is_empty() || *name != "update_time") {
        compare(&below(name), Some(value), new.get(name), members);
    }
    for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
        compare(&below(name), None, Some(value), members);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::resources::ResourceKey;

    fn stored(value: Value) -> Option<StoredResource> {
        Some(StoredResource { json: value.to_string().into(), created: 1, modified: 1, expires_ms: None })
    }

    #[test]
    fn a_difference_names_members() {
        let change = ResourceChange {
            key: ResourceKey::new("routes", "r"),
            before: stored(json!({"uri": "/a", "update_time": 1, "upstream": {"nodes": {"a:1": 1}, "type": "chash"}})),
            after: stored(json!({"uri": "/b", "update_time": 2, "upstream": {"nodes": {"a:1": 1}}, "name": "n"})),
        };
        let told = difference(&change, AdminRole::Viewer);
        assert_eq!(told["action"], "changed");
        let expected = json!([
            {"path": "uri", "before": "/a", "after": "/b"},
            {"path": "upstream.type", "before": "chash", "after": null},
            {"path": "name", "before": null, "after": "n"},
        ]);
        assert_eq!(told["members"], expected);
        let made = ResourceChange { before: None, ..change };
        assert_eq!(difference(&made, AdminRole::Viewer)["action"], "created");
    }

    #[test]
    fn a_secret_that_differs_is_named_and_masked() {
        let of = |key: &str, name: &str| json!({ "username": name, "plugins": { "key-auth": { "key": key } } });
        let told = masked_members("consumers", Some(&of("old", "a")), Some(&of("new", "b")));
        let expected = json!([
            {"path": "username", "before": "a", "after": "b"},
            {"path": "plugins.key-auth.key", "before": MASK, "after": MASK},
        ]);
        assert_eq!(Value::from(told), expected);
    }
}
