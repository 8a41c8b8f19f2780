//! Finds hosts whose clients need a certificate, and which a listener without TLS serves to clients without one.

use weir_gateway::snapshot::ListenerProtocol;
use weir_net::tls::ClientDemand;
use weir_plugin::Variable;

use super::Doubts;
use super::consumers::effective_plugins;
use crate::document::{Listen, ListenAddress, RouteSpec, Ssl};
use crate::text::read::join;

/// A listener without TLS, and its id and hosts if it is a resource.
struct CleartextListener<'a> {
    listen: &'a Listen,
    id: Option<&'a str>,
    hosts: &'a [String],
}

pub(super) fn not_needed_without_tls(doubts: &Doubts) {
    let listeners = cleartext_listeners(doubts);
    if listeners.is_empty() {
        return;
    }
    let entries = doubts.document.ssls.iter().filter(|ssl| ssl.enabled && !ssl.for_upstreams);
    for ssl in entries.filter(|ssl| ssl.clients.as_ref().is_some_and(|clients| clients.demand == ClientDemand::Valid)) {
        let names: Vec<&str> = ssl.names.iter().map(|name| &*name.name).collect();
        if let Some((route, listener)) = reached(doubts, &names, &listeners) {
            report(doubts, ssl, route, listener);
        }
    }
}

fn cleartext_listeners<'a>(doubts: &Doubts<'a>) -> Vec<CleartextListener<'a>> {
    let of_settings =
        doubts.document.settings.listen.iter().map(|listen| CleartextListener { listen, id: None, hosts: &[] });
    let of_resources = doubts.document.listeners.iter().map(|listener| CleartextListener {
        listen: &listener.listen,
        id: Some(&listener.id),
        hosts: &listener.hosts,
    });
    let is_cleartext = |listener: &CleartextListener| {
        matches!(listener.listen.settings.protocol, ListenerProtocol::Http | ListenerProtocol::Http2)
    };
    of_settings.chain(of_resources).filter(is_cleartext).collect()
}

/// A route that serves one of these hosts on one of the listeners. Routes for any host count if none is for these hosts alone.
fn reached<'a, 'l>(
    doubts: &Doubts<'a>,
    names: &[&str],
    listeners: &'l [CleartextListener<'a>],
) -> Option<(&'a RouteSpec, &'l CleartextListener<'a>)> {
    let is_own = |route: &&RouteSpec| hosts(doubts, route).iter().any(|host| names.iter().any(|name| meet(name, host)));
    let mut routes: Vec<&RouteSpec> = doubts.enabled_routes().filter(is_own).collect();
    if routes.is_empty() {
        routes = doubts.enabled_routes().filter(|route| hosts(doubts, route).is_empty()).collect();
    }
    routes.into_iter().filter(|route| !asks_itself(doubts, route)).find_map(|route| {
        let serves = |listener: &&CleartextListener| {
            let is_named = |id: &str| route.listeners.iter().any(|named| *named.id == *id);
            let is_for_route = route.listeners.is_empty() || listener.id.is_some_and(is_named);
            let has_host = || listener.hosts.iter().any(|host| names.iter().any(|name| meet(name, host)));
            is_for_route && (listener.hosts.is_empty() || has_host())
        };
        listeners.iter().find(serves).map(|listener| (route, listener))
    })
}

fn hosts<'a>(doubts: &Doubts<'a>, route: &'a RouteSpec) -> &'a [String] {
    match doubts.resources.service_of(route) {
        Some(service) if route.hosts.is_empty() => &service.hosts,
        _ => &route.hosts,
    }
}

/// Whether some host has both names, either of which may be a wildcard.
fn meet(one: &str, other: &str) -> bool {
    let covers = |wildcard: &str, name: &str| {
        wildcard == "*" || wildcard.strip_prefix('*').is_some_and(|end| name.len() > end.len() && name.ends_with(end))
    };
    one == other || covers(one, other) || covers(other, one)
}

/// Whether a route takes no request without TLS, or asks for the certificate.
fn asks_itself(doubts: &Doubts, route: &RouteSpec) -> bool {
    let is_of_connection = |variable: &&Variable| {
        use Variable::{Https, Scheme, ServerPort};
        matches!(variable, Scheme | Https | ServerPort) || variable.to_string().starts_with("ssl_")
    };
    let by_condition = route.vars.as_ref().is_some_and(|vars| vars.variables().iter().any(is_of_connection));
    by_condition
        || effective_plugins(doubts, route).iter().any(|(_, plugin)| match &*plugin.name {
            "mtls-auth" => plugin.options["anonymous_consumer"].is_null(),
            "redirect" => plugin.options["http_to_https"] == true,
            _ => false,
        })
}

fn report(doubts: &Doubts, ssl: &Ssl, route: &RouteSpec, listener: &CleartextListener) {
    let path = join(&ssl.origin.path, "client");
    let address = match listener.listen.address {
        ListenAddress::Everywhere(port) => format!(":{port}"),
        ListenAddress::One(address) => address.to_string(),
    };
    let problem = format!(
        "clients without a certificate reach {} at `{address}` ({}), which is without TLS",
        doubts.named(&route.origin),
        listener.listen.origin.path
    );
    let advice = "limit the route to listeners with TLS by `listeners`, give it `redirect: { http_to_https: true }`, or the condition \
                  `vars: [[ssl_client_verify, \"==\", SUCCESS]]`";
    doubts.report(&path, doubts.document.place_at(&path), problem, advice.to_owned());
}
