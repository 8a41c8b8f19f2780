//! Finds routes that match the same requests as an earlier one, and therefore never receive any.

use std::collections::HashMap;

use weir_gateway::route::uri_without_names;

use super::Doubts;
use crate::document::RouteSpec;
use crate::text::fingerprint::Fingerprint;

/// Compares the routes with each other, as long as they have no more than `most_pairs` of host and uri together.
pub(super) fn indistinguishable(doubts: &Doubts, most_pairs: usize) {
    let mut left = most_pairs;
    // Earlier routes by host, path, priority and conditions; none of them takes all methods of another.
    let mut places: HashMap<Fingerprint, Vec<&RouteSpec>> = HashMap::new();
    for route in doubts.enabled_routes() {
        let hosts = match doubts.resources.service_of(route) {
            Some(service) if route.hosts.is_empty() => &service.hosts,
            _ => &route.hosts,
        };
        let hosts: Vec<Option<&String>> = if hosts.is_empty() { vec![None] } else { hosts.iter().map(Some).collect() };
        let Some(rest) = left.checked_sub(hosts.len().saturating_mul(route.uris.len())) else { return };
        left = rest;
        let conditions = conditions(route);
        for (index, uri) in route.uris.iter().enumerate() {
            let Some(uri) = uri_without_names(uri) else { continue };
            let place = |host: &Option<&String>, conditions| Fingerprint::of((host, &uri, route.priority, conditions));
            let taker = |host: &Option<&String>| {
                let keys = [place(host, None), place(host, conditions)];
                let mut there = keys.iter().filter_map(|key| places.get(key)).flatten();
                there.find(|earlier| takes_all_methods(earlier, route)).copied()
            };
            let takers: Option<Vec<&RouteSpec>> = hosts.iter().map(taker).collect();
            match takers {
                Some(takers) => report(doubts, route, index, takers[0]),
                None => hosts.iter().for_each(|host| places.entry(place(host, conditions)).or_default().push(route)),
            }
        }
    }
}

/// `None` for a route without conditions on the client's address, the listener and variables.
fn conditions(route: &RouteSpec) -> Option<Fingerprint> {
    let vars = route.vars.as_ref().map(ToString::to_string);
    let mut listeners: Vec<&str> = route.listeners.iter().map(|listener| &*listener.id).collect();
    listeners.sort_unstable();
    let has_some = vars.is_some() || !route.remote_addrs.is_empty() || !listeners.is_empty();
    has_some.then(|| Fingerprint::of((vars, &route.remote_addrs, listeners)))
}

fn takes_all_methods(earlier: &RouteSpec, route: &RouteSpec) -> bool {
    let takes = |method: &String| earlier.methods.contains(method);
    earlier.methods.is_empty() || !route.methods.is_empty() && route.methods.iter().all(takes)
}

fn report(doubts: &Doubts, route: &RouteSpec, index: usize, taker: &RouteSpec) {
    let uri = &route.uris[index];
    let (problem, advice) = match std::ptr::eq(route, taker) {
        true => (format!("`{uri}` matches the same requests as another entry of `uris`"), "leave one of the two out"),
        false => (
            format!(
                "no request with the path `{uri}` reaches this route: {} takes all of them",
                doubts.named(&taker.origin)
            ),
            "remove one of the two, or give them different `hosts`, `methods`, `vars` or `priority`",
        ),
    };
    doubts.report_uri(route, index, problem, advice.to_owned());
}
