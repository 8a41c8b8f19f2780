//! `weir store import` into etcd, whose transactions are limited.

use std::process::{Command, Output};

use serde_json::{Value, json};
use weir_testkit::{DEADLINE, Signal, TempDir};

use super::{Etcd, mocking, serves};
use crate::api::{ADMIN, admin_addr};
use crate::weir;

fn import(node: &str, lists: &Value, directory: &TempDir) -> Output {
    let lists = directory.write("lists.json", lists.to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["store", "import", node]).arg(lists).output().expect("it was built")
}

/// Routes `/r0` and so on with texts of this size.
fn routes(count: usize, bytes: usize) -> Vec<Value> {
    let route = |number: usize| {
        let plugins = json!({"mocking": {"response_example": format!("{number:0bytes$}")}});
        json!({"id": format!("r{number}"), "uri": format!("/r{number}"), "plugins": plugins})
    };
    (0..count).map(route).collect()
}

#[test]
fn an_export_names_what_cannot_be_imported_and_the_rest_can_be() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let files = directory.path().display();
    let node = format!("{}resource_files: [{files}]\n", etcd.node(&directory));
    let node = directory.write("node.yaml", node).display().to_string();
    let lacking = json!({
        "uri": "/f",
        "upstream": {"nodes": {"127.0.0.1:1": 1}, "scheme": "https", "tls": {"ca": format!("{files}/no-such.pem")}},
    })
    .to_string();
    let good = mocking("good");
    for (key, value) in [
        ("routes/good", &*good),
        ("routes/text", "{\"uri\": "),
        ("routes/option", r#"{"uri": "/o", "plugins": {"limit-count": {"count": "x"}}}"#),
        ("upstreams/u", r#"{"nodes": {"127.0.0.1:1": 1}, "type": "none-of-this-name"}"#),
        ("routes/refers", r#"{"uri": "/s", "upstream_id": "u"}"#),
        ("routes/file", &*lacking),
    ] {
        etcd.ctl(&["put", &format!("/apisix/{key}"), value]);
    }
    let file = directory.path().join("export.json");
    let mut export = Command::new(env!("CARGO_BIN_EXE_weir"));
    let export = export.args(["store", "export", &node, "--output"]).arg(&file).output().expect("it was built");
    let told = String::from_utf8_lossy(&export.stderr);
    assert_eq!(export.status.code(), Some(1), "{told}");
    for key in ["routes/text: the value in the store is not JSON", "routes/option", "upstreams/u", "routes/refers"] {
        assert!(told.contains(key), "{key}: {told}");
    }
    assert!(told.contains("warning: ") && told.contains("no-such.pem"), "{told}");
    assert!(told.contains("4 resources are not in the export"), "{told}");
    let exported: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    let ids: Vec<&Value> = exported["routes"].as_array().expect("a list").iter().map(|route| &route["id"]).collect();
    assert_eq!(ids, ["file", "good"], "{told}");
    // The readable ones are shown by a running node, too.
    let mut gateway = weir().start(&std::fs::read_to_string(&node).expect("a file"));
    let server = format!("http://{}", admin_addr(&gateway));
    let mut get = Command::new(env!("CARGO_BIN_EXE_weir"));
    let get = get.args(["get", "routes", "-o", "yaml"]).env("WEIR_ADMIN", server).env("WEIR_ADMIN_KEY", ADMIN);
    let shown = get.output().expect("it was built");
    let (list, told) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(list.contains("uri: /r") && list.contains("uri: /f"), "{list} {told}");
    assert!(told.contains("routes/text: the value in the store is not JSON"), "{told}");
    assert_eq!(shown.status.code(), Some(5), "{told}");
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
    let mut exported = exported;
    exported["routes"].as_array_mut().expect("a list").retain(|route| route["id"] == "good");
    let imported = import(&node, &exported, &directory);
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
}

/// The revisions at which these keys were written last.
fn revisions(etcd: &Etcd, keys: &str) -> Vec<u64> {
    let found = etcd.ctl(&["get", "--prefix", keys, "--write-out=json"]);
    let found: Value = serde_json::from_str(&found).expect("JSON");
    let all = found["kvs"].as_array().expect("a list").iter();
    all.map(|one| one["mod_revision"].as_u64().expect("a number")).collect()
}

#[test]
fn an_import_writes_what_routes_refer_to_before_the_routes() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let node = directory.write("node.yaml", etcd.node(&directory)).display().to_string();
    let route = |number: usize| json!({"id": number, "uri": format!("/r{number}"), "upstream_id": "u"});
    let routes: Vec<Value> = (0..150).map(route).collect();
    let upstream = json!([{"id": "u", "nodes": {"127.0.0.1:1": 1}}]);
    let imported = import(&node, &json!({"routes": routes, "upstreams": upstream}), &directory);
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let (upstream, routes) = (revisions(&etcd, "/apisix/upstreams/"), revisions(&etcd, "/apisix/routes/"));
    assert_eq!((upstream.len(), routes.len()), (1, 150));
    assert!(routes.iter().min() < routes.iter().max(), "several transactions: {routes:?}");
    assert!(upstream.iter().max() <= routes.iter().min(), "{upstream:?} {routes:?}");
}

#[test]
fn an_import_is_split_by_size_and_writes_nothing_if_a_resource_is_too_large() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directory = TempDir::new();
    let node = directory.write("node.yaml", etcd.node(&directory)).display().to_string();
    etcd.ctl(&["put", "/apisix/routes/before", &mocking("before").replace("/r", "/before")]);

    let configs = json!([{"id": "large", "plugins": {"mocking": {"response_example": "x".repeat(1_000_000)}}}]);
    let refused = import(&node, &json!({"routes": routes(10, 100), "plugin_configs": configs}), &directory);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("plugin_configs/large: etcd accepts 1572864 bytes"), "{told}");
    let left = etcd.ctl(&["get", "--prefix", "--keys-only", "/apisix/routes/"]);
    assert_eq!(left.trim(), "/apisix/routes/before", "nothing was written, and nothing deleted");

    let imported = import(&node, &json!({"routes": routes(120, 20_000)}), &directory);
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let gateway = weir().start(&etcd.node(&directory));
    assert!(serves(&gateway, "/r119", &format!("{:020000}", 119)));
    assert_eq!(gateway.get("/before").status, 404);
}
