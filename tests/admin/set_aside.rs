//! Resources of a store that cannot be served because of something outside the store, and what brings them back.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::json;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, Signal, TempDir, eventually};

use crate::api::{Api, file};
use crate::weir;

/// Waits until the warnings of a node are as they should be. Workers serve a change a moment before the node tells of it.
#[track_caller]
pub(crate) fn wait_warnings(gateway: &Gateway, are_right: impl Fn(&str) -> bool) {
    let warnings = || gateway.status()["configuration"]["warnings"].to_string();
    eventually("the warnings of the change", DEADLINE, || are_right(&warnings()));
}

fn kept_in(directory: &TempDir) -> String {
    format!(
        "{}data_dir: {directory}/data\nresource_files: [{directory}]\nresource_secrets: [vault/1/jack/*]\n",
        file(),
        directory = directory.path().display()
    )
}

fn status_with(gateway: &Gateway, key: &str) -> u16 {
    let request = format!("GET /r HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n");
    gateway.client().ask(request).expect("an answer").status
}

#[test]
fn a_secret_that_can_be_read_again_brings_its_resource_back() {
    let is_open = Arc::new(AtomicBool::new(true));
    let opened = Arc::clone(&is_open);
    let vault = Origin::serving(move |request| match (&*request.target, opened.load(Relaxed)) {
        ("/v1/kv/jack", true) => Answer::ok(r#"{"data": {"key": "of-jack"}}"#),
        _ => Answer::status(503, r#"{"errors": ["sealed"]}"#),
    });
    let directory = TempDir::new();
    let mut gateway = weir().start(&kept_in(&directory));
    let mut api = Api::of(&gateway);
    let manager = json!({"uri": format!("http://{}", vault.addr()), "prefix": "kv", "token": "t"});
    api.put("secrets/vault/1", &manager.to_string());
    let jack = json!({"username": "jack", "plugins": {"key-auth": {"key": "$secret://vault/1/jack/key"}}});
    api.put("consumers/jack", &jack.to_string());
    let route = json!({"uri": "/r", "plugins": {"key-auth": {}, "mocking": {"response_example": "r"}}});
    api.put("routes/r", &route.to_string());
    assert_eq!(status_with(&gateway, "of-jack"), 200);
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);

    is_open.store(false, Relaxed);
    let gateway = weir().start(&kept_in(&directory));
    assert_eq!(status_with(&gateway, "of-jack"), 401);
    let warnings = gateway.status()["configuration"]["warnings"].to_string();
    assert!(warnings.contains("consumers/jack") && warnings.contains("503"), "{warnings}");
    is_open.store(true, Relaxed);
    eventually("the consumer is back", DEADLINE, || status_with(&gateway, "of-jack") == 200);
    wait_warnings(&gateway, |warnings| !warnings.contains("consumers/jack"));
}

#[test]
fn a_file_that_appears_brings_its_resource_back() {
    let directory = TempDir::new();
    let list = directory.write("nodes.json", "[]");
    let mut gateway = weir().start(&kept_in(&directory));
    let origin = Origin::serving(|_| Answer::ok("hello"));
    let nodes = json!([{"host": origin.addr().ip().to_string(), "port": origin.addr().port(), "weight": 1}]);
    fs::write(&list, nodes.to_string()).expect("a file");
    let route = json!({"uri": "/r", "upstream": {"nodes_file": list}});
    Api::of(&gateway).put("routes/r", &route.to_string());
    assert_eq!(gateway.get("/r").text(), "hello");
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);

    fs::remove_file(&list).expect("it is there");
    let gateway = weir().start(&kept_in(&directory));
    assert_eq!(gateway.get("/r").status, 503);
    let warnings = || gateway.status()["configuration"]["warnings"].to_string();
    assert!(warnings().contains("routes/r: upstream.nodes_file"), "{}", warnings());
    fs::write(&list, "[{}]").expect("a file");
    eventually("a file that is wrong is named", DEADLINE, || warnings().contains("is not a list of nodes"));
    fs::write(&list, nodes.to_string()).expect("a file");
    eventually("the route is back", DEADLINE, || gateway.get("/r").status == 200);
}

