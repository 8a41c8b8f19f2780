//! ApisixPluginConfigs: plugins that rules share.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::grants::{GrantReferent, GrantReferrer};
use super::class::is_usable;
use super::outcomes::ApisixProblem;
use super::plugins::PluginChecker;
use super::{ApisixContext, ApisixOutcome, own};
use crate::objects::apisix::{ApisixHttpRule, ApisixPluginConfig, ApisixRoute};
use crate::objects::{Kind, ObjectRef};
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};
use crate::world::ObjectName;

/// One that can be used, with its plugins or why there are none.
type ReadPluginConfig<'a> = (&'a ApisixPluginConfig, Result<Map<String, Value>, ApisixProblem>);

/// All that can be used.
pub(super) struct PluginConfigs<'a>(BTreeMap<ObjectName, ReadPluginConfig<'a>>);

impl<'a> PluginConfigs<'a> {
    /// Reads all of them, and adds their statuses.
    pub(super) fn new(
        context: &ApisixContext<'a>,
        checker: &mut PluginChecker,
        translation: &mut Translation,
    ) -> PluginConfigs<'a> {
        let mut all = BTreeMap::new();
        for (name, config) in &context.world.apisix_plugin_configs {
            if is_usable(&config.spec.ingress_class_name, context.world, context.options) {
                all.insert(name.clone(), (&**config, checker.list(&name.namespace, &config.spec.plugins)));
            }
        }
        for config in own(context, &context.world.apisix_plugin_configs, |config| &config.spec.ingress_class_name) {
            let mut outcome = ApisixOutcome::default();
            let name = ObjectName::new(&config.metadata.namespace, &config.metadata.name);
            if let Some((_, Err(problem))) = all.get(&name) {
                outcome.add(problem.clone());
            }
            translation.statuses.push(outcome.status(config, &config.status.conditions));
        }
        PluginConfigs(all)
    }

    /// The resource with the plugins that a rule names; `None` if it names none, or there are none in it.
    ///
    /// # Errors
    /// Why the rule cannot have them.
    pub(super) fn resource(
        &self,
        context: &ApisixContext,
        route: &ApisixRoute,
        rule: &ApisixHttpRule,
    ) -> Result<Option<DerivedResource>, ApisixProblem> {
        if rule.plugin_config_name.is_empty() {
            return Ok(None);
        }
        let own = &route.metadata.namespace;
        let namespace = Some(&rule.plugin_config_namespace).filter(|text| !text.is_empty()).unwrap_or(own);
        let name = ObjectName::new(namespace, &rule.plugin_config_name);
        let missing =
            || ApisixProblem::Reference(format!("plugin_config_name: there is no ApisixPluginConfig `{name}`"));
        // Its plugins can send what is secret in their options to wherever the route leads.
        if !is_granted(context, own, &name) {
            let problem = format!(
                "plugin_config_name: no ReferenceGrant of the namespace `{namespace}` permits ApisixRoute of `{own}` to use the \
                 ApisixPluginConfig `{name}`"
            );
            return Err(ApisixProblem::Reference(problem));
        }
        let (config, plugins) = self.0.get(&name).ok_or_else(missing)?;
        // One without a class has no status.
        let invalid = |problem: &ApisixProblem| {
            let text = problem.text();
            ApisixProblem::Reference(format!("plugin_config_name: the ApisixPluginConfig `{name}`: {text}"))
        };
        let plugins = plugins.as_ref().map_err(invalid)?;
        let resource = || DerivedResource {
            kind: ResourceList::PluginConfigs,
            id: resource_id(&["apisixpluginconfig", &name.namespace, &name.name]),
            value: json!({ "plugins": plugins }),
            origin: ObjectRef::of(*config),
            beside: Vec::new(),
        };
        Ok((!plugins.is_empty()).then(resource))
    }
}

fn is_granted(context: &ApisixContext, own: &str, config: &ObjectName) -> bool {
    let group = Kind::ApisixRoute.group();
    let from = GrantReferrer { group, kind: Kind::ApisixRoute.name(), namespace: own };
    let kind = Kind::ApisixPluginConfig.name();
    context.grants.permit(from, GrantReferent { group, kind, namespace: &config.namespace, name: &config.name })
}
