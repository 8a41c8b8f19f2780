//! Finds routes without a target whose plugins do not answer either: their requests get 503.

use std::cell::OnceCell;

use weir_plugin::{Expression, Variable};

use super::Doubts;
use super::consumers::effective_plugins;
use crate::document::{PluginSpec, RouteSpec};

pub(super) fn without_a_target(doubts: &Doubts) {
    let by_consumers = OnceCell::new();
    for route in doubts.enabled_routes().filter(|route| !has_target(doubts, route)) {
        let plugins = effective_plugins(doubts, route);
        let identifies = |plugin: &PluginSpec| doubts.registry.find(&plugin.name).is_some_and(|entry| entry.identifies);
        let is_answered = plugins.iter().any(|(_, plugin)| may_answer(doubts, route, plugin))
            || plugins.iter().any(|(_, plugin)| identifies(plugin))
                && *by_consumers.get_or_init(|| of_consumers(doubts));
        if is_answered {
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

/// Whether a plugin of some consumer or consumer group, which runs on routes that identify the consumer, may answer.
fn of_consumers(doubts: &Doubts) -> bool {
    let own = doubts.document.consumers.iter().map(|consumer| &consumer.plugins);
    let groups = doubts.document.consumer_groups.iter().map(|group| &group.plugins);
    let mut plugins = own.chain(groups).flat_map(|plugins| plugins.iter()).filter(|plugin| !plugin.disabled);
    plugins.any(|plugin| match &*plugin.name {
        "cors" => true,
        _ => answers(doubts, plugin),
    })
}

fn may_answer(doubts: &Doubts, route: &RouteSpec, plugin: &PluginSpec) -> bool {
    match &*plugin.name {
        // It answers preflights alone.
        "cors" => {
            let asks_method = |vars: &Expression| vars.variables().contains(&&Variable::Method);
            route.methods.iter().any(|method| method == "OPTIONS") || route.vars.as_ref().is_some_and(asks_method)
        }
        _ => answers(doubts, plugin),
    }
}

fn answers(doubts: &Doubts, plugin: &PluginSpec) -> bool {
    match &*plugin.name {
        "response-rewrite" => !plugin.options["status_code"].is_null(),
        name => doubts.registry.find(name).is_none_or(|entry| entry.answers),
    }
}
