//! Bodies that are small as text and large as anything else: what the node takes for them, and that their senders are answered.

use std::fmt::Write;
use std::thread;
use std::time::Instant;

use serde_json::json;
use weir_testkit::{Client, DEADLINE, Gateway, scaled};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file, json};
use crate::weir;

const MIB: u64 = 1 << 20;
/// The most bytes of a body.
const MAX_BODY: usize = 1_572_864;
/// The most memory that a role's requests of this kind take, one after the other. What the allocator keeps is in it.
const MOST_GROWN: u64 = 384 * MIB;

fn start() -> Gateway {
    weir().start(&file())
}

/// This item as often as a body has room for it.
fn repeated(before: &str, item: &str, after: &str) -> String {
    let count = (MAX_BODY - before.len() - after.len()) / (item.len() + 1);
    format!("{before}{}{item}{after}", format!("{item},").repeat(count - 1))
}

/// Different keys that no resource has, as many as fit.
fn unknown_keys(before: &str, after: &str) -> String {
    let mut body = before.to_owned();
    for number in 0.. {
        if body.len() + after.len() + 20 > scaled(300_000, MAX_BODY) {
            break;
        }
        let _ = write!(body, r#"{}"k{number:x}":0"#, if number == 0 { "" } else { "," });
    }
    body + after
}

/// Sends the same from eight clients at once (two without full counts) while an admin makes changes. All of them get one of these
/// answers.
fn eight(gateway: &Gateway, key: &'static str, (method, path, fields): (&str, &str, &str), body: &str, told: &[u16]) {
    let address = admin_addr(gateway);
    let before = gateway.rss();
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..scaled(2, 8) {
            scope.spawn(|| {
                let client = Client::connect(address);
                client.set_deadline(6 * DEADLINE);
                let answer = Api::over(client, key).ask(method, path, fields, body);
                let text = answer.text();
                let shown: String = text.chars().take(300).collect();
                assert!(told.contains(&answer.status), "{method} {path}: {} {shown}", answer.status);
                assert!(text.len() <= 2 * MIB as usize, "{method} {path}: an answer of {} bytes", text.len());
            });
        }
        let mut admin = Api::with_key(address, ADMIN);
        (0..scaled(3, 50))
            .for_each(|id| drop(admin.put(&format!("routes/beside{id}"), r#"{"uri":"/beside","plugins":{}}"#)));
    });
    let grown = gateway.rss().saturating_sub(before);
    println!("{method} {path} of {} bytes: {} MiB more, {:?}", body.len(), grown / MIB, began.elapsed());
    assert!(grown <= MOST_GROWN, "{method} {path}: {} MiB more", grown / MIB);
}

#[test]
fn u06_small_texts_of_many_values_are_refused_before_they_take_memory() {
    let gateway = start();
    let empty = repeated(r#"{"routes":["#, "{}", "]}");
    let small = repeated(r#"{"routes":["#, r#"{"a":0}"#, "]}");
    let consumers = repeated(r#"{"consumers":["#, "{}", "]}");
    let yaml = repeated("routes: [", "{}", "]").replace(&"{},".repeat(scaled(400_000, 0)), "");
    let numbers = repeated(r#"{"uri":"/a","plugins":{},"hosts":["#, "0", "]}");
    let operations = repeated(r#"{"operations":["#, "{}", "]}");
    for (key, request, body) in [
        (VIEWER, ("POST", "configs/validate", ""), &empty),
        (VIEWER, ("POST", "configs/validate", ""), &small),
        (VIEWER, ("POST", "configs/validate", ""), &consumers),
        (VIEWER, ("POST", "configs/validate", "Content-Type: application/yaml\r\n"), &yaml),
        (VIEWER, ("POST", "schema/validate/routes", ""), &numbers),
        (EDITOR, ("PUT", "routes/n", ""), &numbers),
        (EDITOR, ("PUT", "routes/n?dry_run=true", ""), &numbers),
        (EDITOR, ("PATCH", "routes/beside0", ""), &numbers),
        (EDITOR, ("PATCH", "configs", ""), &operations),
        (EDITOR, ("PATCH", "configs?dry_run=true", ""), &operations),
    ] {
        eight(&gateway, key, request, body, &[400, 404, 413, 429]);
    }
}

#[test]
fn u06_findings_are_bounded_in_number_and_in_bytes_and_the_rest_is_counted() {
    let gateway = start();
    let one = unknown_keys(r#"{"uri":"/a","plugins":{},"#, "}");
    let listed = unknown_keys(r#"{"routes":[{"id":"a","uri":"/a","plugins":{},"#, "}]}");
    let mut many = r#"{"routes":["#.to_owned();
    let count = scaled(3_000, 19_000);
    for id in 0..count {
        let _ = write!(
            many,
            r#"{}{{"id":"r{id}","uri":"/{id}","u":1,"v":1,"w":1,"plugins":{{}}}}"#,
            if id == 0 { "" } else { "," }
        );
    }
    many.push_str("]}");
    for (key, request, body) in [
        (VIEWER, ("POST", "configs/validate", ""), &listed),
        (VIEWER, ("POST", "configs/validate", ""), &many),
        (VIEWER, ("POST", "schema/validate/routes", ""), &one),
        (EDITOR, ("PUT", "routes/a", ""), &one),
    ] {
        eight(&gateway, key, request, body, &[400, 413]);
    }
    let answer = Api::with_key(admin_addr(&gateway), VIEWER).ask("POST", "configs/validate", "", &many);
    let told = json(&answer);
    assert_eq!(told["diagnostics"].as_array().map(Vec::len), Some(1_000), "{}", answer.status);
    assert!(
        told["diagnostics_more"].as_u64().is_some_and(|more| more >= count as u64 - 1_000),
        "{}",
        told["diagnostics_more"]
    );
    assert_eq!(told["errors"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(told["errors_more"].as_u64(), Some(count as u64 - 1_000));
}

#[test]
fn u06_aliases_of_yaml_stand_for_no_more_memory_than_other_texts() {
    let gateway = start();
    let long = "x".repeat(700_000);
    let texts = format!("a: &a \"{long}\"\nroutes: [{}]\n", "*a,".repeat(200_000));
    let keys = format!("a: &a {{ \"{long}\": 0 }}\nroutes: [{}]\n", "*a,".repeat(200_000));
    let mut doubled = "a0: &a0 [0,0,0,0,0,0,0,0]\n".to_owned();
    for level in 1..30 {
        let _ = writeln!(doubled, "a{level}: &a{level} [*a{0},*a{0},*a{0},*a{0}]", level - 1);
    }
    for body in [texts, keys, doubled] {
        let request = ("POST", "configs/validate", "Content-Type: application/yaml\r\n");
        eight(&gateway, VIEWER, request, &body, &[400, 413]);
    }
}

#[test]
fn u06_a_path_of_a_patch_goes_no_deeper_than_a_body_may() {
    let gateway = start();
    let mut api = Api::with_key(admin_addr(&gateway), EDITOR);
    api.put("routes/a", r#"{"uri":"/a","plugins":{}}"#);
    let deep = format!("routes/a/labels{}", "/a".repeat(15_000));
    let answer = api.ask("PATCH", &deep, "", "1");
    assert_eq!(answer.status, 400, "{}", answer.text());
    let nested = format!("{}1{}", r#"{"a":"#.repeat(50), "}".repeat(50));
    let answer = api.ask("PATCH", &format!("routes/a/labels{}", "/a".repeat(50)), "", &nested);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("levels deep"), "{}", answer.text());
    assert_eq!(api.get("routes/a")["value"]["uri"], json!("/a"));
}
