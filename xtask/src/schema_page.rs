//! A page about files, from their JSON Schema: a section for each part, every key with its type, default and meaning.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// The sections of one kind of file, below `heading`.
pub(crate) fn sections(heading: &str, schema: &Value, page: &mut String) {
    let _ = write!(page, "\n## {heading}\n\n");
    part(schema, page);
    for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
        let _ = write!(page, "\n### {name}\n\n");
        part(definition, page);
    }
}

fn part(schema: &Value, page: &mut String) {
    if let Some(text) = schema["description"].as_str() {
        let _ = writeln!(page, "{}", flat(text));
    }
    if let Some(properties) = schema["properties"].as_object() {
        keys(properties, &schema["required"], page);
    }
    let alternatives = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if let Some(alternatives) = alternatives {
        words(alternatives, page);
    }
    if let Some(names) = schema["enum"].as_array() {
        words(&names.iter().map(|name| serde_json::json!({"const": name})).collect::<Vec<_>>(), page);
    }
}

fn keys(properties: &Map<String, Value>, required: &Value, page: &mut String) {
    page.push_str("\n| key | type | default | meaning |\n|---|---|---|---|\n");
    for (name, property) in properties {
        let is_required = required.as_array().is_some_and(|names| names.iter().any(|one| one == name));
        let default = match property.get("default") {
            _ if is_required => "required".to_owned(),
            // Of a part with keys of its own, the defaults stand there.
            None | Some(Value::Null | Value::Object(_)) => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let meaning = property["description"].as_str().map(flat).unwrap_or_default();
        let _ = writeln!(page, "| `{name}` | {} | {default} | {meaning} |", kind(property));
    }
}

/// Alternatives: a word, a word with a value behind it, or keys of which one says which it is.
fn words(alternatives: &[Value], page: &mut String) {
    page.push_str("\n| one of | with | meaning |\n|---|---|---|\n");
    for one in alternatives {
        let meaning = one["description"].as_str().map(flat).unwrap_or_default();
        if let Some(names) = one["enum"].as_array() {
            names.iter().for_each(|name| line(&format!("`{}`", plain(name)), "", "", page));
            continue;
        }
        let Some(properties) = one["properties"].as_object() else {
            line(&format!("`{}`", plain(&one["const"])), "", &meaning, page);
            continue;
        };
        let tag = properties.iter().find(|(_, property)| property.get("const").is_some());
        let called = match tag {
            Some((key, property)) => format!("`{key}: {}`", plain(&property["const"])),
            None => properties.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        };
        let others = properties.iter().filter(|(_, property)| property.get("const").is_none());
        let with: Vec<String> = others.map(|(name, property)| with(name, property, tag.is_some())).collect();
        line(&called, &with.join("; "), &meaning, page);
    }
}

/// A key of an alternative; where the key is the alternative's word, what stands behind it.
fn with(name: &str, property: &Value, named: bool) -> String {
    if let Some(inner) = property["properties"].as_object() {
        let inner: Vec<String> = inner.iter().map(|(name, property)| with(name, property, true)).collect();
        return inner.join("; ");
    }
    let meaning = property["description"].as_str().map(|text| format!(": {}", flat(text))).unwrap_or_default();
    if named { format!("`{name}` ({}){meaning}", kind(property)) } else { kind(property) }
}

fn line(called: &str, with: &str, meaning: &str, page: &mut String) {
    let _ = writeln!(page, "| {called} | {with} | {meaning} |");
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn flat(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

/// A schema's type in a word or two; parts with sections of their own are links.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(alternatives) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let kinds: Vec<String> = alternatives.iter().map(kind).filter(|kind| kind != "null").collect();
        return kinds.join(" or ");
    }
    let named = match &schema["type"] {
        Value::String(name) => name.clone(),
        Value::Array(names) => {
            let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.collect::<Vec<_>>().join(" or ")
        }
        _ => "any".to_owned(),
    };
    match named.as_str() {
        "array" => format!("list of {}", plural(&kind(&schema["items"]))),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map of {}", plural(&kind(&schema["additionalProperties"])))
        }
        _ => named,
    }
}

/// The plural of a type that has no section of its own.
fn plural(kind: &str) -> String {
    if kind.starts_with('[') || kind == "any" { kind.to_owned() } else { format!("{kind}s") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_and_every_word_has_a_line() {
        let schema = json!({
            "description": "A file.",
            "properties": {
                "name": {"type": "string", "description": "Its\nname."},
                "speed": {"anyOf": [{"$ref": "#/$defs/Speed"}, {"type": "null"}], "description": "How fast."},
                "times": {"type": "array", "items": {"type": "integer"}, "default": [1], "description": "When."}
            },
            "required": ["name"],
            "$defs": {"Speed": {"oneOf": [
                {"type": "string", "const": "slow", "description": "Not fast."},
                {"type": "object", "properties": {"exactly": {"type": "number"}}, "description": "So much."},
                {"type": "object", "description": "By kind.", "properties": {
                    "kind": {"type": "string", "const": "ramp"}, "to": {"type": "number", "description": "The end."}}}
            ]}}
        });
        let mut page = String::new();
        sections("Files", &schema, &mut page);
        for line in [
            "| `name` | string | required | Its name. |",
            "| `speed` | [Speed](#speed) |  | How fast. |",
            "| `times` | list of integers | `[1]` | When. |",
            "| `slow` |  | Not fast. |",
            "| `exactly` | number | So much. |",
            "| `kind: ramp` | `to` (number): The end. | By kind. |",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }
}
