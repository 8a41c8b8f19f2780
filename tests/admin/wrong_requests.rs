//! Requests that are wrong in a way of their own: each is refused with a reason, and changes nothing.

use serde_json::{Value, json};
use weir_testkit::{Client, Response};

use crate::api::{ADMIN, Api, admin_addr, file, json};
use crate::weir;

/// The status, and the pointer of each diagnostic with its problem.
#[track_caller]
fn told(answer: &Response) -> (u16, Vec<(String, String)>) {
    let body = json(answer);
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let found = body["diagnostics"].as_array().into_iter().flatten();
    (answer.status, found.map(|one| (text(one, "pointer"), text(one, "problem"))).collect())
}

#[test]
fn references_to_missing_resources_are_diagnostics_beside_the_faults_of_plugins() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let route = json!({
        "uri": "/", "upstream_id": "gone", "service_id": "lost",
        "plugins": { "limit-count": { "count": 1, "time_window": 1, "rejected_code": 1, "nope": 1 }, "cors": { "nope": 1 } },
    });
    let answer = api.ask("PUT", "routes/r", "", &route.to_string());
    let (status, found) = told(&answer);
    assert_eq!(status, 400, "{}", answer.text());
    let mut pointers: Vec<&str> = found.iter().map(|(pointer, _)| &**pointer).collect();
    pointers.sort_unstable();
    let expected = [
        "/plugins/cors/nope",
        "/plugins/limit-count/nope",
        "/plugins/limit-count/rejected_code",
        "/service_id",
        "/upstream_id",
    ];
    assert_eq!(pointers, expected, "{}", answer.text());
    let keys: Vec<Value> =
        json(&answer)["diagnostics"].as_array().into_iter().flatten().map(|one| one["key"].clone()).collect();
    assert!(keys.iter().all(|key| key == "routes/r"), "{keys:?}");

    // Where clients of APISIX look, its words stand.
    for (path, body, expected) in [
        (
            "routes/r",
            json!({"uri": "/", "upstream_id": 9}),
            "failed to fetch upstream info by upstream id [9], response code: 404",
        ),
        (
            "services/s",
            json!({"upstream_id": "u"}),
            "failed to fetch upstream info by upstream id [u], response code: 404",
        ),
        (
            "consumers",
            json!({"username": "jack", "group_id": "g"}),
            "failed to fetch consumer group info by consumer group id [g], response code: 404",
        ),
    ] {
        let answer = api.ask("PUT", path, "", &body.to_string());
        assert_eq!((answer.status, &json(&answer)["error_msg"]), (400, &json!(expected)));
        assert_eq!(told(&answer).1.len(), 1, "{}", answer.text());
    }
    api.put("routes/r", r#"{"uri": "/", "plugins": {}}"#);
    let answer = api.ask("PATCH", "routes/r", "", r#"{"upstream_id": "gone"}"#);
    assert_eq!(told(&answer), (400, vec![("/upstream_id".to_owned(), "`upstreams` has no `gone`".to_owned())]));
}

#[test]
fn a_certificate_that_an_upstream_refers_to_must_be_there() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let dangling =
        json!({"scheme": "https", "nodes": {"127.0.0.1:1": 1}, "tls": {"client_cert_id": "me", "verify": false}});
    let answer = api.ask("PUT", "upstreams/u", "", &dangling.to_string());
    assert_eq!(told(&answer), (400, vec![("/tls/client_cert_id".to_owned(), "`ssls` has no `me`".to_owned())]));
    let expected = "failed to fetch ssl info by ssl id [me], response code: 404";
    assert_eq!(json(&answer)["error_msg"], expected);
    assert_eq!(api.ask("GET", "upstreams/u", "", "").status, 404);
}

