//! The audit log: who has asked for what, and what came of it.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use weir_testkit::{DEADLINE, Signal, TempDir, eventually, eventually_some};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file};
use crate::weir;

fn audited(path: &Path) -> String {
    format!("{}  audit: {{ path: {} }}\n", file(), path.display())
}

/// The lines of the log, once there are so many. One that is being written has no end yet.
#[track_caller]
fn lines(path: &Path, count: usize) -> Vec<Value> {
    let text = eventually_some("the lines are there", DEADLINE, || {
        let text = fs::read_to_string(path).unwrap_or_default();
        (text.ends_with('\n') && text.lines().count() >= count).then_some(text)
    });
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn each_change_is_one_line_whatever_comes_of_it() {
    let directory = TempDir::new();
    let path = directory.join("audit.log");
    let gateway = weir().start(&audited(&path));
    let address = admin_addr(&gateway);
    let route = r#"{"uri": "/r", "plugins": {}}"#;
    let jack = r#"{"username": "jack", "plugins": {"key-auth": {"key": "s3cret-of-jack"}}}"#;
    let changed_jack = jack.replace("of-jack", "changed");
    let operations = r#"{"message": "orders move", "operations": [{"put": "routes/s", "value": {"uri": "/s", "plugins": {}}}, {"delete": "routes/r"}]}"#;
    let wrong = r#"{"uri": "s3cret", "plugins": {}}"#;
    // (key, method, path, body, outcome, status, keys that are changed, members of the last one)
    let table = [
        (ADMIN, "PUT", "routes/r", route, "accepted", 201, "routes/r", "uri plugins id create_time update_time"),
        (ADMIN, "PUT", "routes/r?dry_run=true", wrong, "refused", 400, "", ""),
        (ADMIN, "PATCH", "routes/r?dry_run=true", r#"{"name": "n"}"#, "accepted", 200, "routes/r", "name"),
        (
            EDITOR,
            "PUT",
            "consumers/jack",
            jack,
            "accepted",
            201,
            "consumers/jack",
            "username plugins create_time update_time",
        ),
        (EDITOR, "PUT", "consumers/jack", &changed_jack, "accepted", 200, "consumers/jack", "plugins.key-auth.key"),
        (EDITOR, "PUT", "secrets/vault/1", "{}", "refused", 403, "", ""),
        (VIEWER, "DELETE", "routes/r", "", "refused", 401, "", ""),
        (
            ADMIN,
            "PATCH",
            "configs",
            operations,
            "accepted",
            200,
            "routes/s routes/r",
            "uri plugins id create_time update_time",
        ),
        (ADMIN, "DELETE", "routes/none", "", "refused", 404, "", ""),
        (ADMIN, "POST", "history/1/rollback", "", "accepted", 200, "consumers/jack routes/r routes/s", ""),
        ("a-key-that-nobody-has", "GET", "routes", "", "refused", 401, "", ""),
    ];
    for (key, method, target, body, _, status, ..) in table {
        let mut api = Api::with_key(address, key);
        // What is only read leaves no line.
        if key == ADMIN {
            api.get("routes");
        }
        let answer = api.ask(method, target, "User-Agent: tests\r\n", body);
        assert_eq!(answer.status, status, "{method} {target}: {}", answer.text());
    }
    let lines = lines(&path, table.len());
    assert_eq!(lines.len(), table.len());
    for (line, (key, method, target, _, outcome, status, keys, members)) in lines.iter().zip(table) {
        let who = match key {
            ADMIN => json!("ann"),
            EDITOR => json!("ed"),
            VIEWER => json!("vi"),
            _ => Value::Null,
        };
        let seen = (&line["who"], &line["method"], &line["outcome"], &line["status"]);
        assert_eq!(seen, (&who, &json!(method), &json!(outcome), &json!(status)), "{line}");
        assert_eq!((&line["address"], &line["user_agent"]), (&json!("127.0.0.1"), &json!("tests")), "{line}");
        assert_eq!(line["dry_run"], target.contains("dry_run"), "{line}");
        assert_eq!(line["path"], format!("/apisix/admin/{}", target.split('?').next().unwrap_or_default()));
        let changes = line["changes"].as_array().cloned().unwrap_or_default();
        let changed: Vec<&str> = changes.iter().filter_map(|change| change["key"].as_str()).collect();
        assert_eq!(changed.join(" "), keys, "{line}");
        if !members.is_empty() {
            let of = |change: &Value| change["members"].as_array().cloned().unwrap_or_default();
            let seen: Vec<Value> = changes.last().map(of).unwrap_or_default();
            let mut seen: Vec<&str> = seen.iter().filter_map(Value::as_str).collect();
            let mut expected: Vec<&str> = members.split(' ').collect();
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected, "{line}");
        }
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        assert_eq!(line["revision"].is_u64(), outcome == "accepted" && !target.contains("dry_run"), "{line}");
        assert_eq!(line["reason"].is_string(), outcome == "refused", "{line}");
    }
    assert_eq!(lines[7]["message"], "orders move");
    assert_eq!(
        lines[7]["changes"][1],
        json!({"key": "routes/r", "kind": "route", "id": "r", "action": "deleted", "members": lines[7]["changes"][1]["members"]})
    );
    let text = fs::read_to_string(&path).expect("the log");
    assert!(!text.contains("s3cret"), "{text}");
    assert!(!text.contains("a-key-that-nobody-has") && !text.contains(ADMIN), "{text}");
}

#[test]
fn the_audit_log_is_reopened() {
    let directory = TempDir::new();
    let (path, moved) = (directory.join("audit.log"), directory.join("audit.log.1"));
    let gateway = weir().start(&audited(&path));
    let mut api = Api::of(&gateway);
    api.put("routes/r", r#"{"uri": "/r", "plugins": {}}"#);
    lines(&path, 1);
    fs::rename(&path, &moved).expect("a directory of our own");
    gateway.signal(Signal::USR1);
    gateway.wait_stderr("that it was reopened", |line| line.ends_with("the audit log was reopened"));
    api.put("routes/s", r#"{"uri": "/s", "plugins": {}}"#);
    assert_eq!(lines(&path, 1)[0]["changes"][0]["key"], "routes/s");
    assert_eq!(lines(&moved, 1).len(), 1);
}

#[test]
fn a_full_disk_keeps_nobody_from_changing_resources() {
    let gateway = weir().start(&audited(Path::new("/dev/full")));
    Api::of(&gateway).put("routes/r", r#"{"uri": "/r", "plugins": {"mocking": {"response_example": "r"}}}"#);
    assert_eq!(gateway.get("/r").text(), "r");
    let lost = || gateway.metrics().get("weir_audit_log_lines_total{outcome=\"dropped\"}") == Some(1.0);
    eventually("the lost line is counted", DEADLINE, lost);
    gateway.wait_stderr("that lines are lost", |line| line.contains("audit log /dev/full: ") && line.contains("lost"));
    // A directory is no file.
    let directory = TempDir::new();
    let mut refused = weir().spawn(&audited(directory.path()));
    assert_eq!(refused.wait_exit(DEADLINE).code(), Some(4));
    refused.wait_stderr("why", |line| line.contains("the audit log ") && line.contains("cannot be opened"));
}

#[test]
fn a_change_is_audited_though_its_client_does_not_wait_for_the_answer() {
    let directory = TempDir::new();
    let path = directory.join("audit.log");
    let gateway = weir().start(&audited(&path));
    let address = admin_addr(&gateway);
    let clients = 20;
    let body = r#"{"uri": "/r", "plugins": {}}"#;
    for client in 0..clients {
        let request = format!(
            "PUT /apisix/admin/routes/r{client} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {ADMIN}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = TcpStream::connect(address).expect("it listens");
        connection.write_all(request.as_bytes()).expect("it is sent");
        // Dropping it closes it at once.
    }
    let mut api = Api::with_key(address, ADMIN);
    eventually("all changes are made", DEADLINE, || api.get("routes")["total"] == clients);
    let lines = lines(&path, clients);
    assert!(lines.iter().all(|line| line["outcome"] == "accepted" && line["who"] == "ann"), "{lines:#?}");
}
