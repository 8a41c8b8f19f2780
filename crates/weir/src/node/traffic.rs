//! Figures of plugins in `/metrics`: traffic, mirrors, shared streams, caches and durable counters.

use weir_control::ConfigStatus;
use weir_gateway::DataPlane;
use weir_gateway::gateway::EndpointFilter;
use weir_plugins::{BOUNDS_MS, LATENCIES, StreamLimit, Totals};
use weir_records::SinkRegister;
use weir_telemetry::page::{Page, Resolution};

use super::health::SERIES;

/// Writes the series; none for plugins that are not in use.
pub(super) fn write(page: &mut Page, gateway: Option<&DataPlane>, configuration: &ConfigStatus) {
    mirrors(page);
    shared_streams(page);
    cached_responses(page);
    #[cfg(feature = "wasm")]
    wasm_plugins(page);
    durable_counters(page);
    let Some(Totals { statuses, bandwidth, latencies }) = weir_plugins::totals() else { return };
    // Names, labels and types are those of Apache APISIX, whose counters have no suffix `_total`.
    page.gauge("apisix_node_info", "Host name and version of the node.");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    page.value(&[("hostname", &host), ("version", env!("CARGO_PKG_VERSION"))], 1);
    if let Some(gateway) = gateway {
        upstreams(page, gateway);
    }
    etcd(page, configuration);
    batches(page);
    page.counter_without_total("apisix_http_status", "Responses by status, route, service, consumer and endpoint.");
    for ((labels, status), count) in &statuses {
        page.value(&with(("code", &status.to_string()), labels), *count);
    }
    page.counter_without_total("apisix_bandwidth", "Bytes from clients (ingress) and to them (egress).");
    for (labels, [ingress, egress]) in &bandwidth {
        page.value(&with(("type", "ingress"), labels), *ingress).value(&with(("type", "egress"), labels), *egress);
    }
    page.histogram("apisix_http_latency", "Latency in milliseconds: request, upstream, and the gateway alone.");
    for (labels, latencies) in &latencies {
        for (kind, latency) in LATENCIES.iter().zip(latencies) {
            page.counts(&with(("type", kind), labels), &BOUNDS_MS, &latency.buckets, latency.sum_ms);
        }
    }
}

/// What dashboards for APISIX show of an etcd that nodes share.
fn etcd(page: &mut Page, configuration: &ConfigStatus) {
    let Some(store) = &configuration.store else { return };
    page.gauge("apisix_etcd_reachable", "Whether the store that nodes share answers (1) or not (0).");
    page.value(&[], u8::from(store.connected));
    page.gauge(
        "apisix_etcd_modify_indexes",
        "The revision of the store that nodes share, up to which changes are known.",
    );
    for key in ["max_modify_index", "x_etcd_index"] {
        page.value(&[("key", key)], configuration.store_revision.unwrap_or_default());
    }
}

/// Log records that wait in memory, as dashboards for APISIX show them.
fn batches(page: &mut Page) {
    let accounts = SinkRegister::of_process().read();
    if accounts.is_empty() {
        return;
    }
    page.gauge(
        "apisix_batch_process_entries",
        "Log records of plugins that wait in memory or are being sent, by sink.",
    );
    for account in &accounts {
        let waiting = account.pending.memory.records + account.pending.inflight.records;
        page.value(&[("name", &account.name)], waiting);
    }
}

/// The state of endpoints with active checks.
fn upstreams(page: &mut Page, gateway: &DataPlane) {
    page.gauge("apisix_upstream_status", "Whether an endpoint that is actively checked is in rotation.");
    let all = gateway.endpoints(&EndpointFilter { upstream: None, is_up: None, skip: 0, limit: SERIES });
    for endpoint in all.shown.iter().filter(|endpoint| endpoint.is_checked) {
        let (ip, port) = (endpoint.addr.ip().to_string(), endpoint.addr.port().to_string());
        page.value(&[("name", &endpoint.upstream), ("ip", &ip), ("port", &port)], u8::from(endpoint.is_up));
    }
}

fn with<'a>(first: (&'static str, &'a str), labels: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    let others = labels.iter().map(|(name, value)| (*name, &**value));
    std::iter::once(first).chain(others).collect()
}

fn mirrors(page: &mut Page) {
    let mirrors = weir_plugins::mirror_tallies();
    if mirrors.is_empty() {
        return;
    }
    page.counter("weir_mirrored_requests", "Mirrored copies of requests, by destination and outcome.");
    for (mirror, outcomes) in &mirrors {
        for (outcome, count) in outcomes {
            page.total(&[("mirror", mirror), ("outcome", outcome)], count);
        }
    }
}

