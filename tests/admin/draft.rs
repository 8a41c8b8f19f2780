//! The draft: the files of a node, edited, checked and written through the Admin API.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use weir_testkit::{Answer, Gateway, Origin, Response};

use crate::api::{Api, EDITOR, VIEWER, admin_addr, file};
use crate::weir;

const DRAFT: &str = "/weir/v1/draft";

const MORE: &str = "# routes of another team
routes:
  # why it is here
  - id: included   # an id
    uri: /included
    upstream_id: u1
";

fn settings(resources: &str, more: &str) -> String {
    let settings = file().replacen("admin:\n", &format!("admin:\n  store: file\n{more}"), 1);
    format!("{settings}include: more.yaml\n{resources}")
}

const RESOURCES: &str = "
upstreams:
  - { id: u1, nodes: { \"127.0.0.1:1\": 1 } }   # nothing listens there

consumers:
- username: jack
  plugins: { key-auth: { key: s3cret-of-jack } }
";

fn start(more: &str) -> Gateway {
    weir().file("more.yaml", MORE).start(&settings(RESOURCES, more))
}

const WRITES: &str = "  draft: write\n";
const CHECK: &str = "/weir/v1/draft/check";
const EDIT: &str = "/weir/v1/draft/edit";
/// An admin of some resources.
const SCOPED: &str = "the-key-with-a-scope";

fn body(answer: &Response) -> Value {
    serde_json::from_str(&answer.text()).unwrap_or_else(|_| panic!("no JSON: {}", answer.text()))
}

/// Sends a request and returns the JSON of an answer with this status.
#[track_caller]
fn ask(api: &mut Api, method: &str, path: &str, sent: &Value, status: u16) -> Value {
    let answer = api.ask(method, path, "", &sent.to_string());
    assert_eq!(answer.status, status, "{}", answer.text());
    body(&answer)
}

/// What is wrong with texts that no call takes: a check has findings, and others are refused.
#[track_caller]
fn refused_by_all(api: &mut Api, sent: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for (method, path, status) in [("POST", CHECK, 200), ("POST", EDIT, 400), ("PUT", DRAFT, 400)] {
        let told = ask(api, method, path, sent, status);
        assert!(!told.to_string().contains("s3cret"), "{told}");
        assert_ne!(told["valid"], true, "{told:#}");
        let list = if status == 200 { &told["findings"] } else { &told["diagnostics"] };
        all.push(list[0].clone());
    }
    all
}

fn read(api: &mut Api) -> Value {
    body(&api.ask("GET", DRAFT, "", ""))
}

/// The text of the file whose name ends so.
#[track_caller]
fn text(files: &Value, ending: &str) -> (String, String) {
    let files = files["files"].as_array().expect("a list");
    let found = files.iter().find(|file| file["name"].as_str().is_some_and(|name| name.ends_with(ending)));
    let found = found.unwrap_or_else(|| panic!("no {ending} in {files:?}"));
    let of = |name: &str| found[name].as_str().expect("a text").to_owned();
    (of("name"), of("text"))
}

#[test]
fn the_draft_has_all_files_with_their_texts() {
    let gateway = start("  draft: read\n");
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    assert_eq!((&draft["writable"], &draft["findings"]), (&json!(false), &json!([])));
    assert_eq!(draft["files"].as_array().map(Vec::len), Some(2), "{draft:#}");
    assert_eq!(text(&draft, "more.yaml").1, MORE);
    assert!(!draft.to_string().contains("the-key-of-"), "the keys of the API are hidden: {draft:#}");
    let refused = ask(&mut api, "PUT", DRAFT, &json!({ "files": [], "revision": draft["revision"] }), 409);
    assert!(refused["error_msg"].as_str().is_some_and(|text| text.contains("draft: write")), "{refused}");
}

/// Others than admins of everything see nothing, and change nothing, by any of the calls.
#[test]
fn the_draft_is_for_admins_without_scopes_only() {
    let scoped = format!("  - {{ name: sc, key: {SCOPED}, role: admin, scopes: [{{ kinds: [routes] }}] }}\n");
    let configuration = settings(RESOURCES, WRITES).replacen("include:", &format!("{scoped}include:"), 1);
    let gateway = weir().file("more.yaml", MORE).start(&configuration);
    let draft = read(&mut Api::of(&gateway));
    let (name, _) = text(&draft, "more.yaml");
    let sent = json!({
        "files": [{ "name": name, "text": MORE.replace("/included", "/other") }],
        "operations": [],
        "revision": draft["revision"],
    });
    let before = fs::read_to_string(&name).expect("it is read");
    for key in [VIEWER, EDITOR, SCOPED] {
        let mut other = Api::with_key(admin_addr(&gateway), key);
        for (method, path) in [
            ("GET", DRAFT),
            ("PUT", DRAFT),
            ("PUT", "/weir/v1/draft?dry_run=true"),
            ("POST", CHECK),
            ("POST", EDIT),
            ("DELETE", DRAFT),
            ("POST", "/weir/v1/draft/unknown"),
        ] {
            for body in ["{}", &sent.to_string()] {
                let told = other.ask(method, path, "", body);
                assert_eq!(told.status, 403, "{key} {method} {path}: {}", told.text());
                assert!(!told.text().contains("included"), "{}", told.text());
            }
        }
    }
    assert_eq!(fs::read_to_string(&name).expect("it is read"), before);
    assert_eq!(ask(&mut Api::of(&gateway), "PUT", DRAFT, &sent, 200)["served"], true, "an admin may");
}

#[test]
fn operations_on_resources_change_the_file_that_they_stand_in() {
    let gateway = start("  draft: read\n");
    let mut api = Api::of(&gateway);
    let value = json!({ "id": "included", "uri": "/renamed", "upstream_id": "u1" });
    let answer =
        ask(&mut api, "POST", EDIT, &json!({ "operations": [{ "put": "routes/included", "value": value }] }), 200);
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(1), "{answer:#}");
    let (name, changed) = text(&answer, "more.yaml");
    assert_eq!(changed, MORE.replace("uri: /included", "uri: /renamed"));
    let operations = json!([
        { "put": "routes/new", "value": { "uri": "/new", "upstream_id": "u1" } },
        { "delete": "consumers/jack" },
        { "file": name, "op": "remove", "path": "/routes/0/upstream_id" },
    ]);
    let sent = json!({ "files": [{ "name": name, "text": changed }], "operations": operations });
    let answer = ask(&mut api, "POST", EDIT, &sent, 200);
    let expected =
        MORE.replace("/included\n    upstream_id: u1\n", "/renamed\n  - id: new\n    uri: /new\n    upstream_id: u1\n");
    assert_eq!(text(&answer, "more.yaml").1, expected);
    let main = fs::read_to_string(gateway.file()).expect("the configuration");
    let (_, shown) = text(&read(&mut api), gateway.file().file_name().and_then(|name| name.to_str()).expect("a name"));
    let without =
        shown.split_once("- username: jack").expect("it is there").0.replace("consumers:\n", "consumers: []\n");
    assert_eq!(text(&answer, ".yaml").1, without);
    let gone = ask(&mut api, "POST", EDIT, &json!({ "operations": [{ "delete": "routes/none" }] }), 404);
    assert_eq!(gone["message"], "Key not found");
    assert_eq!(fs::read_to_string(gateway.file()).expect("the configuration"), main, "nothing is written");
}

#[test]
fn findings_of_a_draft_have_their_file_and_both_ends() {
    let gateway = start("  draft: read\n");
    let mut api = Api::of(&gateway);
    let (name, _) = text(&read(&mut api), "more.yaml");
    let sent = json!({ "files": [{ "name": name, "text": MORE.replace("uri: /included", "urri: /included") }] });
    let answer = ask(&mut api, "POST", CHECK, &sent, 200);
    assert_eq!(answer["valid"], false);
    let mut found = answer["findings"].as_array().expect("a list").iter();
    let found = found.find(|one| one["problem"].as_str().is_some_and(|text| text.contains("urri")));
    let found = found.unwrap_or_else(|| panic!("{answer:#}"));
    assert_eq!(found["file"], *name);
    assert_eq!(found["severity"], "error");
    let place = ["line", "column", "end_line", "end_column"].map(|name| found[name].clone());
    assert_eq!(place, [5, 5, 5, 9].map(Value::from), "{found:#}");
    let broken = json!({ "files": [{ "name": name, "text": "routes:\n  - { id: a\n" }] });
    let answer = ask(&mut api, "POST", CHECK, &broken, 200);
    assert_eq!((&answer["valid"], &answer["findings"][0]["file"]), (&json!(false), &json!(name)), "{answer:#}");
    assert!(answer["findings"][0]["line"].is_u64(), "{answer:#}");
    let valid = ask(&mut api, "POST", CHECK, &json!({}), 200);
    assert_eq!(valid["valid"], true);
    let stranger = ask(&mut api, "POST", CHECK, &json!({ "files": [{ "name": "/etc/passwd", "text": "" }] }), 400);
    assert!(stranger["error_msg"].as_str().is_some_and(|text| text.contains("not a file that this node has loaded")));
}

#[test]
fn a_draft_that_is_written_is_served_without_a_failed_request() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let resources = RESOURCES.replace("127.0.0.1:1", &origin.addr().to_string());
    let gateway = weir()
        .file("more.yaml", MORE)
        .start(&settings(&resources, &format!("{WRITES}  audit: {{ path: audit.log }}\n")));
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    assert_eq!(draft["writable"], true);
    let (name, _) = text(&draft, "more.yaml");
    fs::set_permissions(&name, fs::Permissions::from_mode(0o640)).expect("it is set");
    let (is_done, failed) = (AtomicBool::new(false), Arc::new(Mutex::new(Vec::new())));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let status = gateway.get("/included").status;
                if status != 200 {
                    failed.lock().expect("no panic").push(status);
                }
            }
        });
        let mut revision = draft["revision"].clone();
        for round in 0..5 {
            let changed = MORE.replace(
                "upstream_id: u1\n",
                &format!("upstream_id: u1\n  - {{ id: r{round}, uri: /r{round}, upstream_id: u1 }}\n"),
            );
            let sent = json!({ "files": [{ "name": name, "text": changed }], "revision": revision });
            let answer = ask(&mut api, "PUT", DRAFT, &sent, 200);
            assert_eq!(answer["served"], true, "{answer:#}");
            assert_eq!(gateway.get(&format!("/r{round}")).status, 200);
            revision = answer["revision"].clone();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(*failed.lock().expect("no panic"), Vec::<u16>::new());
    assert_eq!(fs::metadata(&name).expect("it is there").permissions().mode() & 0o777, 0o640);
    let audit = gateway.file().parent().expect("a directory").join("audit.log");
    weir_testkit::eventually("the audit log has the change", weir_testkit::DEADLINE, || {
        let lines = fs::read_to_string(&audit).unwrap_or_default();
        lines
            .lines()
            .any(|line| line.contains("\"routes/r4\"") && line.contains("\"accepted\"") && line.contains("\"ann\""))
    });
}

