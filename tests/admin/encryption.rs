//! Secrets are encrypted where a store keeps them, and whoever has the keys does not notice.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{Authority, Client, DEADLINE, Gateway, Signal, TempDir, eventually};

use crate::api::{Api, file};
use crate::etcd::Etcd;
use crate::weir;

const OLD: &str = "an-old-key-of-16";
const NEW: &str = "a-new-key-of-thirty-two-bytes-ok";
const OTHER: &str = "a-key-for-others";

fn ring(keys: &[&str]) -> String {
    format!("data_encryption: {{ keyring: [{}] }}\n", keys.join(", "))
}

/// A node's file, whose store stands in `directory`.
fn node(directory: &TempDir, encryption: &str) -> String {
    let store = directory.join("store.redb");
    format!("worker_processes: 1\n{}store: {{ path: {} }}\n{encryption}", file(), store.display())
}

/// What of the file of the store is there to be seen.
fn seen(directory: &TempDir, secrets: &[String]) -> Vec<String> {
    let bytes = fs::read(directory.join("store.redb")).expect("a store");
    let is_in = |secret: &&String| bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
    secrets.iter().filter(is_in).cloned().collect()
}

fn jack(key: &str) -> String {
    json!({"username": "jack", "plugins": {"key-auth": {"key": key}}}).to_string()
}

/// Resources with secrets of every kind; what must not be seen, and what is plain also in Apache APISIX.
fn fill(api: &mut Api) -> (Vec<String>, Vec<String>) {
    let identity = Authority::of_tests().identity(&["a.example"]);
    api.put("consumers", &jack("s3cret-of-jack-before"));
    api.put("consumers", &jack("s3cret-of-jack"));
    let credential = json!({"plugins": {"basic-auth": {"username": "j", "password": "s3cret-password"}}});
    api.put("consumers/jack/credentials/one", &credential.to_string());
    let ssl = json!({"cert": identity.certificate, "key": identity.key, "sni": "a.example"});
    api.put("ssls/1", &ssl.to_string());
    let plugins = json!({"key-auth": {}, "csrf": {"key": "s3cret-of-csrf"}, "mocking": {"response_example": "in"}});
    api.put("routes/r", &json!({"uri": "/r", "plugins": plugins}).to_string());
    let vault = json!({"uri": "http://127.0.0.1:1", "prefix": "kv", "token": "s3cret-of-a-manager"});
    api.put("secrets/vault/1", &vault.to_string());
    let key = identity.key.lines().nth(1).expect("a line of it").to_owned();
    let mut hidden = ["s3cret-of-jack", "s3cret-password", "s3cret-of-csrf"].map(str::to_owned).to_vec();
    hidden.push(key);
    (hidden, vec!["s3cret-of-a-manager".to_owned()])
}

#[track_caller]
fn lets_in(gateway: &Gateway, key: &str) -> bool {
    let mut client = Client::connect(gateway.addr());
    let answer = client.ask(format!("GET /r HTTP/1.1\r\nHost: a\r\napikey: {key}\r\n\r\n")).expect("an answer");
    match answer.status {
        200 => true,
        401 => false,
        status => panic!("{status}: {}", answer.text()),
    }
}

fn end(mut gateway: Gateway) {
    gateway.signal(Signal::TERM);
    gateway.wait_exit(DEADLINE);
}

