//! Times and sizes among options: numbers in the unit that `x-weir-unit` says (`s`, `ms` or `bytes`), or texts such as `10s` and
//! `8MiB`, which become such numbers before the schema is enforced.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use super::reference::resolved;
use crate::units;

/// The unit of the numbers that a schema describes.
pub(super) fn of(node: &Value) -> Option<&str> {
    node["x-weir-unit"].as_str()
}

/// The options with numbers in place of texts with a unit. A text that is no time or size stays as it is.
pub(super) fn as_numbers<'v>(root: &Value, options: &'v Value) -> Cow<'v, Value> {
    let mut walk = UnitWalk { root, pointer: String::new(), found: Vec::new() };
    walk.within(root, options);
    if walk.found.is_empty() {
        return Cow::Borrowed(options);
    }
    let mut changed = options.clone();
    for (pointer, number) in walk.found {
        if let Some(value) = changed.pointer_mut(&pointer) {
            *value = Value::Number(number);
        }
    }
    Cow::Owned(changed)
}

/// Finds the texts that stand for numbers. What it finds is written afterwards: most options have none, and are not copied.
struct UnitWalk<'s> {
    root: &'s Value,
    /// The JSON Pointer (RFC 6901) of the value that is looked at.
    pointer: String,
    found: Vec<(String, Number)>,
}

impl UnitWalk<'_> {
    /// Looks into a value that this part of the schema describes.
    fn within(&mut self, node: &Value, value: &Value) {
        let node = resolved(self.root, node);
        match value {
            Value::String(text) => {
                if let Some(number) = of(node).and_then(|unit| number(unit, text)) {
                    self.found.push((self.pointer.clone(), number));
                }
            }
            Value::Object(members) => {
                let others = &node["additionalProperties"];
                for (name, member) in members {
                    let inner = node["properties"].get(name).unwrap_or(others);
                    if inner.is_object() {
                        self.below(&name.replace('~', "~0").replace('/', "~1"), inner, member);
                    }
                }
            }
            Value::Array(items) if node["items"].is_object() => {
                for (index, item) in items.iter().enumerate() {
                    self.below(&index.to_string(), &node["items"], item);
                }
            }
            _ => {}
        }
        for form in ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| node[key].as_array()).flatten() {
            self.within(form, value);
        }
    }

    fn below(&mut self, name: &str, node: &Value, value: &Value) {
        let length = self.pointer.len();
        self.pointer.push('/');
        self.pointer.push_str(name);
        self.within(node, value);
        self.pointer.truncate(length);
    }
}

/// A text without a unit is a number in the unit of the option.
fn number(unit: &str, text: &str) -> Option<Number> {
    let plain = text.parse::<u64>().ok();
    let number = match unit {
        _ if plain.is_some() => return plain.map(Number::from),
        "bytes" => return units::size(text).map(Number::from),
        "ms" => units::time_in_s(text)? * 1_000.0,
        _ => units::time_in_s(text)?,
    };
    // Milliseconds of a time with decimals, such as `0.3s`, are no whole number in binary.
    let whole = number.round();
    if (number - whole).abs() < 1e-6 { Some(Number::from(whole as u64)) } else { Number::from_f64(number) }
}

/// Lets numbers with a unit be texts as well. An option that takes any text, such as the name of a variable, stays as it is.
pub(super) fn publish(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.values_mut().for_each(publish);
            let pattern = match members.get("x-weir-unit").and_then(Value::as_str) {
                Some("bytes") => units::SIZE_PATTERN,
                Some(_) => units::DURATION_PATTERN,
                None => return,
            };
            add_text(members, pattern);
        }
        Value::Array(items) => items.iter_mut().for_each(publish),
        _ => {}
    }
}

fn add_text(members: &mut Map<String, Value>, pattern: &str) {
    let mut types = match members.remove("type") {
        Some(Value::Array(types)) => types,
        one => one.into_iter().collect(),
    };
    if types.iter().any(|kind| kind == "string") {
        members.insert("type".to_owned(), types.into());
        return;
    }
    types.push("string".into());
    members.insert("type".to_owned(), types.into());
    members.insert("pattern".to_owned(), pattern.into());
}

/// What is expected of a value that is neither a number nor a text.
pub(super) fn expected(unit: &str) -> &'static str {
    match unit {
        "bytes" => "a size such as `8MiB`, or a number of bytes",
        "ms" => "a time such as `10s`, or a number of milliseconds",
        _ => "a time such as `10s`, or a number of seconds",
    }
}

/// What is wrong with a text that is no time or size.
pub(super) fn problem(unit: &str, shown: &str) -> String {
    match unit {
        "bytes" => {
            format!("{shown} is not a size; write a number of bytes, or a size such as `16k`, `8MB`, `8MiB`, `1GiB`")
        }
        _ => {
            let plain = if unit == "ms" { "milliseconds" } else { "seconds" };
            format!("{shown} is not a time; write a number of {plain}, or a time such as `500ms`, `10s`, `5m`, `1h`")
        }
    }
}
