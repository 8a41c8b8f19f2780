//! What plugins say in `/metrics` of the traffic of their routes: `prometheus` and `proxy-mirror`.

use weir_plugins::{BOUNDS_MS, LATENCIES, SeriesLabels, Totals};
use weir_telemetry::exposition::Page;

/// Writes what there is; nothing where nobody has asked for it.
pub fn write(page: &mut Page) {
    mirrors(page);
    let totals = weir_plugins::totals();
    if totals.is_empty() {
        return;
    }
    // As in Apache APISIX, whose counters have no `_total`: Prometheus takes them for gauges, and rates work all the same.
    page.gauge("apisix_http_status", "Responses by status, route, service, consumer and endpoint.");
    for (labels, totals) in &totals {
        for (status, count) in &totals.statuses {
            page.value(&with(labels, ("code", &status.to_string())), count);
        }
    }
    page.gauge("apisix_bandwidth", "Bytes from clients (ingress) and to them (egress).");
    for (labels, Totals { ingress, egress, .. }) in &totals {
        page.value(&with(labels, ("type", "ingress")), ingress).value(&with(labels, ("type", "egress")), egress);
    }
    page.histogram("apisix_http_latency", "Milliseconds of requests, of their upstreams, and of the gateway alone.");
    for (labels, totals) in &totals {
        for (kind, latency) in LATENCIES.iter().zip(&totals.latencies) {
            page.counts(&with(labels, ("type", kind)), &BOUNDS_MS, &latency.buckets, latency.sum_ms);
        }
    }
}

fn with<'a>(labels: &'a SeriesLabels, first: (&'a str, &'a str)) -> [(&'a str, &'a str); 5] {
    let SeriesLabels { route, service, consumer, node } = labels;
    [first, ("route", route), ("service", service), ("consumer", consumer), ("node", node)]
}

fn mirrors(page: &mut Page) {
    let mirrors = weir_plugins::mirror_tallies();
    if mirrors.is_empty() {
        return;
    }
    page.counter("weir_mirrored_requests", "Copies of requests, by where they go and what became of them.");
    for (mirror, outcomes) in &mirrors {
        for (outcome, count) in outcomes {
            page.total(&[("mirror", mirror), ("outcome", outcome)], count);
        }
    }
}