#[test]
fn a_draft_that_is_refused_changes_nothing() {
    let gateway = start(WRITES);
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, _) = text(&draft, "more.yaml");
    let send =
        |text: &str, revision: &Value| json!({ "files": [{ "name": name, "text": text }], "revision": revision });
    let wrong = MORE.replace("upstream_id: u1", "upstream_id: none");
    let refused = ask(&mut api, "PUT", DRAFT, &send(&wrong, &draft["revision"]), 400);
    assert!(refused["diagnostics"][0]["end_column"].is_u64(), "{refused:#}");
    let good = MORE.replace("/included", "/other");
    ask(&mut api, "PUT", DRAFT, &json!({ "files": [{ "name": name, "text": good }] }), 400);
    let stranger = gateway.file().parent().expect("a directory").join("stranger.yaml");
    fs::write(&stranger, "routes: []\n").expect("it is written");
    let sent = json!({ "files": [{ "name": stranger, "text": "routes: [ ]\n" }], "revision": draft["revision"] });
    ask(&mut api, "PUT", DRAFT, &sent, 400);
    assert_eq!(fs::read_to_string(&stranger).expect("it is read"), "routes: []\n");
    assert_eq!(fs::read_to_string(&name).expect("it is read"), MORE);
    let theirs = format!("{MORE}# another program\n");
    fs::write(&name, &theirs).expect("it is written");
    let late = ask(&mut api, "PUT", DRAFT, &send(&good, &draft["revision"]), 412);
    assert_ne!(late["revision"], draft["revision"]);
    assert_eq!(fs::read_to_string(&name).expect("it is read"), theirs);
    assert_eq!(ask(&mut api, "PUT", DRAFT, &send(&good, &late["revision"]), 200)["served"], true);
    assert_eq!(fs::read_to_string(&name).expect("it is read"), good);
}

