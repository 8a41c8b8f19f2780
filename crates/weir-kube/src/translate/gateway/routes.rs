//! HTTPRoutes and GRPCRoutes as routes, and the statuses of all kinds of routes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::backends::ServiceBackends;
use super::attach::{Attaching, attach};
use super::attaching_route::{AttachingRoute, RuleParts};
use super::backend_refs::{self, RuleDestination, UpstreamVariant};
use super::certificates::TlsCertificate;
use super::conditions::{Problem, StatusConditions};
use super::context::Context;
use super::filters;
use super::grants::GrantReferrer;
use super::matches::RouteMatch;
use super::mirrors;
use super::parents::Parents;
use super::rule_limits;
use super::streams::{self, StreamClaims};
use crate::objects::Kind;
use crate::objects::meta::{ObjectMeta, ObjectReference};
use crate::objects::routes::parent_conditions;
use crate::translation::{DerivedResource, ObjectStatus, ResourceList, resource_id};

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
        let parts = parts(parents, &attached);
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
}

/// A part for each certificate that the Gateways of these listeners show to backends, at least one part.
fn parts<'p>(parents: &'p Parents, attached: &[usize]) -> Vec<RoutePart<'p>> {
    let mut parts = BTreeMap::<_, RoutePart>::new();
    for &number in attached.iter().filter(|number| parents.listeners[**number].is_served()) {
        let identity = parents.identity_of(number);
        let part = parts.entry(identity.map(|identity| &identity.secret)).or_default();
        part.identity = identity;
        part.listeners.push(&parents.listeners[number].id);
    }
    if parts.is_empty() { vec![RoutePart::default()] } else { parts.into_values().collect() }
}

fn write_rules(
    context: &Context,
    route: &AttachingRoute,
    part: &RoutePart,
    backends: &mut ServiceBackends,
    problems: &mut RouteProblems,
    resources: &mut Vec<DerivedResource>,
) {
    let listeners = &*part.listeners;
    let from = GrantReferrer { kind: route.kind.name(), namespace: &route.metadata.namespace };
    for (number, rule) in route.rules.iter().enumerate() {
        let retries = rule_limits::retries(rule.retry);
        let variant = UpstreamVariant::of(route.kind, retries.as_ref().ok().and_then(Option::as_ref), part.identity);
        let (destination, unresolved) = backend_refs::resolve(context, from, rule.backends, &variant, backends);
        problems.unsupported = problems.unsupported.take().or(retries.err());
        problems.unresolved = problems.unresolved.take().or(unresolved);
        let mut mirrors = Map::new();
        let unresolved = mirrors::write(context, from, rule.filters, backends, &mut mirrors);
        problems.unresolved = problems.unresolved.take().or(unresolved);
        for (index, found) in rule.matches.iter().enumerate() {
            if let Some(problem) = &found.refused {
                problems.unsupported.get_or_insert_with(|| Problem::new("UnsupportedValue", problem));
                continue;
            }
            let (value, unsupported) = route_value(route, rule, found, &destination, listeners, mirrors.clone());
            problems.unsupported = problems.unsupported.take().or(unsupported);
            if !listeners.is_empty() {
                let ObjectMeta { namespace, name, .. } = route.metadata;
                let prefix = if route.kind == Kind::GRPCRoute { "grpcroute" } else { "httproute" };
                let (number, index) = (number.to_string(), index.to_string());
                let secret = part.identity.map(|identity| identity.secret.to_string());
                let names = [prefix, namespace, name, &number, &index].into_iter().chain(secret.as_deref());
                let id = resource_id(&names.collect::<Vec<_>>());
                resources.push(DerivedResource { kind: ResourceList::Routes, id, value, origin: route.object() });
            }
        }
    }
}

fn route_value(
    route: &AttachingRoute,
    rule: &RuleParts,
    found: &RouteMatch,
    destination: &RuleDestination,
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
        .err();
    if unsupported.is_some() {
        plugins.clear();
        backend_refs::answer_500(&mut plugins);
    } else if !filters::redirects(rule.filters) {
        destination.write(&mut value, &mut plugins);
    }
    if !plugins.is_empty() {
        value.insert("plugins".to_owned(), plugins.into());
    }
    (Value::Object(value), unsupported)
}

/// The status of a route, if it has one. The entries of other controllers stay as they are, before ours.
pub(super) fn status(context: &Context, route: &AttachingRoute, outcome: &RouteOutcome) -> Option<ObjectStatus> {
    let RouteOutcome { verdicts, problems, .. } = outcome;
    let controller = &*context.options.controller_name;
    let (own, mut entries): (Vec<Value>, Vec<Value>) =
        route.before.parents().into_iter().partition(|entry| entry["controllerName"] == controller);
    if verdicts.is_empty() && own.is_empty() {
        return None;
    }
    let is_whole = problems.unsupported.is_some() && route.rules.len() == 1;
    for (number, refused) in verdicts {
        let parent = &route.parent_refs[*number];
        let reference = json!(parent);
        let before = own.iter().find(|entry| same_parent(&entry["parentRef"], parent)).map(parent_conditions);
        let before = before.unwrap_or_default();
        let mut conditions = StatusConditions::new(&before, route.metadata.generation);
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
    let status = json!({ "parents": entries });
    Some(ObjectStatus { object: route.object(), generation: route.metadata.generation, status })
}

fn same_parent(entry: &Value, parent: &ObjectReference) -> bool {
    serde_json::from_value::<ObjectReference>(entry.clone()).is_ok_and(|reference| reference == *parent)
}
