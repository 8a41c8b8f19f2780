//! API-driven standalone mode, as ADC and APISIX's ingress controller use it: the whole configuration in one request.

use serde_json::{Value, json};
use weir_testkit::{Response, Signal};

use crate::api::{Api, VIEWER, admin_addr, file, json as json_of};
use crate::weir;

fn put(api: &mut Api, digest: &str, body: &Value) -> Response {
    let digest = if digest.is_empty() { String::new() } else { format!("X-Digest: {digest}\r\n") };
    api.ask("PUT", "configs", &digest, &body.to_string())
}

fn route(id: &str, answer: &str) -> Value {
    json!({"id": id, "modifiedIndex": 7, "uri": format!("/{id}"), "plugins": {"mocking": {"response_example": answer}}})
}

/// A new process would answer 404 to everything until the controller sends its configuration again, which it may not.
#[test]
fn resources_in_memory_are_not_given_up_for_an_upgrade() {
    let gateway = weir().start(&format!("{}store: standalone\n", file()));
    let mut api = Api::of(&gateway);
    assert_eq!(put(&mut api, "d1", &json!({"routes": [route("a", "first")]})).status, 202);
    gateway.signal(Signal::USR2);
    gateway
        .wait_stderr("that it is refused", |line| line.contains("upgrade failed") && line.contains("in memory only"));
    assert_eq!(gateway.get("/a").text(), "first");
    assert_eq!(put(&mut api, "d2", &json!({"routes": [route("a", "second")]})).status, 202);
}

#[test]
fn a_configuration_comes_and_goes_whole() {
    let gateway = weir().start(&format!("{}store: standalone\n", file()));
    let mut api = Api::of(&gateway);
    let empty = api.get("configs");
    assert_eq!(
        empty.as_object().map(serde_json::Map::len),
        Some(14),
        "a version of each kind, and of the plugins: {empty}"
    );
    assert!(empty.as_object().is_some_and(|members| members.values().all(|version| *version == 0)));

    assert!(put(&mut api, "", &json!({"routes": []})).text().contains("missing digest header"));
    let first = put(&mut api, "d1", &json!({"routes": [route("a", "first")]}));
    assert_eq!((first.status, first.headers.get("x-digest")), (202, Some("d1")), "{}", first.text());
    assert!(first.headers.get("x-last-modified").is_some());
    assert_eq!(gateway.get("/a").text(), "first");
    assert_eq!(put(&mut api, "d1", &json!({"routes": []})).status, 204, "the same digest is the same configuration");
    assert_eq!(gateway.get("/a").text(), "first");

    let unknown = put(&mut api, "d2", &json!({"routes": [{"id": "1", "uri": "/x", "plugins": {"nope": {}}}]}));
    assert_eq!(unknown.status, 400);
    assert!(unknown.text().contains("unknown plugin [nope]"), "{}", unknown.text());
    let old = put(&mut api, "d2", &json!({"routes_conf_version": 0, "routes": []}));
    assert!(old.text().contains("routes_conf_version must be greater than or equal to (1)"), "{}", old.text());
    let twice = put(&mut api, "d3", &json!({"consumers": [{"username": "jack"}, {"username": "jack"}]}));
    assert!(twice.text().contains("found duplicate username jack in consumers"), "{}", twice.text());
    assert_eq!(gateway.get("/a").text(), "first", "what is refused changes nothing");

    let whole = json!({
        "routes_conf_version": 1000,
        "routes": [route("b", "second")],
        "consumers": [{"username": "jack"}, {"id": "jack/credentials/c1", "plugins": {"key-auth": {"key": "k"}}}],
    });
    assert_eq!(put(&mut api, "d3", &whole).status, 202);
    assert_eq!(gateway.get("/a").status, 404);
    assert_eq!(gateway.get("/b").text(), "second");
    let stored = api.get("configs");
    assert_eq!(stored["routes"], whole["routes"]);
    assert_eq!(stored["consumers"], whole["consumers"]);
    assert_eq!((&stored["routes_conf_version"], &stored["X-Digest"]), (&json!(1000), &json!("d3")));
    assert_eq!(stored["upstreams_conf_version"], 2);
    let seen = Api::with_key(admin_addr(&gateway), VIEWER).get("configs");
    assert_eq!(seen["consumers"][1]["plugins"]["key-auth"]["key"], "***");
    let masked = put(&mut api, "d4", &json!({"consumers": seen["consumers"]}));
    assert_eq!(masked.status, 400);
    assert!(masked.text().contains("consumers[1]: `plugins.key-auth.key`"), "{}", masked.text());

    // The same version is the same list, whatever is sent.
    assert_eq!(put(&mut api, "d4", &json!({"routes_conf_version": 1000, "routes": []})).status, 202);
    assert_eq!(gateway.get("/b").text(), "second");
    assert_eq!(put(&mut api, "d5", &json!({})).status, 202);
    assert_eq!(gateway.get("/b").status, 404, "what is left out is gone");
    assert_eq!(api.ask("PUT", "routes/1", "", "{}").status, 404);
}

