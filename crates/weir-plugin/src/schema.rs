//! The JSON Schema of a plugin's options: published, and enforced on configurations.

mod expected;
mod faults;
mod reference;
mod units;

use std::any::TypeId;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jsonschema::Validator;
use schemars::JsonSchema;
use serde_json::Value;

use crate::config_error::ConfigError;
use crate::option_error::Quoting;

/// The JSON Schema of a type, as it is published.
pub(crate) fn of<T: JsonSchema>() -> Value {
    let mut schema = plain::<T>();
    units::publish(&mut schema);
    schema
}

/// The JSON Schema of options whose times and sizes are numbers.
fn plain<T: JsonSchema>() -> Value {
    schemars::schema_for!(T).to_value()
}

/// Enforces a schema. Returns the options with times and sizes as numbers.
///
/// # Errors
/// All faults. Values that may be secrets are not quoted.
pub(crate) fn enforce<'v, T: JsonSchema + 'static>(
    options: &'v Value,
    quoting: Quoting,
) -> Result<Cow<'v, Value>, ConfigError> {
    let EnforcedSchema { schema, validator } = &*enforced::<T>();
    let options = units::as_numbers(schema, options);
    match ConfigError::of_faults(faults::of(schema, validator, &options, quoting)) {
        None => Ok(options),
        Some(error) => Err(error),
    }
}

/// The schema of a type, and its compiled validator.
struct EnforcedSchema {
    schema: Value,
    validator: Validator,
}

