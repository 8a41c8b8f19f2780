//! Validation without a change: of one resource, or of whole lists.

use std::collections::HashMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::answer::{self, AdminResponse, Refused, message, refuse, text, wrong};
use super::context::AdminContext;
use super::kinds::{self, IdRule};
use super::references::id_text;
use super::request::AdminRequest;
use crate::compile::compile;
use crate::document::{Document, RESOURCE_LISTS};
use crate::text::diagnostic::Diagnostic;
use crate::text::yaml::{self, TextLimits};

/// `POST schema/validate/routes`: validates the resource itself, without plugins and references.
pub(super) fn one(list: &str, request: &AdminRequest) -> Refused<AdminResponse> {
    let Some(kind) = kinds::find(list) else { return refuse(format!("not found schema: {list}")) };
    let Some(mut value) = request.json()? else { return refuse("missing configurations") };
    // APISIX's schema of a secrets manager has no id, which stands in the path of a request.
    if let (IdRule::Manager, Value::Object(members)) = (kind.id, &mut value) {
        members.entry("id").or_insert_with(|| "vault/1".into());
    }
    if kind.list == "protos" {
        return refuse(kinds::NO_PROTOS);
    }
    let document = Document::read(Arc::from("request"), json!({ list: [value] }).into());
    Ok(match document.faults.first() {
        None => text(StatusCode::OK, ""),
        Some(fault) => wrong(message(&below(fault))),
    })
}

/// `POST configs/validate`: validates lists of resources with their plugins. References are not checked, since they may be to
/// resources outside of the lists.
pub(super) fn lists(context: &AdminContext, request: &AdminRequest) -> Refused<AdminResponse> {
    let lists = body(request)?;
    let errors = errors(context, &lists);
    Ok(match errors.is_empty() {
        true => answer::json_of(StatusCode::OK, &json!({})),
        false => {
            let told: Vec<Value> = errors.iter().map(|error| error.told(&lists)).collect();
            let body = json!({ "error_msg": "Configuration validation failed", "errors": told });
            answer::json_of(StatusCode::BAD_REQUEST, &body)
        }
    })
}

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
    let parsed = yaml::parse(&Arc::from("request"), text, &|_| None, TextLimits::default());
    match parsed.map(|parsed| (parsed.faults.first().map(ToString::to_string), parsed.tree.to_json())) {
        Ok((None, value)) => Ok(value),
        Ok((Some(fault), _)) => refuse(format!("invalid request body: {fault}")),
        Err(faults) => {
            let fault = faults.first().map(ToString::to_string).unwrap_or_default();
            refuse(format!("invalid request body: {fault}"))
        }
    }
}

/// A fault of a list, or of an item in it.
pub(super) struct ListError {
    list: &'static str,
    index: Option<usize>,
    pub(super) problem: String,
}

impl ListError {
    fn told(&self, lists: &Map<String, Value>) -> Value {
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

/// All faults of lists of resources, in order.
pub(super) fn errors(context: &AdminContext, lists: &Map<String, Value>) -> Vec<ListError> {
    let mut errors = Vec::new();
    let mut known = Map::new();
    for list in RESOURCE_LISTS.iter().copied() {
        let Some(items) = lists.get(list) else { continue };
        errors.extend(duplicates(list, items));
        if list != "stream_routes" {
            let mut items = items.clone();
            items.as_array_mut().into_iter().flatten().for_each(without_index);
            known.insert(list.to_owned(), items);
        }
    }
    let document = Document::of_lists(Arc::from("request"), Value::Object(known).into(), context.live.access());
    let faults = match compile(&document, &context.registry, None) {
        Ok(_) => Vec::new(),
        Err(faults) => faults,
    };
    for fault in faults.iter().filter(|fault| !is_reference(fault)) {
        let Some((list, index)) = place(&fault.path) else { continue };
        let is_known = errors.iter().any(|error: &ListError| error.list == list && error.index == index);
        if !is_known {
            errors.push(ListError { list, index, problem: message(&below(fault)) });
        }
    }
    errors
}

/// Removes the number by which an APISIX worker recognizes unchanged items.
pub(super) fn without_index(item: &mut Value) {
    if let Value::Object(members) = item {
        members.shift_remove("modifiedIndex");
    }
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

/// Whether the fault is a dangling reference, whose target may be outside of the lists.
fn is_reference(fault: &Diagnostic) -> bool {
    fault.path.ends_with("_id") && fault.problem.contains(" has no ")
        || fault.problem.starts_with("there is no secrets manager")
}

/// The list and index at the start of a path; no index if the path is the list itself.
fn place(path: &str) -> Option<(&'static str, Option<usize>)> {
    let (list, rest) = path.split_once('[').unwrap_or((path, ""));
    let list = RESOURCE_LISTS.iter().find(|known| **known == list)?;
    Some((list, rest.split_once(']').and_then(|(index, _)| index.parse().ok())))
}

/// The same fault, with a path relative to the resource.
fn below(fault: &Diagnostic) -> Diagnostic {
    let rest = fault.path.split_once(']').map_or("", |(_, rest)| rest.trim_start_matches('.'));
    Diagnostic { path: format!("request: {rest}"), ..fault.clone() }
}
