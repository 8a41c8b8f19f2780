//! Plugins by WeirPolicies.

use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, DEADLINE, Origin, eventually, free_port};

use crate::edge::{Edge, serving, serving_with, weir};
use crate::objects::{gateway, route, service, stream_route};
use crate::stand_in::{ObjectPath, StandIn};

/// A policy in the namespace of the tests.
pub(crate) fn policy(name: &str, (kind, target): (&str, &str), plugins: Value) -> Value {
    let target = json!({ "group": "gateway.networking.k8s.io", "kind": kind, "name": target });
    json!({
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "WeirPolicy",
        "metadata": { "name": name, "namespace": "shop" },
        "spec": { "targetRefs": [target], "plugins": plugins },
    })
}

/// A policy with settings of the upstreams of the Service `orders`.
pub(crate) fn settings(upstream: Value) -> Value {
    let mut policy = policy("settings", ("HTTPRoute", "orders"), Value::Null);
    let target = json!({ "group": "", "kind": "Service", "name": "orders" });
    policy["spec"] = json!({ "targetRefs": [target], "upstream": upstream });
    policy
}

/// Waits until the condition `Accepted` of the first target has this reason. Returns its message.
#[track_caller]
fn wait_reason(cluster: &StandIn, name: &str, reason: &str) -> String {
    let path = ObjectPath {
        plural: "weirpolicies".to_owned(),
        namespace: Some("shop".to_owned()),
        name: Some(name.to_owned()),
    };
    let condition = || {
        let object = cluster.objects().get(&path).expect("it is there");
        object["status"]["ancestors"][0]["conditions"][0].clone()
    };
    eventually(&format!("{name} is {reason}"), DEADLINE, || condition()["reason"] == reason);
    condition()["message"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_limit_of_a_route_is_counted_changed_and_removed() {
    let (cluster, _origin, edge) = serving();
    let limit = |count: u32| {
        policy(
            "limit",
            ("HTTPRoute", "orders"),
            json!({ "limit-count": { "count": count, "time_window": 3600, "rejected_code": 429 } }),
        )
    };
    cluster.apply([limit(1)]);
    wait_reason(&cluster, "limit", "Accepted");
    edge.wait("/orders", 429);
    cluster.apply([limit(100_000)]);
    edge.wait("/orders", 200);
    cluster.apply([limit(1)]);
    edge.wait("/orders", 429);
    cluster.objects().delete("weirpolicies", "shop", "limit");
    edge.wait("/orders", 200);
}

#[test]
fn plugins_of_a_gateway_hold_until_a_route_replaces_them() {
    let (cluster, _origin, edge) = serving();
    cluster.apply([route("bills", "/bills")]);
    let answer = |text: &str| json!({ "mocking": { "response_status": 200, "response_example": text } });
    cluster.apply([policy("base", ("Gateway", "edge"), answer("of the gateway"))]);
    eventually("the Gateway answers", DEADLINE, || edge.get("/orders").text() == "of the gateway");
    cluster.apply([policy("own", ("HTTPRoute", "orders"), answer("of the route"))]);
    eventually("the route answers", DEADLINE, || edge.get("/orders").text() == "of the route");
    assert_eq!(edge.get("/bills").status, 500, "a route without backends has its own answer");
    cluster.apply([policy("own", ("HTTPRoute", "orders"), json!({ "mocking": { "_meta": { "disable": true } } }))]);
    eventually("the backend answers", DEADLINE, || edge.get("/orders").text() == "orders");
}

#[test]
fn a_policy_that_cannot_be_followed_closes_its_route() {
    let (cluster, _origin, edge) = serving();
    cluster.apply([policy(
        "closed",
        ("HTTPRoute", "orders"),
        json!({ "ip-restriction": { "whitelst": ["10.0.0.0/8"] } }),
    )]);
    let message = wait_reason(&cluster, "closed", "Invalid");
    assert!(message.starts_with("plugin ip-restriction: whitelst: "), "{message}");
    edge.wait("/orders", 500);
    cluster.apply([policy("closed", ("HTTPRoute", "orders"), json!({ "file-logger": { "path": "logs/shop.log" } }))]);
    let is_told = || wait_reason(&cluster, "closed", "Invalid").contains("path: names a file of the node");
    eventually("the file is refused", DEADLINE, is_told);
    cluster.apply([policy("closed", ("HTTPRoute", "orders"), json!({ "cors": {} }))]);
    wait_reason(&cluster, "closed", "Accepted");
    edge.wait("/orders", 200);
}

#[test]
fn users_of_a_secret_are_admitted_and_changed_with_it() {
    let (cluster, _origin, edge) = serving();
    let users = json!({ "users": [{ "username": "jack", "password": "$secret://kubernetes/login/jack" }] });
    cluster.apply([policy("login", ("HTTPRoute", "orders"), json!({ "basic-auth": users }))]);
    let missing = "there is no Secret `login` of the type `weir.dev/plugin`";
    assert!(wait_reason(&cluster, "login", "Invalid").contains(missing));
    edge.wait("/orders", 500);
    let secret = |kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": { "name": "login", "namespace": "shop" },
            "data": { "jack": "aHVudGVyMg==" },
        })
    };
    cluster.apply([secret("Opaque")]);
    // The type of a Secret never changes. Later objects have arrived before it is looked at what the node says.
    cluster.apply([route("later", "/later")]);
    edge.wait("/later", 500);
    assert!(wait_reason(&cluster, "login", "Invalid").contains(missing), "Secrets of other types are not read");
    cluster.objects().delete("secrets", "shop", "login");
    cluster.apply([secret("weir.dev/plugin")]);
    wait_reason(&cluster, "login", "Accepted");
    edge.wait("/orders", 401);
    let with_password = "GET /orders HTTP/1.1\r\nHost: x\r\nAuthorization: Basic amFjazpodW50ZXIy\r\n\r\n";
    let ask = || weir_testkit::Client::connect(edge.address()).ask(with_password).expect("it is answered").status;
    eventually("jack is admitted", DEADLINE, || ask() == 200);
    cluster.objects().delete("secrets", "shop", "login");
    edge.wait("/orders", 500);
}

