//! Finds routes without a target whose plugins do not answer either: their requests get 503.

use super::Doubts;
use super::consumers::effective_plugins;
use crate::document::{PluginSpec, RouteSpec};

pub(super) fn without_a_target(doubts: &Doubts) {
    for route in doubts.enabled_routes().filter(|route| !has_target(doubts, route)) {
        if effective_plugins(doubts, route).iter().any(|(_, plugin)| may_answer(doubts, route, plugin)) {
            continue;
        }
        let problem = "has no upstream, by itself or by its service, and no plugin that answers: requests get 503";
        let advice = "add `upstream: { nodes: { \"10.0.0.1:8080\": 1 } }`, or a plugin such as `redirect` or `mocking`";
        doubts.report(&route.origin.path, route.origin.place, problem.to_owned(), advice.to_owned());
    }
}

/// Whether a resource that is there or not answers requests: a reference that leads nowhere is told elsewhere.
fn has_target(doubts: &Doubts, route: &RouteSpec) -> bool {
    let of_service = doubts.resources.service_of(route).and_then(|service| service.upstream_id.as_ref());
    let is_named = route.hub_id.is_some() || route.upstream_id.is_some() || of_service.is_some();
    is_named || doubts.resources.upstream_of(route).is_some()
}

fn may_answer(doubts: &Doubts, route: &RouteSpec, plugin: &PluginSpec) -> bool {
    match &*plugin.name {
        // It answers preflights alone.
        "cors" => route.methods.iter().any(|method| method == "OPTIONS"),
        "response-rewrite" => !plugin.options["status_code"].is_null(),
        name => doubts.registry.find(name).is_none_or(|entry| entry.answers),
    }
}
