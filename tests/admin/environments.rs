//! `/weir/v1/environments`: what differs between two nodes, and making one as the other.

use std::fs;
use std::thread;

use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, eventually};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file, json as parsed};
use crate::weir;

const THERE: &str = "the-key-of-this-node-at-the-other";
const SCOPED: &str = "the-key-of-an-editor-with-scopes";

/// The file of a node whose environment `live` is at an address, with more keys of that entry.
fn knowing(url: &str, more: &str) -> String {
    let scoped = format!("  - {{ name: team, key: {SCOPED}, role: editor, scopes: [{{ kinds: [routes] }}] }}\n");
    let audit = "  audit: { path: audit.log }\n";
    format!("{}{scoped}{audit}  environments:\n  - {{ name: live, url: '{url}', key: {THERE}{more} }}\n", file())
}

/// A node, and another one in which it has a key with this role.
fn two(role: &str, more: &str) -> (Gateway, Gateway) {
    let there = weir().start(&format!("{}  - {{ name: staging, key: {THERE}, role: {role} }}\n", file()));
    let here = weir().start(&knowing(&format!("http://{}", admin_addr(&there)), more));
    (here, there)
}

const ROUTE: &str = r#"{"uri": "/a", "plugins": {"mocking": {"response_example": "here"}}}"#;

#[test]
fn environments_are_compared_without_secrets() {
    let (here, there) = two("viewer", "");
    let (mut own, mut other) = (Api::of(&here), Api::of(&there));
    own.put("routes/same", ROUTE);
    other.put("routes/same", ROUTE);
    own.put("routes/new", ROUTE);
    other.put("routes/old", ROUTE);
    own.put("routes/changed", ROUTE);
    other.put("routes/changed", &ROUTE.replace("/a", "/b"));
    let jack = |key: &str, group: &str| json!({ "username": "jack", "desc": group, "plugins": { "key-auth": { "key": key } } });
    own.put("consumers/jack", &jack("s3cret-of-here", "one").to_string());
    other.put("consumers/jack", &jack("s3cret-of-there", "two").to_string());
    let told = Api::with_key(admin_addr(&here), EDITOR).get("/weir/v1/environments/live");
    let list = told["list"].as_array().expect("a list");
    let actions: Vec<(&str, &str)> = list
        .iter()
        .map(|one| (one["key"].as_str().expect("a key"), one["action"].as_str().expect("an action")))
        .collect();
    let expected = [
        ("consumers/jack", "changed"),
        ("routes/changed", "changed"),
        ("routes/new", "created"),
        ("routes/old", "deleted"),
    ];
    assert_eq!(actions, expected, "{told}");
    assert_eq!(list[0]["members"], json!([{ "path": "desc", "before": "two", "after": "one" }]));
    assert_eq!(list[1]["members"], json!([{ "path": "uri", "before": "/b", "after": "/a" }]));
    assert_eq!((&told["equal"], &told["differing"], &told["can_promote"]), (&json!(1), &json!(4), &json!(false)));
    assert!(!told.to_string().contains("s3cret") && !told.to_string().contains(THERE), "{told}");
    let all = own.get("/weir/v1/environments");
    let live = &all["list"][0];
    assert_eq!(
        (&live["name"], &live["state"]["role"], &live["error_msg"]),
        (&json!("live"), &json!("viewer"), &Value::Null)
    );
    assert!(!all.to_string().contains(THERE), "{all}");
}

#[test]
fn environments_are_for_editors_and_are_changed_by_admins_alone() {
    let (here, _there) = two("admin", ", promote: true");
    let mut own = Api::of(&here);
    own.put("routes/new", ROUTE);
    let status = |key: &'static str, method: &str, path: &str| {
        let body =
            if method == "POST" { r#"{"keys": ["routes/new"], "own_revision": 1, "if_revision": 0}"# } else { "" };
        Api::with_key(admin_addr(&here), key).ask(method, &format!("/weir/v1/environments{path}"), "", body).status
    };
    for (key, read, promote) in [(VIEWER, 403, 403), (EDITOR, 200, 403), (SCOPED, 403, 403)] {
        assert_eq!(status(key, "GET", ""), read, "{key}");
        assert_eq!(status(key, "GET", "/live"), read, "{key}");
        assert_eq!(status(key, "POST", "/live/promote?dry_run=true"), promote, "{key}");
        assert_eq!(status(key, "POST", "/live/promote"), promote, "{key}");
    }
    assert_eq!(status(ADMIN, "GET", "/none"), 404);
    assert_eq!(status(ADMIN, "GET", "/live/promote"), 405);
    assert_eq!(status(ADMIN, "POST", "/live/promote?dry_run=true"), 200);
    let sees =
        |key: &'static str| Api::with_key(admin_addr(&here), key).get("/weir/v1/session")["can_environments"].clone();
    assert_eq!([VIEWER, EDITOR, ADMIN, SCOPED].map(sees), [json!(false), json!(true), json!(true), json!(false)]);
}