#[test]
fn a_file_behind_a_link_is_written_and_the_link_stays() {
    let gateway = start(WRITES);
    let mut api = Api::of(&gateway);
    let (name, _) = text(&read(&mut api), "more.yaml");
    let real = format!("{name}.real");
    fs::rename(&name, &real).and_then(|()| symlink(&real, &name)).expect("a link");
    let changed = MORE.replace("/included", "/linked");
    let revision = read(&mut api)["revision"].clone();
    ask(&mut api, "PUT", DRAFT, &json!({ "files": [{ "name": name, "text": changed }], "revision": revision }), 200);
    assert!(fs::symlink_metadata(&name).expect("it is there").is_symlink());
    assert_eq!(fs::read_to_string(&real).expect("it is read"), changed);
}

/// The word in place of the token in a text.
#[track_caller]
fn token_word(shown: &str) -> &str {
    shown.split("token: \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("{shown}"))
}

/// The name of the main file.
fn main_name(gateway: &Gateway) -> String {
    gateway.file().file_name().and_then(|name| name.to_str()).expect("a name").to_owned()
}

const VAULT: &str =
    "secrets:\n- { id: vault/1, uri: \"http://127.0.0.1:1\", prefix: kv/weir, token: s3cret-token } # the vault\n";

/// Keys of certificates, tokens and keys of the API are never shown, and stay when the rest is edited.
#[test]
fn hidden_values_stay_in_the_file() {
    let gateway = weir().file("more.yaml", MORE).start(&settings(&format!("{RESOURCES}{VAULT}"), WRITES));
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, shown) = text(&draft, &main_name(&gateway));
    assert!(!shown.contains("s3cret-token") && shown.contains("__WEIR_HIDDEN_"), "{shown}");
    let before = fs::read_to_string(gateway.file()).expect("the configuration");
    // As the console sends it: the token is masked, and what says nothing of where it goes is another.
    let mut value = api.get("secrets/vault/1")["value"].clone();
    assert_eq!(value["token"], "***");
    value["labels"] = json!({ "team": "a" });
    let sent = json!({ "operations": [{ "put": "secrets/vault/1", "value": value }] });
    let answer = ask(&mut api, "POST", EDIT, &sent, 200);
    assert!(!answer.to_string().contains("s3cret-token"), "{answer}");
    // Other resources of the file are changed beside it.
    let put = json!({ "op": "replace", "file": name, "path": "/upstreams/0/nodes", "value": { "127.0.0.1:2": 1 } });
    let sent = json!({ "operations": [put] });
    let answer = ask(&mut api, "POST", EDIT, &sent, 200);
    let sent = json!({ "files": answer["files"], "revision": draft["revision"] });
    ask(&mut api, "PUT", DRAFT, &sent, 200);
    let after = fs::read_to_string(gateway.file()).expect("the configuration");
    assert_eq!(after, before.replacen("127.0.0.1:1\": 1", "127.0.0.1:2\": 1", 1));
}

