//! `weir store import` into etcd, whose transactions are limited.

use std::process::{Command, Output};

use serde_json::{Value, json};
use weir_testkit::TempDir;

use super::{Etcd, mocking, serves};
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