#[test]
fn secrets_of_policies_are_read_however_many_there_are() {
    let (cluster, _origin, _edge) = serving();
    // Each policy can have 32; those of a namespace that are watched by name would be at most 128.
    let names: Vec<String> = (0..5).map(|number| format!("many-{number}")).collect();
    for name in &names {
        let secret = |user: usize| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "weir.dev/plugin",
                "metadata": { "name": format!("{name}-{user}"), "namespace": "shop" },
                "data": { "key": "aHVudGVyMg==" },
            })
        };
        cluster.apply((0..32).map(secret));
        let user = |user: usize| json!({ "username": user.to_string(), "password": format!("$secret://kubernetes/{name}-{user}/key") });
        let users: Vec<Value> = (0..32).map(user).collect();
        cluster.apply([route(name, &format!("/{name}"))]);
        cluster.apply([policy(name, ("HTTPRoute", name), json!({ "basic-auth": { "users": users } }))]);
    }
    for name in &names {
        wait_reason(&cluster, name, "Accepted");
    }
}

#[test]
fn of_two_policies_with_one_target_the_first_applies_and_the_other_says_so() {
    let (cluster, _origin, edge) = serving();
    let answer = |name: &str| policy(name, ("HTTPRoute", "orders"), json!({ "mocking": { "response_example": name } }));
    // Of one age, so that the name decides.
    cluster.apply([answer("second"), answer("first")]);
    let message = wait_reason(&cluster, "second", "Conflicted");
    assert!(message.contains("WeirPolicy first has the same target"), "{message}");
    assert_eq!(edge.get("/orders").text(), "first");
    cluster.objects().delete("weirpolicies", "shop", "first");
    wait_reason(&cluster, "second", "Accepted");
    eventually("the other applies", DEADLINE, || edge.get("/orders").text() == "second");
}