#[test]
fn schema_validate_checks_plugins_and_neither_references_nor_values_of_references() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let mut validated = |list: &str, value: &Value| {
        let answer = api.ask("POST", &format!("schema/validate/{list}"), "", &value.to_string());
        let body = if answer.body.is_empty() { Value::Null } else { json(&answer) };
        let found = body["diagnostics"].as_array().into_iter().flatten();
        let pointers = found.map(|one| one["pointer"].as_str().unwrap_or_default().to_owned()).collect();
        (answer.status, pointers, body["error_msg"].as_str().unwrap_or_default().to_owned())
    };
    let wrong = |plugins: Value| json!({"id": "x", "uri": "/", "upstream_id": "elsewhere", "plugins": plugins});
    let limit = json!({"limit-count": {"count": 1, "time_window": 1, "rejected_code": 1, "nope": 1}});
    let (status, pointers, message): (u16, Vec<String>, String) = validated("routes", &wrong(limit));
    let mut sorted = pointers;
    sorted.sort_unstable();
    assert_eq!(
        (status, sorted),
        (400, ["/plugins/limit-count/nope", "/plugins/limit-count/rejected_code"].map(str::to_owned).into())
    );
    assert!(
        message.starts_with("failed to check the configuration of plugin limit-count err: property \""),
        "{message}"
    );

    let unknown: (u16, Vec<String>, String) = validated("routes", &wrong(json!({"limit-cuont": {}})));
    assert_eq!((unknown.0, &unknown.1[0][..]), (400, "/plugins/limit-cuont"));
    assert!(unknown.2.starts_with("unknown plugin [limit-cuont]"), "{}", unknown.2);

    let member: (u16, Vec<String>, String) =
        validated("routes", &json!({"id": "x", "uri": "/", "upstream": {"nodes": 7}}));
    assert_eq!((member.0, &member.1[0][..]), (400, "/upstream/nodes"));

    let credential: (u16, Vec<String>, String) =
        validated("consumers", &json!({"username": "a", "plugins": {"key-auth": {"key": 7}}}));
    assert_eq!((credential.0, &credential.1[0][..]), (400, "/plugins/key-auth/key"));

    for (list, value) in [
        ("routes", wrong(json!({"limit-count": {"count": 1, "time_window": 1}}))),
        (
            "routes",
            wrong(json!({"limit-count": {
                "count": 1, "time_window": 1, "policy": "redis", "redis_host": "$env://HOST", "redis_password": "$secret://vault/1/a/b",
            }})),
        ),
        ("consumers", json!({"username": "a", "group_id": "g", "plugins": {"key-auth": {"key": "$ENV://KEY"}}})),
        (
            "plugin_configs",
            json!({"id": "c", "plugins": {"traffic-split": {"rules": [{"weighted_upstreams": [{"upstream_id": "u"}]}]}}}),
        ),
    ] {
        let (status, pointers, message): (u16, Vec<String>, String) = validated(list, &value);
        assert_eq!((status, pointers), (200, vec![]), "{list} {value}: {message}");
    }
}

#[test]
fn ids_are_texts_or_whole_numbers_from_1_on() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    for (id, path) in
        [(json!(-100), "routes/-100"), (json!(1.5), "routes/1.5"), (json!(0), "routes/0"), (json!(-100), "routes")]
    {
        let answer = api.ask("PUT", path, "", &json!({"id": id, "uri": "/", "plugins": {}}).to_string());
        let (status, found) = told(&answer);
        let pointers: Vec<&str> = found.iter().map(|(pointer, _)| &**pointer).collect();
        assert_eq!((status, &pointers[..]), (400, &["/id"][..]), "{path}: {}", answer.text());
    }
    for id in [".", ".."] {
        let answer = api.ask("PUT", "routes", "", &json!({"id": id, "uri": "/", "plugins": {}}).to_string());
        assert_eq!(answer.status, 400, "{id}: {}", answer.text());
        assert!(answer.text().contains("wrong route id"), "{}", answer.text());
        let listed = json!({"routes": [{"id": id, "uri": "/", "plugins": {}}]}).to_string();
        let answer = api.ask("POST", "configs/validate", "", &listed);
        assert_eq!(answer.status, 400, "{id}: {}", answer.text());
    }
    for (id, path) in [(json!(7), "routes/7"), (json!("-100"), "routes/-100"), (json!("a..b"), "routes")] {
        api.put(path, &json!({"id": id, "uri": "/", "plugins": {}}).to_string());
    }
}

#[test]
fn missing_id_is_told_with_the_path_of_its_list() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("consumers/jack", r#"{"username": "jack"}"#);
    for (list, value) in [
        ("routes", json!({"uri": "/"})),
        ("consumers/jack/credentials", json!({"plugins": {"key-auth": {"key": "a-key-of-jack"}}})),
        ("secrets/vault", json!({"uri": "http://127.0.0.1:1", "prefix": "kv", "token": "t"})),
    ] {
        let answer = api.ask("PUT", list, "", &value.to_string());
        assert_eq!(answer.status, 400, "{list}: {}", answer.text());
        assert!(answer.text().contains(&format!("`PUT {list}/ID`")), "{list}: {}", answer.text());
    }
}

#[test]
fn list_of_a_file_in_place_of_a_resource_is_told_as_such() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let advice = "this is a file with lists";
    let answer = api.ask("PUT", "routes/a", "", r#"{"routes": [{"uri": "/"}]}"#);
    assert!(answer.text().contains(advice), "{}", answer.text());
}

