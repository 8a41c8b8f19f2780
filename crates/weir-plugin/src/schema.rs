//! The JSON Schema of a plugin's options: published, and enforced on configurations.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jsonschema::error::ValidationErrorKind;
use jsonschema::paths::LocationSegment;
use jsonschema::{ValidationError, Validator};
use schemars::JsonSchema;
use serde_json::Value;

use crate::config_error::ConfigError;

/// The JSON Schema of a type.
pub(crate) fn of<T: JsonSchema>() -> Value {
    schemars::schema_for!(T).to_value()
}

/// Enforces the bounds and patterns of a schema, which deserialisation and building do not check.
///
/// # Errors
/// The first violation. Values are not quoted, since they may be secrets.
pub(crate) fn enforce<T: JsonSchema + 'static>(options: &Value) -> Result<(), ConfigError> {
    // A key with the value null counts as absent.
    let is_said = |error: &ValidationError<'_>| !error.instance().is_null();
    let validator = validator::<T>();
    match validator.iter_errors(options).find(is_said) {
        None => Ok(()),
        Some(error) => {
            let error = inner(&error);
            Err(ConfigError::new(place(error), error.masked_with("the value").to_string()))
        }
    }
}

/// For an optional value (`anyOf` a schema and null): the violation of the schema, which is the first alternative.
fn inner<'e, 'v>(error: &'e ValidationError<'v>) -> &'e ValidationError<'v> {
    match error.kind() {
        ValidationErrorKind::AnyOf { context } => context.first().and_then(|first| first.first()).map_or(error, inner),
        _ => error,
    }
}

/// The compiled validator of a type, cached.
fn validator<T: JsonSchema + 'static>() -> Arc<Validator> {
    static KNOWN: LazyLock<Mutex<HashMap<TypeId, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let compile = || Arc::new(jsonschema::validator_for(&of::<T>()).expect("a schema made of a type is valid"));
    Arc::clone(known.entry(TypeId::of::<T>()).or_insert_with(compile))
}

fn place(error: &ValidationError<'_>) -> String {
    error.instance_path().segments().fold(String::new(), |place, segment| match segment {
        LocationSegment::Property(name) if place.is_empty() => name.to_string(),
        LocationSegment::Property(name) => format!("{place}.{name}"),
        LocationSegment::Index(index) => format!("{place}[{index}]"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema matters")]
    struct Options {
        #[schemars(length(min = 1))]
        text: Option<String>,
        #[schemars(range(min = 1, max = 9))]
        numbers: Vec<u64>,
    }

    #[test]
    fn u20_bounds_of_a_schema_are_enforced() {
        let problem = |options: Value| enforce::<Options>(&options).err().map(|error| error.to_string());
        assert_eq!(problem(json!({"text": "a", "numbers": [1]})), None);
        assert_eq!(problem(json!({"text": null, "numbers": []})), None);
        let short = problem(json!({"text": "", "numbers": []})).expect("refused");
        assert!(short.starts_with("text: the value is shorter than 1 character"), "{short}");
    }
}