#[test]
fn a_target_that_is_missing_is_told_until_it_is_there() {
    let (cluster, _origin, edge) = serving();
    cluster.apply([policy("early", ("HTTPRoute", "later"), json!({ "mocking": { "response_example": "later" } }))]);
    assert_eq!(wait_reason(&cluster, "early", "TargetNotFound"), "there is no HTTPRoute shop/later");
    let mut later = route("later", "/later");
    later["spec"]["rules"][0]["backendRefs"][0]["name"] = "orders".into();
    cluster.apply([later]);
    wait_reason(&cluster, "early", "Accepted");
    eventually("the policy applies", DEADLINE, || edge.get("/later").text() == "later");
}

#[test]
fn policies_stay_in_force_while_their_kind_is_not_served() {
    let (cluster, _origin, edge) = serving();
    cluster.apply([policy("own", ("HTTPRoute", "orders"), json!({ "mocking": { "response_example": "own" } }))]);
    eventually("the policy applies", DEADLINE, || edge.get("/orders").text() == "own");
    // Counted before: the next request after the one that finds that out may be half a minute later.
    let asked = cluster.requests("weirpolicies");
    cluster.objects().install("weirpolicies", false);
    eventually("the kind is looked for", DEADLINE, || cluster.requests("weirpolicies") > asked);
    // Other changes are followed meanwhile.
    let mut later = route("later", "/later");
    later["spec"]["rules"][0]["backendRefs"][0]["name"] = "orders".into();
    cluster.apply([later]);
    edge.wait("/later", 200);
    assert_eq!(edge.get("/orders").text(), "own");
}

/// A node whose file enables `mocking` no more, and which has not been started again since.
fn serving_without_mocking() -> (StandIn, Origin, Edge) {
    let (cluster, origin, edge) = serving_with("plugins: [{ name: mocking }, { name: cors }]\n");
    edge.rewrite("{ name: mocking }, ", "");
    (cluster, origin, edge)
}

#[test]
fn a_policy_whose_plugins_the_node_refuses_closes_its_target_and_says_so() {
    let (cluster, _origin, edge) = serving_without_mocking();
    let answer = || policy("strict", ("HTTPRoute", "orders"), json!({ "mocking": { "response_example": "x" } }));
    cluster.apply([answer()]);
    let message = wait_reason(&cluster, "strict", "Invalid");
    let told = "the node cannot serve its plugins: plugins.mocking: is not in the list `plugins`";
    assert!(message.starts_with(told), "{message}");
    edge.wait("/orders", 503);
    cluster.apply([policy("strict", ("HTTPRoute", "orders"), json!({ "cors": {} }))]);
    wait_reason(&cluster, "strict", "Accepted");
    edge.wait("/orders", 200);
    // The last version that could be served does not stay in force.
    cluster.apply([answer()]);
    wait_reason(&cluster, "strict", "Invalid");
    edge.wait("/orders", 503);
    cluster.objects().delete("weirpolicies", "shop", "strict");
    edge.wait("/orders", 200);
}

#[test]
fn a_policy_of_a_gateway_whose_plugins_the_node_refuses_closes_all_its_routes() {
    let (cluster, _origin, edge) = serving_without_mocking();
    let mut other = route("other", "/other");
    other["spec"]["rules"][0]["backendRefs"][0]["name"] = "orders".into();
    cluster.apply([other]);
    edge.wait("/other", 200);
    cluster.apply([policy("strict", ("Gateway", "edge"), json!({ "mocking": { "response_example": "x" } }))]);
    wait_reason(&cluster, "strict", "Invalid");
    edge.wait("/orders", 503);
    edge.wait("/other", 503);
}