/// The token would be sent to the new address, be it by a check or later.
#[test]
fn hidden_values_are_not_sent_elsewhere() {
    let thief = Origin::serving(|_| Answer::ok("{}"));
    let reading = "consumers:\n- username: jill\n  plugins: { key-auth: { key: $secret://vault/1/jill/key } }\n";
    let vault = Origin::serving(|_| Answer::ok(r#"{"data":{"key":"k-of-jill"}}"#));
    let address = vault.addr().to_string();
    let resources = RESOURCES.replace("consumers:\n", reading) + &VAULT.replace("127.0.0.1:1", &address);
    let gateway = weir().file("more.yaml", MORE).start(&settings(&resources, WRITES));
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, shown) = text(&draft, &main_name(&gateway));
    let word = token_word(&shown);
    let before = fs::read_to_string(gateway.file()).expect("the configuration");
    let thiefs = shown.replace(&address, &thief.addr().to_string());
    assert_ne!(thiefs, shown);
    let texts = [
        thiefs,
        format!("{shown}# {word}\n"),
        format!("{shown}services: [{{ id: s, desc: {word} }}]\n"),
        format!("{shown}services: [{{ id: s, desc: '${{{{PATH:={word}}}}}' }}]\n"),
        shown.replace(&format!("\"{word}\""), &format!("&t \"{word}\"")) + "services: [{ id: s, desc: *t }]\n",
        shown.replace("prefix: kv/weir", "prefix: kv/other"),
        format!("{shown}dns_resolver: [127.0.0.1:5]\n"),
    ];
    for changed in texts {
        let sent =
            json!({ "files": [{ "name": name, "text": changed }], "operations": [], "revision": draft["revision"] });
        for found in refused_by_all(&mut api, &sent) {
            let told = found["problem"].as_str().unwrap_or_default();
            let is_it = ["hidden value", "hidden ones", "environment variable"].iter().any(|part| told.contains(part));
            assert!(is_it && found["line"].is_u64(), "{found:#}");
        }
    }
    let mut value = api.get("secrets/vault/1")["value"].clone();
    value["uri"] = json!(format!("http://{}", thief.addr()));
    let put = |value: &Value| json!({ "operations": [{ "put": "secrets/vault/1", "value": value }] });
    let refused = api.ask("POST", EDIT, "", &put(&value).to_string());
    assert!(refused.status >= 400 && !refused.text().contains("s3cret"), "{}", refused.text());
    value["uri"] = json!(format!("http://{address}"));
    value["prefix"] = json!("kv/other");
    let refused = ask(&mut api, "POST", EDIT, &put(&value), 409);
    assert!(refused["error_msg"].as_str().is_some_and(|told| told.contains("write the secret itself")), "{refused}");
    value["token"] = json!("typed-anew");
    let answer = ask(&mut api, "POST", EDIT, &put(&value), 200);
    assert!(text(&answer, ".yaml").1.contains("token: \"typed-anew\""), "{answer}");
    assert_eq!(fs::read_to_string(gateway.file()).expect("the configuration"), before);
    assert_eq!(thief.requests().len(), 0, "nothing was sent there");
}

/// A variable of the node may be a secret: only those that the files use may be used.
#[test]
fn other_variables_of_the_environment_are_not_read() {
    let gateway =
        weir().env("NODE_SECRET", "s3cret-of-node").file("more.yaml", MORE).start(&settings(RESOURCES, WRITES));
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, _) = text(&draft, "more.yaml");
    for uri in ["${{NODE_SECRET}}", "$env://NODE_SECRET", "${{NODE_SECRET:=/x}}", "$ENV://NODE_SECRET/x"] {
        let changed = MORE.replace("/included", &format!("'{uri}'"));
        let sent =
            json!({ "files": [{ "name": name, "text": changed }], "operations": [], "revision": draft["revision"] });
        for found in refused_by_all(&mut api, &sent) {
            assert!(found["problem"].as_str().is_some_and(|told| told.contains("`NODE_SECRET`")), "{found:#}");
            assert_eq!(found["line"], 5, "{found:#}");
        }
    }
    assert_eq!(fs::read_to_string(&name).expect("it is read"), MORE);
}