#[test]
fn no_secret_can_be_read_in_the_file_of_a_store() {
    let directory = TempDir::new();
    let gateway = weir().start(&node(&directory, &ring(&[OLD])));
    let mut api = Api::of(&gateway);
    let (mut secrets, managers) = fill(&mut api);
    secrets.extend(managers);
    assert_eq!(api.get("consumers/jack")["value"]["plugins"]["key-auth"]["key"], "s3cret-of-jack");
    assert!(lets_in(&gateway, "s3cret-of-jack") && !lets_in(&gateway, "s3cret-of-jack-before"));
    assert_eq!(seen(&directory, &secrets), [""; 0]);
    let before = api.get("history?key=consumers/jack")["list"][1]["revision"].as_u64().expect("a revision");
    let rolled_back = api.ask("POST", &format!("history/{before}/rollback"), "", "");
    assert_eq!(rolled_back.status, 200, "{}", rolled_back.text());
    let guarded = json!({"uri": "/r", "plugins": {"key-auth": {}, "mocking": {"response_example": "in"}}});
    api.put("routes/r", &guarded.to_string());
    assert!(lets_in(&gateway, "s3cret-of-jack-before") && !lets_in(&gateway, "s3cret-of-jack"));
    end(gateway);
    assert_eq!(seen(&directory, &secrets), [""; 0]);
    // A ring without the key is refused, and so is none.
    for encryption in [ring(&[OTHER]), String::new()] {
        let mut refused = weir().spawn(&node(&directory, &encryption));
        assert_eq!(refused.wait_exit(DEADLINE).code(), Some(1));
        let told = "no key of `data_encryption.keyring` decrypts `consumers/jack: plugins.";
        refused.wait_stderr("why", |line| line.contains(told));
    }
}

#[test]
fn a_key_is_replaced_by_putting_another_before_it() {
    let directory = TempDir::new();
    let gateway = weir().start(&node(&directory, ""));
    let (mut secrets, managers) = fill(&mut Api::of(&gateway));
    secrets.extend(managers);
    end(gateway);
    assert_eq!(seen(&directory, &secrets).len(), secrets.len(), "without keys nothing is encrypted");
    // What was there before is encrypted at the start, history included, and is not left in the file.
    for keys in [&[OLD][..], &[NEW, OLD], &[NEW]] {
        let gateway = weir().start(&node(&directory, &ring(keys)));
        assert!(lets_in(&gateway, "s3cret-of-jack"));
        let mut api = Api::of(&gateway);
        let history = api.get("history?key=consumers/jack");
        let revisions = history["list"].as_array().or(history.as_array()).expect("a list");
        let first = revisions.last().expect("it was put twice")["revision"].as_u64().expect("a number");
        let was = api.get(&format!("history/{first}?value=consumers/jack")).to_string();
        assert!(was.contains("s3cret-of-jack-before"), "{was}");
        assert!(!history.to_string().contains("s3cret"), "what differs is masked: {history}");
        end(gateway);
        assert_eq!(seen(&directory, &secrets), [""; 0], "{keys:?}");
    }
    let off = format!("data_encryption: {{ keyring: [{NEW}], enable: false }}\n");
    end(weir().start(&node(&directory, &off)));
    assert_eq!(seen(&directory, &secrets).len(), secrets.len(), "switched off, it is plain again");
    assert!(lets_in(&weir().start(&node(&directory, "")), "s3cret-of-jack"));
}

#[test]
fn value_that_looks_encrypted_is_refused() {
    let directory = TempDir::new();
    let gateway = weir().start(&node(&directory, &ring(&[NEW])));
    let mut api = Api::of(&gateway);
    let answer = api.ask("PUT", "consumers", "", &jack("$encrypted://AAAA"));
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("is encrypted, and no key"), "{}", answer.text());
    let secret = json!({"type": "cookie", "secret": "$encrypted://AAAAAAAAAAAAAAAAAAAA"});
    let upstream = json!({"nodes": {"127.0.0.1:1": 1}, "persistence": secret});
    let answer = api.ask("PUT", "upstreams/u", "", &upstream.to_string());
    assert_eq!(answer.status, 503, "{}", answer.text());
    end(gateway);
    assert_eq!(Api::of(&weir().start(&node(&directory, &ring(&[NEW])))).get("upstreams")["total"], 0);
}

