//! What the console's lists, histories and explanations are made of.

use serde_json::{Map, Value, json};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file, json as parsed};
use crate::sessions::log_in;
use crate::weir;

/// The rows of a table, by the names of its columns.
fn rows(table: &Value) -> Vec<Map<String, Value>> {
    let columns: Vec<&str> = table["columns"].as_array().expect("columns").iter().filter_map(Value::as_str).collect();
    let row = |row: &Value| {
        let cells = row.as_array().expect("a row").clone();
        assert_eq!(cells.len(), columns.len(), "{table}");
        columns.iter().map(|name| (*name).to_owned()).zip(cells).collect()
    };
    table["rows"].as_array().expect("rows").iter().map(row).collect()
}

fn ids(table: &Value) -> Vec<String> {
    rows(table).iter().filter_map(|row| row["id"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_table_has_the_columns_of_its_list_and_no_more() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("upstreams/u1", r#"{"nodes": {"127.0.0.1:1": 1, "127.0.0.1:2": 1}, "type": "roundrobin"}"#);
    api.put("services/s1", r#"{"upstream_id": "u1", "hosts": ["a.example"]}"#);
    api.put("routes/r1", r#"{"name": "one", "uri": "/one", "methods": ["GET"], "service_id": "s1", "priority": 3, "labels": {"team": "a"}, "plugins": {"cors": {}, "request-id": {}}}"#);
    api.put("consumers/jack", r#"{"username": "jack", "plugins": {"key-auth": {"key": "s3cret-of-jack"}}}"#);
    api.put("consumers/jack/credentials/c1", r#"{"plugins": {"key-auth": {"key": "s3cret-of-c1"}}}"#);
    let routes = api.get("/weir/v1/table/routes");
    assert_eq!((&routes["kind"], &routes["total"], &routes["since"]), (&json!("routes"), &json!(1), &Value::Null));
    assert_eq!(routes["revision"], 5);
    let row = &rows(&routes)[0];
    for (column, expected) in [
        ("id", json!("r1")),
        ("name", json!("one")),
        ("uris", json!(["/one"])),
        ("hosts", Value::Null),
        ("methods", json!(["GET"])),
        ("priority", json!(3)),
        ("labels", json!({ "team": "a" })),
        ("plugins", json!(["cors", "request-id"])),
        ("target", json!("services/s1")),
        ("modified", json!(3)),
        ("source", Value::Null),
    ] {
        assert_eq!(row[column], expected, "{column}");
    }
    assert!(row["updated"].is_u64(), "{row:?}");
    assert_eq!(rows(&api.get("/weir/v1/table/upstreams"))[0]["nodes"], 2);
    assert_eq!(rows(&api.get("/weir/v1/table/services"))[0]["target"], "upstreams/u1");
    let consumers = api.get("/weir/v1/table/consumers");
    assert_eq!((ids(&consumers), &rows(&consumers)[0]["credentials"]), (vec!["jack".to_owned()], &json!(1)));
    assert!(!consumers.to_string().contains("s3cret"), "{consumers}");
    for list in ["ssls", "plugin_configs", "global_rules", "consumer_groups", "plugin_metadata", "secrets"] {
        assert_eq!(api.get(&format!("/weir/v1/table/{list}"))["total"], 0, "{list}");
    }
    assert_eq!(api.ask("GET", "/weir/v1/table/protos", "", "").status, 404);
    assert_eq!(api.ask("GET", "/weir/v1/table/routes?since=x", "", "").status, 400);
    assert_eq!(ids(&log_in(admin_addr(&gateway), VIEWER).get("/weir/v1/table/routes")), ["r1"]);
}

#[test]
fn a_table_since_a_revision_has_what_has_changed_and_what_has_gone() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let put = |api: &mut Api, id: &str| drop(api.put(&format!("routes/{id}"), r#"{"uri": "/a", "plugins": {}}"#));
    ["a", "b", "c"].iter().for_each(|id| put(&mut api, id));
    let since = |api: &mut Api, revision: u64| api.get(&format!("/weir/v1/table/routes?since={revision}"));
    let nothing = since(&mut api, 3);
    assert_eq!((&nothing["since"], &nothing["total"], ids(&nothing).len()), (&json!(3), &json!(3), 0));
    put(&mut api, "b");
    assert_eq!(api.ask("DELETE", "routes/c", "", "").status, 200);
    let later = since(&mut api, 3);
    assert_eq!((ids(&later), &later["removed"], &later["total"]), (vec!["b".to_owned()], &json!(["c"]), &json!(2)));
    put(&mut api, "c");
    let again = since(&mut api, 3);
    assert_eq!((ids(&again), &again["removed"]), (vec!["b".to_owned(), "c".to_owned()], &json!([])));
    let future = since(&mut api, 1_000);
    assert_eq!((&future["since"], ids(&future).len()), (&Value::Null, 3), "of another store, probably");
    let other = api.get("/weir/v1/table/services?since=3");
    assert_eq!((&other["since"], &other["removed"]), (&json!(3), &json!([])), "it has gone from another list");
}

#[test]
fn the_history_of_a_resource_has_its_own_changes_alone() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let operations: Vec<Value> = (0..120)
        .map(|number| json!({ "put": format!("routes/r{number}"), "value": { "uri": format!("/{number}"), "plugins": {} } }))
        .collect();
    let answer = api.ask("PATCH", "configs", "", &json!({ "operations": operations }).to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    api.put("routes/r7", r#"{"uri": "/seven", "plugins": {}}"#);
    let own = api.get("history?key=routes/r7&only=true");
    let changes: Vec<&Value> = own["list"]
        .as_array()
        .expect("a list")
        .iter()
        .flat_map(|one| one["changes"].as_array().expect("changes"))
        .collect();
    assert_eq!(changes.len(), 2, "{own}");
    assert!(changes.iter().all(|change| change["key"] == "routes/r7" && change["members"].is_array()));
    let brief = api.get("history?brief=true");
    assert_eq!(brief["list"][0]["changes"], json!([{ "key": "routes/r7", "action": "changed" }]));
    assert_eq!(
        (brief["list"][1]["changes"].as_array().map(Vec::len), &brief["list"][1]["more"]),
        (Some(100), &json!(20))
    );
    assert_eq!(api.get("history?key=routes/r7")["list"][1]["changes"].as_array().map(Vec::len), Some(120), "as before");
    let was = api.get("history/1?value=routes/r7");
    assert_eq!((&was["key"], &was["value"]["uri"]), (&json!("routes/r7"), &json!("/7")));
    assert_eq!(api.ask("GET", "history/2?value=routes/r8", "", "").status, 404, "revision 2 did not change it");
}

#[test]
fn an_explanation_says_who_takes_a_request_and_what_runs() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    api.put("upstreams/u1", r#"{"nodes": {"127.0.0.1:1": 1}}"#);
    api.put("plugin_configs/p1", r#"{"plugins": {"limit-count": {"count": 1, "time_window": 1}, "cors": {}}}"#);
    api.put("global_rules/g1", r#"{"plugins": {"request-id": {}}}"#);
    api.put("routes/any", r#"{"uri": "/*", "upstream_id": "u1"}"#);
    api.put("routes/orders", r#"{"uri": "/orders/*", "upstream_id": "u1", "plugin_config_id": "p1", "plugins": {"key-auth": {}, "cors": {"_meta": {"disable": true}}}}"#);
    api.put("routes/post", r#"{"uri": "/orders/*", "methods": ["POST"], "plugins": {}, "upstream_id": "u1"}"#);
    let mut viewer = log_in(admin_addr(&gateway), VIEWER);
    let answer = viewer.ask("POST", "/weir/v1/explain", "", r#"{"url": "https://shop.example/orders/1"}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let told = parsed(&answer);
    assert_eq!(
        (&told["route"], &told["upstream"], &told["status"]),
        (&json!("orders"), &json!("upstreams/u1"), &Value::Null)
    );
    assert_eq!(told["revision"].as_u64(), gateway.revision());
    let verdicts: Vec<(&str, &str)> = told["candidates"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (one["route"].as_str().unwrap_or_default(), one["verdict"].as_str().unwrap_or_default()))
        .collect();
    assert!(verdicts.contains(&("orders", "chosen")) && verdicts.contains(&("post", "method")), "{told:#}");
    assert!(verdicts.contains(&("any", "outranked_path")), "{told:#}");
    let plugin = |name: &str| {
        let all = told["plugins"].as_array().expect("a list");
        all.iter().find(|plugin| plugin["name"] == name).unwrap_or_else(|| panic!("{name}: {told:#}"))
    };
    assert_eq!(
        (&plugin("request-id")["source"], &plugin("request-id")["reach"]),
        (&json!("global_rule/g1"), &json!("global"))
    );
    assert_eq!(
        (&plugin("cors")["source"], &plugin("cors")["off"]),
        (&json!("route/orders"), &json!(true)),
        "the nearest counts"
    );
    assert_eq!(plugin("limit-count")["source"], "plugin_config/p1");
    assert_eq!((&plugin("key-auth")["identifies"], &told["knows_consumers"]), (&json!(true), &json!(true)));
    let none = viewer.ask("POST", "/weir/v1/explain", "", r#""PUT http://a/x y""#);
    assert_eq!(none.status, 400, "{}", none.text());
    api.ask("DELETE", "routes/any", "", "");
    let none = parsed(&viewer.ask("POST", "/weir/v1/explain", "", r#""GET http://a/none""#));
    assert_eq!((&none["route"], &none["status"], &none["candidates"]), (&Value::Null, &json!(404), &json!([])));
}

#[test]
fn explanations_in_file_mode_are_those_of_the_running_file() {
    let routes = "routes:\n- { id: a, uri: /a, plugins: { cors: {} }, upstream: { nodes: { \"127.0.0.1:1\": 1 } } }\n";
    let gateway = weir().start(&format!("{}{routes}", file().replacen("admin:\n", "admin:\n  store: file\n", 1)));
    let mut api = Api::of(&gateway);
    let told = parsed(&api.ask("POST", "/weir/v1/explain", "", r#""GET http://h/a""#));
    assert_eq!(
        (&told["route"], &told["upstream"], &told["plugins"][0]["name"]),
        (&json!("a"), &json!("routes/a"), &json!("cors"))
    );
    let table = api.get("/weir/v1/table/routes");
    assert!(rows(&table)[0]["line"].as_u64().is_some_and(|line| line > 1), "{table}");
}

#[test]
fn plugins_come_with_examples_that_their_schemas_and_the_node_accept() {
    let gateway = weir().start(&file());
    let mut api = Api::with_key(admin_addr(&gateway), ADMIN);
    let all = api.get("plugins?all=true");
    let all = all.as_object().expect("a map");
    assert!(all.len() > 50);
    for (name, told) in all {
        let example = &told["schema"]["examples"][0];
        assert!(example.is_object(), "{name}: {example}");
    }
    assert_eq!(all["key-auth"]["schema"]["examples"], json!([{ "header": "X-Api-Key" }]));
    assert_eq!(all["key-auth"]["consumer_schema"]["properties"]["key"]["writeOnly"], true);
    assert_eq!(all["limit-count"]["schema"]["properties"]["redis_password"]["writeOnly"], true);
    assert_eq!(all["limit-count"]["schema"]["properties"]["key"].get("writeOnly"), None);
    let wrong = r#"{"uri": "/a", "plugins": {"proxy-rewrite": {"headers": {"set": {"x.y": []}}}}}"#;
    let told = parsed(&api.ask("PUT", "routes/r1", "", wrong));
    let fault = &told["diagnostics"][0];
    assert_eq!(fault["key"], "routes/r1", "{told}");
    assert!(
        fault["pointer"].as_str().is_some_and(|pointer| pointer.starts_with("/plugins/proxy-rewrite/headers")),
        "{told}"
    );
}

#[test]
fn a_request_is_sent_for_real_and_its_way_is_shown() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let big = "x".repeat(70_000);
    let mocking = |id: &str, text: &str| {
        json!({ "uri": format!("/{id}"), "hosts": ["shop.example"], "plugins": { "mocking": { "response_example": text } } }).to_string()
    };
    api.put("routes/small", &mocking("small", "hello"));
    api.put("routes/big", &mocking("big", &big));
    let traced = parsed(&api.ask("POST", "/weir/v1/trace", "", r#""GET http://shop.example/small?a=b""#));
    assert_eq!(
        (&traced["status"], &traced["body"], &traced["truncated"]),
        (&json!(200), &json!("hello"), &json!(false)),
        "{traced:#}"
    );
    assert_eq!(
        (&traced["exchange"]["route_id"], &traced["exchange"]["host"]),
        (&json!("small"), &json!("shop.example")),
        "{traced:#}"
    );
    let plugins = traced["exchange"]["plugins"].as_array().expect("a list");
    assert!(plugins.iter().any(|plugin| plugin["name"] == "mocking"), "{traced:#}");
    let traced = parsed(&api.ask(
        "POST",
        "/weir/v1/trace",
        "",
        r#"{"url": "http://127.0.0.1/big", "headers": {"Host": "shop.example"}, "method": "POST", "body": "b"}"#,
    ));
    assert_eq!((traced["body"].as_str().map(str::len), &traced["truncated"]), (Some(64 << 10), &json!(true)));
    let none = parsed(&api.ask("POST", "/weir/v1/trace", "", r#""GET http://other.example/""#));
    assert_eq!((&none["status"], &none["exchange"]["status"]), (&json!(404), &json!(404)), "{none:#}");
    for wrong in [
        r#""GET https://shop.example/""#,
        r#""GET http://a b/""#,
        r#"{"url": "http://a/", "body": 7}"#,
        r#"{"url": "http://a/", "headers": {"a b": "c"}}"#,
        r#"{"url": "http://a/", "headers": {"x-weir-TRACE": "c"}}"#,
    ] {
        assert_eq!(api.ask("POST", "/weir/v1/trace", "", wrong).status, 400, "{wrong}");
    }
    let asked = r#""GET http://shop.example/small""#;
    assert_eq!(log_in(admin_addr(&gateway), VIEWER).ask("POST", "/weir/v1/trace", "", asked).status, 403);
    assert_eq!(Api::with_key(admin_addr(&gateway), EDITOR).ask("POST", "/weir/v1/trace", "", asked).status, 200);
    let of_file = weir().start(&file().replacen("admin:\n", "admin:\n  store: file\n", 1));
    assert_eq!(
        Api::with_key(admin_addr(&of_file), EDITOR).ask("POST", "/weir/v1/trace", "", asked).status,
        403,
        "routes are not its own"
    );
    assert_eq!(Api::of(&of_file).ask("POST", "/weir/v1/trace", "", asked).status, 200);
}
