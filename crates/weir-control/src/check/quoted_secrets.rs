//! Errors never quote secrets: each option that is one, of every plugin and resource, is given wrong values that would be
//! recognised in a message.

use serde_json::{Map, Value, json};
use weir_plugin::secret_name::has_headers;

use super::check_document;
use crate::document::{WrittenDocument, is_secret_at, mask_secrets};
use crate::text::yaml::{self, TextLimits};

/// A text and a number that stand nowhere else.
const MARKS: [&str; 2] = ["sw0rdf1sh", "918273645"];

/// Values that are wrong where a secret is expected, or wrong as a secret.
fn wrong_values() -> Vec<Value> {
    let [text, number] = MARKS;
    let number: u64 = number.parse().expect("a number");
    vec![
        json!(number),
        json!(-(number as i64)),
        json!(text),
        json!(format!("{text}\n{text} {{{{ $x")),
        json!(""),
        json!([text]),
        json!([number, [text]]),
        json!({ "a": text }),
        json!({ "a": { "b": [text] } }),
        json!({ "X-A\n": text }),
        json!(true),
    ]
}

/// The paths to properties of a schema, those inside of lists and maps included.
fn paths(schema: &Value) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    walk(schema, schema, &mut Vec::new(), &mut found);
    found.sort();
    found.dedup();
    found
}

fn walk(root: &Value, schema: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    if path.len() > 6 {
        return;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null);
        walk(root, target, path, found);
    }
    for alternatives in ["anyOf", "oneOf", "allOf"] {
        for one in schema[alternatives].as_array().into_iter().flatten() {
            walk(root, one, path, found);
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name.clone());
        found.push(path.clone());
        walk(root, property, path, found);
        path.pop();
    }
    for (inner, step) in [("items", "[]"), ("additionalProperties", "a")] {
        if schema[inner].is_object() {
            path.push(step.to_owned());
            found.push(path.clone());
            walk(root, &schema[inner], path, found);
            path.pop();
        }
    }
}

/// Puts a value at a path; what stands in the way is replaced.
fn put(at: &mut Value, path: &[String], value: Value) {
    let Some((first, rest)) = path.split_first() else {
        *at = value;
        return;
    };
    if first == "[]" {
        if !at.is_array() {
            *at = json!([{}]);
        }
        let items = at.as_array_mut().expect("it is a list");
        if items.is_empty() {
            items.push(json!({}));
        }
        return put(&mut items[0], rest, value);
    }
    if !at.is_object() {
        *at = Value::Object(Map::new());
    }
    put(&mut at[first.as_str()], rest, value);
}

fn is_secret(list: &str, path: &[String]) -> bool {
    let names: Vec<&str> = path.iter().map(String::as_str).filter(|name| *name != "[]").collect();
    is_secret_at(list, &names)
}

/// All errors of a configuration, as `weir check` prints them; the Admin API answers with the same.
fn errors(document: &Value) -> String {
    let document = WrittenDocument::parse("weir.yaml", &document.to_string(), &|_| None, TextLimits::default());
    let checked =
        document.and_then(|document| check_document(&document.without_secrets().alone(), &weir_plugins::REGISTRY));
    let (Ok(found) | Err(found)) = checked;
    found.iter().map(|fault| format!("{fault}\n")).collect()
}

/// Gives the secrets below `resource` in `document` every wrong value, alone and beside an unknown option and an unknown choice.
fn try_all(
    place: &str,
    list: &str,
    before: &[&str],
    example: &Value,
    schema: &Value,
    of: &dyn Fn(Value) -> Value,
) -> usize {
    let before: Vec<String> = before.iter().map(|name| (*name).to_owned()).collect();
    let mut tried = 0;
    for path in paths(schema) {
        if !is_secret(list, &[&before[..], &path].concat()) {
            continue;
        }
        for wrong in wrong_values() {
            let mut value = example.clone();
            put(&mut value, &path, wrong.clone());
            let mut beside = value.clone();
            for name in ["policy", "algorithm", "sync_type", "zebra"] {
                beside[name] = json!("unknown");
            }
            for value in [value, beside] {
                let told = errors(&of(value));
                let quoted = MARKS.iter().any(|mark| told.contains(mark));
                assert!(!quoted, "{place}: {} = {wrong} is quoted: {told}", path.join("."));
                tried += 1;
            }
        }
    }
    tried
}

/// What a resource contains once its secrets are masked.
fn masked(list: &str, mut resource: Value) -> String {
    mask_secrets(list, &mut resource);
    resource.to_string()
}

