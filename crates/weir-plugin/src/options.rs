//! The options of a plugin as a list, derived from its JSON Schema, for `weir plugins` and the reference.

use serde_json::Value;

/// One option, possibly nested in another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The path within the plugin's options: `count`, `headers.set`, `rules[].count`; `*` is any name.
    pub path: String,
    /// Type and bounds: `integer, 200 to 599`, or the allowed values.
    pub kind: String,
    pub is_required: bool,
    /// As JSON.
    pub default: Option<String>,
    pub meaning: String,
    /// What the option names outside of the gateway (`x-weir-reaches` in the schema): a `server` that requests or records are sent
    /// to, or a `file` that is written.
    pub reaches: Option<String>,
    /// The list of resources that the option has an id of (`x-weir-reference`).
    pub refers: Option<String>,
}

/// Every option of a schema, each followed by those nested in it.
pub fn rows(schema: &Value) -> Vec<Row> {
    let walk = SchemaWalk { definitions: &schema["$defs"] };
    let mut rows = Vec::new();
    walk.within("", schema, &mut Vec::new(), &mut rows);
    rows
}

struct SchemaWalk<'a> {
    definitions: &'a Value,
}

impl<'a> SchemaWalk<'a> {
    /// Appends the rows of the options within `schema`, which is at `path` itself. `open` contains the definitions being walked,
    /// so that a recursive one is not followed twice.
    fn within(&self, path: &str, schema: &'a Value, open: &mut Vec<&'a str>, rows: &mut Vec<Row>) {
        let reference = schema["$ref"].as_str();
        if let Some(name) = reference {
            if open.contains(&name) {
                return;
            }
            open.push(name);
        }
        let resolved = self.resolve(schema);
        for (name, option) in resolved["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            // Alternatives may have an option in common, which is listed once.
            if rows.iter().any(|row| row.path == path) {
                continue;
            }
            let required = &resolved["required"];
            let is_required = required.as_array().into_iter().flatten().any(|required| required == name);
            rows.push(self.row(path.clone(), option, is_required));
            self.within(&path, option, open, rows);
        }
        if resolved["items"].is_object() {
            self.within(&format!("{path}[]"), &resolved["items"], open, rows);
        }
        if resolved["additionalProperties"].is_object() {
            self.within(&format!("{path}.*"), &resolved["additionalProperties"], open, rows);
        }
        for alternative in alternatives(resolved) {
            self.within(path, alternative, open, rows);
        }
        if reference.is_some() {
            open.pop();
        }
    }

    fn row(&self, path: String, option: &Value, is_required: bool) -> Row {
        let resolved = self.resolve(option);
        let own = option["description"].as_str().or(resolved["description"].as_str()).unwrap_or_default();
        let mut meaning = one_line(own);
        for alternative in alternatives(resolved) {
            if let (Some(value), Some(text)) = (alternative.get("const"), alternative["description"].as_str()) {
                meaning.push_str(&format!(" {}: {}", code(value), one_line(text)));
            }
        }
        let default = option.get("default").or(resolved.get("default")).filter(|value| !value.is_null());
        Row {
            path,
            kind: self.kind(option),
            is_required,
            default: default.filter(|_| !is_required).map(Value::to_string),
            meaning,
            reaches: option["x-weir-reaches"].as_str().map(str::to_owned),
            refers: option["x-weir-reference"].as_str().map(str::to_owned),
        }
    }

    /// The values a schema allows, in words.
    fn kind(&self, schema: &Value) -> String {
        let (noun, bounds) = self.noun(schema, false);
        [vec![noun], bounds].concat().join(", ")
    }

