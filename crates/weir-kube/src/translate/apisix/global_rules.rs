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

/// The plugin that answers all requests with 503.
const CLOSING: &str = "fault-injection";

/// Adds all of them, and their statuses. A plugin is in one global rule: of several, the oldest has it. If one that protects cannot be
/// followed, no request is answered without it: all are with 503.
pub(super) fn add(context: &ApisixContext, checker: &mut PluginChecker, translation: &mut Translation) {
    let mut writer = GlobalRuleWriter { checker, taken: BTreeSet::new(), rules: Vec::new(), closes: None };
    for rule in own(context, &context.world.apisix_global_rules, |rule| &rule.spec.ingress_class_name) {
        let metadata = &rule.metadata;
        let mut outcome = ApisixOutcome::default();
        let id = resource_id(&["apisixglobalrule", &metadata.namespace, &metadata.name]);
        writer.add((id, ObjectRef::of(rule)), (&metadata.namespace, &rule.spec.plugins), &mut |problem| {
            outcome.add(problem);
        });
        translation.statuses.push(outcome.status(rule, &rule.status.conditions));
    }
    let is_class = |controller: &str| is_of_controller(controller, context.options);
    for proxy in proxies::used(context.world, context.options, is_class) {
        add_proxy(proxy, &mut writer, translation);
    }
    translation.resources.extend(writer.finish());
}

struct GlobalRuleWriter<'a, 'c> {
    checker: &'a mut PluginChecker<'c>,
    /// The plugins that a rule has.
    taken: BTreeSet<String>,
    rules: Vec<DerivedResource>,
    /// The first object with a plugin that protects and cannot be followed.
    closes: Option<ObjectRef>,
}

impl GlobalRuleWriter<'_, '_> {
    /// Adds the rule of an object, and tells what of it does not apply.
    fn add(
        &mut self,
        (id, origin): (String, ObjectRef),
        (namespace, written): (&str, &[ApisixPlugin]),
        tell: &mut dyn FnMut(ApisixProblem),
    ) {
        let mut plugins = Map::new();
        for (name, options) in self.checker.each(namespace, written) {
            match options {
                Err(problem) if self.checker.protects(&name) => {
                    tell(problem.at("all requests are answered with 503"));
                    self.closes.get_or_insert_with(|| origin.clone());
                }
                Err(problem) => tell(problem),
                Ok(options) if self.taken.insert(name.clone()) => _ = plugins.insert(name, options),
                Ok(_) => tell(ApisixProblem::Conflict(format!(
                    "plugin {name}: an older object has it for all requests, which counts"
                ))),
            }
        }
        if !plugins.is_empty() {
            let value = json!({ "plugins": plugins });
            self.rules.push(DerivedResource { kind: ResourceList::GlobalRules, id, value, origin, beside: Vec::new() });
        }
    }

    fn finish(mut self) -> Vec<DerivedResource> {
        let Some(origin) = self.closes else { return self.rules };
        // The plugin is in one rule.
        for rule in &mut self.rules {
            rule.value["plugins"].as_object_mut().map(|plugins| plugins.remove(CLOSING));
        }
        self.rules.retain(|rule| rule.value["plugins"].as_object().is_some_and(|plugins| !plugins.is_empty()));
        self.rules.push(DerivedResource {
            kind: ResourceList::GlobalRules,
            id: resource_id(&["apisixglobalrule", "closed"]),
            value: json!({ "plugins": { CLOSING: { "abort": { "http_status": 503 } } } }),
            origin,
            beside: Vec::new(),
        });
        self.rules
    }
}

/// Adds the plugins of a GatewayProxy, which has no status: what is not served is told by Events.
fn add_proxy(proxy: &GatewayProxy, writer: &mut GlobalRuleWriter, translation: &mut Translation) {
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
        secret_ref: None,
    });
    let id = resource_id(&["gatewayproxy", &metadata.namespace, &metadata.name]);
    let named: Vec<ApisixPlugin> = named.collect();
    writer.add((id, ObjectRef::of(proxy)), (&metadata.namespace, &named), &mut |problem| {
        tell(EventKind::Warning, "NotServed", problem.text().to_owned());
    });
}