#[test]
fn nodes_with_ipv6_addresses_are_equal_in_both_forms() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let both = [
        json!([{"host": "::1", "port": 81, "weight": 1}]),
        json!([{"host": "[::1]", "port": 81, "weight": 1}]),
        json!({"[::1]:81": 1}),
    ];
    for nodes in &both {
        api.put("upstreams/u", &json!({"nodes": nodes}).to_string());
        api.put("routes/r", r#"{"uri": "/", "upstream_id": "u"}"#);
        let certain = api.ask("POST", "/weir/v1/explain", "", r#""GET http://a/""#);
        let upstream = json(&certain)["upstream"].to_string();
        assert!(upstream.contains("[::1]:81") || upstream.contains("upstreams/u"), "{nodes}: {}", certain.text());
    }
    // Without brackets it cannot be told where the port begins.
    let answer = api.ask("PUT", "upstreams/u", "", r#"{"nodes": {"::1:81": 1}}"#);
    assert_eq!(answer.status, 400, "{}", answer.text());
}

#[test]
fn two_host_fields_are_refused() {
    let gateway = weir().start(&file());
    let request = format!(
        "GET /apisix/admin/routes HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: localhost\r\nX-API-KEY: {ADMIN}\r\n\r\n"
    );
    let answer = Client::connect(admin_addr(&gateway)).ask(request).expect("an answer");
    // RFC 9112 §3.2
    assert_eq!(answer.status, 400, "{}", answer.text());
}

#[test]
fn raw_line_breaks_in_texts_of_json_are_refused() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    // RFC 8259 §7: a control character must be escaped.
    let answer = api.ask("PUT", "routes/r", "", "{\"uri\": \"/\", \"plugins\": {}, \"desc\": \"two\nlines\"}");
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("control character"), "{}", answer.text());
    api.put("routes/r", "{\"uri\": \"/\", \"plugins\": {}, \"desc\": \"two\\nlines\"}");
    assert_eq!(api.get("routes/r")["value"]["desc"], "two\nlines");
}

#[test]
fn methods_that_a_path_does_not_have_are_405_with_those_that_it_has() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    for (method, path, allowed) in [
        ("POST", "/weir/v1/status", "GET"),
        ("DELETE", "/weir/v1/tail", "GET"),
        ("PUT", "/weir/v1/metrics/history", "GET"),
        ("GET", "/weir/v1/explain", "POST"),
        ("POST", "/weir/v1/table/routes", "GET"),
        ("POST", "/weir/v1/hubs", "GET"),
        ("POST", "schema/route", "GET"),
        ("POST", "nodes", "GET"),
        ("POST", "plugins/list", "GET"),
        ("DELETE", "history/1", "GET"),
        ("GET", "history/1/rollback", "POST"),
        ("FOO", "routes", "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS"),
    ] {
        let answer = api.ask(method, path, "", "");
        assert_eq!(
            (answer.status, answer.headers.get("allow")),
            (405, Some(allowed)),
            "{method} {path}: {}",
            answer.text()
        );
        assert!(json(&answer)["error_msg"].as_str().is_some_and(|text| text.contains(allowed)), "{}", answer.text());
    }
}

#[test]
fn paths_that_are_not_there_are_told_in_json_with_those_that_are() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    for path in ["/apisix/admin/", "/admin/routes", "/nowhere"] {
        let answer = api.ask("GET", path, "", "");
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
        assert!(
            json(&answer)["error_msg"].as_str().is_some_and(|text| text.contains("`/apisix/admin/{list}`")),
            "{path}"
        );
    }
    let meant = api.ask("GET", "route", "", "");
    assert_eq!(json(&meant)["error_msg"], "Unsupported resource type: route; did you mean `routes`?");
    assert_eq!(json(&api.ask("GET", "bogus", "", ""))["error_msg"], "Unsupported resource type: bogus");
}

#[test]
fn arguments_that_mean_nothing_are_refused_with_what_would_be_right() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let route = r#"{"uri": "/r", "plugins": {"mocking": {"response_example": "r"}}}"#;
    for (method, path, status, told) in [
        ("PUT", "routes/r?ttl=0", 400, "with 0 the resource would be gone at once"),
        ("GET", "history?key=routes", 400, "`routes` is not the key of a resource; write it as `routes/orders`"),
        ("PUT", "configs", 404, "only a node with `store: standalone` takes its resources as a whole"),
    ] {
        let answer = api.ask(method, path, "", if method == "PUT" { route } else { "" });
        assert!(answer.status == status && answer.text().contains(told), "{path}: {} {}", answer.status, answer.text());
    }
}

#[test]
fn a_limit_with_a_server_and_without_a_policy_is_doubted() {
    let gateway = weir().start(&file());
    let put = |policy: &str| {
        let limit = format!(r#"{{"count": 1, "time_window": 60, "redis_host": "127.0.0.1"{policy}}}"#);
        let route = format!(
            r#"{{"uri": "/r", "plugins": {{"mocking": {{"response_example": "r"}}, "limit-count": {limit}}}}}"#
        );
        Api::of(&gateway).put("routes/r", &route).text()
    };
    let told = put("");
    assert!(
        told.contains("without `policy`, each process counts by itself") && told.contains("policy: redis"),
        "{told}"
    );
    let told = put(r#", "policy": "redis""#);
    assert!(!told.contains("each process counts by itself"), "{told}");
}