#[test]
fn yaml_is_taken_and_given() {
    let gateway = weir().start(&format!("{}store: standalone\n", file()));
    let mut api = Api::of(&gateway);
    let body = "routes:\n- id: a\n  uri: /a\n  plugins: { mocking: { response_example: yaml } }\n";
    let answer = api.ask("PUT", "configs?wait=60000ms", "X-Digest: d\r\nContent-Type: application/yaml\r\n", body);
    assert_eq!(answer.status, 200, "with a wait, all workers serve it: {}", answer.text());
    assert_eq!(gateway.get("/a").text(), "yaml");
    let given = api.ask("GET", "configs", "Accept: application/yaml\r\n", "");
    assert_eq!(given.headers.get("content-type"), Some("application/yaml"));
    assert_eq!(json_of(&given)["X-Digest"], "d");
    let broken = api.ask("PUT", "configs", "X-Digest: e\r\nContent-Type: application/yaml\r\n", "routes: [ {id: a");
    assert_eq!(broken.status, 400);
}

/// The requests of ADC 0.28 in its standalone mode, in its order.
#[test]
fn adc_syncs_in_its_standalone_mode() {
    let gateway = weir().start(&format!("{}store: standalone\n", file()));
    let mut api = Api::with_key(crate::api::admin_addr(&gateway), "");
    let ping = api.ask("HEAD", "", "", "");
    assert_eq!(ping.status, 200, "it pings without a key");
    assert!(ping.headers.get("server").is_some_and(|server| server.contains("APISIX/3.")));
    let mut api = Api::of(&gateway);
    assert_eq!(api.ask("HEAD", "configs", "", "").headers.get("x-last-modified"), None);
    let mut configuration = api.get("configs");
    configuration["upstreams"] =
        json!([{"id": "u", "modifiedIndex": 1, "nodes": [{"host": "127.0.0.1", "port": 9, "weight": 1}]}]);
    configuration["services"] = json!([{"id": "s", "modifiedIndex": 1, "upstream_id": "u", "name": "s"}]);
    configuration["routes"] = json!([{"id": "r", "modifiedIndex": 1, "uris": ["/r"], "service_id": "s", "name": "r",
        "labels": {"managed-by": "adc"}, "plugins": {"mocking": {"response_example": "by adc"}}}]);
    for list in ["upstreams", "services", "routes"] {
        configuration[format!("{list}_conf_version")] = json!(1_700_000_000_000_u64);
    }
    assert_eq!(put(&mut api, "sha1-of-it", &configuration).status, 202);
    assert_eq!(gateway.get("/r").text(), "by adc");
    let newest = api.ask("HEAD", "configs", "", "").headers.get("x-last-modified").map(str::to_owned);
    assert!(newest.is_some());
    assert_eq!(put(&mut api, "sha1-of-it", &configuration).status, 204, "with nothing to change it puts all the same");
}

#[test]
fn value_that_is_no_list_is_refused_and_removes_nothing() {
    let gateway = weir().start(&format!("{}store: standalone\n", file()));
    let mut api = Api::of(&gateway);
    assert_eq!(put(&mut api, "d1", &json!({"routes": [route("a", "first")]})).status, 202);
    for wrong in [json!({"routes": 5}), json!({"routes": {"a": 1}}), json!({"upstreams": "none"})] {
        let checked = api.ask("POST", "configs/validate", "", &wrong.to_string());
        assert_eq!(checked.status, 400, "{wrong}: {}", checked.text());
        assert!(checked.text().contains("expected a list"), "{}", checked.text());
        assert_eq!(put(&mut api, "d2", &wrong).status, 400, "{wrong}");
    }
    assert_eq!(gateway.get("/a").text(), "first");
}