#[test]
fn include_stays_as_it_is() {
    let gateway = start(WRITES);
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, shown) = text(&draft, &main_name(&gateway));
    let stranger = gateway.file().parent().expect("a directory").join("stranger.yaml");
    fs::write(&stranger, "s3cret: { of: stranger }\n").expect("it is written");
    for include in ["include: [more.yaml, stranger.yaml]", "include: /", "routes: []"] {
        let changed = shown.replace("include: more.yaml", include);
        let sent =
            json!({ "files": [{ "name": name, "text": changed }], "operations": [], "revision": draft["revision"] });
        for found in refused_by_all(&mut api, &sent) {
            assert_eq!(found["path"], "include", "{found:#}");
        }
    }
}

/// What is checked is what is written: a file is there once.
#[test]
fn a_file_that_is_named_twice_is_refused() {
    let gateway = start(WRITES);
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, _) = text(&draft, "more.yaml");
    let (good, wrong) = (MORE.replace("/included", "/other"), "routes: [{ id: x, urri: /x }]\n".to_owned());
    for texts in [[&good, &wrong], [&wrong, &good], [&good, &good]] {
        let files = texts.map(|text| json!({ "name": name, "text": text }));
        let sent = json!({ "files": files, "operations": [], "revision": draft["revision"] });
        for (method, path) in [("POST", CHECK), ("POST", EDIT), ("PUT", DRAFT)] {
            let refused = ask(&mut api, method, path, &sent, 400);
            assert!(
                refused["error_msg"].as_str().is_some_and(|told| told.ends_with("is there twice; send each file once"))
            );
        }
    }
    assert_eq!(fs::read_to_string(&name).expect("it is read"), MORE);
}

