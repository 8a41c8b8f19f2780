//! What of a status is to be written.

use serde_json::{Map, Value};

/// The most bytes of a condition's message; the API server refuses 32,769.
const LONGEST_MESSAGE: usize = 1_024;

/// The fields of `wanted` that `known` does not have, as a merge patch; `None` if there are none. Conditions without a
/// `lastTransitionTime` get `now`. Fields of `known` that `wanted` does not name stay.
pub(super) fn difference(known: &Value, wanted: &Value, now: &str) -> Option<Value> {
    let Value::Object(fields) = wanted else { return None };
    let mut changed = Map::new();
    for (name, field) in fields {
        let mut field = field.clone();
        complete(&mut field, now);
        if known.get(name).unwrap_or(&Value::Null) != &field && !are_both_empty(known.get(name), &field) {
            changed.insert(name.clone(), field);
        }
    }
    (!changed.is_empty()).then_some(Value::Object(changed))
}

/// Whether `known` has all fields of `wanted`. Conditions without a `lastTransitionTime` are the same at any time.
pub(super) fn is_same(known: &Value, wanted: &Value) -> bool {
    let Value::Object(fields) = wanted else { return false };
    fields.iter().all(|(name, field)| {
        known.get(name).is_some_and(|known| is_equal(known, field)) || are_both_empty(known.get(name), field)
    })
}

fn is_equal(known: &Value, wanted: &Value) -> bool {
    match (known, wanted) {
        (Value::Object(known), Value::Object(wanted)) => {
            let has_no_time = !wanted.contains_key(TIME) && known.contains_key(TIME);
            known.len() == wanted.len() + usize::from(has_no_time)
                && wanted.iter().all(|(name, value)| known.get(name).is_some_and(|known| is_equal(known, value)))
        }
        (Value::Array(known), Value::Array(wanted)) => {
            known.len() == wanted.len() && known.iter().zip(wanted).all(|(known, wanted)| is_equal(known, wanted))
        }
        (known, wanted) => known == wanted,
    }
}

/// Of a condition: absent in a status that is wanted if it is to be the time of writing.
const TIME: &str = "lastTransitionTime";

/// An empty list is as good as none.
fn are_both_empty(known: Option<&Value>, wanted: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    known.is_none_or(is_empty) && is_empty(wanted)
}

fn complete(value: &mut Value, now: &str) {
    match value {
        Value::Object(members) => {
            let is_condition = ["type", "status", "reason"].iter().all(|key| members.contains_key(*key));
            if is_condition {
                let time = members.entry(TIME).or_insert(Value::Null);
                if time.as_str().is_none_or(str::is_empty) {
                    *time = now.into();
                }
                if let Some(Value::String(message)) = members.get_mut("message") {
                    shorten(message);
                }
            }
            members.values_mut().for_each(|member| complete(member, now));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| complete(item, now)),
        _ => {}
    }
}

pub(super) fn shorten(message: &mut String) {
    if message.len() <= LONGEST_MESSAGE {
        return;
    }
    let mut end = LONGEST_MESSAGE - '…'.len_utf8();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message.push('…');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn condition(time: &str) -> Value {
        let mut condition = json!({ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "" });
        if !time.is_empty() {
            condition["lastTransitionTime"] = time.into();
        }
        json!({ "conditions": [condition] })
    }

    #[test]
    fn an_equal_status_is_not_written() {
        let known = condition("2025-01-01T00:00:00Z");
        assert_eq!(difference(&known, &known, NOW), None);
        assert_eq!(difference(&Value::Null, &json!({ "addresses": [] }), NOW), None);
    }

    #[test]
    fn a_status_is_the_same_at_any_time() {
        let known = condition("2025-01-01T00:00:00Z");
        assert!(is_same(&known, &condition("")) && is_same(&known, &known));
        assert!(!is_same(&known, &condition(NOW)));
        assert!(!is_same(&condition(""), &known));
        let mut other = condition("");
        other["conditions"][0]["status"] = "False".into();
        assert!(!is_same(&known, &other) && !is_same(&Value::Null, &other));
        assert!(is_same(&json!({ "a": 1, "others": true }), &json!({ "a": 1, "b": [] })));
    }

    #[test]
    fn a_condition_without_a_time_gets_one() {
        assert_eq!(difference(&Value::Null, &condition(""), NOW), Some(condition(NOW)));
    }

    #[test]
    fn only_fields_that_differ_are_written() {
        let known = json!({ "a": 1, "b": [1], "others": true });
        assert_eq!(difference(&known, &json!({ "a": 1, "b": [2] }), NOW), Some(json!({ "b": [2] })));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut wanted = condition(NOW);
        wanted["conditions"][0]["message"] = "ä".repeat(4_000).into();
        let written = difference(&Value::Null, &wanted, NOW).expect("it differs");
        let message = written["conditions"][0]["message"].as_str().expect("a text");
        assert!(message.len() <= LONGEST_MESSAGE && message.ends_with("ä…"), "{message}");
    }
}
