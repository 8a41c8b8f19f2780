//! The measured cost of each policy: `/policies`, and the same in the metrics.

use serde_json::{Value, json};
use weir_telemetry::metrics::Metrics;
use weir_telemetry::page::Page;
use weir_telemetry::price::{PluginTotals, RoutePriceTotals};
use weir_telemetry::routes::{OTHER, RouteTotals};

use super::PLUGINS;

/// The most routes whose policies have series of their own: some 25 series each with four policies. Those of other routes are
/// summed.
const ROUTES_IN_METRICS: u16 = 50;

/// The cost of a policy on a route. Sums are those of the measured exchanges, scaled to all exchanges of the route.
struct Price<'a> {
    policy: &'static str,
    totals: &'a PluginTotals,
    calls: f64,
    /// Per call.
    cpu_ns: f64,
    waited_ns: f64,
    /// The share of the processor time of the route's exchanges.
    share: f64,
}

fn exchanges(totals: &RouteTotals) -> u64 {
    totals.responses.iter().sum()
}

fn prices(exchanges: u64, price: &RoutePriceTotals) -> impl Iterator<Item = Price<'_>> {
    let per = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    price.plugins().filter_map(move |(number, totals)| {
        Some(Price {
            policy: name(number)?,
            totals,
            // Exact for a policy that runs in every exchange of the route.
            calls: exchanges as f64 * per(totals.calls(), price.sampled),
            cpu_ns: per(totals.cpu_ns, totals.calls()),
            waited_ns: per(totals.waited_ns, totals.calls()),
            share: per(totals.cpu_ns, price.cpu_ns),
        })
    })
}

/// The content of `/policies`.
pub(super) fn report(metrics: &Metrics, every: u32) -> Value {
    let routes: Vec<Value> = metrics
        .routes
        .totals(metrics.workers())
        .iter()
        .map(|(route, totals)| {
            let exchanges = exchanges(totals);
            let policies: Vec<Value> = prices(exchanges, &totals.price)
                .map(|price| {
                    json!({
                        "policy": price.policy,
                        "calls": price.calls.round(),
                        "calls_measured": price.totals.calls(),
                        "cpu_ns_per_call": price.cpu_ns.round(),
                        "cpu_seconds": price.cpu_ns * price.calls / 1e9,
                        "share_of_route_cpu": price.share,
                        "waited_ns_per_call": price.waited_ns.round(),
                        "waited_seconds": price.waited_ns * price.calls / 1e9,
                        "refusals": price.totals.refusals,
                        "errors": price.totals.errors,
                        "held_bytes": price.totals.held_bytes,
                    })
                })
                .collect();
            let measured = totals.price.sampled;
            json!({
                "route": route,
                "exchanges": exchanges,
                "exchanges_measured": measured,
                "cpu_ns_per_exchange": totals.price.cpu_ns.checked_div(measured).unwrap_or_default(),
                "policies": policies,
            })
        })
        .collect();
    json!({ "measured_one_in": every, "routes": routes })
}

/// Writes the series of `/metrics`: sums over the measured exchanges, which never decrease. The cost per call and the share of a
/// policy are quotients of these.
pub(super) fn write(metrics: &Metrics, page: &mut Page) {
    let totals = metrics.routes.totals(metrics.workers());
    let mut shown: Vec<(&str, RoutePriceTotals)> = Vec::new();
    let mut other = RoutePriceTotals::default();
    for (route, totals) in &totals {
        if (1..=ROUTES_IN_METRICS).contains(&totals.slot) {
            shown.push((route, totals.price.clone()));
        } else {
            other.merge(&totals.price);
        }
    }
    shown.push((OTHER, other));
    shown.retain(|(_, price)| *price != RoutePriceTotals::default());
    let rows: Vec<_> = shown
        .iter()
        .flat_map(|(route, price)| price.plugins().map(move |(number, totals)| (*route, number, totals)))
        .filter_map(|(route, number, totals)| Some((route, name(number)?, totals)))
        .collect();
    page.counter("weir_route_measured_exchanges", "Exchanges whose processor time was measured.");
    for (route, price) in &shown {
        page.total(&[("route", route)], price.sampled);
    }
    page.counter("weir_route_measured_cpu_seconds", "Processor time of the measured exchanges.");
    for (route, price) in &shown {
        page.total(&[("route", route)], seconds(price.cpu_ns));
    }
    write_policies(&rows, page);
}

fn write_policies(rows: &[(&str, &str, &PluginTotals)], page: &mut Page) {
    page.counter("weir_policy_measured_calls", "Measured exchanges in which a plugin (`policy`) ran.");
    for (route, policy, totals) in rows {
        page.total(&[("route", route), ("policy", policy)], totals.calls());
    }
    page.counter("weir_policy_measured_cpu_seconds", "Processor time of a plugin in the measured exchanges.");
    for (route, policy, totals) in rows {
        page.total(&[("route", route), ("policy", policy)], seconds(totals.cpu_ns));
    }
    page.counter(
        "weir_policy_measured_wait_seconds",
        "Time that a plugin waited for other services in the measured exchanges, in seconds.",
    );
    for (route, policy, totals) in rows {
        page.total(&[("route", route), ("policy", policy)], seconds(totals.waited_ns));
    }
    page.counter(
        "weir_policy_refusals",
        "Exchanges that a plugin answered, or streams that it closed, measured or not.",
    );
    for (route, policy, totals) in rows {
        page.total(&[("route", route), ("policy", policy)], totals.refusals);
    }
    page.counter(
        "weir_policy_errors",
        "Exchanges in which a plugin failed, or the service that it asks, measured or not.",
    );
    for (route, policy, totals) in rows {
        page.total(&[("route", route), ("policy", policy)], totals.errors);
    }
    page.counter(
        "weir_policy_held_bytes",
        "Bytes of content held in memory for a plugin, in all exchanges, measured or not.",
    );
    for (route, policy, totals) in rows {
        page.total(&[("route", route), ("policy", policy)], totals.held_bytes);
    }
    page.counter(
        "weir_policy_held_seconds",
        "Time from the head of a message until a plugin that needs its whole content had it, summed over all exchanges.",
    );
    for (route, policy, totals) in rows {
        page.total(&[("route", route), ("policy", policy)], seconds(totals.held_ns));
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn name(number: u16) -> Option<&'static str> {
    PLUGINS.name_of(number)
}
