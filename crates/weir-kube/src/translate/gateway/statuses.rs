//! The statuses of GatewayClasses, Gateways and ListenerSets.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::conditions::{Problem, StatusConditions};
use super::super::grants::GROUP;
use super::super::proxies;
use super::context::Context;
use super::frontend_tls;
use super::parents::{GatewayState, ListenerState, Parents, SetState};
use crate::objects::gateway::{GatewayClass, ListenerStatus};
use crate::objects::{KubeObject, ObjectRef};
use crate::translation::{ObjectStatus, Translation};

/// Supported if Services are made for Gateways.
const INFRASTRUCTURE: &str = "GatewayInfrastructure";
/// The features of the Gateway API that are supported, by their names in its conformance suite, sorted.
const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    INFRASTRUCTURE,
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// Adds the statuses of our classes, and returns their names.
pub(super) fn classes<'a>(context: &Context<'a>, translation: &mut Translation) -> BTreeSet<&'a str> {
    let is_ours = |class: &&GatewayClass| class.spec.controller_name == context.options.controller_name;
    let mut names = BTreeSet::new();
    for class in context.world.gateway_classes.values().map(|class| &**class).filter(is_ours) {
        let mut conditions = StatusConditions::new(&class.status.conditions, class.metadata.generation);
        let refused = class
            .spec
            .parameters_ref
            .as_ref()
            .and_then(|reference| proxies::refusal(context.world, context.options, reference, ""));
        conditions.set_result("Accepted", refused.as_ref());
        let is_supported = |name: &&&str| context.options.makes_services || **name != INFRASTRUCTURE;
        let features: Vec<Value> = FEATURES.iter().filter(is_supported).map(|name| json!({ "name": name })).collect();
        push(class, json!({ "conditions": conditions.into_value(), "supportedFeatures": features }), translation);
        if refused.is_none() {
            names.insert(&*class.metadata.name);
        }
    }
    names
}

/// Adds the statuses of Gateways and ListenerSets. The routes are counted by then.
pub(super) fn write(parents: &Parents, translation: &mut Translation) {
    for state in &parents.gateways {
        gateway(parents, state, translation);
    }
    for state in &parents.sets {
        listener_set(parents, state, translation);
    }
}

fn gateway(parents: &Parents, state: &GatewayState, translation: &mut Translation) {
    let gateway = state.gateway;
    let listeners = listeners_of(parents, gateway);
    let addresses = &state.addresses;
    let accepted = addresses.unsupported.clone().or_else(|| none_valid(&listeners));
    let mut conditions = StatusConditions::new(&gateway.status.conditions, gateway.metadata.generation);
    match (&accepted, some_invalid(&listeners)) {
        (None, Some(problem)) => conditions.set("Accepted", true, problem.reason, &problem.message),
        (accepted, _) => conditions.set_result("Accepted", accepted.as_ref()),
    }
    match addresses.unusable.as_ref().or(accepted.as_ref()) {
        Some(problem) if accepted.is_some() => conditions.set("Programmed", false, "Invalid", &problem.message),
        problem => set_programmed(&mut conditions, problem, &listeners),
    }
    let unresolved = state.identity.as_ref().err().cloned().or_else(|| some_unresolved(&listeners));
    conditions.set_result("ResolvedRefs", unresolved.as_ref());
    if frontend_tls::is_insecure(gateway) {
        let message = "clients without a valid certificate are served: AllowInsecureFallback";
        conditions.set("InsecureFrontendValidationMode", true, "ConfigurationChanged", message);
    }
    let is_attached = |set: &&SetState| {
        std::ptr::eq(parents.gateways[set.gateway].gateway, gateway)
            && set.is_allowed
            && none_valid(&listeners_of(parents, set.set)).is_none()
    };
    let mut status = json!({
        "addresses": addresses.published,
        "conditions": conditions.into_value(),
        "listeners": listener_statuses(&listeners, &gateway.status.listeners, gateway.metadata.generation),
    });
    if gateway.spec.allowed_listeners.is_some() {
        status["attachedListenerSets"] = parents.sets.iter().filter(is_attached).count().into();
    }
    push(gateway, status, translation);
}

fn listener_set(parents: &Parents, state: &SetState, translation: &mut Translation) {
    let SetState { set, is_allowed, .. } = *state;
    let listeners = listeners_of(parents, set);
    let refused = match is_allowed {
        true => none_valid(&listeners),
        false => Some(Problem::new("NotAllowed", "allowedListeners of the Gateway do not allow this ListenerSet")),
    };
    let mut conditions = StatusConditions::new(&set.status.conditions, set.metadata.generation);
    match (&refused, some_invalid(&listeners)) {
        (None, Some(problem)) => conditions.set("Accepted", true, problem.reason, &problem.message),
        (refused, _) => conditions.set_result("Accepted", refused.as_ref()),
    }
    set_programmed(&mut conditions, refused.as_ref(), &listeners);
    let mut status = json!({ "conditions": conditions.into_value() });
    if is_allowed {
        status["listeners"] = listener_statuses(&listeners, &set.status.listeners, set.metadata.generation);
    }
    push(set, status, translation);
}

