//! The access log: every exchange is one line, whatever the client sends.

use std::fs;
use std::path::Path;

use weir_testkit::{Answer, DEADLINE, Gate, Origin, Signal, eventually, free_port};

use crate::load::{Load, origin, routes};
use crate::weir;

fn lines(path: &Path) -> Vec<Vec<u8>> {
    let text = fs::read(path).unwrap_or_default();
    text.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// What clients send to forge lines, to break JSON, or to take over the terminal of who reads the log.
const HOSTILE: [&[u8]; 8] = [
    b"\" 200 0 \"-\" \"forged",
    b"\\\" \\n \\",
    b"\x1b[2J\x1b]0;owned\x07",
    b"\xff\xfe\x80 not UTF-8",
    "\u{2028}\u{2029}\u{9b}2J".as_bytes(),
    b"\"}\t{\"index\":{\"_index\":\"evil\"}}",
    b"$remote_addr ${uri} %s %n",
    "Zürich → Bern".as_bytes(),
];

/// Sends each of them as a value that the log shows. Returns how many exchanges there were.
fn attack(gateway: &weir_testkit::Gateway) -> usize {
    let mut exchanges = 0;
    for hostile in HOSTILE {
        for field in ["User-Agent", "Referer"] {
            let request = [b"GET /a HTTP/1.1\r\nHost: t\r\n", field.as_bytes(), b": ", hostile, b"\r\n\r\n"].concat();
            let mut client = gateway.client();
            client.send(request);
            // Refusing some of them is right, too. Either way it is one exchange.
            client.response().expect("an answer");
            exchanges += 1;
        }
    }
    exchanges
}

#[test]
fn p14_combined_is_one_printable_line_for_each_exchange() {
    let origin = origin();
    let mut gateway = weir().start(&format!("enable_access_log: access.log\n{}", routes(&origin)));
    let path = gateway.directory().join("access.log");
    let exchanges = attack(&gateway);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let lines = lines(&path);
    assert_eq!(lines.len(), exchanges, "{}", fs::read_to_string(&path).unwrap_or_default());
    for line in lines {
        let text = line.strip_suffix(b"\n").expect("a whole line");
        assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte)), "{:?}", String::from_utf8_lossy(&line));
        // 127.0.0.1 - - [time] "request" status bytes "referer" "agent"
        assert_eq!(text.iter().filter(|&&byte| byte == b'"').count(), 6, "{:?}", String::from_utf8_lossy(&line));
    }
}

#[test]
fn p14_json_is_one_object_for_each_exchange() {
    let origin = origin();
    let settings = "enable_access_log: { path: access.log, format: json }\n";
    let mut gateway = weir().start(&format!("{settings}{}", routes(&origin)));
    let path = gateway.directory().join("access.log");
    let exchanges = attack(&gateway);
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let text = fs::read_to_string(&path).expect("it is UTF-8");
    assert_eq!(text.lines().count(), exchanges, "{text}");
    assert!(!text.chars().any(|char| char != '\n' && char.is_control()), "{text:?}");
    for line in text.lines() {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(entry["status"].is_u64() && entry["request_time"].is_number(), "{entry:#}");
        assert_eq!(entry["remote_addr"], "127.0.0.1");
    }
}

#[test]
fn lines_name_every_attempt_and_what_ended_an_exchange() {
    let (origin, refusing) = (origin(), free_port());
    let mut gateway = weir().start(&format!(
        "enable_access_log: {{ path: access.log, format: '$uri $status $error_cause $upstream_addr $upstream_status \
         [$upstream_error] $request_id $apisix_request_id' }}\n\
         routes:\n\
         - {{ uri: /some, upstream: {{ nodes: {{ \"127.0.0.1:{refusing}\": 1, \"{addr}\": 1 }} }} }}\n\
         - {{ uri: /none, upstream: {{ nodes: {{ \"127.0.0.1:{refusing}\": 1 }} }}, plugins: {{ request-id: {{}} }} }}\n",
        addr = origin.addr(),
    ));
    let mut client = gateway.client();
    for (path, id) in [("/some", "mine"), ("/some", "mine"), ("/none", "mine"), ("/nowhere", "mine")] {
        client.ask(format!("GET {path} HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\n\r\n")).expect("an answer");
    }
    drop(client);
    let path = gateway.directory().join("access.log");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let text = fs::read_to_string(&path).expect("it was written");
    let mut ids = Vec::new();
    let mut told = Vec::new();
    for line in text.lines() {
        let (rest, of_plugin) = line.rsplit_once(' ').expect("seven parts");
        let (rest, own) = rest.rsplit_once(' ').expect("seven parts");
        ids.push(own);
        told.push(
            format!("{rest} {of_plugin}")
                .replace(&origin.addr().to_string(), "O")
                .replace(&format!("127.0.0.1:{refusing}"), "R"),
        );
    }
    told[..2].sort();
    let expected = [
        "/some 200 - O 200 [-] -",
        "/some 200 - R, O -, 200 [Connection refused (os error 111), -] -",
        "/none 502 connect_failed R - [Connection refused (os error 111)] mine",
        "/nowhere 404 no_route - - [-] -",
    ];
    assert_eq!(told, expected, "{text}");
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() == 4 && ids.iter().all(|id| id.len() == 32), "{ids:?}");
}

