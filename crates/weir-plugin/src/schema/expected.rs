//! What a schema expects, in words: `a whole number from 200 to 599`.

use serde_json::Value;

use super::reference::resolved;
use super::units;

/// The bounds of a number or of a count.
pub(super) struct Bounds {
    pub least: Option<u64>,
    pub most: Option<u64>,
}

impl Bounds {
    pub(super) fn of(node: &Value, least: &str, most: &str) -> Bounds {
        Bounds { least: node[least].as_u64(), most: node[most].as_u64() }
    }
}

/// The alternatives of a schema without that for null; the schema itself if it has none.
fn alternatives<'s>(root: &'s Value, node: &'s Value) -> Vec<&'s Value> {
    let node = resolved(root, node);
    match node["anyOf"].as_array().or(node["oneOf"].as_array()) {
        None => vec![node],
        Some(list) => {
            let all = list.iter().filter(|one| one["type"] != "null");
            all.flat_map(|one| alternatives(root, one)).collect()
        }
    }
}

/// The words, or numbers, of which a value is one; empty if it may be anything else.
pub(super) fn words(root: &Value, node: &Value) -> Vec<String> {
    let mut words = Vec::new();
    for one in alternatives(root, node) {
        let listed = one["enum"].as_array().map(Vec::as_slice).or(one.get("const").map(std::slice::from_ref));
        let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        words.extend(listed.into_iter().flatten().filter(|value| !value.is_null()).map(word));
    }
    words
}

/// The names that a map may have.
pub(super) fn names(root: &Value, node: &Value) -> Vec<String> {
    let node = resolved(root, node);
    let own = node["properties"].as_object().into_iter().flat_map(|map| map.keys().cloned());
    let mut names: Vec<String> = own.collect();
    for part in ["allOf", "anyOf", "oneOf"].iter().filter_map(|key| node[key].as_array()).flatten() {
        for name in self::names(root, part) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// The options that a map must have, if there is one form of it.
pub(super) fn required(root: &Value, node: &Value) -> Vec<String> {
    let forms = alternatives(root, node);
    let mut maps = forms.into_iter().filter(|form| form["type"] == "object");
    let (Some(form), None) = (maps.next(), maps.next()) else { return Vec::new() };
    let names = form["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

/// What a value should be.
pub(super) fn value(root: &Value, node: &Value) -> String {
    let words = words(root, node);
    let mut forms: Vec<String> = Vec::new();
    if !words.is_empty() {
        forms.push(crate::option_error::one_of(&words));
    }
    for one in alternatives(root, node) {
        if one.get("enum").is_some() || one.get("const").is_some() {
            continue;
        }
        let listed = match &one["type"] {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            kind => vec![kind.as_str().unwrap_or_default()],
        };
        for kind in listed.into_iter().filter(|kind| *kind != "null") {
            let form = of_type(kind, one);
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms.join(" or ")
}

fn of_type(kind: &str, node: &Value) -> String {
    let (least, most) = (number(&node["minimum"]), number(&node["maximum"]));
    let above = number(&node["exclusiveMinimum"]);
    match kind {
        "integer" | "number" => {
            let named = if kind == "integer" { "a whole number" } else { "a number" };
            let unit = match units::of(node) {
                Some("s") => " of seconds",
                Some("ms") => " of milliseconds",
                Some("bytes") => " of bytes",
                _ => "",
            };
            let named = format!("{named}{unit}");
            match (least, most, above) {
                (Some(least), Some(most), _) => format!("{named} from {least} to {most}"),
                (Some(least), None, _) => format!("{named}, {least} or more"),
                (None, Some(most), Some(above)) => format!("{named} above {above}, {most} at most"),
                (None, Some(most), None) => format!("{named}, {most} at most"),
                (None, None, Some(above)) => format!("{named} above {above}"),
                (None, None, None) => named,
            }
        }
        "string" => "text".to_owned(),
        "array" => "a list".to_owned(),
        "boolean" => "true or false".to_owned(),
        "object" => "a map".to_owned(),
        other => other.to_owned(),
    }
}

/// `1` for `1.0` as well.
fn number(value: &Value) -> Option<String> {
    let number = value.as_f64()?;
    Some(if number.fract() == 0.0 && number.abs() < 1e15 { format!("{number:.0}") } else { value.to_string() })
}
