//! The examples of Apache APISIX's documentation are accepted, or refused for a reason that stands beside them in `examples.txt`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::api::{Api, file};
use crate::weir;

/// A resource to send.
#[derive(Debug)]
struct Example<'a> {
    line: usize,
    /// The plugin that it is an example of; `None` for a whole resource.
    plugin: Option<&'a str>,
    key: String,
    body: Value,
    /// What the refusal says, if there is to be one.
    refusal: Option<&'a str>,
}

fn examples(text: &str) -> Vec<Example<'_>> {
    let mut examples: Vec<Example> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        if let Some(refusal) = line.strip_prefix("! ") {
            let (said, why) = refusal.split_once(" # ").expect("a refusal has a reason");
            assert!(!why.is_empty(), "line {}: a refusal has a reason", index + 1);
            examples.last_mut().expect("an example comes first").refusal = Some(said);
            continue;
        }
        let mut parts = line.splitn(3, ' ');
        let (kind, name) = (parts.next().expect("a kind"), parts.next().expect("a name"));
        let options: Value = serde_json::from_str(parts.next().expect("options")).unwrap_or_else(|error| {
            panic!("line {}: {error}", index + 1);
        });
        let (key, body) = match kind {
            "route" => {
                let upstream = json!({"type": "roundrobin", "nodes": {"127.0.0.1:1980": 1}});
                ("routes/example".to_owned(), json!({"uri": "/a/*", "plugins": {name: options}, "upstream": upstream}))
            }
            "stream" => {
                let upstream = json!({"type": "chash", "key": "mqtt_client_id", "nodes": {"127.0.0.1:1980": 1}});
                let body = json!({"server_port": 9100, "plugins": {name: options}, "upstream": upstream});
                ("stream_routes/example".to_owned(), body)
            }
            "consumer" => ("consumers".to_owned(), json!({"username": "anna", "plugins": {name: options}})),
            "metadata" => (format!("plugin_metadata/{name}"), options),
            "resource" if name == "consumers" => (name.to_owned(), options),
            "resource" => (format!("{name}/example"), options),
            _ => panic!("line {}: `{kind}` is no kind of example", index + 1),
        };
        let plugin = (kind != "resource").then_some(name);
        examples.push(Example { line: index + 1, plugin, key, body, refusal: None });
    }
    examples
}

/// Sends an example; returns what is wrong with the answer.
fn fault(api: &mut Api, example: &Example) -> Option<String> {
    let Example { line, key, body, refusal, .. } = example;
    let answer = api.ask("PUT", key, "", &body.to_string());
    let told = answer.text();
    let wrong = match (answer.status, refusal) {
        (200 | 201, None) => None,
        (400, Some(refusal)) if told.contains(refusal) => None,
        (status, _) => Some(format!("line {line}: {status} {told} for {body}")),
    };
    if matches!(answer.status, 200 | 201) {
        let key = match key.as_str() {
            "consumers" => format!("consumers/{}", body["username"].as_str().expect("a name")),
            key => key.to_owned(),
        };
        let answer = api.ask("DELETE", &key, "", "");
        assert_eq!(answer.status, 200, "line {line}: {}", answer.text());
    }
    wrong
}

#[test]
fn examples_of_apisix_are_accepted_or_refused_for_a_reason() {
    let listed = "resource_log_files: [/var/log/weir-examples]\nresource_files: [/etc/weir]\nresource_env: [PATH]\n";
    let gateway = weir().start(&format!("{}{listed}", file()));
    let mut api = Api::of(&gateway);
    let examples = examples(include_str!("examples.txt"));
    let wrong: Vec<String> = examples.iter().filter_map(|example| fault(&mut api, example)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), examples.len(), wrong.join("\n"));
}

#[test]
fn every_plugin_has_an_example() {
    let gateway = weir().start(&file());
    let listed = Api::of(&gateway).get("plugins/list");
    let plugins: BTreeSet<&str> = listed.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let examples = examples(include_str!("examples.txt"));
    examples.iter().filter_map(|example| example.plugin).for_each(|plugin| *counts.entry(plugin).or_default() += 1);
    assert!(plugins.len() >= 61, "{plugins:?}");
    let missing: Vec<&&str> = plugins.iter().filter(|plugin| !counts.contains_key(**plugin)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
