//! Resources that lack something outside of the configuration: a secret, a file, a variable, a valid date. They are set aside or
//! served with a warning, whatever the store, and checks say so before.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use weir_testkit::{
    Authority, Client, DEADLINE, Gateway, Identity, KeyKind, Response, Signal, TempDir, TlsClient, eventually,
};

use crate::api::{Api, EDITOR, VIEWER, admin_addr, file, json as json_of};
use crate::etcd::Etcd;
use crate::weir;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn identity(authority: &Authority, name: &str, begin: SystemTime) -> Identity {
    authority.identity_with(&[name], KeyKind::Ecdsa, |params| {
        (params.not_before, params.not_after) = (begin.into(), (begin + DAY).into());
    })
}

fn ssl(id: &str, name: &str, identity: &Identity) -> Value {
    json!({"id": id, "snis": [name], "cert": identity.certificate, "key": identity.key})
}

fn fixed(id: &str) -> Value {
    json!({"id": id, "uri": format!("/{id}"), "plugins": {"mocking": {"response_example": id}}})
}

/// A node whose resources are in one of the stores.
struct Site {
    gateway: Gateway,
    api: Api,
    is_standalone: bool,
    digest: usize,
}

impl Site {
    fn start(store: &str, directory: &TempDir) -> Site {
        let gateway = weir().start(&format!(
            "listen: [\"127.0.0.1:0\", {{ address: \"127.0.0.1:0\", tls: true }}]\n{}data_dir: {data}/data\nresource_files: [{data}]\nresource_secrets: [\"vault/*\"]\nresource_env: [WEIR_TEST_NOT_SET]\n{store}",
            file(),
            data = directory.path().display()
        ));
        Site { api: Api::of(&gateway), gateway, is_standalone: store.contains("standalone"), digest: 0 }
    }

    fn validate(&mut self, lists: &Value) -> Response {
        self.api.ask("POST", "configs/validate", "", &lists.to_string())
    }

    /// Puts the resources of all lists at once.
    fn put(&mut self, lists: &Value, dry_run: bool) -> Response {
        let path = if dry_run { "configs?dry_run=true" } else { "configs" };
        if self.is_standalone {
            self.digest += 1;
            let digest = format!("X-Digest: d{}\r\n", self.digest);
            return self.api.ask("PUT", path, &digest, &lists.to_string());
        }
        let mut operations = Vec::new();
        for (list, items) in lists.as_object().expect("lists") {
            for item in items.as_array().expect("a list") {
                let id = item.get("id").or_else(|| item.get("username")).and_then(Value::as_str).expect("an id");
                operations.push(json!({"put": format!("{list}/{id}"), "value": item}));
            }
        }
        self.api.ask("PATCH", path, "", &json!({ "operations": operations }).to_string())
    }
}

/// Whether it is accepted, with the places and problems of its findings.
fn verdict(answer: &Response) -> (bool, BTreeSet<String>) {
    let body: Map<String, Value> = serde_json::from_str(&answer.text()).unwrap_or_default();
    let findings = ["diagnostics", "warnings"].iter().filter_map(|name| body.get(*name)?.as_array()).flatten();
    let told = |found: &Value| format!("{}: {}", found["path"].as_str().unwrap_or_default(), found["problem"]);
    (matches!(answer.status, 200..=202), findings.map(told).collect())
}

/// A body, whether it is accepted, and what its findings contain; nothing if there are none.
type Case = (&'static str, Value, bool, &'static str);

