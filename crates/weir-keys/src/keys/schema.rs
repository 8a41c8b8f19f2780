//! JSON Schema (2020-12) of the declared keys, for editors, forms and the Admin API.
//!
//! Members beyond the standard: `x-weir-unit` (`s`, `bytes`, …), `x-weir-origin` (`apisix` or `weir`), `x-weir-since` (a version),
//! `x-weir-reference` (the list of resources that an id belongs to), `x-weir-only-if` (the key has an effect only if another one has
//! one of these values), `x-weir-absent` (what happens without the key, in words), `x-weir-restart` (a change takes effect at the next start of
//! the node).

use serde_json::{Map, Value, json};

use super::{AboutKey, AnyKey, KeyOrigin, KeyRule, KeyTable};
use crate::text::yaml::{self, TextLimits};

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The tables that a schema refers to.
#[derive(Default)]
pub struct Definitions {
    tables: Vec<&'static KeyTable>,
}

impl Definitions {
    /// The reference to the schema of a map.
    pub fn reference(&mut self, table: &'static KeyTable) -> String {
        if !self.tables.iter().any(|known| known.name == table.name) {
            self.tables.push(table);
        }
        format!("#/$defs/{}", table.name)
    }
}

/// The schema of a map, with those of all maps in it under `$defs`.
pub fn of(table: &'static KeyTable) -> Value {
    with_definitions(|definitions| object(table, definitions))
}

/// A schema with those that it refers to.
pub fn with_definitions(root: impl FnOnce(&mut Definitions) -> Map<String, Value>) -> Value {
    let mut definitions = Definitions::default();
    let mut schema = json!({ "$schema": DIALECT });
    schema.as_object_mut().expect("it is a map").extend(root(&mut definitions));
    let mut defined = Map::new();
    while let Some(table) = definitions.tables.get(defined.len()).copied() {
        let part = object(table, &mut definitions);
        defined.insert(table.name.to_owned(), Value::Object(part));
    }
    if !defined.is_empty() {
        schema["$defs"] = Value::Object(defined);
    }
    schema
}

/// The schema of a map, without those of the maps in it.
pub fn object(table: &'static KeyTable, definitions: &mut Definitions) -> Map<String, Value> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    let mut rules: Vec<Value> = table.rules.iter().map(|rule| rule_schema(rule, table)).collect();
    for key in table.keys().filter(|key| key.refusal().is_none()) {
        let about = key.about();
        properties.insert(about.name.to_owned(), property(key, definitions));
        if about.required.is_some() {
            required.push(about.name);
        }
        if let Some((other, words)) = about.only_if {
            let is_so = json!({ "properties": { other: { "enum": words } } });
            rules.push(json!({ "if": is_so, "else": { "properties": { about.name: false } } }));
        }
    }
    let mut schema = Map::new();
    schema.insert("title".to_owned(), title(table.name).into());
    schema.insert("description".to_owned(), table.meaning().into());
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema.insert("additionalProperties".to_owned(), false.into());
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    if !rules.is_empty() {
        schema.insert("allOf".to_owned(), rules.into());
    }
    schema
}

fn property(key: &dyn AnyKey, definitions: &mut Definitions) -> Value {
    let AboutKey { name, origin, since, is_secret, unit, absent, example, only_if, needs_restart, .. } = key.about();
    let mut schema = Map::new();
    schema.insert("title".to_owned(), title(name).into());
    schema.insert("description".to_owned(), key.about().meaning().into());
    schema.extend(key.schema(definitions));
    let mut add = |member: &str, value: Value| drop(schema.insert(member.to_owned(), value));
    if let Some(default) = key.default() {
        add("default", default);
    }
    if let Some(example) = example {
        add("examples", json!([value_of(example)]));
    }
    if *is_secret {
        add("writeOnly", true.into());
    }
    if let Some(unit) = unit {
        add("x-weir-unit", (*unit).into());
    }
    if let Some(absent) = absent {
        add("x-weir-absent", (*absent).into());
    }
    if let Some((other, words)) = only_if {
        add("x-weir-only-if", json!({ *other: words }));
    }
    if *needs_restart {
        add("x-weir-restart", true.into());
    }
    let origin = match origin {
        KeyOrigin::Apisix => "apisix",
        KeyOrigin::Own => "weir",
    };
    add("x-weir-origin", origin.into());
    add("x-weir-since", (*since).into());
    Value::Object(schema)
}

fn rule_schema(rule: &KeyRule, table: &KeyTable) -> Value {
    let has = |keys: &[&str]| json!({ "required": keys });
    match rule {
        KeyRule::ExactlyOne(one, other) => json!({ "oneOf": [has(&[one]), has(&[other])] }),
        KeyRule::AtMostOne(one, other) => json!({ "not": has(&[one, other]) }),
        KeyRule::AnyOf { keys, .. } => {
            let is_offered = |key: &&&str| table.find(key).is_some_and(|key| key.refusal().is_none());
            json!({ "anyOf": keys.iter().filter(is_offered).map(|key| has(&[key])).collect::<Vec<_>>() })
        }
        KeyRule::All { keys, .. } => has(keys),
        KeyRule::Together(one, other) => json!({ "dependentRequired": { *one: [other], *other: [one] } }),
    }
}

/// `Keepalive pool` for `keepalive_pool`.
fn title(name: &str) -> String {
    let words = name.replace(['_', '-'], " ");
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The value of an example.
pub fn value_of(yaml: &str) -> Value {
    let parsed = yaml::parse(&"example".into(), yaml, &|_| None, TextLimits::default());
    parsed.map_or(Value::Null, |parsed| parsed.tree.to_json())
}
