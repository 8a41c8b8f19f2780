//! ApisixGlobalRules, and the plugins of GatewayProxies: plugins for all requests of the nodes.

use std::collections::BTreeSet;

use serde_json::{Map, json};

use super::super::proxies;
use super::class::is_of_controller;
use super::outcomes::ApisixProblem;
use super::plugins::PluginChecker;
use super::{ApisixContext, ApisixOutcome, own};
use crate::objects::ObjectRef;
use crate::objects::apisix::ApisixPlugin;
use crate::objects::apisix_gateway::GatewayProxy;
use crate::translation::{DerivedResource, EventKind, ObjectEvent, ResourceList, Translation, resource_id};

/// Adds all of them, and their statuses. A plugin is in one global rule: of several, the oldest has it.
pub(super) fn add(context: &ApisixContext, checker: &mut PluginChecker, translation: &mut Translation) {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for rule in own(context, &context.world.apisix_global_rules, |rule| &rule.spec.ingress_class_name) {
        let metadata = &rule.metadata;
        let mut outcome = ApisixOutcome::default();
        let mut plugins = checker.list(&metadata.namespace, &rule.spec.plugins).unwrap_or_else(|problem| {
            outcome.add(problem);
            Default::default()
        });
        plugins.retain(|name, _| {
            let is_free = taken.insert(name.clone());
            if !is_free {
                let problem = format!("plugin {name}: an older ApisixGlobalRule has it, which counts");
                outcome.add(ApisixProblem::Conflict(problem));
            }
            is_free
        });
        if !plugins.is_empty() {
            translation.resources.push(DerivedResource {
                kind: ResourceList::GlobalRules,
                id: resource_id(&["apisixglobalrule", &metadata.namespace, &metadata.name]),
                value: json!({ "plugins": plugins }),
                origin: ObjectRef::of(rule),
                beside: Vec::new(),
            });
        }
        translation.statuses.push(outcome.status(rule, &rule.status.conditions));
    }
    let is_class = |controller: &str| is_of_controller(controller, context.options);
    for proxy in proxies::used(context.world, context.options, is_class) {
        add_proxy(proxy, (checker, &mut taken), translation);
    }
}

/// Adds the plugins of a GatewayProxy, which has no status: what is not served is told by Events.
fn add_proxy(
    proxy: &GatewayProxy,
    (checker, taken): (&mut PluginChecker, &mut BTreeSet<String>),
    translation: &mut Translation,
) {
    let metadata = &proxy.metadata;
    let mut tell = |kind, reason: &str, message: String| {
        translation.events.push(ObjectEvent { object: ObjectRef::of(proxy), kind, reason: reason.to_owned(), message });
    };
    if proxy.spec.provider.is_some() {
        let message =
            "`provider` names the control plane of APISIX, and is ignored: the nodes of Weir follow the cluster";
        tell(EventKind::Normal, "ProviderIgnored", message.to_owned());
    }
    if !proxy.spec.publish_service.is_empty() {
        let message = "`publishService` is not looked up: use `statusAddress`, or `publish_addresses` of the node";
        tell(EventKind::Warning, "NotServed", message.to_owned());
    }
    if !proxy.spec.plugin_metadata.is_empty() {
        let message = "`pluginMetadata` is for the whole node, and is not served: the operator of the node decides";
        tell(EventKind::Warning, "NotServed", message.to_owned());
    }
    let named = proxy.spec.plugins.iter().map(|plugin| ApisixPlugin {
        name: plugin.name.clone(),
        enable: plugin.enabled,
        config: plugin.config.clone(),
        secret_ref: String::new(),
    });
    let mut plugins = match checker.list(&metadata.namespace, &named.collect::<Vec<_>>()) {
        Ok(plugins) => plugins,
        Err(problem) => {
            tell(EventKind::Warning, "NotServed", format!("no plugin of it applies: {}", problem.text()));
            Map::new()
        }
    };
    plugins.retain(|name, _| {
        let is_free = taken.insert(name.clone());
        if !is_free {
            let message = format!("plugin {name}: an ApisixGlobalRule, or an older GatewayProxy, has it, which counts");
            tell(EventKind::Warning, "NotServed", message);
        }
        is_free
    });
    if !plugins.is_empty() {
        translation.resources.push(DerivedResource {
            kind: ResourceList::GlobalRules,
            id: resource_id(&["gatewayproxy", &metadata.namespace, &metadata.name]),
            value: json!({ "plugins": plugins }),
            origin: ObjectRef::of(proxy),
            beside: Vec::new(),
        });
    }
}