fn cases(directory: &TempDir) -> Vec<Case> {
    // Long, since it is a table.
    let authority = Authority::of_tests();
    let in_time = identity(authority, "good.test", SystemTime::now() - DAY / 2);
    let expired = identity(authority, "expired.test", SystemTime::now() - 2 * DAY);
    let early = identity(authority, "early.test", SystemTime::now() + DAY);
    let missing = directory.path().join("missing.pem").display().to_string();
    let nodes = directory.path().join("missing.json").display().to_string();
    let manager = json!({"id": "vault/1", "uri": "http://127.0.0.1:1", "prefix": "kv", "token": "t"});
    let key = |key: &str| json!([{"username": "jack", "plugins": {"key-auth": {"key": key}}}]);
    let route = |id: &str, mut more: Value| {
        more["id"] = id.into();
        more["uri"] = format!("/{id}").into();
        json!([fixed("alive"), more])
    };
    vec![
        ("a route", json!({"routes": [fixed("alive")]}), true, ""),
        ("a certificate", json!({"ssls": [ssl("good", "good.test", &in_time)]}), true, ""),
        ("an expired certificate", json!({"ssls": [ssl("old", "expired.test", &expired)]}), true, "has expired"),
        ("an early certificate", json!({"ssls": [ssl("new", "early.test", &early)]}), true, "is not valid yet"),
        (
            "a certificate in a missing file",
            json!({"ssls": [{"id": "gone", "snis": ["gone.test"], "cert": missing, "key": missing}]}),
            true,
            "cannot be read",
        ),
        ("a variable that is not set", json!({"consumers": key("$env://WEIR_TEST_NOT_SET")}), true, "is not set"),
        (
            "a secret of a manager that is away",
            json!({"secrets": [manager], "consumers": key("$secret://vault/1/jack/key")}),
            true,
            "cannot be read",
        ),
        (
            "a list of nodes in a missing file, and a route that refers to it",
            json!({
                "upstreams": [{"id": "listed", "nodes_file": nodes}],
                "routes": route("listed", json!({"upstream_id": "listed"})),
            }),
            true,
            "cannot be read",
        ),
        (
            "a name that is unknown",
            json!({"routes": route("named", json!({"upstream": {"nodes": {"no-such-host.invalid:80": 1}}}))}),
            true,
            "",
        ),
        (
            "an OIDC provider that is away",
            json!({"routes": route("oidc", json!({"plugins": {"openid-connect": {
                "client_id": "c", "client_secret": "s", "discovery": "http://127.0.0.1:1/d", "bearer_only": true,
            }, "mocking": {"response_example": "x"}}}))}),
            true,
            "",
        ),
        ("an unknown plugin", json!({"routes": route("x", json!({"plugins": {"nope": {}}}))}), false, "no plugin"),
        ("a wrong type", json!({"routes": route("x", json!({"plugins": 7}))}), false, "plugins"),
        (
            "a reference to nothing",
            json!({"routes": route("x", json!({"upstream_id": "none"}))}),
            false,
            "has no `none`",
        ),
        ("an unknown manager", json!({"consumers": key("$secret://vault/9/jack/key")}), false, "there is no secrets"),
        (
            "a secret of a manager that is away, and a fault",
            json!({
                "secrets": [manager],
                "consumers": [{"username": "jack", "plugins": {"key-auth": {"key": "$secret://vault/1/jack/key"}, "no": {}}}],
            }),
            false,
            "no plugin",
        ),
    ]
}

fn checks_agree(store: &str) {
    let directory = TempDir::new();
    let mut site = Site::start(store, &directory);
    assert!(verdict(&site.put(&json!({"routes": [fixed("alive")]}), false)).0);
    for (name, mut lists, accepted, finding) in cases(&directory) {
        if lists.get("routes").is_none() {
            lists["routes"] = json!([fixed("alive")]);
        }
        let validated = site.validate(&lists);
        let dry = site.put(&lists, true);
        let made = site.put(&lists, false);
        let (is_made, findings) = verdict(&made);
        assert_eq!(is_made, accepted, "{store}: {name}: {} {}", made.status, made.text());
        let is_told = findings.iter().any(|told| told.contains(finding));
        assert!(is_told && !finding.is_empty() || findings.is_empty(), "{store}: {name}: {findings:?}");
        for (what, answer) in [("validation", &validated), ("a dry run", &dry)] {
            let told = verdict(answer);
            assert_eq!(
                told,
                (is_made, findings.clone()),
                "{store}: {name}: {what}: {} {}",
                answer.status,
                answer.text()
            );
        }
        assert_eq!(site.gateway.get("/alive").text(), "alive", "{store}: {name}: the rest is served");
    }
}

#[test]
fn checks_say_what_a_change_says_in_memory() {
    checks_agree("store: standalone\n");
}

#[test]
fn checks_say_what_a_change_says_in_an_embedded_store() {
    checks_agree("");
}

#[test]
fn checks_say_what_a_change_says_in_etcd() {
    let Some(etcd) = Etcd::of(1) else { return };
    checks_agree(&etcd.settings());
}

#[test]
fn an_expired_certificate_does_not_keep_a_restarted_standalone_node_from_serving() {
    let authority = Authority::of_tests();
    let (expired, good) =
        (identity(authority, "old.test", SystemTime::now() - 2 * DAY), authority.identity(&["good.test"]));
    let lists = json!({
        "routes": [fixed("alive")],
        "ssls": [ssl("old", "old.test", &expired), ssl("good", "good.test", &good)],
    });
    let directory = TempDir::new();
    let mut site = Site::start("store: standalone\n", &directory);
    let made = site.put(&lists, false);
    assert_eq!(made.status, 202, "{}", made.text());
    assert!(made.text().contains("ssls/old: cert") && made.text().contains("has expired"), "{}", made.text());
    assert_eq!(site.gateway.get("/alive").text(), "alive");
    let tls = TlsClient::trusting(authority);
    assert!(Client::connect_tls(site.gateway.tls_addr(), &tls, "good.test").is_ok());
    let warnings = site.gateway.status()["configuration"]["warnings"].to_string();
    assert!(warnings.contains("has expired"), "{warnings}");
}

