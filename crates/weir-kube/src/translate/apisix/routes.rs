//! ApisixRoutes: a route, or a stream route, for each of their rules.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::backends::ServiceBackends;
use super::super::expressions::Expressions;
use super::super::upstream_settings::times;
use super::backends::RuleBackends;
use super::matches::conditions;
use super::outcomes::ApisixProblem;
use super::plugin_configs::PluginConfigs;
use super::plugins::PluginChecker;
use super::secrets::check_texts;
use super::streams::{StreamRuleClaims, StreamRuleWriter};
use super::{ApisixContext, ApisixOutcome, authentication, own};
use crate::objects::ObjectRef;
use crate::objects::apisix::{ApisixHttpRule, ApisixRoute};
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};

/// Adds the routes of all of them, and their statuses.
pub(super) fn add<'w>(
    context: &ApisixContext<'w>,
    (configs, checker): (&PluginConfigs<'w>, &mut PluginChecker),
    backends: &mut ServiceBackends<'w>,
    expressions: &mut Expressions,
    translation: &mut Translation,
) {
    let backends = RuleBackends { context, backends, external: BTreeSet::new() };
    let mut writer = RuleWriter { context, configs, checker, backends, expressions, translation };
    let mut claims = StreamRuleClaims::default();
    for route in own(context, &context.world.apisix_routes, |route| &route.spec.ingress_class_name) {
        let mut outcome = ApisixOutcome::default();
        let mut names = BTreeSet::new();
        for (index, rule) in route.spec.http.iter().enumerate() {
            let place = match &*rule.name {
                "" => format!("http[{index}]"),
                name => format!("rule {name}"),
            };
            let is_named = names.insert(&*rule.name) && !rule.name.is_empty();
            let problems = writer.rule(route, rule, (!is_named).then_some(index));
            problems.into_iter().for_each(|problem| outcome.add(problem.at(&place)));
        }
        writer.streams(route, &mut claims, &mut outcome);
        writer.translation.statuses.push(outcome.status(route, &route.status.conditions));
    }
}

struct RuleWriter<'a, 'c, 'w> {
    context: &'a ApisixContext<'w>,
    configs: &'a PluginConfigs<'w>,
    checker: &'a mut PluginChecker<'c>,
    backends: RuleBackends<'a, 'w>,
    expressions: &'a mut Expressions,
    translation: &'a mut Translation,
}

impl RuleWriter<'_, '_, '_> {
    /// Adds the stream routes of a route.
    fn streams(&mut self, route: &ApisixRoute, claims: &mut StreamRuleClaims, outcome: &mut ApisixOutcome) {
        let RuleWriter { checker, backends, translation, .. } = self;
        let mut writer = StreamRuleWriter { checker, backends, claims, translation };
        let mut names = BTreeSet::new();
        for (index, rule) in route.spec.stream.iter().enumerate() {
            let is_named = names.insert(&*rule.name) && !rule.name.is_empty();
            let problem = writer.rule(route, rule, (!is_named).then_some(index));
            let place = match &*rule.name {
                "" => format!("stream[{index}]"),
                name => format!("stream rule {name}"),
            };
            problem.into_iter().for_each(|problem| outcome.add(problem.at(&place)));
        }
    }

    /// Adds the route of a rule. One without a name of its own is told apart by its number, and closed. Returns what is not served as it is
    /// written.
    fn rule(&mut self, route: &ApisixRoute, rule: &ApisixHttpRule, nameless: Option<usize>) -> Vec<ApisixProblem> {
        let metadata = &route.metadata;
        let mut value = match conditions(rule, &metadata.namespace, self.expressions) {
            Ok(keys) => keys,
            Err(problem) => return vec![ApisixProblem::Spec(format!("{problem}; it takes no requests"))],
        };
        value.insert("name".to_owned(), format!("{}/{}/{}", metadata.namespace, metadata.name, rule.name).into());
        // Without an upstream, the answer is 503.
        value.insert("plugins".to_owned(), json!({}));
        let closed = value.clone();
        let outcome = match nameless {
            Some(_) => Err(ApisixProblem::Spec("name: each rule needs one of its own".to_owned())),
            None => self.actions(route, rule, &mut value),
        };
        let problems = match outcome {
            Ok(problems) => problems,
            Err(problem) => {
                value = closed;
                vec![problem.at("answers with 503")]
            }
        };
        let number = nameless.map(|index| index.to_string());
        let mut parts = vec!["apisixroute", &metadata.namespace, &metadata.name, &rule.name];
        parts.extend(number.as_deref());
        self.translation.resources.push(DerivedResource {
            kind: ResourceList::Routes,
            id: resource_id(&parts),
            value: Value::Object(value),
            origin: ObjectRef::of(route),
            beside: Vec::new(),
        });
        problems
    }

    /// Adds what a rule does. Returns which of its backends lead nowhere.
    ///
    /// # Errors
    /// Why its requests cannot be answered as it wants.
    fn actions(
        &mut self,
        route: &ApisixRoute,
        rule: &ApisixHttpRule,
        value: &mut Map<String, Value>,
    ) -> Result<Vec<ApisixProblem>, ApisixProblem> {
        let namespace = &route.metadata.namespace;
        let mut plugins = self.checker.list(namespace, &rule.plugins)?;
        if let Some((name, options)) = authentication::plugin(&rule.authentication).map_err(ApisixProblem::Spec)? {
            check_texts(&options).map_err(|problem| problem.at("authentication"))?;
            self.checker.check(namespace, name, &options)?;
            plugins.insert(name.to_owned(), options);
        }
        let shared = self.configs.resource(self.context, route, rule)?;
        if let Some(timeout) = &rule.timeout {
            value.insert("timeout".to_owned(), times(timeout).map_err(ApisixProblem::Spec)?);
        }
        value.insert("enable_websocket".to_owned(), rule.websocket.into());
        let found = self.backends.targets(route, rule, self.translation);
        // Those that are wrong in the rule itself are not left out: it would send more to the others than is written.
        if let Some(fault) = found.problems.iter().find(|problem| matches!(problem, ApisixProblem::Spec(_))) {
            return Err(fault.clone());
        }
        let (upstream, split) = found.keys();
        if split.is_some() && plugins.contains_key("traffic-split") {
            let problem = "plugin traffic-split: cannot be beside several backends, whose weights need it";
            return Err(ApisixProblem::Spec(problem.to_owned()));
        }
        if split.is_some() {
            let enabled = self.context.options.plugins.check_enabled("traffic-split");
            enabled.map_err(|problem| {
                ApisixProblem::Spec(format!("plugin traffic-split: {problem}; the weights of several backends need it"))
            })?;
        }
        value.extend(upstream.map(|id| ("upstream_id".to_owned(), id)));
        plugins.extend(split.map(|split| ("traffic-split".to_owned(), split)));
        value.insert("plugins".to_owned(), Value::Object(plugins));
        if let Some(shared) = shared {
            value.insert("plugin_config_id".to_owned(), shared.id.clone().into());
            self.translation.resources.push(shared);
        }
        Ok(found.problems)
    }
}
