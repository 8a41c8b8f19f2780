//! PATCH: changes of parts of a resource.

use serde_json::{Map, Value};

use crate::text::json::{MAX_DEPTH, depth};

/// The most bytes of a resource that is patched: patches could let it grow beyond what a body may have, one after the other.
const MAX_PATCHED: usize = 2 << 20;

/// # Errors
/// If a patched resource is larger than one may be.
pub(super) fn check_size(value: &Value) -> Result<(), String> {
    match value.to_string().len() {
        0..=MAX_PATCHED => Ok(()),
        bytes => Err(format!("the resource would have {bytes} bytes; {MAX_PATCHED} are allowed")),
    }
}

/// Merges `patch` into `value` as Apache APISIX does: maps are merged, `null` removes, and everything else replaces, including an
/// empty map.
pub(super) fn merge(value: &mut Value, patch: &Value) {
    let (Value::Object(members), Value::Object(changes)) = (&mut *value, patch) else {
        *value = patch.clone();
        return;
    };
    let is_removed = |key: &String| changes.get(key).is_some_and(Value::is_null);
    let mut removed = changes.iter().filter(|(_, change)| change.is_null());
    match (removed.next(), removed.next()) {
        (None, _) => {}
        (Some((key, _)), None) => drop(members.shift_remove(key)),
        // One pass for all: to remove one member moves those behind it.
        (Some(_), Some(_)) => members.retain(|key, _| !is_removed(key)),
    }
    for (key, change) in changes {
        match (change, members.get_mut(key)) {
            (Value::Null, _) => {}
            (Value::Object(inner), Some(member @ Value::Object(_))) if !inner.is_empty() => merge(member, change),
            _ => drop(members.insert(key.clone(), without_nulls(change))),
        }
    }
}

/// A new value: `null` has nothing to remove, so it is left out.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        value => value.clone(),
    }
}

/// Sets the value at a path such as `upstream/nodes`; missing maps are created.
///
/// # Errors
/// If something on the path is not a map, or lists and maps would be nested deeper than in a body.
pub(super) fn set(value: &mut Value, path: &str, new: Value) -> Result<(), String> {
    let invalid = || format!("invalid sub-path: /{path}");
    // The value itself is a level, and so is each step but the last.
    if path.split('/').count() + depth(&new) > MAX_DEPTH {
        return Err(format!("lists and maps would be nested more than {MAX_DEPTH} levels deep by this sub-path"));
    }
    let mut steps = path.split('/').peekable();
    let mut at = value;
    while let Some(step) = steps.next() {
        if at.is_array() {
            return Err(format!(
                "{}; `{step}` is below a list, whose elements have no path: replace the list as a whole",
                invalid()
            ));
        }
        let Value::Object(members) = at else { return Err(invalid()) };
        if steps.peek().is_none() {
            match new {
                Value::Null => drop(members.shift_remove(step)),
                new => drop(members.insert(step.to_owned(), new)),
            }
            return Ok(());
        }
        at = members.entry(step).or_insert_with(|| Value::Object(Map::new()));
    }
    Err(invalid())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_merge_and_everything_else_replaces() {
        let mut value =
            json!({"uri": "/a", "methods": ["GET", "PUT"], "upstream": {"type": "chash", "nodes": {"a:1": 1}}});
        merge(&mut value, &json!({"methods": ["POST"], "upstream": {"nodes": {"b:1": 2}}, "new": {"x": null, "y": 1}}));
        assert_eq!(
            value,
            json!({"uri": "/a", "methods": ["POST"], "upstream": {"type": "chash", "nodes": {"a:1": 1, "b:1": 2}}, "new": {"y": 1}})
        );
        let mut many = json!({"a": 1, "b": 2, "c": 3});
        merge(&mut many, &json!({"a": null, "b": null, "d": null, "e": 4}));
        assert_eq!(many, json!({"c": 3, "e": 4}));
        merge(&mut value, &json!({"methods": null, "upstream": {"nodes": {}}, "new": null, "absent": null}));
        assert_eq!(value, json!({"uri": "/a", "upstream": {"type": "chash", "nodes": {}}}));
    }

    #[test]
    fn a_path_is_set_or_said_to_be_none() {
        let mut value = json!({"uri": "/a", "upstream": {"nodes": {"a:1": 1}}});
        assert_eq!(set(&mut value, "upstream/nodes", json!({"b:1": 2})), Ok(()));
        assert_eq!(set(&mut value, "plugins/mocking/response_status", json!(201)), Ok(()));
        let expected =
            json!({"uri": "/a", "upstream": {"nodes": {"b:1": 2}}, "plugins": {"mocking": {"response_status": 201}}});
        assert_eq!(value, expected);
        assert_eq!(set(&mut value, "uri/x", json!(1)), Err("invalid sub-path: /uri/x".to_owned()));
        let in_list = set(&mut json!({ "uris": ["/a"] }), "uris/0", json!("/b")).expect_err("a list has no paths");
        assert!(
            in_list.ends_with("; `0` is below a list, whose elements have no path: replace the list as a whole"),
            "{in_list}"
        );
        let deep = |steps: usize, new: Value| set(&mut json!({}), &vec!["a"; steps].join("/"), new);
        assert_eq!(deep(MAX_DEPTH, json!(1)), Ok(()));
        assert!(deep(MAX_DEPTH + 1, json!(1)).is_err_and(|problem| problem.contains("levels deep")));
        assert!(deep(MAX_DEPTH, json!([])).is_err() && deep(MAX_DEPTH - 1, json!([])).is_ok());
    }
}
