//! Records of exchanges, sent to services and written to files.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, Signal, TempDir, eventually, eventually_some};

fn gateway(origin: &Origin, plugins: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ id: logged, uri: /*, plugins: {plugins}, upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }} }}]\n",
        origin.addr()
    ))
}

fn origin() -> Origin {
    Origin::serving(|request| {
        let status = request.target.strip_prefix("/status/").and_then(|status| status.parse().ok()).unwrap_or(200);
        Answer::with(status, "Set-Cookie: a=secret\r\n", "ok")
    })
}

fn ask(gateway: &Gateway, times: usize) {
    let mut client = gateway.client();
    (0..times).for_each(|turn| assert_eq!(client.get(&format!("/a?turn={turn}")).expect("an answer").status, 200));
}

fn records(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metrics().sum("weir_log_records_total", &["sink=\"http-logger ", &format!("outcome=\"{outcome}\"")])
}

#[test]
fn a_service_gets_every_exchange_in_batches() {
    let (origin, receiver) = (origin(), Origin::serving(|_| Answer::ok("")));
    let plugins = format!(
        "{{ http-logger: {{ uri: \"http://{}/logs\", timeout: 60, batch_max_size: 10, inactive_timeout: 1, auth_header: t0ken }} }}",
        receiver.addr()
    );
    let mut gateway = gateway(&origin, &plugins);
    ask(&gateway, 25);
    eventually("all have been delivered", DEADLINE, || records(&gateway, "delivered") == 25.0);
    let batches = receiver.requests();
    let sent = &batches[0];
    assert_eq!((&*sent.method, &*sent.target, sent.headers.get("authorization")), ("POST", "/logs", Some("t0ken")));
    let list = |body: &[u8]| serde_json::from_slice::<Vec<Value>>(body).expect("a list");
    let entries: Vec<Value> = batches.iter().flat_map(|batch| list(&batch.body)).collect();
    assert_eq!((batches.len() >= 3, entries.len()), (true, 25));
    for (turn, entry) in entries.iter().enumerate() {
        assert_eq!(entry["request"]["uri"], format!("/a?turn={turn}"));
        assert_eq!((&entry["route_id"], &entry["response"]["status"]), (&"logged".into(), &200.into()));
        assert_eq!(entry["response"]["headers"]["set-cookie"], "***");
        assert!(entry["upstream_latency"].as_f64() > Some(0.0), "{entry:#}");
    }
    // What waits at the end is sent before the process goes.
    receiver.forget();
    ask(&gateway, 3);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    eventually("they have come", DEADLINE, || {
        receiver.requests().iter().map(|batch| list(&batch.body).len()).sum::<usize>() == 3
    });
}

#[test]
fn records_that_cannot_be_delivered_are_counted_and_delay_no_client() {
    let (origin, receiver) = (origin(), Origin::serving(|_| Answer::status(503, "")));
    let plugins = format!(
        "{{ http-logger: {{ uri: \"http://{}/logs\", batch_max_size: 5, inactive_timeout: 1, max_retry_count: 1, retry_delay: 0 }} }}",
        receiver.addr()
    );
    let gateway = gateway(&origin, &plugins);
    ask(&gateway, 10);
    eventually("all are lost", DEADLINE, || records(&gateway, "dropped") == 10.0);
    assert!(receiver.requests().len() >= 4, "each batch was tried twice");
    assert_eq!(records(&gateway, "delivered"), 0.0);
    gateway.wait_stderr("it is said", |text| text.contains("the answer is 503; records are lost"));
}

#[test]
fn a_changed_limit_of_waiting_records_holds_for_running_loggers() {
    let origin = origin();
    // Takes connections and whatever is sent, and answers nothing.
    let receiver = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = receiver.local_addr().expect("an address");
    let waits = "batch_max_size: 1000, inactive_timeout: 600, buffer_duration: 600";
    for (name, options) in [
        ("tcp-logger", format!("host: 127.0.0.1, port: {}, {waits}", address.port())),
        ("http-logger", format!("uri: \"http://{address}/\", {waits}")),
    ] {
        let file = |most: usize| {
            format!(
                "plugin_metadata: [{{ id: {name}, max_pending_entries: {most} }}]\n\
                 routes: [{{ uri: /*, plugins: {{ {name}: {{ {options} }} }}, \
                 upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]\n",
                origin.addr()
            )
        };
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(5));
        let dropped = || {
            let sink = format!("sink=\"{name} ");
            gateway.metrics().sum("weir_log_records_total", &[&sink, "outcome=\"dropped\""])
        };
        ask(&gateway, 8);
        eventually("what is beyond the limit is lost", DEADLINE, || dropped() == 3.0);
        gateway.rewrite(&file(20));
        ask(&gateway, 20);
        assert_eq!(dropped(), 3.0, "{name}");
        ask(&gateway, 2);
        eventually("what is beyond the new limit is lost", DEADLINE, || dropped() == 5.0);
    }
}

#[test]
fn a_file_gets_what_matches() {
    let origin = origin();
    let gateway = gateway(
        &origin,
        "{ file-logger: { path: errors.log, match: [[status, \">=\", 400]], log_format: { path: $uri, of: $host } } }",
    );
    let file = gateway.directory().join("errors.log");
    let lines = || fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    ask(&gateway, 3);
    gateway.get("/status/404");
    eventually("it is written", DEADLINE, || !lines().is_empty());
    let line: Value = serde_json::from_str(&lines()[0]).expect("JSON");
    assert_eq!((&line["path"], &line["route_id"]), (&"/status/404".into(), &"logged".into()));
    // Moved away, a new one is begun.
    fs::rename(&file, gateway.directory().join("errors.old")).expect("its own directory");
    gateway.get("/status/500");
    eventually("it is written", DEADLINE, || lines().len() == 1);
    // A line can be read before it is counted.
    let counted = || gateway.metrics().sum("weir_log_records_total", &["sink=\"file-logger errors.log\"", "delivered"]);
    eventually("both are counted", DEADLINE, || counted() == 2.0);
}

#[test]
fn records_say_what_exchanges_carried() {
    let origin = Origin::serving(|request| match &*request.target {
        "/bad" => Answer::status(400, "a longer text"),
        _ => Answer::ok("short"),
    });
    let receiver = Origin::serving(|_| Answer::ok(""));
    let plugins = format!(
        "{{ http-logger: {{ uri: \"http://{}/\", batch_max_size: 1, include_req_body: true, max_req_body_bytes: 4,
            include_resp_body: true, include_resp_body_expr: [[status, \">=\", 400]], max_resp_body_bytes: 8 }} }}",
        receiver.addr()
    );
    let gateway = gateway(&origin, &plugins);
    let mut client = gateway.client();
    for (target, body) in [("/good", "abc"), ("/bad", "abcdef")] {
        let request = format!("POST {target} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let answer = client.ask(request).expect("an answer");
        assert!(answer.headers.has("content-length"), "{:?}", answer.headers);
    }
    let records: Vec<Value> =
        receiver.wait_requests(2).iter().map(|sent| serde_json::from_slice(&sent.body).expect("an object")).collect();
    let bodies = |record: &Value| ["request", "response"].map(|message| record[message]["body"].clone());
    assert_eq!(bodies(&records[0]), ["abc".into(), Value::Null]);
    assert_eq!(bodies(&records[1]), ["abcd", "a longer"].map(Value::from));
    let sent = &origin.requests()[1];
    assert_eq!((sent.body.as_slice(), sent.headers.get("content-length")), (&b"abcdef"[..], Some("6")));
}

/// The account of the one sink, which balances whenever it is read.
fn account(gateway: &Gateway) -> Value {
    let answer = gateway.ask_status("/records");
    let report: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let sinks = report["sinks"].as_array().expect("a list");
    let Some(sink) = sinks.first() else { return Value::Null };
    for unit in ["records", "bytes"] {
        let number = |tally: &Value| tally[unit].as_u64().expect("a number");
        let sum = |tallies: &Value| tallies.as_object().expect("by name").values().map(number).sum::<u64>();
        let settled = number(&sink["delivered"]) + sum(&sink["rejected"]) + sum(&sink["dropped"]);
        assert_eq!(number(&sink["accepted"]), settled + sum(&sink["pending"]), "{sink:#}");
    }
    sink.clone()
}

#[test]
fn u13_a_full_disk_holds_no_request_up_and_loses_nothing_that_fits() {
    let origin = origin();
    let gateway = gateway(&origin, "{ file-logger: { path: /dev/full } }");
    ask(&gateway, 50);
    // An answer comes before its record is accepted.
    let sink = eventually_some("the disk is found full", DEADLINE, || {
        let account = account(&gateway);
        (!account["last_error"].is_null() && account["accepted"]["records"] == 50).then_some(account)
    });
    assert_eq!(sink["plugin"], "file-logger");
    assert_eq!((&sink["delivered"]["records"], &sink["dropped"]), (&0.into(), &serde_json::json!({})));
    gateway.wait_stderr("it is said", |text| text.contains("file-logger /dev/full: No space left on device"));
}

#[test]
fn records_for_a_failing_service_are_delivered_when_it_is_back() {
    let (is_back, taken) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<Vec<u8>>>>::default());
    let (back, kept) = (Arc::clone(&is_back), Arc::clone(&taken));
    let receiver = Origin::serving(move |request| match (back.load(Relaxed), request.body.len()) {
        (false, _) => Answer::status(503, ""),
        (true, 20_000..) => Answer::status(413, ""),
        (true, _) => {
            kept.lock().expect("no test panics with it").push(request.body.clone());
            Answer::ok("")
        }
    });
    let plugins = format!(
        "{{ http-logger: {{ uri: \"http://{}/\", timeout: 60, batch_max_size: 100, inactive_timeout: 1 }} }}",
        receiver.addr()
    );
    let origin = origin();
    let gateway = gateway(&origin, &plugins);
    ask(&gateway, 100);
    eventually("it fails", DEADLINE, || account(&gateway)["last_error"].as_str() == Some("the answer is 503"));
    is_back.store(true, Relaxed);
    eventually("all are delivered", DEADLINE, || account(&gateway)["delivered"]["records"] == 100);
    gateway.wait_stderr("it is told", |line| line.contains("the destination takes records again"));
    let taken = taken.lock().expect("no test panics with it");
    let records = taken.iter().flat_map(|body| serde_json::from_slice::<Vec<Value>>(body).expect("a list"));
    let mut ids: Vec<String> = records.map(|record| record["record_id"].to_string()).collect();
    let sent = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((sent, ids.len()), (100, 100), "each once, however often batches were halved");
    assert_eq!(account(&gateway)["last_error"], Value::Null);
}

#[test]
fn rejected_records_can_be_read() {
    let (origin, receiver) = (origin(), Origin::serving(|_| Answer::status(400, "no such tenant")));
    let data = TempDir::new();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "data_dir: {}
routes:
  - id: logged
    uri: /*
    plugins:
      loki-logger: {{ endpoint_addrs: [\"http://{}\"], batch_max_size: 2, inactive_timeout: 1 }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        data.join("data").display(),
        receiver.addr(),
        origin.addr()
    ));
    ask(&gateway, 4);
    let rejected = eventually_some("they are kept", DEADLINE, || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(["records", "--rejected"]).arg(data.join("data")).output().expect("it runs");
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        (lines.lines().count() == 4).then_some(lines)
    });
    let mut targets: Vec<String> = Vec::new();
    for line in rejected.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["reason"], "invalid");
        assert!(line["sink"].as_str().is_some_and(|sink| sink.starts_with("loki-logger ")), "{line}");
        assert!(line["error"].as_str().is_some_and(|error| error.contains("no such tenant")), "{line}");
        targets.push(line["record"]["request"]["uri"].as_str().expect("a target").to_owned());
    }
    targets.sort();
    assert_eq!(targets, ["/a?turn=0", "/a?turn=1", "/a?turn=2", "/a?turn=3"]);
    let nowhere = Command::new(env!("CARGO_BIN_EXE_weir")).args(["records", "--rejected", "/nonexistent"]).output();
    let nowhere = nowhere.expect("it runs");
    assert!(!nowhere.status.success() && String::from_utf8_lossy(&nowhere.stderr).contains("give the `data_dir`"));
}
