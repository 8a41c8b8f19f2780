//! Finds upstreams that no request can be sent to: they have no nodes, or only drained ones.

use super::Doubts;
use crate::document::UpstreamSpec;
use crate::text::read::join;

pub(super) fn without_a_usable_node(doubts: &Doubts) {
    let of_routes = doubts.routes.iter().filter_map(|route| route.upstream.as_deref());
    let of_stream_routes = doubts.stream_routes.iter().filter_map(|route| route.upstream.as_deref());
    let of_services = doubts.services.iter().filter_map(|service| service.upstream.as_ref());
    let of_plugins = doubts.enabled_plugins().flat_map(|(_, plugin)| &plugin.shares);
    let of_plugins = of_plugins.filter_map(|share| share.upstream.as_ref());
    let listed = doubts.upstreams.iter().copied();
    for upstream in of_routes.chain(of_stream_routes).chain(of_services).chain(of_plugins).chain(listed) {
        look(doubts, upstream);
    }
}

fn look(doubts: &Doubts, upstream: &UpstreamSpec) {
    let is_found_elsewhere = upstream.service.is_some() || upstream.nodes_file.is_some();
    if is_found_elsewhere || upstream.nodes.iter().any(|node| node.weight > 0) {
        return;
    }
    let path = join(&upstream.origin.path, "nodes");
    let refused = "every request is answered with 503, and streams are closed";
    let (problem, advice) = match upstream.nodes.is_empty() {
        true => (
            format!("is empty: {refused}"),
            "name an endpoint, as `nodes: { \"10.0.0.1:8080\": 1 }`, or write `service_name` or `nodes_file`",
        ),
        false => (
            format!("has only nodes with the weight 0, which are drained: {refused}"),
            "give one of them a weight above 0",
        ),
    };
    doubts.report(&path, doubts.document.place_at(&path), problem, advice.to_owned());
}
