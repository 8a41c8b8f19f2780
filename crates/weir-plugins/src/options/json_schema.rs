//! JSON Schemas in options, compiled with bounds.

use std::sync::Arc;

use jsonschema::paths::LocationSegment;
use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value};
use weir_plugin::{ConfigError, Interner, pattern_budget};

/// The largest compiled pattern of a schema, in bytes.
const MAX_PATTERN: usize = 1 << 20;

/// The validators in use, by the texts of their schemas.
static VALIDATORS: Interner<String, Validator> = Interner::new();

/// Compiles the schema of the option at `path`. It follows draft 7, unless its `$schema` names another draft.
///
/// # Errors
/// If it is not a schema, or the regular expressions in it take more than what is left of the budget for expressions.
pub(crate) fn compile(schema: Map<String, Value>, path: &str) -> Result<Arc<Validator>, ConfigError> {
    let schema = Value::Object(schema);
    VALIDATORS.get_or_build(schema.to_string(), |_| {
        if !pattern_budget::spend(pattern_bytes(&schema)) {
            return Err(ConfigError::new(path, "has too many regular expressions"));
        }
        validator(&schema, path)
    })
}

/// Compiles schemas of an OpenAPI definition, which is one document of draft 2020-12. Formats are validated, and nothing is fetched.
///
/// # Errors
/// The place, as a JSON pointer, and the problem.
pub(crate) fn of_definition(schemas: &Value) -> Result<Validator, (String, String)> {
    if !pattern_budget::spend(pattern_bytes(schemas)) {
        return Err((String::new(), "has too many regular expressions".to_owned()));
    }
    let options = jsonschema::options().with_pattern_options(bounded_patterns());
    let options = options.with_draft(Draft::Draft202012).should_validate_formats(true);
    options.build(schemas).map_err(|error| (error.instance_path().to_string(), error.to_string()))
}

/// Whether what is wrong with a value may be too much to be told. The validator tells of a value that fits no alternative what is wrong
/// with it in each: where schemas lead back to themselves, these are exponentially many faults by the depth of the value.
pub(crate) fn has_costly_faults(schema: &Map<String, Value>) -> bool {
    let members = schema.iter();
    let is_in =
        |names: &[&str]| members.clone().any(|(name, value)| names.contains(&&**name) || has_keyword(value, names));
    is_in(&["$ref", "$dynamicRef", "$recursiveRef"]) && is_in(&ALTERNATIVES)
}

/// Whether a schema has alternatives.
pub(crate) fn has_alternatives(schema: &Value) -> bool {
    has_keyword(schema, &ALTERNATIVES)
}

const ALTERNATIVES: [&str; 2] = ["anyOf", "oneOf"];

fn has_keyword(schema: &Value, names: &[&str]) -> bool {
    match schema {
        Value::Object(members) => {
            members.iter().any(|(name, value)| names.contains(&&**name) || has_keyword(value, names))
        }
        Value::Array(items) => items.iter().any(|item| has_keyword(item, names)),
        _ => false,
    }
}

fn bounded_patterns() -> PatternOptions<jsonschema::Regex> {
    PatternOptions::regex().size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN)
}

fn validator(schema: &Value, path: &str) -> Result<Validator, ConfigError> {
    let mut options = jsonschema::options().with_pattern_options(bounded_patterns());
    if schema.get("$schema").is_none() {
        options = options.with_draft(Draft::Draft7);
    }
    options.build(schema).map_err(|error| {
        let place = error.instance_path().segments().fold(path.to_owned(), |place, segment| match segment {
            LocationSegment::Property(name) => format!("{place}.{name}"),
            LocationSegment::Index(index) => format!("{place}[{index}]"),
        });
        ConfigError::new(place, format!("is not a JSON Schema: {error}"))
    })
}

/// The most bytes that the patterns of a schema may take when they are compiled, by the length of their texts: what repeats a part of
/// itself takes much more than its text.
fn pattern_bytes(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => {
            let of_pattern = members.get("pattern").and_then(Value::as_str).into_iter();
            let named = members.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
            let of_text =
                |text: &str| if text.contains('{') { MAX_PATTERN } else { (text.len() << 8).min(MAX_PATTERN) };
            let own: usize = of_pattern.chain(named.map(String::as_str)).map(of_text).sum();
            own + members.values().map(pattern_bytes).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(pattern_bytes).sum(),
        _ => 0,
    }
}
