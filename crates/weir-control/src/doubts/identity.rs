//! Finds plugins that need to know the consumer where no plugin finds it out, and names in `consumer-restriction` that nothing has.

use std::collections::HashSet;

use serde_json::Value;
use weir_plugin::suggest::closest;

use super::Doubts;
use super::consumers::effective_plugins;
use crate::document::{PluginSpec, ResourceOrigin, RouteSpec};
use crate::text::read::join;
use crate::text::tree::TreePath;

const RESTRICTION: &str = "consumer-restriction";

/// Reports plugins about the consumer on routes where no auth plugin finds one.
pub(super) fn without_authentication(doubts: &Doubts) {
    let identifies = |plugin: &&PluginSpec| doubts.registry.find(&plugin.name).is_some_and(|entry| entry.identifies);
    let mut told = HashSet::new();
    for route in doubts.enabled_routes() {
        let plugins = effective_plugins(doubts, route);
        if plugins.iter().any(|(_, plugin)| identifies(plugin)) {
            continue;
        }
        for (origin, plugin) in plugins {
            let Some(effect) = effect(plugin) else { continue };
            // A plugin of a service or a global rule is told with the first of its routes.
            if told.insert((&*origin.path, &*plugin.name)) {
                report(doubts, route, (origin, plugin), effect);
            }
        }
    }
}

/// What a plugin does with requests of an unknown consumer; `None` if it does not ask for the consumer.
fn effect(plugin: &PluginSpec) -> Option<&'static str> {
    match &*plugin.name {
        "attach-consumer-label" => Some("sends no label"),
        "acl" => Some("refuses every request"),
        RESTRICTION => match subject(plugin) {
            "consumer_name" | "consumer_group_id" => Some("refuses every request"),
            _ => None,
        },
        _ => None,
    }
}

fn report(doubts: &Doubts, route: &RouteSpec, (origin, plugin): (&ResourceOrigin, &PluginSpec), effect: &str) {
    let path = join(&origin.path, &format!("plugins{}", TreePath::suffix(&plugin.name)));
    let of_route = match std::ptr::eq(origin, &route.origin) {
        true => "of this route".to_owned(),
        false => format!("of {}", doubts.named(&route.origin)),
    };
    let problem = format!("{effect}: no plugin {of_route} finds out the consumer");
    let advice = "add an auth plugin to the route, its service or a global rule, such as `key-auth: {}`".to_owned();
    doubts.report(&path, doubts.document.place_at(&path), problem, advice);
}

/// The kind of names in a `consumer-restriction`.
fn subject(plugin: &PluginSpec) -> &str {
    plugin.options["type"].as_str().unwrap_or("consumer_name")
}

/// Reports names in `consumer-restriction` that no consumer, group, service or route has.
pub(super) fn with_unknown_names(doubts: &Doubts) {
    for (origin, plugin) in doubts.enabled_plugins().filter(|(_, plugin)| &*plugin.name == RESTRICTION) {
        let Some((what, known)) = known(doubts, subject(plugin)) else { continue };
        for (option, name) in names(&plugin.options) {
            if known.contains(name) {
                continue;
            }
            let path = join(&origin.path, &format!("plugins.{RESTRICTION}.{option}"));
            let problem = format!("there is no {what} `{name}`");
            // The author of a change of a store may not be allowed to see the others.
            let meant = closest(name, known.iter().copied()).filter(|_| !doubts.is_of_store());
            let advice = match meant {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("write the {} of a {what} that is there, or add this one", key_of(what)),
            };
            doubts.report(&path, doubts.document.place_at(&path), problem, advice);
        }
    }
}

fn key_of(what: &str) -> &'static str {
    if what == "consumer" { "`username`" } else { "`id`" }
}

/// What the names are those of, and all that there are.
fn known<'a>(doubts: &Doubts<'a>, subject: &str) -> Option<(&'static str, HashSet<&'a str>)> {
    let document = doubts.document;
    Some(match subject {
        "consumer_name" => ("consumer", document.consumers.iter().map(|consumer| &*consumer.username).collect()),
        "consumer_group_id" => ("consumer group", document.consumer_groups.iter().map(|group| &*group.id).collect()),
        "service_id" => ("service", document.services.iter().map(|service| &*service.id).collect()),
        "route_id" => ("route", document.routes.iter().map(|route| &*route.id).collect()),
        _ => return None,
    })
}

/// The names in the options, each with its path there.
fn names(options: &Value) -> Vec<(String, &str)> {
    let list = |option: &'static str| options[option].as_array().into_iter().flatten().enumerate();
    let plain = ["whitelist", "blacklist"].into_iter().flat_map(|option| {
        list(option).filter_map(move |(index, name)| Some((format!("{option}[{index}]"), name.as_str()?)))
    });
    let by_methods = list("allowed_by_methods")
        .filter_map(|(index, rule)| Some((format!("allowed_by_methods[{index}].user"), rule["user"].as_str()?)));
    plain.chain(by_methods).collect()
}
