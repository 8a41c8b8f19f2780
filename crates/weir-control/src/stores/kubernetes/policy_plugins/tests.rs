use serde_json::{Value, json};
use weir_kube::PolicyPlugins;
use weir_plugins::REGISTRY;

use super::NodePlugins;
use crate::text::yaml::{self, TextLimits};

fn plugins() -> NodePlugins {
    NodePlugins::new(REGISTRY, None)
}

fn refusal(plugin: &str, options: Value) -> String {
    plugins().check(plugin, &options, &options).expect_err("it is refused")
}

/// What a policy cannot have of the examples of all plugins, where their servers are not on the node. Whether users of a namespace may
/// configure a new plugin is decided by what its options, and its line in the list of plugins, declare.
const REFUSED_EXAMPLES: [(&str, &str); 15] = [
    ("basic-auth", "needs consumers"),
    ("datadog", "is configured by the operator of the node alone"),
    ("file-logger", "path: names a file of the node"),
    ("google-cloud-logging", "auth_file: names a file of the node"),
    ("hmac-auth", "needs consumers"),
    ("jwe-decrypt", "needs consumers"),
    ("jwt-auth", "needs consumers"),
    ("key-auth", "needs consumers"),
    ("ldap-auth", "needs consumers"),
    ("loggly", "is configured by the operator of the node alone"),
    ("mtls-auth", "needs consumers"),
    ("multi-auth", "needs consumers"),
    ("opentelemetry", "is configured by the operator of the node alone"),
    ("proxy-cache", "is configured by the operator of the node alone"),
    ("traffic-split", "rules[0].weighted_upstreams[0].upstream: leads to an upstream"),
];

