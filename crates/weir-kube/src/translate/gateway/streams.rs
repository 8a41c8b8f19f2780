//! TCPRoutes, TLSRoutes and UDPRoutes as stream routes: one for each listener that they attach to.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::backends::ServiceBackends;
use super::super::closed::prefix;
use super::super::conditions::Problem;
use super::super::grants::{GROUP, GrantReferrer};
use super::attaching_route::{AttachingRoute, RuleParts};
use super::backend_refs::{self, RuleDestination, UpstreamVariant};
use super::context::Context;
use super::hosts;
use super::parents::{ListenerState, Parents};
use crate::objects::Kind;
use crate::objects::meta::ObjectMeta;
use crate::translation::{DerivedResource, ResourceList, resource_id};

/// The connections that routes take: of several that want the same, the first gets them.
#[derive(Default)]
pub(super) struct StreamClaims(BTreeSet<StreamClaim>);

/// The id of a listener, and a server name.
type StreamClaim = (String, Option<String>);

impl StreamClaims {
    /// Those of these server names that no route has yet; `None` is every name.
    fn take(&mut self, state: &ListenerState, names: Vec<Option<String>>) -> Vec<Option<String>> {
        let claim = |name: &Option<String>| (state.id.clone(), name.clone());
        names.into_iter().filter(|name| self.0.insert(claim(name))).collect()
    }
}

/// Adds the resources of a route that attaches to these listeners, and returns which reference leads nowhere.
pub(super) fn write(
    (context, parents): (&Context, &Parents),
    route: &AttachingRoute,
    attached: &[usize],
    claims: &mut StreamClaims,
    backends: &mut ServiceBackends,
    resources: &mut Vec<DerivedResource>,
) -> Option<Problem> {
    // Nothing tells several rules apart.
    let rule = route.rules.first()?;
    let from = GrantReferrer { group: GROUP, kind: route.kind.name(), namespace: &route.metadata.namespace };
    let scheme = if route.kind == Kind::UDPRoute { "udp" } else { "tcp" };
    let mut unresolved = None;
    let before = resources.len();
    for &number in attached {
        let (state, addresses) = (&parents.listeners[number], parents.addresses_of(number));
        if !state.is_served() || !addresses.can_be_listened_on() {
            continue;
        }
        let names = claims.take(state, server_names(state, route.hostnames));
        if names.is_empty() {
            continue;
        }
        let variant = UpstreamVariant::of_streams(scheme, state.passes_tls(), parents.identity_of(number));
        let (destination, problem) = backend_refs::resolve(context, from, rule.backends, &variant, backends);
        unresolved = unresolved.or(problem);
        let plugins = context.policies.streams.plugins(&route.object(), rule.name).map_err(|_| Closed);
        let policies = plugins
            .and_then(|plugins| Ok(StreamPlugins { own: plugins, of_gateway: policies(context, parents, number)? }));
        resources.push(DerivedResource {
            kind: ResourceList::StreamRoutes,
            id: id(route, state),
            value: value(route, rule, state, (&addresses.host, &names), (scheme, &destination, &policies)),
            origin: route.object(),
            beside: Vec::new(),
        });
        resources.extend(policies.ok().and_then(|plugins| plugins.of_gateway));
    }
    if resources.len() == before {
        // What is not served needs no upstreams, but its references are checked.
        let variant = UpstreamVariant::of_streams(scheme, false, None);
        unresolved = backend_refs::resolve(context, from, rule.backends, &variant, backends).1;
        backends.drop_upstreams();
    }
    unresolved
}

/// The plugins of a stream route.
struct StreamPlugins {
    /// Those of its L4RoutePolicy, which come before the others with their names.
    own: Map<String, Value>,
    of_gateway: Option<DerivedResource>,
}

/// The plugins of the policies of a listener that work without HTTP.
///
/// # Errors
/// If a policy cannot be followed.
fn policies(context: &Context, parents: &Parents, listener: usize) -> Result<Option<DerivedResource>, Closed> {
    let policies = parents.policies_of(context, listener);
    if policies.fault().is_some() {
        return Err(Closed);
    }
    let mut plugins = policies.plugins();
    plugins.retain(|plugin, _| context.options.plugins.works_on_streams(plugin));
    Ok(policies.resource(ResourceList::Services, "weirpolicy-streams", plugins))
}

/// Connections are reset, whatever backends there are.
struct Closed;

/// The server names for which a route takes connections of a listener.
fn server_names(state: &ListenerState, hostnames: &[String]) -> Vec<Option<String>> {
    let mut names: Vec<Option<String>> = match (state.host(), hostnames) {
        (None, []) => vec![None],
        (None, names) => names.iter().map(|name| Some(name.to_ascii_lowercase())).collect(),
        (Some(host), []) => vec![Some(host.to_ascii_lowercase())],
        (Some(host), names) => names.iter().filter_map(|name| hosts::intersection(host, name)).map(Some).collect(),
    };
    names.sort();
    names.dedup();
    names
}

fn id(route: &AttachingRoute, state: &ListenerState) -> String {
    let ObjectMeta { namespace, name, .. } = route.metadata;
    resource_id(&[&prefix(route.kind), namespace, name, &state.id])
}

fn value(
    route: &AttachingRoute,
    rule: &RuleParts,
    state: &ListenerState,
    (host, names): (&str, &[Option<String>]),
    (scheme, destination, plugins): (&str, &RuleDestination, &Result<StreamPlugins, Closed>),
) -> Value {
    let mut value = Map::new();
    value.insert("name".to_owned(), route.resource_name(rule).into());
    value.insert("server_port".to_owned(), state.listener.port.into());
    if !host.is_empty() {
        value.insert("server_addr".to_owned(), host.into());
    }
    // A connection to a listener without a host may have no server name.
    let names: Option<Vec<&str>> = names.iter().map(Option::as_deref).collect();
    if let Some(names) = names {
        value.insert("snis".to_owned(), json!(names));
    }
    if state.listener.protocol == "TLS" {
        // A listener with a more specific host gets its connections, whatever routes others have.
        value.insert("listeners".to_owned(), json!([state.id]));
    }
    if state.passes_tls() {
        value.insert("tls_passthrough".to_owned(), true.into());
    }
    match plugins {
        Ok(StreamPlugins { own, of_gateway }) => {
            destination.write_stream(scheme, &mut value);
            if !own.is_empty() {
                let all = value.entry("plugins").or_insert_with(|| json!({}));
                all.as_object_mut().expect("plugins are a map").extend(own.clone());
            }
            value.extend(of_gateway.as_ref().map(|service| ("service_id".to_owned(), service.id.clone().into())));
        }
        Err(Closed) => RuleDestination::Nowhere.write_stream(scheme, &mut value),
    }
    Value::Object(value)
}
