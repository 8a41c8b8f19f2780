//! The schemas of plugins as they are published: with an example, and with the options that are secrets (`writeOnly`).
//!
//! Members beyond JSON Schema: `x-weir-unit` (`s`, `ms`, `bytes`; the value may be a text such as `10s` or `8MiB` as well),
//! `x-weir-only-if` (the option has an effect only if another one has one of these values), `x-weir-reaches` (a `server` or a `file`).

use serde_json::{Value, json};
use weir_plugin::Entry;

use crate::document::mark_secrets;
use crate::text::yaml::{self, TextLimits};

/// Of the options under `plugins`.
pub fn options(entry: &Entry) -> Value {
    let mut schema = (entry.schema)();
    mark_secrets("routes", &["plugins", entry.name], &mut schema);
    if let Some(example) = example(entry) {
        schema["examples"] = json!([example]);
    }
    schema
}

/// Of the options of a consumer.
pub fn credential(entry: &Entry) -> Option<Value> {
    let mut schema = (entry.credential?.schema)();
    mark_secrets("consumers", &["plugins", entry.name], &mut schema);
    Some(schema)
}

/// Of the settings in `plugin_metadata`.
pub fn metadata(entry: &Entry) -> Option<Value> {
    let mut schema = (entry.metadata?.schema)();
    mark_secrets("plugin_metadata", &[], &mut schema);
    Some(schema)
}

/// The options in the plugin's example.
fn example(entry: &Entry) -> Option<Value> {
    let parsed = yaml::parse(&entry.name.into(), entry.example, &|_| None, TextLimits::default()).ok()?;
    parsed.tree.entry(entry.name).map(|found| found.value.to_json())
}

#[cfg(test)]
mod tests {
    use weir_plugins::REGISTRY;

    use super::*;

    fn of(name: &str) -> &'static Entry {
        REGISTRY.find(name).expect("there is such a plugin")
    }

    #[test]
    fn schemas_have_the_example_of_the_plugin_which_they_accept() {
        for entry in REGISTRY.entries() {
            let schema = options(entry);
            let example = &schema["examples"][0];
            assert!(example.is_object(), "{}: {example}", entry.name);
            let validator = jsonschema::validator_for(&schema).expect("it is a schema");
            let faults: Vec<String> = validator.iter_errors(example).map(|error| error.to_string()).collect();
            assert_eq!(faults, [""; 0], "{}", entry.name);
        }
    }

    #[test]
    fn schemas_tell_secrets_units_conditions_and_what_has_no_effect() {
        let limit = options(of("limit-count"));
        let of_limit = &limit["properties"];
        assert_eq!(of_limit["redis_password"]["writeOnly"], true);
        assert_eq!(of_limit["redis_host"]["x-weir-only-if"], json!({ "policy": ["redis"] }));
        assert_eq!(of_limit["redis_timeout"]["x-weir-unit"], "ms");
        assert_eq!(of_limit["redis_keepalive_pool"]["deprecated"], true);
        assert!(of_limit["key"].get("writeOnly").is_none(), "it names what is counted");
        let kafka = options(of("kafka-logger"));
        assert!(kafka.to_string().contains("\"writeOnly\":true"), "the password of `sasl_config`, in a definition");
        let credential = credential(of("key-auth")).expect("it has credentials");
        assert_eq!(credential["properties"]["key"]["writeOnly"], true);
    }
}
