//! `otlp_metrics`: what a collector gets by HTTP and by gRPC, beside what a scrape of `/metrics` says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weir_testkit::{Answer, Authority, DEADLINE, Gateway, Origin, Request, Signal, TlsServer, eventually};

use crate::otlp::decoded;
use crate::otlp_collector::GrpcCollector;

/// Two routes before an origin, of which one samples all its requests. Its spans go nowhere.
fn yaml(origin: &Origin, settings: &str) -> String {
    format!(
        "worker_processes: 1
{settings}
plugin_metadata: [{{ id: opentelemetry, collector: {{ address: \"127.0.0.1:1\" }} }}]
routes:
  - id: traced
    uri: /traced
    plugins: {{ opentelemetry: {{ sampler: {{ name: always_on }} }} }}
    upstream: {{ nodes: {{ \"{addr}\": 1 }} }}
  - id: plain
    uri: /plain
    upstream: {{ nodes: {{ \"{addr}\": 1 }} }}
",
        addr = origin.addr()
    )
}

fn weir(origin: &Origin, settings: &str) -> Gateway {
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&yaml(origin, settings))
}

/// The series of `/metrics`: the name and labels of each, with its value.
type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

fn scraped(gateway: &Gateway) -> Series {
    let metrics = gateway.metrics();
    let series = metrics.iter().map(|(series, value)| {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
        let labels = labels.map(|label| {
            let (name, value) = label.split_once("=\"").expect("a name and a value");
            (name.to_owned(), value.trim_end_matches('"').to_owned())
        });
        ((name.to_owned(), labels.collect()), value)
    });
    series.collect()
}

/// The same series, from metrics that a collector has got.
fn exported(metrics: &[Value]) -> Series {
    let mut series = Series::new();
    for metric in metrics {
        let name = metric["name"].as_str().expect("a name");
        for point in metric["points"].as_array().expect("a list") {
            let labels = point["labels"].as_object().expect("a map").iter();
            let labels: BTreeMap<String, String> =
                labels.map(|(name, value)| (name.clone(), value.as_str().expect("text").to_owned())).collect();
            let mut add = |suffix: &str, bound: Option<String>, value: f64| {
                let labels = labels.clone().into_iter().chain(bound.map(|bound| ("le".to_owned(), bound)));
                let is_new = series.insert((format!("{name}{suffix}"), labels.collect()), value).is_none();
                assert!(is_new, "{name}{suffix} occurs twice");
            };
            if metric["kind"] != "histogram" {
                let suffix = if metric["monotonic"] == true && name.starts_with("weir_") { "_total" } else { "" };
                add(suffix, None, point["value"].as_f64().expect("a number"));
                continue;
            }
            add("_sum", None, point["sum"].as_f64().expect("a number"));
            add("_count", None, point["count"].as_f64().expect("a number"));
            let bounds = point["bounds"].as_array().expect("a list").iter().map(|bound| bound.as_f64().expect("one"));
            let bounds = bounds.map(|bound| bound.to_string()).chain(["+Inf".to_owned()]);
            let mut cumulative = 0.0;
            for (bound, count) in bounds.zip(point["counts"].as_array().expect("a list")) {
                cumulative += count.as_f64().expect("a number");
                add("_bucket", Some(bound), cumulative);
            }
        }
    }
    series
}

/// Whether a series stays as it is while no client asks for anything.
fn is_quiet((name, labels): &(String, BTreeMap<String, String>)) -> bool {
    let changes = [
        "weir_worker_",
        "weir_log_",
        "weir_otlp_",
        "weir_client_connections",
        "weir_upstream_connections",
        // The scrape has a connection, too.
        "weir_server_",
    ];
    name.starts_with("weir_")
        && !changes.iter().any(|prefix| name.starts_with(prefix))
        && !labels.contains_key("worker")
}

fn named<'a>(metrics: &'a [Value], name: &str) -> &'a Value {
    metrics.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn ask(gateway: &Gateway, target: &str) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
}

fn collecting(is_down: &Arc<AtomicUsize>) -> impl Fn(&Request) -> Answer + Send + Sync + 'static {
    let is_down = Arc::clone(is_down);
    move |_| match is_down.load(Ordering::SeqCst) {
        0 => Answer::with(200, "Content-Type: application/x-protobuf\r\n", ""),
        _ => Answer::with(503, "Retry-After: 0\r\n", ""),
    }
}

#[test]
fn a_collector_gets_what_a_scrape_shows() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let is_down = Arc::new(AtomicUsize::new(0));
    let authority = Authority::of_tests();
    let server = TlsServer::new(&authority.identity(&["localhost"]));
    let collector = Origin::serving_tls(&server, collecting(&is_down));
    let before_ns = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let gateway = weir(
        &origin,
        &format!(
            "ssl_trusted_certificate: {:?}\notlp_metrics: {{ endpoint: \"https://localhost:{}/base\", interval: 1, \
             headers: {{ Authorization: t0ken }}, resource: {{ service.name: front, replicas: 2, is_edge: true }} }}",
            authority.certificate,
            collector.addr().port()
        ),
    );
    for target in ["/plain", "/traced", "/plain"] {
        ask(&gateway, target);
    }
    let quiet = |series: Series| series.into_iter().filter(|(series, _)| is_quiet(series)).collect::<Series>();
    eventually("all requests are counted", DEADLINE, || {
        gateway.metrics().sum("weir_route_request_duration_seconds_count", &[]) == 3.0
    });
    let want = quiet(scraped(&gateway));
    assert!(want.len() > 100, "{want:#?}");
    // The next export may have begun before the scrape; the one after it has not.
    let sent = collector.wait_requests(collector.requests().len() + 2).pop().expect("there are two");
    let Some(metrics) = decoded("metrics", std::slice::from_ref(&sent)) else { return };
    assert_eq!(quiet(exported(&metrics)), want);
    assert_eq!((&*sent.method, &*sent.target), ("POST", "/base/v1/metrics"));
    assert_eq!(
        (sent.headers.get("content-type"), sent.headers.get("authorization")),
        (Some("application/x-protobuf"), Some("t0ken"))
    );
    let resource = &metrics[0]["resource"];
    for (name, value) in [
        ("service.name", json!("front")),
        ("service.version", json!(env!("CARGO_PKG_VERSION"))),
        ("replicas", json!(2.0)),
        ("is_edge", json!(true)),
    ] {
        assert_eq!(resource[name], value, "{name}");
    }
    assert_eq!(resource["service.instance.id"].as_str().map(str::len), Some(36));
    let requests = named(&metrics, "weir_http_requests");
    assert_eq!(
        (&requests["kind"], &requests["monotonic"], &requests["temporality"]),
        (&json!("sum"), &json!(true), &json!(2))
    );
    let point = &requests["points"][0];
    let (start, time) = (point["start"].as_u64().expect("a time"), point["time"].as_u64().expect("a time"));
    assert!(before_ns <= start && start < time, "{point}");
    assert_eq!(named(&metrics, "weir_config_revision")["kind"], "gauge");
    for (name, unit, kind, is_monotonic) in [
        ("weir_http_request_duration_seconds", "s", "histogram", Value::Null),
        ("weir_client_bytes", "By", "sum", json!(true)),
        ("process.cpu.time", "s", "sum", json!(true)),
        ("process.memory.usage", "By", "sum", json!(false)),
    ] {
        let metric = named(&metrics, name);
        assert_eq!(
            (&metric["unit"], &metric["kind"], &metric["monotonic"]),
            (&json!(unit), &json!(kind), &is_monotonic)
        );
    }

    // The one request that was sampled is the exemplar of its bucket, with the ids that the upstream was given.
    let asked = origin.requests().into_iter().find(|request| request.target == "/traced").expect("it was asked");
    let parent = asked.headers.get("traceparent").expect("the upstream is told").to_owned();
    let [_, trace, ..] = parent.split('-').collect::<Vec<_>>()[..] else { panic!("{parent}") };
    let durations = named(&metrics, "weir_http_request_duration_seconds");
    let exemplars = durations["points"][0]["exemplars"].as_array().expect("a list");
    assert_eq!(exemplars.len(), 1, "only sampled requests are exemplars: {exemplars:?}");
    let exemplar = &exemplars[0];
    assert_eq!((&exemplar["trace"], exemplar["span"].as_str().map(str::len)), (&json!(trace), Some(16)));
    assert!(
        exemplar["value"].as_f64().expect("seconds") > 0.0
            && exemplar["time"].as_u64() > Some(before_ns / 1_000_000 * 1_000_000 - 1)
    );
    let by_route = named(&metrics, "weir_route_request_duration_seconds")["points"].as_array().expect("a list");
    for point in by_route {
        let want = if point["labels"]["route"] == "traced" { json!([exemplar]) } else { json!([]) };
        assert_eq!(point["exemplars"], want, "{point}");
    }

    // A failure is said in the log, counted, and over with the next export that is accepted.
    is_down.store(1, Ordering::SeqCst);
    gateway.wait_stderr("why", |log| log.contains("metrics cannot be delivered to https://localhost"));
    is_down.store(0, Ordering::SeqCst);
    gateway.wait_stderr("the end of it", |log| log.contains("metrics are delivered to https://localhost"));
    let count = |outcome: &str| {
        gateway.metrics().get(&format!("weir_otlp_metrics_exports_total{{outcome=\"{outcome}\"}}")).unwrap_or_default()
    };
    assert!(count("failed") >= 1.0 && count("delivered") >= 1.0 && count("refused") == 0.0);
}

/// Reloads go to another collector, and the end of the process exports once more, however long the interval is.
#[test]
fn the_last_values_are_exported_at_the_end_and_a_reload_changes_the_collector() {
    let origin = Origin::serving(|_| Answer::ok("ok"));
    let is_down = Arc::new(AtomicUsize::new(0));
    let [first, second] = [0, 1].map(|_| Origin::serving(collecting(&is_down)));
    let settings = |collector: &Origin, interval: &str| {
        format!("otlp_metrics: {{ endpoint: \"http://{}\", interval: {interval} }}", collector.addr())
    };
    let mut gateway = weir(&origin, &settings(&first, "1"));
    first.wait_requests(2);
    gateway.rewrite(&yaml(&origin, &settings(&second, "1h")));
    ask(&gateway, "/plain");
    assert!(second.requests().is_empty(), "its interval is an hour");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait_exit(DEADLINE).success());
    let sent = second.wait_requests(1);
    assert_eq!(sent.len(), 1);
    let Some(metrics) = decoded("metrics", &sent) else { return };
    assert_eq!(named(&metrics, "weir_http_requests")["points"][0]["value"], 1);
    assert_eq!(metrics[0]["resource"]["service.name"], "weir");
}

#[test]
fn exports_by_grpc_are_repeated_as_otlp_says() {
    let Some(mut collector) = GrpcCollector::start() else { return };
    let origin = Origin::serving(|_| Answer::ok("ok"));
    for order in ["14", "8 retry 0", "8", "16", "reject 3"] {
        collector.answer(order);
    }
    let gateway = weir(
        &origin,
        &format!(
            "otlp_metrics: {{ endpoint: \"http://127.0.0.1:{}\", protocol: grpc, interval: 1, headers: {{ Authorization: t0ken }} }}",
            collector.port
        ),
    );
    ask(&gateway, "/plain");
    let answers: Vec<Value> = (0..6).map(|_| collector.export()).collect();
    let codes: Vec<&Value> = answers.iter().map(|export| &export["answer"]).collect();
    assert_eq!(codes, [14, 8, 8, 16, 0, 0]);
    let last = &answers[5];
    assert_eq!((&last["metadata"]["authorization"], &last["limited"]), (&json!("t0ken"), &json!(true)));
    let metrics = last["items"].as_array().expect("a list");
    assert_eq!(named(metrics, "weir_http_requests")["points"][0]["value"], 1);
    eventually("all are counted", DEADLINE, || {
        let metrics = gateway.metrics();
        let count = |outcome: &str| metrics.get(&format!("weir_otlp_metrics_exports_total{{outcome=\"{outcome}\"}}"));
        count("failed") == Some(2.0)
            && count("refused") == Some(2.0)
            && count("delivered") >= Some(2.0)
            && metrics.get("weir_otlp_metrics_rejected_points_total") == Some(3.0)
    });
    gateway.wait_stderr("the status", |log| log.contains("the gRPC status is 14 (UNAVAILABLE): not now"));
}
