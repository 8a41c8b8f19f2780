//! `weir load` with data, checks, steps and calls of gRPC, through a gateway.

use std::process::{Command, Output};

use serde_json::Value;
use weir_bench::backend::{BackendServer, Config};
use weir_testkit::{Gateway, TempDir};

use crate::weir;

/// A key that the log-in gives and the cart demands, at the end of a redirect.
const FILE: &str = r#"
listen: ["127.0.0.1:0"]
status: false
consumers:
  - { username: jack, plugins: { key-auth: { key: the-key-of-jack-0123456789 } } }
routes:
  - uri: /login
    plugins:
      mocking: { content_type: application/json, response_example: '{"key": "the-key-of-jack-0123456789"}' }
  - { uri: /old, plugins: { redirect: { uri: /cart, ret_code: 302 } } }
  - { uri: /cart, plugins: { key-auth: {}, mocking: { content_type: text/plain, response_example: full } } }
"#;

fn plan(gateway: &Gateway, protocol: &str) -> String {
    let address = gateway.addr();
    format!(
        r#"
requests:
  - name: log in
    url: http://{address}/login
    check: [{{ status: [200] }}, {{ json: /key }}]
    take: {{ key: {{ json: /key }} }}
  - name: cart
    url: http://{address}/old
    headers: {{ apikey: "${{key}}" }}
    follow_redirects: 3
    check: [{{ status: [2xx] }}, {{ contains: full }}]
selection: sequence
cookies: true
protocol: {protocol}
connections: 2
stop: {{ count: 40 }}
timeouts: {{ connect_ms: 60000, response_ms: 60000 }}
fail_if: ["checks>0", "errors>0", "p99[cart]>1h"]
"#
    )
}

fn load(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["load", "--quiet"]).args(arguments);
    // A plan has its own.
    if !arguments.contains(&"--plan") {
        command.args(["--timeout", "60s", "--connect-timeout", "60s"]);
    }
    command.output().expect("it was built")
}

#[track_caller]
fn ends(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}{}", String::from_utf8_lossy(&output.stdout));
    said
}

#[test]
fn load_logs_in_and_uses_what_it_gets() {
    let gateway = weir().start(FILE);
    let place = TempDir::new();
    for protocol in ["{ kind: http1 }", "{ kind: http2 }"] {
        let plan = place.write("plan.yaml", plan(&gateway, protocol));
        let plan = plan.to_str().expect("ASCII");
        let output = load(&["--plan", plan, "--json", "-"]);
        ends(&output, 0);
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&result["total"]["completed"], &result["total"]["statuses"]["200"]), (&40.into(), &40.into()));
        let passes = &result["flow"]["passes"];
        assert!(passes["completed"].as_u64() >= Some(19) && passes["abandoned"] == 0, "{passes}");
        let checks = result["flow"]["checks"].as_array().expect("a list");
        assert!(checks.len() == 6 && checks.iter().all(|check| check["failed"] == 0), "{checks:?}");
        assert!(result["percentiles_ms"]["first_byte"]["p99"].as_f64() > Some(0.0));
        assert_eq!(result["fail_if"][0]["failed"], false);
        // The same run fails by a condition that is certainly met, whose figure is named.
        let output = load(&["--plan", plan, "--fail-if", "max<1h"]);
        let said = ends(&output, 1);
        assert!(
            said.contains("failed: max<1h: ") && said.contains("s\n") && said.contains("passed: checks>0: 0"),
            "{said}"
        );
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(report.contains("Check: cart: body contains \"full\": passed by"), "{report}");
        assert!(report.contains("passes") && report.contains("through all requests"), "{report}");
    }
}

#[test]
fn failed_check_is_shown_and_fails_the_run_if_a_condition_says_so() {
    let gateway = weir().start(FILE);
    let place = TempDir::new();
    let users = place.write("users.csv", "user\nann\nbob\n");
    let url = format!("http://{}/login?user=${{user}}", gateway.addr());
    let arguments = [&url, "-n", "10", "--csv", users.to_str().expect("ASCII"), "--check", "json:/key=other"];
    let output = load(&arguments);
    ends(&output, 0);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = "JSON /key is \"other\": failed by 10 of 10; for one of them it was \"the-key-of-jack-0123456789\"";
    assert!(report.contains(line), "{report}");
    let said = ends(&load(&[&arguments[..], &["--fail-if", "checks>5%"]].concat()), 1);
    assert!(said.contains("failed: checks>5%: 100.000 %"), "{said}");
    let wrong = ends(&load(&[&url, "-n", "1", "--var", "id=uuid"]), 2);
    assert!(wrong.contains("requests[0].url: ${user} is not a name of `data` or `take` (id)"), "{wrong}");
}

#[test]
fn calls_of_grpc_go_through_a_gateway() {
    let backend = BackendServer::start(&Config::default()).expect("a free port");
    let gateway = weir().start(&format!(
        "listen: [\"127.0.0.1:0\"]\nstatus: false\n\
         routes: [{{ uri: /echo.Echo/*, upstream: {{ scheme: grpc, nodes: {{ \"{}\": 1 }} }} }}]\n",
        backend.addresses()[0]
    ));
    let place = TempDir::new();
    let proto = "syntax = \"proto3\"; package echo; message Text { string text = 1; } \
        service Echo { rpc Say(Text) returns (Text); rpc Watch(Text) returns (stream Text); } \
        service Other { rpc Say(Text) returns (Text); }";
    let proto = place.write("echo.proto", proto);
    let url = format!("http://{}", gateway.addr());
    let call = |method: &str, more: &[&str]| {
        let proto = proto.to_str().expect("ASCII");
        let common = [&url, "--proto", proto, "--call", method, "-n", "40", "-c", "2", "--streams", "4", "--json", "-"];
        let output = load(&[&common[..], &["--data", "{\"text\": \"hi\"}"], more].concat());
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["total"].clone()
    };
    let said = call("echo.Echo/Say", &["--check", "json:/text=hi", "--deadline", "60s"]);
    assert_eq!((&said["statuses"]["0"], said.get("failed_checks")), (&40.into(), None), "{said}");
    let watched = call("echo.Echo/Watch", &["-H", "x-repeat: 3"]);
    assert_eq!((&watched["statuses"]["0"], &watched["messages"]), (&40.into(), &120.into()), "{watched}");
    // The gateway has no route for it, and answers in the words of HTTP.
    let refused = call("echo.Other/Say", &[]);
    assert_eq!((&refused["statuses"]["404"], &refused["unexpected"]), (&40.into(), &40.into()), "{refused}");
}
