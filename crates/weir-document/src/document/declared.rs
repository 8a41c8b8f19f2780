//! What is declared, what is read, and what the schema says are the same.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::kinds::KINDS;
use super::{IncludedFiles, WrittenDocument, file_schema, settings};
use crate::Diagnostic;
use crate::keys::schema::{Definitions, of, value_of};
use crate::keys::{AnyKey, KeyTable};
use crate::text::read::{asked, join};
use crate::text::tree::TreeNode;
use crate::text::yaml::TextLimits;

fn read(document: &Value) -> Vec<Diagnostic> {
    let mut no_files = |_: &TreeNode| IncludedFiles::default();
    let text = document.to_string();
    let read = WrittenDocument::parse_including("f", &text, &|_| None, TextLimits::default(), &mut no_files);
    read.expect("JSON is YAML").without_secrets().faults
}

/// A value of a key: its example, or what follows from its kind.
fn sample(key: &dyn AnyKey) -> Value {
    let schema = Value::Object(key.schema(&mut Definitions::default()));
    let about = key.about();
    if let Some(example) = about.example {
        return value_of(example);
    }
    if let Some(inner) = key.inner() {
        let map = Value::Object(base(inner));
        return if schema["type"] == "array" { json!([map]) } else { map };
    }
    if let Some(default) = key.default() {
        return default;
    }
    if let Some(word) = schema["enum"].get(0) {
        return word.clone();
    }
    match (key.words().first(), schema["type"].as_str()) {
        (Some(word), _) => json!(word),
        (_, Some("boolean")) => json!(true),
        (_, Some("integer")) => schema.get("minimum").cloned().unwrap_or(json!(1)),
        (_, Some("array")) => json!([]),
        (_, Some("object")) => json!({}),
        _ if schema["x-weir-unit"] == "s" => json!("10s"),
        _ => json!("x".repeat(schema["minLength"].as_u64().unwrap_or(1) as usize)),
    }
}

/// A map with all of its keys.
fn base(table: &'static KeyTable) -> Map<String, Value> {
    let offered = table.keys().filter(|key| key.refusal().is_none());
    offered.map(|key| (key.about().name.to_owned(), sample(key))).collect()
}

/// Maps with all keys, without each one, with each word of each one, and with each of these for the maps in them.
fn variants(table: &'static KeyTable) -> Vec<Map<String, Value>> {
    let all = base(table);
    let mut found = vec![all.clone()];
    for key in table.keys().filter(|key| key.refusal().is_none()) {
        let name = key.about().name;
        let with = |value: Value| {
            let mut map = all.clone();
            map.insert(name.to_owned(), value);
            map
        };
        let mut without = all.clone();
        without.remove(name);
        found.push(without);
        found.push(Map::from_iter([(name.to_owned(), all[name].clone())]));
        found.extend(key.words().into_iter().map(|word| with(json!(word))));
        let Some(inner) = key.inner() else { continue };
        let is_list = key.schema(&mut Definitions::default()).get("type") == Some(&json!("array"));
        for inner in variants(inner) {
            found.push(with(Value::Object(inner.clone())));
            found.push(Map::from_iter([(name.to_owned(), Value::Object(inner.clone()))]));
            if is_list || key.form().contains("list") {
                found.push(with(json!([inner])));
            }
        }
    }
    found
}

/// The tables of maps in a map, itself included.
fn tables(table: &'static KeyTable, found: &mut BTreeMap<&'static str, &'static KeyTable>) {
    if found.insert(table.name, table).is_none() {
        table.keys().filter_map(AnyKey::inner).for_each(|inner| tables(inner, found));
    }
}

/// Maps of which a file consists: the settings of the node, and a resource of each list.
struct FilePart {
    /// The path of the map.
    path: String,
    table: &'static KeyTable,
    list: Option<&'static str>,
}

impl FilePart {
    /// The schema of the map.
    fn schema(&self) -> Value {
        if self.list.is_some() { of(self.table) } else { file_schema() }
    }

    /// Keys of the map that are declared elsewhere: the lists of resources.
    fn further(&self) -> Vec<&'static str> {
        let lists = KINDS.iter().map(|kind| kind.list);
        lists.filter(|_| self.list.is_none()).collect()
    }

    fn document(&self, map: Value) -> Value {
        match self.list {
            Some(list) => json!({ list: [map] }),
            None => map,
        }
    }
}

fn parts() -> impl Iterator<Item = FilePart> {
    let kinds = KINDS.iter().filter_map(|kind| {
        Some(FilePart { path: format!("{}[0]", kind.list), table: kind.table()?, list: Some(kind.list) })
    });
    std::iter::once(FilePart { path: String::new(), table: settings::table(), list: None }).chain(kinds)
}

#[test]
fn keys_of_schemas_are_those_that_are_read() {
    for part in parts() {
        let (list, table) = (&part.path, part.table);
        asked::take();
        for map in variants(table) {
            read(&part.document(Value::Object(map)));
        }
        let read: BTreeSet<(&str, String)> = asked::take();
        let mut all = BTreeMap::new();
        tables(table, &mut all);
        let schema = part.schema();
        for (name, table) in all {
            let further = if name == part.table.name { part.further() } else { Vec::new() };
            let part = if schema["$defs"][name].is_null() { &schema } else { &schema["$defs"][name] };
            let said = part["properties"].as_object().expect("it is the schema of a map").keys().cloned();
            let said: BTreeSet<String> = said.collect();
            let known = table.keys().filter(|key| key.refusal().is_none()).map(|key| key.about().name);
            assert_eq!(said, known.chain(further).map(str::to_owned).collect(), "{list}: {name}");
            let asked: BTreeSet<String> =
                read.iter().filter(|(of, _)| *of == name).map(|(_, key)| key.clone()).collect();
            assert_eq!(said, asked, "{list}: {name}: left are keys of the schema, right those that are read");
        }
    }
}

