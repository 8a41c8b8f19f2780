//! The schemas of plugins as they are published: with an example, and with the options that are secrets (`writeOnly`).
//!
//! Members beyond JSON Schema: `x-weir-unit` (`s`, `ms`, `bytes`; the value may be a text such as `10s` or `8MiB` as well),
//! `x-weir-only-if` (the option has an effect only if another one has one of these values), `x-weir-reaches` (a `server` or a `file`).

use serde_json::{Map, Value, json};
use weir_plugin::{Entry, Registry};

use crate::document::{file_schema, mark_secrets};
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

/// The schema of a configuration file, with the plugins in it: other names of plugins and of options are refused.
pub fn of_file(registry: &Registry) -> Value {
    let mut schema = file_schema();
    let (mut definitions, mut of_routes, mut of_consumers) = (Map::new(), Map::new(), Map::new());
    let mut of_metadata = Vec::new();
    for entry in registry.entries() {
        let mut add = |kind: &str, schema: Value, complete: fn(&mut Value)| {
            define(&mut definitions, &format!("{kind}.{}", entry.name), schema, complete)
        };
        let options = add("plugin", options(entry), add_meta);
        let credential = credential(entry).map(|schema| add("credential", schema, add_meta));
        of_consumers.insert(entry.name.to_owned(), credential.unwrap_or_else(|| options.clone()));
        of_routes.insert(entry.name.to_owned(), options);
        if let Some(settings) = metadata(entry) {
            let settings = add("metadata", settings, add_about);
            let has_name = json!({ "properties": { "id": { "const": entry.name } }, "required": ["id"] });
            of_metadata.push(json!({ "if": has_name, "then": settings }));
        }
    }
    let plugins = |properties: Map<String, Value>| json!({ "type": "object", "properties": properties, "additionalProperties": false });
    definitions.insert(META.to_owned(), meta());
    definitions.insert("plugins".to_owned(), plugins(of_routes));
    definitions.insert("plugins_of_consumer".to_owned(), plugins(of_consumers));
    let known = schema["$defs"].as_object_mut().expect("a file has maps within maps");
    for (kind, table) in known.iter_mut() {
        let Some(Value::Object(plugins)) = table.pointer_mut("/properties/plugins") else { continue };
        if plugins.remove("x-weir-plugins").is_some() {
            plugins.retain(|member, _| !matches!(member.as_str(), "type" | "additionalProperties"));
            let names = if kind == "consumer" { "plugins_of_consumer" } else { "plugins" };
            plugins.insert("$ref".to_owned(), format!("#/$defs/{names}").into());
        }
    }
    known.extend(definitions);
    schema["properties"]["plugin_metadata"] = json!({
        "type": ["array", "null"],
        "items": { "type": "object", "required": ["id"], "allOf": of_metadata },
    });
    allow_variables(&mut schema);
    schema["$defs"][VARIABLE] = json!({ "type": "string", "pattern": r"\$\{\{" });
    schema
}

/// The definition of a text with a variable of the environment, such as `${{PORT}}`.
const VARIABLE: &str = "variable";

/// Lets a variable stand for each single value within a schema, as files may have it.
fn allow_variables(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    for (member, value) in members.iter_mut() {
        match (&**member, value) {
            ("$defs" | "properties" | "patternProperties", Value::Object(schemas)) => {
                schemas.values_mut().for_each(allow_variable)
            }
            ("items" | "additionalProperties", schema) => allow_variable(schema),
            ("oneOf" | "anyOf" | "allOf", Value::Array(schemas)) => schemas.iter_mut().for_each(allow_variables),
            ("then" | "else", schema) => allow_variables(schema),
            _ => {}
        }
    }
    // With a variable in it, a value may be of more than one form.
    if let Some(forms) = members.remove("oneOf") {
        members.insert("anyOf".to_owned(), forms);
    }
}

/// The same for the value that this schema is of. Its faults are told as before.
fn allow_variable(schema: &mut Value) {
    allow_variables(schema);
    let is_single = match &schema["type"] {
        Value::String(kind) => !matches!(&**kind, "object" | "array"),
        Value::Array(kinds) => kinds.iter().any(|kind| kind != "object" && kind != "array" && kind != "null"),
        _ => ["enum", "const", "oneOf", "anyOf"].iter().any(|member| schema.get(member).is_some()),
    };
    let restricts = |member: &String| !matches!(&**member, "type" | "description" | "default" | "examples");
    let is_any_text = schema["type"] == "string" && schema.as_object().is_some_and(|of| !of.keys().any(restricts));
    if is_single && !is_any_text {
        let of_value = schema.take();
        let about = |member: &str| of_value.get(member).cloned().map(|value| (member.to_owned(), value));
        let mut outer: Map<String, Value> = ["description", "default"].into_iter().filter_map(about).collect();
        outer.insert("if".to_owned(), json!({ "$ref": format!("#/$defs/{VARIABLE}") }));
        outer.insert("else".to_owned(), of_value);
        *schema = Value::Object(outer);
    }
}

/// The definition of what each plugin may have beside its options.
const META: &str = "plugin_meta";

fn meta() -> Value {
    let about = |kind: Value, description: &str| json!({ "type": kind, "description": description });
    json!({
        "type": "object",
        "properties": {
            "disable": about("boolean".into(), "The plugin is ignored."),
            "priority": about("integer".into(), "The position among the plugins of the same stage."),
            "filter": about("array".into(), "Conditions: the plugin runs only for requests that meet them."),
            "error_response": about(json!(["string", "object"]), "What replaces the bodies of the plugin's error responses."),
        },
        "additionalProperties": false,
    })
}

