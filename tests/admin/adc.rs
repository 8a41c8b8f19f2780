//! The requests of ADC 0.28 in its order, against a node with a store: ping, dump, sync, a sync without changes, validate.
//! In standalone mode see `standalone.rs`.

use std::collections::BTreeMap;
use std::env;
use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::TempDir;

use crate::api::{ADMIN, Api, admin_addr, file, json as json_of};
use crate::weir;

/// What ADC reads before it compares: all lists at once, and the credentials of each consumer.
fn dump(api: &mut Api) -> BTreeMap<String, Vec<Value>> {
    let lists = [
        "services",
        "routes",
        "stream_routes",
        "upstreams",
        "ssls",
        "consumers",
        "plugin_configs",
        "global_rules",
        "plugin_metadata",
    ];
    let mut dumped = BTreeMap::new();
    for list in lists {
        let found = api.get(list);
        let items = found["list"].as_array().unwrap_or_else(|| panic!("{list} must be an array: {found}"));
        dumped.insert(list.to_owned(), items.clone());
    }
    for consumer in dumped["consumers"].clone() {
        let path = format!("consumers/{}/credentials", consumer["value"]["username"].as_str().expect("a name"));
        let answer = api.ask("GET", &path, "", "");
        match answer.status {
            200 => drop(dumped.insert(path, json_of(&answer)["list"].as_array().expect("an array").clone())),
            status => assert_eq!(status, 404, "none"),
        }
    }
    dumped
}

#[test]
fn adc_pings_dumps_syncs_and_validates() {
    let gateway = weir().start(&file());
    let mut api = Api::of(&gateway);
    let ping = api.ask("GET", "routes", "Content-Type: application/json\r\n", "");
    let server = ping.headers.get("server").expect("a name with a version");
    let version = server.split("APISIX/").nth(1).expect("a version").split(' ').next().expect("a version");
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().expect("a number")).collect();
    assert!(numbers >= vec![3, 11, 0], "credentials come with 3.11: {version}");
    assert!(dump(&mut api).values().all(Vec::is_empty), "an empty list is an array");

    // A service is two requests, its upstream first.
    let (service, route) = ("16d8a6a5c0c5d1c0e8d1f0a3c4b5a697f8e9d0c1", "27e9b7b6d1d6e2d1f9e2a1b4d5c6b7a8f9e0d1c2");
    let label = json!({"managed-by": "adc"});
    let mocking = json!({"mocking": {"response_example": "by adc"}});
    let node = json!({"host": "127.0.0.1", "port": 9, "weight": 1, "priority": 0});
    let writes = [
        (
            format!("upstreams/{service}"),
            json!({"name": "shop", "type": "roundrobin", "nodes": [node], "labels": label}),
        ),
        (format!("services/{service}"), json!({"name": "shop", "upstream_id": service, "labels": label})),
        (
            format!("routes/{route}"),
            json!({"name": "all", "uris": ["/shop/*"], "service_id": service, "plugins": mocking, "labels": label}),
        ),
        ("consumers/jack".to_owned(), json!({"username": "jack", "labels": label})),
        ("global_rules/request-id".to_owned(), json!({"plugins": {"request-id": {}}})),
        ("plugin_metadata/http-logger".to_owned(), json!({"log_format": {"host": "$host"}})),
        (
            "consumers/jack/credentials/c1".to_owned(),
            json!({"name": "c1", "plugins": {"key-auth": {"key": "jack-key"}}}),
        ),
    ];
    for (path, body) in &writes {
        api.put(path, &body.to_string());
    }
    assert_eq!(gateway.get("/shop/1").text(), "by adc");

    // What it dumps is what it sent, so a second sync finds nothing to do.
    let dumped = dump(&mut api);
    for (path, sent) in &writes {
        let (list, _) = path.rsplit_once('/').expect("a list and an id");
        let key = format!("/apisix/{path}");
        let found = dumped[list].iter().find(|item| item["key"] == *key).unwrap_or_else(|| panic!("no {key}"));
        for (name, value) in sent.as_object().expect("a map") {
            assert_eq!(found["value"][name], *value, "{key}: {name}");
        }
    }

    let wrong =
        json!({"routes": [{"id": route, "uris": ["/x"], "plugins": {"nope": {}}}], "services": [], "global_rules": []});
    let answer = api.ask("POST", "configs/validate", "", &wrong.to_string());
    assert_eq!(answer.status, 400);
    assert_eq!(json_of(&answer)["errors"][0]["index"], 0, "names are found by it");

    // Deleting, in its order: routes, services, upstreams, consumers.
    for path in [
        format!("routes/{route}"),
        format!("services/{service}"),
        format!("upstreams/{service}"),
        "consumers/jack".to_owned(),
    ] {
        assert_eq!(api.ask("DELETE", &path, "", "").status, 200, "{path}");
    }
    assert_eq!(gateway.get("/shop/1").status, 404);
    assert_eq!(api.ask("GET", "consumers/jack/credentials", "", "").status, 404, "they go with their consumer");
}

#[test]
#[ignore = "adc is in no registry of packages; WEIR_TEST_ADC=PATH cargo test … -- --ignored runs it with an installed one"]
fn an_installed_adc_syncs_diffs_dumps_and_validates() {
    let adc = env::var_os("WEIR_TEST_ADC").expect("WEIR_TEST_ADC is the path of adc");
    let place = TempDir::new();
    let wanted = "services:
- name: shop
  upstream: { type: roundrobin, nodes: [{ host: 127.0.0.1, port: 9, weight: 1 }] }
  routes:
  - { name: all, uris: [/shop/*], plugins: { mocking: { response_example: by adc } } }
consumers:
- { username: jack, plugins: { key-auth: { key: jacks-key } } }
";
    let wanted = place.write("adc.yaml", wanted);
    let wanted = wanted.to_str().expect("a path");
    let dumped = place.join("dumped.yaml");
    let dumped = dumped.to_str().expect("a path");
    for (backend, store) in [("apisix", ""), ("apisix-standalone", "store: standalone\n")] {
        let gateway = weir().start(&format!("{}{store}", file()));
        let server = format!("http://{}", admin_addr(&gateway));
        let run = |arguments: &[&str]| {
            let mut command = Command::new(&adc);
            command.args(arguments).args(["--backend", backend, "--server", &server, "--token", ADMIN]);
            let output = command.current_dir(place.path()).output().expect("WEIR_TEST_ADC is a program");
            let told = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
            assert!(output.status.success(), "{backend} {arguments:?}: {told}");
            told
        };
        run(&["ping"]);
        run(&["validate", "-f", wanted]);
        run(&["sync", "-f", wanted]);
        assert_eq!(gateway.get("/shop/1").text(), "by adc", "{backend}");
        run(&["dump", "-o", dumped]);
        // What it has dumped is what is there.
        run(&["diff", "-f", dumped]);
        run(&["sync", "-f", dumped]);
        assert_eq!(gateway.get("/shop/1").text(), "by adc", "{backend}");
    }
}
