//! Who gets answers, and what is never in one.

use std::collections::BTreeSet;

use serde_json::Value;
use weir_testkit::{Authority, Client};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file};
use crate::weir;

pub(crate) const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "TRACE"];

pub(crate) const PATHS: [&str; 27] = [
    "routes",
    "routes/r",
    "routes/r/uri",
    "services/s",
    "upstreams/u",
    "ssls/s",
    "protos/p",
    "stream_routes/s",
    "consumers",
    "consumers/jack",
    "consumers/jack/credentials/c",
    "consumer_groups/g",
    "plugin_configs/p",
    "global_rules/g",
    "plugin_metadata/http-logger",
    "secrets/vault/1",
    "plugins",
    "plugins/list",
    "plugins/reload",
    "schema/route",
    "schema/plugins/key-auth",
    "schema/validate/routes",
    "configs",
    "configs/validate",
    "history",
    "history/1/rollback",
    "nodes",
];

#[test]
fn nothing_is_answered_without_a_key() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    for by_http2 in [false, true] {
        let mut client = Client::connect(address);
        if by_http2 {
            client = client.by_http2();
        }
        for path in PATHS {
            for method in METHODS {
                let request =
                    format!("{method} /apisix/admin/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n");
                let answer = client.ask(request).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
                // The Admin API refuses these two methods before it reads the key.
                let is_refused = matches!((method, answer.status), (_, 401) | ("HEAD", 404) | ("TRACE", 405));
                assert!(is_refused, "{method} {path}: {} {}", answer.status, answer.text());
                assert!(!answer.text().contains("total"), "{}", answer.text());
            }
        }
    }
    let mut api = Api::with_key(address, "a-key-that-nobody-has");
    assert!(api.ask("GET", "routes", "", "").text().contains("wrong apikey"));
}

#[test]
fn roles_say_what_a_key_is_good_for() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    let route = r#"{"uri": "/r", "plugins": {}}"#;
    let vault = r#"{"uri": "http://127.0.0.1:1", "prefix": "kv", "token": "t0ken"}"#;
    // (method, path, body, status for an admin, an editor, a viewer)
    let table = [
        ("PUT", "routes/r", route, [201, 200, 401]),
        ("GET", "routes/r", "", [200, 200, 200]),
        ("PATCH", "routes/r", "{\"name\":\"n\"}", [200, 200, 401]),
        ("POST", "routes", route, [201, 201, 401]),
        ("PUT", "secrets/vault/1", vault, [201, 403, 401]),
        ("GET", "secrets/vault/1", "", [200, 200, 200]),
        ("DELETE", "secrets/vault/1", "", [200, 403, 401]),
        ("PATCH", "configs", r#"{"operations":[{"put":"secrets/vault/2","value":{}}]}"#, [400, 400, 401]),
        ("POST", "schema/validate/routes", route, [200, 200, 200]),
        ("POST", "configs/validate", r#"{"routes":[]}"#, [200, 200, 200]),
        ("GET", "history", "", [200, 200, 200]),
        ("POST", "history/1/rollback", "", [200, 403, 401]),
    ];
    for (method, path, body, statuses) in table {
        for (key, expected) in [ADMIN, EDITOR, VIEWER].into_iter().zip(statuses) {
            let answer = Api::with_key(address, key).ask(method, path, "", body);
            assert_eq!(answer.status, expected, "{method} {path} with {key}: {}", answer.text());
        }
    }
}

#[test]
fn every_end_point_asks_for_the_role() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    for path in PATHS {
        for method in ["GET", "PUT", "POST", "PATCH", "DELETE"] {
            let reads = method == "GET" || method == "POST" && path.contains("validate");
            // Managers of secrets, and the store as a whole, are an admin's.
            let is_of_admins =
                !reads && path.starts_with("secrets/") || path.ends_with("/rollback") && method == "POST";
            let status = |key: &'static str| Api::with_key(address, key).ask(method, path, "", "{}").status;
            let (viewer, editor, admin) = (status(VIEWER), status(EDITOR), status(ADMIN));
            // What is no end point for this method is none for anybody.
            if matches!(admin, 404 | 405) && viewer == admin && editor == admin {
                continue;
            }
            let refused = (viewer == 401, editor == 403, matches!(admin, 401 | 403));
            assert_eq!(refused, (!reads, is_of_admins, false), "{method} {path}: {viewer}, {editor}, {admin}");
        }
    }
}

