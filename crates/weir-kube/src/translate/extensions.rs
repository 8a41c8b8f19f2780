//! What the kinds of the APISIX ingress controller add to routes of the Gateway API and to Ingresses: plugins by a filter `ExtensionRef`
//! (PluginConfig), and a priority with further conditions (HTTPRoutePolicy).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::conditions::{Problem, StatusConditions, with_own};
use super::expressions::Expressions;
use super::plugin_lists::{PluginLists, has_references};
use super::policy_targets::PolicyTargetPart;
use super::precedence::precedence;
use crate::objects::apisix_gateway::HttpRoutePolicy;
use crate::objects::meta::ObjectReference;
use crate::objects::policy::PolicyTarget;
use crate::objects::routes::parent_conditions;
use crate::objects::{Kind, KubeObject, ObjectRef};
use crate::translation::{KubeOptions, ObjectStatus, PolicyPlugins};
use crate::world::{ObjectName, World};

/// The most bytes of the conditions of an HTTPRoutePolicy, as JSON.
const MOST_BYTES: usize = 64 << 10;
/// The most entries of `status.ancestors` that the API server accepts.
const MOST_ANCESTORS: usize = 16;

/// What is added to routes.
#[derive(Default)]
pub(super) struct RouteExtensions {
    plugins: PluginLists,
    conditions: BTreeMap<ObjectName, Result<(), String>>,
    by_target: BTreeMap<PolicyTargetPart, Arc<HttpRoutePolicy>>,
}

impl RouteExtensions {
    /// Reads all of them. Of several HTTPRoutePolicies with one target, the oldest has it.
    pub(super) fn renew(&mut self, world: &World, plugins: &dyn PolicyPlugins) {
        let lists = world.extension_plugins.iter();
        self.plugins.renew(world, lists.map(|(name, object)| (name.clone(), &*object.spec.plugins)), plugins);
        let mut expressions = Expressions::default();
        let mut policies: Vec<&Arc<HttpRoutePolicy>> = world.http_route_policies.values().collect();
        policies.sort_by(|one, other| precedence(&one.metadata, &other.metadata));
        (self.conditions, self.by_target) = Default::default();
        for policy in policies {
            for target in policy.spec.target_refs.iter().filter_map(|target| part_of(policy, target)) {
                self.by_target.entry(target).or_insert_with(|| Arc::clone(policy));
            }
            let checked = check_conditions(policy, &mut expressions);
            self.conditions.insert(name_of(&**policy), checked);
        }
    }

    /// The plugins of a filter `ExtensionRef` of a route.
    ///
    /// # Errors
    /// Why the rule cannot be served.
    pub(super) fn plugins(
        &self,
        namespace: &str,
        reference: Option<&ObjectReference>,
    ) -> Result<Map<String, Value>, Problem> {
        let unsupported = |message: String| {
            Problem::new(
                "UnsupportedValue",
                format!("filter ExtensionRef: {message}; the requests of its rule get 500"),
            )
        };
        let of_plugins = reference.filter(|reference| {
            reference.group.as_deref() == Some(Kind::PluginConfig.group())
                && reference.kind.as_deref() == Some(Kind::PluginConfig.name())
        });
        let Some(reference) = of_plugins else {
            return Err(unsupported(
                "is not supported for this kind: name the rule in targetRefs of a WeirPolicy, by its sectionName"
                    .to_owned(),
            ));
        };
        let found = self.plugins.plugins(&ObjectName::new(namespace, &*reference.name));
        let found = found.ok_or_else(|| unsupported(format!("there is no PluginConfig `{}`", reference.name)))?;
        found.map_err(|fault| unsupported(format!("PluginConfig `{}`: {fault}", reference.name)))
    }

    /// Adds the priority and the conditions for a route of an object, or of a part of it.
    ///
    /// # Errors
    /// Why they cannot be followed.
    pub(super) fn write(
        &self,
        object: &ObjectRef,
        part: Option<&str>,
        route: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        let of_part = part.and_then(|part| self.by_target.get(&(object.clone(), Some(part.to_owned()))));
        let Some(policy) = of_part.or_else(|| self.by_target.get(&(object.clone(), None))) else { return Ok(()) };
        if let Some(Err(fault)) = self.conditions.get(&name_of(&**policy)) {
            let message =
                format!("HTTPRoutePolicy {}: {fault}; the requests of its target get an error", policy.metadata.name);
            return Err(Problem::new("UnsupportedValue", message));
        }
        if let Some(priority) = policy.spec.priority {
            route.insert("priority".to_owned(), priority.into());
        }
        if !policy.spec.vars.is_empty() {
            let vars = route.entry("vars").or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(vars) = vars {
                vars.extend(policy.spec.vars.iter().cloned());
            }
        }
        Ok(())
    }

    /// What is wrong with a policy for a target, if anything; `None` if the target is another controller's.
    fn verdict(&self, policy: &HttpRoutePolicy, target: &PolicyTarget, find: &FindTarget) -> Option<Option<Problem>> {
        let Some(part) = part_of(policy, target) else {
            let message = "only an HTTPRoute, or a rule of it by sectionName, and an Ingress can be targets";
            return Some(Some(Problem::new("Invalid", message)));
        };
        if let Some(problem) = find(&part.0, part.1.as_deref())? {
            return Some(Some(problem));
        }
        let winner = self.by_target.get(&part).filter(|winner| winner.metadata.name != policy.metadata.name);
        if let Some(winner) = winner {
            let message = format!("HTTPRoutePolicy {} has the same target and comes first", winner.metadata.name);
            return Some(Some(Problem::new("Conflicted", message)));
        }
        let fault = self.conditions.get(&name_of(policy)).and_then(|checked| checked.as_ref().err());
        Some(fault.map(|fault| Problem::new("Invalid", fault.clone())))
    }

