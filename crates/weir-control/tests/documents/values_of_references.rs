//! A user who writes `$env://NAME` or `$secret://…` where the value is refused does not learn the value from the message.

use serde_json::{Value, json};
use weir_control::compile;
use weir_control::document::{CompleteDocument, WrittenDocument};
use weir_control::text::diagnostic::Diagnostic;
use weir_control::text::yaml::{SourceText, TextLimits};
use weir_plugin::Entry;
use weir_plugin::options::rows;
use weir_plugins::REGISTRY;
use weir_testkit::is_full;

/// Values that many options refuse for different reasons, and parts of each that no message may contain.
const VALUES: &[(&str, &[&str])] = &[
    ("Hunter2 in (brackets [and", &["hunter2", "brackets"]),
    ("http://inner.example:99999/quiet path?x", &["inner.example", "99999", "quiet"]),
    ("http://someone:pa55word@inner.example/", &["someone", "pa55word", "inner.example"]),
    ("123456789012345678901234567890", &["12345", "1.2345"]),
    ("$unknown_inner ${arg_$inner", &["inner"]),
    ("hunter2\r\nX-Inner: 1", &["hunter2", "inner"]),
    ("-----BEGIN PRIVATE KEY-----\nSHVudGVyMg==\n-----END PRIVATE KEY-----", &["SHVudGVy"]),
];

fn faults(document: &CompleteDocument) -> Vec<Diagnostic> {
    match compile(document, &REGISTRY, None) {
        Ok(compiled) => compiled.warnings,
        Err(faults) => faults,
    }
}

/// Sets the option at a path of the reference, such as `rules[].headers.*.name`.
fn set(options: &mut Value, path: &str, value: Value) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let (name, lists) = first.split_once("[]").map_or((first, ""), |(name, _)| (name, &first[name.len()..]));
    let name = if name == "*" { "name" } else { name };
    if !options.is_object() {
        *options = json!({});
    }
    let mut place = &mut options[name];
    for _ in lists.matches("[]") {
        if place.as_array().is_none_or(Vec::is_empty) {
            *place = json!([null]);
        }
        place = &mut place[0];
    }
    match rest {
        Some(rest) => set(place, rest, value),
        None => *place = value,
    }
}

/// Both become the value before anything is compiled.
const REFERENCES: [&str; 2] = ["$env://NAME", "$secret://vault/1/path/key"];

/// The document and everything that is said about it, with each of the references at the same places.
fn said(document: &dyn Fn(&str) -> Value, value: &str, references: &[&str]) -> Vec<String> {
    let mut said = Vec::new();
    for reference in references {
        let mut written = document(reference);
        written["secrets"] = json!([{"id": "vault/1", "uri": "http://127.0.0.1:1", "prefix": "kv", "token": "t"}]);
        let lookup = |name: &str| (name == "NAME").then(|| value.to_owned());
        let read =
            WrittenDocument::parse("weir.yaml", &written.to_string(), &lookup, TextLimits::default()).expect("JSON");
        let read = read.with_secrets(|_, _| Ok(value.to_owned())).alone();
        said.extend(faults(&read).iter().map(|found| format!("{written}: {found}")));
    }
    said
}

/// The route with a plugin.
fn route(plugins: Value) -> Value {
    json!({"routes": [{"id": "r", "uri": "/", "plugins": plugins, "upstream": {"nodes": {"127.0.0.1:1": 1}}}]})
}