/// The keys that a map must have, and one more, with what it needs to have an effect.
fn least(table: &'static KeyTable, key: Option<&dyn AnyKey>) -> Map<String, Value> {
    let mut map = Map::new();
    for needed in table.keys().filter(|key| key.about().required.is_some()) {
        let inner = needed.inner().map(|inner| Value::Object(least(inner, None)));
        map.insert(needed.about().name.to_owned(), inner.unwrap_or_else(|| sample(needed)));
    }
    if let Some(key) = key {
        if let Some((other, words)) = key.about().only_if {
            map.insert(other.to_owned(), json!(words[0]));
        }
        map.insert(key.about().name.to_owned(), sample(key));
    }
    map
}

/// What reader and schema say against the samples of the keys of a map, and of the maps in it.
fn refused_samples(
    table: &'static KeyTable,
    path: &str,
    document: &dyn Fn(Value) -> Value,
    seen: &mut BTreeSet<&'static str>,
) -> Vec<String> {
    let mut refused = Vec::new();
    if !seen.insert(table.name) {
        return refused;
    }
    let schema = jsonschema::validator_for(&of(table)).expect("it is a schema");
    for key in table.keys().filter(|key| key.refusal().is_none()) {
        let path = join(path, key.about().name);
        if let Some(inner) = key.inner() {
            let outer = |value: Value| {
                let mut map = least(table, None);
                map.insert(key.about().name.to_owned(), value);
                document(Value::Object(map))
            };
            let is_list = key.schema(&mut Definitions::default()).get("type") == Some(&json!("array"));
            let list = |value: Value| outer(json!([value]));
            let (path, outer) = match is_list || inner.name == "node" {
                true => (path + "[0]", &list as &dyn Fn(Value) -> Value),
                false => (path, &outer as &dyn Fn(Value) -> Value),
            };
            refused.extend(refused_samples(inner, &path, outer, seen));
            continue;
        }
        let map = Value::Object(least(table, Some(key)));
        let of_schema = schema
            .iter_errors(&map)
            .filter(|error| error.instance_path().to_string().starts_with(&format!("/{}", key.about().name)));
        refused.extend(of_schema.map(|error| format!("{path}: schema: {error}")));
        let faults = read(&document(map.clone())).into_iter().filter(|fault| fault.path.starts_with(&path));
        // Some keys need others: `client_cert` and `client_key`, `service_name` and `discovery_type`, `zone` and a cluster.
        let needs_other = |problem: &str| {
            problem.contains("belong together")
                || problem.contains("needs `discovery_type`")
                || problem.contains("no effect without `kubernetes`")
        };
        let faults = faults.filter(|fault| !needs_other(&fault.problem));
        refused.extend(faults.map(|fault| fault.to_string()));
    }
    refused
}

#[test]
fn examples_are_accepted_by_the_reader_and_by_the_schema() {
    let mut refused = Vec::new();
    for part in parts() {
        let document = |value: Value| part.document(value);
        refused.extend(refused_samples(part.table, &part.path, &document, &mut BTreeSet::new()));
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn schemas_describe_each_key() {
    for FilePart { path: list, table, .. } in parts() {
        let mut all = BTreeMap::new();
        tables(table, &mut all);
        for key in all.values().flat_map(|table| table.keys()).filter(|key| key.refusal().is_none()) {
            let about = key.about();
            let meaning = about.meaning();
            assert!(meaning.ends_with('.') && meaning.len() > 8, "{list}: `{}`: {meaning}", about.name);
            assert!(key.default() != Some(Value::Null), "{list}: the default of `{}` is none of its words", about.name);
        }
    }
}

/// Documents in which one secret of a map, or of a map in it, has this value.
fn with_secret(table: &'static KeyTable, value: &Value, document: &dyn Fn(Value) -> Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for key in table.keys().filter(|key| key.refusal().is_none()) {
        let name = key.about().name;
        let with = |inner: Value| {
            let mut map = least(table, Some(key));
            map.insert(name.to_owned(), inner);
            document(Value::Object(map))
        };
        let is_list = key.schema(&mut Definitions::default()).get("type") == Some(&json!("array"));
        if key.about().is_secret {
            found.push((name.to_owned(), with(value.clone())));
            found.push((name.to_owned(), with(json!([value]))));
        }
        if let Some(inner) = key.inner() {
            let outer = |value: Value| with(if is_list { json!([value]) } else { value });
            found.extend(with_secret(inner, value, &outer));
        }
    }
    found
}

#[test]
fn secrets_are_in_no_message() {
    const WORD: &str = "hunter2";
    // None of them is right for any secret: too short, too long, not PEM, no URL, no text.
    let values = [json!(WORD), json!(WORD.repeat(1_000)), json!({ WORD: WORD }), json!(format!("{WORD}\n{WORD}"))];
    let mut tried = BTreeSet::new();
    for part in parts() {
        for value in &values {
            for (name, document) in with_secret(part.table, value, &|map| part.document(map)) {
                for fault in read(&document) {
                    let said = format!("{} {:?}", fault.problem, fault.advice);
                    assert!(!said.contains(WORD) || fault.path.contains(WORD), "`{name}`: {fault}");
                }
                tried.insert(name);
            }
        }
    }
    for name in ["token", "host", "keyring", "hmac_key", "password", "client_key", "secret"] {
        assert!(tried.contains(name), "{name} is not among {tried:?}");
    }
}
