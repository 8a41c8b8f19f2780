//! Finds routes that make calls of gRPC of their requests, for an upstream that does not speak HTTP/2.

use super::Doubts;
use super::streams::plugins_of;
use crate::document::{RouteSpec, UpstreamSpec};
use crate::text::read::join;

const PLUGIN: &str = "grpc-transcode";

pub(super) fn without_http2(doubts: &Doubts) {
    for route in doubts.enabled_routes() {
        let plugins = plugins_of(doubts, route);
        let Some((origin, _)) = plugins.iter().find(|(_, plugin)| &*plugin.name == PLUGIN) else { continue };
        if upstream_of(doubts, route).is_none_or(|upstream| upstream.http2) {
            continue;
        }
        let path = join(&origin.path, &format!("plugins.{PLUGIN}"));
        let problem = format!("the upstream of {} does not speak gRPC by its `scheme`", doubts.named(&route.origin));
        let advice = "set `scheme: grpc`, or `grpcs` for TLS, in the upstream".to_owned();
        doubts.report(&path, doubts.document.place_at(&path), problem, advice);
    }
}

/// The upstream of a route, if it has one by itself or by its service.
fn upstream_of<'a>(doubts: &Doubts<'a>, route: &'a RouteSpec) -> Option<&'a UpstreamSpec> {
    let named = |id: &str| doubts.document.upstreams.iter().find(|upstream| *upstream.id == *id);
    if let Some(upstream) = route.upstream.as_deref() {
        return Some(upstream);
    }
    if let Some(reference) = &route.upstream_id {
        return named(&reference.id);
    }
    let service = doubts.resources.service_of(route)?;
    service.upstream.as_ref().or_else(|| named(&service.upstream_id.as_ref()?.id))
}
