//! The route, the plugins and the upstream of a request, to compare two configurations.

use std::time::Duration;

use weir_gateway::snapshot::{Snapshot, Timeouts};
use weir_plugin::Registry;

use super::{NamedUpstream, PluginRow, RequestDescription, ResourceIndex, exchange, route_of, rows};
use crate::document::{RouteSpec, UpstreamSpec, is_position_id};
use crate::text::fingerprint::Fingerprint;

/// How a configuration handles a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingOutcome {
    /// The id of the route; `None` if none matches.
    pub route: Option<Box<str>>,
    /// `None` if no route matches.
    settings: Option<RouteSettings>,
    /// The plugins that run, in their order.
    pub plugins: Vec<OutcomePlugin>,
    /// The key of the resource that contains the upstream, such as `upstreams/u1` or `routes/r1`; or of the hub: `hubs/h1`.
    pub upstream: Option<String>,
    upstream_content: Option<Fingerprint>,
    /// Those that the options of the plugins refer to.
    pub(super) upstreams_of_plugins: Vec<NamedUpstream>,
}

/// What a route does with a request beside its plugins and its upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RouteSettings {
    timeouts: Option<Timeouts>,
    request_timeout: Option<Duration>,
    enable_websocket: Option<bool>,
    allow_encoded_slashes: Option<bool>,
    merge_slashes: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomePlugin {
    pub name: Box<str>,
    /// The kind and id of the resource that contains it, such as `route/r1`.
    pub source: String,
    content: Fingerprint,
}

/// A request under the configuration in use and under a candidate.
#[derive(Clone, Debug)]
pub struct RoutingComparison {
    pub request: RequestDescription,
    pub before: RoutingOutcome,
    pub after: RoutingOutcome,
}

impl RoutingComparison {
    /// What the candidate changes for the request: `route`, `plugins`, `upstream`, `upstreams_of_plugins`. The position of a resource
    /// without an id in a file is no difference.
    pub fn differences(&self) -> Vec<&'static str> {
        let RoutingComparison { before, after, .. } = self;
        let named = |name: Option<&str>| name.map(|name| without_position(name).to_owned());
        let route = |of: &RoutingOutcome| (named(of.route.as_deref()), of.settings.clone());
        let upstream = |of: &RoutingOutcome| (named(of.upstream.as_deref()), of.upstream_content);
        let plugin = |of: &OutcomePlugin| (of.name.clone(), named(Some(&of.source)), of.content);
        let plugins = |of: &RoutingOutcome| of.plugins.iter().map(plugin).collect::<Vec<_>>();
        let all = [
            ("route", route(before) != route(after)),
            ("plugins", plugins(before) != plugins(after)),
            ("upstream", upstream(before) != upstream(after)),
            ("upstreams_of_plugins", before.upstreams_of_plugins != after.upstreams_of_plugins),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// The name of a resource without the id that stands for its position in a list of a file, such as `route/` of `route/arr_7`.
fn without_position(name: &str) -> &str {
    let (kind, id) = name.split_at(name.rfind('/').map_or(0, |slash| slash + 1));
    if is_position_id(id) { kind } else { name }
}

/// How a document, compiled to `snapshot`, handles a request. `resources` are those of the document.
///
/// # Errors
/// If the request is malformed, and would be rejected regardless of routes.
pub(crate) fn outcome(
    snapshot: &Snapshot,
    resources: &ResourceIndex,
    registry: &Registry,
    request: &RequestDescription,
) -> Result<RoutingOutcome, String> {
    let exchange = exchange(&resources.document.settings, request)?;
    let route = route_of(snapshot, &exchange);
    let mut outcome = RoutingOutcome { route: route.map(Box::from), ..Default::default() };
    for PluginRow { plugin: name, source, upstreams, content, .. } in
        rows(resources, registry, route).into_iter().filter(|row| !row.off)
    {
        outcome.plugins.push(OutcomePlugin { name, source, content });
        outcome.upstreams_of_plugins.extend(upstreams);
    }
    let Some(route) = route.and_then(|id| resources.routes.find(id)) else { return Ok(outcome) };
    outcome.settings = Some(settings_of(resources, route));
    if let Some((upstream, content)) = target(resources, route) {
        (outcome.upstream, outcome.upstream_content) = (Some(upstream), content);
    }
    Ok(outcome)
}

fn settings_of(resources: &ResourceIndex, route: &RouteSpec) -> RouteSettings {
    let RouteSpec {
        timeouts,
        request_timeout,
        enable_websocket,
        allow_encoded_slashes,
        merge_slashes,
        // What the route is called, and which requests it takes.
        origin: _,
        content: _,
        id: _,
        name: _,
        uris: _,
        hosts: _,
        listeners: _,
        methods: _,
        remote_addrs: _,
        priority: _,
        vars: _,
        enabled: _,
        // Compared apart from these settings.
        plugins: _,
        plugin_config_id: _,
        service_id,
        upstream_id: _,
        upstream: _,
        hub_id: _,
    } = route;
    let of_service = || resources.services.referred(service_id)?.enable_websocket;
    RouteSettings {
        timeouts: *timeouts,
        request_timeout: *request_timeout,
        enable_websocket: enable_websocket.or_else(of_service),
        allow_encoded_slashes: *allow_encoded_slashes,
        merge_slashes: *merge_slashes,
    }
}

/// Where a route leads to, in the order of precedence. A hub has no content that a change of a resource could modify.
pub(super) fn target(resources: &ResourceIndex, route: &RouteSpec) -> Option<NamedUpstream> {
    let inline = |upstream: &UpstreamSpec, list: &str, id: &str| (format!("{list}/{id}"), Some(upstream.content));
    if let Some(hub) = &route.hub_id {
        return Some((format!("hubs/{}", hub.id), None));
    }
    if let Some(upstream) = &route.upstream {
        return Some(inline(upstream, "routes", &route.id));
    }
    if let Some(upstream) = &route.upstream_id {
        return Some(resources.upstream(upstream));
    }
    let service = resources.services.referred(&route.service_id)?;
    match (&service.upstream, &service.upstream_id) {
        (Some(upstream), _) => Some(inline(upstream, "services", &service.id)),
        (None, Some(upstream)) => Some(resources.upstream(upstream)),
        (None, None) => None,
    }
}