#[test]
fn examples_of_plugins_are_possible_in_a_policy_but_for_these() {
    let mut refused = Vec::new();
    for entry in REGISTRY.entries() {
        let example = entry.example.replace("127.0.0.1", "192.0.2.1");
        let parsed = yaml::parse(&entry.name.into(), &example, &|_| None, TextLimits::default()).expect("it is YAML");
        let options = parsed.tree.entry(entry.name).expect("the example has it").value.to_json();
        let options = if options.is_null() { json!({}) } else { options };
        if let Err(problem) = plugins().check(entry.name, &options, &options) {
            refused.push((entry.name, problem));
        }
    }
    let names = |all: &[(&'static str, String)]| all.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names(&refused), REFUSED_EXAMPLES.map(|(name, _)| name), "{refused:?}");
    for ((name, problem), (_, begins)) in refused.iter().zip(REFUSED_EXAMPLES) {
        assert!(problem.starts_with(begins), "{name}: {problem}");
    }
}

#[test]
fn options_do_not_lead_to_the_node_its_files_and_other_upstreams() {
    for (plugin, options, told) in [
        ("forward-auth", json!({ "uri": "http://127.0.0.1:9180/" }), "uri: `http://127.0.0.1:9180/` leads to the node"),
        ("forward-auth", json!({ "uri": "http://$arg_host/" }), "uri: `http://$arg_host/` has a variable in its host"),
        ("file-logger", json!({ "path": "logs/shop.log" }), "path: names a file of the node"),
        ("kafka-logger", json!({ "kafka_topic": "t", "broker_list": { "169.254.169.254": 9092 } }), "broker_list: "),
        (
            "kafka-logger",
            json!({ "kafka_topic": "t", "brokers": [{ "host": "::1", "port": 9092 }] }),
            "brokers[0].host: ",
        ),
        (
            "limit-count",
            json!({ "count": 1, "time_window": 1, "policy": "redis-cluster", "redis_cluster_nodes": ["a:1", "localhost:2"], "redis_cluster_name": "c" }),
            "redis_cluster_nodes: `localhost:2` leads to the node",
        ),
        (
            "traffic-split",
            json!({ "rules": [{ "weighted_upstreams": [{ "upstream_id": "other_secret_80" }] }] }),
            "rules[0].weighted_upstreams[0].upstream_id: leads to an upstream",
        ),
        (
            "workflow",
            json!({ "rules": [{ "actions": [["limit-count", { "count": 1, "time_window": 1, "policy": "redis", "redis_host": "127.0.0.1" }]] }] }),
            "rules[0].actions[0][1].redis_host: `127.0.0.1` leads to the node",
        ),
        (
            "workflow",
            json!({ "rules": [{ "actions": [["limit-count", { "count": 1, "time_window": 1, "group": "all" }]] }] }),
            "limit-count group all: is shared by all namespaces",
        ),
    ] {
        let problem = refusal(plugin, options);
        assert!(problem.contains(told), "{plugin}: {problem}");
    }
    let elsewhere = json!({ "uri": "http://auth.shop.svc/verify?x=$arg_x" });
    assert_eq!(plugins().check("forward-auth", &elsewhere, &elsewhere), Ok(0));
}

#[test]
fn faults_say_where_and_what_would_be_right() {
    assert_eq!(refusal("limit-cuont", json!({})), "there is no such plugin; did you mean `limit-count`?");
    assert!(refusal("ip-restriction", json!({ "whitelst": ["10.0.0.0/8"] })).contains("whitelst"));
    assert!(refusal("limit-req", json!({ "rate": "x", "burst": 1, "key": "remote_addr" })).contains("rate: "));
    assert!(refusal("cors", json!({ "_meta": { "priority": 1 } })).starts_with("_meta: "));
    assert!(refusal("cors", json!([])).contains("not a map"));
    let some = NodePlugins::new(REGISTRY, Some(["csrf".into()].into()));
    assert!(some.check("cors", &json!({}), &json!({})).is_err_and(|problem| problem.contains("not enabled")));
    let off = json!({ "_meta": { "disable": true }, "anything": 1 });
    assert_eq!(plugins().check("key-auth", &off, &off), Ok(0));
}

#[test]
fn meta_of_apisix_objects_is_checked_as_the_node_does() {
    let check = |meta: Value| {
        let options = json!({ "_meta": meta });
        plugins().check_of_apisix("cors", &options, &options)
    };
    for right in [
        json!({}),
        json!({ "disable": false, "priority": -5, "error_response": { "message": "no" } }),
        json!({ "error_response": "no" }),
    ] {
        assert_eq!(check(right.clone()), Ok(0), "{right}");
    }
    for (wrong, told) in [
        (json!([]), "_meta: can only have"),
        (json!({ "filter": [] }), "_meta: can only have"),
        (json!({ "disable": "hunter2" }), "_meta.disable: must be true or false"),
        (json!({ "priority": "hunter2" }), "_meta.priority: must be a whole number"),
        (json!({ "priority": 1_u64 << 40 }), "_meta.priority: must be a whole number"),
        (json!({ "error_response": 5 }), "_meta.error_response: must be text or a map"),
    ] {
        let problem = check(wrong).expect_err("the node refuses it");
        assert!(problem.starts_with(told) && !problem.contains("hunter2"), "{problem}");
    }
}

#[test]
fn faults_of_credentials_tell_no_value_and_name_no_secret_that_is_not_there() {
    let problem = plugins().credential("basic-auth", &json!({ "username": ["hunter2"], "password": "p" }));
    let problem = problem.expect_err("a name is text");
    assert!(problem.contains("the reason is not told, since it may quote the credential"), "{problem}");
    assert!(!problem.contains("hunter2"), "{problem}");
}

#[test]
fn expressions_count_by_what_they_take() {
    let blocked = |pattern: &str| {
        let options = json!({ "block_rules": [pattern] });
        plugins().check("uri-blocker", &options, &options)
    };
    assert_eq!(blocked("/admin"), Ok(64 << 10));
    assert_eq!(blocked("/admin"), Ok(64 << 10), "the same again");
    assert!(blocked("[a-z]{100000}").is_err());
}

#[test]
fn values_of_secrets_are_not_told_and_not_shown() {
    let check = |plugin: &str, written: Value, options: Value| plugins().check(plugin, &written, &options);
    let reference = "$secret://kubernetes/csrf/key";
    assert_eq!(check("csrf", json!({ "key": reference }), json!({ "key": "hunter2" })), Ok(0));
    let shown = json!({ "body": reference });
    let problem = check("response-rewrite", shown, json!({ "body": "hunter2" })).expect_err("clients would see it");
    assert_eq!(problem, "body: is no secret option, so it cannot have a value from a Secret");
    let users = |password: &str, name: &str| json!({ "users": [{ "username": name, "password": password }] });
    let problem = check("basic-auth", users(reference, "a"), users("{SHA}hunter2", "a")).expect_err("of another kind");
    assert_eq!(problem, "users[0].password: is refused with the value from the Secret");
    let mut wrong = [users(reference, "a"), users("hunter2", "a")];
    wrong.iter_mut().for_each(|options| options["relm"] = "x".into());
    let [written, options] = wrong;
    let problem = check("basic-auth", written, options).expect_err("an unknown option");
    assert!(problem.contains("realm") && !problem.contains("hunter2"), "{problem}");
}
