//! HTTPRoutes and GRPCRoutes as routes, and the statuses of all kinds of routes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::super::backends::ServiceBackends;
use super::super::conditions::{Problem, StatusConditions, with_own};
use super::super::grants::{GROUP, GrantReferrer};
use super::super::policies::AppliedPolicies;
use super::attach::{Attaching, attach};
use super::attaching_route::{AttachingRoute, RuleParts};
use super::backend_refs::{self, RuleDestination, UpstreamVariant};
use super::certificates::TlsCertificate;
use super::context::Context;
use super::filters;
use super::matches::RouteMatch;
use super::mirrors;
use super::parents::Parents;
use super::rule_limits;
use super::streams::{self, StreamClaims};
use crate::objects::Kind;
use crate::objects::meta::{ObjectMeta, ObjectReference};
use crate::objects::routes::parent_conditions;
use crate::translation::{DerivedResource, ObjectStatus, PolicyPlugins, ResourceList, resource_id};

/// What of a route is not as its author wants it, apart from its parents.
#[derive(Default)]
struct RouteProblems {
    /// A reference leads nowhere.
    unresolved: Option<Problem>,
    /// Something is not supported, and its requests get 500.
    unsupported: Option<Problem>,
}

/// What becomes of a route, apart from its resources.
pub(super) struct RouteOutcome {
    /// The listeners that it attaches to, as numbers.
    pub attached: Box<[usize]>,
    /// For each of its parents that is ours, its number, and why it is not accepted there.
    verdicts: Box<[(usize, Option<Problem>)]>,
    problems: RouteProblems,
}

impl RouteOutcome {
    /// Whether one of its parents is ours.
    pub(super) fn has_parents(&self) -> bool {
        !self.verdicts.is_empty()
    }
}

/// Adds the resources of a route.
pub(super) fn translate(
    context: &Context,
    parents: &Parents,
    route: &AttachingRoute,
    claims: &mut StreamClaims,
    backends: &mut ServiceBackends,
    resources: &mut Vec<DerivedResource>,
) -> RouteOutcome {
    let attaching = Attaching { kind: route.kind, metadata: route.metadata, hostnames: route.hostnames };
    let mut verdicts = Vec::new();
    let mut attached = Vec::new();
    for (number, parent) in route.parent_refs.iter().enumerate() {
        let Some(found) = attach(context, parents, attaching, parent) else { continue };
        attached.extend(found.iter().flatten().copied());
        verdicts.push((number, found.err()));
    }
    attached.sort_unstable();
    attached.dedup();
    let mut problems = RouteProblems::default();
    if route.kind.is_stream_route() {
        problems.unresolved = streams::write((context, parents), route, &attached, claims, backends, resources);
    } else {
        let parts = parts(context, parents, &attached);
        for part in &parts {
            write_rules(context, route, part, backends, &mut problems, resources);
        }
        if parts.iter().all(|part| part.listeners.is_empty()) {
            // What is not served needs no upstreams, but its references are checked.
            backends.drop_upstreams();
        }
    }
    RouteOutcome { attached: attached.into(), verdicts: verdicts.into(), problems }
}

/// The listeners of a route whose requests are sent on in the same way.
#[derive(Default)]
struct RoutePart<'a> {
    /// The ids of those that are served.
    listeners: Vec<&'a str>,
    /// What backends with TLS are shown.
    identity: Option<&'a TlsCertificate>,
    /// The policies of its Gateways and listeners.
    inherited: AppliedPolicies<'a>,
    /// What tells the ids of its routes from those of other parts.
    suffix: Vec<String>,
}

