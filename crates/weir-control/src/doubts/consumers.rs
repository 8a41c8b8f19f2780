//! Finds auth plugins for which no consumer has credentials, and consumers whose credentials no route accepts.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use weir_plugin::Registry;

use super::Doubts;
use crate::document::{ConsumerSpec, PluginSpec, PluginSpecs, ResourceOrigin, RouteSpec};
use crate::text::read::{join, listed};
use crate::text::tree::TreePath;

/// Reports auth plugins for which no consumer has credentials: they refuse every request.
pub(super) fn without_credentials(doubts: &Doubts, registry: &Registry) {
    let document = doubts.document;
    let held: HashSet<&str> = credentials(doubts, registry).into_values().flatten().collect();
    let of_routes = doubts.enabled_routes().map(|route| (&route.origin, &route.plugins));
    let of_services = document.services.iter().map(|service| (&service.origin, &service.plugins));
    let of_sets = document.plugin_configs.iter().chain(&document.global_rules).map(|set| (&set.origin, &set.plugins));
    for (origin, plugins) in of_routes.chain(of_services).chain(of_sets) {
        for plugin in plugins.iter().filter(|plugin| !plugin.disabled) {
            let names = credential_plugins(registry, plugin);
            let admits_others = anonymous(plugin).next().is_some()
                || with_options(plugin)
                    .any(|part| has_own_users(part) || names_consumers(part) || needs_no_consumer(part));
            if names.is_empty() || names.iter().any(|name| held.contains(name)) || admits_others {
                continue;
            }
            let path = join(&origin.path, &format!("plugins{}", TreePath::suffix(&plugin.name)));
            let problem = format!("refuses every request: no consumer has credentials for {}", listed(&names));
            let advice = format!("add `{}` with its credentials to the `plugins` of a consumer", names[0]);
            doubts.report(&path, plugin.place, problem, advice);
        }
    }
}

/// Reports consumers that no route admits: none has their auth plugin, or all that do exclude them.
pub(super) fn admitted_nowhere(doubts: &Doubts, registry: &Registry) {
    let admission = RouteAdmission::of(doubts, registry);
    let mut held = credentials(doubts, registry);
    for consumer in &doubts.document.consumers {
        let own = held.remove(&*consumer.username).unwrap_or_default();
        if admission.admits(consumer, &own) {
            continue;
        }
        let asked: Vec<&str> = own.iter().copied().filter(|name| admission.asked.contains(name)).collect();
        let name = &consumer.username;
        let (problem, advice) = match (own.first(), asked.first()) {
            (None, _) => (
                format!("no request is attributed to `{name}`: it has no credentials"),
                "add an auth plugin with credentials to its `plugins`, such as `key-auth`, or remove it".to_owned(),
            ),
            (Some(first), None) => (
                format!("no route admits `{name}`: none has the plugin {}", listed(&own)),
                format!("add `{first}: {{}}` to the `plugins` of a route or of its service, or remove the consumer"),
            ),
            (_, Some(first)) => (
                format!("no route admits `{name}`: none with {} has it in its `consumer-restriction`", listed(&asked)),
                format!("add it to the `whitelist` of a route with `{first}`, or remove the consumer"),
            ),
        };
        doubts.report(&consumer.origin.path, consumer.origin.place, problem, advice);
    }
}

/// The auth plugins that each consumer has credentials for, without duplicates.
fn credentials<'a>(doubts: &Doubts<'a>, registry: &Registry) -> HashMap<&'a str, Vec<&'a str>> {
    let document = doubts.document;
    let own = document.consumers.iter().map(|consumer| (&*consumer.username, &consumer.plugins));
    let further = document.credentials.iter().map(|credential| (&*credential.consumer.id, &credential.plugins));
    let mut held: HashMap<&str, Vec<&str>> = HashMap::new();
    for (consumer, plugins) in own.chain(further) {
        let known = held.entry(consumer).or_default();
        for plugin in plugins.iter().filter(|plugin| !plugin.disabled && has_credentials(registry, &plugin.name)) {
            if !known.contains(&&*plugin.name) {
                known.push(&plugin.name);
            }
        }
    }
    held
}

fn has_credentials(registry: &Registry, name: &str) -> bool {
    registry.find(name).is_some_and(|entry| entry.credential.is_some())
}

/// The plugins whose credentials of consumers this one accepts: its own, or those of the plugins inside `multi-auth`.
fn credential_plugins<'a>(registry: &Registry, plugin: &'a PluginSpec) -> Vec<&'a str> {
    let of_consumers = with_options(plugin).filter(|part| !has_own_users(*part));
    of_consumers.map(|(name, _)| name).filter(|name| has_credentials(registry, name)).collect()
}

/// Whether the users stand in the options of the plugin, so that consumers are not admitted.
fn has_own_users((_, options): (&str, &Value)) -> bool {
    !options["users"].is_null()
}

/// Whether consumers are also found by names of their own, without credentials (`mtls-auth`).
fn names_consumers((_, options): (&str, &Value)) -> bool {
    options["consumer_by"].as_array().is_some_and(|attributes| !attributes.is_empty())
}