fn not_served(problem: &str) -> String {
    format!("the node does not serve it: {problem}")
}

/// Sets whether what has these listeners is programmed: if nothing else forbids it, and the node serves one of them.
fn set_programmed(conditions: &mut StatusConditions, problem: Option<&Problem>, listeners: &[&ListenerState]) {
    let is_served = |listener: &&ListenerState| listener.is_served() && listener.not_served.is_none();
    let not_served = listeners.iter().filter(|listener| listener.not_served.is_some());
    let names: Vec<&str> = not_served.map(|listener| &*listener.listener.name).collect();
    let message = || format!("not served: listeners {}; see their conditions", names.join(", "));
    match problem {
        None if names.is_empty() => conditions.set_result("Programmed", None),
        None if listeners.iter().any(is_served) => {
            conditions.set("Programmed", true, "Programmed", &message());
        }
        None => conditions.set("Programmed", false, "Invalid", &message()),
        problem => conditions.set_result("Programmed", problem),
    }
}

fn listeners_of<'p, 'a, T: KubeObject>(parents: &'p Parents<'a>, owner: &T) -> Vec<&'p ListenerState<'a>> {
    let numbers = parents.listeners_of(&ObjectRef::of(owner)).unwrap_or_default();
    numbers.iter().map(|number| &parents.listeners[*number]).collect()
}

const NOT_VALID: &str = "ListenersNotValid";

fn none_valid(listeners: &[&ListenerState]) -> Option<Problem> {
    let is_valid = |listener: &&ListenerState| listener.is_served();
    let none = !listeners.is_empty() && !listeners.iter().any(is_valid);
    none.then(|| Problem::new(NOT_VALID, "no listener is valid; see their conditions"))
}

fn some_invalid(listeners: &[&ListenerState]) -> Option<Problem> {
    let invalid: Vec<&str> =
        listeners.iter().filter(|listener| !listener.is_served()).map(|listener| &*listener.listener.name).collect();
    (!invalid.is_empty()).then(|| Problem::new(NOT_VALID, format!("not valid: listeners {}", invalid.join(", "))))
}

fn some_unresolved(listeners: &[&ListenerState]) -> Option<Problem> {
    let names = listeners.iter().filter(|listener| listener.unresolved.is_some());
    let names: Vec<&str> = names.map(|listener| &*listener.listener.name).collect();
    let message = || format!("references that lead nowhere: listeners {}", names.join(", "));
    (!names.is_empty()).then(|| Problem::new("ListenersNotResolved", message()))
}

fn listener_statuses(listeners: &[&ListenerState], before: &[ListenerStatus], generation: i64) -> Value {
    let one = |state: &&ListenerState| {
        let name = &state.listener.name;
        let known = before.iter().find(|known| known.name == *name);
        let mut conditions =
            StatusConditions::new(known.map(|known| &*known.conditions).unwrap_or_default(), generation);
        let accepted = state.conflict.as_ref().or(state.refused.as_ref());
        conditions.set_result("Accepted", accepted);
        match accepted.or(state.unresolved.as_ref().filter(|_| !state.is_served())) {
            Some(problem) if accepted.is_none() => conditions.set("Programmed", false, "Invalid", &problem.message),
            Some(problem) => conditions.set_result("Programmed", Some(problem)),
            None => match &state.not_served {
                Some(problem) => conditions.set("Programmed", false, "Invalid", &not_served(problem)),
                None => conditions.set_result("Programmed", None),
            },
        }
        conditions.set_result("ResolvedRefs", state.unresolved.as_ref());
        match &state.conflict {
            Some(problem) => conditions.set("Conflicted", true, problem.reason, &problem.message),
            None => conditions.set("Conflicted", false, "NoConflicts", ""),
        }
        let kinds = state.kinds.iter().map(|kind| json!({ "group": GROUP, "kind": kind.name() }));
        json!({
            "name": name,
            "supportedKinds": kinds.collect::<Vec<_>>(),
            "attachedRoutes": state.attached,
            "conditions": conditions.into_value(),
        })
    };
    listeners.iter().map(one).collect()
}

fn push<T: KubeObject>(object: &T, status: Value, translation: &mut Translation) {
    let generation = object.metadata().generation;
    translation.statuses.push(ObjectStatus { object: ObjectRef::of(object), generation, status });
}
