//! ApisixGlobalRules: plugins for all requests of the nodes.

use std::collections::BTreeSet;

use serde_json::json;

use super::outcomes::ApisixProblem;
use super::plugins::PluginChecker;
use super::{ApisixContext, Outcome, own};
use crate::objects::ObjectRef;
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};

/// Adds all of them, and their statuses. A plugin is in one global rule: of several, the oldest has it.
pub(super) fn add(context: &ApisixContext, checker: &mut PluginChecker, translation: &mut Translation) {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for rule in own(context, &context.world.apisix_global_rules, |rule| &rule.spec.ingress_class_name) {
        let metadata = &rule.metadata;
        let mut outcome = Outcome::default();
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
}