/// Whether clients are admitted that belong to no consumer (`mtls-auth`).
fn needs_no_consumer((_, options): (&str, &Value)) -> bool {
    options["skip_consumer_lookup"] == true
}

/// A plugin and the plugins inside it.
fn with_options(plugin: &PluginSpec) -> impl Iterator<Item = (&str, &Value)> {
    std::iter::once((&*plugin.name, &plugin.options)).chain(parts(plugin))
}

/// The plugins inside `multi-auth`, with their options.
fn parts(plugin: &PluginSpec) -> impl Iterator<Item = (&str, &Value)> {
    let parts = (&*plugin.name == "multi-auth").then(|| plugin.options["auth_plugins"].as_array()).flatten();
    parts.into_iter().flatten().filter_map(Value::as_object).flatten().map(|(name, options)| (&**name, options))
}

/// The consumers that requests without credentials are attributed to.
fn anonymous(plugin: &PluginSpec) -> impl Iterator<Item = &str> {
    with_options(plugin).filter_map(|(_, options)| options["anonymous_consumer"].as_str())
}

/// The consumers that routes admit.
#[derive(Default)]
struct RouteAdmission<'a> {
    /// The auth plugins of all routes.
    asked: HashSet<&'a str>,
    /// The auth plugins of routes that admit every consumer with credentials, or whose restriction cannot be evaluated.
    open: HashSet<&'a str>,
    /// Pairs of an auth plugin and a consumer (or group) that a route with it admits.
    consumers: HashSet<(&'a str, &'a str)>,
    groups: HashSet<(&'a str, &'a str)>,
    anonymous: HashSet<&'a str>,
    /// Some route finds consumers without credentials.
    by_name: bool,
}

impl<'a> RouteAdmission<'a> {
    fn of(doubts: &Doubts<'a>, registry: &Registry) -> RouteAdmission<'a> {
        let mut admission = RouteAdmission::default();
        for route in doubts.enabled_routes() {
            let plugins = effective_plugins(doubts, route);
            let restriction = plugins.iter().find(|(_, plugin)| &*plugin.name == "consumer-restriction");
            let restriction = restriction.map(|(_, plugin)| &plugin.options);
            for (_, plugin) in &plugins {
                admission.anonymous.extend(anonymous(plugin));
                admission.by_name |= with_options(plugin).any(names_consumers);
                credential_plugins(registry, plugin).into_iter().for_each(|name| admission.add(name, restriction));
            }
        }
        admission
    }

    /// Adds an auth plugin of a route, with the options of the route's `consumer-restriction`.
    fn add(&mut self, plugin: &'a str, restriction: Option<&'a Value>) {
        self.asked.insert(plugin);
        let whitelist = restriction.and_then(|options| Some((options, options["whitelist"].as_array()?)));
        let Some((options, whitelist)) = whitelist else {
            self.open.insert(plugin);
            return;
        };
        let admitted = match options["type"].as_str() {
            None | Some("consumer_name") => &mut self.consumers,
            Some("consumer_group_id") => &mut self.groups,
            _ => {
                self.open.insert(plugin);
                return;
            }
        };
        let by_methods = options["allowed_by_methods"].as_array().into_iter().flatten().map(|rule| &rule["user"]);
        admitted.extend(whitelist.iter().chain(by_methods).filter_map(Value::as_str).map(|name| (plugin, name)));
    }

    fn admits(&self, consumer: &ConsumerSpec, credentials: &[&str]) -> bool {
        let group = consumer.group_id.as_ref().map(|group| &*group.id);
        self.anonymous.contains(&*consumer.username)
            || self.by_name
            || credentials.iter().any(|plugin| {
                self.open.contains(plugin)
                    || self.consumers.contains(&(*plugin, &*consumer.username))
                    || group.is_some_and(|group| self.groups.contains(&(*plugin, group)))
            })
    }
}

/// The plugins that run on a route, each from the nearest resource that has it, with this resource.
pub(super) fn effective_plugins<'a>(
    doubts: &Doubts<'a>,
    route: &'a RouteSpec,
) -> Vec<(&'a ResourceOrigin, &'a PluginSpec)> {
    let config = doubts.resources.plugin_config_of(route).map(|set| (&set.origin, &set.plugins));
    let service = doubts.resources.service_of(route).map(|service| (&service.origin, &service.plugins));
    let mut taken: HashSet<&str> = HashSet::new();
    let nearest = [Some((&route.origin, &route.plugins)), config, service].into_iter().flatten();
    let global = doubts.document.global_rules.iter().map(|set| (&set.origin, &set.plugins));
    let with_origin =
        |(origin, plugins): (&'a ResourceOrigin, &'a PluginSpecs)| plugins.iter().map(move |plugin| (origin, plugin));
    let nearest = nearest.flat_map(with_origin).filter(|(_, plugin)| taken.insert(&plugin.name));
    nearest.chain(global.flat_map(with_origin)).filter(|(_, plugin)| !plugin.disabled).collect()
}
