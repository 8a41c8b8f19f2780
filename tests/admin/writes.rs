//! Changes: what is answered is served, nothing is lost, and history tells all of it.

use std::thread;

use serde_json::{Value, json};
use weir_testkit::{Authority, DEADLINE, Response, Signal, scaled};

use crate::api::{ADMIN, Api, admin_addr, file, json as json_of};
use crate::weir;

/// A route that answers by itself.
fn fixed(path: &str, answer: &str) -> String {
    json!({"uri": path, "plugins": {"mocking": {"response_example": answer}}}).to_string()
}

#[test]
fn answered_change_is_served() {
    let gateway = weir().start(&format!("worker_processes: 2\n{}", file()));
    let mut api = Api::of(&gateway);
    for version in 0..scaled(20, 500) {
        let answer = api.ask("PUT", "routes/r?wait=60s", "", &fixed("/version", &version.to_string()));
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
        for _ in 0..4 {
            assert_eq!(gateway.get("/version").text(), version.to_string());
        }
    }
    api.ask("DELETE", "routes/r", "", "");
    assert_eq!(gateway.get("/version").status, 404);
    let status = gateway.status();
    assert_eq!(status["configuration"]["store_revision"], scaled(20, 500) as u64 + 1);
    assert_eq!(status["configuration"]["reloads_failed"], 0, "what an API refuses is told to its client");
}

#[test]
fn invalid_resource_is_refused_with_its_place_and_changes_nothing() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("routes/good", &fixed("/good", "good"));
    let wrong = r#"{"uri": "/bad", "plugins": {"limit-count": {"count": 0, "time_window": 1}, "mocking": {"response_status": 99}}}"#;
    let answer = api.ask("PUT", "routes/bad", "", wrong);
    assert_eq!(answer.status, 400);
    let told = json_of(&answer)["diagnostics"].clone();
    let paths: Vec<&str> = told.as_array().expect("a list").iter().filter_map(|fault| fault["path"].as_str()).collect();
    assert_eq!(paths.len(), 2, "all of it at once: {told:#}");
    assert!(paths.iter().all(|path| path.starts_with("routes/bad: plugins.")), "{paths:?}");
    assert_eq!(api.get("routes")["total"], 1);
    assert_eq!(api.get("history")["revision"], 1);
    assert_eq!(gateway.get("/good").text(), "good");
}

#[test]
fn racing_clients_lose_no_update() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    Api::of(&gateway).put("routes/r", &fixed("/r", "0"));
    let (clients, attempts) = (100, scaled(3, 10));
    let racers = (0..clients).map(|client| {
        thread::spawn(move || {
            let mut api = Api::with_key(address, ADMIN);
            let mut won = Vec::new();
            for attempt in 0..attempts {
                let seen = api.ask("GET", "routes/r", "", "");
                let tag = seen.headers.get("etag").expect("a tag").to_owned();
                let body = fixed("/r", &format!("{client}.{attempt}"));
                let answer = api.ask("PUT", "routes/r", &format!("If-Match: {tag}\r\n"), &body);
                match answer.status {
                    200 => {
                        won.push(answer.headers.get("x-weir-revision").expect("a number").parse::<u64>().expect("one"))
                    }
                    412 => assert!(answer.headers.get("etag") != Some(&tag), "it has moved on"),
                    status => panic!("{status}: {}", answer.text()),
                }
            }
            won
        })
    });
    let racers: Vec<_> = racers.collect();
    let mut won: Vec<u64> = racers.into_iter().flat_map(|racer| racer.join().expect("it does not panic")).collect();
    won.sort_unstable();
    let history = Api::of(&gateway).get("history?count=1000");
    let mut told: Vec<u64> = history["list"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|record| record["revision"].as_u64())
        .filter(|revision| *revision > 1)
        .collect();
    told.sort_unstable();
    assert_eq!(won, told, "exactly the successes are in history");
    assert!(!won.is_empty());
}

