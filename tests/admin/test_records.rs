//! `POST /weir/v1/records/test`: a test record to a destination of log records.

use std::fs;

use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, TempDir, eventually, eventually_some, free_port};

use crate::api::{ADMIN, Api, EDITOR, VIEWER, admin_addr, file, json as parsed};
use crate::weir;

const SCOPED: &str = "the-key-of-a-part";

/// A node with a route whose logger sends to this address; nothing is due for an hour.
fn start(address: &str, options: &str, settings: &str) -> Gateway {
    let scoped = format!("  - {{ name: part, key: {SCOPED}, role: editor, scopes: [{{ kinds: [routes] }}] }}\n");
    let gateway = weir().start(&(file() + &scoped + settings));
    let logger =
        format!(r#"{{"uri":"http://{address}/logs","inactive_timeout":3600,"buffer_duration":3600{options}}}"#);
    let route =
        format!(r#"{{"uri":"/*","plugins":{{"http-logger":{logger}}},"upstream":{{"nodes":{{"127.0.0.1:1":1}}}}}}"#);
    Api::of(&gateway).put("routes/r", &route);
    gateway
}

fn test(gateway: &Gateway, key: &'static str, sink: &str) -> (u16, Value) {
    let body = json!({ "sink": sink }).to_string();
    let answer = Api::with_key(admin_addr(gateway), key).ask("POST", "/weir/v1/records/test", "", &body);
    (answer.status, parsed(&answer))
}

/// The account of the only destination, once it is as wanted.
fn account(gateway: &Gateway, is_wanted: impl Fn(&Value) -> bool) -> Value {
    eventually_some("the account", DEADLINE, || {
        let sinks = Api::of(gateway).get("/weir/v1/records")["sinks"].clone();
        Some(sinks[0].clone()).filter(|sink| is_wanted(sink))
    })
}

#[test]
fn a_test_record_is_delivered_with_its_mark_and_counted() {
    let collector = Origin::serving(|_| Answer::ok(""));
    let log = TempDir::new();
    let path = log.path().join("audit.log");
    let settings = format!("  audit: {{ path: {} }}\n", path.display());
    let gateway = start(&collector.addr().to_string(), r#","log_format":{"where":"$uri","team":"a"}"#, &settings);
    let sink = format!("http-logger http://{}", collector.addr());
    assert_eq!(account(&gateway, |_| true)["takes_tests"], true);
    let (status, told) = test(&gateway, EDITOR, &sink);
    assert_eq!((status, &told["outcomes"]), (200, &json!([{ "outcome": "delivered" }])), "{told}");
    let sent = collector.wait_requests(1);
    let record: Value = serde_json::from_slice(&sent[0].body).expect("JSON");
    let expected = json!([{ "where": "/weir-test-record", "team": "a", "weir_test_record": told["id"] }]);
    assert_eq!((&*sent[0].target, record), ("/logs", expected));
    let sink_now = account(&gateway, |sink| sink["delivered"]["records"] == 1);
    assert_eq!((&sink_now["accepted"]["records"], &sink_now["name"]), (&json!(1), &json!(sink)));
    // Neither a viewer nor a part of the node may, and the collector has got nothing more.
    for key in [VIEWER, SCOPED] {
        let (status, told) = test(&gateway, key, &sink);
        assert_eq!(status, 403, "{told}");
    }
    for (body, expected) in [("", 400), ("{}", 400), (r#"{"sink":7}"#, 400), (r#"{"sink":"http-logger there"}"#, 404)] {
        let answer = Api::with_key(admin_addr(&gateway), ADMIN).ask("POST", "/weir/v1/records/test", "", body);
        assert_eq!(answer.status, expected, "{body}: {}", answer.text());
    }
    assert_eq!(Api::of(&gateway).ask("GET", "/weir/v1/records/test", "", "").status, 405);
    assert_eq!(collector.requests().len(), 1);
    eventually("the audit log has the three", DEADLINE, || {
        let lines: Vec<Value> = fs::read_to_string(&path)
            .expect("a file")
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let of_tests = |who: &str, outcome: &str| {
            lines.iter().any(|line| {
                line["path"] == "/weir/v1/records/test"
                    && line["who"] == who
                    && line["outcome"] == outcome
                    && (outcome == "refused" || line["sink"] == *sink)
            })
        };
        of_tests("ed", "accepted") && of_tests("vi", "refused") && of_tests("part", "refused")
    });
}

#[test]
fn a_test_record_that_the_collector_refuses_has_its_words() {
    let collector = Origin::serving(|_| Answer::status(400, "no field weir_test_record in this index"));
    let gateway = start(&collector.addr().to_string(), "", "");
    let (status, told) = test(&gateway, ADMIN, &format!("http-logger http://{}", collector.addr()));
    let outcome = &told["outcomes"][0];
    assert_eq!(
        (status, &outcome["outcome"], &outcome["reason"]),
        (200, &json!("rejected"), &json!("invalid")),
        "{told}"
    );
    let words = outcome["error"].as_str().unwrap_or_default();
    assert!(words.contains("400") && words.contains("no field weir_test_record in this index"), "{words}");
    account(&gateway, |sink| sink["rejected"]["invalid"]["records"] == 1);
}

#[test]
fn a_test_record_is_sent_once_while_the_collector_is_down() {
    let address = format!("127.0.0.1:{}", free_port());
    let gateway = start(&address, "", "");
    let (status, told) = test(&gateway, EDITOR, &format!("http-logger http://{address}"));
    let outcome = &told["outcomes"][0];
    assert_eq!(
        (status, &outcome["outcome"], &outcome["reason"]),
        (200, &json!("dropped"), &json!("retries")),
        "{told}"
    );
    assert!(outcome["error"].as_str().unwrap_or_default().contains("refused"), "{told}");
    let sink = account(&gateway, |sink| sink["dropped"]["retries"]["records"] == 1);
    assert_eq!(sink["accepted"]["records"], 1, "{sink}");
}

#[test]
fn a_logger_of_figures_takes_no_test_records() {
    let gateway = start("127.0.0.1:1", "", "");
    let route = r#"{"uri":"/*","plugins":{"datadog":{}},"upstream":{"nodes":{"127.0.0.1:1":1}}}"#;
    Api::of(&gateway).put("routes/r", route);
    let datadog = eventually_some("the account of datadog", DEADLINE, || {
        let sinks = Api::of(&gateway).get("/weir/v1/records")["sinks"].clone();
        sinks.as_array()?.iter().find(|sink| sink["plugin"] == "datadog").cloned()
    });
    assert_eq!(datadog.get("takes_tests"), None, "{datadog}");
    let (status, told) = test(&gateway, ADMIN, datadog["name"].as_str().expect("a name"));
    assert!(status == 400 && told["error_msg"].to_string().contains("no place for the mark"), "{told}");
}
