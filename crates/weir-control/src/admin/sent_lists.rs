//! Lists of resources as clients send them, without a look at what their items mean.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answer::{Refused, refuse};
use super::references::{fault_of_id, id_text};
use super::request::{AdminRequest, too_large};
use crate::document::{RESOURCE_LISTS, position_id};
use crate::stores::resources::ResourceKey;
use crate::text::json;
use crate::text::yaml::{self, TextLimits};

/// The body as a map, from JSON or YAML.
pub(super) fn body(request: &AdminRequest) -> Refused<Map<String, Value>> {
    let value = if request.is_yaml() { Some(of_yaml(request)?) } else { request.json()? };
    match value {
        Some(Value::Object(lists)) => Ok(lists),
        Some(_) => refuse("invalid request body: expected an object"),
        None => refuse("invalid request body: empty"),
    }
}

fn of_yaml(request: &AdminRequest) -> Refused<Value> {
    let Ok(text) = std::str::from_utf8(&request.body) else { return refuse("invalid request body: not UTF-8") };
    let most = request.tree_bytes();
    let limits = TextLimits { values: json::MAX_VALUES, aliased: most, ..TextLimits::default() };
    match yaml::parse(&Arc::from("request"), text, &|_| None, limits) {
        Ok(parsed) if json::memory(&parsed.tree) > most => {
            let problem = format!("the values would take more than {} MiB of memory; send fewer", most >> 20);
            Err(Box::new(too_large(&problem)))
        }
        Ok(parsed) => match parsed.faults.first() {
            None => Ok(parsed.tree.to_json()),
            Some(fault) => refuse(format!("invalid request body: {fault}")),
        },
        Err(faults) => {
            let fault = faults.first().map(ToString::to_string).unwrap_or_default();
            refuse(format!("invalid request body: {fault}"))
        }
    }
}

/// A fault of a list, or of an item in it.
pub(super) struct ListError {
    pub(super) list: &'static str,
    pub(super) index: Option<usize>,
    pub(super) problem: String,
}

impl ListError {
    pub(super) fn told(&self, lists: &Map<String, Value>) -> Value {
        let mut told = json!({ "resource_type": self.list, "error": self.problem });
        if let Some(index) = self.index {
            told["index"] = index.into();
            let item = &lists[self.list][index];
            if let Some(id) = item.get("id").or_else(|| item.get("username")).and_then(id_text) {
                told["resource_id"] = id.into();
            }
        }
        told
    }
}

/// What is wrong with lists whatever their items mean, in order.
pub(super) fn malformed(lists: &Map<String, Value>) -> Vec<ListError> {
    let mut errors = Vec::new();
    for list in RESOURCE_LISTS.iter().copied() {
        match lists.get(list) {
            None => {}
            Some(items @ Value::Array(_)) => {
                errors.extend(wrong_ids(list, items));
                errors.extend(duplicates(list, items));
            }
            Some(_) => {
                let problem = format!("invalid configuration: property \"{list}\" validation failed: expected a list");
                errors.push(ListError { list, index: None, problem });
            }
        }
    }
    errors
}

/// The key of an item of a list, which may have no id.
pub(super) fn key_of(list: &str, index: usize, item: &Value) -> ResourceKey {
    let own = item.get("id").and_then(id_text);
    let name = item.get("username").and_then(id_text).filter(|_| list == "consumers");
    let id = name.or(own).unwrap_or_else(|| position_id(index).into());
    ResourceKey::new(list, &id)
}

/// Removes the number by which an APISIX worker recognizes unchanged items.
pub(super) fn without_index(item: &mut Value) {
    if let Value::Object(members) = item {
        members.shift_remove("modifiedIndex");
    }
}

fn wrong_ids(list: &'static str, items: &Value) -> impl Iterator<Item = ListError> {
    let wrong = move |(index, item)| {
        let problem = format!("invalid configuration: property \"id\" validation failed: {}", fault_of_id(item)?);
        Some(ListError { list, index: Some(index), problem })
    };
    items.as_array().into_iter().flatten().enumerate().filter_map(wrong)
}

fn duplicates(list: &'static str, items: &Value) -> Vec<ListError> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut errors = Vec::new();
    for (index, item) in items.as_array().into_iter().flatten().enumerate() {
        let (what, id) = match item.get("id").and_then(id_text) {
            Some(id) if id.contains("/credentials/") => ("credential id", Some(id)),
            Some(id) if item.get("username").is_none() => ("id", Some(id)),
            _ => ("username", item.get("username").and_then(id_text)),
        };
        let Some(id) = id else { continue };
        if seen.insert(format!("{what} {id}"), index).is_some() {
            let problem = format!("found duplicate {what} {id} in {list}");
            errors.push(ListError { list, index: Some(index), problem });
        }
    }
    errors
}
