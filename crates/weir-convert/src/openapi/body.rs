//! Parameters and bodies, as options of `request-validation`.

use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::schema::RequestSchema;
use crate::yaml::{Yaml, YamlMembers};

/// The plugin that validates header fields and the body of an operation.
pub(super) fn validation(
    conversion: &mut DocumentConversion,
    item: &DocumentValue,
    operation: &DocumentValue,
) -> Option<(String, Yaml)> {
    let mut options = YamlMembers::new();
    options.extend(required_fields(conversion, item, operation).map(|schema| ("header_schema".to_owned(), schema)));
    options.extend(body_schema(conversion, operation).map(|schema| ("body_schema".to_owned(), schema)));
    (!options.is_empty()).then(|| ("request-validation".to_owned(), Yaml::Map(options)))
}

/// The schema for required header fields. Other constraints on parameters are left to the API.
fn required_fields(
    conversion: &mut DocumentConversion,
    item: &DocumentValue,
    operation: &DocumentValue,
) -> Option<Yaml> {
    let root = conversion.root;
    let resolved = |parameter: &'_ DocumentValue| match parameter.text("$ref") {
        Some(pointer) => root.at_pointer(pointer).cloned(),
        None => Some(parameter.clone()),
    };
    let all = operation.list("parameters").iter().chain(item.list("parameters")).filter_map(resolved);
    let mut names: Vec<String> = Vec::new();
    for parameter in all {
        let name = parameter.text("name").unwrap_or_default();
        // OpenAPI 3.1, 4.8.12.2.1: definitions of these three fields are ignored.
        let is_ignored =
            ["accept", "content-type", "authorization"].iter().any(|other| name.eq_ignore_ascii_case(other));
        match parameter.text("in") {
            Some("header") if parameter.is_true("required", false) && !is_ignored => names.push(name.to_owned()),
            Some("header" | "path") => {}
            Some(place) if parameter.is_true("required", false) => {
                conversion
                    .lost(&parameter, format!("`{name}` in the {place} is required; the gateway does not check it"));
            }
            _ => {}
        }
    }
    names.sort_unstable_by_key(|name| name.to_ascii_lowercase());
    names.dedup_by(|one, other| one.eq_ignore_ascii_case(other));
    (!names.is_empty()).then(|| Yaml::map([("type", Yaml::text("object")), ("required", Yaml::texts(names))]))
}

/// The schema of a required body, if its only type is JSON or a form.
fn body_schema(conversion: &mut DocumentConversion, operation: &DocumentValue) -> Option<Yaml> {
    let root = conversion.root;
    let body = operation.get("requestBody")?;
    let body = body.text("$ref").map_or(Some(body), |pointer| root.at_pointer(pointer))?;
    let kinds = body.get("content")?.members();
    let [(kind, media)] = kinds else {
        conversion.lost(body, "the body may be of several types; it is not validated");
        return None;
    };
    let schema = media.get("schema")?;
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind != "application/json" && kind != "application/x-www-form-urlencoded" && !kind.ends_with("+json") {
        conversion.lost(media, format!("a body of the type `{kind}` is not validated"));
        return None;
    }
    if !body.is_true("required", false) {
        conversion.lost(body, "the body is optional; it is not validated");
        return None;
    }
    match RequestSchema::new(conversion).convert(schema) {
        Ok(schema) => Some(schema),
        Err(why) => {
            conversion.lost(schema, format!("{why}; the body is not validated"));
            None
        }
    }
}
