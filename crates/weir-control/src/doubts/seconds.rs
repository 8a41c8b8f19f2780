//! Finds time-outs in seconds that were probably meant as milliseconds: whole thousands, written as numbers.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use weir_plugin::{Registry, units};

use super::{Doubts, PutResource};
use crate::text::read::join;
use crate::text::tree::TreePath;

/// A number from here on that is divisible by it looks like one of milliseconds.
const THOUSAND: u64 = 1_000;

/// The setting whose time-outs are in milliseconds, as in APISIX.
const IN_MS: &str = "discovery";

pub(super) fn of_document(doubts: &Doubts) {
    let Some(written) = doubts.document.written_values() else { return };
    let Value::Object(keys) = written.to_json() else { return };
    for (key, value) in keys.iter().filter(|(key, _)| *key != IN_MS) {
        look(doubts, key, key, value);
    }
}

pub(super) fn of_resources(doubts: &Doubts, put: &[PutResource]) {
    for PutResource { list, id, json } in put {
        let Ok(value) = serde_json::from_str::<Value>(json) else { continue };
        if let Some(path) = doubts.path_of(list, id) {
            look(doubts, &path, list, &value);
        }
    }
}

/// Looks at a value and all in it. `key` is the key that it or the list around it has.
fn look(doubts: &Doubts, path: &str, key: &str, value: &Value) {
    match value {
        Value::Object(entries) if key == "plugin_metadata" && entries.contains_key("id") => {
            look_at_options(doubts, path, entries["id"].as_str().unwrap_or_default(), value);
        }
        Value::Object(entries) if key == "plugins" || key == "plugin_metadata" => {
            for (name, options) in entries {
                let path = join(path, &TreePath::suffix(name));
                look_at_options(doubts, &path, name, options);
            }
        }
        Value::Object(entries) => {
            for (inner, value) in entries {
                let path = join(path, &TreePath::suffix(inner));
                // The members of `timeout`, such as `connect`.
                let is_timeout = is_name(key) && value.is_number();
                match value {
                    Value::Number(_) if is_timeout || is_name(inner) => tell(doubts, &path, value, true),
                    _ => look(doubts, &path, inner, value),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                look(doubts, &format!("{path}[{index}]"), key, item);
            }
        }
        Value::Number(_) if is_name(key) => tell(doubts, path, value, true),
        _ => {}
    }
}

fn is_name(key: &str) -> bool {
    key == "timeout" || key.ends_with("_timeout")
}

/// Looks at the options of a plugin, whose schema has their units.
fn look_at_options(doubts: &Doubts, path: &str, plugin: &str, options: &Value) {
    let mut found = Vec::new();
    find(options, path, &mut found);
    if found.is_empty() {
        return;
    }
    let units = units_of(doubts.registry, plugin);
    for (path, name, value) in found {
        if units.get(name).is_some_and(|is_seconds| *is_seconds) {
            tell(doubts, &path, value, false);
        }
    }
}

/// The numbers in options that look like milliseconds and are those of time-outs, with paths and names.
fn find<'v>(value: &'v Value, path: &str, found: &mut Vec<(String, &'v str, &'v Value)>) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                let path = join(path, &TreePath::suffix(name));
                match value {
                    Value::Number(_) if name.contains("timeout") && thousands(value).is_some() => {
                        found.push((path, name, value));
                    }
                    _ => find(value, &path, found),
                }
            }
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| find(item, &format!("{path}[{index}]"), found));
        }
        _ => {}
    }
}

/// The options of a plugin with a unit: whether that is seconds, wherever the schema has an option of this name.
fn units_of(registry: Registry, plugin: &str) -> HashMap<String, bool> {
    let mut units = HashMap::new();
    if let Some(entry) = registry.find(plugin) {
        collect_units(&(entry.schema)(), &mut units);
    }
    units
}

fn collect_units(schema: &Value, units: &mut HashMap<String, bool>) {
    match schema {
        Value::Object(members) => {
            for (name, property) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let is_seconds = property["x-weir-unit"] == "s";
                units.entry(name.clone()).and_modify(|all| *all &= is_seconds).or_insert(is_seconds);
            }
            members.values().for_each(|member| collect_units(member, units));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_units(item, units)),
        _ => {}
    }
}

/// How many thousands a number is, if it is a whole number of them.
fn thousands(value: &Value) -> Option<u64> {
    let number =
        value.as_u64().or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as u64));
    number.filter(|number| *number >= THOUSAND && number % THOUSAND == 0).map(|number| number / THOUSAND)
}

/// `takes_units`: the value may also be a text such as `3s`.
fn tell(doubts: &Doubts, path: &str, value: &Value, takes_units: bool) {
    let Some(thousands) = thousands(value) else { return };
    let long = units::written_time(Duration::from_secs(thousands.saturating_mul(THOUSAND)));
    let problem = format!("`{value}` is a number of seconds, {long}, and looks like one of milliseconds");
    let advice = match takes_units {
        true => format!("write `{thousands}s` if milliseconds were meant, otherwise `{long}`"),
        false => format!("write `{thousands}` if milliseconds were meant"),
    };
    doubts.report(path, doubts.document.place_at(path), problem, advice);
}
