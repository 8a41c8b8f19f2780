//! `opentelemetry` and `otlp-logger` with `protocol: grpc`, before a collector made with the libraries of gRPC and of OpenTelemetry for
//! Python; `scripts/setup` installs them.

use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, eventually};

use crate::otlp_collector::GrpcCollector;

fn gateway(collector: &GrpcCollector, origin: &Origin) -> Gateway {
    let (port, origin) = (collector.port, origin.addr());
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "worker_processes: 1
plugin_metadata:
  - id: opentelemetry
    collector: {{ address: \"127.0.0.1:{port}\", protocol: grpc, request_timeout: 60, request_headers: {{ Authorization: t0ken }} }}
    batch_span_processor: {{ batch_timeout: 0.2, inactive_timeout: 0.1 }}
routes:
  - uri: /traced
    plugins: {{ opentelemetry: {{ sampler: {{ name: always_on }} }} }}
    upstream: {{ nodes: {{ \"{origin}\": 1 }} }}
  - uri: /logged
    plugins:
      otlp-logger: {{ endpoint_addrs: [\"http://127.0.0.1:{port}\"], protocol: grpc, timeout: 60, headers: {{ Authorization: t0ken }},
        inactive_timeout: 1 }}
    upstream: {{ nodes: {{ \"{origin}\": 1 }} }}
"
    ))
}

/// The records of the only sink that has any: accepted, delivered and rejected.
fn settled(gateway: &Gateway) -> Vec<[u64; 3]> {
    let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
    let sum = |tally: &Value| tally["records"].as_u64().unwrap_or_default();
    let rejected = |sink: &Value| sink["rejected"].as_object().expect("a map").values().map(sum).sum();
    let sinks = report["sinks"].as_array().expect("a list").iter();
    sinks.map(|sink| [sum(&sink["accepted"]), sum(&sink["delivered"]), rejected(sink)]).collect()
}

fn ask(gateway: &Gateway, target: &str) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_eq!(gateway.client().ask(request).expect("an answer").status, 200);
}

/// Statuses that allow a retry, one that does so with a `RetryInfo` only, and those after which an export is not sent again.
#[test]
fn exports_by_grpc_are_repeated_as_otlp_says() {
    for target in ["/traced", "/logged"] {
        let Some(mut collector) = GrpcCollector::start() else { return };
        let origin = Origin::serving(|_| Answer::ok(""));
        let gateway = gateway(&collector, &origin);
        let account = |want: [u64; 3]| {
            eventually(&format!("{target}: {want:?}"), DEADLINE, || settled(&gateway).contains(&want));
        };
        for (turn, order) in ["14", "8 retry 0", "1 retry 0"].into_iter().enumerate() {
            collector.answer(order);
            ask(&gateway, target);
            let [first, second] = [collector.export(), collector.export()];
            assert_eq!(first["answer"], order.split(' ').next().expect("a code").parse::<u64>().expect("a number"));
            assert_eq!((&second["answer"], &second["items"]), (&json!(0), &first["items"]), "it is the same again");
            account([turn as u64 + 1, turn as u64 + 1, 0]);
        }
        // What the protocol does not allow to repeat: spans are rejected. Log records wait, unless they are at fault.
        let (mut delivered, mut rejected) = (3, 0);
        for order in ["8", "3", "16", "2", "reject 1"] {
            collector.answer(order);
            ask(&gateway, target);
            let first = collector.export();
            if target == "/logged" && ["8", "16", "2"].contains(&order) {
                assert_eq!(collector.export()["items"], first["items"], "it is the same again");
                delivered += 1;
            } else {
                rejected += 1;
            }
            account([delivered + rejected, delivered, rejected]);
        }
        ask(&gateway, target);
        let last = collector.export();
        account([9, delivered + 1, rejected]);
        assert_eq!((&last["metadata"]["authorization"], &last["limited"]), (&json!("t0ken"), &json!(true)));
        let item = &last["items"][0];
        let said = if target == "/traced" { &item["attributes"]["url.path"] } else { &item["body"]["request"]["uri"] };
        assert_eq!((said, &item["scope"]), (&json!(target), &json!("weir")));
        gateway.wait_stderr("the status", |log| log.contains("the gRPC status is 14 (UNAVAILABLE): not now"));
    }
}

#[test]
fn records_wait_for_a_collector_that_cannot_be_reached() {
    let Some(collector) = GrpcCollector::start() else { return };
    let origin = Origin::serving(|_| Answer::ok(""));
    let gateway = gateway(&collector, &origin);
    drop(collector);
    ask(&gateway, "/logged");
    let says_why = || {
        let report: Value = serde_json::from_slice(&gateway.ask_status("/records").body).expect("JSON");
        let sinks = report["sinks"].as_array().expect("a list");
        sinks.iter().any(|sink| sink["last_error"].as_str().unwrap_or_default().contains("connecting to 127.0.0.1"))
    };
    eventually("the sink says why", DEADLINE, says_why);
    assert!(settled(&gateway).contains(&[1, 0, 0]), "it waits");
}