#[test]
fn a_dry_run_writes_nothing() {
    let gateway = start(&format!("{WRITES}  audit: {{ path: audit.log }}\n"));
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, _) = text(&draft, "more.yaml");
    let path = "/weir/v1/draft?dry_run=true";
    let send = |text: String| json!({ "files": [{ "name": name, "text": text }], "revision": draft["revision"] });
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&name).expect("it is there"));
    let answer = ask(&mut api, "PUT", path, &send(MORE.replace("/included", "/other")), 200);
    assert_eq!((&answer["dry_run"], answer.get("served")), (&json!(true), None), "{answer:#}");
    assert_ne!(answer["revision"], draft["revision"], "it would have another one");
    ask(&mut api, "PUT", path, &send(MORE.replace("upstream_id: u1", "upstream_id: none")), 400);
    assert_eq!(fs::read_to_string(&name).expect("it is read"), MORE);
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&fs::metadata(&name).expect("it is there")), inode);
    assert_eq!(read(&mut api)["revision"], draft["revision"]);
    let line = audit_line(&gateway, |line| line["dry_run"] == true && line["outcome"] == "accepted");
    assert_eq!((&line["changes"][0]["key"], line.get("revision")), (&json!("routes/included"), None), "{line:#}");
}

/// The first line of the audit log that is wanted.
#[track_caller]
fn audit_line(gateway: &Gateway, wanted: impl Fn(&Value) -> bool) -> Value {
    let audit = gateway.file().parent().expect("a directory").join("audit.log");
    weir_testkit::eventually_some("a line of the audit log", weir_testkit::DEADLINE, || {
        let lines = fs::read_to_string(&audit).unwrap_or_default();
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).find(&wanted)
    })
}

#[test]
fn changes_of_settings_are_in_the_audit_log() {
    let gateway = start(&format!("{WRITES}  audit: {{ path: audit.log }}\n"));
    let mut api = Api::of(&gateway);
    let draft = read(&mut api);
    let (name, shown) = text(&draft, &main_name(&gateway));
    let changed = format!("{shown}shutdown_delay: 5s\n");
    let sent = json!({ "files": [{ "name": name, "text": changed }], "revision": draft["revision"] });
    let answer = ask(&mut api, "PUT", DRAFT, &sent, 200);
    assert_eq!(answer["files"], json!([name]), "{answer:#}");
    let line = audit_line(&gateway, |line| line["path"] == "/weir/v1/draft");
    let expected = (&json!("accepted"), &json!(["shutdown_delay"]), &json!([name]), &json!("ann"));
    assert_eq!((&line["outcome"], &line["settings"], &line["files"], &line["who"]), expected, "{line:#}");
}

