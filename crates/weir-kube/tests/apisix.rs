//! What is wrong with objects of the APISIX ingress controller closes what they are for, and takes nothing from others.

mod plugins;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use weir_kube::{KubeOptions, PolicyPlugins, ResourceList, Translation, World, translate};

const CLASSES: &str = "
{ apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: { name: apisix }, spec: { controller: apisix.apache.org/apisix-ingress-controller } }
---
{ apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: { name: weir }, spec: { controller: weir.dev/ingress-controller } }
---
{ apiVersion: v1, kind: Service, metadata: { name: web, namespace: shop }, spec: { clusterIP: 10.0.0.1, ports: [{ port: 80 }, { port: 81, name: other }] } }
";

/// What the classes, a Service and these objects mean.
fn of(objects: &[Value]) -> Translation {
    let written = objects.iter().map(|object| format!("\n---\n{object}"));
    let manifests = World::from_manifests(&format!("{CLASSES}{}", written.collect::<String>())).expect("manifests");
    assert_eq!(manifests.skipped, Vec::<String>::new());
    translate(&manifests.world, &KubeOptions { adopt_apisix: true, ..plugins::options() })
}

fn object(kind: &str, name: &str, age: u8, mut spec: Value) -> Value {
    let (namespace, name) = name.split_once('/').expect("a namespace");
    let group = match kind {
        "Ingress" => "networking.k8s.io/v1",
        "Secret" => "v1",
        _ => "apisix.apache.org/v2",
    };
    let created = format!("2026-01-{age:02}T00:00:00Z");
    let metadata = json!({ "name": name, "namespace": namespace, "creationTimestamp": created });
    if kind == "Secret" {
        return json!({ "apiVersion": group, "kind": kind, "metadata": metadata, "type": "Opaque", "stringData": spec });
    }
    spec["ingressClassName"] = if kind == "Ingress" { "weir" } else { "apisix" }.into();
    json!({ "apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec })
}

/// The resources of a list, by id.
fn all(translation: &Translation, list: ResourceList) -> Vec<(String, Value)> {
    let of_list = translation.resources.iter().filter(|one| one.kind == list);
    of_list.map(|one| (one.id.clone(), one.value.clone())).collect()
}

/// The reason and the message of a condition of an object.
fn told(translation: &Translation, object: &str, kind: &str) -> (String, String) {
    let status = translation.statuses.iter().find(|status| status.object.to_string() == object);
    let all = status.expect("it has a status").status["conditions"].as_array().expect("conditions").clone();
    let condition = all.into_iter().find(|condition| condition["type"] == kind).expect("it is set");
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

fn certificate(name: &str) -> Value {
    let pem = |label: &str| format!("-----BEGIN {label}-----\nMAo=\n-----END {label}-----\n");
    let (cert, key) = (pem("CERTIFICATE"), pem("PRIVATE KEY"));
    object("Secret", name, 1, json!({ "tls.crt": cert, "tls.key": key, "ca.crt": cert }))
}

fn tls(name: &str, age: u8, host: &str, asks: bool) -> Value {
    let mut spec = json!({ "hosts": [host], "secret": { "name": "site" } });
    if asks {
        spec["client"] = json!({ "caSecret": { "name": "site" } });
    }
    object("ApisixTls", name, age, spec)
}

fn ingress(name: &str, age: u8, host: &str, has_rules: bool) -> Value {
    let mut spec = json!({ "tls": [{ "hosts": [host], "secretName": "site" }] });
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    let paths = json!({ "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] });
    let host = if has_rules { host } else { "elsewhere.example" };
    spec["rules"] = json!([{ "host": host, "http": paths }]);
    object("Ingress", name, age, spec)
}

/// The entries for a name, and whether each asks clients for certificates.
fn entries(translation: &Translation, name: &str) -> Vec<(String, bool)> {
    let mut all = all(translation, ResourceList::Ssls);
    all.retain(|(_, value)| value["snis"].as_array().is_some_and(|names| names.contains(&name.into())));
    all.into_iter().map(|(id, value)| (id, !value["client"].is_null())).collect()
}

#[test]
fn names_whose_clients_are_asked_for_certificates_are_kept_from_ingresses_of_others() {
    let certificates = || [certificate("shop/site"), certificate("evil/site")];
    let with = |others: &[Value]| of(&[&certificates(), others].concat());
    let asking = tls("shop/inner", 5, "inner.example", true);
    for (age, has_rules) in [(9, true), (9, false), (1, false)] {
        let translation = with(&[asking.clone(), ingress("evil/i", age, "Inner.example", has_rules)]);
        let kept = ("apisixtls_shop_inner".to_owned(), true);
        assert_eq!(entries(&translation, "inner.example"), [kept], "{age} {has_rules}");
        assert_eq!(told(&translation, "ApisixTls shop/inner", "Accepted").0, "Accepted");
        let events: Vec<&str> = translation.events.iter().map(|event| &*event.message).collect();
        assert!(events.iter().any(|event| event.contains("`shop/inner` asks the clients")), "{events:?}");
    }
    // An older Ingress serves the name, and one that nothing is asked for is the Ingress's.
    let translation = with(&[asking, ingress("evil/i", 1, "inner.example", true)]);
    assert_eq!(entries(&translation, "inner.example").len(), 1);
    assert_eq!(told(&translation, "ApisixTls shop/inner", "Accepted").0, "Conflicted");
    let translation = with(&[tls("shop/a", 5, "a.example", false), ingress("evil/i", 9, "a.example", false)]);
    assert_eq!(told(&translation, "ApisixTls shop/a", "Accepted").0, "Conflicted");
}

fn route(name: &str, rules: Value) -> Value {
    object("ApisixRoute", name, 1, json!({ "http": rules }))
}

/// A rule with the path `/a`, and with these fields.
fn rule(fields: Value) -> Value {
    let mut rule =
        json!({ "name": "a", "match": { "paths": ["/a"] }, "backends": [{ "serviceName": "web", "servicePort": 80 }] });
    let fields = fields.as_object().expect("a map").clone();
    rule.as_object_mut().expect("a map").extend(fields);
    rule
}

/// The rule's requests are answered with 503, and the field is named.
#[track_caller]
fn check_closed(fields: Value, named: &str) {
    let translation = of(&[route("shop/r", json!([rule(fields.clone())]))]);
    let routes = all(&translation, ResourceList::Routes);
    assert_eq!(routes.len(), 1, "{fields}: {routes:?}");
    assert_eq!(routes[0].1, json!({ "name": "shop/r/a", "uris": ["/a"], "plugins": {} }), "{fields}");
    let messages = ["Accepted", "ResolvedRefs"].map(|kind| told(&translation, "ApisixRoute shop/r", kind).1);
    assert!(messages.concat().contains(named), "{fields}: {messages:?}");
}

#[test]
fn rules_that_cannot_be_followed_are_closed_and_not_left_out() {
    let authentication = json!({ "enable": true, "type": "keyAuth", "keyAuth": { "header": "$env://HOME" } });
    check_closed(json!({ "authentication": authentication }), "authentication: has a text");
    check_closed(json!({ "timeout": { "read": "10000000h" } }), "timeout.read");
    let backend = |port: Value, weight: i64| json!([{ "serviceName": "web", "servicePort": port, "weight": weight }]);
    check_closed(json!({ "backends": backend(json!(80), -1) }), "backends[0]: weight: -1 is not from 0");
    check_closed(json!({ "backends": backend(json!(80), 200_000) }), "backends[0]: weight: 200000");
    check_closed(json!({ "backends": backend(json!(70_000), 1) }), "servicePort: 70000 is not from 1");
    check_closed(json!({ "backends": backend(json!("70000"), 1) }), "servicePort: 70000 is not from 1");
    let two = json!([{ "serviceName": "web", "servicePort": 80 }, { "serviceName": "web", "servicePort": 81 }]);
    let split = json!([{ "name": "traffic-split", "config": { "rules": [] } }]);
    check_closed(json!({ "backends": two, "plugins": split }), "plugin traffic-split: cannot be beside");
}

#[test]
fn rules_without_a_name_of_their_own_are_closed() {
    let other = json!({ "match": { "paths": ["/b"] } });
    let translation = of(&[route("shop/r", json!([rule(json!({})), rule(other)]))]);
    let closed = all(&translation, ResourceList::Routes).into_iter().find(|(_, value)| value["uris"] == json!(["/b"]));
    assert_eq!(closed.expect("it is there").1["plugins"], json!({}));
    assert!(told(&translation, "ApisixRoute shop/r", "Accepted").1.contains("name: each rule needs one of its own"));
}

#[test]
fn numbers_out_of_range_in_an_upstream_close_the_rules_that_lead_there() {
    for (spec, named) in [
        (json!({ "healthCheck": { "active": { "timeout": -1 } } }), "healthCheck.active.timeout"),
        (json!({ "healthCheck": { "active": { "port": 70_000 } } }), "healthCheck.active.port"),
        (json!({ "healthCheck": { "passive": { "unhealthy": { "httpFailures": 300 } } } }), "httpFailures"),
        (json!({ "healthCheck": { "passive": { "unhealthy": { "httpCodes": [70_000] } } } }), "httpCodes"),
    ] {
        let translation =
            of(&[object("ApisixUpstream", "shop/web", 1, spec), route("shop/r", json!([rule(json!({}))]))]);
        assert!(told(&translation, "ApisixUpstream shop/web", "Accepted").1.contains(named));
        assert_eq!(all(&translation, ResourceList::Routes)[0].1["upstream_id"], Value::Null, "{named}");
        assert!(told(&translation, "ApisixRoute shop/r", "ResolvedRefs").1.contains(named));
    }
    let nodes = json!({ "externalNodes": [{ "type": "Domain", "name": "a.example", "weight": 200_000 }] });
    let translation = of(&[object("ApisixUpstream", "shop/out", 1, nodes)]);
    assert!(told(&translation, "ApisixUpstream shop/out", "Accepted").1.contains("externalNodes[0]: weight: 200000"));
}

#[test]
fn settings_of_a_port_leave_the_others_of_the_service_as_they_are() {
    let spec = json!({
        "scheme": "https", "tlsSecret": { "name": "site" }, "passHost": "rewrite", "upstreamHost": "a.internal",
        "portLevelSettings": [{ "port": 80, "scheme": "grpcs", "retries": 1, "upstreamHost": "b.internal" }],
    });
    let translation = of(&[
        certificate("shop/site"),
        object("ApisixUpstream", "shop/web", 1, spec),
        route("shop/r", json!([rule(json!({}))])),
    ]);
    let upstream = &all(&translation, ResourceList::Upstreams)[0].1;
    assert_eq!((&upstream["scheme"], &upstream["retries"]), (&json!("grpcs"), &json!(1)));
    assert_eq!((&upstream["pass_host"], &upstream["upstream_host"]), (&json!("rewrite"), &json!("b.internal")));
    assert_eq!(upstream["tls"]["verify"], false);
    assert!(upstream["tls"]["client_cert"].as_str().is_some_and(|text| text.contains("CERTIFICATE")), "{upstream}");
}

#[test]
fn plugin_configs_of_other_namespaces_need_a_grant_though_they_refer_to_no_secret() {
    let plugins = json!({ "plugins": [{ "name": "cors", "config": {} }] });
    let theirs = json!({ "plugin_config_name": "c", "plugin_config_namespace": "platform" });
    let config = object("ApisixPluginConfig", "platform/c", 1, plugins);
    let translation = of(&[config, route("shop/r", json!([rule(theirs.clone())]))]);
    let (_, without) = told(&translation, "ApisixRoute shop/r", "ResolvedRefs");
    assert!(without.contains("no ReferenceGrant of the namespace `platform`"), "{without}");
    assert_eq!(all(&translation, ResourceList::Routes)[0].1["upstream_id"], Value::Null);
    // One that does not exist is told in the same words.
    let translation = of(&[route("shop/r", json!([rule(theirs)]))]);
    assert_eq!(told(&translation, "ApisixRoute shop/r", "ResolvedRefs").1, without);
}

fn global(name: &str, age: u8, plugins: Value) -> Value {
    object("ApisixGlobalRule", name, age, json!({ "plugins": plugins }))
}

#[test]
fn a_faulty_plugin_of_a_global_rule_closes_if_it_protects_and_leaves_the_others() {
    let right = json!({ "name": "ip-restriction", "config": {} });
    let abort = json!({ "name": "fault-injection", "config": { "delay": {} } });
    let closed = json!({ "plugins": { "fault-injection": { "abort": { "http_status": 503 } } } });
    let away = json!({ "name": "key-auth", "secretRef": "away" });
    let translation = of(&[global("shop/g", 1, json!([right, away, abort]))]);
    let rules = all(&translation, ResourceList::GlobalRules);
    assert_eq!(rules.len(), 2, "{rules:?}");
    assert_eq!(rules[0].1, json!({ "plugins": { "ip-restriction": {} } }));
    assert_eq!(rules[1].1, closed);
    let (_, message) = told(&translation, "ApisixGlobalRule shop/g", "ResolvedRefs");
    assert!(message.starts_with("all requests are answered with 503: plugin key-auth: "), "{message}");
    // One that decides nothing is left out.
    let observer = json!({ "name": "request-id", "secretRef": "away" });
    let rules = all(&of(&[global("shop/g", 1, json!([right, observer]))]), ResourceList::GlobalRules);
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].1, json!({ "plugins": { "ip-restriction": {} } }));
}

#[test]
fn plugins_that_work_on_streams_alone_are_refused_for_requests() {
    let plugins = json!([{ "name": "mqtt-proxy", "config": {} }]);
    let fault = "plugin mqtt-proxy: works on streams alone";
    let translation = of(&[route("shop/r", json!([rule(json!({ "plugins": plugins }))]))]);
    let (_, message) = told(&translation, "ApisixRoute shop/r", "Accepted");
    assert!(message.contains(fault), "{message}");
    let route = &all(&translation, ResourceList::Routes)[0].1;
    assert_eq!((&route["upstream_id"], &route["plugins"]["mqtt-proxy"]), (&Value::Null, &Value::Null), "{route}");

    let translation = of(&[global("shop/g", 1, plugins.clone())]);
    let (_, message) = told(&translation, "ApisixGlobalRule shop/g", "Accepted");
    assert!(message.contains(fault), "{message}");
    for (id, rule) in all(&translation, ResourceList::GlobalRules) {
        assert_eq!(rule["plugins"]["mqtt-proxy"], Value::Null, "{id}");
    }

    let translation = of(&[streams("shop/s", 1, json!([stream("a", json!({ "plugins": plugins }))]))]);
    let route = &all(&translation, ResourceList::StreamRoutes)[0].1;
    assert_eq!(route["plugins"], json!({ "mqtt-proxy": {} }));
}

/// An ApisixRoute with these rules for streams.
fn streams(name: &str, age: u8, rules: Value) -> Value {
    object("ApisixRoute", name, age, json!({ "stream": rules }))
}

fn stream(name: &str, fields: Value) -> Value {
    let mut rule = json!({
        "name": name, "protocol": "TCP", "match": { "ingressPort": 9100 },
        "backend": { "serviceName": "web", "servicePort": 80 },
    });
    let fields = fields.as_object().expect("a map").clone();
    rule.as_object_mut().expect("a map").extend(fields);
    rule
}

#[test]
fn rules_for_streams_have_the_settings_of_their_service_that_are_for_streams() {
    let spec = json!({ "scheme": "https", "passHost": "node", "retries": 2, "loadbalancer": { "type": "least_conn" } });
    let named = stream("a", json!({ "match": { "ingressPort": 9100, "host": "*.A.example" } }));
    let translation = of(&[object("ApisixUpstream", "shop/web", 1, spec), streams("shop/r", 1, json!([named]))]);
    let upstream = json!({ "nodes": [], "scheme": "tcp", "retries": 2, "type": "least_conn" });
    assert_eq!(all(&translation, ResourceList::Upstreams), [("shop_web_80_apisix_tcp".to_owned(), upstream)]);
    let route = json!({
        "name": "shop/r/a", "server_port": 9100, "snis": ["*.a.example"], "upstream_id": "shop_web_80_apisix_tcp",
    });
    assert_eq!(all(&translation, ResourceList::StreamRoutes), [("apisixroute_tcp_shop_r_a".to_owned(), route)]);
    assert_eq!(told(&translation, "ApisixRoute shop/r", "Accepted").0, "Accepted");
}

#[test]
fn rules_for_streams_that_cannot_be_followed_reset_their_connections() {
    for (fields, kind, named) in [
        (json!({ "plugins": [{ "name": "cors" }] }), "Accepted", "plugin cors: works with HTTP alone"),
        (json!({ "plugins": [{ "name": "none" }] }), "Accepted", "plugin none: there is no such plugin"),
        (
            json!({ "backend": { "serviceName": "gone", "servicePort": 80 } }),
            "ResolvedRefs",
            "there is no Service `shop/gone`",
        ),
        (json!({ "protocol": "UDP" }), "ResolvedRefs", "the Service `shop/web` has no such port"),
        (json!({ "name": "" }), "Accepted", "name: each rule needs one of its own"),
    ] {
        let translation = of(&[streams("shop/r", 1, json!([stream("a", fields.clone())]))]);
        let route = &all(&translation, ResourceList::StreamRoutes)[0].1;
        let scheme = if fields["protocol"] == "UDP" { "udp" } else { "tcp" };
        assert_eq!(route["upstream"], json!({ "scheme": scheme, "nodes": [] }), "{fields}");
        assert_eq!((&route["upstream_id"], &route["plugins"]), (&Value::Null, &Value::Null), "{fields}");
        let message = told(&translation, "ApisixRoute shop/r", kind).1;
        assert!(message.contains("resets its connections") && message.contains(named), "{fields}: {message}");
    }
}

#[test]
fn connections_of_others_are_not_taken_by_rules_for_streams() {
    let at = |port: u16, host: &str| stream("a", json!({ "match": { "ingressPort": port, "host": host } }));
    let gateway = [
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": { "name": "weir" }, "spec": { "controllerName": "weir.dev/gateway-controller" },
        }),
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "name": "edge", "namespace": "infra" },
            "spec": { "gatewayClassName": "weir", "listeners": [{ "name": "all", "port": 9200, "protocol": "TCP" }] },
        }),
    ];
    let with = |rules: &[Value]| of(&[&gateway[..], rules].concat());
    // A more specific name than a TLSRoute of the Gateway may have.
    let translation = with(&[streams("evil/r", 1, json!([at(9200, "bank.example")]))]);
    assert!(all(&translation, ResourceList::StreamRoutes).is_empty());
    let (reason, message) = told(&translation, "ApisixRoute evil/r", "Accepted");
    assert!(reason == "Conflicted" && message.contains("9200 is the port of a Gateway"), "{reason}: {message}");
    // The same name in other letters is the same.
    let first = streams("shop/r", 1, json!([at(9100, "a.example")]));
    let translation = with(&[first, streams("evil/r", 2, json!([at(9100, "A.example")]))]);
    let routes = all(&translation, ResourceList::StreamRoutes);
    assert_eq!(routes.iter().map(|(id, _)| &**id).collect::<Vec<_>>(), ["apisixroute_tcp_shop_r_a"]);
    assert_eq!(told(&translation, "ApisixRoute evil/r", "Accepted").0, "Conflicted");
}