/// A part for each certificate that the Gateways of these listeners show to backends, with the same policies; at least one part.
fn parts<'p>(context: &'p Context, parents: &'p Parents, attached: &[usize]) -> Vec<RoutePart<'p>> {
    let mut parts = BTreeMap::<_, RoutePart>::new();
    for &number in attached.iter().filter(|number| parents.listeners[**number].is_served()) {
        let identity = parents.identity_of(number);
        let inherited = parents.policies_of(context, number);
        let key = (inherited.names(), identity.map(|identity| &identity.secret));
        let part = parts.entry(key).or_default();
        part.identity = identity;
        part.inherited = inherited;
        part.listeners.push(&parents.listeners[number].id);
    }
    if parts.is_empty() {
        return vec![RoutePart::default()];
    }
    let is_alone = parts.keys().map(|(policies, _)| policies).collect::<BTreeSet<_>>().len() == 1;
    let named = parts.into_iter().map(|((policies, secret), part)| {
        let policies = policies.iter().filter(|_| !is_alone);
        let policies = policies.map(|policy| format!("policy_{}_{}", policy.namespace, policy.name));
        let suffix = secret.map(ToString::to_string).into_iter().chain(policies).collect();
        RoutePart { suffix, ..part }
    });
    named.collect()
}

/// How ids begin of what policies make.
const POLICY_PREFIX: &str = "weirpolicy";

fn write_rules(
    context: &Context,
    route: &AttachingRoute,
    part: &RoutePart,
    backends: &mut ServiceBackends,
    problems: &mut RouteProblems,
    resources: &mut Vec<DerivedResource>,
) {
    let listeners = &*part.listeners;
    let from = GrantReferrer { group: GROUP, kind: route.kind.name(), namespace: &route.metadata.namespace };
    for (number, rule) in route.rules.iter().enumerate() {
        let retries = rule_limits::retries(rule.retry);
        let variant = UpstreamVariant::of(route.kind, retries.as_ref().ok().and_then(Option::as_ref), part.identity);
        let (destination, unresolved) = backend_refs::resolve(context, from, rule.backends, &variant, backends);
        problems.unsupported = problems.unsupported.take().or(retries.err());
        problems.unresolved = problems.unresolved.take().or(unresolved);
        let policies = RulePolicies::of(context, route, rule, part);
        let extensions = extensions(context, route, rule);
        let mut mirrors = Map::new();
        let unresolved = mirrors::write(context, from, rule.filters, backends, &mut mirrors);
        problems.unresolved = problems.unresolved.take().or(unresolved);
        let mut has_policies = false;
        for (index, found) in rule.matches.iter().enumerate() {
            if let Some(problem) = &found.refused {
                problems.unsupported.get_or_insert_with(|| Problem::new("UnsupportedValue", problem));
                continue;
            }
            let (value, unsupported) = route_value(
                (context, route),
                rule,
                found,
                (&destination, &policies, &extensions),
                listeners,
                mirrors.clone(),
            );
            let is_served = unsupported.is_none();
            problems.unsupported = problems.unsupported.take().or(unsupported);
            if !listeners.is_empty() {
                // Once for all matches of the rule: the options can be long.
                if is_served && !std::mem::replace(&mut has_policies, true) {
                    resources.extend(policies.resources());
                }
                let ObjectMeta { namespace, name, .. } = route.metadata;
                let prefix = if route.kind == Kind::GRPCRoute { "grpcroute" } else { "httproute" };
                let (number, index) = (number.to_string(), index.to_string());
                let suffix = part.suffix.iter().map(String::as_str);
                let names = [prefix, namespace, name, &number, &index].into_iter().chain(suffix);
                let id = resource_id(&names.collect::<Vec<_>>());
                resources.push(DerivedResource {
                    kind: ResourceList::Routes,
                    id,
                    value,
                    origin: route.object(),
                    beside: Vec::new(),
                });
            }
        }
    }
}