#[test]
fn an_expired_certificate_does_not_replace_a_valid_one_in_a_store() {
    let authority = Authority::of_tests();
    let (expired, good) = (identity(authority, "a.test", SystemTime::now() - 2 * DAY), authority.identity(&["a.test"]));
    for store in ["store: standalone\n", ""] {
        let directory = TempDir::new();
        let mut site = Site::start(store, &directory);
        assert!(verdict(&site.put(&json!({"ssls": [ssl("a", "a.test", &good)]}), false)).0);
        let replaced = site.put(&json!({"ssls": [ssl("a", "a.test", &expired)], "routes": [fixed("alive")]}), false);
        assert!(verdict(&replaced).0, "{}", replaced.text());
        assert_eq!(replaced.headers.get("x-weir-set-aside"), Some("ssls/a"), "{}", replaced.text());
        assert_eq!(site.gateway.get("/alive").text(), "alive");
        let tls = TlsClient::trusting(authority);
        let mut client =
            Client::connect_tls(site.gateway.tls_addr(), &tls, "a.test").expect("the old one is presented");
        assert_eq!(client.get("/alive").expect("an answer").status, 200);
        assert!(verdict(&site.put(&json!({"ssls": [ssl("a", "a.test", &good)], "routes": [fixed("alive")]}), false)).0);
        let warnings = site.gateway.status()["configuration"]["warnings"].to_string();
        assert!(!warnings.contains("has expired"), "{warnings}");
    }
}

#[test]
fn a_store_with_resources_that_lack_something_outside_is_served_after_a_restart() {
    let directory = TempDir::new();
    let mut site = Site::start("", &directory);
    let manager = json!({"id": "vault/1", "uri": "$env://WEIR_TEST_NOT_SET", "prefix": "kv", "token": "t"});
    let jack = json!({"username": "jack", "plugins": {"key-auth": {"key": "$secret://vault/1/jack/key"}}});
    let lists = json!({"secrets": [manager], "consumers": [jack], "routes": [fixed("alive")]});
    let made = site.put(&lists, false);
    assert_eq!(made.status, 200, "{}", made.text());
    site.gateway.signal(Signal::TERM);
    site.gateway.wait_exit(DEADLINE);
    let mut site = Site::start("", &directory);
    assert_eq!(site.gateway.get("/alive").text(), "alive");
    assert!(verdict(&site.put(&json!({"routes": [fixed("second")]}), false)).0);
    assert_eq!(site.gateway.get("/second").text(), "second");
}

/// A manager of secrets that closes each connection while it is away.
fn vault(is_away: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            if is_away.load(Relaxed) {
                continue;
            }
            let _ = stream.read(&mut [0; 4096]);
            let body = r#"{"data": {"key": "of-jack"}}"#;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    address
}

#[test]
fn a_secret_that_could_not_be_read_is_asked_for_by_the_next_change() {
    for store in ["store: standalone\n", ""] {
        let directory = TempDir::new();
        let mut site = Site::start(store, &directory);
        let is_away = Arc::new(AtomicBool::new(true));
        let address = vault(Arc::clone(&is_away));
        let manager = json!({"id": "vault/1", "uri": format!("http://{address}"), "prefix": "kv", "token": "t"});
        let jack = |name: usize| {
            let plugins = json!({"key-auth": {"key": "$secret://vault/1/jack/key"}});
            json!({"username": "jack", "desc": name.to_string(), "plugins": plugins})
        };
        let route = json!({"id": "r", "uri": "/r", "plugins": {"key-auth": {}, "mocking": {"response_example": "r"}}});
        let lists = |name| json!({"secrets": [manager], "consumers": [jack(name)], "routes": [route, fixed("alive")]});
        let away = site.put(&lists(0), false);
        assert!(verdict(&away).0, "{}", away.text());
        assert_eq!(away.headers.get("x-weir-set-aside"), Some("consumers/jack"));
        assert_eq!(site.gateway.get("/alive").text(), "alive");
        let status = |gateway: &Gateway| {
            let request = "GET /r HTTP/1.1\r\nHost: h\r\napikey: of-jack\r\n\r\n";
            gateway.client().ask(request).expect("an answer").status
        };
        assert_eq!(status(&site.gateway), 401);
        is_away.store(false, Relaxed);
        // Changes wait a moment for the answer; on a busy machine it may take longer than for one of them.
        let is_back = (1..20).any(|name| {
            let answer = site.put(&lists(name), false);
            assert!(verdict(&answer).0, "{}", answer.text());
            answer.headers.get("x-weir-set-aside").is_none()
        });
        assert!(is_back, "{store}: a change asks again");
        assert_eq!(status(&site.gateway), 200);
    }
}