#[test]
fn rules_for_streams_take_no_part_of_an_older_name_of_another_namespace() {
    let rule = |name: &str, host: &str| stream(name, json!({ "match": { "ingressPort": 9100, "host": host } }));
    let ids = |translation: &Translation| -> Vec<String> {
        let routes = all(translation, ResourceList::StreamRoutes);
        routes.into_iter().map(|(id, _)| id).collect()
    };
    for (older, newer) in [("", "db.bank.example"), ("", "*.example"), ("*.example", "db.bank.example")] {
        let newer = json!([rule("n", newer)]);
        let older = streams("shop/r", 1, json!([rule("o", older)]));
        let translation = of(&[older.clone(), streams("evil/r", 2, newer.clone())]);
        assert_eq!(ids(&translation), ["apisixroute_tcp_shop_r_o"], "{older} {newer}");
        let (reason, message) = told(&translation, "ApisixRoute evil/r", "Accepted");
        assert!(reason == "Conflicted" && message.contains("a rule that comes first has port 9100"), "{message}");
        // A namespace may tell its own connections apart.
        let own = of(&[older, streams("shop/s", 2, newer)]);
        assert_eq!(ids(&own).len(), 2);
    }
    // What is wider takes what is left, and names beside each other take nothing from one another.
    for (older, newer) in [("db.bank.example", ""), ("a.example", "b.example"), ("*.a.example", "a.example")] {
        let older = streams("shop/r", 1, json!([rule("o", older)]));
        let translation = of(&[older, streams("other/r", 2, json!([rule("n", newer)]))]);
        assert_eq!(ids(&translation).len(), 2);
    }
}

