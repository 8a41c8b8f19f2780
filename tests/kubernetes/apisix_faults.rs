//! What is wrong with objects of the APISIX ingress controller, and who learns of it.

use serde_json::{Value, json};
use weir_testkit::{DEADLINE, eventually};

use crate::apisix::{Adopting, classes, route};
use crate::pulling::{MutualTrust, RunningController, ScriptedNode, report_without};
use crate::stand_in::StandIn;

/// What the translation does not know of is refused by the node, and told by an Event.
#[test]
fn a_rule_that_the_node_refuses_changes_nothing_about_others() {
    let adopting = Adopting::start(", adopt_apisix: true");
    let upstream = json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixUpstream", "metadata": { "name": "cart", "namespace": "shop" },
        "spec": { "ingressClassName": "apisix", "loadbalancer": { "type": "chash", "hashOn": "vars", "key": "unknown" } },
    });
    let odd = route("odd", "odd.example", json!({ "backends": [{ "serviceName": "cart", "servicePort": 80 }] }));
    adopting.cluster.apply([
        upstream,
        odd,
        route("right", "right.example", json!({})),
        route("wide", "*.example", json!({})),
    ]);
    adopting.wait("right.example/", "", 200, "web");
    adopting.wait("another.example/", "", 200, "web");
    eventually("the Event is written", DEADLINE, || {
        adopting
            .cluster
            .objects()
            .all("events")
            .iter()
            .any(|event| event["involvedObject"]["name"] == "odd" || event["regarding"]["name"] == "odd")
    });
    // The wider rule does not answer in its place.
    assert_eq!(adopting.ask("GET", "odd.example/", "").0, 503);
}

/// The reasons come from nodes, and a value of a Secret may be in any option.
#[test]
fn events_quote_no_reason_of_a_node_where_options_come_from_secrets() {
    let cluster = StandIn::start();
    cluster.apply(classes());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": "partner", "namespace": "shop" }, "stringData": { "body": "hunter2-hunter2" },
    });
    let plugin = |name: &str, secret: &str| json!([{ "name": name, "enable": true, "secretRef": secret }]);
    let secretive = route("secretive", "a.example", json!({ "plugins": plugin("response-rewrite", "partner") }));
    cluster.apply([secret, secretive, route("plain", "b.example", json!({ "plugins": plugin("cors", "") }))]);
    let trust = MutualTrust::new();
    let controller = RunningController::following(&cluster.settings(", adopt_apisix: true"), &trust, "");
    controller.wait_ready();
    let (_node, state) = ScriptedNode::connect(&controller, &trust, "a-node");
    let keys = ["routes/apisixroute_shop_secretive_all", "routes/apisixroute_shop_plain_all"];
    let is_there = |key: &&str| state.iter().any(|line| line["put"] == **key);
    assert!(keys.iter().all(is_there), "{state:?}");
    let problem = "plugins.response-rewrite.body: `hunter2-hunter2` is wrong";
    let event = |name: &str| {
        let all = cluster.objects().all("events").into_iter();
        let text = |event: &Value| event["note"].as_str().or(event["message"].as_str()).unwrap_or_default().to_owned();
        let of = |event: &Value| event["regarding"]["name"] == name || event["involvedObject"]["name"] == name;
        all.filter(|event| event["reason"] == "NotServed" && of(event)).map(|event| text(&event)).next()
    };
    eventually("the reports are told", DEADLINE, || {
        report_without(&controller, &trust, &state, &json!({ keys[0]: problem, keys[1]: "is wrong" }));
        event("plain").is_some() && event("secretive").is_some()
    });
    assert_eq!(event("plain").as_deref(), Some("is not served as it is: is wrong"));
    let told = event("secretive").expect("it is there");
    assert!(told.contains("the log of the node may say why") && !told.contains("hunter2"), "{told}");
    let all: String = cluster.objects().all("events").iter().map(Value::to_string).collect();
    assert!(!all.contains("hunter2"), "{all}");
}

/// The definitions of APISIX permit any whole number there.
#[test]
fn an_object_with_a_number_out_of_range_is_read_and_one_that_cannot_be_read_is_told() {
    let adopting = Adopting::start(", adopt_apisix: true");
    let backend = json!([{ "serviceName": "web", "servicePort": 80, "weight": -1 }]);
    let unreadable = json!({
        "apiVersion": "apisix.apache.org/v2", "kind": "ApisixTls",
        "metadata": { "name": "odd", "namespace": "shop" }, "spec": { "ingressClassName": "apisix", "hosts": "a.example" },
    });
    adopting.cluster.apply([
        route("odd", "odd.example", json!({ "backends": backend })),
        route("wide", "*.example", json!({})),
        unreadable,
    ]);
    adopting.wait("another.example/", "", 200, "web");
    adopting.wait_condition("ApisixRoute", "shop/odd", "Accepted=False", "weight: -1");
    adopting.wait("odd.example/", "", 503, "");
    eventually("the Event is written", DEADLINE, || {
        adopting.cluster.objects().all("events").iter().any(|event| event["reason"] == "NotRead")
    });
}

/// A list `plugins` in the file of the node leaves out the plugin that shares are made of.
#[test]
fn several_backends_are_refused_where_the_node_has_no_traffic_split() {
    let adopting = Adopting::with_file(StandIn::start(), ", adopt_apisix: true", "plugins: [{ name: cors }]\n");
    let backends = |names: &[&str]| {
        let backend = |name: &&str| json!({ "serviceName": name, "servicePort": 80 });
        json!({ "backends": names.iter().map(backend).collect::<Vec<_>>() })
    };
    adopting.cluster.apply([
        route("several", "several.example", backends(&["web", "cart"])),
        route("one", "one.example", backends(&["web"])),
    ]);
    let problem = "rule all: answers with 503: plugin traffic-split: is not in the list `plugins`";
    adopting.wait_condition("ApisixRoute", "shop/several", "Accepted=False", problem);
    adopting.wait("one.example/", "", 200, "web");
    adopting.wait("several.example/", "", 503, "");
    let told = adopting.cluster.objects().all("events");
    assert!(told.iter().all(|event| event["reason"] != "NotServed"), "the status says it: {told:?}");
}
