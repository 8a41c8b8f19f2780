//! Finds all keys that a scenario lacks or that do not exist, where reading it ends at the first fault.

use serde_json::Value;

use super::Scenario;

/// The faults in the keys of a text, each with its place. Empty if there is none, or the text is no YAML.
pub(super) fn problems(text: &str) -> Vec<String> {
    let Ok(written) = serde_saphyr::from_str::<Value>(text) else { return Vec::new() };
    let schema = schemars::schema_for!(Scenario).to_value();
    let mut search = KeySearch { root: &schema, problems: Vec::new() };
    search.look(&schema, &written, "");
    search.problems
}

struct KeySearch<'a> {
    root: &'a Value,
    problems: Vec<String>,
}

impl<'a> KeySearch<'a> {
    /// Compares a value with its schema; `place` is its path in the text.
    fn look(&mut self, schema: &'a Value, written: &Value, place: &str) {
        let schema = self.resolved(schema);
        if let (Value::Array(items), Some(of_item)) = (written, schema.get("items")) {
            for (index, item) in items.iter().enumerate() {
                self.look(of_item, item, &format!("{place}[{index}]"));
            }
        }
        let (Value::Object(map), Some(keys)) = (written, schema.get("properties").and_then(Value::as_object)) else {
            return;
        };
        let at = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        for key in required.filter_map(Value::as_str).filter(|key| !map.contains_key(*key)) {
            let about = keys.get(key).and_then(|schema| schema.get("description")).and_then(Value::as_str);
            self.problems.push(format!("{}: is missing: {}", at(key), first_sentence(about.unwrap_or_default())));
        }
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        for (key, value) in map {
            match keys.get(key) {
                Some(schema) => self.look(schema, value, &at(key)),
                None if is_closed => {
                    let known: Vec<&str> = keys.keys().map(String::as_str).collect();
                    self.problems.push(format!("{}: there is no such key, but {}", at(key), known.join(", ")));
                }
                None => {}
            }
        }
    }

    /// The schema that a reference leads to, also if the value may be absent.
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        let one_of_several = schema.get("anyOf").and_then(Value::as_array);
        let schema = one_of_several.and_then(|all| all.iter().find(|one| one.get("$ref").is_some())).unwrap_or(schema);
        let pointer = schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
        pointer.and_then(|pointer| self.root.pointer(pointer)).unwrap_or(schema)
    }
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
}
