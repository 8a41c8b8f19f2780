//! The list of plugins and their schemas.

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use weir_plugin::{Entry, Registry};

use super::answer::{self, AdminResponse, text, wrong};
use super::query::Query;
use crate::document::is_secret_at;
use crate::text::yaml::{self, TextLimits};

/// Responds to requests below `/plugins` and `/schema/plugins`.
pub(super) fn answer(registry: Registry, method: &Method, path: &[&str], query: &Query) -> AdminResponse {
    let is_read = *method == Method::GET;
    match path {
        ["reload"] => reload(method),
        _ if !is_read => answer::json_of(StatusCode::NOT_FOUND, &json!({ "error_msg": "not found" })),
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
    answer::json_of(StatusCode::METHOD_NOT_ALLOWED, &json!({ "error_msg": problem }))
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
        None => Some((entry.schema)()),
        Some("consumer") => entry.credential.map(|credential| (credential.schema)()),
        Some("metadata") => entry.metadata.map(|metadata| (metadata.schema)()),
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
    let marked = |list: &str, mut schema: Value| {
        let mut names = vec!["plugins".to_owned(), entry.name.to_owned()];
        mark_secrets(list, &mut schema, &mut names);
        schema
    };
    let mut told = json!({
        "priority": entry.priority,
        "schema": marked("routes", (entry.schema)()),
        "scope": entry.stage.to_string(),
        "example": example(entry),
    });
    if let Some(metadata) = entry.metadata {
        told["metadata_schema"] = (metadata.schema)();
    }
    if let Some(credential) = entry.credential {
        told["consumer_schema"] = marked("consumers", (credential.schema)());
        told["type"] = "auth".into();
    }
    told
}

/// The options of the example in the reference.
fn example(entry: &Entry) -> Value {
    let source = entry.name.into();
    let parsed = yaml::parse(&source, entry.example, &|_| None, TextLimits::default());
    let options = parsed.ok().and_then(|parsed| Some(parsed.tree.entry(entry.name)?.value.to_json()));
    options.unwrap_or_default()
}

/// Sets `writeOnly` (JSON Schema validation §9.4) of the options that are secrets: readers see them masked.
fn mark_secrets(list: &str, schema: &mut Value, names: &mut Vec<String>) {
    let Value::Object(members) = schema else { return };
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        for (name, property) in properties {
            names.push(name.clone());
            let path: Vec<&str> = names.iter().map(String::as_str).collect();
            if is_secret_at(list, &path)
                && let Value::Object(members) = property
            {
                members.insert("writeOnly".to_owned(), true.into());
            }
            mark_secrets(list, property, names);
            names.pop();
        }
    }
    // Items of lists, and the members of unions, have the names of what they are in.
    for (keyword, below) in members {
        match below {
            Value::Array(all) if matches!(keyword.as_str(), "oneOf" | "anyOf" | "allOf") => {
                all.iter_mut().for_each(|one| mark_secrets(list, one, names));
            }
            Value::Object(_) if keyword == "items" => mark_secrets(list, below, names),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_options_are_marked_and_others_are_not() {
        let schema = json!({"properties": {
            "password": {"type": "string"},
            "key": {"type": "string"},
            "list": {"items": {"properties": {"password": {}}}},
            "one": {"anyOf": [{"properties": {"password": {}}}, {"type": "null"}]},
        }});
        let marked = |list: &str| {
            let mut schema = schema.clone();
            mark_secrets(list, &mut schema, &mut vec!["plugins".to_owned(), "p".to_owned()]);
            schema
        };
        let of_route = marked("routes");
        assert_eq!(of_route["properties"]["password"]["writeOnly"], true);
        assert_eq!(of_route["properties"]["key"].get("writeOnly"), None);
        assert_eq!(of_route["properties"]["list"]["items"]["properties"]["password"]["writeOnly"], true);
        assert_eq!(of_route["properties"]["one"]["anyOf"][0]["properties"]["password"]["writeOnly"], true);
        assert_eq!(marked("consumers")["properties"]["key"]["writeOnly"], true, "of a consumer it is the secret");
    }
}