#[test]
fn writes_that_come_together_are_made_together() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    let (clients, each) = (16, scaled(10, 100));
    let writers = (0..clients).map(|client| {
        thread::spawn(move || {
            let mut api = Api::with_key(address, ADMIN);
            for number in 0..each {
                // One in ten is refused, and must not take others with it.
                let bad = number % 10 == 9;
                let body = if bad { "{\"uri\":\"no-slash\",\"plugins\":{}}".to_owned() } else { fixed("/x", "x") };
                let answer = api.ask("PUT", &format!("routes/{client}-{number}"), "", &body);
                assert_eq!(answer.status, if bad { 400 } else { 201 }, "{}", answer.text());
            }
        })
    });
    writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().expect("it does not panic"));
    let expected = clients * each - clients * (each / 10);
    assert_eq!(Api::of(&gateway).get("routes")["total"], expected);
    let status = gateway.status();
    assert_eq!(status["configuration"]["store_revision"], expected as u64, "a revision for each");
    assert!(status["revision"].as_u64() <= Some(expected as u64 + 1));
}

#[test]
fn a_transaction_is_made_whole_or_not_at_all() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let route = json!({"put": "routes/r", "value": {"uri": "/r", "upstream_id": "u"}});
    let upstream = json!({"put": "upstreams/u", "value": {"nodes": {"127.0.0.1:9": 1}}});
    let ask = |api: &mut Api, operations: Value| {
        api.ask("PATCH", "configs", "", &json!({"operations": operations}).to_string())
    };
    let half = ask(&mut api, json!([route]));
    assert_eq!(half.status, 400, "{}", half.text());
    assert!(half.text().contains("routes/r: upstream_id"), "{}", half.text());
    let whole = ask(&mut api, json!([route, upstream]));
    assert_eq!(whole.status, 200, "{}", whole.text());
    assert_eq!(json_of(&whole)["revision"], 1, "one revision");
    let used = ask(&mut api, json!([{"delete": "upstreams/u"}]));
    assert_eq!(used.status, 400, "{}", used.text());
    let missing = ask(&mut api, json!([{"delete": "routes/none"}]));
    assert!(missing.text().contains("operations[0]: `routes/none` does not exist"), "{}", missing.text());
    let changed = ask(
        &mut api,
        json!([{"patch": "routes/r", "value": {"name": "n"}}, {"delete": "routes/r"}, {"delete": "upstreams/u"}]),
    );
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(api.get("routes")["total"], 0);
    let stale = json!({"if_revision": 1, "operations": [upstream]}).to_string();
    let refused = api.ask("PATCH", "configs", "", &stale);
    assert_eq!(refused.status, 412);
    assert!(refused.text().contains("not at the one given in `if_revision`"), "{}", refused.text());
}

