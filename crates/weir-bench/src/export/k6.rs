use serde_json::{Value, json};

use crate::engine::{LatencyHistogram, LoadResult};

/// The JSON that k6 passes to `handleSummary`, for the metrics of HTTP requests.
pub(super) fn text(load: &LoadResult) -> String {
    let total = &load.total;
    let seconds = load.measured_ns as f64 / 1e9;
    let rate = |count: u64| count as f64 / seconds.max(1e-9);
    let counter = |count: u64, contains: &str| json!({ "type": "counter", "contains": contains, "values": { "count": count, "rate": rate(count) } });
    let failed = total.errors.sum() + total.completed - total.successes();
    let asked = total.completed + total.errors.sum();
    let summary = json!({
        "metrics": {
            "http_reqs": counter(total.completed, "default"),
            "iterations": counter(total.completed, "default"),
            "data_received": counter(total.bytes_received, "data"),
            "data_sent": counter(total.bytes_sent, "data"),
            "http_req_failed": {
                "type": "rate",
                "contains": "default",
                "values": {
                    "rate": failed as f64 / asked.max(1) as f64,
                    "passes": failed,
                    "fails": asked - failed,
                },
            },
            "http_req_duration": trend(&total.service_time),
            "http_req_connecting": trend(&load.connections.connect_time),
            "latency_from_due": trend(&total.latency),
        },
        "root_group": { "name": "", "path": "", "id": "d41d8cd98f00b204e9800998ecf8427e", "groups": [], "checks": [] },
        "options": { "summaryTrendStats": ["avg", "min", "med", "max", "p(90)", "p(95)", "p(99)"], "summaryTimeUnit": "" },
        "state": { "isStdOutTTY": false, "isStdErrTTY": false, "testRunDurationMs": seconds * 1e3 },
    });
    let mut text = serde_json::to_string_pretty(&summary).expect("the value has string keys");
    text.push('\n');
    text
}

fn trend(times: &LatencyHistogram) -> Value {
    let ms = |share: f64| times.quantile(share) as f64 / 1e6;
    json!({
        "type": "trend",
        "contains": "time",
        "values": {
            "avg": times.mean() / 1e6,
            "min": times.min() as f64 / 1e6,
            "med": ms(0.5),
            "max": times.max() as f64 / 1e6,
            "p(90)": ms(0.9),
            "p(95)": ms(0.95),
            "p(99)": ms(0.99),
        },
    })
}
