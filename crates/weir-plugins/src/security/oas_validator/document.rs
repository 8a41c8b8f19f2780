//! The text of a definition as a tree, its bounds, and the references within it.

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// The most levels of a definition: also those that a reader of JSON follows.
const MOST_DEPTH: usize = 100;
/// The most references that lead to one object.
const MOST_HOPS: usize = 16;
/// The most faults of a definition that are told.
const MOST_TOLD: usize = 10;

/// The faults of a definition, each with its place as a JSON pointer.
#[derive(Debug, Default)]
pub(super) struct SpecFaults(pub Vec<String>);

impl SpecFaults {
    pub(super) fn add(&mut self, place: &str, problem: impl std::fmt::Display) {
        let told = format!("`#{place}`: {problem}");
        if self.0.len() < MOST_TOLD && !self.0.contains(&told) {
            self.0.push(told);
        }
    }
}

/// An OpenAPI document.
#[derive(Debug)]
pub(super) struct OasDocument {
    root: Value,
    /// Its schemas are those of OpenAPI 3.0, which are not JSON Schemas.
    pub is_3_0: bool,
}

impl OasDocument {
    /// Reads JSON or YAML.
    ///
    /// # Errors
    /// If it is neither, is nested too deep, or is not OpenAPI 3.0 or 3.1.
    pub(super) fn read(text: &str) -> Result<OasDocument, String> {
        let root = tree(text)?;
        if is_deeper(&root, MOST_DEPTH) {
            return Err(format!("is nested deeper than {MOST_DEPTH} levels"));
        }
        let version = match &root["openapi"] {
            Value::String(version) => version.clone(),
            // `openapi: 3.1` is a number in YAML.
            Value::Number(version) => version.to_string(),
            _ if root.get("swagger").is_some() => {
                return Err("is a definition of Swagger 2.0; convert it to OpenAPI 3.0 or 3.1".to_owned());
            }
            _ => return Err("is not an OpenAPI definition: `openapi`, its version, is not there".to_owned()),
        };
        let is =
            |minor: &str| version == minor || version.strip_prefix(minor).is_some_and(|rest| rest.starts_with('.'));
        if !is("3.0") && !is("3.1") {
            return Err(format!("is of OpenAPI {version:.20}; 3.0 and 3.1 are possible"));
        }
        if !root["paths"].is_object() {
            return Err("has no `paths`, of which requests could be one".to_owned());
        }
        Ok(OasDocument { is_3_0: is("3.0"), root })
    }

    /// The value at a JSON pointer.
    pub(super) fn at(&self, pointer: &str) -> Option<&Value> {
        self.root.pointer(pointer)
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// The object that stands at a place, or that a reference there leads to, with its own place.
    pub(super) fn resolve(&self, place: &str, faults: &mut SpecFaults) -> Option<(&Value, String)> {
        let mut found = (self.at(place)?, place.to_owned());
        for _ in 0..MOST_HOPS {
            let Some(reference) = found.0.get("$ref").and_then(Value::as_str) else { return Some(found) };
            match self.target(reference) {
                Ok(pointer) => found = (self.at(&pointer)?, pointer),
                Err(problem) => {
                    faults.add(&found.1, problem);
                    return None;
                }
            }
        }
        faults.add(place, "its references lead to each other");
        None
    }

    /// Where a reference leads.
    ///
    /// # Errors
    /// If that is outside of the document, or nowhere.
    pub(super) fn target(&self, reference: &str) -> Result<String, String> {
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err(format!("`$ref` leads out of the document, to `{reference:.80}`; bundle it into one document"));
        };
        let pointer = percent_decode_str(fragment).decode_utf8_lossy().into_owned();
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Err(format!("`$ref` is `{reference:.80}`; only places are possible: `#/components/schemas/NAME`"));
        }
        match self.at(&pointer) {
            Some(_) => Ok(pointer),
            None => Err(format!("`$ref` leads to `{reference:.80}`, which is not there")),
        }
    }
}

fn tree(text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{')
        && let Ok(root) = serde_json::from_str(text)
    {
        return Ok(root);
    }
    // `on` and `yes` are names. The budget of the reader bounds what aliases repeat.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let told = error.to_string();
        format!("is neither JSON nor YAML: {}", told.lines().next().unwrap_or_default())
    })
}

fn is_deeper(value: &Value, most: usize) -> bool {
    let Some(most) = most.checked_sub(1) else { return true };
    match value {
        Value::Object(members) => members.values().any(|member| is_deeper(member, most)),
        Value::Array(items) => items.iter().any(|item| is_deeper(item, most)),
        _ => false,
    }
}

/// A JSON pointer to a member of the value at a place (RFC 6901 §3).
pub(super) fn below(place: &str, member: impl std::fmt::Display) -> String {
    format!("{place}/{}", member.to_string().replace('~', "~0").replace('/', "~1"))
}