/// Each file is written beside the old one before the first is replaced.
#[test]
fn of_several_files_none_is_written_if_one_cannot_be() {
    let gateway = start(&format!("{WRITES}  audit: {{ path: audit.log }}\n"));
    let mut api = Api::of(&gateway);
    // One in a directory in which nothing can be written: a mount of another kind.
    let directory = gateway.file().parent().expect("a directory").to_owned();
    let more = directory.join("more.yaml");
    fs::remove_file(&more).and_then(|()| symlink("/proc/self/environ", &more)).expect("a link");
    let broken = api.ask("GET", DRAFT, "", "");
    assert!(!broken.text().contains("PATH="), "{}", broken.text());
    fs::remove_file(&more).and_then(|()| fs::write(&more, MORE)).expect("it is as before");
    let draft = read(&mut api);
    let ((name, _), (main, shown)) = (text(&draft, "more.yaml"), text(&draft, &main_name(&gateway)));
    let before = fs::read_to_string(gateway.file()).expect("the configuration");
    // The name of a file beside it would be too long.
    let long = directory.join(format!("{}.yaml", "x".repeat(245)));
    fs::rename(&more, &long).and_then(|()| symlink(&long, &more)).expect("a link");
    let files = json!([
        { "name": main, "text": format!("{shown}# more\n") },
        { "name": name, "text": MORE.replace("/included", "/other") },
    ]);
    let sent = json!({ "files": files, "revision": draft["revision"] });
    let failed = ask(&mut api, "PUT", DRAFT, &sent, 503);
    assert_eq!((&failed["written"], &failed["not_written"]), (&json!([]), &json!([main, name])), "{failed:#}");
    assert!(failed["error_msg"].as_str().is_some_and(|told| told.ends_with("no file was changed")), "{failed:#}");
    assert_eq!(fs::read_to_string(gateway.file()).expect("the configuration"), before);
    assert_eq!(fs::read_to_string(&name).expect("it is read"), MORE);
    let line = audit_line(&gateway, |line| line["outcome"] == "failed");
    assert_eq!((&line["files"], &line["not_written"]), (&json!([]), &json!([main, name])), "{line:#}");
}

/// Items that a variable stands for have no place in the text.
#[test]
fn resources_of_variables_are_not_edited_by_their_index() {
    let more = "routes: [${{BOTH}}, { id: third, uri: /third, upstream_id: u1 }]\nservices: ${{ALL}}\n";
    let both = "{ id: first, uri: /first, upstream_id: u1 }, { id: second, uri: /second, upstream_id: u1 }";
    let gateway = weir()
        .env("BOTH", both)
        .env("ALL", "[{ id: s, upstream_id: u1 }]")
        .file("more.yaml", more)
        .start(&settings(RESOURCES, "  draft: read\n"));
    let mut api = Api::of(&gateway);
    for (operation, column) in [
        (json!({ "delete": "routes/third" }), 9),
        (json!({ "delete": "routes/first" }), 9),
        (json!({ "put": "routes/second", "value": { "uri": "/x" } }), 9),
        (json!({ "put": "routes/new", "value": { "uri": "/x" } }), 9),
        (json!({ "delete": "services/s" }), 11),
        (json!({ "put": "services/new", "value": { "upstream_id": "u1" } }), 11),
    ] {
        let refused = ask(&mut api, "POST", EDIT, &json!({ "operations": [operation] }), 409);
        let place = &refused["diagnostics"][0];
        assert!(place["file"].as_str().is_some_and(|name| name.ends_with("more.yaml")), "{refused:#}");
        assert_eq!(place["column"], column, "{operation}: {refused:#}");
    }
    let other = json!({ "operations": [{ "delete": "consumers/jack" }] });
    ask(&mut api, "POST", EDIT, &other, 200);
}