#[test]
fn a_refused_file_is_not_read_again_for_each_change_of_a_resource() {
    let directory = TempDir::new();
    let gateway = weir().start(&kept_in(&directory));
    gateway.replace_file("listen: [");
    let state = |gateway: &Gateway| gateway.status()["configuration"].clone();
    eventually("the file is refused", DEADLINE, || !state(&gateway)["last_error"].is_null());
    let refused = state(&gateway)["last_error"].clone();
    let route = json!({"uri": "/r", "plugins": {"mocking": {"response_example": "r"}}});
    for _ in 0..3 {
        Api::of(&gateway).put("routes/r?ttl=1", &route.to_string());
        // Files are looked at meanwhile.
        eventually("it has expired", DEADLINE, || gateway.get("/r").status == 404);
    }
    assert_eq!(state(&gateway)["last_error"], refused);
}

/// A node with a file of its own that resources may read, with a wider route.
fn guarded(directory: &TempDir, resources: &[(&str, serde_json::Value)]) -> Gateway {
    let gateway = weir().start(&kept_in(directory));
    let mut api = Api::of(&gateway);
    let origin = json!({"uri": "/*", "plugins": {"mocking": {"response_example": "wide"}}});
    api.put("routes/wide", &origin.to_string());
    for (key, value) in resources {
        let answer = api.put(key, &value.to_string());
        assert!(answer.status < 300, "{key}: {}", answer.text());
    }
    gateway
}

#[test]
fn a_resource_set_aside_at_a_start_is_closed_and_no_wider_route_takes_its_requests() {
    let directory = TempDir::new();
    let users = json!({"basic-auth": {"users": [{"username": "a", "password": "$env://WEIR_TEST_PASSWORD"}]}});
    let answer = json!({"response_example": "guarded"});
    let with_mocking = |mut plugins: serde_json::Value| {
        plugins["mocking"] = answer.clone();
        plugins
    };
    let text = format!("{}resource_env: [WEIR_TEST_PASSWORD]\n", kept_in(&directory));
    let mut gateway = weir().env("WEIR_TEST_PASSWORD", "a-password-of-some-length").start(&text);
    let mut api = Api::of(&gateway);
    let resources = [
        ("routes/wide", json!({"uri": "/*", "plugins": {"mocking": {"response_example": "wide"}}})),
        ("plugin_configs/pc", json!({"plugins": users})),
        ("services/sv", json!({"plugins": with_mocking(users.clone()), "hosts": ["sv.test"]})),
        ("routes/own", json!({"uri": "/own", "plugins": with_mocking(users.clone())})),
        ("routes/pc", json!({"uri": "/pc", "plugin_config_id": "pc", "plugins": {"mocking": answer}})),
        ("routes/sv", json!({"uri": "/sv", "service_id": "sv"})),
    ];
    for (key, value) in &resources {
        let put = api.put(key, &value.to_string());
        assert!(put.status < 300 && put.headers.get("x-weir-set-aside").is_none(), "{key}: {}", put.text());
    }
    let status = |gateway: &Gateway, path: &str, host: &str| {
        gateway.client().ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("an answer").status
    };
    let asked = [("/own", "h"), ("/pc", "h"), ("/sv", "sv.test")];
    for (path, host) in asked {
        assert_eq!(status(&gateway, path, host), 401, "{path}");
    }
    assert_eq!(status(&gateway, "/sv", "h"), 200, "the route of the service is for its hosts");
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);

    let mut gateway = weir().start(&text);
    for (path, host) in asked {
        assert_eq!(status(&gateway, path, host), 503, "{path}");
    }
    assert_eq!(status(&gateway, "/sv", "h"), 200, "a closed route is for the same hosts");
    assert_eq!(status(&gateway, "/other", "h"), 200);
    let mut api = Api::of(&gateway);
    let put = api.put("global_rules/g", &json!({"plugins": users}).to_string());
    assert_eq!(put.headers.get("x-weir-set-aside"), Some("global_rules/g"), "{}", put.text());
    assert_eq!(status(&gateway, "/other", "h"), 503, "a rule that protects all closes all");
    assert_eq!(api.ask("DELETE", "global_rules/g", "", "").status, 200);
    assert_eq!(status(&gateway, "/other", "h"), 200);
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);

    let gateway = weir().env("WEIR_TEST_PASSWORD", "a-password-of-some-length").start(&text);
    for (path, host) in asked {
        assert_eq!(status(&gateway, path, host), 401, "{path}");
    }
}