#[test]
fn no_plugin_tells_the_value_that_it_refuses() {
    let (mut told, mut leaks) = (0, Vec::new());
    for entry in REGISTRY.entries() {
        let example = example(entry);
        let options = rows(&(entry.schema)()).into_iter().map(|row| ("plugin", row.path));
        let credentials = entry.credential.map(|of| rows(&(of.schema)())).unwrap_or_default();
        let metadata = entry.metadata.map(|of| rows(&(of.schema)())).unwrap_or_default();
        let credentials = credentials.into_iter().map(|row| ("credential", row.path));
        let metadata = metadata.into_iter().map(|row| ("metadata", row.path));
        for (of, path) in options.chain(credentials).chain(metadata) {
            let document = |reference: &str| {
                let with = |mut options: Value| {
                    set(&mut options, &path, reference.into());
                    options
                };
                match of {
                    "plugin" => route(json!({entry.name: with(example.clone())})),
                    "credential" => {
                        json!({"consumers": [{"username": "jack", "plugins": {entry.name: with(json!({}))}}]})
                    }
                    _ => {
                        let mut metadata = with(json!({}));
                        metadata["id"] = entry.name.into();
                        json!({"plugin_metadata": [metadata]})
                    }
                }
            };
            for (number, (value, parts)) in VALUES.iter().enumerate() {
                // Thousands of documents: secrets have one value in each place, unless there is time for all.
                let references = if number == 0 || is_full() { &REFERENCES[..] } else { &REFERENCES[..1] };
                for message in said(&document, value, references) {
                    told += 1;
                    let lower = message.to_lowercase();
                    if parts.iter().any(|part| lower.contains(&part.to_lowercase())) {
                        leaks.push(message);
                    }
                }
            }
        }
    }
    assert!(told > 1_000, "most values are refused: {told}");
    assert_eq!(leaks, [""; 0], "values of references in messages");
}

#[test]
fn no_resource_tells_the_value_that_it_refuses() {
    let upstream =
        |tls: Value| json!({"upstreams": [{"id": "u", "scheme": "https", "nodes": {"127.0.0.1:1": 1}, "tls": tls}]});
    let resources: &[&dyn Fn(&str) -> Value] = &[
        &|text| json!({"ssls": [{"id": "s", "sni": "a.example", "cert": text, "key": text}]}),
        &|text| json!({"ssls": [{"id": "s", "sni": "a.example", "cert": "x.pem", "key": text, "client": {"ca": text}}]}),
        &|text| upstream(json!({"client_cert": text, "client_key": text})),
        &|text| upstream(json!({"ca": text})),
        &|text| route(json!({"mocking": {"_meta": {"filter": [["uri", "~~", text]]}}})),
        &|text| route(json!({"mocking": {"_meta": {"filter": text}}})),
        &|text| route(json!({"mocking": {"_meta": {"priority": text, "error_response": text}}})),
        &|text| route(json!({"mocking": text})),
        &|text| json!({"global_rules": [{"id": "g", "plugins": {"limit-count": {"count": text, "time_window": 1}}}]}),
        &|text| json!({"plugin_configs": [{"id": "g", "plugins": {"cors": {"allow_origins": text}}}]}),
        &|text| json!({"consumer_groups": [{"id": "g", "plugins": {"ip-restriction": {"whitelist": [text]}}}]}),
        &|text| {
            let nodes = json!([{"host": text, "port": 0, "weight": text}]);
            route(json!({"traffic-split": {"rules": [{"weighted_upstreams": [{"upstream": {"nodes": nodes}}]}]}}))
        },
    ];
    for document in resources {
        for (value, parts) in VALUES {
            for message in said(document, value, &REFERENCES) {
                let lower = message.to_lowercase();
                assert!(!parts.iter().any(|part| lower.contains(&part.to_lowercase())), "{message}");
            }
        }
    }
}

#[test]
fn no_manager_of_secrets_tells_the_value_that_it_refuses() {
    for (value, parts) in VALUES {
        for name in ["uri", "prefix", "token", "namespace", "ttl", "auth_method"] {
            let mut manager = json!({"id": "vault/1", "uri": "http://127.0.0.1:1", "prefix": "kv", "token": "t"});
            manager[name] = "$env://NAME".into();
            let text = json!({"secrets": [manager]}).to_string();
            let read = WrittenDocument::parse("weir.yaml", &text, &|_| Some(value.to_string()), TextLimits::default());
            for message in faults(&read.expect("JSON").without_secrets().alone())
                .iter()
                .map(|found| found.to_string().to_lowercase())
            {
                assert!(!parts.iter().any(|part| message.contains(&part.to_lowercase())), "{message}");
            }
        }
    }
}

/// The options in the example of a plugin, which is YAML.
fn example(entry: &Entry) -> Value {
    let text = SourceText::new(&"example".into(), entry.example, &|_| None, TextLimits::default()).expect("YAML");
    text.parse().expect("YAML").tree.to_json()[entry.name].clone()
}