    /// A noun for the type of a schema, in the plural for items, and its bounds.
    fn noun(&self, schema: &Value, plural: bool) -> (String, Vec<String>) {
        let schema = self.resolve(schema);
        let values = self.values(schema);
        if !values.is_empty() {
            return (listed(&values), Vec::new());
        }
        let either: Vec<_> = alternatives(schema).map(|one| self.noun(one, plural)).collect();
        if let [only] = &either[..] {
            return only.clone();
        }
        if !either.is_empty() {
            let mut nouns: Vec<String> = either.into_iter().map(|(noun, _)| noun).collect();
            nouns.dedup();
            return (nouns.join(" or "), Vec::new());
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::Array(kinds) => {
                // A time or a size may be a text with its unit as well, which is said once for all options.
                let has_unit = schema.get("x-weir-unit").is_some() && schema.get("pattern").is_some();
                let is_said = |kind: &&str| *kind == "string" && has_unit;
                kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null" && !is_said(kind)).collect()
            }
            kind => kind.as_str().into_iter().collect(),
        };
        match kinds[..] {
            [] => ("any".to_owned(), Vec::new()),
            ["array"] => self.list(schema, plural),
            ["object"] if schema["additionalProperties"].is_object() => {
                let (noun, bounds) = self.noun(&schema["additionalProperties"], true);
                (
                    format!("{} of {noun}", word("map", plural)),
                    bounds.iter().map(|bound| format!("each {bound}")).collect(),
                )
            }
            _ => {
                let nouns: Vec<String> = kinds.iter().map(|kind| word(kind, plural)).collect();
                (nouns.join(" or "), bounds(schema))
            }
        }
    }

    fn list(&self, schema: &Value, plural: bool) -> (String, Vec<String>) {
        let mut all: Vec<String> = range(schema, "minItems", "maxItems").into_iter().collect();
        if !schema["items"].is_object() {
            return (word("array", plural), all);
        }
        let (noun, bounds) = self.noun(&schema["items"], true);
        all.extend(bounds.iter().map(|bound| format!("each {bound}")));
        (format!("{} of {noun}", word("array", plural)), all)
    }

    /// The allowed values, if they are a closed set.
    fn values(&self, schema: &Value) -> Vec<String> {
        if let Some(value) = schema.get("const") {
            return vec![code(value)];
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.iter().filter(|value| !value.is_null()).map(code).collect();
        }
        let each: Vec<Vec<String>> = alternatives(schema).map(|one| self.values(self.resolve(one))).collect();
        if each.iter().any(Vec::is_empty) { Vec::new() } else { each.concat() }
    }

    fn resolve<'s>(&self, schema: &'s Value) -> &'s Value
    where
        'a: 's,
    {
        let name = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/"));
        name.and_then(|name| self.definitions.get(name)).unwrap_or(schema)
    }
}

/// The alternatives of a schema except `null`, which only means that the option is optional.
fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let all = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    all.into_iter().flatten().filter(|one| one["type"] != "null")
}

/// Bounds of a number, or of a text's length.
fn bounds(schema: &Value) -> Vec<String> {
    let mut bounds = Vec::new();
    // The range that the integer type implies is not shown as a bound.
    let by_itself = match schema["format"].as_str() {
        Some("uint8") => schema["minimum"] == 0 && schema["maximum"] == 255,
        Some("uint16") => schema["minimum"] == 0 && schema["maximum"] == 65_535,
        Some(format) if format.starts_with("uint") => schema["minimum"] == 0 && schema["maximum"].is_null(),
        _ => false,
    };
    bounds.extend(range(schema, "minimum", "maximum").filter(|_| !by_itself));
    if let Some(bound) = number(&schema["exclusiveMinimum"]) {
        bounds.push(format!("above {bound}"));
    }
    if let Some(length) = range(schema, "minLength", "maxLength") {
        bounds.push(if length == "1 or more" { "not empty".to_owned() } else { format!("{length} characters") });
    }
    // That of a time or a size is said once for all options.
    if let Some(pattern) = schema["pattern"].as_str().filter(|_| schema.get("x-weir-unit").is_none()) {
        bounds.push(format!("as `{pattern}`"));
    }
    bounds
}

fn range(schema: &Value, least: &str, most: &str) -> Option<String> {
    match (number(&schema[least]), number(&schema[most])) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("{least} or more")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    }
}