#[test]
fn only_listeners_that_are_opened_keep_their_port_from_rules_for_streams() {
    let reason = |addresses: Value| {
        let class = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": { "name": "weir" }, "spec": { "controllerName": "weir.dev/gateway-controller" },
        });
        let listener = json!({ "name": "all", "port": 9200, "protocol": "TCP" });
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "name": "edge", "namespace": "infra" },
            "spec": { "gatewayClassName": "weir", "addresses": addresses, "listeners": [listener] },
        });
        let rule = stream("a", json!({ "match": { "ingressPort": 9200 } }));
        told(&of(&[class, gateway, streams("shop/r", 1, json!([rule]))]), "ApisixRoute shop/r", "Accepted").0
    };
    assert_eq!(reason(json!([])), "Conflicted");
    // Nothing listens for a Gateway with an address of an unknown type.
    assert_eq!(reason(json!([{ "type": "example.com/odd", "value": "a" }])), "Accepted");
}

#[test]
fn settings_of_upstreams_that_read_requests_are_refused_for_streams() {
    for (settings, place) in [
        (json!({ "loadbalancer": { "type": "chash", "hashOn": "header", "key": "a" } }), "loadbalancer.hashOn"),
        (json!({ "loadbalancer": { "type": "chash", "hashOn": "cookie", "key": "a" } }), "loadbalancer.hashOn"),
        (json!({ "loadbalancer": { "type": "chash", "hashOn": "consumer" } }), "loadbalancer.hashOn"),
        (json!({ "healthCheck": { "active": { "type": "http", "httpPath": "/" } } }), "healthCheck.active.type"),
    ] {
        let upstream = object("ApisixUpstream", "shop/web", 1, settings.clone());
        let translation = of(&[upstream, streams("shop/r", 1, json!([stream("a", json!({}))]))]);
        let (reason, message) = told(&translation, "ApisixRoute shop/r", "ResolvedRefs");
        assert!(reason == "RefNotUsable" && message.contains(place), "{settings}: {reason}: {message}");
        let routes = all(&translation, ResourceList::StreamRoutes);
        assert_eq!(routes[0].1["upstream"]["nodes"], json!([]), "{settings}");
    }
}

