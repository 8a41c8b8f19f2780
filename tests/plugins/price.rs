//! What each policy costs, as the status address tells it while traffic flows.

use std::process::Command;

use serde_json::Value;
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, TempDir, eventually_some};

/// A gateway that measures one exchange in so many, with policies that it decides and one that somebody else decides.
fn start(every: u32) -> (Gateway, Origin, Origin) {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let service = Origin::serving(|_| Answer::ok(""));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "price_every: {every}
routes:
  - id: priced
    uri: /*
    plugins:
      request-id: {{}}
      limit-count: {{ count: 40, time_window: 86400 }}
      forward-auth: {{ uri: \"http://{}/\" }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        service.addr(),
        origin.addr()
    ));
    (gateway, origin, service)
}

fn ask(gateway: &Gateway, times: usize) {
    let mut client = gateway.client();
    (0..times).for_each(|_| assert!(matches!(client.get("/").expect("an answer").status, 200 | 503)));
}

/// What is reported once this number of its route is 50: an exchange is written down after its client has the answer.
fn report(gateway: &Gateway, number: &str) -> Value {
    report_of(gateway, number, 50)
}

fn report_of(gateway: &Gateway, number: &str, times: u64) -> Value {
    eventually_some("all are written down", DEADLINE, || {
        let report: Value = serde_json::from_str(&gateway.ask_status("/policies").text()).expect("JSON");
        (report["routes"][0][number] == times).then_some(report)
    })
}

#[test]
fn the_price_of_each_policy_is_told_live() {
    let (gateway, _origin, _service) = start(1);
    ask(&gateway, 50);
    let report = report(&gateway, "exchanges_measured");
    assert_eq!(report["measured_one_in"], 1);
    let route = &report["routes"][0];
    assert_eq!(route["route"], "priced", "{report:#}");
    assert_eq!((route["exchanges"].as_u64(), route["exchanges_measured"].as_u64()), (Some(50), Some(50)));
    let cpu_ns = route["cpu_ns_per_exchange"].as_f64().expect("a number");
    let policies = route["policies"].as_array().expect("a list");
    let policy = |name: &str| policies.iter().find(|policy| policy["policy"] == name).expect("it was met");
    let mut sum_ns = 0.0;
    for name in ["request-id", "limit-count", "forward-auth"] {
        let policy = policy(name);
        assert_eq!((policy["calls"].as_f64(), policy["calls_measured"].as_u64()), (Some(50.0), Some(50)), "{name}");
        let (own_ns, share) = (policy["cpu_ns_per_call"].as_f64(), policy["share_of_route_cpu"].as_f64());
        assert!(own_ns > Some(0.0) && share > Some(0.0) && share < Some(1.0), "{policy:#}");
        sum_ns += own_ns.unwrap_or_default();
    }
    assert!(sum_ns < cpu_ns, "the parts are less than the whole: {report:#}");
    assert!(policy("forward-auth")["waited_ns_per_call"].as_f64() > Some(0.0), "{report:#}");
    assert_eq!(policy("limit-count")["waited_ns_per_call"], 0.0);
    assert_eq!((&policy("limit-count")["refusals"], &policy("limit-count")["errors"]), (&10.into(), &0.into()));
    let metrics = gateway.metrics();
    let of = |name: &str| metrics.sum(name, &["route=\"priced\"", "policy=\"limit-count\""]);
    assert_eq!((of("weir_policy_measured_calls_total"), of("weir_policy_refusals_total")), (50.0, 10.0));
    assert!(of("weir_policy_measured_cpu_seconds_total") > 0.0);
    assert_eq!(metrics.sum("weir_route_measured_exchanges_total", &["route=\"priced\""]), 50.0);

    let explained = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["explain", &gateway.file().to_string_lossy(), "GET", "http://t/", "--status"])
        .arg(gateway.status_addr().to_string())
        .output()
        .expect("it runs");
    let text = String::from_utf8(explained.stdout).expect("text");
    let line = text.lines().find(|line| line.contains("forward-auth")).expect("a line for it");
    assert!(
        line.contains("µs of processor time") && line.contains("µs of waiting per call (50 calls measured)"),
        "{text}"
    );
}

#[test]
fn refusals_are_counted_where_nothing_is_measured() {
    let (gateway, _origin, _service) = start(0);
    ask(&gateway, 50);
    let report = report(&gateway, "exchanges");
    let route = &report["routes"][0];
    assert_eq!((&route["exchanges"], &route["exchanges_measured"]), (&50.into(), &0.into()), "{report:#}");
    let policies = route["policies"].as_array().expect("a list");
    assert_eq!(policies.len(), 1, "{report:#}");
    assert_eq!((&policies[0]["policy"], &policies[0]["refusals"]), (&"limit-count".into(), &10.into()));
}

/// A gateway whose plugins look into content, and only into content.
fn start_with_content(every: u32, log: &TempDir) -> (Gateway, Origin) {
    let origin = Origin::serving(|_| Answer::with(200, "Content-Type: text/html\r\n", "b".repeat(3000)));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "price_every: {every}
routes:
  - id: content
    uri: /*
    plugins:
      json-threat-protection: {{ max_depth: 2 }}
      content-filter: {{ rules: [{{ in: body, pattern: never, action: block }}] }}
      response-rewrite: {{ filters: [{{ regex: b, replace: B, scope: once }}] }}
      gzip: {{}}
      file-logger: {{ path: {}, include_req_body: true, max_req_body_bytes: 5 }}
    upstream: {{ nodes: {{ \"{}\": 1 }}, type: roundrobin }}
",
        log.path().join("records.log").display(),
        origin.addr()
    ));
    (gateway, origin)
}

#[test]
fn price_includes_work_on_content() {
    let log = TempDir::new();
    let (gateway, _origin) = start_with_content(1, &log);
    let mut client = gateway.client();
    for (body, status) in [("[\"hello\"]", 200), ("[[[\"a\"]]]", 400)] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\
             Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        assert_eq!(client.ask(request).expect("an answer").status, status);
    }
    let report = report_of(&gateway, "exchanges_measured", 2);
    let route = &report["routes"][0];
    let policies = route["policies"].as_array().expect("a list");
    let policy = |name: &str| policies.iter().find(|policy| policy["policy"] == name).expect("it was met");
    let numbers = |name: &str| ["calls_measured", "refusals", "held_bytes"].map(|number| policy(name)[number].as_u64());
    // Nine bytes of each request, once for each that wanted them; of the gateway's own answer nobody had to hold anything.
    assert_eq!(numbers("json-threat-protection"), [Some(2), Some(1), Some(18)], "{report:#}");
    assert_eq!(numbers("content-filter"), [Some(2), Some(0), Some(18)], "{report:#}");
    assert_eq!(numbers("response-rewrite"), [Some(2), Some(0), Some(3000)], "{report:#}");
    // Content that passes is not held, and of what a logger is to say one byte more than it may, so that it can tell.
    assert_eq!(numbers("gzip"), [Some(2), Some(0), Some(0)], "{report:#}");
    assert_eq!(numbers("file-logger"), [Some(2), Some(0), Some(6)], "{report:#}");
    for policy in policies {
        assert!(policy["cpu_ns_per_call"].as_f64() > Some(0.0), "{policy:#}");
    }
    let sum_ns: f64 = policies.iter().filter_map(|policy| policy["cpu_ns_per_call"].as_f64()).sum();
    assert!(Some(sum_ns) < route["cpu_ns_per_exchange"].as_f64(), "the parts are less than the whole: {report:#}");
    let labels = ["route=\"content\"", "policy=\"response-rewrite\""];
    assert_eq!(gateway.metrics().sum("weir_policy_held_bytes_total", &labels), 3000.0);
}

#[test]
fn held_content_is_counted_without_measuring() {
    let log = TempDir::new();
    let (gateway, _origin) = start_with_content(0, &log);
    assert_eq!(gateway.get("/").status, 200);
    let report = report_of(&gateway, "exchanges", 1);
    let policies = report["routes"][0]["policies"].as_array().expect("a list");
    assert_eq!(policies.len(), 1, "{report:#}");
    assert_eq!((&policies[0]["policy"], &policies[0]["held_bytes"]), (&"response-rewrite".into(), &3000.into()));
}

#[test]
fn a_service_that_fails_is_an_error_of_its_plugin_whatever_becomes_of_the_request() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let (nowhere, node) = (std::net::SocketAddr::from(([127, 0, 0, 1], 1)), origin.addr());
    let http = format!("http://{nowhere}");
    let route = |id: &str, plugin: &str| {
        format!("  - {{ id: {id}, uri: /{id}, plugins: {{ {plugin} }}, upstream: {{ nodes: {{ \"{node}\": 1 }} }} }}\n")
    };
    let cases = [
        ("authz", format!("ext-authz: {{ grpc_service: {{ uri: \"{http}\" }} }}"), 403),
        ("authz-open", format!("ext-authz: {{ grpc_service: {{ uri: \"{http}\" }}, failure_mode_allow: true }}"), 200),
        ("proc", format!("ext-proc: {{ grpc_service: {{ uri: \"{http}\" }}, status_on_error: 503 }}"), 503),
        ("proc-open", format!("ext-proc: {{ grpc_service: {{ uri: \"{http}\" }}, failure_mode_allow: true }}"), 200),
        ("forward", format!("forward-auth: {{ uri: \"{http}/\" }}"), 403),
        ("forward-open", format!("forward-auth: {{ uri: \"{http}/\", allow_degradation: true }}"), 200),
        ("policy", format!("opa: {{ host: \"{http}\", policy: a }}"), 403),
        (
            "count-open",
            format!(
                "limit-count: {{ count: 1, time_window: 60, policy: redis, redis_host: {}, redis_port: {}, allow_degradation: true }}",
                nowhere.ip(),
                nowhere.port()
            ),
            200,
        ),
    ];
    let routes: String = cases.iter().map(|(id, plugin, _)| route(id, plugin)).collect();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!("routes:\n{routes}"));
    let mut client = gateway.client();
    for (id, _, status) in &cases {
        let answer = client.get(&format!("/{id}")).expect("an answer");
        assert_eq!(answer.status, *status, "{id}");
    }
    for (id, plugin, _) in &cases {
        let labels = [format!("route=\"{id}\""), format!("policy=\"{}\"", plugin.split(':').next().expect("a name"))];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        weir_testkit::eventually("the failure is counted", DEADLINE, || {
            gateway.metrics().sum("weir_policy_errors_total", &labels) == 1.0
        });
        assert_eq!(gateway.metrics().sum("weir_policy_refusals_total", &labels), 0.0, "{id}");
    }
}