/// Formats a number; integers without a point, however the schema writes them.
fn number(value: &Value) -> Option<String> {
    value.as_f64().map(|number| number.to_string())
}

fn word(kind: &str, plural: bool) -> String {
    if plural { format!("{kind}s") } else { kind.to_owned() }
}

/// A value as written in a document.
fn code(value: &Value) -> String {
    match value.as_str() {
        Some(text) => format!("`{text}`"),
        None => format!("`{value}`"),
    }
}

/// `a`, `b` or `c`.
fn listed(values: &[String]) -> String {
    match values {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The description of the whole schema.
pub fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::{JsonSchema, schema_for};
    use serde::Serialize;
    use std::collections::BTreeMap;

    /// A plugin.
    ///
    /// With more to say.
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "read by its schema")]
    struct Options {
        /// How it
        /// is done.
        #[serde(default)]
        way: Way,
        /// A number.
        #[schemars(range(min = 200, max = 599))]
        code: Option<u16>,
        /// A count.
        count: u64,
        /// A small one.
        small: Option<u8>,
        /// Rules.
        #[schemars(length(min = 1))]
        rules: Vec<Rule>,
        /// Labels.
        labels: Option<BTreeMap<String, String>>,
        /// Names.
        #[schemars(length(min = 1, max = 8), inner(length(min = 1)))]
        names: Option<Vec<String>>,
    }

    #[derive(Default, Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    #[expect(dead_code, reason = "read by its schema")]
    enum Way {
        #[default]
        Fast,
        /// Takes care.
        Slow,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "read by its schema")]
    struct Rule {
        /// A share.
        #[schemars(extend("exclusiveMinimum" = 0))]
        share: f64,
        /// Rules within.
        rules: Option<Vec<Rule>>,
        /// When.
        way: Option<Way>,
    }

    fn found() -> BTreeMap<String, Row> {
        rows(&schema_for!(Options).to_value()).into_iter().map(|row| (row.path.clone(), row)).collect()
    }

    #[test]
    fn values_defaults_and_bounds_are_found_behind_references() {
        let rows = found();
        let kind = |path: &str| rows[path].kind.as_str();
        assert_eq!(kind("way"), "`fast` or `slow`");
        assert_eq!(rows["way"].default.as_deref(), Some("\"fast\""));
        assert_eq!(rows["way"].meaning, "How it is done. `slow`: Takes care.");
        assert_eq!(kind("code"), "integer, 200 to 599");
        assert_eq!((kind("count"), kind("small")), ("integer", "integer"));
        assert_eq!(kind("labels"), "map of strings");
        assert_eq!(kind("names"), "array of strings, 1 to 8, each not empty");
        assert!(rows["count"].is_required && !rows["code"].is_required);
    }

    #[test]
    fn nested_options_are_listed_once_even_if_they_are_recursive() {
        let rows = found();
        assert_eq!(rows["rules"].kind, "array of objects, 1 or more");
        assert_eq!(rows["rules[].share"].kind, "number, above 0");
        assert_eq!(rows["rules[].way"].kind, "`fast` or `slow`");
        assert_eq!(rows["rules[].rules"].kind, "array of objects");
        assert_eq!(rows.keys().filter(|path| path.contains("rules")).count(), 4, "{:?}", rows.keys());
    }

    #[test]
    fn alternatives_are_named_and_looked_into() {
        let fields = serde_json::json!({"type": "object", "additionalProperties": {"type": ["string", "number"]}});
        let set = serde_json::json!({"set": fields, "remove": {"type": "array", "items": {"type": "string"}}});
        let either = serde_json::json!({"oneOf": [{"type": "object", "properties": set}, fields]});
        let rows = rows(&serde_json::json!({"properties": {"headers": either}}));
        let kinds: Vec<_> = rows.iter().map(|row| (row.path.as_str(), row.kind.as_str())).collect();
        let expected = [
            ("headers", "object or map of strings or numbers"),
            ("headers.set", "map of strings or numbers"),
            ("headers.remove", "array of strings"),
        ];
        assert_eq!(kinds, expected);
    }
}