/// The plugins of the filters `ExtensionRef` of a rule.
fn extensions(context: &Context, route: &AttachingRoute, rule: &RuleParts) -> Result<Map<String, Value>, Problem> {
    let mut plugins = Map::new();
    for filter in rule.filters.iter().filter(|filter| filter.kind == "ExtensionRef") {
        let namespace = &route.metadata.namespace;
        plugins.extend(context.policies.extensions.plugins(namespace, filter.extension_ref.as_ref())?);
    }
    if let Some(name) = plugins.keys().find(|name| !context.options.plugins.works_on_requests(name)) {
        let message =
            format!("filter ExtensionRef: plugin {name}: works on streams alone; the requests of its rule get 500");
        return Err(Problem::new("UnsupportedValue", message));
    }
    Ok(plugins)
}

fn route_value(
    (context, route): (&Context, &AttachingRoute),
    rule: &RuleParts,
    found: &RouteMatch,
    (destination, policies, extensions): (&RuleDestination, &RulePolicies, &Result<Map<String, Value>, Problem>),
    listeners: &[&str],
    mut plugins: Map<String, Value>,
) -> (Value, Option<Problem>) {
    let mut value = Map::new();
    value.insert("name".to_owned(), route.resource_name(rule).into());
    value.insert("listeners".to_owned(), json!(listeners));
    if !route.hostnames.is_empty() {
        let hosts: Vec<String> = route.hostnames.iter().map(|host| host.to_ascii_lowercase()).collect();
        value.insert("hosts".to_owned(), json!(hosts));
    }
    found.write(&mut value);
    let unsupported = filters::write(rule.filters, found, &mut plugins)
        .and_then(|()| rule_limits::write(rule.timeouts, &mut value))
        .and_then(|()| rule_limits::retries(rule.retry).map(drop))
        .and_then(|()| match rule.has_session {
            true => Err(Problem::new("UnsupportedValue", "sessionPersistence is not supported; its rule answers 500")),
            false => Ok(()),
        })
        .and_then(|()| context.policies.extensions.write(&route.object(), rule.name, &mut value))
        .and_then(|()| extended(extensions, &mut plugins))
        .err();
    if unsupported.is_none() && !filters::redirects(rule.filters) {
        destination.write(&mut value, &mut plugins);
    }
    let unsupported = unsupported.or_else(|| policies.refusal(&plugins));
    if unsupported.is_some() {
        plugins.clear();
        value.remove("upstream_id");
        backend_refs::answer_500(&mut plugins);
    } else {
        policies.write(&mut value);
    }
    if !plugins.is_empty() {
        value.insert("plugins".to_owned(), plugins.into());
    }
    (Value::Object(value), unsupported)
}

/// Adds the plugins of filters `ExtensionRef`.
fn extended(extensions: &Result<Map<String, Value>, Problem>, plugins: &mut Map<String, Value>) -> Result<(), Problem> {
    let extensions = extensions.as_ref().map_err(Problem::clone)?;
    if let Some(twice) = extensions.keys().find(|name| plugins.contains_key(*name)) {
        let message = format!(
            "another filter, and a PluginConfig, want the plugin {twice}: only one of them can; its rule answers 500"
        );
        return Err(Problem::new("UnsupportedValue", message));
    }
    plugins.extend(extensions.clone());
    Ok(())
}

/// The policies of a rule.
struct RulePolicies<'a> {
    /// Those of the route, and of this rule.
    own: AppliedPolicies<'a>,
    /// Those of its Gateways and listeners, whose plugins those of the route replace.
    inherited: &'a AppliedPolicies<'a>,
    node: &'a dyn PolicyPlugins,
}

