//! `/weir/v1/lab`: results of the lab, by role.

use std::fs;
use std::path::Path;

use serde_json::Value;
use weir_testkit::{Gateway, TempDir};

use crate::api::{Api, EDITOR, VIEWER, admin_addr, file};
use crate::weir;

const SCOPED: &str = "the-key-of-an-editor-with-scopes";

/// A node that shows the results in a folder, which has some of this project.
fn start(folder: &TempDir) -> Gateway {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    for name in ["drain-20261127T032438Z.json", "failover-20261127T032318Z.json"] {
        fs::copy(results.join(name), folder.join(name)).expect("it is copied");
    }
    let keys = format!("  - {{ name: team, key: {SCOPED}, role: editor, scopes: [{{ kinds: [routes] }}] }}\n");
    weir().start(&(file() + &keys).replace("admin:\n", &format!("admin:\n  lab: {}\n", folder.path().display())))
}

#[test]
fn results_are_read_by_every_role_without_scopes() {
    let folder = TempDir::new();
    let gateway = start(&folder);
    let with = |key: &'static str| Api::with_key(admin_addr(&gateway), key);
    for key in [crate::api::ADMIN, EDITOR, VIEWER] {
        let list = with(key).get("/weir/v1/lab");
        assert_eq!((list["list"].as_array().map(Vec::len), &list["more"]), (Some(2), &Value::from(0)), "{list}");
        assert_eq!(with(key).get("/weir/v1/session")["can_lab"], true);
    }
    let one = with(VIEWER).get("/weir/v1/lab/drain-20261127T032438Z.json");
    assert_eq!(
        (&one["scenario"], one["lines"].as_array().is_some_and(|lines| !lines.is_empty())),
        (&"drain".into(), true)
    );
    let same = "/weir/v1/lab/failover-20261127T032318Z.json?with=failover-20261127T032318Z.json";
    assert_eq!(with(VIEWER).get(same)["circumstances"], Value::Array(Vec::new()));
    assert_eq!(with(SCOPED).ask("GET", "/weir/v1/lab", "", "").status, 403);
    assert_eq!(with(SCOPED).get("/weir/v1/session")["can_lab"], false);
    assert_eq!(with("no-key-at-all-of-this-node").ask("GET", "/weir/v1/lab", "", "").status, 401);
    assert_eq!(with(VIEWER).ask("POST", "/weir/v1/lab", "", "").status, 403);
    assert_eq!(with(EDITOR).ask("POST", "/weir/v1/lab", "", "").status, 405);
}

#[test]
fn nothing_outside_of_the_folder_is_read() {
    let folder = TempDir::new();
    let gateway = start(&folder);
    let mut api = Api::of(&gateway);
    fs::write(gateway.directory().join("beside.json"), r#"{"schema": "weir-bench/result/1"}"#).expect("it is written");
    let beside = format!("..%2F{}%2Fbeside.json", gateway.directory().path().file_name().expect("a name").display());
    for name in ["..%2Fdrain.json", &beside, "%2Fetc%2Fpasswd", ".hidden.json", "a%00.json"] {
        let answer = api.ask("GET", &format!("/weir/v1/lab/{name}"), "", "");
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
        let compared = api.ask("GET", &format!("/weir/v1/lab/drain-20261127T032438Z.json?with={name}"), "", "");
        assert_eq!(compared.status, 400, "{name}: {}", compared.text());
    }
    assert_eq!(api.ask("GET", "/weir/v1/lab/none.json", "", "").status, 404);
    assert_eq!(api.ask("GET", "/weir/v1/lab/drain-20261127T032438Z.json/more", "", "").status, 404);
    let none = weir().start(&file());
    let answer = Api::of(&none).ask("GET", "/weir/v1/lab", "", "");
    assert!(answer.status == 404 && answer.text().contains("configure `admin.lab`"), "{}", answer.text());
}