#[test]
fn an_exchange_that_got_no_permit_names_no_endpoint() {
    let gate = Gate::new();
    let origin = Origin::serving({
        let gate = gate.clone();
        move |_| {
            gate.wait();
            Answer::ok("late")
        }
    });
    let mut gateway = weir().start(&format!(
        "enable_access_log: {{ path: access.log, format: '$uri $status $error_cause [$upstream_addr]' }}\n\
         worker_processes: 1\n\
         routes:\n\
         - {{ uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }}, concurrency: 1, queue: {{ size: 0 }} }} }}\n",
        origin.addr(),
    ));
    let mut first = gateway.client();
    first.send("GET /first HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.wait_arrived(1);
    assert_eq!(gateway.get("/second").status, 503);
    gate.open();
    assert_eq!(first.response().expect("an answer").status, 200);
    drop(first);
    let path = gateway.directory().join("access.log");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let text = fs::read_to_string(&path).expect("it was written").replace(&origin.addr().to_string(), "O");
    assert_eq!(text, "/second 503 overloaded [-]\n/first 200 - [O]\n");
}

#[test]
fn a_log_that_was_moved_away_is_opened_again_and_no_line_is_lost() {
    let origin = origin();
    let mut gateway = weir().start(&format!("enable_access_log: access.log\n{}", routes(&origin)));
    let path = gateway.directory().join("access.log");
    let load = Load::start(gateway.addr());
    let mut moved = Vec::new();
    for number in 0..5 {
        load.wait_for(50);
        let to = gateway.directory().join(&format!("access.log.{number}"));
        fs::rename(&path, &to).expect("it is there");
        moved.push(to);
        gateway.signal(Signal::USR1);
        eventually("a new file is there", DEADLINE, || path.exists());
    }
    load.wait_for(50);
    load.finish();
    assert_eq!(gateway.metrics().get("weir_access_log_lines_total{outcome=\"dropped\"}"), Some(0.0));
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    moved.push(path);
    let written: usize = moved.iter().map(|path| lines(path).len()).sum();
    assert_eq!(written, origin.requests().len());
}

#[test]
fn f11_a_full_disk_costs_lines_and_nothing_else() {
    let origin = origin();
    let gateway = weir().start(&format!("enable_access_log: /dev/full\n{}", routes(&origin)));
    let load = Load::start(gateway.addr());
    load.wait_for(500);
    load.finish();
    eventually("the loss is counted", DEADLINE, || {
        let metrics = gateway.metrics();
        metrics.get("weir_access_log_lines_total{outcome=\"dropped\"}") >= Some(500.0)
            && metrics.get("weir_access_log_write_errors_total") > Some(0.0)
    });
    gateway.wait_stderr("why", |line| line.contains("access log /dev/full: No space left on device"));
}

#[test]
fn an_endpoint_that_falls_out_of_rotation_and_comes_back_is_told() {
    let port = free_port();
    let addr = format!("127.0.0.1:{port}");
    let gateway = weir().start(&format!(
        "routes:\n\
         - uri: /*\n\
         \x20 upstream:\n\
         \x20   nodes: {{ \"{addr}\": 1 }}\n\
         \x20   checks: {{ active: {{ type: tcp, healthy: {{ interval: 1, successes: 1 }}, unhealthy: {{ interval: 1, tcp_failures: 1 }} }} }}\n",
    ));
    let out = gateway.wait_stderr("out of rotation", |line| line.contains("is out of rotation"));
    assert!(out.contains("WARN an endpoint is out of rotation until health checks succeed"), "{out}");
    assert!(out.contains("Connection refused") && out.contains(&format!("endpoint={addr}")), "{out}");
    let _origin =
        weir_testkit::Origin::scripted_at(([127, 0, 0, 1], port).into(), weir_testkit::Reading::Strict, |_| {});
    let back = gateway.wait_stderr("back in rotation", |line| line.contains("is back in rotation"));
    assert!(back.contains(&format!("WARN an endpoint is back in rotation endpoint={addr}")), "{back}");
}

#[test]
fn requests_that_fail_are_told_once_with_their_cause_and_not_for_each() {
    let port = free_port();
    let gateway = weir().start(&format!(
        "error_log_level: info\n\
         routes:\n- {{ uri: /*, upstream: {{ nodes: {{ \"127.0.0.1:{port}\": 1 }}, checks: {{ active: {{ type: tcp, \
         healthy: {{ interval: 1000 }}, unhealthy: {{ interval: 1000 }} }}, passive: {{ unhealthy: {{ tcp_failures: 3 }} }} }} }} }}\n",
    ));
    for _ in 0..50 {
        assert_eq!(gateway.get("/").status / 100, 5);
    }
    let told = gateway.wait_stderr("out of rotation", |line| line.contains("is out of rotation"));
    assert!(told.contains("3 exchanges in a row failed, the last one failed: connect_failed"), "{told}");
    let all = gateway.stderr();
    let first =
        "INFO an exchange with an endpoint failed: connect_failed; after 3 in a row the endpoint leaves the rotation";
    assert_eq!(all.matches(first).count(), 1, "{all}");
    assert_eq!(all.matches("is out of rotation").count(), 1, "{all}");
}

#[test]
fn in_json_every_line_of_start_reload_and_stop_is_an_object() {
    let origin = origin();
    let mut gateway = weir().arg("--log-format").arg("json").spawn(&routes(&origin));
    gateway.wait_stderr("ready", |line| line.contains("\"message\":\"ready"));
    gateway.replace_file("routes: [");
    gateway.wait_stderr("rejected", |line| line.contains("configuration rejected"));
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    for line in gateway.stderr().lines() {
        let said: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(said["timestamp"].is_string() && said["level"].is_string(), "{said}");
        let message = said["message"].as_str().expect("text");
        let is_fault = message.contains("is not YAML") || message.contains("configuration rejected");
        assert_eq!(said["level"] == "ERROR", is_fault, "{said}");
    }
}
