//! The Admin API over resources that stand in files: everything is shown, with its place, and nothing is changed.

use serde_json::json;
use weir_testkit::{DEADLINE, Gateway, eventually_some};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file, json as parsed};
use crate::sessions::log_in;
use crate::weir;

const RESOURCES: &str = "include: more.yaml
routes:
- id: orders
  uri: /orders
  upstream_id: u1
- uri: /nameless
  plugins: { key-auth: {} }
upstreams:
- { id: u1, nodes: { \"127.0.0.1:1\": 1 } }
consumers:
- username: jack
  plugins: { key-auth: { key: s3cret-of-jack } }
global_rules:
- id: g1
  plugins: { request-id: {} }
";

const MORE: &str = "# routes of another team
routes:
  - id: included
    uri: /included
    upstream_id: u1
";

fn settings() -> String {
    format!("{}{RESOURCES}", file().replacen("admin:\n", "admin:\n  store: file\n", 1))
}

fn start() -> Gateway {
    weir().file("more.yaml", MORE).start(&settings())
}

/// The line of a text in the main file, from 1.
#[track_caller]
fn line_of(gateway: &Gateway, text: &str) -> usize {
    let file = std::fs::read_to_string(gateway.file()).expect("the configuration");
    file.lines().position(|line| line.contains(text)).expect("it is there") + 1
}

#[test]
fn resources_of_files_are_shown_with_their_places() {
    let gateway = start();
    let mut api = Api::of(&gateway);
    let list = api.get("routes");
    assert_eq!(list["total"], 3, "{list:#}");
    let keys: Vec<&str> =
        list["list"].as_array().expect("a list").iter().filter_map(|one| one["key"].as_str()).collect();
    assert_eq!(keys, ["/apisix/routes/arr_2", "/apisix/routes/included", "/apisix/routes/orders"]);
    let orders = api.get("routes/orders");
    assert_eq!(orders["value"], json!({ "id": "orders", "uri": "/orders", "upstream_id": "u1" }));
    assert_eq!((&orders["line"], &orders["column"]), (&json!(line_of(&gateway, "id: orders")), &json!(3)));
    assert!(orders["source"].as_str().is_some_and(|source| source.ends_with(".yaml")), "{orders}");
    let included = api.get("routes/included");
    assert_eq!((&included["line"], &included["column"]), (&json!(3), &json!(5)));
    assert!(included["source"].as_str().is_some_and(|source| source.ends_with("more.yaml")), "{included}");
    for (path, id) in [("upstreams", "u1"), ("consumers", "jack"), ("global_rules", "g1")] {
        assert!(api.get(&format!("{path}/{id}"))["line"].is_u64(), "{path}");
    }
    assert_eq!(api.get("consumers/jack")["value"]["plugins"]["key-auth"]["key"], "s3cret-of-jack");
    let seen = Api::with_key(admin_addr(&gateway), VIEWER).get("consumers");
    assert!(!seen.to_string().contains("s3cret"), "{seen}");
    assert_eq!(log_in(admin_addr(&gateway), EDITOR).told["mode"], "file");
    assert_eq!(log_in(admin_addr(&gateway), EDITOR).told["can_write"], false);
    assert_eq!(gateway.get("/nameless").status, 401, "the file is served as ever");
}

/// A viewer sees where a variable of the environment is used, and never its value.
#[test]
fn a_viewer_sees_no_value_of_a_variable() {
    let route = "- id: ${{ROUTE_ID}}
  uri: /of-variables
  desc: in ${{SECRET}}
  upstream_id: u1
  plugins:
    proxy-rewrite:
      headers: { set: { X-Plain: plain, X-Mark: \"<${{SECRET}}>\", X-Default: ${{NONE:=s3cret-default}} } }
    response-rewrite: ${{OPTIONS}}
";
    let own = RESOURCES.replacen("- id: orders", &format!("{route}- id: orders"), 1);
    let gateway = weir()
        .env("ROUTE_ID", "r-1")
        .env("SECRET", "s3cret-of-node")
        .env("OPTIONS", "{ headers: { set: { X-A: s3cret-too } } }")
        .file("more.yaml", &MORE.replace("uri: /included", "uri: /included\n    desc: ${{SECRET}}"))
        .start(&settings().replace(RESOURCES, &own));
    let mut viewer = Api::with_key(admin_addr(&gateway), VIEWER);
    let seen = viewer.get("routes/r-1");
    let set = &seen["value"]["plugins"]["proxy-rewrite"]["headers"]["set"];
    assert_eq!(*set, json!({ "X-Plain": "plain", "X-Mark": "***", "X-Default": "***" }), "{seen:#}");
    assert_eq!(seen["value"]["plugins"]["response-rewrite"], json!({ "headers": { "set": { "X-A": "***" } } }));
    assert_eq!((&seen["value"]["id"], &seen["value"]["uri"]), (&json!("r-1"), &json!("/of-variables")));
    assert_eq!(viewer.get("routes/included")["value"]["desc"], "***");
    for path in ["routes", "routes/r-1", "/weir/v1/table/routes"] {
        let told = viewer.ask("GET", path, "", "");
        assert!(!told.text().contains("s3cret"), "{path}: {}", told.text());
    }
    let admin = Api::of(&gateway).get("routes/r-1");
    assert_eq!(admin["value"]["desc"], "in s3cret-of-node");
}

#[test]
fn changes_of_files_are_refused_with_the_place() {
    let gateway = start();
    let route = r#"{"uri": "/r", "plugins": {}}"#;
    for (method, path, body) in [
        ("PUT", "routes/orders", route),
        ("DELETE", "routes/orders", ""),
        ("PATCH", "routes/orders", r#"{"uri": "/x"}"#),
        ("PUT", "routes/new", route),
        ("POST", "routes", route),
        ("PATCH", "configs", r#"{"operations": []}"#),
        ("POST", "history/1/rollback", ""),
        ("DELETE", "consumers/jack", ""),
    ] {
        for key in [ADMIN, EDITOR] {
            let answer = Api::with_key(admin_addr(&gateway), key).ask(method, path, "", body);
            assert_eq!(answer.status, 409, "{method} {path}: {}", answer.text());
            let told = parsed(&answer);
            if path == "routes/orders" {
                let line = line_of(&gateway, "id: orders");
                assert_eq!((&told["key"], &told["line"]), (&json!("routes/orders"), &json!(line)));
                let text = told["error_msg"].as_str().unwrap_or_default();
                assert!(
                    text.starts_with("routes/orders stands in ") && text.contains(&format!(":{line}:3; ")),
                    "{text}"
                );
            } else if path != "consumers/jack" {
                assert!(told["error_msg"].as_str().is_some_and(|text| text.contains("stand in files")), "{told}");
            }
        }
        assert_eq!(Api::with_key(admin_addr(&gateway), VIEWER).ask(method, path, "", body).status, 401);
    }
    assert_eq!(Api::of(&gateway).get("routes")["total"], 3);
}

#[test]
fn changes_of_files_can_be_tried() {
    let gateway = start();
    let mut api = Api::of(&gateway);
    let tried = api.ask(
        "PUT",
        "routes/new?dry_run=true&request=GET%20http://a/new",
        "",
        r#"{"uri": "/new", "upstream_id": "u1"}"#,
    );
    assert_eq!(tried.status, 200, "{}", tried.text());
    let told = parsed(&tried);
    assert_eq!((&told["dry_run"], &told["changes"][0]["key"]), (&json!(true), &json!("routes/new")), "{told:#}");
    assert_eq!(told["requests"]["changed"][0]["after"]["route"], "new", "{told:#}");
    let wrong = api.ask("PUT", "routes/orders?dry_run=true", "", r#"{"uri": "/orders", "upstream_id": "none"}"#);
    assert_eq!(wrong.status, 400, "{}", wrong.text());
    let deleted = api.ask("DELETE", "upstreams/u1?dry_run=true", "", "");
    assert!(deleted.status == 400 && deleted.text().contains("is still using it"), "{}", deleted.text());
    // What the file does not use, a trial cannot find out.
    let probing = r#"{"uri": "/p", "plugins": {"response-rewrite": {"body": "$env://PATH"}}}"#;
    let probed = api.ask("PUT", "routes/p?dry_run=true", "", probing);
    assert!(probed.status == 400 && probed.text().contains("may not be read"), "{}", probed.text());
    assert_eq!(api.get("routes")["total"], 3);
}

/// What the file names itself is allowed in a trial, however it is written.
#[test]
fn a_file_that_is_named_by_its_parent_directory_refuses_no_trial() {
    let gateway = weir().file("more.yaml", MORE).file("users.yaml", "{ \"127.0.0.1:1\": 1 }\n").start(&settings());
    let folder = gateway.file().parent().and_then(|folder| folder.file_name()).expect("its directory").to_owned();
    let folder = folder.to_str().expect("a name of ours");
    let log = format!("../{folder}/a.log");
    gateway.rewrite(&settings().replace(
        "- id: orders\n  uri: /orders\n",
        &format!(
            "- id: of-file\n  uri: /of-file\n  upstream: {{ nodes_file: \"../{folder}/users.yaml\" }}\n  plugins: {{ \
             file-logger: {{ path: \"{log}\" }} }}\n- id: orders\n  uri: /orders\n"
        ),
    ));
    let mut api = Api::of(&gateway);
    let is_there = |api: &mut Api| api.ask("GET", "routes/of-file", "", "").status == 200;
    eventually_some("the new route", DEADLINE, || is_there(&mut api).then_some(()));
    let tried = api.ask("PUT", "routes/new?dry_run=true", "", r#"{"uri": "/new", "upstream_id": "u1"}"#);
    assert_eq!(tried.status, 200, "{}", tried.text());
    let other = format!(r#"{{"uri": "/new", "upstream": {{"nodes_file": "../{folder}/more.yaml"}}}}"#);
    let other = api.ask("PUT", "routes/new?dry_run=true", "", &other);
    assert!(other.status == 400 && other.text().contains("may not be named"), "{}", other.text());
}

#[test]
fn the_api_shows_the_file_as_it_is_now() {
    let gateway = start();
    let mut api = Api::of(&gateway);
    let before = api.get("routes/included")["modifiedIndex"].as_u64();
    gateway.rewrite(&settings().replace("- id: orders\n  uri: /orders\n", "# moved\n- id: orders\n  uri: /orders-2\n"));
    let orders = eventually_some("the new route", DEADLINE, || {
        let orders = api.get("routes/orders");
        (orders["value"]["uri"] == "/orders-2").then_some(orders)
    });
    assert_eq!(orders["line"], line_of(&gateway, "id: orders"));
    assert!(orders["modifiedIndex"].as_u64() > orders["createdIndex"].as_u64(), "{orders}");
    assert_eq!(api.get("routes/included")["modifiedIndex"].as_u64(), before, "it was not changed");
    gateway.rewrite(&settings().replace("- uri: /nameless\n", "- id: named\n  uri: /nameless\n"));
    eventually_some("another id", DEADLINE, || {
        (api.ask("GET", "routes/arr_2", "", "").status == 404 && api.ask("GET", "routes/named", "", "").status == 200)
            .then_some(())
    });
}

#[test]
fn settings_say_where_resources_are_only_once() {
    let mut refused = weir().spawn("admin: { listen: \"127.0.0.1:0\", store: file }\nstore: embedded\n");
    assert_eq!(refused.wait_exit(DEADLINE).code(), Some(1));
    assert!(refused.stderr().contains("is a second place for resources"), "{}", refused.stderr());
}
