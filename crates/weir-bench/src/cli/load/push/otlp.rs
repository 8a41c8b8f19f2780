//! OTLP over HTTP, in its JSON form (OpenTelemetry Protocol 1.x).

use serde_json::{Value, json};

use super::PushedFigures;

pub(super) const FIELDS: [(&str, &str); 1] = [("Content-Type", "application/json")];

/// The flag of a point without a value: there was one before.
const NO_VALUE: u32 = 1;

/// The sum of counts since the start.
const CUMULATIVE: u32 = 2;

/// The body of an export of metrics.
pub(super) fn body(figures: &PushedFigures, labels: &[(String, String)], started_unix_ms: u64) -> Vec<u8> {
    let nanoseconds = |ms: u64| format!("{ms}000000");
    let metrics: Vec<Value> = figures
        .metrics()
        .iter()
        .map(|metric| {
            let mut point = json!({
                "startTimeUnixNano": nanoseconds(started_unix_ms),
                "timeUnixNano": nanoseconds(figures.at_unix_ms),
            });
            match metric.value {
                Some(value) => point["asDouble"] = json!(value),
                None => point["flags"] = json!(NO_VALUE),
            }
            if let Some(quantile) = metric.quantile {
                point["attributes"] = json!([attribute("quantile", quantile)]);
            }
            let mut one = json!({ "name": metric.name, "description": metric.about });
            match metric.is_count {
                true => {
                    one["sum"] =
                        json!({ "aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": [point] });
                }
                false => one["gauge"] = json!({ "dataPoints": [point] }),
            }
            one
        })
        .collect();
    let attributes: Vec<Value> = labels.iter().map(|(name, value)| attribute(renamed(name), value)).collect();
    let body = json!({ "resourceMetrics": [{
        "resource": { "attributes": attributes },
        "scopeMetrics": [{ "scope": { "name": "weir load" }, "metrics": metrics }],
    }] });
    body.to_string().into_bytes()
}

/// The job of Prometheus is the service's name of OpenTelemetry.
fn renamed(label: &str) -> &str {
    if label == "job" { "service.name" } else { label }
}

fn attribute(name: &str, value: &str) -> Value {
    json!({ "key": name, "value": { "stringValue": value } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_sums_and_the_rest_is_gauges() {
        let figures = PushedFigures {
            at_unix_ms: 2_000,
            completed: 7,
            p99_ns: Some(5_000_000),
            has_begun: true,
            ..PushedFigures::default()
        };
        let labels = [("job".to_owned(), "weir-load".to_owned()), ("team".to_owned(), "a".to_owned())];
        let body: Value = serde_json::from_slice(&body(&figures, &labels, 1_000)).expect("JSON");
        let resource = &body["resourceMetrics"][0];
        assert_eq!(resource["resource"]["attributes"][0], attribute("service.name", "weir-load"));
        let metrics = &resource["scopeMetrics"][0]["metrics"];
        let sum = &metrics[0]["sum"];
        assert_eq!((&metrics[0]["name"], &sum["isMonotonic"]), (&json!("weir_load_answers_total"), &json!(true)));
        let point = json!({ "startTimeUnixNano": "1000000000", "timeUnixNano": "2000000000", "asDouble": 7.0 });
        assert_eq!(sum["dataPoints"], json!([point]));
        let p99 = &metrics[4]["gauge"]["dataPoints"][0];
        assert_eq!((&p99["asDouble"], &p99["attributes"][0]), (&json!(0.005), &attribute("quantile", "0.99")));
        let rate = &metrics[2]["gauge"]["dataPoints"][0];
        assert_eq!((&rate["flags"], rate.get("asDouble")), (&json!(1), None));
    }
}
