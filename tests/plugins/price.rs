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
      forward-auth: {{ uri: \"http://{}/\", timeout: 20000 }}
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

/// Plugins that reach servers, and where it is counted that one of these has failed, if not as an error of the plugin.
const COUNTED_ELSEWHERE: &[(&str, &str)] = &[
    ("clickhouse-logger", "weir_log_sink_up"),
    ("datadog", "weir_log_sink_up"),
    ("elasticsearch-logger", "weir_log_sink_up"),
    ("error-page", "weir_upstream_endpoint_failures_total"),
    ("google-cloud-logging", "weir_log_sink_up"),
    // As in `limit-count`, of a request with a query.
    ("graphql-limit-count", "weir_policy_errors_total"),
    ("http-logger", "weir_log_sink_up"),
    ("kafka-logger", "weir_log_sink_up"),
    ("lago", "weir_log_sink_up"),
    ("loggly", "weir_log_sink_up"),
    ("loki-logger", "weir_log_sink_up"),
    ("opentelemetry", "weir_log_sink_up"),
    ("otlp-logger", "weir_log_sink_up"),
    ("proxy-mirror", "weir_mirrored_requests_total"),
    ("skywalking", "weir_log_sink_up"),
    ("skywalking-logger", "weir_log_sink_up"),
    ("sls-logger", "weir_log_sink_up"),
    ("splunk-hec-logging", "weir_log_sink_up"),
    ("syslog", "weir_log_sink_up"),
    ("tcp-logger", "weir_log_sink_up"),
    ("tencent-cloud-cls", "weir_log_sink_up"),
    ("traffic-split", "weir_upstream_endpoint_failures_total"),
    ("udp-logger", "weir_log_sink_up"),
    ("zipkin", "weir_log_sink_up"),
];

/// A plugin whose service is at `http://` and this address, where nothing listens: an id, the options, a field of the request, and the
/// status of the response.
type FailingService = (&'static str, String, &'static str, u16);

fn failing_services(nowhere: std::net::SocketAddr) -> Vec<FailingService> {
    let http = format!("http://{nowhere}");
    let (bearer, basic) = ("Authorization: Bearer a\r\n", "Authorization: Basic YTpi\r\n");
    let events = "Accept: text/event-stream\r\n";
    let redis = format!("policy: redis, redis_host: {}, redis_port: {}", nowhere.ip(), nowhere.port());
    vec![
        ("authz", format!("ext-authz: {{ grpc_service: {{ uri: \"{http}\" }} }}"), "", 403),
        (
            "authz-open",
            format!("ext-authz: {{ grpc_service: {{ uri: \"{http}\" }}, failure_mode_allow: true }}"),
            "",
            200,
        ),
        ("proc", format!("ext-proc: {{ grpc_service: {{ uri: \"{http}\" }}, status_on_error: 503 }}"), "", 503),
        (
            "proc-open",
            format!("ext-proc: {{ grpc_service: {{ uri: \"{http}\" }}, failure_mode_allow: true }}"),
            "",
            200,
        ),
        ("forward", format!("forward-auth: {{ uri: \"{http}/\" }}"), "", 403),
        ("forward-open", format!("forward-auth: {{ uri: \"{http}/\", allow_degradation: true }}"), "", 200),
        ("policy", format!("opa: {{ host: \"{http}\", policy: a }}"), "", 403),
        (
            "keycloak",
            format!("authz-keycloak: {{ token_endpoint: \"{http}/token\", client_id: a, permissions: [a] }}"),
            bearer,
            503,
        ),
        (
            "openid",
            format!("openid-connect: {{ client_id: a, client_secret: b, discovery: \"{http}/\", bearer_only: true }}"),
            bearer,
            503,
        ),
        ("ldap", format!("ldap-auth: {{ base_dn: \"dc=a\", ldap_uri: \"{nowhere}\" }}"), basic, 503),
        ("definition", format!("oas-validator: {{ spec_url: \"{http}/a.yaml\" }}"), "", 503),
        ("count", format!("limit-count: {{ count: 1, time_window: 60, {redis} }}"), "", 500),
        (
            "count-open",
            format!("limit-count: {{ count: 1, time_window: 60, {redis}, allow_degradation: true }}"),
            "",
            200,
        ),
        (
            "conn",
            format!("limit-conn: {{ conn: 1, burst: 0, default_conn_delay: 1, key: remote_addr, {redis} }}"),
            "",
            500,
        ),
        ("req", format!("limit-req: {{ rate: 1, burst: 0, key: remote_addr, {redis} }}"), "", 500),
        ("events", format!("limit-events: {{ count: 1, time_window: 60, {redis} }}"), events, 500),
        (
            "events-open",
            format!("limit-events: {{ count: 1, time_window: 60, {redis}, allow_degradation: true }}"),
            events,
            200,
        ),
        ("aws", format!("aws-lambda: {{ function_uri: \"{http}/\" }}"), "", 502),
        ("azure", format!("azure-functions: {{ function_uri: \"{http}/\" }}"), "", 502),
        ("openfunction", format!("openfunction: {{ function_uri: \"{http}/\" }}"), "", 502),
        (
            "openwhisk",
            format!("openwhisk: {{ api_host: \"{http}\", service_token: \"a:b\", namespace: a, action: b }}"),
            "",
            502,
        ),
    ]
}

/// Waits until a failure of the plugin of a route is counted, as an error and not as a refusal.
fn wait_for_error(gateway: &Gateway, route: &str, plugin: &str) {
    let labels = [format!("route=\"{route}\""), format!("policy=\"{plugin}\"")];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    weir_testkit::eventually(&format!("the failure of {route} is counted"), DEADLINE, || {
        gateway.metrics().sum("weir_policy_errors_total", &labels) == 1.0
    });
    assert_eq!(gateway.metrics().sum("weir_policy_refusals_total", &labels), 0.0, "{route}");
}

fn name_of(plugin: &str) -> &str {
    plugin.split(':').next().expect("a name")
}

#[test]
fn a_service_that_fails_is_an_error_of_its_plugin_whatever_becomes_of_the_request() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let broken = Origin::serving(|_| Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").then_close());
    let route = |id: &str, plugin: &str| {
        let node = origin.addr();
        format!("  - {{ id: {id}, uri: /{id}, plugins: {{ {plugin} }}, upstream: {{ nodes: {{ \"{node}\": 1 }} }} }}\n")
    };
    let cases = failing_services(([127, 0, 0, 1], 1).into());
    let mut routes: String = cases.iter().map(|(id, plugin, ..)| route(id, plugin)).collect();
    routes += &route("breaks", &format!("aws-lambda: {{ function_uri: \"http://{}/\" }}", broken.addr()));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!("routes:\n{routes}"));
    let mut client = gateway.client();
    for (id, _, field, status) in &cases {
        let answer = client.ask(format!("GET /{id} HTTP/1.1\r\nHost: t\r\n{field}\r\n")).expect("an answer");
        assert_eq!(answer.status, *status, "{id}");
    }
    client.get("/breaks").expect_err("the response ends within its content");
    for (id, plugin, ..) in &cases {
        wait_for_error(&gateway, id, name_of(plugin));
    }
    wait_for_error(&gateway, "breaks", "aws-lambda");
}

#[test]
fn errors_of_every_plugin_that_reaches_a_server_are_counted() {
    let cases = failing_services(([127, 0, 0, 1], 1).into());
    let metrics = include_str!("../../docs/reference/metrics.md");
    for entry in weir_plugins::REGISTRY.entries() {
        let schemas = [Some(entry.schema), entry.metadata.map(|metadata| metadata.schema)];
        let mut rows = schemas.into_iter().flatten().flat_map(|schema| weir_plugin::options::rows(&schema()));
        let reaches = rows.any(|row| row.reaches.as_deref() == Some("server"));
        let is_tried = cases.iter().any(|(_, plugin, ..)| name_of(plugin) == entry.name);
        let elsewhere = COUNTED_ELSEWHERE.iter().find(|(name, _)| *name == entry.name);
        let is_elsewhere = elsewhere.is_some();
        if let Some((name, metric)) = elsewhere {
            assert!(metrics.contains(&format!("`{metric}`")), "{name}: {metric} is not on the page of metrics");
        }
        let advice = "add a case to `failing_services`, or the metric that counts its failures to COUNTED_ELSEWHERE";
        assert_eq!(reaches, is_tried != is_elsewhere, "{}: {advice}", entry.name);
    }
}