/// Event streams shared by several clients.
fn shared_streams(page: &mut Page) {
    let totals = weir_plugins::fanout_totals();
    let refused = StreamLimit::ALL.map(|limit| (limit, totals.open.refused(limit)));
    let is_used = totals.streams.get() > 0 || totals.open.open_now() > 0 || refused.iter().any(|(_, count)| *count > 0);
    if !is_used {
        return;
    }
    page.gauge("weir_sse_fanout_open_streams", "Event streams of upstreams that `sse-fanout` has open.");
    page.value(&[], totals.open.open_now() as u64);
    page.counter(
        "weir_sse_fanout_refused_streams",
        "Event streams that `sse-fanout` has not opened, by the limit that was reached: of the route, the client or the node.",
    );
    for (limit, count) in refused {
        page.total(&[("limit", limit.name())], count);
    }
    page.gauge("weir_sse_fanout_clients", "Clients that receive an event stream shared by `sse-fanout`.");
    page.value(&[], totals.clients.get());
    page.counter("weir_sse_fanout_streams", "Event streams that `sse-fanout` has opened to upstreams.");
    page.total(&[], totals.streams.get());
    page.counter("weir_sse_fanout_breaks", "Times that an event stream of `sse-fanout` has ended or broken.");
    page.total(&[], totals.reconnects.get());
    page.counter("weir_sse_fanout_events", "Events that `sse-fanout` has received from upstreams.");
    page.total(&[], totals.events.get());
    page.counter(
        "weir_sse_fanout_missed_events",
        "Events that `sse-fanout` has left out for clients that read too slowly.",
    );
    page.total(&[], totals.missed.get());
    page.histogram(
        "weir_sse_fanout_delay_seconds",
        "Time from when an event was received until it was given to a client's connection, for each client.",
    );
    page.distribution(&[], &totals.delays.totals(), Resolution::Full);
}

/// Counters of limits that are kept on disk.
fn durable_counters(page: &mut Page) {
    let Some(unwritten) = weir_plugins::unwritten_counters() else { return };
    page.gauge("weir_durable_counters_unwritten", "Counters of durable limits whose last change is not on disk yet.");
    page.value(&[], unwritten);
    page.counter("weir_durable_counters_failed_writes", "Times that counters of durable limits could not be written.");
    page.total(&[], weir_plugins::failed_counter_writes());
}

/// Plugins in WebAssembly files, and the metrics that they define.
#[cfg(feature = "wasm")]
fn wasm_plugins(page: &mut Page) {
    let all = weir_wasm::figures();
    if all.is_empty() {
        return;
    }
    page.gauge(
        "weir_wasm_instances",
        "Instances of a plugin in a WebAssembly file, of all workers and configurations.",
    );
    for one in &all {
        page.value(&[("plugin", &one.plugin)], one.instances);
    }
    page.counter(
        "weir_wasm_failures",
        "Calls into such a plugin that have failed, each of which has ended an instance.",
    );
    for one in &all {
        page.total(&[("plugin", &one.plugin)], one.failures);
    }
    page.counter("weir_wasm_timeouts", "Those of them that took longer than the plugin may.");
    for one in &all {
        page.total(&[("plugin", &one.plugin)], one.timeouts);
    }
    wasm_metrics(&all, page);
}

#[cfg(feature = "wasm")]
fn wasm_metrics(all: &[weir_wasm::WasmFigures], page: &mut Page) {
    if all.iter().any(|one| !one.counters.is_empty()) {
        page.counter("weir_wasm_counter", "Counters that plugins in WebAssembly files have defined.");
    }
    for one in all {
        for (name, value) in &one.counters {
            page.total(&[("plugin", &one.plugin), ("name", name)], *value as f64);
        }
    }
    if all.iter().any(|one| !one.gauges.is_empty()) {
        page.gauge("weir_wasm_gauge", "Gauges that plugins in WebAssembly files have defined.");
    }
    for one in all {
        for (name, value) in &one.gauges {
            page.value(&[("plugin", &one.plugin), ("name", name)], *value as f64);
        }
    }
    let histograms = || all.iter().flat_map(|one| one.histograms.iter().map(move |found| (&*one.plugin, found)));
    if histograms().next().is_none() {
        return;
    }
    page.counter(
        "weir_wasm_histogram_values",
        "Values that plugins in WebAssembly files have recorded in their histograms.",
    );
    for (plugin, (name, count, _)) in histograms() {
        page.total(&[("plugin", plugin), ("name", name)], *count);
    }
    page.gauge("weir_wasm_histogram_sum", "The sums of these values.");
    for (plugin, (name, _, sum)) in histograms() {
        page.value(&[("plugin", plugin), ("name", name)], *sum as f64);
    }
}

/// Responses that `proxy-cache` keeps.
fn cached_responses(page: &mut Page) {
    let totals = weir_plugins::cache_totals();
    let zones = totals.zones();
    if zones.is_empty() && totals.outcomes().all(|(_, count)| count == 0) {
        return;
    }
    page.counter("weir_cache_responses", "Responses of routes with proxy-cache, by where they came from.");
    for (outcome, count) in totals.outcomes() {
        page.total(&[("status", &outcome)], count);
    }
    page.counter("weir_cache_evictions", "Responses that were removed from proxy-cache to make room.");
    page.total(&[], totals.evictions());
    page.gauge("weir_cache_bytes", "Memory that a zone of proxy-cache uses.");
    for zone in &zones {
        page.value(&[("zone", &zone.zone)], zone.bytes);
    }
    page.gauge("weir_cache_stored_responses", "Responses that a zone of proxy-cache keeps.");
    for zone in &zones {
        page.value(&[("zone", &zone.zone)], zone.responses);
    }
}