#[test]
fn web_pages_of_others_get_nothing() {
    let gateway =
        weir().start(&format!("{}  hosts: [weir.example]\n  origins: [\"https://console.example\"]\n", file()));
    let mut client = Client::connect(admin_addr(&gateway));
    let mut ask = |host: &str, origin: &str| {
        let origin = if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
        let request =
            format!("GET /apisix/admin/routes HTTP/1.1\r\nHost: {host}\r\nX-API-KEY: {ADMIN}\r\n{origin}\r\n");
        let answer = client.ask(request).expect("an answer");
        (answer.status, answer.headers.get("access-control-allow-origin").map(str::to_owned))
    };
    assert_eq!(ask("127.0.0.1", ""), (200, None));
    assert_eq!(ask("localhost:9180", "http://localhost:9180"), (200, None), "a page of its own");
    assert_eq!(ask("weir.example", ""), (200, None));
    assert_eq!(ask("rebound.example", ""), (421, None), "a name that means this address just now");
    assert_eq!(ask("127.0.0.1", "https://evil.example"), (403, None));
    assert_eq!(ask("127.0.0.1", "null"), (403, None));
    assert_eq!(ask("127.0.0.1", "https://console.example"), (200, Some("https://console.example".to_owned())));
}

#[test]
fn secrets_are_in_no_answer() {
    let yaml = format!("{}resource_env: [WEIR_TEST_PASSWORD]\n", file());
    let gateway = weir().env("WEIR_TEST_PASSWORD", "s3cret-of-the-environment").start(&yaml);
    let mut api = Api::of(&gateway);
    let identity = Authority::of_tests().identity(&["a.example"]);
    let ssl = serde_json::json!({"cert": identity.certificate, "key": identity.key, "sni": "a.example"});
    api.put("ssls/1", &ssl.to_string());
    api.put("secrets/vault/1", r#"{"uri": "http://127.0.0.1:1", "prefix": "kv", "token": "s3cret-of-a-manager"}"#);
    api.put("consumers", r#"{"username": "jack", "plugins": {"key-auth": {"key": "s3cret-of-jack"}}}"#);
    api.put("consumers", r#"{"username": "rose", "plugins": {"key-auth": {"key": "$env://WEIR_TEST_PASSWORD"}}}"#);
    let secret_key = identity.key.lines().nth(1).expect("a line of it").to_owned();
    let lists =
        ["ssls", "secrets", "secrets/vault/1", "ssls/1", "consumers", "consumers/jack", "consumers/rose", "history"];
    let seen = |key: &'static str| -> String {
        let mut api = Api::with_key(admin_addr(&gateway), key);
        lists.iter().map(|path| api.ask("GET", path, "", "").text()).collect()
    };
    for key in [ADMIN, EDITOR, VIEWER] {
        let text = seen(key);
        for secret in ["s3cret-of-a-manager", "s3cret-of-the-environment", &secret_key] {
            assert!(!text.contains(secret), "{secret} is shown to {key}");
        }
        assert!(text.contains("$env://WEIR_TEST_PASSWORD"), "a reference is none");
        assert_eq!(text.contains("s3cret-of-jack"), key != VIEWER);
    }
    // What was masked is sent back as it is.
    let vault: Value = api.get("secrets/vault/1")["value"].clone();
    let mut sent = vault.clone();
    sent.as_object_mut().expect("a map").retain(|name, _| !name.ends_with("_time"));
    api.put("secrets/vault/1", &sent.to_string());
    let status = gateway.ask_status("/status").text();
    assert!(!status.contains("s3cret"), "{status}");
    assert!(!gateway.stderr().contains("s3cret"), "{}", gateway.stderr());
}

#[test]
fn a_node_without_keys_makes_one_for_loopback_alone() {
    let gateway = weir().start("admin: { listen: \"127.0.0.1:0\" }\n");
    let line = gateway.wait_stderr("where its key is", |line| line.contains("the key of the Admin API is in "));
    let path = line.rsplit(' ').next().expect("a path");
    let key = std::fs::read_to_string(gateway.directory().join(path)).expect("a file");
    let key: &'static str = Box::leak(key.trim().to_owned().into_boxed_str());
    assert_eq!(Api::with_key(admin_addr(&gateway), key).get("routes")["total"], 0);
    let mut refused = weir().spawn("admin: { listen: \"0.0.0.0:0\" }\n");
    assert_eq!(refused.wait_exit(weir_testkit::DEADLINE).code(), Some(1));
    assert!(refused.stderr().contains("has no key"), "{}", refused.stderr());
}

#[test]
fn bodies_have_limits() {
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    let large = format!("{{\"uri\":\"/{}\"}}", "a".repeat(1_600_000));
    let answer = Api::with_key(address, ADMIN).ask("PUT", "routes/r", "", &large);
    assert_eq!(answer.status, 413);
    let deep = format!("{{\"uri\":\"/a\",\"plugins\":{}{}}}", "{\"a\":".repeat(100) + "1", "}".repeat(100));
    let answer = Api::with_key(address, ADMIN).ask("PUT", "routes/r", "", &deep);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("more than 64 levels deep"), "{}", answer.text());
}

/// Who may read and change what is below `/weir/v1`.
struct OwnPath {
    path: &'static str,
    /// The status of a GET by a viewer.
    viewer_reads: u16,
    /// Whether a POST is a check, which changes nothing.
    is_check: bool,
}

const fn own(path: &'static str, viewer_reads: u16) -> OwnPath {
    OwnPath { path, viewer_reads, is_check: false }
}

/// All paths below `/weir/v1` besides those of sessions. [`names_of_own_paths`] finds one that is missing here.
const OWN_PATHS: [OwnPath; 21] = [
    own("status", 200),
    own("policies", 200),
    own("records", 200),
    own("records/test", 405),
    own("metrics", 200),
    own("metrics/history", 200),
    own("certificates", 200),
    own("settings", 200),
    own("table/routes", 200),
    own("hubs", 200),
    own("hubs/h/replay", 404),
    own("lab", 404),
    own("lab/result.json", 404),
    own("trace", 405),
    OwnPath { path: "explain", viewer_reads: 405, is_check: true },
    // The addresses of clients.
    own("tail", 403),
    // The keys of the Admin API.
    own("draft", 403),
    own("draft/check", 403),
    // With a key of this node.
    own("environments", 403),
    own("environments/live", 403),
    own("environments/live/promote", 403),
];

/// The names in the patterns by which the sources choose who answers a path below `/weir/v1`.
fn names_of_own_paths() -> BTreeSet<String> {
    let router = include_str!("../../crates/weir-control/src/admin/api.rs");
    let pages = include_str!("../../crates/weir/src/node/admin/pages.rs");
    let mut names = BTreeSet::new();
    for (source, function) in [(router, "fn route_own("), (router, "fn is_page("), (pages, "fn page(")] {
        let (_, body) = source.split_once(function).unwrap_or_else(|| panic!("there is no `{function}`"));
        // To the end of the function: the next line with a closing brace as far to the left as its first line.
        let end = body.lines().position(|line| line == "    }" || line == "}").expect("an end");
        for line in body.lines().take(end).map(str::trim_start) {
            let is_pattern = line.starts_with("([") || line.starts_with('[') || line.starts_with("| [");
            // What is behind the arrow is no pattern.
            let pattern = line.split("=>").next().filter(|_| is_pattern).unwrap_or_default();
            names.extend(pattern.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    names
}

#[test]
fn every_own_end_point_asks_a_viewer_for_the_role() {
    let known: BTreeSet<&str> = OWN_PATHS.iter().flat_map(|own| own.path.split('/')).chain(["events"]).collect();
    let names = names_of_own_paths();
    assert!(names.len() > 12 && names.contains("records") && names.contains("test"), "{names:?}");
    let missing: Vec<&String> = names.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "OWN_PATHS does not say who may use {missing:?}");
    let gateway = weir().start(&file());
    let address = admin_addr(&gateway);
    let status = |key: &'static str, method: &str, path: &str| {
        Api::with_key(address, key).ask(method, &format!("/weir/v1/{path}"), "", "{}").status
    };
    for OwnPath { path, viewer_reads, is_check } in &OWN_PATHS {
        let unknown = Client::connect(address).ask(format!("GET /weir/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"));
        assert_eq!(unknown.expect("an answer").status, 401, "{path}");
        assert_eq!(status(VIEWER, "GET", path), *viewer_reads, "GET {path}");
        for method in ["PUT", "POST", "PATCH", "DELETE"] {
            let expected = match (is_check, method) {
                (false, _) => 403,
                (true, "POST") => 400,
                (true, _) => 405,
            };
            assert_eq!(status(VIEWER, method, path), expected, "{method} {path}");
        }
    }
    // A stream that a viewer may read; and what there is not, or not yet, is closed all the same.
    for method in ["PUT", "POST", "PATCH", "DELETE"] {
        for path in ["events", "none", "none/at/all", "status/none", "session/none"] {
            assert_eq!(status(VIEWER, method, path), 403, "{method} {path}");
        }
    }
}