impl<'a> RulePolicies<'a> {
    fn of(context: &'a Context, route: &AttachingRoute, rule: &RuleParts, part: &'a RoutePart) -> RulePolicies<'a> {
        RulePolicies {
            own: context.policies.of_object(&route.object(), rule.name),
            inherited: &part.inherited,
            node: &*context.options.plugins,
        }
    }

    /// Why the rule cannot be served with them, and with these plugins of its filters and backends.
    fn refusal(&self, plugins: &Map<String, Value>) -> Option<Problem> {
        let unsupported =
            |message: String| Problem::new("UnsupportedValue", format!("{message}; its rule answers 500"));
        if let Some(fault) = self.inherited.fault().or_else(|| self.own.fault()) {
            return Some(unsupported(fault));
        }
        let mut own = self.own.plugin_names();
        // A rule without backends answers 500 in any case.
        let twice = own.find(|name| plugins.contains_key(*name) && *name != "fault-injection")?;
        Some(unsupported(format!(
            "filters or backends, and a WeirPolicy, want the plugin {twice}: only one of them can"
        )))
    }

    /// Refers to their resources.
    fn write(&self, route: &mut Map<String, Value>) {
        let has_any = self.inherited.plugin_names().any(|name| self.node.works_on_requests(name));
        let inherited = self.inherited.id(POLICY_PREFIX).filter(|_| has_any);
        let ids = [("service_id", inherited), ("plugin_config_id", self.own.id(POLICY_PREFIX))];
        route.extend(ids.into_iter().filter_map(|(key, id)| Some((key.to_owned(), id?.into()))));
    }

    /// The plugins of the Gateway that work with HTTP as a service, and those of the route as a plugin_config: a route takes each
    /// plugin from the latter first.
    fn resources(&self) -> impl Iterator<Item = DerivedResource> {
        let mut inherited = self.inherited.plugins();
        inherited.retain(|plugin, _| self.node.works_on_requests(plugin));
        let of = |policies: &AppliedPolicies, kind, plugins| policies.resource(kind, POLICY_PREFIX, plugins);
        let inherited = of(self.inherited, ResourceList::Services, inherited);
        inherited.into_iter().chain(of(&self.own, ResourceList::PluginConfigs, self.own.plugins()))
    }
}

/// The status of a route, if it has one. The entries of other controllers stay as they are.
pub(super) fn status(context: &Context, route: &AttachingRoute, outcome: &RouteOutcome) -> Option<ObjectStatus> {
    let RouteOutcome { verdicts, problems, .. } = outcome;
    let controller = &*context.options.controller_name;
    let is_own = |entry: &Value| entry["controllerName"] == controller;
    let before = route.before.parents();
    let own: Vec<Value> = before.iter().filter(|entry| is_own(entry)).cloned().collect();
    let mut entries = Vec::new();
    if verdicts.is_empty() && own.is_empty() {
        return None;
    }
    let is_whole = problems.unsupported.is_some() && route.rules.len() == 1;
    for (number, refused) in verdicts {
        let parent = &route.parent_refs[*number];
        let reference = json!(parent);
        let known = own.iter().find(|entry| same_parent(&entry["parentRef"], parent)).map(parent_conditions);
        let known = known.unwrap_or_default();
        let mut conditions = StatusConditions::new(&known, route.metadata.generation);
        let whole = problems.unsupported.as_ref().filter(|_| is_whole);
        conditions.set_result("Accepted", refused.as_ref().or(whole));
        match &problems.unresolved {
            Some(problem) => conditions.set("ResolvedRefs", false, problem.reason, &problem.message),
            None => conditions.set("ResolvedRefs", true, "ResolvedRefs", ""),
        }
        if let (Some(problem), false) = (&problems.unsupported, is_whole) {
            conditions.set("PartiallyInvalid", true, problem.reason, &problem.message);
        }
        let conditions = conditions.into_value();
        entries.push(json!({ "parentRef": reference, "controllerName": controller, "conditions": conditions }));
    }
    let status = json!({ "parents": with_own(before, entries, is_own, "parentRef") });
    Some(ObjectStatus { object: route.object(), generation: route.metadata.generation, status })
}

fn same_parent(entry: &Value, parent: &ObjectReference) -> bool {
    serde_json::from_value::<ObjectReference>(entry.clone()).is_ok_and(|reference| reference == *parent)
}
