//! `weir tail` and `weir trace`: what a running node does with requests.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, eventually, eventually_some, free_port};

use crate::weir;

fn node(origin: &Origin) -> Gateway {
    weir().start(&format!(
        "routes:
  - {{ id: open, uri: /open/*, plugins: {{ cors: {{}}, proxy-rewrite: {{ uri: /rewritten }} }}, upstream_id: one }}
  - {{ id: guarded, uri: /guarded, plugins: {{ key-auth: {{}} }}, upstream_id: one }}
  - {{ id: dead, uri: /dead, upstream: {{ nodes: {{ \"127.0.0.1:{}\": 1 }}, retries: 0 }} }}
upstreams: [{{ id: one, nodes: {{ \"{}\": 1 }} }}]
consumers: [{{ username: jack, plugins: {{ key-auth: {{ key: sesame }} }} }}]
",
        free_port(),
        origin.addr()
    ))
}

fn command(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).arg("--status").arg(gateway.status_addr().to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> (bool, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn exchanges_are_shown_as_they_end() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = node(&origin);
    let mut tail = command(&gateway, &["tail", "--json"]).spawn().expect("it runs");
    let mut lines = BufReader::new(tail.stdout.take().expect("it is piped")).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("UTF-8")).expect("JSON") };
    // The first lines may come before anybody looks.
    let mut client = gateway.client();
    eventually("somebody looks", DEADLINE, || {
        client.get("/open/first?probe").expect("an answer");
        gateway.ask_status("/livez").status == 200 && gateway.metrics().get("weir_tails") == Some(1.0)
    });
    client.get("/open/marked").expect("an answer");
    let mut exchange = next();
    while exchange["uri"] != "/open/marked" {
        exchange = next();
    }
    assert_eq!((exchange["status"].as_u64(), exchange["route_id"].as_str()), (Some(200), Some("open")));
    assert_eq!(exchange["upstream_uri"], "/rewritten");
    client.get("/guarded").expect("an answer");
    let refused = next();
    assert_eq!((refused["status"].as_u64(), refused["refused_by"].as_str()), (Some(401), Some("key-auth")));
    client.get("/dead").expect("an answer");
    let failed = next();
    assert_eq!((failed["status"].as_u64(), failed["error_cause"].as_str()), (Some(502), Some("connect_failed")));
    assert_eq!(failed["upstream_error"], "Connection refused (os error 111)");
    tail.kill().expect("it runs");
    tail.wait().expect("it ends");
    eventually("nobody looks", DEADLINE, || gateway.metrics().get("weir_tails") == Some(0.0));
}

#[test]
fn a_condition_selects_and_a_count_ends() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = node(&origin);
    let condition = r#"[["status", "==", 401]]"#;
    let tail = command(&gateway, &["tail", "--vars", condition, "-n", "2"]).spawn().expect("it runs");
    eventually("somebody looks", DEADLINE, || gateway.metrics().get("weir_tails") == Some(1.0));
    let mut client = gateway.client();
    for target in ["/open/a", "/guarded", "/open/b", "/guarded", "/guarded"] {
        client.get(target).expect("an answer");
    }
    let (done, out, _) = said(&tail.wait_with_output().expect("it ends"));
    let lines: Vec<&str> = out.lines().collect();
    assert!(done && lines.len() == 2, "{out}");
    assert!(lines.iter().all(|line| line.contains(" 401 ") && line.contains("refused_by=key-auth")), "{out}");
}

#[test]
fn tail_refuses_invalid_conditions_and_foreign_hosts() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = node(&origin);
    for (vars, want) in [
        ("status", "--vars: not JSON"),
        (r#"[["status", "~", 5]]"#, "--vars[0]"),
        (r#"[["statsu", ">=", 500]]"#, "which does not exist; did you mean `status`?"),
    ] {
        let (done, _, error) = said(&command(&gateway, &["tail", "--vars", vars]).output().expect("it ends"));
        assert!(!done && error.contains(want), "{error}");
    }
    let response = Client::connect(gateway.status_addr()).get("/tail?status=401").expect("an answer");
    assert_eq!((response.status, response.text().contains("the arguments are vars and trace")), (400, true));
    let rebound = "GET /tail HTTP/1.1\r\nHost: rebound.example\r\n\r\n";
    assert_eq!(Client::connect(gateway.status_addr()).ask(rebound).expect("an answer").status, 421);
}

#[test]
fn a_trace_tells_the_way_of_a_request() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = node(&origin);
    let url = |path: &str| format!("http://{}{path}", gateway.addr());
    let try_trace =
        |arguments: &[&str]| said(&command(&gateway, &[&["trace"], arguments].concat()).output().expect("it ends"));
    // The command gives a node up that says nothing for five seconds, which a busy machine may need.
    let trace = |arguments: &[&str]| {
        let mut traced = (0..3).map(|_| try_trace(arguments));
        traced.find(|(done, ..)| *done).unwrap_or_else(|| try_trace(arguments))
    };
    let (done, out, error) = trace(&[&url("/open/x"), "-H", "Origin: http://a.example"]);
    assert!(done, "{error}");
    for wanted in [
        "route              open",
        "request            cors",
        "proxy-rewrite",
        "upstream uri       /rewritten",
        "status             200",
    ] {
        assert!(out.contains(wanted), "{wanted} in\n{out}");
    }
    let (_, out, _) = trace(&[&url("/guarded")]);
    assert!(out.contains("refused by         key-auth") && out.contains("status             401"), "{out}");
    let named = format!("http://shop.test:{}/guarded", gateway.addr().port());
    let (done, out, error) = trace(&[&named, "--connect-to", &gateway.addr().to_string()]);
    assert!(done && out.contains("shop.test"), "{out}{error}");
    let (_, out, _) = trace(&[&url("/guarded"), "-H", "apikey: sesame", "-X", "POST", "-d", "content", "--json"]);
    let told: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((told["consumer"].as_str(), told["method"].as_str()), (Some("jack"), Some("POST")));
    assert!(told["plugins"][0]["us"].as_f64().is_some_and(|us| us > 0.0), "{told}");
    // Somebody else's request with the field of a trace is not traced.
    let mut client = gateway.client();
    assert_eq!(
        client.ask("GET /open/y HTTP/1.1\r\nHost: t\r\nX-Weir-Trace: guess\r\n\r\n").expect("an answer").status,
        200
    );
    let elsewhere = Origin::serving(|_| Answer::ok("not a gateway"));
    let (done, _, error) = try_trace(&[&format!("http://{}/", elsewhere.addr())]);
    assert!(!done && error.contains("has not seen the request"), "{error}");
}

#[test]
fn a_traced_request_is_not_among_those_whose_price_is_measured() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = weir().start(&format!(
        "price_every: 0
routes: [{{ id: priced, uri: /*, plugins: {{ cors: {{}} }}, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]
",
        origin.addr()
    ));
    let url = format!("http://{}/", gateway.addr());
    let (done, out, error) = said(&command(&gateway, &["trace", &url]).output().expect("it ends"));
    assert!(done && out.contains("request            cors"), "{out}{error}");
    let report = eventually_some("it is counted", DEADLINE, || {
        let report: Value = serde_json::from_str(&gateway.ask_status("/policies").text()).expect("JSON");
        (report["routes"][0]["exchanges"] == 1).then_some(report)
    });
    let route = &report["routes"][0];
    assert_eq!(route["exchanges_measured"], 0, "{report:#}");
    assert_eq!(route["policies"].as_array().map(Vec::len), Some(0), "{report:#}");
}
