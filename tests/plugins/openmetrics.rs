//! `/metrics` in the form of OpenMetrics, read by the parser of Prometheus' client for Python; `scripts/setup` installs it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use weir_testkit::{Answer, Client, DEADLINE, Gateway, Origin, eventually, skipped};

/// Says each sample as JSON: the name, labels, value, and the exemplar. The parser refuses what the format does not allow.
const PARSE: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
for family in parse(sys.stdin.read()):
    for sample in family.samples:
        exemplar = sample.exemplar and [sample.exemplar.labels, sample.exemplar.value, float(sample.exemplar.timestamp)]
        print(json.dumps([family.type, sample.name, sample.labels, sample.value, exemplar]))
";

fn parsed(text: &str) -> Option<Vec<Value>> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/python/bin/python");
    let imports = Command::new(&python).args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        skipped("there is no Python with `prometheus-client`");
        return None;
    }
    let mut command = Command::new(python);
    let command = command.args(["-c", PARSE]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("Python starts");
    child.stdin.take().expect("it is a pipe").write_all(text.as_bytes()).expect("it listens");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "it is not OpenMetrics:\n{text}");
    let lines = String::from_utf8(output.stdout).expect("text");
    Some(lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

#[test]
fn openmetrics_names_the_trace_of_a_recent_request_in_each_bucket() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 2
plugin_metadata: [{{ id: opentelemetry, collector: {{ address: \"127.0.0.1:1\" }} }}]
global_rules: [{{ id: 1, plugins: {{ prometheus: {{}}, opentelemetry: {{ sampler: {{ name: parent_base }} }} }} }}]
routes: [{{ id: a, uri: /*, upstream: {{ nodes: {{ \"{}\": 1 }} }} }}]
",
        origin.addr()
    ));
    const TRACE: &str = "12345678901234567890123456789012";
    let ask = |flags: &str, target: &str| {
        let parent = format!("traceparent: 00-{TRACE}-1234567890123456-{flags}\r\n");
        gateway.client().ask(format!("GET {target} HTTP/1.1\r\nHost: t\r\n{parent}\r\n")).expect("an answer").status
    };
    let openmetrics = "application/openmetrics-text; version=1.0.0";
    let scrape = |accept: &str| {
        let mut client = Client::connect(gateway.status_addr());
        client.ask(format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")).expect("an answer")
    };
    assert_eq!((ask("00", "/unsampled"), ask("00", "/unsampled")), (200, 200));
    assert!(!scrape(openmetrics).text().contains("trace_id"), "no request was sampled");
    assert_eq!(ask("01", "/sampled"), 200);
    // A worker counts an exchange when its response has been sent.
    eventually("both histograms have an exemplar", DEADLINE, || {
        scrape(openmetrics).text().matches("trace_id").count() == 2
    });

    let prometheus = scrape("text/plain");
    assert_eq!(prometheus.headers.get("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(!prometheus.text().contains("trace_id") && !prometheus.text().contains("# EOF"));
    let answer = scrape(openmetrics);
    let wanted = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.headers.get("content-type"), Some(wanted));
    assert!(answer.text().ends_with("# EOF\n"));
    let Some(samples) = parsed(&answer.text()) else { return };
    let named = |name: &str| samples.iter().filter(|sample| sample[1] == name).collect::<Vec<_>>();
    let requests = named("weir_http_requests_total")[0];
    assert_eq!((&requests[0], requests[3].as_f64()), (&json!("counter"), Some(3.0)));
    assert_eq!(named("apisix_http_status")[0][0], "unknown");
    for name in ["weir_http_request_duration_seconds_bucket", "weir_route_request_duration_seconds_bucket"] {
        let exemplars: Vec<&Value> =
            named(name).into_iter().map(|sample| &sample[4]).filter(|it| !it.is_null()).collect();
        assert_eq!(exemplars.len(), 1, "{name}");
        let exemplar = exemplars[0];
        assert_eq!(exemplar[0]["trace_id"], TRACE);
        let span = exemplar[0]["span_id"].as_str().expect("text");
        assert!(span.len() == 16 && span != "1234567890123456", "it is the gateway's span: {span}");
        assert!(exemplar[1].as_f64() > Some(0.0) && exemplar[2].as_f64() > Some(1e9));
    }
}