/// A TCPRoute with two rules, and an L4RoutePolicy for one of them.
fn policy_for(rule: &str, plugins: Value) -> Vec<Value> {
    let gateway_api = "gateway.networking.k8s.io/v1";
    let backends = json!([{ "name": "web", "port": 80 }]);
    vec![
        json!({ "apiVersion": gateway_api, "kind": "GatewayClass", "metadata": { "name": "weir" },
                "spec": { "controllerName": "weir.dev/gateway-controller" } }),
        json!({ "apiVersion": gateway_api, "kind": "Gateway", "metadata": { "name": "edge", "namespace": "shop" },
                "spec": { "gatewayClassName": "weir", "listeners": [{ "name": "all", "port": 9200, "protocol": "TCP" }] } }),
        json!({ "apiVersion": "gateway.networking.k8s.io/v1alpha2", "kind": "TCPRoute",
                "metadata": { "name": "lines", "namespace": "shop" },
                "spec": { "parentRefs": [{ "name": "edge" }],
                          "rules": [{ "name": "first", "backendRefs": backends }, { "name": "second", "backendRefs": backends }] } }),
        json!({ "apiVersion": "apisix.apache.org/v1alpha1", "kind": "L4RoutePolicy",
                "metadata": { "name": "p", "namespace": "shop" },
                "spec": { "plugins": plugins, "targetRefs": [
                    { "group": "gateway.networking.k8s.io", "kind": "TCPRoute", "name": "lines", "sectionName": rule }] } }),
    ]
}