/// Who selects the first two of three means these, and not the first and the third.
#[test]
fn resources_without_ids_are_not_mistaken_for_those_that_take_their_positions() {
    let nameless = |number: u8| format!("- {{ uri: /{number}, upstream_id: u1 }}\n");
    let more =
        format!("routes:\n{}- {{ id: x, uri: /x, upstream_id: u1 }}\n", (1..=3).map(nameless).collect::<String>());
    let gateway = weir().file("more.yaml", &more).start(&settings(RESOURCES, "  draft: read\n"));
    let mut api = Api::of(&gateway);
    let put = json!({ "put": "routes/arr_1", "value": { "uri": "/changed", "upstream_id": "u1" } });
    let delete = |id: &str| json!({ "delete": format!("routes/{id}") });
    for operations in [json!([delete("arr_1"), delete("arr_2")]), json!([delete("arr_2"), put, delete("arr_2")])] {
        let refused = ask(&mut api, "POST", EDIT, &json!({ "operations": operations }), 409);
        let told = refused["error_msg"].as_str().unwrap_or_default();
        assert!(told.contains("is known by its position, which has changed in this request"), "{refused:#}");
    }
    // From the last to the first, and beside changes of other lists, each is where it was.
    let operations = json!([delete("x"), delete("arr_3"), delete("arr_2"), put]);
    let answer = ask(&mut api, "POST", EDIT, &json!({ "operations": operations }), 200);
    assert_eq!(text(&answer, "more.yaml").1, "routes:\n- { uri: /changed, upstream_id: u1 }\n");
    let operations = json!([{ "delete": "consumers/jack" }, delete("arr_2")]);
    let answer = ask(&mut api, "POST", EDIT, &json!({ "operations": operations }), 200);
    assert_eq!(text(&answer, "more.yaml").1, more.replacen(&nameless(2), "", 1));
}

#[test]
fn all_operations_of_a_request_have_one_budget() {
    let gateway = start("  draft: read\n");
    let mut api = Api::of(&gateway);
    let (name, _) = text(&read(&mut api), "more.yaml");
    let one = json!({ "file": name, "op": "replace", "path": "/routes/0/uri", "value": "/a" });
    let refused = ask(&mut api, "POST", EDIT, &json!({ "operations": vec![one; 1_001] }), 413);
    assert!(refused["error_msg"].as_str().is_some_and(|told| told.contains("operations")), "{refused}");
}

/// A check reads nothing but the texts, and what the node has loaded already. A FIFO would be waited for.
#[test]
fn a_check_opens_no_other_file() {
    let gateway = start("  draft: read\n");
    let mut api = Api::of(&gateway);
    let directory = gateway.file().parent().expect("a directory").to_owned();
    let fifo = directory.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.is_ok_and(|status| status.success()), "a FIFO");
    let (name, shown) = text(&read(&mut api), &main_name(&gateway));
    let check = |api: &mut Api, more: &str| {
        let sent = json!({ "files": [{ "name": name, "text": format!("{shown}{more}") }] });
        ask(api, "POST", CHECK, &sent, 200)
    };
    let fifo = fifo.display();
    for more in [
        format!("ssls: [{{ id: s, sni: a.test, cert: {fifo}, key: {fifo} }}]\n"),
        format!("ssl_trusted_certificate: {fifo}\n"),
    ] {
        let answer = check(&mut api, &more);
        assert_eq!(answer["valid"], false, "{answer:#}");
        let told = answer["findings"].to_string();
        assert!(told.contains("the running node has not loaded it"), "{answer:#}");
    }
    // Nor does it keep their names: the plugin is refused before it is one.
    for more in
        [format!("wasm: {{ plugins: [{{ name: of-a-draft, file: {fifo} }}] }}\n"), "wasm: { plugins: [] }\n".to_owned()]
    {
        let answer = check(&mut api, &more);
        let finding = &answer["findings"][0];
        assert_eq!(
            (&answer["valid"], &finding["path"], &finding["severity"]),
            (&json!(false), &json!("wasm"), &json!("error"))
        );
    }
}
