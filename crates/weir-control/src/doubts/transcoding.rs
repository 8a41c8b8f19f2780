//! Finds routes that make calls of gRPC of their requests, for an upstream that does not speak HTTP/2.

use super::Doubts;
use super::streams::plugins_of;
use crate::document::TRANSCODING;
use crate::text::read::join;

pub(super) fn without_http2(doubts: &Doubts) {
    for route in doubts.enabled_routes() {
        let plugins = plugins_of(doubts, route);
        let Some((origin, _)) = plugins.iter().find(|(_, plugin)| &*plugin.name == TRANSCODING.plugin) else {
            continue;
        };
        if doubts.resources.upstream_of(route).is_none_or(|upstream| upstream.http2) {
            continue;
        }
        let path = join(&origin.path, &format!("plugins.{}", TRANSCODING.plugin));
        let problem = format!("the upstream of {} does not speak gRPC by its `scheme`", doubts.named(&route.origin));
        let advice = "set `scheme: grpc`, or `grpcs` for TLS, in the upstream".to_owned();
        doubts.report(&path, doubts.document.place_at(&path), problem, advice);
    }
}