/// What `weir store` prints.
#[track_caller]
fn run_store(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.arg("store").args(arguments).output().expect("the binary starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_export_is_plain_and_an_import_is_encrypted() {
    let directories = [TempDir::new(), TempDir::new()];
    let files = [(0, OLD), (1, NEW)].map(|(index, key): (usize, &str)| {
        let directory = &directories[index];
        directory.write("node.yaml", node(directory, &ring(&[key]))).display().to_string()
    });
    let gateway = weir().start(&node(&directories[0], &ring(&[OLD])));
    let (mut secrets, managers) = fill(&mut Api::of(&gateway));
    secrets.extend(managers);
    end(gateway);
    let exported = run_store(&["export", &files[0]]);
    assert!(secrets.iter().all(|secret| exported.contains(secret.as_str())), "{exported}");
    let export = directories[1].write("export.json", &exported).display().to_string();
    run_store(&["import", &files[1], &export]);
    assert_eq!(seen(&directories[1], &secrets), [""; 0]);
    assert_eq!(run_store(&["export", &files[1]]), exported);
}

#[test]
fn etcd_keeps_secrets_as_apisix_does() {
    let Some(etcd) = Etcd::of(1) else { return };
    let directories = [TempDir::new(), TempDir::new()];
    // Stored by Apache APISIX, with a key that everybody knows.
    const KNOWN: &str = "qeddd145sfvddff3";
    etcd.ctl(&["put", "/apisix/consumers/kim", &jack("sGfoff/k5TVaPiyGca5e5w==").replace("jack", "kim")]);
    let nodes = [
        weir().start(&(etcd.node(&directories[0]) + &ring(&[OLD, KNOWN]))),
        weir().start(&(etcd.node(&directories[1]) + &ring(&[NEW, OLD, KNOWN]))),
    ];
    let (hidden, plain) = fill(&mut Api::of(&nodes[0]));
    let all = etcd.ctl(&["get", "--prefix", "/"]);
    assert!(!hidden.iter().any(|secret| all.contains(secret.as_str())), "{all}");
    assert!(plain.iter().all(|secret| all.contains(secret.as_str())), "APISIX reads them as they are");
    for node in &nodes {
        for key in ["s3cret-of-jack", "k1"] {
            eventually("every node has the secrets", DEADLINE, || node.get("/r").status == 401 && lets_in(node, key));
        }
    }
    // By the first key of the node that writes; the other node has it, too.
    let stored =
        |name: &str| -> Value { serde_json::from_str(&etcd.ctl(&["get", "--print-value-only", name])).expect("JSON") };
    assert_eq!(stored("/apisix/consumers/jack")["plugins"]["key-auth"]["key"], "klmae4/x73ta48kvEdvxHw==");
    let warnings = |node: &Gateway| node.status()["configuration"]["warnings"].to_string();
    assert!(nodes.iter().all(|node| !warnings(node).contains("decrypts")), "{}", warnings(&nodes[0]));

    // What no key decrypts is not served; all else is, and the last that was readable.
    Api::of(&nodes[1]).put("consumers", &jack("s3cret-of-a-new-key"));
    let told = |node: &Gateway| warnings(node).contains("consumers/jack") && warnings(node).contains("no key of");
    eventually("it is told", DEADLINE, || told(&nodes[0]));
    assert!(lets_in(&nodes[0], "s3cret-of-jack") && lets_in(&nodes[0], "k1"));
    assert!(lets_in(&nodes[1], "s3cret-of-a-new-key"));

    // An import writes all of it by the first key.
    let place = TempDir::new();
    let file = place.write("node.yaml", etcd.node(&place) + &ring(&[NEW, OLD, KNOWN])).display().to_string();
    let exported = run_store(&["export", &file]);
    let export = place.write("export.json", &exported).display().to_string();
    run_store(&["import", &file, &export]);
    let only = place.write("only.yaml", etcd.node(&place) + &ring(&[NEW])).display().to_string();
    assert_eq!(run_store(&["export", &only]), exported, "the old keys are needed no more");
}