#[test]
fn a_policy_whose_plugins_the_node_refuses_resets_connections_of_streams() {
    let cluster = StandIn::start();
    let origin = Origin::serving(|_| Answer::ok("bytes"));
    let port = free_port();
    let [class, mut edge] = gateway(port);
    edge["spec"]["listeners"] = json!([{ "name": "bytes", "port": port, "protocol": "TCP" }]);
    cluster.apply([class, edge, stream_route("TCPRoute", "bytes")]);
    cluster.apply(service("bytes", origin.addr()));
    let file = format!("{}resource_listeners: [\":{port}\"]\n", cluster.node(""));
    let node = weir().start(&(file.clone() + "plugins: [{ name: ip-restriction }]\n"));
    let get = || Client::try_connect(([127, 0, 0, 1], port).into()).ok()?.get("/").ok().map(|answer| answer.text());
    eventually("bytes are carried", DEADLINE, || get().is_some_and(|text| text == "bytes"));
    let restriction =
        policy("strict", ("Gateway", "edge"), json!({ "ip-restriction": { "whitelist": ["127.0.0.1"] } }));
    cluster.apply([restriction]);
    wait_reason(&cluster, "strict", "Accepted");
    assert_eq!(get().as_deref(), Some("bytes"));
    node.rewrite(&(file + "plugins: [{ name: cors }]\n"));
    assert_eq!(get(), None, "connections are reset as soon as the file is served");
    wait_reason(&cluster, "strict", "Invalid");
}

#[test]
fn plugins_that_a_node_enables_no_more_close_what_has_them() {
    let (cluster, _origin, edge) = serving_with("plugins: [{ name: mocking }, { name: cors }]\n");
    cluster.apply([policy("own", ("HTTPRoute", "orders"), json!({ "mocking": { "response_example": "own" } }))]);
    eventually("the policy applies", DEADLINE, || edge.get("/orders").text() == "own");
    edge.rewrite("{ name: mocking }, ", "");
    assert_eq!(edge.get("/orders").status, 503, "it is closed as soon as the file is served");
    let message = wait_reason(&cluster, "own", "Invalid");
    assert!(message.contains("is not in the list `plugins`"), "{message}");
    edge.rewrite("", "");
    assert_eq!(edge.get("/orders").text(), "own");
    wait_reason(&cluster, "own", "Accepted");
}

#[test]
fn a_closed_route_needs_no_plugin_of_the_list() {
    let (cluster, _origin, edge) = serving_with("plugins: [{ name: mocking }]\n");
    cluster.apply([policy("wrong", ("HTTPRoute", "orders"), json!({ "mocking": { "delai": 1 } }))]);
    wait_reason(&cluster, "wrong", "Invalid");
    edge.wait("/orders", 503);
}

#[test]
fn explain_names_the_policy_of_each_plugin() {
    const KEY: &str = "a-key-of-the-administrator-of-tests";
    let admin = format!("admin: {{ listen: \"127.0.0.1:0\", keys: [{{ name: ops, key: {KEY}, role: viewer }}] }}\n");
    let (cluster, _origin, edge) = serving_with(&admin);
    let base = json!({ "cors": {}, "mocking": { "response_example": "base" } });
    cluster.apply([policy("base", ("Gateway", "edge"), base)]);
    let own = json!({ "mocking": { "response_example": "own" }, "ip-restriction": { "whitelist": ["127.0.0.1"] } });
    cluster.apply([policy("own", ("HTTPRoute", "orders"), own)]);
    eventually("both apply", DEADLINE, || edge.get("/orders").text() == "own");
    let explained = explain(&edge, KEY, "/orders");
    for told in [
        "cors from service/weirpolicy_shop_base",
        "mocking from plugin_config/weirpolicy_shop_own",
        "ip-restriction from plugin_config/weirpolicy_shop_own",
    ] {
        assert!(explained.contains(told), "{told}: {explained}");
    }
    assert!(!explained.contains("mocking from service"), "{explained}");
    cluster.objects().delete("weirpolicies", "shop", "own");
    eventually("the Gateway's applies", DEADLINE, || edge.get("/orders").text() == "base");
    let explained = explain(&edge, KEY, "/orders");
    assert!(explained.contains("mocking from service/weirpolicy_shop_base"), "{explained}");
}