#[test]
fn promoting_makes_resources_as_they_are_here_and_says_who_did() {
    let (here, there) = two("admin", ", promote: true");
    let (mut own, mut other) = (Api::of(&here), Api::of(&there));
    own.put("routes/new", ROUTE);
    own.put("consumers/jack", r#"{"username": "jack", "plugins": {"key-auth": {"key": "s3cret"}}}"#);
    other.put("routes/old", ROUTE);
    let told = own.get("/weir/v1/environments/live");
    let body = |keys: Value| {
        json!({ "keys": keys, "own_revision": told["own_revision"], "if_revision": told["revision"] }).to_string()
    };
    let all = body(json!(["routes/new", "routes/old", "consumers/jack"]));
    let tried = own.ask("POST", "/weir/v1/environments/live/promote?dry_run=true", "", &all);
    assert_eq!((tried.status, parsed(&tried)["changes"].as_array().map(Vec::len)), (200, Some(3)), "{}", tried.text());
    assert!(!tried.text().contains("s3cret"), "{}", tried.text());
    assert_eq!(other.ask("GET", "routes/new", "", "").status, 404, "it was only tried");
    let made = own.ask("POST", "/weir/v1/environments/live/promote", "X-Weir-Message: release 7\r\n", &all);
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!(there.get("/a").text(), "here");
    assert_eq!(other.get("consumers/jack")["value"]["plugins"]["key-auth"]["key"], "s3cret");
    assert_eq!(other.ask("GET", "routes/old", "", "").status, 404);
    assert_eq!(own.get("/weir/v1/environments/live")["differing"], 0);
    let last = other.get("history?count=1")["list"][0].clone();
    assert_eq!(last["author"]["name"], "staging");
    assert!(
        last["author"]["message"]
            .as_str()
            .is_some_and(|message| message.starts_with("promoted by ann from ") && message.ends_with(": release 7")),
        "{last}"
    );
    let audited = || fs::read_to_string(here.directory().join("audit.log")).unwrap_or_default();
    eventually("it is in the audit log", DEADLINE, || {
        audited().lines().any(|line| line.contains(r#""environment":"live""#) && line.contains("routes/old"))
    });
    assert!(!audited().contains("s3cret"), "{}", audited());
    // What was seen is no longer so.
    let again = own.ask("POST", "/weir/v1/environments/live/promote", "", &all);
    assert!(
        again.status == 412 && again.text().contains("`live` answers with 412"),
        "{} {}",
        again.status,
        again.text()
    );
    own.put("routes/another", ROUTE);
    let moved = own.ask("POST", "/weir/v1/environments/live/promote", "", &all);
    assert!(moved.status == 412 && moved.text().contains("this node is at revision"), "{}", moved.text());
}

#[test]
fn promotions_that_are_not_allowed_are_told() {
    let (here, _there) = two("viewer", ", promote: true");
    let mut own = Api::of(&here);
    own.put("routes/new", ROUTE);
    let mut promote = |body: Value| {
        let answer = own.ask("POST", "/weir/v1/environments/live/promote", "", &body.to_string());
        (answer.status, answer.text())
    };
    let refused = promote(json!({ "keys": ["routes/new"], "own_revision": 1, "if_revision": 0 }));
    assert!(refused.0 == 502 && refused.1.contains("`live` refuses the key of this node, or its role"), "{refused:?}");
    for wrong in
        [json!({}), json!({ "keys": ["new"], "own_revision": 1, "if_revision": 0 }), json!({ "keys": ["routes/new"] })]
    {
        assert_eq!(promote(wrong.clone()).0, 400, "{wrong}");
    }
    let (compared, _there) = two("admin", "");
    let body = r#"{"keys": ["routes/new"], "own_revision": 0, "if_revision": 0}"#;
    let answer = Api::of(&compared).ask("POST", "/weir/v1/environments/live/promote", "", body);
    assert!(answer.status == 403 && answer.text().contains("`promote: true`"), "{}", answer.text());
}

#[test]
fn resources_that_expire_are_not_promoted_and_refusals_name_their_keys_in_the_audit_log() {
    let (here, there) = two("admin", ", promote: true");
    let mut own = Api::of(&here);
    own.put("routes/short?ttl=600", ROUTE);
    let told = own.get("/weir/v1/environments/live");
    let body =
        json!({ "keys": ["routes/short"], "own_revision": told["own_revision"], "if_revision": told["revision"] });
    let refused = own.ask("POST", "/weir/v1/environments/live/promote", "", &body.to_string());
    assert!(refused.status == 409 && refused.text().contains("expires here"), "{} {}", refused.status, refused.text());
    assert_eq!(Api::of(&there).ask("GET", "routes/short", "", "").status, 404);
    eventually("it is in the audit log", DEADLINE, || {
        let audited = fs::read_to_string(here.directory().join("audit.log")).unwrap_or_default();
        audited
            .lines()
            .any(|line| line.contains(r#""outcome":"refused""#) && line.contains(r#""keys":["routes/short"]"#))
    });
}

/// The answer of the other node lists all members, so that it is longer than what is sent.
#[test]
fn a_large_promotion_is_made_and_told_as_made() {
    let (here, there) = two("admin", ", promote: true");
    let mut own = Api::of(&here);
    let large = |letter: &str| ROUTE.replace("here", &letter.repeat(900 << 10));
    let keys: Vec<String> = (0..6).map(|number| format!("routes/large-{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let path = |text: String| text.replace("/a", &format!("/{number}"));
        own.put(key, &path(large("n")));
        Api::of(&there).put(key, &path(large("o")));
    }
    let told = own.get("/weir/v1/environments/live");
    let body = json!({ "keys": keys, "own_revision": told["own_revision"], "if_revision": told["revision"] });
    let made = own.ask("POST", "/weir/v1/environments/live/promote", "", &body.to_string());
    assert_eq!(made.status, 200, "{:.300}", made.text());
    assert!(made.text().len() > 8 << 20, "it tests nothing: {}", made.text().len());
    assert_eq!(own.get("/weir/v1/environments/live")["differing"], 0);
}

#[test]
fn a_change_of_which_no_answer_is_read_may_have_been_made() {
    let there = Origin::serving(|_| Answer::ok("a text"));
    let here = weir().start(&knowing(&format!("http://{}", there.addr()), ", promote: true"));
    let mut own = Api::of(&here);
    let body = json!({ "keys": ["routes/old"], "own_revision": 0, "if_revision": 0 }).to_string();
    let lost = own.ask("POST", "/weir/v1/environments/live/promote", "", &body);
    assert!(
        lost.status == 502 && lost.text().contains("may have been made there, so compare again"),
        "{}",
        lost.text()
    );
    let tried = own.ask("POST", "/weir/v1/environments/live/promote?dry_run=true", "", &body);
    assert!(tried.status == 502 && !tried.text().contains("may have been made"), "{}", tried.text());
    eventually("it is in the audit log", DEADLINE, || {
        let audited = fs::read_to_string(here.directory().join("audit.log")).unwrap_or_default();
        audited.lines().any(|line| line.contains(r#""outcome":"failed""#) && line.contains(r#""keys":["routes/old"]"#))
    });
}

#[test]
fn credentials_are_counted_and_not_compared() {
    let (here, _there) = two("viewer", "");
    let mut own = Api::of(&here);
    own.put("consumers/jack", r#"{"username": "jack"}"#);
    own.put("consumers/jack/credentials/one", r#"{"plugins": {"key-auth": {"key": "s3cret-of-jack"}}}"#);
    let told = own.get("/weir/v1/environments/live");
    assert_eq!((&told["differing"], &told["list"][0]["credentials"]), (&json!(1), &json!(1)), "{told}");
}

/// A node whose resources are in files shows values of its variables to every role but a viewer.
#[test]
fn variables_of_another_node_are_not_shown() {
    let routes = "routes:\n- { id: own, uri: /a, desc: \"${{SECRET_OF_THERE}}\", upstream: { nodes: { \"127.0.0.1:1\": 1 } } }\n";
    let start = |role: &str| {
        let keys = format!("{}  - {{ name: staging, key: {THERE}, role: {role} }}\n", file());
        let text = keys.replace("admin:\n", "admin:\n  store: file\n") + routes;
        let there = weir().env("SECRET_OF_THERE", "s3cret").start(&text);
        let here = weir().start(&knowing(&format!("http://{}", admin_addr(&there)), ""));
        let answer = Api::of(&here).ask("GET", "/weir/v1/environments/live", "", "");
        (answer.status, answer.text())
    };
    for role in ["editor", "admin"] {
        let (status, text) = start(role);
        assert!(
            status == 409 && text.contains("one of a viewer") && !text.contains("s3cret"),
            "{role}: {status} {text}"
        );
    }
    let (status, text) = start("viewer");
    assert!(status == 200 && text.contains("routes/own") && !text.contains("s3cret"), "{status} {text}");
}

#[test]
fn texts_from_variables_of_a_file_are_not_promoted() {
    let there = weir().start(&format!("{}  - {{ name: staging, key: {THERE}, role: admin }}\n", file()));
    let text = knowing(&format!("http://{}", admin_addr(&there)), ", promote: true")
        .replace("admin:\n", "admin:\n  store: file\n  draft: read\n");
    let routes = "routes:\n- { id: own, uri: /a, desc: \"${{SECRET_OF_HERE}}\", upstream: { nodes: { \"127.0.0.1:1\": 1 } } }\n\
        - { id: plain, uri: /b, upstream: { nodes: { \"127.0.0.1:1\": 1 } } }\n";
    let here = weir().env("SECRET_OF_HERE", "s3cret").start(&(text + routes));
    let mut own = Api::of(&here);
    let draft = own.get("/weir/v1/draft").to_string();
    assert!(draft.contains("environments") && !draft.contains(THERE), "{draft}");
    let told = own.get("/weir/v1/environments/live");
    assert!(told["differing"] == 2 && !told.to_string().contains("s3cret"), "{told}");
    // The number of another process may mean other resources.
    assert!(told["own_revision"].is_string(), "{told}");
    let mut promote = |key: &str| {
        let body = json!({ "keys": [key], "own_revision": told["own_revision"], "if_revision": told["revision"] });
        own.ask("POST", "/weir/v1/environments/live/promote", "", &body.to_string())
    };
    let refused = promote("routes/own");
    assert!(refused.status == 409 && refused.text().contains("variables of this node"), "{}", refused.text());
    assert_eq!(promote("routes/plain").status, 200);
}

#[test]
fn an_environment_that_is_no_node_or_not_there_is_told_and_gets_no_key_elsewhere() {
    let elsewhere = Origin::serving(|_| Answer::ok("{}"));
    let target = format!("http://{}/weir/v1/session", elsewhere.addr());
    let leading = Origin::serving(move |_| Answer::with(302, &format!("Location: {target}\r\n"), ""));
    let here = weir().start(&knowing(&format!("http://{}", leading.addr()), ""));
    let mut own = Api::of(&here);
    let told = own.get("/weir/v1/environments");
    assert!(
        told["list"][0]["error_msg"].as_str().is_some_and(|text| text.contains("`live` answers with 302")),
        "{told}"
    );
    assert_eq!(own.ask("GET", "/weir/v1/environments/live", "", "").status, 502);
    assert!(elsewhere.requests().is_empty(), "the key goes to the configured address alone");
    let text = Origin::serving(|_| Answer::ok("a text"));
    let here = weir().start(&knowing(&format!("http://{}", text.addr()), ""));
    let answer = Api::of(&here).ask("GET", "/weir/v1/environments/live", "", "");
    assert!(answer.status == 502 && answer.text().contains("has answered what is not read"), "{}", answer.text());
}

#[test]
fn an_environment_that_hangs_delays_no_other_request() {
    // The node gives it up after five seconds. On a machine that stands still, the other requests may come later.
    assert!((0..5).any(|_| others_are_answered_beside_one_that_hangs()), "it has tested nothing");
}

/// Requests of the same role are answered while an environment does not answer, also comparisons with others. Returns whether it was
/// still waited for then.
fn others_are_answered_beside_one_that_hangs() -> bool {
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = hanging.local_addr().expect("it is bound");
    let there = weir().start(&format!("{}  - {{ name: staging, key: {THERE}, role: viewer }}\n", file()));
    let other = format!("  - {{ name: other, url: 'http://{}', key: {THERE} }}\n", admin_addr(&there));
    let here = weir().start(&(knowing(&format!("http://{address}"), "") + &other));
    thread::scope(|scope| {
        let asking = scope.spawn(|| Api::of(&here).ask("GET", "/weir/v1/environments/live", "", "").status);
        // The connection is there, so the request is being made.
        let (held, _) = hanging.accept().expect("the node connects");
        let mut own = Api::of(&here);
        own.put("routes/r", ROUTE);
        assert_eq!(own.get("routes")["total"], 1);
        assert_eq!(own.get("/weir/v1/environments/other")["differing"], 1);
        let is_waiting = !asking.is_finished();
        // Nor is it connected to again.
        drop(hanging);
        drop(held);
        assert_eq!(asking.join().expect("it does not panic"), 502);
        is_waiting
    })
}

/// However many ask at once, they share what an environment says about itself, or that it says nothing.
#[test]
fn many_that_ask_at_once_make_few_connections() {
    const MANY: usize = 12;
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = hanging.local_addr().expect("it is bound");
    let here = weir().start(&knowing(&format!("http://{address}"), ""));
    thread::scope(|scope| {
        let ask = || Api::of(&here).ask("GET", "/weir/v1/environments", "", "").status;
        let asking: Vec<_> = (0..MANY).map(|_| scope.spawn(ask)).collect();
        assert!(asking.into_iter().all(|one| one.join().expect("it does not panic") == 200));
    });
    // They are kept here, also those that the node has closed.
    hanging.set_nonblocking(true).expect("a socket");
    let connections = std::iter::from_fn(|| hanging.accept().ok()).count();
    assert!((1..MANY / 2).contains(&connections), "{connections}");
}