#[test]
fn a_file_that_vanishes_does_not_keep_other_resources_from_changing() {
    let directory = TempDir::new();
    let identity = Authority::of_tests().identity(&["a.test"]);
    let (cert, key) = (directory.write("a.pem", &identity.certificate), directory.write("a.key", &identity.key));
    let mut site = Site::start("", &directory);
    let in_files = json!({"id": "a", "snis": ["a.test"], "cert": cert, "key": key});
    assert!(verdict(&site.put(&json!({"ssls": [in_files], "routes": [fixed("alive")]}), false)).0);
    std::fs::remove_file(directory.path().join("a.pem")).expect("it is there");
    let made = site.put(&json!({"routes": [fixed("second")]}), false);
    assert!(verdict(&made).0, "{}", made.text());
    assert_eq!(site.gateway.get("/second").text(), "second");
    let told = json_of(&site.validate(&json!({"routes": [fixed("third")]})));
    assert_eq!(told, json!({}), "it is no finding about other resources");
    // Either the change has found it, or the node has noticed by itself.
    let told = || site.gateway.status()["configuration"].to_string();
    eventually("the file is missed", DEADLINE, || told().contains("cannot be read"));
}

#[test]
fn a_certificate_stays_in_use_until_its_key_has_followed_and_is_refused_at_a_start_without_it() {
    let (directory, authority) = (TempDir::new(), Authority::of_tests());
    let (of_all, first, second) =
        (authority.identity(&["other.test"]), authority.identity(&["a.test"]), authority.identity(&["a.test"]));
    let (cert, key) = (directory.write("a.pem", &first.certificate), directory.write("a.key", &first.key));
    let mut site = Site::start("", &directory);
    let in_files = json!({"id": "a", "snis": ["a.test"], "cert": cert, "key": key});
    let wide = json!({"id": "all", "snis": ["*"], "cert": of_all.certificate, "key": of_all.key});
    assert!(verdict(&site.put(&json!({"ssls": [in_files, wide], "routes": [fixed("alive")]}), false)).0);
    let tls = TlsClient::trusting(authority);
    let is_served = |gateway: &Gateway| Client::connect_tls(gateway.tls_addr(), &tls, "a.test").is_ok();
    assert!(is_served(&site.gateway));
    directory.write("a.pem", &second.certificate);
    let refused = || site.gateway.status()["configuration"]["last_error"].to_string();
    eventually("the reload is refused", DEADLINE, || refused().contains("ssls/a"));
    assert!(is_served(&site.gateway), "the old one is presented");
    directory.write("a.key", &second.key);
    eventually("both are taken", DEADLINE, || refused() == "null");
    assert!(is_served(&site.gateway));
    site.gateway.signal(Signal::TERM);
    site.gateway.wait_exit(DEADLINE);
    std::fs::remove_file(directory.path().join("a.key")).expect("it is there");
    let site = Site::start("", &directory);
    let shown = |name: &str| Client::connect_tls(site.gateway.tls_addr(), &TlsClient::trusting(authority), name);
    let error = shown("a.test").err().expect("the entry for all names does not take its place").to_string();
    assert!(error.contains("UnrecognisedName"), "{error}");
    let mut other = shown("other.test").expect("the entry for all is served");
    assert_eq!(other.get("/alive").expect("an answer").status, 200);
    let elsewhere = other.ask("GET /alive HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("an answer");
    assert_eq!(elsewhere.status, 421, "its requests are refused on connections for other names");
}

#[test]
fn a_check_of_a_viewer_asks_no_manager_for_secrets() {
    let manager = TcpListener::bind("127.0.0.1:0").expect("a free port");
    manager.set_nonblocking(true).expect("a socket");
    let uri = format!("http://{}", manager.local_addr().expect("it has one"));
    let lists = json!({
        "secrets": [{"id": "vault/1", "uri": uri, "prefix": "kv", "token": "t"}],
        "consumers": [{"username": "jack", "plugins": {"key-auth": {"key": "$secret://vault/1/jack/key"}}}],
    });
    let directory = TempDir::new();
    let site = Site::start("", &directory);
    let check = |key: &'static str| {
        Api::with_key(admin_addr(&site.gateway), key).ask("POST", "configs/validate", "", &lists.to_string())
    };
    let told = check(VIEWER);
    assert_eq!(told.status, 200, "{}", told.text());
    assert!(told.text().contains("it is asked for when the change is made"), "{}", told.text());
    assert_eq!(check(EDITOR).status, 403, "managers are an admin's");
    assert!(manager.accept().is_err(), "nobody has connected");
}
