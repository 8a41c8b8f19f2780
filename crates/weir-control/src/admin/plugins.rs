//! The list of plugins and their schemas.

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use weir_plugin::{Entry, Registry};

use super::answer::{self, AdminResponse, text, wrong};
use super::query::Query;
use crate::plugin_schemas;

/// Responds to requests below `/plugins` and `/schema/plugins`.
pub(super) fn answer(registry: Registry, method: &Method, path: &[&str], query: &Query) -> AdminResponse {
    let is_read = *method == Method::GET;
    match path {
        ["reload"] => reload(method),
        _ if !is_read => answer::other_method(method, "GET"),
        [] if query.is_true("all") => all(registry, query),
        [] => wrong("use `plugins?all=true`, `plugins/list` or `plugins/{name}`"),
        ["list"] => match query.get("subsystem").unwrap_or("http") {
            "http" => names(registry),
            "stream" => text(StatusCode::OK, "[]"),
            _ => text(StatusCode::BAD_REQUEST, "invalid subsystem passed"),
        },
        [name] => one(registry, name, query),
        _ => answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": "not found" })),
    }
}

/// Plugins are part of the program, so there is nothing to reload.
fn reload(method: &Method) -> AdminResponse {
    if *method == Method::PUT {
        return text(StatusCode::OK, "done\n");
    }
    let problem = format!("please use PUT method to reload the plugins, {method} method is not allowed.");
    answer::method_not_allowed(&problem, "PUT")
}

fn by_priority(registry: Registry) -> Vec<&'static Entry> {
    let mut entries: Vec<&Entry> = registry.entries().iter().collect();
    entries.sort_by_key(|entry| (std::cmp::Reverse(entry.priority), entry.name));
    entries
}

fn names(registry: Registry) -> AdminResponse {
    let names: Vec<&str> = by_priority(registry).into_iter().map(|entry| entry.name).collect();
    answer::json_of(StatusCode::OK, &json!(names))
}

fn one(registry: Registry, name: &str, query: &Query) -> AdminResponse {
    match query.get("subsystem").unwrap_or("http") {
        "http" => {}
        "stream" => return unknown("stream"),
        other => return wrong(format!("unsupported subsystem: {other}")),
    }
    let Some(entry) = registry.find(name) else { return unknown("http") };
    let schema = match query.get("schema_type") {
        None => Some(plugin_schemas::options(entry)),
        Some("consumer") => plugin_schemas::credential(entry),
        Some("metadata") => plugin_schemas::metadata(entry),
        Some(_) => None,
    };
    schema.map_or_else(|| wrong("not found schema"), |schema| answer::json_of(StatusCode::OK, &schema))
}

fn unknown(subsystem: &str) -> AdminResponse {
    let problem = format!("plugin not found in subsystem {subsystem}");
    answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": problem }))
}

fn all(registry: Registry, query: &Query) -> AdminResponse {
    let mut all = Map::new();
    if query.get("subsystem").unwrap_or("http") == "http" {
        for entry in by_priority(registry) {
            all.insert(entry.name.to_owned(), described(entry));
        }
    }
    answer::json_of(StatusCode::OK, &Value::Object(all))
}

fn described(entry: &Entry) -> Value {
    let mut told = json!({ "priority": entry.priority, "schema": plugin_schemas::options(entry), "scope": entry.stage.to_string() });
    if let Some(metadata) = plugin_schemas::metadata(entry) {
        told["metadata_schema"] = metadata;
    }
    if let Some(credential) = plugin_schemas::credential(entry) {
        told["consumer_schema"] = credential;
        told["type"] = "auth".into();
    }
    told
}
