//! Finds hosts whose clients need a certificate, and which a listener without TLS serves to clients without one. What is in doubt is not
//! told: a condition or a plugin that looks at the connection may ask for the certificate in its own way.

use std::borrow::Cow;
use std::collections::HashMap;

use regex::Regex;
use weir_gateway::snapshot::ListenerProtocol;
use weir_net::tls::ClientDemand;
use weir_plugin::{Variable, Variables};

use super::Doubts;
use super::consumers::effective_plugins;
use crate::document::{Listen, ListenAddress, PluginSpec, RouteSpec, Ssl};
use crate::text::read::join;

/// A listener without TLS, and its id and hosts if it is a resource.
struct CleartextListener<'a> {
    listen: &'a Listen,
    id: Option<&'a str>,
    hosts: &'a [String],
}

pub(super) fn not_needed_without_tls(doubts: &Doubts) {
    let listeners = cleartext_listeners(doubts);
    let names = ServerNames::of(doubts);
    if listeners.is_empty() {
        return;
    }
    for ssl in doubts.document.ssls.iter().filter(|ssl| is_served(ssl) && demands(ssl)) {
        if let Some((route, listener)) = reached(doubts, &names, ssl, &listeners) {
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

fn is_served(ssl: &Ssl) -> bool {
    ssl.enabled && !ssl.for_upstreams
}

/// Whether an entry demands certificates wherever its names are served: one for some listeners leaves the others open on purpose.
fn demands(ssl: &Ssl) -> bool {
    ssl.listeners.is_empty() && ssl.clients.as_ref().is_some_and(|clients| clients.demand == ClientDemand::Valid)
}

/// The entries of `ssls` by their server names.
struct ServerNames<'a>(HashMap<&'a str, Vec<&'a Ssl>>);

impl<'a> ServerNames<'a> {
    fn of(doubts: &Doubts<'a>) -> ServerNames<'a> {
        let mut by_name: HashMap<&str, Vec<&Ssl>> = HashMap::new();
        for ssl in doubts.document.ssls.iter().filter(|ssl| is_served(ssl)) {
            ssl.names.iter().for_each(|name| by_name.entry(&name.name).or_default().push(ssl));
        }
        ServerNames(by_name)
    }

    /// Whether handshakes for a host, or for one label below `*.example`, are served by this entry, or by others that demand
    /// certificates as well.
    fn are_of(&self, ssl: &Ssl, host: &str) -> bool {
        let wildcard = host.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        let names = [Some(host), wildcard.as_deref(), Some("*")];
        let nearest = names.into_iter().flatten().find_map(|name| self.0.get(name));
        nearest.is_some_and(|found| found.iter().all(|one| demands(one)) && found.iter().any(|one| one.id == ssl.id))
    }

    /// The hosts of a route for which an entry demands certificates. A route without hosts has all of the entry.
    fn demanded<'h>(&self, ssl: &'h Ssl, hosts: &'h [String]) -> Vec<&'h str> {
        let own = ssl.names.iter().map(|name| &*name.name);
        let is_of_route = |name: &&str| hosts.is_empty() || hosts.iter().any(|host| covers(host, name));
        let of_entry = own.filter(is_of_route);
        of_entry.chain(hosts.iter().map(|host| &**host)).filter(|host| self.are_of(ssl, host)).collect()
    }
}

/// A route that serves a host of this entry on one of the listeners. Routes for any host count if none is for these hosts alone.
fn reached<'a, 'l>(
    doubts: &Doubts<'a>,
    names: &ServerNames,
    ssl: &Ssl,
    listeners: &'l [CleartextListener<'a>],
) -> Option<(&'a RouteSpec, &'l CleartextListener<'a>)> {
    let is_own = |route: &&RouteSpec| {
        let hosts = hosts(doubts, route);
        !hosts.is_empty() && !names.demanded(ssl, hosts).is_empty()
    };
    let mut routes: Vec<&RouteSpec> = doubts.enabled_routes().filter(is_own).collect();
    if routes.is_empty() {
        routes = doubts.enabled_routes().filter(|route| hosts(doubts, route).is_empty()).collect();
    }
    routes.into_iter().filter(|route| !is_exempt(ssl, route) && !asks_itself(doubts, route)).find_map(|route| {
        let demanded = names.demanded(ssl, hosts(doubts, route));
        let serves = |listener: &&CleartextListener| {
            let is_named = |id: &str| route.listeners.iter().any(|named| *named.id == *id);
            let is_for_route = route.listeners.is_empty() || listener.id.is_some_and(is_named);
            let meets = |host: &str, name: &str| covers(host, name) || covers(name, host);
            let has_host = || listener.hosts.iter().any(|host| demanded.iter().any(|name| meets(host, name)));
            is_for_route
                && !demanded.is_empty()
                && (listener.hosts.is_empty() || has_host())
                && may_take(route, listener)
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

/// Whether a host of a route or a listener, maybe with `*` for labels at its start, has this name.
fn covers(host: &str, name: &str) -> bool {
    let is_below = |end: &str| name.len() > end.len() && name.ends_with(end);
    host == name || host == "*" || host.strip_prefix('*').is_some_and(is_below)
}

/// Whether an entry needs no certificate at any path of a route.
fn is_exempt(ssl: &Ssl, route: &RouteSpec) -> bool {
    let patterns = ssl.clients.iter().flat_map(|clients| &clients.except);
    let patterns: Vec<Regex> = patterns.filter_map(|(pattern, _)| Regex::new(pattern).ok()).collect();
    route.uris.iter().all(|uri| patterns.iter().any(|pattern| pattern.is_match(uri.trim_end_matches('*'))))
}

/// What is known of every request to a listener without TLS.
struct CleartextRequest {
    port: String,
}

impl CleartextRequest {
    fn knows(variable: &Variable) -> bool {
        matches!(variable, Variable::Scheme | Variable::Https | Variable::ServerPort)
            || variable.to_string().starts_with("ssl_")
    }
}

impl Variables for CleartextRequest {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        match variable {
            Variable::Scheme => Some(Cow::Borrowed(b"http")),
            Variable::ServerPort => Some(Cow::Borrowed(self.port.as_bytes())),
            _ => None,
        }
    }
}

/// Whether the condition of a route lets a request without TLS pass.
fn may_take(route: &RouteSpec, listener: &CleartextListener) -> bool {
    let request = CleartextRequest { port: listener.listen.address.port().to_string() };
    route.vars.as_ref().is_none_or(|vars| vars.may_hold(&request, &CleartextRequest::knows))
}

/// Whether the plugins of a route look at the connection, or answer all requests without an upstream.
fn asks_itself(doubts: &Doubts, route: &RouteSpec) -> bool {
    effective_plugins(doubts, route).iter().any(|(_, plugin)| {
        let is_filtered = plugin.filter.as_ref();
        let by_filter = is_filtered.is_some_and(|filter| filter.variables().into_iter().any(CleartextRequest::knows));
        by_filter || decides_by_the_connection(doubts, plugin) || is_filtered.is_none() && needs_no_proof(plugin)
    })
}

/// Plugins that may refuse a request, or give it another upstream or answer, by conditions or by the word of a service; those in
/// WebAssembly files may as well.
const DECIDING: [&str; 7] =
    ["ext-authz", "ext-proc", "fault-injection", "forward-auth", "opa", "traffic-split", "workflow"];

/// Whether a plugin decides by facts of the connection. One that only passes them on, such as to the upstream or into a log, does not.
fn decides_by_the_connection(doubts: &Doubts, plugin: &PluginSpec) -> bool {
    let is_in_file = doubts.document.settings.wasm.plugins.iter().any(|of_file| of_file.name == plugin.name);
    let text = plugin.options.to_string();
    (DECIDING.contains(&&*plugin.name) || is_in_file)
        && ["ssl_client_", "[\"scheme\",", "[\"https\",", "$https", "$scheme"].iter().any(|word| text.contains(word))
}

fn needs_no_proof(plugin: &PluginSpec) -> bool {
    match &*plugin.name {
        "mtls-auth" => plugin.options["anonymous_consumer"].is_null(),
        "redirect" | "mocking" => true,
        _ => false,
    }
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