/// The message of the condition of an L4RoutePolicy for its target.
fn policy_told(translation: &Translation) -> (String, String) {
    let status = translation.statuses.iter().find(|status| status.object.to_string() == "L4RoutePolicy shop/p");
    let condition = status.expect("it has a status").status["ancestors"][0]["conditions"][0].clone();
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

#[test]
fn policies_for_rules_of_streams_that_are_not_served_are_not_accepted() {
    let allowed = json!([{ "name": "ip-restriction", "config": {} }]);
    assert_eq!(policy_told(&of(&policy_for("first", allowed.clone()))).0, "Accepted");
    let (reason, message) = policy_told(&of(&policy_for("second", allowed)));
    assert!(reason == "Invalid" && message.contains("only the first rule"), "{reason}: {message}");
}

#[test]
fn secret_refs_without_a_name_close_what_the_plugin_is_for() {
    let nameless = json!([{ "name": "ip-restriction", "config": {}, "secretRef": {} }]);
    let translation = of(&policy_for("first", nameless));
    let (reason, message) = policy_told(&translation);
    let wanted = "plugin ip-restriction: secretRef: names no Secret of the namespace by `name`";
    assert!(reason == "Invalid" && message.starts_with(wanted), "{reason}: {message}");
    let routes = all(&translation, ResourceList::StreamRoutes);
    assert_eq!(routes[0].1["upstream"]["nodes"], json!([]));
}

/// Counts checks.
#[derive(Debug)]
struct CountingPlugins(Arc<dyn PolicyPlugins>, AtomicUsize);

impl PolicyPlugins for CountingPlugins {
    fn check(&self, plugin: &str, written: &Value, options: &Value) -> Result<usize, String> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.check(plugin, written, options)
    }

    fn check_of_apisix(&self, plugin: &str, written: &Value, options: &Value) -> Result<usize, String> {
        self.check(plugin, written, options)
    }

    fn credential(&self, plugin: &str, options: &Value) -> Result<String, String> {
        self.0.credential(plugin, options)
    }

    fn check_upstream(&self, settings: &serde_json::Map<String, Value>) -> Result<(), String> {
        self.0.check_upstream(settings)
    }

    fn check_enabled(&self, plugin: &str) -> Result<(), String> {
        self.0.check_enabled(plugin)
    }

    fn protects(&self, plugin: &str) -> bool {
        self.0.protects(plugin)
    }

    fn works_on_streams(&self, plugin: &str) -> bool {
        self.0.works_on_streams(plugin)
    }

    fn works_on_requests(&self, plugin: &str) -> bool {
        self.0.works_on_requests(plugin)
    }
}

#[test]
fn checks_of_plugin_lists_end_where_there_is_no_room_for_expressions() {
    let list = |number: usize, plugins: Value| {
        json!({ "apiVersion": "apisix.apache.org/v1alpha1", "kind": "PluginConfig",
                "metadata": { "name": format!("l{number}"), "namespace": "shop" }, "spec": { "plugins": plugins } })
    };
    let checks = |lists: Vec<Value>| {
        let written = lists.iter().map(|object| format!("\n---\n{object}"));
        let manifests = World::from_manifests(&format!("{CLASSES}{}", written.collect::<String>())).expect("manifests");
        let counting = Arc::new(CountingPlugins(plugins::options().plugins, AtomicUsize::new(0)));
        let options = KubeOptions { adopt_apisix: true, plugins: counting.clone(), ..KubeOptions::default() };
        translate(&manifests.world, &options);
        counting.1.load(Ordering::Relaxed)
    };
    let large = |number: usize| json!({ "name": format!("p{number}"), "config": { "expressions": 8 << 20 } });
    assert_eq!(checks(vec![list(0, (0..200).map(large).collect())]), 2);
    let refused = |number: usize| list(number, json!([{ "name": "none" }]));
    assert_eq!(checks((0..300).map(refused).collect()), 256);
}