#[test]
fn a_transaction_deletes_credentials_with_their_consumer_and_takes_ids_only() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("consumers/jack", r#"{"username": "jack"}"#);
    api.put("consumers/jack/credentials/c", r#"{"plugins": {"key-auth": {"key": "jacks-key"}}}"#);
    let made = json!({"put": "consumers/jack/credentials/d", "value": {"plugins": {"key-auth": {"key": "second"}}}});
    let body = json!({"operations": [made, {"delete": "consumers/jack"}]}).to_string();
    let answer = api.ask("PATCH", "configs", "", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(api.get("consumers")["total"], 0);
    assert_eq!(api.ask("GET", "consumers/jack/credentials", "", "").status, 404);
    // Later operations may make the consumer again.
    let jack = json!({"put": "consumers/jack", "value": {"username": "jack"}});
    let body = json!({"operations": [jack, {"delete": "consumers/jack"}, jack, made]}).to_string();
    assert_eq!(api.ask("PATCH", "configs", "", &body).status, 200);
    assert_eq!(api.get("consumers/jack/credentials")["total"], 1);
    for key in ["routes/a b", "routes/a/b", "routes/", "proto/x", "consumers/jack/credentials/a b"] {
        let body = json!({"operations": [{"put": key, "value": {"uri": "/a", "plugins": {}}}]}).to_string();
        let answer = api.ask("PATCH", "configs", "", &body);
        assert_eq!(answer.status, 400, "{key}: {}", answer.text());
        assert!(answer.text().contains("operations[0]"), "{}", answer.text());
    }
}

#[test]
fn invalid_requests_are_refused_and_leave_no_revision() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("consumers/p", r#"{"username": "p"}"#);
    // (method, path, additional field, body, status, part of the message)
    let table = [
        ("PATCH", "configs", "", r#"{"operations": []}"#, 400, "`operations` is empty"),
        ("PUT", "protos/p", "", r#"{"content": "message {"}"#, 400, "invalid content: line 1 column"),
        ("POST", "protos", "", r#"{"content": "message {"}"#, 400, "invalid content: line 1 column"),
        (
            "PATCH",
            "configs",
            "",
            r#"{"operations": [{"put": "protos/p", "value": {"content": "x"}}]}"#,
            400,
            "invalid content: is neither",
        ),
        ("POST", "schema/validate/protos", "", r#"{"content": "message {"}"#, 400, "invalid content: line 1 column"),
        ("POST", "configs/validate", "", r#"{"protos": [{"id": "p", "content": "x"}]}"#, 400, "validation failed"),
        ("PUT", "consumers/p", "If-None-Match: *\r\n", r#"{"username": "p"}"#, 412, "the resource exists"),
        (
            "PUT",
            "consumers/p",
            "If-Match: \"7\"\r\n",
            r#"{"username": "p"}"#,
            412,
            "`If-Match`; read the resource again",
        ),
        ("PUT", "consumers", "", r#"{"username": "a b"}"#, 400, "property \"username\" validation failed"),
    ];
    for (method, path, field, body, status, message) in table {
        let answer = api.ask(method, path, field, body);
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.text());
        let told = if answer.text().is_empty() { json!("") } else { json_of(&answer)["error_msg"].clone() };
        assert!(told.as_str().is_some_and(|told| told.contains(message)), "{method} {path} {body}: {told}");
    }
    assert_eq!(api.get("history")["revision"], 1);
}

#[test]
fn a_wrong_wait_is_told_before_anything_is_changed() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let answer = api.ask("PUT", "routes/r?wait=soon", "", &fixed("/r", "r"));
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("invalid argument wait"), "{}", answer.text());
    assert_eq!(api.get("routes")["total"], 0);
}

#[test]
fn a_warning_names_the_resource_of_a_store_also_after_a_start() {
    let text = format!("listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true }}]\n{}", file());
    let mut gateway = weir().start(&text);
    let mut api = Api::of(&gateway);
    let identity = Authority::of_tests().identity(&["a.example"]);
    let ssl = json!({"snis": ["a.example", "b.example"], "cert": identity.certificate, "key": identity.key});
    let answer = json_of(&api.put("ssls/site", &ssl.to_string()));
    let path = "ssls/site: snis[1]";
    assert_eq!((&answer["warnings"][0]["path"], &answer["warnings"][0]["key"]), (&json!(path), &json!("ssls/site")));
    let same = json!({"sni": "c.example", "cert": identity.certificate, "key": identity.key});
    api.put("ssls/other", &same.to_string());
    let listed = api.get("/weir/v1/certificates")["list"].clone();
    let names: Vec<&Value> = listed.as_array().expect("a list").iter().map(|one| &one["names"]).collect();
    assert_eq!(names, [&json!(["c.example"]), &json!(["a.example", "b.example"])], "each entry has its own names");
    assert!(gateway.status()["configuration"]["warnings"].to_string().contains(path));
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
    let store = gateway.directory().join("weir-data/store.redb");
    let again = weir().start(&format!("{text}store: {{ path: {} }}\n", store.display()));
    let warnings = again.status()["configuration"]["warnings"].to_string();
    assert!(warnings.contains(path) && !warnings.contains("ssls["), "{warnings}");
    again.wait_stderr("the warning", |line| line.contains(path));
}

#[test]
fn a_change_is_answered_with_what_is_probably_not_meant_in_it() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let route = |uri: &str| json!({"uri": uri, "plugins": {"mocking": {"response_example": "x"}}});
    let warnings = |answer: &Response| -> Vec<String> {
        let told = json_of(answer)["warnings"].as_array().cloned().unwrap_or_default();
        told.iter().map(|one| format!("{}: {}", one["path"].as_str().unwrap_or(""), one["problem"])).collect()
    };
    api.put("routes/old", &route("/a").to_string());
    for (uri, part) in [("/v/(.*)", "(.*"), ("/v9/{id}", "{id}")] {
        let expected = [format!("routes/r: uri: \"`{part}` in `{uri}` is matched as plain text\"")];
        assert_eq!(warnings(&api.put("routes/r?dry_run=true", &route(uri).to_string())), expected);
        assert_eq!(warnings(&api.put("routes/r", &route(uri).to_string())), expected);
        assert_eq!(warnings(&api.ask("PATCH", "routes/r", "", r#"{"desc": "d"}"#)), expected);
        let mut item = route(uri);
        item["id"] = "r".into();
        let body = json!({"routes": [item]}).to_string();
        assert_eq!(warnings(&api.ask("POST", "configs/validate", "", &body)), expected);
    }
    assert_eq!(warnings(&api.put("routes/old", &route("/a").to_string())), [""; 0], "only of what is changed");
    let own = json!({"plugins": {"ip-restriction": {"blacklist": ["10.0.0.1"], "message": "${NAME}"}}});
    let told = warnings(&api.put("plugin_configs/c", &own.to_string()));
    assert_eq!(told, ["plugin_configs/c: plugins.ip-restriction.message: \"`${NAME}` is plain text here\""]);
    let nodes = json!({"127.0.0.1:1": 1});
    for (key, value, expected) in [
        (
            "stream_routes/s",
            json!({"server_port": 9, "upstream": {"nodes": nodes}}),
            "stream_routes/s: server_port: \"no connection reaches this stream route: no listener with `protocol: tcp` or `udp` \
             has the port 9\"",
        ),
        (
            "upstreams/u",
            json!({"nodes": {}}),
            "upstreams/u: nodes: \"is empty: every request is answered with 503, and streams are closed\"",
        ),
        (
            "routes/t",
            json!({"uri": "/t", "timeout": {"connect": 3000, "send": 1, "read": 1}, "upstream": {"nodes": nodes}}),
            "routes/t: timeout.connect: \"`3000` is a number of seconds, 50m, and looks like one of milliseconds\"",
        ),
        (
            "consumer_groups/g",
            json!({"plugins": {"consumer-restriction": {"type": "service_id", "whitelist": ["s1"]}}}),
            "consumer_groups/g: plugins.consumer-restriction.whitelist[0]: \"there is no service `s1`\"",
        ),
    ] {
        let (value, path) = (value.to_string(), format!("{key}?dry_run=true"));
        assert_eq!(warnings(&api.put(&path, &value)), [expected]);
        assert_eq!(warnings(&api.put(key, &value)), [expected]);
    }
    // Those of one change are compared with each other.
    let body = json!({"operations": [{"put": "routes/x", "value": route("/same")}, {"put": "routes/y", "value": route("/same")}]});
    let told = warnings(&api.ask("PATCH", "configs", "", &body.to_string()));
    let expected = "routes/y: uri: \"no request with the path `/same` reaches this route: routes/x takes all of them\"";
    assert_eq!(told, [expected]);
    assert_eq!(gateway.status()["configuration"]["warnings"], json!([]), "they are told to the author");
}

#[test]
fn a_dry_run_tells_and_changes_nothing() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("routes/r", &fixed("/r", "old"));
    let answer = api.ask("PUT", "routes/r?dry_run=true", "", &fixed("/r", "new"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let change = &json_of(&answer)["changes"][0];
    assert_eq!((&change["key"], &change["action"]), (&json!("routes/r"), &json!("changed")));
    assert!(change["members"].as_array().expect("a list").iter().any(|member| member["after"] == "new"), "{change:#}");
    assert_eq!(api.ask("PUT", "routes/r?dry_run=true", "", "{\"uri\":\"x\"}").status, 400, "what would be refused is");
    assert_eq!(gateway.get("/r").text(), "old");
    assert_eq!(api.get("history")["revision"], 1);
}

#[test]
fn a_dry_run_tells_which_requests_are_handled_differently() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let node = json!({"127.0.0.1:9": 1});
    api.put("upstreams/u", &json!({"nodes": node}).to_string());
    api.put("upstreams/v", &json!({"nodes": node}).to_string());
    api.put("services/s", &json!({"upstream_id": "u", "plugins": {"cors": {}}}).to_string());
    api.put("routes/orders", &json!({"uri": "/orders/*", "service_id": "s"}).to_string());
    api.put(
        "routes/tenant",
        &json!({"uri": "/tenant", "vars": [["http_x_tenant", "==", "b"]], "upstream_id": "v"}).to_string(),
    );
    // (a change, its query, its body, what it changes for which requests)
    let query = "dry_run=true&request=GET%20http://a/orders/1&request=GET%20https://b.example/none";
    let tried = |api: &mut Api, method: &str, path: &str, body: &Value| {
        let answer = api.ask(method, &format!("{path}?{query}"), "", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        json_of(&answer)["requests"].clone()
    };
    let nothing = tried(&mut api, "PATCH", "routes/orders", &json!({"desc": "d"}));
    assert_eq!(nothing, json!({"compared": 2, "changed": [], "malformed": []}));
    let told =
        tried(&mut api, "PUT", "routes/new", &json!({"uri": "/orders/1", "upstream_id": "v", "plugins": {"cors": {}}}));
    let handled = |route: Value, plugins: &[&str], upstream: Value| json!({"route": route, "plugins": plugins, "upstream": upstream, "upstreams_of_plugins": []});
    let before = handled(json!("orders"), &["cors from service/s"], json!("upstreams/u"));
    let after = handled(json!("new"), &["cors from route/new"], json!("upstreams/v"));
    let differs = json!(["route", "plugins", "upstream"]);
    let expected = json!([{"request": "GET http://a/orders/1", "differs": differs, "before": before, "after": after}]);
    assert_eq!(told["changed"], expected);
    let told = tried(&mut api, "PATCH", "upstreams/u", &json!({"nodes": {"127.0.0.1:10": 1}}));
    assert_eq!(
        (&told["changed"][0]["differs"], told["changed"].as_array().map(Vec::len)),
        (&json!(["upstream"]), Some(1))
    );
    let told = tried(&mut api, "PATCH", "services/s", &json!({"plugins": {"cors": {"max_age": 7}}}));
    assert_eq!(told["changed"][0]["differs"], json!(["plugins"]));
    let told = tried(&mut api, "PUT", "global_rules/g", &json!({"plugins": {"request-id": {}}}));
    assert_eq!(told["changed"].as_array().map(Vec::len), Some(2), "it is for requests without a route, too: {told}");
    let told = tried(&mut api, "DELETE", "routes/orders", &Value::Null);
    assert_eq!(told["changed"][0]["after"], handled(Value::Null, &[], Value::Null));
    let told = tried(&mut api, "POST", "history/3/rollback", &Value::Null);
    assert_eq!(told["changed"][0]["differs"], json!(["route", "plugins", "upstream"]));

    // A transaction lists them in its body, with header fields and addresses.
    let requests = json!([
        {"url": "http://a/tenant", "headers": {"X-Tenant": "b"}},
        {"method": "GET", "url": "http://a/tenant", "from": "10.0.0.1"},
        "G(T http://a/",
    ]);
    let body = json!({"operations": [{"delete": "routes/tenant"}], "requests": requests});
    let answer = api.ask("PATCH", "configs?dry_run=true", "", &body.to_string());
    let told = &json_of(&answer)["requests"];
    assert_eq!((&told["compared"], told["changed"].as_array().map(Vec::len)), (&json!(3), Some(1)), "{told}");
    assert_eq!(told["malformed"][0]["request"], "G(T http://a/");
    assert_eq!(api.get("history")["revision"], 5, "nothing was changed");

    for (path, body, problem) in [
        ("configs", body.clone(), "add `dry_run=true`"),
        (
            "configs?dry_run=true",
            json!({"operations": [{"delete": "routes/tenant"}], "requests": [{"url": 7}]}),
            "requests[0]: `url` is no text",
        ),
        ("routes/tenant?dry_run=true&request=x", json!({"desc": "d"}), "invalid argument request"),
    ] {
        let answer = api.ask("PATCH", path, "", &body.to_string());
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.text().contains(problem), "{}", answer.text());
    }
}

#[test]
fn history_leads_back() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("routes/a", &fixed("/a", "first"));
    api.put("routes/b", &fixed("/b", "b"));
    api.ask("PUT", "routes/a", "X-Weir-Message: because\r\n", &fixed("/a", "second"));
    api.ask("DELETE", "routes/b", "", "");
    let of_a = api.get("history?key=routes/a");
    let list = of_a["list"].as_array().expect("a list");
    assert_eq!(list.len(), 2);
    assert_eq!(list[0]["author"]["name"], "ann");
    assert_eq!(list[0]["author"]["message"], "because");
    let since_changed = api.ask("POST", "history/2/rollback?if_revision=3", "", "");
    assert_eq!(since_changed.status, 412, "{}", since_changed.text());
    assert_eq!(gateway.get("/a").text(), "second");
    let rolled = api.ask("POST", "history/2/rollback?if_revision=4", "", "");
    assert_eq!(rolled.status, 200, "{}", rolled.text());
    assert_eq!(json_of(&rolled)["revision"], 5, "it is a revision of its own");
    assert_eq!(gateway.get("/a").text(), "first");
    assert_eq!(gateway.get("/b").text(), "b");
    assert_eq!(api.get("history/5")["author"]["message"], "rollback to revision 2");
    assert_eq!(api.ask("POST", "history/9/rollback", "", "").status, 400);
}

#[test]
fn resource_left_behind_by_a_forced_delete_is_set_aside_and_comes_back() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("upstreams/u", r#"{"nodes": {"127.0.0.1:9": 1}}"#);
    api.put("routes/r", r#"{"uri": "/r", "upstream_id": "u", "plugins": {"mocking": {"response_example": "r"}}}"#);
    api.put("routes/other", &fixed("/other", "other"));
    let answer = api.ask("DELETE", "upstreams/u?force=true", "", "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.headers.get("x-weir-set-aside").is_some_and(|keys| keys.contains("routes/r")));
    assert_eq!(gateway.get("/r").status, 503);
    assert_eq!(gateway.get("/other").text(), "other");
    assert_eq!(api.get("routes")["total"], 2, "it is kept");
    let warnings = gateway.status()["configuration"]["warnings"].to_string();
    assert!(warnings.contains("routes/r: upstream_id"), "{warnings}");
    api.put("routes/third", &fixed("/third", "third"));
    // The error of a later change is about the resource that was sent, and not about one that was set aside before.
    for (key, body, told) in [
        ("routes/z", r#"{"uri": 7, "plugins": {}}"#, "property \"uri\""),
        ("routes/z", r#"{"uri": "/z"}"#, "invalid configuration: does not say how to handle a request"),
        ("routes/z", r#"{"uri": "/z", "plugins": {"mocking": {"response_exampel": "z"}}}"#, "plugin mocking"),
        ("upstreams/z", r#"{"nodes": {"127.0.0.1:9": -1}}"#, "nodes"),
    ] {
        let answer = api.ask("PUT", key, "", body);
        assert_eq!(answer.status, 400);
        let told_of: Value = serde_json::from_str(&answer.text()).expect("JSON");
        assert!(told_of["error_msg"].as_str().is_some_and(|message| message.contains(told)), "{told_of}");
        let diagnostics = told_of["diagnostics"].as_array().expect("a list");
        assert!(
            diagnostics.iter().all(|one| one["path"].as_str().is_some_and(|path| path.starts_with(key))),
            "{told_of}"
        );
    }
    api.put("upstreams/u", r#"{"nodes": {"127.0.0.1:9": 1}}"#);
    assert_eq!(gateway.get("/r").text(), "r");
    assert_eq!(gateway.status()["configuration"]["warnings"], json!([]));
}

#[test]
fn a_patch_that_is_no_map_is_refused_and_stops_no_later_change() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("routes/r", &fixed("/r", "old"));
    for patch in ["[]", "\"text\"", "7", "null", ""] {
        let answer = api.ask("PATCH", "routes/r", "", patch);
        assert_eq!(answer.status, 400, "{patch}: {}", answer.text());
    }
    api.put("routes/r", &fixed("/r", "new"));
    assert_eq!(gateway.get("/r").text(), "new");
}

#[test]
fn a_patch_gives_no_resource_another_id() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("routes/r", &fixed("/r", "r"));
    for (path, patch) in [("routes/r", r#"{"id": "other"}"#), ("routes/r/id", "\"other\""), ("routes/r/id", "null")] {
        let answer = api.ask("PATCH", path, "", patch);
        assert_eq!(answer.status, 400, "{path} {patch}: {}", answer.text());
        assert!(answer.text().contains("wrong route id"), "{}", answer.text());
    }
    assert_eq!(api.ask("PATCH", "routes/r", "", r#"{"id": "r", "name": "n"}"#).status, 200);
    assert_eq!(api.get("routes/r")["value"]["id"], "r");
}

#[test]
fn deleting_a_part_of_a_route_does_not_delete_the_route() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let both = r#"{"uri": "/r", "plugins": {"mocking": {"response_example": "r"}, "request-id": {}}}"#;
    api.put("routes/r", both);
    for (method, path, body) in [
        ("DELETE", "routes/r/plugins/request-id", ""),
        ("PUT", "routes/r/plugins", both),
        ("DELETE", "consumers/jack/credentials/c/plugins", ""),
    ] {
        let answer = api.ask(method, path, "", body);
        assert_eq!(answer.status, 400, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains("only PATCH changes a part"), "{}", answer.text());
    }
    assert_eq!(gateway.get("/r").text(), "r");
    assert_eq!(api.ask("PATCH", "routes/r/plugins/request-id", "", "null").status, 200);
    assert_eq!(gateway.get("/r").headers.get("x-request-id"), None);
}

#[test]
fn a_transaction_gives_no_consumer_the_name_of_another() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("consumers/jack", r#"{"username": "jack", "plugins": {"key-auth": {"key": "the key of jack"}}}"#);
    for operation in [
        json!({"put": "consumers/jack", "value": {"username": "rose"}}),
        json!({"patch": "consumers/jack", "value": {"username": "rose"}}),
        json!({"put": "consumers/rose", "value": {"username": "jack"}}),
    ] {
        let answer = api.ask("PATCH", "configs", "", &json!({"operations": [operation]}).to_string());
        assert_eq!(answer.status, 400, "{operation}: {}", answer.text());
        assert!(answer.text().contains("operations[0]: wrong username"), "{}", answer.text());
    }
    assert_eq!(api.get("consumers/jack")["value"]["username"], "jack");
    assert_eq!(api.get("consumers")["total"], 1);
}

#[test]
fn a_key_that_another_consumer_has_is_told_with_the_name_of_that_consumer() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let key = |name: &str| json!({"plugins": {"key-auth": {"key": name}}});
    let consumer = |name: &str, key: Value| {
        let mut consumer = key;
        consumer["username"] = name.into();
        consumer.to_string()
    };
    api.put("consumers/ann", &consumer("ann", json!({})));
    api.put("consumers/jack", &consumer("jack", key("the key of jack")));
    api.put("consumers/jack/credentials/second", &key("another key of jack").to_string());
    for (taken, owner) in [
        ("the key of jack", "the consumer `jack`"),
        ("another key of jack", "the credential `second` of the consumer `jack`"),
    ] {
        let answer = api.ask("PUT", "consumers/rose", "", &consumer("rose", key(taken)));
        assert_eq!(answer.status, 400);
        let told = answer.text();
        assert!(told.contains(&format!("has the same key as {owner}; ")) && !told.contains(taken), "{told}");
    }
}

#[test]
fn a_secrets_manager_is_validated_without_an_id() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let vault = r#"{"uri": "http://127.0.0.1:8200", "prefix": "kv/apisix", "token": "t"}"#;
    let answer = api.ask("POST", "schema/validate/secrets", "", vault);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = api.ask("POST", "schema/validate/secrets", "", r#"{"uri": "http://127.0.0.1:8200", "prefix": "kv"}"#);
    assert!(answer.status == 400 && answer.text().contains("token"), "{}", answer.text());
}

#[test]
fn resources_name_no_files_unless_the_node_allows_it() {
    let ssl = |name: &str| json!({"sni": "a.example", "cert": name, "key": name}).to_string();
    let listed = |name: &str| json!({"nodes_file": name}).to_string();
    let weir = || weir().file("nodes/there.yaml", "{ \"127.0.0.1:9\": 1 }\n").file("secret.yaml", "{}\n");
    for (allows, yaml) in [(false, file()), (true, format!("resource_files: [ nodes ]\n{}", file()))] {
        let gateway = weir().start(&yaml);
        let mut api = Api::of(&gateway);
        let mut answers = Vec::new();
        for name in ["secret.yaml", "none.yaml", "nodes/../secret.yaml", "nodes/../none.yaml"] {
            for (key, body) in [("ssls/1", ssl(name)), ("upstreams/1", listed(name))] {
                let answer = api.ask("PUT", key, "", &body);
                assert_eq!(answer.status, 400, "{}", answer.text());
                let told = answer.text();
                let is_told = told.contains("may not be named by a resource of the store");
                assert!(is_told && told.contains("`resource_files`"), "{told}");
                answers.push(told.replace(name, "NAME"));
            }
        }
        answers.sort();
        answers.dedup();
        // A name with `..` is told so.
        assert_eq!(answers.len(), 4, "a file that exists and one that does not have the same answer: {answers:#?}");
        let answer = api.ask("PUT", "upstreams/there", "", &listed("nodes/there.yaml"));
        assert_eq!(answer.status, if allows { 201 } else { 400 }, "{}", answer.text());
    }
}

#[test]
fn protos_are_served_and_stay_while_a_plugin_uses_them() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let proto = |method: &str| {
        let text = format!("service S {{ rpc {method} (A) returns (A); }} message A {{}}");
        json!({ "content": text }).to_string()
    };
    let route = json!({
        "uri": "/a",
        "plugins": { "grpc-transcode": { "proto_id": "p", "service": "S", "method": "One" } },
        "upstream": { "scheme": "grpc", "nodes": { "127.0.0.1:1": 1 } },
    });
    let missing = api.ask("PUT", "routes/r", "", &route.to_string());
    assert!(missing.status == 400 && missing.text().contains("`protos` has no `p`"), "{}", missing.text());
    api.put("protos/p", &proto("One"));
    api.put("routes/r", &route.to_string());
    assert_eq!(gateway.get("/a").status, 502, "there is no service");
    let deleted = api.ask("DELETE", "protos/p", "", "");
    assert_eq!(deleted.status, 400);
    let told = "can not delete this proto, route [r] is still using it now";
    assert!(deleted.text().contains(told), "{}", deleted.text());
    // A change of the definitions concerns the plugins that use them.
    let changed = api.ask("PUT", "protos/p", "", &proto("Other"));
    assert!(changed.status == 400 && changed.text().contains("`S` has no method `One`"), "{}", changed.text());
    api.put("protos/p", &proto("One").replace("message A", "message B {} message A"));
    assert_eq!(api.ask("PATCH", "protos/p", "", "{}").status, 405);
    assert_eq!(api.ask("DELETE", "routes/r", "", "").status, 200);
    assert_eq!(api.ask("DELETE", "protos/p", "", "").status, 200);
}