/// Adds a schema to the definitions of a larger one, completed by what refers to that, and returns the reference to it.
fn define(definitions: &mut Map<String, Value>, name: &str, mut schema: Value, complete: fn(&mut Value)) -> Value {
    let place = format!("#/$defs/{name}");
    move_references(&mut schema, &format!("{place}/$defs/"));
    if let Value::Object(members) = &mut schema {
        members.retain(|member, _| !matches!(member.as_str(), "$schema" | "examples" | "title"));
    }
    complete(&mut schema);
    definitions.insert(name.to_owned(), schema);
    json!({ "$ref": place })
}

/// Makes references to the schema's own definitions ones to `place`.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(members) => {
            for (member, value) in members {
                match value {
                    Value::String(reference) if member == "$ref" => *reference = reference.replace("#/$defs/", place),
                    value => move_references(value, place),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, place)),
        _ => {}
    }
}

/// Options as they stand in a resource: with `_meta`, or none. One that is disabled needs none.
fn add_meta(schema: &mut Value) {
    schema["properties"]["_meta"] = json!({ "$ref": format!("#/$defs/{META}") });
    schema["type"] = json!(["object", "null"]);
    if let Some(required) = schema.as_object_mut().and_then(|members| members.remove("required")) {
        let is_disabled = json!({ "properties": { "disable": { "const": true } }, "required": ["disable"] });
        schema["if"] = json!({ "properties": { "_meta": is_disabled }, "required": ["_meta"] });
        schema["else"] = json!({ "required": required });
    }
}

/// Settings as they stand in an item of `plugin_metadata`: with what each item may have.
fn add_about(schema: &mut Value) {
    for (name, kind) in [("id", "string"), ("create_time", "integer"), ("update_time", "integer")] {
        schema["properties"][name] = json!({ "type": kind });
    }
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

    /// The options that the examples of plugins have, each with the plugin, in a route or a consumer; refused ones are left out.
    fn examples() -> Vec<Value> {
        let text = include_str!("../../../tests/admin/examples.txt");
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let is_refused = |index: usize| lines.get(index + 1).is_some_and(|line| line.starts_with('!'));
        let accepted = lines.iter().enumerate().filter(|(index, line)| !line.starts_with('!') && !is_refused(*index));
        let examples = accepted.filter_map(|(_, line)| {
            let (kind, rest) = line.split_once(' ')?;
            let (name, options) = rest.split_once(' ')?;
            let options: Value = serde_json::from_str(options).expect("JSON");
            match kind {
                "route" => Some(json!({ "routes": [{ "uri": "/a", "plugins": { name: options } }] })),
                "consumer" => Some(json!({ "consumers": [{ "username": "a", "plugins": { name: options } }] })),
                "metadata" => {
                    let mut item = options;
                    item["id"] = name.into();
                    Some(json!({ "plugin_metadata": [item] }))
                }
                _ => None,
            }
        });
        examples.collect()
    }

    #[test]
    fn schema_of_a_file_accepts_what_plugins_accept() {
        let validator = jsonschema::validator_for(&of_file(&REGISTRY)).expect("it is a schema");
        let examples = examples();
        assert!(examples.len() > 200, "{}", examples.len());
        for example in examples {
            let faults: Vec<String> = validator.iter_errors(&example).map(|error| error.to_string()).collect();
            assert_eq!(faults, [""; 0], "{example}");
        }
        let accepted = |plugins: Value| validator.is_valid(&json!({ "routes": [{ "uri": "/a", "plugins": plugins }] }));
        assert!(accepted(json!({ "key-auth": null })));
        assert!(accepted(
            json!({ "redirect": { "uri": "/b", "_meta": { "disable": false, "filter": [["uri", "==", "/"]] } } })
        ));
        assert!(accepted(json!({ "proxy-mirror": { "_meta": { "disable": true } } })));
    }

    #[test]
    fn schema_of_a_file_accepts_variables_in_place_of_single_values() {
        let validator = jsonschema::validator_for(&of_file(&REGISTRY)).expect("it is a schema");
        let faults = |file: Value| -> Vec<String> {
            validator.iter_errors(&file).map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
        };
        let file = |value: &str| {
            json!({
                "listen": value,
                "worker_processes": value,
                "status": value,
                "consumers": [{ "username": value }],
                "routes": [{
                    "uri": value,
                    "priority": value,
                    "methods": [value],
                    "plugins": { "limit-count": { "count": value, "time_window": value, "policy": value } },
                    "upstream": { "nodes": { "a.test:80": value }, "retries": value },
                }],
            })
        };
        assert_eq!(faults(file("${{VALUE}}")), [""; 0]);
        assert!(faults(file("VALUE")).len() > 5, "each place has its own kind");
        assert_eq!(faults(json!({ "routes": "${{VALUE}}" })).len(), 1, "a list cannot be one");
    }

    #[test]
    fn schema_of_a_file_refuses_unknown_names_of_plugins_and_options() {
        let validator = jsonschema::validator_for(&of_file(&REGISTRY)).expect("it is a schema");
        let place = |file: Value| {
            let fault = validator.iter_errors(&file).next().expect("it is wrong");
            fault.instance_path().to_string()
        };
        let in_route = |plugins: Value| place(json!({ "routes": [{ "uri": "/a", "plugins": plugins }] }));
        assert_eq!(
            in_route(json!({ "limit-count": { "count": 2, "time_windw": 1 } })),
            "/routes/0/plugins/limit-count"
        );
        assert_eq!(in_route(json!({ "keyauth": {} })), "/routes/0/plugins");
        assert_eq!(
            in_route(json!({ "key-auth": { "_meta": { "disabled": true } } })),
            "/routes/0/plugins/key-auth/_meta"
        );
        let metadata = json!({ "plugin_metadata": [{ "id": "http-logger", "log_formt": {} }] });
        assert_eq!(place(metadata), "/plugin_metadata/0");
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
