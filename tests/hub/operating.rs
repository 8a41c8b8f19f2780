//! What operators see of a hub's subscriptions and dead letters, and how they replay these: by the Admin API and by `weir hub`.

use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, eventually};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, json};
use crate::peers::{HubNode, Subscriber, TOPIC, encoded};

/// Failures are final.
const GIVES_UP: &str = "  delivery: { retry_for: 1ms, retry_first: 1ms, retry_max: 1ms }\n";

/// A subscription with a secret whose three events were given up.
fn with_dead_letters() -> (HubNode, Subscriber) {
    let (node, subscriber) = (HubNode::administered(GIVES_UP), Subscriber::start());
    node.subscribe(&subscriber, "/in?token=private", &[("hub.secret", "hidden")]);
    subscriber.refuse(400);
    for content in ["one", "two", "three"] {
        node.publish(content);
    }
    eventually("all are given up", DEADLINE, || node.status()["dead_lettered"] == 3);
    wait_idle(&node);
    (node, subscriber)
}

/// Waits until the subscription is shown as idle: an outcome counts a moment before it is on the disk, and until then the
/// subscription is still sending.
#[track_caller]
fn wait_idle(node: &HubNode) {
    let mut api = Api::with_key(admin_addr(&node.gateway), EDITOR);
    eventually("the subscription is idle", DEADLINE, || {
        api.get("/weir/v1/hubs/h/subscriptions")["list"][0]["state"] == "idle"
    });
}

fn accept(subscriber: &Subscriber) {
    subscriber.answer(|_| None);
}

/// The contents of deliveries that come after so many.
#[track_caller]
fn contents_after(subscriber: &Subscriber, count: usize, more: usize) -> Vec<String> {
    let deliveries = subscriber.wait_deliveries(count + more);
    deliveries[count..].iter().map(|delivery| String::from_utf8_lossy(&delivery.body).into_owned()).collect()
}

#[test]
fn dead_letters_are_listed_page_by_page_and_replayed() {
    let (node, subscriber) = with_dead_letters();
    let mut api = Api::with_key(admin_addr(&node.gateway), EDITOR);
    let first = api.get("/weir/v1/hubs/h/dead-letters?count=2");
    let next = first["next"].as_str().expect("there are more");
    let rest = api.get(&format!("/weir/v1/hubs/h/dead-letters?count=2&after={next}"));
    assert_eq!((first["list"].as_array().map(Vec::len), rest["list"].as_array().map(Vec::len)), (Some(2), Some(1)));
    assert_eq!(rest["next"], Value::Null);
    let letter = &first["list"][1];
    assert_eq!((&letter["topic"], &letter["failure"]), (&json!(TOPIC), &json!("status 400")));
    assert_eq!(api.get("/weir/v1/hubs/h/dead-letters?topic=http%3A%2F%2Fgw.example%2Ft%2Fx")["list"], json!([]));

    accept(&subscriber);
    let before = subscriber.deliveries().len();
    let mut replay = |body: Value| {
        let answer = api.ask("POST", "/weir/v1/hubs/h/replay", "", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        json(&answer)["replayed"].clone()
    };
    assert_eq!(replay(json!({ "event": letter["event"] })), 1);
    assert_eq!(contents_after(&subscriber, before, 1), ["two"]);
    node.settled();
    assert_eq!(replay(json!({ "all": true })), 2);
    assert_eq!(contents_after(&subscriber, before, 3), ["two", "one", "three"]);
    let status = node.settled();
    let counts = ["audience", "replayed", "dead_lettered", "delivered"].map(|name| status[name].as_u64());
    assert_eq!(counts, [3, 3, 3, 3].map(Some), "{status}");
    assert_eq!(api.get("/weir/v1/hubs/h/dead-letters")["list"], json!([]));
}

#[test]
fn a_subscription_is_shown_with_its_latest_attempts() {
    let (node, subscriber) = with_dead_letters();
    accept(&subscriber);
    node.publish("four");
    eventually("it is delivered", DEADLINE, || node.status()["delivered"] == 1);
    wait_idle(&node);
    let mut api = Api::with_key(admin_addr(&node.gateway), EDITOR);
    let list = api.get(&format!("/weir/v1/hubs/h/subscriptions?topic={}", encoded(TOPIC)));
    let entry = &list["list"][0];
    let expected = json!({ "state": "idle", "pending": 0, "delivered": 1, "dead_letters": 3, "has_secret": true });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&entry[name], value, "{name}: {entry}");
    }
    assert_eq!(entry["callback"], format!("{}?***", subscriber.url("/in")));
    let one = api.get(&format!("/weir/v1/hubs/h/subscriptions/{}", entry["id"]));
    let attempts = one["latest_attempts"].as_array().expect("a list");
    assert_eq!((&attempts[0]["result"], &attempts[0]["failure"]), (&json!("delivered"), &Value::Null));
    assert_eq!((&attempts[1]["result"], &attempts[1]["failure"]), (&json!("failed"), &json!("status 400")));
    assert!(attempts[0]["at_ms"].as_u64() >= attempts[1]["at_ms"].as_u64());
    // A subscriber that hangs up.
    subscriber.answer(move |_| Some(weir_testkit::Answer::raw("").then_close()));
    node.publish("five");
    eventually("it is given up", DEADLINE, || node.status()["dead_lettered"] == 4);
    let one = api.get(&format!("/weir/v1/hubs/h/subscriptions/{}", entry["id"]));
    let failure = one["latest_attempts"][0]["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("the connection ended before the answer"), "{one}");
}