#[test]
fn a_route_that_lacks_a_variable_is_told_of_as_that_and_nothing_else() {
    let directory = TempDir::new();
    let gateway = weir().start(&format!("{}resource_env: [WEIR_TEST_PASSWORD]\n", kept_in(&directory)));
    let route = json!({
        "uri": "/own",
        "plugins": {"basic-auth": {"users": [{"username": "a", "password": "$env://WEIR_TEST_PASSWORD"}]}},
        "upstream": {"nodes": {"127.0.0.1:1": 1}, "type": "roundrobin"},
    });
    let put = Api::of(&gateway).put("routes/own", &route.to_string());
    assert_eq!(put.headers.get("x-weir-set-aside"), Some("routes/own"), "{}", put.text());
    assert!(!put.text().contains("has no upstream"), "{}", put.text());
    assert_eq!(gateway.get("/own").status, 503);
    let answer = Api::of(&gateway).ask("POST", "/weir/v1/explain", "", r#""GET http://h/own""#);
    let told: serde_json::Value = serde_json::from_str(&answer.text()).expect("JSON");
    assert!(told["set_aside"].to_string().contains("WEIR_TEST_PASSWORD"), "{told:#}");
    assert_eq!((&told["upstream"], &told["plugins"]), (&json!(null), &json!([])), "{told:#}");
    assert_eq!(gateway.metrics().get("weir_resources_set_aside"), Some(1.0));
}

#[test]
fn a_forced_deletion_closes_what_refers_to_it() {
    let directory = TempDir::new();
    let gateway = guarded(
        &directory,
        &[
            ("plugin_configs/pc", json!({"plugins": {"key-auth": {}}})),
            (
                "routes/pc",
                json!({"uri": "/pc", "plugin_config_id": "pc", "plugins": {"mocking": {"response_example": "r"}}}),
            ),
        ],
    );
    assert_eq!(gateway.get("/pc").status, 401);
    let answer = Api::of(&gateway).ask("DELETE", "plugin_configs/pc?force=true", "", "");
    assert_eq!(answer.headers.get("x-weir-set-aside"), Some("routes/pc"));
    assert_eq!(gateway.get("/pc").status, 503);
    assert_eq!(gateway.get("/other").status, 200);
}

#[test]
fn a_plugin_that_the_file_does_not_allow_any_more_closes_its_routes() {
    let directory = TempDir::new();
    let gateway = guarded(
        &directory,
        &[("routes/own", json!({"uri": "/own", "plugins": {"key-auth": {}, "mocking": {"response_example": "r"}}}))],
    );
    assert_eq!(gateway.get("/own").status, 401);
    let text = kept_in(&directory);
    gateway.replace_file(&format!("{text}plugins: [{{ name: mocking }}]\n"));
    eventually("it is closed", DEADLINE, || gateway.get("/own").status == 503);
    wait_warnings(&gateway, |warnings| warnings.contains("routes/own"));
    assert_eq!(gateway.get("/other").status, 200);
    gateway.replace_file(&text);
    eventually("it is back", DEADLINE, || gateway.get("/own").status == 401);
}