/// What `weir explain` says about a request for a path of the Gateway, in words with single spaces.
#[track_caller]
fn explain(edge: &Edge, key: &str, path: &str) -> String {
    let line = edge.node.wait_stderr("its admin address", |line| line.starts_with("weir: admin on "));
    let admin = line.replacen("weir: admin on ", "http://", 1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["explain", &admin, "GET", &format!("http://{}{path}", edge.address())]).env("WEIR_ADMIN_KEY", key);
    let output = command.output().expect("weir runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn of_policies_whose_plugins_the_node_refuses_together_each_says_so() {
    let (cluster, _origin, edge) = serving_without_mocking();
    let mut rule = policy("rule", ("HTTPRoute", "orders"), json!({ "mocking": { "response_example": "x" } }));
    rule["spec"]["targetRefs"][0]["sectionName"] = "first".into();
    let mut named = route("orders", "/orders");
    named["spec"]["rules"][0]["name"] = "first".into();
    cluster.apply([named, policy("whole", ("HTTPRoute", "orders"), json!({ "cors": {} })), rule]);
    for (name, other) in [("rule", "whole"), ("whole", "rule")] {
        let message = wait_reason(&cluster, name, "Invalid");
        let told = format!(
            "the node cannot serve its plugins together with those of WeirPolicy {other}: plugins.mocking: is not"
        );
        assert!(message.starts_with(&told), "{message}");
    }
    edge.wait("/orders", 503);
    cluster.objects().delete("weirpolicies", "shop", "rule");
    wait_reason(&cluster, "whole", "Accepted");
    edge.wait("/orders", 200);
}

/// Whatever refers to the Service, and as long as the policy says so.
#[test]
fn settings_of_a_service_hold_for_its_upstreams() {
    let cluster = StandIn::start();
    let origin = Origin::serving(|_| Answer::with(403, "", "bad"));
    let good = Origin::serving(|_| Answer::ok("good"));
    let [of_service, first] = service("orders", origin.addr());
    let [_, mut second] = service("orders", good.addr());
    second["metadata"]["name"] = "orders-2".into();
    cluster.apply([route("orders", "/orders"), of_service, first, second]);
    let edge = Edge::start(&cluster);
    edge.wait("/orders", 200);
    edge.wait("/orders", 403);
    cluster.apply([settings(json!({ "retry_on": ["http_403"], "retries": 1 }))]);
    wait_reason(&cluster, "settings", "Accepted");
    for _ in 0..20 {
        assert_eq!(edge.get("/orders").text(), "good", "the other endpoint is asked");
    }
    // A wrong one says so, and has no effect.
    for (upstream, told) in [
        (json!({ "retries": "many" }), "upstream.retries: "),
        (json!({ "nodes": { "10.0.0.1:80": 1 } }), "upstream.nodes: cannot be set by a policy"),
        // It could not go together with the protocol of the Service.
        (json!({ "proxy_protocol": "v1" }), "upstream.proxy_protocol: cannot be set by a policy"),
        (
            json!({ "checks": { "active": { "type": "https", "https_verify_certificate": false } } }),
            "upstream.checks.active.https_verify_certificate: how endpoints are trusted",
        ),
        (json!({ "upstream_host": "$env://HOME", "pass_host": "rewrite" }), "upstream: values of Secrets"),
    ] {
        cluster.apply([settings(upstream)]);
        eventually(&format!("it says {told}"), DEADLINE, || {
            wait_reason(&cluster, "settings", "Invalid").starts_with(told)
        });
        edge.wait("/orders", 403);
        edge.wait("/orders", 200);
    }
    // Of two, the first one, which the other names.
    let mut other = settings(json!({ "retries": 0 }));
    other["metadata"]["name"] = "zero".into();
    cluster.apply([settings(json!({ "retry_on": ["http_403"] })), other]);
    wait_reason(&cluster, "settings", "Accepted");
    let message = wait_reason(&cluster, "zero", "Conflicted");
    assert!(message.contains("WeirPolicy settings"), "{message}");
    cluster.objects().delete("weirpolicies", "shop", "settings");
    wait_reason(&cluster, "zero", "Accepted");
    edge.wait("/orders", 403);
}