#[test]
fn roles_and_secrets_hold_for_hubs() {
    let (node, _subscriber) = with_dead_letters();
    let address = admin_addr(&node.gateway);
    let mut client = Client::connect(address);
    let mut shown = String::new();
    for path in ["hubs", "hubs/h/subscriptions", "hubs/h/subscriptions/1", "hubs/h/dead-letters", "hubs/h/replay"] {
        let request = format!("GET /weir/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        assert_eq!(client.ask(request).expect("an answer").status, 401, "{path} without a key");
        for key in [ADMIN, EDITOR, VIEWER] {
            shown += &Api::with_key(address, key).ask("GET", &format!("/weir/v1/{path}"), "", "").text();
        }
    }
    assert!(!shown.contains("hidden") && !shown.contains("private"), "{shown}");
    let viewed = Api::with_key(address, VIEWER).get("/weir/v1/hubs/h/subscriptions");
    assert!(viewed["list"][0]["callback"].as_str().is_some_and(|url| url.ends_with("/***")), "{viewed}");
    let status = |key: &'static str| {
        Api::with_key(address, key).ask("POST", "/weir/v1/hubs/h/replay", "", r#"{"all":true}"#).status
    };
    assert_eq!([VIEWER, EDITOR, ADMIN].map(status), [403, 200, 200]);
}

#[test]
fn bad_requests_for_hubs_are_explained() {
    let node = HubNode::administered("");
    let mut api = Api::of(&node.gateway);
    for (method, path, body, status, told) in [
        ("GET", "hubs/x/subscriptions", "", 404, "this node runs no hub `x`; the hubs that run are: h"),
        ("GET", "hubs/h/subscriptions?count=0", "", 400, "0 is not from 1 to 1000"),
        ("GET", "hubs/h/subscriptions?after=x", "", 400, "invalid argument after: `x` is not a number"),
        ("GET", "hubs/h/subscriptions/x", "", 400, "`x` is not the id of a subscription"),
        ("GET", "hubs/h/subscriptions/9999", "", 404, "Key not found"),
        ("GET", "hubs/h/dead-letters?after=5", "", 400, "`5` is not the `next` of a page"),
        ("POST", "hubs/h/replay", "", 400, "say which dead letters"),
        ("POST", "hubs/h/replay", "{}", 400, "say which dead letters"),
        ("POST", "hubs/h/replay", r#"{"event":"1"}"#, 400, "`event` cannot be"),
        ("POST", "hubs/h/replay", r#"{"subscription":7}"#, 404, "no subscription 7 in this hub, and no other one"),
        ("POST", "hubs/h/replay", r#"{"topic":"http://x/"}"#, 404, "this hub has no topic http://x/"),
        ("POST", "hubs/h/replay", r#"{"event":9}"#, 404, "no event 9 in this hub; the newest one is 0"),
        ("PUT", "hubs/h/subscriptions", "", 405, "the method PUT is not allowed here; use GET"),
        ("GET", "routes", "", 404, "not found"),
    ] {
        let answer = api.ask(method, &format!("/weir/v1/{path}"), "", body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains(told), "{method} {path}: {}", answer.text());
    }
}

/// Exit code, and what was written to either stream.
fn weir(arguments: &[&str], node: &HubNode) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let server = format!("http://{}", admin_addr(&node.gateway));
    command.args(arguments).env("WEIR_ADMIN", server).env("WEIR_ADMIN_KEY", EDITOR);
    let output = command.output().expect("the binary starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_hub_is_looked_after_from_a_shell() {
    let (node, subscriber) = with_dead_letters();
    accept(&subscriber);
    let (code, text) = weir(&["hub", "subscriptions", "h", "--topic", TOPIC], &node);
    assert!(code == Some(0) && text.contains(TOPIC) && text.contains("idle"), "{text}");
    let id = text.lines().nth(1).and_then(|line| line.split_whitespace().next()).expect("an id").to_owned();
    let (code, text) = weir(&["hub", "replay", "h", "--subscription", "9999"], &node);
    assert_ne!(code, Some(0), "{text}");
    assert!(text.contains(&format!("there is no subscription 9999 in this hub; there are {id}")), "{text}");
    let (code, text) = weir(&["hub", "subscriptions", "h", &id], &node);
    assert!(code == Some(0) && text.contains("\"latest_attempts\""), "{text}");
    let (code, text) = weir(&["hub", "dead-letters", "h", "--count", "2"], &node);
    assert!(code == Some(0) && text.contains("status 400") && text.contains("continue with `--after "), "{text}");
    assert_eq!(weir(&["hub", "replay", "h"], &node).0, Some(2), "it must say which");
    let (code, text) = weir(&["hub", "replay", "h", "--subscription", &id], &node);
    assert!(code == Some(0) && text.contains("delivered once more: 3"), "{text}");
    eventually("they are delivered", DEADLINE, || node.status()["delivered"] == 3);
    let (code, text) = weir(&["hub", "dead-letters", "x"], &node);
    assert!(code == Some(5) && text.contains("this node runs no hub `x`"), "{text}");
}