/// Every option is given a URL, and every map of header fields a field with credentials.
#[test]
fn credentials_in_header_fields_and_urls_are_secrets_of_every_plugin() {
    let (text, mut shown, mut tried) = (MARKS[0], Vec::new(), 0);
    let mut try_one = |list: &str, before: &[&str], path: &[String], name: &str| {
        let before: Vec<String> = before.iter().map(|name| (*name).to_owned()).collect();
        let mut values = vec![(path.to_vec(), json!(format!("https://u.test/p?key={text}")))];
        if let Some((step, map)) = path.split_last()
            && step == "a"
            && map.iter().any(|name| has_headers(name))
        {
            values.push(([map, &["Authorization".to_owned()]].concat(), json!(format!("Bearer {text}"))));
        }
        for (path, value) in values {
            let mut resource = json!({});
            put(&mut resource, &[&before[..], &path].concat(), value);
            tried += 1;
            if masked(list, resource).contains(text) {
                shown.push(format!("{name}.{}", path.join(".")));
            }
        }
    };
    for entry in weir_plugins::REGISTRY.entries() {
        for path in paths(&(entry.schema)()) {
            try_one("routes", &["plugins", entry.name], &path, entry.name);
        }
        for path in entry.metadata.iter().flat_map(|metadata| paths(&(metadata.schema)())) {
            try_one("plugin_metadata", &[], &path, entry.name);
        }
    }
    // What clients are sent anyway.
    shown.retain(|place: &String| !place.starts_with("redirect."));
    assert!(shown.is_empty() && tried > 500, "{tried} were tried: {shown:?}");
}

#[test]
fn no_error_quotes_a_secret_of_a_plugin() {
    let mut tried = 0;
    for entry in weir_plugins::REGISTRY.entries() {
        let name = entry.name;
        let parsed = yaml::parse(&"example".into(), entry.example, &|_| None, TextLimits::default());
        let example = parsed.expect("an example is YAML").tree.to_json();
        let route = |options: Value| json!({"routes": [{"id": "r", "uri": "/", "plugins": {name: options}}]});
        tried += try_all(name, "routes", &["plugins", name], &example, &(entry.schema)(), &route);
        if let Some(credential) = entry.credential {
            let consumer = |options: Value| {
                json!({"consumers": [{"username": "a", "plugins": {name: options}}],
                       "routes": [{"id": "r", "uri": "/", "plugins": {name: {}}}]})
            };
            tried += try_all(name, "consumers", &["plugins", name], &json!({}), &(credential.schema)(), &consumer);
        }
        if let Some(metadata) = entry.metadata {
            let settings = |mut options: Value| {
                options["id"] = name.into();
                json!({"plugin_metadata": [options]})
            };
            tried += try_all(name, "plugin_metadata", &[], &json!({}), &(metadata.schema)(), &settings);
        }
    }
    assert!(tried > 1_000, "{tried}");
}

#[test]
fn no_error_quotes_a_secret_of_a_resource_or_of_the_node() {
    let places: &[(&str, Value)] = &[
        ("ssls.[].key", json!({"ssls": [{"id": "s", "sni": "a.test", "cert": "c"}]})),
        ("ssls.[].keys", json!({"ssls": [{"id": "s", "sni": "a.test", "cert": "c", "key": "k", "certs": ["c"]}]})),
        (
            "upstreams.[].tls.client_key",
            json!({"upstreams": [{"id": "u", "nodes": {"127.0.0.1:1": 1}, "tls": {"client_cert": "c"}}]}),
        ),
        ("secrets.[].token", json!({"secrets": [{"id": "vault/1", "uri": "http://127.0.0.1:1", "prefix": "kv"}]})),
        ("secrets.[].secret_access_key", json!({"secrets": [{"id": "aws/1", "access_key_id": "a", "region": "r"}]})),
        ("secrets.[].access_key_id", json!({"secrets": [{"id": "aws/1", "secret_access_key": "a", "region": "r"}]})),
        ("secrets.[].auth_config.private_key", json!({"secrets": [{"id": "gcp/1"}]})),
        ("admin.keys.[].key", json!({"admin": {"listen": "127.0.0.1:1", "keys": [{"name": "a", "role": "admin"}]}})),
        ("store.etcd.password", json!({"store": {"etcd": {"hosts": ["http://127.0.0.1:1"], "user": "a"}}})),
        ("data_encryption.keyring", json!({"data_encryption": {"enable_encrypt_fields": true}})),
        ("data_encryption.keyring.[]", json!({"data_encryption": {"enable_encrypt_fields": true}})),
        ("hubs.[].secret", json!({"hubs": [{"id": "h"}]})),
        ("hubs.[].kafka.sasl.password", json!({"hubs": [{"id": "h", "kafka": {"brokers": ["127.0.0.1:1"]}}]})),
        ("otlp_metrics.headers.a", json!({"otlp_metrics": {"endpoint": "http://127.0.0.1:1"}})),
        ("otlp_metrics.headers", json!({"otlp_metrics": {"endpoint": "http://127.0.0.1:1"}})),
        ("acme.eab.key", json!({"acme": {"directory": "https://127.0.0.1:1"}})),
    ];
    for (path, document) in places {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        for wrong in wrong_values() {
            let mut document = document.clone();
            put(&mut document, &path, wrong.clone());
            let told = errors(&document);
            let quoted = MARKS.iter().any(|mark| told.contains(mark));
            assert!(!quoted, "{} = {wrong} is quoted: {told}", path.join("."));
        }
    }
}
