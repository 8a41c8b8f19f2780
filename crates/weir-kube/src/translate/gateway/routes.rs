//! HTTPRoutes and GRPCRoutes as routes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::backends::ServiceBackends;
use super::super::expressions::Expressions;
use super::attach::{Attaching, attach};
use super::backend_refs::{self, RuleDestination, UpstreamVariant};
use super::certificates::TlsCertificate;
use super::conditions::{Problem, StatusConditions};
use super::context::Context;
use super::filters;
use super::grants::GrantReferrer;
use super::matches::{self, RouteMatch};
use super::mirrors;
use super::parents::Parents;
use super::rule_limits;
use crate::objects::meta::{ObjectMeta, ObjectReference};
use crate::objects::routes::{
    BackendRef, GrpcRoute, HttpRetry, HttpRoute, HttpTimeouts, RouteFilter, parent_conditions,
};
use crate::objects::{Kind, ObjectRef};
use crate::translation::{DerivedResource, ObjectStatus, ResourceList, Translation, resource_id};

/// What an HTTPRoute and a GRPCRoute have in common.
pub(super) struct AttachingRoute<'a> {
    kind: Kind,
    pub metadata: &'a ObjectMeta,
    parent_refs: &'a [ObjectReference],
    hostnames: &'a [String],
    /// `status.parents`.
    before: &'a [Value],
    rules: Vec<RuleParts<'a>>,
}

struct RuleParts<'a> {
    name: Option<&'a str>,
    matches: Vec<RouteMatch>,
    filters: &'a [RouteFilter],
    backends: &'a [BackendRef],
    timeouts: Option<&'a HttpTimeouts>,
    retry: Option<&'a HttpRetry>,
    has_session: bool,
}

impl AttachingRoute<'_> {
    /// Finds the matches whose expressions cannot be served.
    pub(super) fn check_expressions(&mut self, expressions: &mut Expressions) {
        for found in self.rules.iter_mut().flat_map(|rule| &mut rule.matches) {
            found.check_expressions(expressions, &self.metadata.namespace);
        }
    }
}

pub(super) fn of_http(route: &HttpRoute) -> AttachingRoute<'_> {
    let rules = route.spec.rules.iter().map(|rule| RuleParts {
        name: rule.name.as_deref(),
        matches: match &*rule.matches {
            [] => vec![matches::of_http(&Default::default())],
            all => all.iter().map(matches::of_http).collect(),
        },
        filters: &rule.filters,
        backends: &rule.backend_refs,
        timeouts: rule.timeouts.as_ref(),
        retry: rule.retry.as_ref(),
        has_session: rule.session_persistence.is_some(),
    });
    AttachingRoute {
        kind: Kind::HTTPRoute,
        metadata: &route.metadata,
        parent_refs: &route.spec.parent_refs,
        hostnames: &route.spec.hostnames,
        before: &route.status.parents,
        rules: rules.collect(),
    }
}

pub(super) fn of_grpc(route: &GrpcRoute) -> AttachingRoute<'_> {
    let rules = route.spec.rules.iter().map(|rule| RuleParts {
        name: rule.name.as_deref(),
        matches: match &*rule.matches {
            [] => vec![matches::of_grpc(&Default::default())],
            all => all.iter().map(matches::of_grpc).collect(),
        },
        filters: &rule.filters,
        backends: &rule.backend_refs,
        timeouts: None,
        retry: None,
        has_session: rule.session_persistence.is_some(),
    });
    AttachingRoute {
        kind: Kind::GRPCRoute,
        metadata: &route.metadata,
        parent_refs: &route.spec.parent_refs,
        hostnames: &route.spec.hostnames,
        before: &route.status.parents,
        rules: rules.collect(),
    }
}

/// What of a route is not as its author wants it, apart from its parents.
#[derive(Default)]
struct RouteProblems {
    /// A reference leads nowhere.
    unresolved: Option<Problem>,
    /// Something is not supported, and its requests get 500.
    unsupported: Option<Problem>,
}

/// Adds the resources and the status of a route, and counts it at its listeners.
pub(super) fn translate(
    context: &Context,
    parents: &mut Parents,
    route: &AttachingRoute,
    backends: &mut ServiceBackends,
    translation: &mut Translation,
) {
    let attaching = Attaching { kind: route.kind, metadata: route.metadata, hostnames: route.hostnames };
    let mut verdicts = Vec::new();
    let mut attached = Vec::new();
    for parent in route.parent_refs {
        let Some(found) = attach(context, parents, attaching, parent) else { continue };
        attached.extend(found.iter().flatten().copied());
        verdicts.push((parent, found.err()));
    }
    attached.sort_unstable();
    attached.dedup();
    for number in &attached {
        parents.listeners[*number].attached += 1;
        for backend in route.rules.iter().flat_map(|rule| rule.backends) {
            parents.reach(*number, backend_refs::service_name(&backend.reference, &route.metadata.namespace));
        }
    }
    let mut problems = RouteProblems::default();
    for part in parts(parents, &attached) {
        write_rules(context, route, &part, backends, &mut problems, translation);
    }
    write_status(context, route, &verdicts, &problems, translation);
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
    translation: &mut Translation,
) {
    let listeners = &*part.listeners;
    let from = GrantReferrer { kind: route.kind.name(), namespace: &route.metadata.namespace };
    for (number, rule) in route.rules.iter().enumerate() {
        let retries = rule_limits::retries(rule.retry);
        let variant = UpstreamVariant::of(route.kind, retries.as_ref().ok().and_then(Option::as_ref), part.identity);
        let (destination, unresolved) = match listeners {
            // What is not served needs no upstreams, but its references are checked.
            [] => {
                backend_refs::resolve(context, from, rule.backends, &variant, &mut ServiceBackends::new(context.world))
            }
            _ => backend_refs::resolve(context, from, rule.backends, &variant, backends),
        };
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
                translation.resources.push(DerivedResource {
                    kind: ResourceList::Routes,
                    id,
                    value,
                    origin: origin(route),
                });
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
    let ObjectMeta { namespace, name, .. } = route.metadata;
    let full = [Some(&**namespace), Some(&**name), rule.name].into_iter().flatten().collect::<Vec<_>>().join("/");
    value.insert("name".to_owned(), full.chars().take(LONGEST_NAME).collect::<String>().into());
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

/// The most characters in the name of a resource.
const LONGEST_NAME: usize = 100;

fn origin(route: &AttachingRoute) -> ObjectRef {
    let ObjectMeta { namespace, name, .. } = route.metadata;
    ObjectRef { kind: route.kind, namespace: namespace.clone(), name: name.clone() }
}

/// The entries of other controllers stay as they are, before ours.
fn write_status(
    context: &Context,
    route: &AttachingRoute,
    verdicts: &[(&ObjectReference, Option<Problem>)],
    problems: &RouteProblems,
    translation: &mut Translation,
) {
    let controller = &*context.options.controller_name;
    let (own, mut entries): (Vec<Value>, Vec<Value>) =
        route.before.iter().cloned().partition(|entry| entry["controllerName"] == controller);
    if verdicts.is_empty() && own.is_empty() {
        return;
    }
    let is_whole = problems.unsupported.is_some() && route.rules.len() == 1;
    for (parent, refused) in verdicts {
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
    translation.statuses.push(ObjectStatus { object: origin(route), generation: route.metadata.generation, status });
}

fn same_parent(entry: &Value, parent: &ObjectReference) -> bool {
    serde_json::from_value::<ObjectReference>(entry.clone()).is_ok_and(|reference| reference == *parent)
}
