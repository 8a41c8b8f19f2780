//! The way of docs/guide/migrating-from-apisix.md, from what Apache APISIX has in etcd to both gateways beside each other and back.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Origin, TempDir, eventually, skipped};

use crate::api::{ADMIN, Api};
use crate::commands::done;
use crate::etcd::{Etcd, serves};
use crate::weir;

/// The first key of the keyring, with which APISIX encrypts: AES-128-CBC, whose initialization vector is the key.
const KEY: &str = "a-key-of-our-own";

/// The settings of the APISIX node.
fn config(etcd: &str) -> String {
    format!(
        "apisix:\n  node_listen: 9080\n  enable_ipv6: false\n  data_encryption:\n    enable_encrypt_fields: true\n    \
         keyring: [{KEY}, edd1c9f0985e76a2]\ndeployment:\n  role: traditional\n  role_traditional:\n    \
         config_provider: etcd\n  admin:\n    admin_key:\n    - {{ name: admin, key: {ADMIN}, role: admin }}\n    \
         admin_listen: {{ ip: 127.0.0.1, port: 9180 }}\n  etcd:\n    host: [\"{etcd}\"]\n    prefix: /apisix\n"
    )
}

/// A text as APISIX encrypts it, by OpenSSL.
fn encrypted(text: &str) -> Option<String> {
    let key: String = KEY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new("sh");
    let openssl = "printf %s \"$0\" | openssl enc -aes-128-cbc -K \"$1\" -iv \"$1\" -base64 -A";
    let output = command.args(["-c", openssl, text, &key]).stderr(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        .filter(|text| !text.is_empty())
}

/// What APISIX has in etcd, with the members that it adds.
fn resources(backend: &str, secret: &str) -> Vec<(&'static str, Value)> {
    let times = |mut value: Value| {
        value["create_time"] = 1_700_000_000.into();
        value["update_time"] = 1_700_000_001.into();
        value
    };
    let upstream = json!({"id": "orders", "type": "roundrobin", "hash_on": "vars", "scheme": "http", "pass_host": "pass",
        "nodes": {backend: 1}});
    let route = json!({"id": "orders", "uri": "/orders/*", "status": 1, "priority": 0, "upstream_id": "orders",
        "plugins": {"key-auth": {"header": "apikey", "query": "apikey", "hide_credentials": false}}});
    let consumer = json!({"username": "jack", "plugins": {"key-auth": {"key": secret}}});
    let lua = json!({"id": "lua", "uri": "/lua", "status": 1, "priority": 0, "upstream_id": "orders",
        "filter_func": "function(vars) return vars.arg_a == '1' end"});
    vec![
        ("upstreams/orders", times(upstream)),
        ("routes/orders", times(route)),
        ("consumers/jack", times(consumer)),
        ("routes/lua", times(lua)),
    ]
}

/// All that is below APISIX's prefix.
fn stored(etcd: &Etcd) -> String {
    etcd.ctl(&["get", "--prefix", "/apisix/"])
}

fn value(etcd: &Etcd, key: &str) -> Value {
    serde_json::from_str(&etcd.ctl(&["get", "--print-value-only", &format!("/apisix/{key}")])).expect("JSON")
}

#[test]
fn a_node_serves_beside_apisix_and_the_way_back_stays_open() {
    let Some(etcd) = Etcd::of(1) else { return };
    let Some(secret) = encrypted("the-key-of-jack") else { return skipped("there is no openssl") };
    let backend = Origin::serving(|request| Answer::ok(format!("backend: {}", request.target)));
    for (key, value) in resources(&backend.addr().to_string(), &secret) {
        etcd.ctl(&["put", &format!("/apisix/{key}"), &value.to_string()]);
    }
    // APISIX makes its folders with these values.
    for folder in ["routes", "upstreams", "services", "consumers", "plugins"] {
        etcd.ctl(&["put", &format!("/apisix/{folder}/"), "init_dir"]);
    }
    etcd.ctl(&["put", "/apisix/protos/p", r#"{"id": "p", "content": "syntax = \"proto3\";"}"#]);
    let before = stored(&etcd);

    // "The settings of the node": both commands of the page.
    let place = TempDir::new();
    let settings = place.write("config.yaml", config(&etcd.endpoints()[0]));
    let run = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).output().expect("it runs");
    let converted = run(&["convert", "apisix-config", settings.to_str().expect("a path")]);
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    let file = String::from_utf8(converted.stdout).expect("text");
    let checked = run(&["check", "--deny-warnings", place.write("weir.yaml", &file).to_str().expect("a path")]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));

    // "Start Weir beside APISIX", on other ports.
    let listens = file.lines().find(|line| line.starts_with("listen:")).expect("it listens");
    let data = format!("data_dir: {}", place.join("data").display());
    let file = file.replace(listens, "listen: [\"127.0.0.1:0\"]").replace("127.0.0.1:9180", "127.0.0.1:0") + &data;
    let gateway = weir().start(&file);
    assert_eq!(gateway.get("/orders/1").status, 401);
    let with_key = gateway.client().ask("GET /orders/1 HTTP/1.1\r\nHost: a\r\napikey: the-key-of-jack\r\n\r\n");
    assert_eq!(with_key.expect("an answer").text(), "backend: /orders/1");
    let warnings = gateway.status()["configuration"]["warnings"].to_string();
    assert!(warnings.contains("routes/lua") && warnings.contains("filter_func"), "{warnings}");
    // Once the node has reported its revision.
    eventually("one resource is set aside", DEADLINE, || {
        let nodes = done(&["nodes"], &gateway);
        nodes.lines().nth(1).and_then(|line| line.split_whitespace().last()) == Some("1")
    });
    assert_eq!(stored(&etcd), before, "what APISIX reads is as it was");

    // "Move the traffic": a change through either gateway reaches both.
    etcd.ctl(&["put", "/apisix/routes/new", &crate::etcd::mocking("by apisix")]);
    eventually("a change of APISIX is served", DEADLINE, || serves(&gateway, "/r", "by apisix"));
    let mut api = Api::of(&gateway);
    let changed = json!({"uri": "/r", "plugins": {"mocking": {"response_example": "by weir"}}});
    assert_eq!(api.put("routes/new", &changed.to_string()).status, 200);
    assert!(serves(&gateway, "/r", "by weir"));
    let jill = json!({"username": "jill", "plugins": {"key-auth": {"key": "the-key-of-jill"}}});
    api.put("consumers", &jill.to_string());

    // "Go back": APISIX finds its own form, and secrets that its keyring decrypts.
    let route = value(&etcd, "routes/new");
    let members: Vec<&String> = route.as_object().expect("an object").keys().collect();
    let known = ["create_time", "id", "plugins", "priority", "status", "update_time", "uri"];
    assert!(members.iter().all(|member| known.contains(&member.as_str())), "{members:?}");
    let key = &value(&etcd, "consumers/jill")["plugins"]["key-auth"]["key"];
    assert_eq!(key.as_str().map(str::to_owned), encrypted("the-key-of-jill"));
    for (key, value) in resources(&backend.addr().to_string(), &secret) {
        assert_eq!(self::value(&etcd, key), value, "{key} was not touched");
    }
}
