//! The difference that a change makes, member by member.

use serde_json::{Value, json};

use super::redact::redact;
use crate::document::{AdminRole, MASK, WrittenResource};
use crate::stores::resources::{ResourceChange, StoredResource};

/// A change, member by member. Secrets are masked for every role: what is compared ends in the logs of pipelines.
pub(super) fn difference(change: &ResourceChange) -> Value {
    let value = |resource: &Option<StoredResource>| resource.as_ref().map(StoredResource::value);
    let members = members(change.key.list(), value(&change.before).as_ref(), value(&change.after).as_ref());
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

/// The members in which two resources of files differ, as `path`, `before` and `after`. Values of secrets are masked, and texts with
/// values of the environment.
pub fn masked_members(list: &str, before: Option<&WrittenResource>, after: Option<&WrittenResource>) -> Vec<Value> {
    let shown = |one: &WrittenResource| {
        let mut value = one.value.clone();
        redact(list, &mut value, AdminRole::Viewer);
        for pointer in &one.variables {
            if let Some(text) = value.pointer_mut(pointer) {
                *text = MASK.into();
            }
        }
        value
    };
    let values = [before, after].map(|one| one.map(|one| &one.value));
    members_as_shown(values, [before.map(shown), after.map(shown)])
}

/// The members in which two resources differ that are as they may be shown.
pub(super) fn members_of_shown(before: Option<&Value>, after: Option<&Value>) -> Vec<Value> {
    let mut members = Vec::new();
    compare("", before, after, &mut members);
    members
}

/// The members in which two versions of a resource differ.
fn members(list: &str, before: Option<&Value>, after: Option<&Value>) -> Vec<Value> {
    let shown = |value: Option<&Value>| {
        let mut value = value?.clone();
        redact(list, &mut value, AdminRole::Viewer);
        Some(value)
    };
    members_as_shown([before, after], [shown(before), shown(after)])
}

/// The members in which values differ, as they are shown. One of which only what is hidden differs is named, and its values are masked.
fn members_as_shown([before, after]: [Option<&Value>; 2], shown: [Option<Value>; 2]) -> Vec<Value> {
    let (mut members, mut seen) = (Vec::new(), Vec::new());
    compare("", before, after, &mut members);
    compare("", shown[0].as_ref(), shown[1].as_ref(), &mut seen);
    // What is left out and masked keeps the order of the rest, so `seen` has some of `members`, in the same order.
    let mut seen = seen.into_iter().peekable();
    let masked = |value: &Value| if value.is_null() { Value::Null } else { MASK.into() };
    for member in &mut members {
        *member = seen.next_if(|one| one["path"] == member["path"]).unwrap_or_else(|| {
            json!({ "path": member["path"], "before": masked(&member["before"]), "after": masked(&member["after"]) })
        });
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
    let is_compared = |name: &str| !path.is_empty() || name != "update_time";
    for (name, value) in old.iter().filter(|(name, _)| is_compared(name)) {
        compare(&below(name), Some(value), new.get(name), members);
    }
    for (name, value) in new.iter().filter(|(name, _)| is_compared(name) && !old.contains_key(*name)) {
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
        let told = difference(&change);
        assert_eq!(told["action"], "changed");
        let expected = json!([
            {"path": "uri", "before": "/a", "after": "/b"},
            {"path": "upstream.type", "before": "chash", "after": null},
            {"path": "name", "before": null, "after": "n"},
        ]);
        assert_eq!(told["members"], expected);
        let made = ResourceChange { before: None, ..change };
        assert_eq!(difference(&made)["action"], "created");
    }

    #[test]
    fn a_secret_that_differs_is_named_and_masked() {
        let of = |key: &str, name: &str| json!({ "username": name, "plugins": { "key-auth": { "key": key } } });
        let told = members("consumers", Some(&of("old", "a")), Some(&of("new", "b")));
        let expected = json!([
            {"path": "username", "before": "a", "after": "b"},
            {"path": "plugins.key-auth.key", "before": MASK, "after": MASK},
        ]);
        assert_eq!(Value::from(told), expected);
    }

    #[test]
    fn a_private_key_that_differs_is_named_and_no_role_sees_it() {
        let of = |key: &str, sni: &str| stored(json!({"cert": "c", "key": key, "snis": [sni], "keys": [key]}));
        let told = |before, after| {
            let change = ResourceChange { key: ResourceKey::new("ssls", "s"), before, after };
            difference(&change)["members"].clone()
        };
        assert_eq!(told(of("k", "a"), of("k", "a")), json!([]));
        let expected = json!([
            {"path": "key", "before": MASK, "after": MASK},
            {"path": "snis", "before": ["a"], "after": ["b"]},
            {"path": "keys", "before": MASK, "after": MASK},
        ]);
        assert_eq!(told(of("k", "a"), of("l", "b")), expected);
        assert_eq!(told(None, of("k", "a"))[1], json!({"path": "key", "before": null, "after": MASK}));
        let token = |token: &str| Some(json!({"uri": "http://v", "token": token}));
        let told = members("secrets", token("t").as_ref(), token("u").as_ref());
        assert_eq!(told, [json!({"path": "token", "before": MASK, "after": MASK})]);
    }
}