/// That of a type, cached.
fn enforced<T: JsonSchema + 'static>() -> Arc<EnforcedSchema> {
    static KNOWN: LazyLock<Mutex<HashMap<TypeId, Arc<EnforcedSchema>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let compile = || {
        let schema = plain::<T>();
        let validator = jsonschema::validator_for(&schema).expect("a schema made of a type is valid");
        Arc::new(EnforcedSchema { schema, validator })
    };
    Arc::clone(known.entry(TypeId::of::<T>()).or_insert_with(compile))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its schema matters")]
    struct Options {
        #[schemars(length(min = 1))]
        text: Option<String>,
        #[schemars(inner(range(min = 1, max = 9)))]
        numbers: Vec<u64>,
        #[schemars(range(min = 1024), extend("x-weir-unit" = "bytes"))]
        size: Option<u64>,
        #[schemars(extend("x-weir-unit" = "s"))]
        time: Option<u64>,
        #[schemars(extend("x-weir-unit" = "ms"))]
        pause: Option<u64>,
        kind: Option<Pace>,
        way: Option<Way>,
        #[schemars(range(min = 1))]
        rate: Option<f64>,
        inner: Option<Vec<Options>>,
        nested: Option<Nested>,
    }

    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its schema matters")]
    struct Nested {
        pace: Option<Pace>,
        gait: Pace,
    }

    #[derive(JsonSchema)]
    #[schemars(rename_all = "lowercase")]
    #[expect(dead_code, reason = "only its schema matters")]
    enum Pace {
        /// At once.
        Fast,
        /// Later.
        Slow,
    }

    #[derive(JsonSchema)]
    #[schemars(tag = "type", rename_all = "lowercase")]
    #[expect(dead_code, reason = "only its schema matters")]
    enum Way {
        Ride { speed: u8 },
        Swim { depth: u8 },
    }

    #[derive(JsonSchema)]
    #[schemars(deny_unknown_fields)]
    struct NoOptions {}

    fn problems(options: &Value) -> Vec<String> {
        let faults = enforce::<Options>(options, Quoting::Allowed).err();
        faults.into_iter().flat_map(ConfigError::each).map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn u20_bounds_of_a_schema_are_enforced() {
        assert_eq!(problems(&json!({"text": "a", "numbers": [1]})), [""; 0]);
        assert_eq!(problems(&json!({"text": null, "numbers": []})), [""; 0]);
        assert_eq!(problems(&json!({"text": "", "numbers": []})), ["text: is empty; at least 1 character is needed"]);
    }

    #[test]
    fn all_faults_are_told_with_what_would_be_right() {
        let options = json!({
            "text": 5, "numbers": [0, 3, "4"], "kind": "fsat", "nubmers": [],
            "way": {"type": "walk"}, "rate": 0.5, "inner": [{"text": true, "numbers": []}]
        });
        let mut found = problems(&options);
        found.sort();
        let mut expected = [
            "text: expected text, found a number; put it in quotes",
            "numbers[0]: expected a whole number from 1 to 9, found the number 0",
            "numbers[2]: expected a whole number from 1 to 9, found the text `4`; write it without quotes",
            "kind: `fsat` is not an allowed value; did you mean `fast`?",
            "nubmers: the option `nubmers` is not known; did you mean `numbers`?",
            "way.type: `walk` is not an allowed value; write one of `ride`, `swim`",
            "rate: expected a number, 1 or more, found the number 0.5",
            "inner[0].text: expected text, found the boolean true; put it in quotes",
        ];
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(problems(&json!({})), ["the option `numbers` is missing"]);
        let misspelt = problems(&json!({"nubmers": []}));
        assert_eq!(
            misspelt,
            ["nubmers: the option `nubmers` is not known; did you mean `numbers`?"],
            "and not missing"
        );
        let unknown = enforce::<NoOptions>(&json!({"a": 1}), Quoting::Allowed).map(Cow::into_owned);
        let unknown = unknown.expect_err("it has no options").to_string();
        assert_eq!(unknown, "a: the option `a` is not known; there are no options here");
        let wrong_form = problems(&json!({"numbers": [], "way": 1, "kind": 1}));
        let no_map = "way: expected a map, found a number; its options are `type`, `speed`, `depth`";
        assert!(wrong_form.contains(&no_map.to_owned()), "{wrong_form:?}");
        let in_list = problems(&json!({"numbers": [], "inner": ["a"]}));
        assert_eq!(in_list, ["inner[0]: expected a map, found text; write `{ numbers: … }`"]);
        assert!(wrong_form.contains(&"kind: expected one of `fast`, `slow`, found the number 1".to_owned()));
    }

    #[test]
    fn wrong_word_in_an_optional_map_is_told_with_its_place_and_the_words() {
        let found = problems(&json!({"numbers": [], "nested": {"gait": "trot"}}));
        assert_eq!(found, ["nested.gait: `trot` is not an allowed value; write one of `fast`, `slow`"]);
        let found = problems(&json!({"numbers": [], "nested": {"gait": "fast", "pace": "trot", "x": 1}}));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.contains(&"nested.pace: `trot` is not an allowed value; write one of `fast`, `slow`".to_owned()));
    }

    #[test]
    fn times_and_sizes_have_units() {
        let options = json!({"numbers": [], "size": "256MiB", "time": "5m", "pause": "1.5s"});
        let plain = enforce::<Options>(&options, Quoting::Allowed).map(Cow::into_owned);
        assert_eq!(plain, Ok(json!({"numbers": [], "size": 268_435_456, "time": 300, "pause": 1_500})));
        let wrong =
            json!({"numbers": [], "size": {"max": 1}, "time": "3 parsecs", "inner": [{"numbers": [], "size": "1k"}]});
        assert_eq!(
            problems(&wrong),
            [
                "size: expected a size such as `8MiB`, or a number of bytes, found a map",
                "time: `3 parsecs` is not a time; write a number of seconds, or a time such as `500ms`, `10s`, `5m`, `1h`",
            ]
        );
        let texts = json!({"numbers": [], "size": "2048", "time": "7", "pause": "250"});
        let plain = enforce::<Options>(&texts, Quoting::Allowed).map(Cow::into_owned);
        assert_eq!(
            plain,
            Ok(json!({"numbers": [], "size": 2_048, "time": 7, "pause": 250})),
            "in the option's own unit"
        );
        let small = problems(&json!({"numbers": [], "size": "1"}));
        assert_eq!(small, ["size: expected a whole number of bytes, 1024 or more, found the number 1"]);
        let published = of::<Options>();
        let validator = jsonschema::validator_for(&published).expect("it is a schema");
        assert!(validator.is_valid(&options) && validator.is_valid(&json!({"numbers": [], "size": 2_048})));
        assert!(!validator.is_valid(&json!({"numbers": [], "size": 1})));
        assert!(!validator.is_valid(&json!({"numbers": [], "time": "3 parsecs"})));
    }
}