    /// The statuses of the HTTPRoutePolicies.
    pub(super) fn statuses(&self, world: &World, options: &KubeOptions, find: &FindTarget) -> Vec<ObjectStatus> {
        let of = |policy: &Arc<HttpRoutePolicy>| {
            let verdict = |target: &PolicyTarget| self.verdict(policy, target, find);
            policy_status(&**policy, (&policy.status, &policy.spec.target_refs), options, verdict)
        };
        world.http_route_policies.values().filter_map(of).collect()
    }
}

/// Looks for a target, or a part of it: `None` if it is another controller's, and otherwise what is wrong with it.
pub(super) type FindTarget<'a> = dyn Fn(&ObjectRef, Option<&str>) -> Option<Option<Problem>> + 'a;

/// The status of a policy, with an entry for each target that is ours. The entries of other controllers stay as they are.
pub(super) fn policy_status<T: KubeObject>(
    policy: &T,
    (status, targets): (&Value, &[PolicyTarget]),
    options: &KubeOptions,
    verdict: impl Fn(&PolicyTarget) -> Option<Option<Problem>>,
) -> Option<ObjectStatus> {
    let (metadata, controller) = (policy.metadata(), &*options.controller_name);
    let before = status["ancestors"].as_array().cloned().unwrap_or_default();
    let is_own = |entry: &Value| entry["controllerName"] == controller;
    let others = before.iter().filter(|entry| !is_own(entry)).count();
    let mut entries = Vec::new();
    let mut seen = BTreeSet::new();
    let ours = targets.iter().filter_map(|target| Some((target, verdict(target)?)));
    for (target, problem) in ours.take(MOST_ANCESTORS.saturating_sub(others)) {
        let PolicyTarget { group, kind, name, section_name } = target;
        let mut reference = json!({ "group": group, "kind": kind, "namespace": metadata.namespace, "name": name });
        if let Some(part) = section_name {
            reference["sectionName"] = part.clone().into();
        }
        if !seen.insert(reference.to_string()) {
            continue;
        }
        let known = before.iter().filter(|entry| is_own(entry)).find(|entry| entry["ancestorRef"] == reference);
        let known = known.map(parent_conditions).unwrap_or_default();
        let mut conditions = StatusConditions::new(&known, metadata.generation);
        conditions.set_result("Accepted", problem.as_ref());
        let conditions = conditions.into_value();
        entries.push(json!({ "ancestorRef": reference, "controllerName": controller, "conditions": conditions }));
    }
    if entries.is_empty() && others == before.len() {
        return None;
    }
    Some(ObjectStatus {
        object: ObjectRef::of(policy),
        generation: metadata.generation,
        status: json!({ "ancestors": with_own(before, entries, is_own, "ancestorRef") }),
    })
}

fn name_of<T: KubeObject>(object: &T) -> ObjectName {
    ObjectName::new(&object.metadata().namespace, &object.metadata().name)
}

fn part_of(policy: &HttpRoutePolicy, target: &PolicyTarget) -> Option<PolicyTargetPart> {
    let kind = match (&*target.group, &*target.kind) {
        (group, "HTTPRoute") if group == Kind::HTTPRoute.group() => Kind::HTTPRoute,
        (group, "Ingress") if group == Kind::Ingress.group() && target.section_name.is_none() => Kind::Ingress,
        _ => return None,
    };
    let namespace = policy.metadata.namespace.clone();
    Some((ObjectRef { kind, namespace, name: target.name.clone() }, target.section_name.clone()))
}

fn check_conditions(policy: &HttpRoutePolicy, expressions: &mut Expressions) -> Result<(), String> {
    let vars = Value::Array(policy.spec.vars.clone());
    if vars.to_string().len() > MOST_BYTES {
        return Err(format!("vars: have more than {MOST_BYTES} bytes"));
    }
    if has_references(&vars) {
        return Err("vars: have a text that begins with `$env://` or `$secret://`".to_owned());
    }
    for (index, condition) in policy.spec.vars.iter().enumerate() {
        check_condition(condition, &policy.metadata.namespace, expressions)
            .map_err(|problem| format!("vars[{index}]: {problem}"))?;
    }
    Ok(())
}

/// Checks the regular expressions of a condition, and of those within it.
fn check_condition(condition: &Value, namespace: &str, expressions: &mut Expressions) -> Result<(), String> {
    let items = condition.as_array().ok_or("is not a list such as `[arg_version, \"==\", \"2\"]`")?;
    let mut is_pattern = false;
    for item in items {
        match item {
            Value::Array(_) if !is_pattern && is_condition(item) => check_condition(item, namespace, expressions)?,
            Value::String(pattern) if is_pattern => expressions.check(namespace, pattern)?,
            Value::String(text) => is_pattern = ["~~", "~*"].contains(&&**text),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a list within a condition is a condition as well; otherwise it has the values of `in`.
fn is_condition(item: &Value) -> bool {
    item[0].is_string() && (item[1].is_string() || item[1].is_array())
}
