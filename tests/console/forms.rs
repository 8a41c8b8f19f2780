//! Forms: a document that is drawn and touched stays as it was, and each control changes its own place alone.

use serde_json::{Value, json};
use weir_testkit::scaled;

use crate::api::{self, Api};
use crate::bench::{Bench, RESOURCES};

const HARNESS: &str = include_str!("forms.js");

/// Runs the harness on documents `{name, schema, value, plugins}`, one after another: the browser answers after each. In place of `value`,
/// `random` is a number of documents that fit the schema. Returns how many controls and lists there were.
#[track_caller]
fn work_on(bench: &Bench, documents: &[Value]) -> (u64, u64) {
    let mut problems: Vec<String> = Vec::new();
    let (mut controls, mut lists) = (0, 0);
    for document in documents {
        let outcome = bench.page.evaluate(&format!("{}([{document}])", HARNESS.trim()));
        let found = outcome["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
        problems.extend(found.map(str::to_owned));
        controls += outcome["controls"].as_u64().expect("a number");
        lists += outcome["lists"].as_u64().expect("a number");
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems[..problems.len().min(12)].join("\n"));
    (controls, lists)
}

/// How many random documents there are of each schema.
fn random() -> usize {
    scaled(4, 100)
}

#[test]
fn examples_of_all_plugins_survive_their_forms() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    bench.log_in(api::ADMIN);
    let plugins = Api::of(&bench.gateway).get("plugins?all=true");
    let plugins = plugins.as_object().expect("a map");
    let with_example = |(name, plugin): (&String, &Value)| {
        let value = plugin["schema"]["examples"].get(0).unwrap_or_else(|| panic!("{name} has no example")).clone();
        json!({ "name": name, "schema": plugin["schema"], "value": value, "plugins": {} })
    };
    let documents: Vec<Value> = plugins.iter().map(with_example).collect();
    assert!(documents.len() >= 60, "{} plugins", documents.len());
    let (controls, lists) = work_on(&bench, &documents);
    assert!(controls > 600 && lists > 20, "only {controls} controls, {lists} lists");
    bench.check_quiet();
}

#[test]
fn random_documents_of_all_schemas_survive_their_forms() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    bench.log_in(api::ADMIN);
    let mut admin = Api::of(&bench.gateway);
    let plugins = admin.get("plugins?all=true");
    let mut documents: Vec<Value> = Vec::new();
    for (name, plugin) in plugins.as_object().expect("a map") {
        for schema in ["schema", "consumer_schema", "metadata_schema"] {
            if plugin[schema].is_object() {
                documents.push(json!({ "name": name, "schema": plugin[schema], "plugins": {}, "random": random() }));
            }
        }
    }
    let kinds = bench.page.evaluate(
        "import(new URL('kinds.js', document.baseURI)).then(({ KINDS }) => KINDS.map((kind) => kind.schema))",
    );
    let kinds: Vec<&str> = kinds.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(kinds.len() >= 9 && kinds.contains(&"route"), "{kinds:?}");
    for kind in kinds {
        let schema = admin.get(&format!("schema/{kind}"));
        documents.push(json!({ "name": kind, "schema": schema, "plugins": plugins, "random": random() }));
    }
    let (controls, lists) = work_on(&bench, &documents);
    println!("{} schemas, {} documents of each: {controls} controls, {lists} lists", documents.len(), random());
    assert!(controls > 1000 && lists > 100, "only {controls} controls, {lists} lists");
    bench.check_quiet();
}

#[test]
fn resources_of_all_kinds_survive_their_forms() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    bench.log_in(api::ADMIN);
    let mut admin = Api::of(&bench.gateway);
    let plugins = admin.get("plugins?all=true");
    let documents: Vec<Value> = RESOURCES
        .iter()
        .map(|(key, value)| {
            let list = key.split('/').next().expect("a list");
            let schema = admin.get(&format!("schema/{}", list.trim_end_matches('s')));
            let value: Value = serde_json::from_str(value).expect("JSON");
            json!({ "name": key, "schema": schema, "value": value, "plugins": plugins })
        })
        .collect();
    work_on(&bench, &documents);
    bench.check_quiet();
}

#[test]
fn members_unknown_to_a_schema_are_kept() {
    let Some(bench) = Bench::logged_out(&api::file()) else { return };
    bench.log_in(api::ADMIN);
    let mut admin = Api::of(&bench.gateway);
    let (schema, plugins) = (admin.get("schema/route"), admin.get("plugins?all=true"));
    // Values that many forms lose: empty ones, null, line ends, kinds that no control is for, and names with dots and slashes.
    let odd = json!({
        "uri": "", "uris": [], "methods": ["GET", "NEW"], "host": ["a"], "priority": "7", "status": null, "unknown": { "a": [1, null, {}] },
        "labels": { "": "", "a.b/c~d": "x\ny", "n": 1 }, "vars": [], "timeout": {}, "desc": "two\nlines\n", "name": "  spaces  ",
        "upstream": { "nodes": [{ "host": "a", "port": "80", "weight": 0.5 }, 7], "retries": 1e2, "type": "none", "checks": { "active": null } },
        "plugins": {
            "cors": {}, "none": { "a": {} }, "key-auth": null, "limit-count": { "count": "10", "time_window": "$a", "nope": [] },
            "fault-injection": { "abort": { "http_status": 503, "body": "not now\n", "_meta": {} } },
            "mocking": { "_meta": { "disable": true, "filter": [["a", "==", "b"]] } },
        },
    });
    let document = json!({ "name": "odd", "schema": schema, "value": odd, "plugins": plugins });
    work_on(&bench, &[document]);
    bench.check_quiet();
}

#[test]
fn a_new_form_says_what_the_node_says() {
    let Some(bench) = Bench::start() else { return };
    bench.go("#/new/routes");
    let bar = "document.querySelector('#content .bar [role=status]').textContent";
    bench.page.wait("the number of problems", &format!("/^[1-9] problems?$/.test({bar})"));
    assert_eq!(bench.page.evaluate("document.querySelectorAll('#content .fault, #content .findings').length"), 0);
    let number = bench.page.evaluate(bar);
    bench.page.press("Ctrl+Enter");
    bench.page.wait("the node's words", "document.querySelector('#content .findings')");
    assert_eq!(bench.page.evaluate(bar), number, "as many as without saving");
    bench.check_quiet();
}

#[test]
fn a_wrong_value_has_the_words_of_the_node_at_its_field() {
    let Some(bench) = Bench::start() else { return };
    bench.go("#/services/shop");
    bench.page.fill("[data-pointer='/plugins/limit-count/count'] input", "0");
    bench.page.wait(
        "the node's words",
        "document.querySelector(\"[data-pointer='/plugins/limit-count/count'] .fault\")?.textContent.includes('must be a whole number')",
    );
    bench.page.fill("[data-pointer='/plugins/limit-count/count'] input", "20");
    bench.page.wait("no fault any more", "!document.querySelector('#content .fault')");
    bench.page.press("Ctrl+Enter");
    bench.wait_text("Saved shop");
    let count = bench.resource("services/shop").expect("it is there")["plugins"]["limit-count"]["count"].clone();
    assert_eq!(count, 20);
}
