//! Finds stream routes that no connection can reach, since no listener brings one.

use weir_gateway::snapshot::{ListenerProtocol, Transport};

use super::Doubts;
use crate::document::{Document, StreamRouteSpec, UpstreamSpec};
use crate::text::read::join;

/// A listener for stream routes.
struct StreamListener<'a> {
    /// That of the resource; `None` if it is one of the setting `listen`.
    id: Option<&'a str>,
    port: u16,
    protocol: ListenerProtocol,
}

impl StreamListener<'_> {
    fn reads_names(&self) -> bool {
        matches!(self.protocol, ListenerProtocol::Tls | ListenerProtocol::TlsByRoute) || self.passes_tls()
    }

    fn passes_tls(&self) -> bool {
        matches!(self.protocol, ListenerProtocol::TlsPassthrough | ListenerProtocol::TlsByRoute)
    }
}

pub(super) fn without_a_listener(doubts: &Doubts) {
    let listeners = listeners(doubts.document);
    for route in &doubts.stream_routes {
        if let Some((key, problem, advice)) = finding(&listeners, route, transport(doubts, route)) {
            let path = join(&route.origin.path, key);
            let problem = format!("no connection reaches this stream route: {problem}");
            doubts.report(&path, doubts.document.place_at(&path), problem, advice);
        }
    }
}

fn listeners(document: &Document) -> Vec<StreamListener<'_>> {
    let of_settings = document.settings.listen.iter().map(|listen| (None, listen));
    let of_resources = document.listeners.iter().map(|listener| (Some(&*listener.id), &listener.listen));
    let all = of_settings.chain(of_resources);
    all.map(|(id, listen)| StreamListener { id, port: listen.address.port(), protocol: listen.settings.protocol })
        .filter(|listener| listener.protocol.is_stream())
        .collect()
}

/// The key that no listener fits, the problem, and the advice.
fn finding(
    listeners: &[StreamListener],
    route: &StreamRouteSpec,
    transport: Option<Transport>,
) -> Option<(&'static str, String, String)> {
    let is_named = |listener: &&StreamListener| {
        route.listeners.is_empty() || route.listeners.iter().any(|named| listener.id == Some(&*named.id))
    };
    // Port 0 is one that the system chooses.
    let has_port =
        |listener: &&StreamListener| route.server_port.is_none_or(|port| listener.port == port || listener.port == 0);
    let mut left: Vec<&StreamListener> = listeners.iter().filter(is_named).filter(has_port).collect();
    if left.is_empty() {
        let (key, place) = match route.server_port {
            Some(port) => ("server_port", format!("has the port {port}")),
            None => ("listeners", "is there".to_owned()),
        };
        let advice = "add one to `listen`, as `{ address: \":5432\", protocol: tcp }`".to_owned();
        return Some((key, format!("no listener with `protocol: tcp` or `udp` {place}"), advice));
    }
    left.retain(|listener| transport.is_none_or(|wanted| listener.protocol.transport() == wanted));
    if left.is_empty() {
        let (wanted, brought) = match transport {
            Some(Transport::Udp) => ("datagrams", "tcp"),
            _ => ("connections over TCP", "udp"),
        };
        let problem =
            format!("its upstream takes {wanted} by its `scheme`, and the listeners have `protocol: {brought}`");
        return Some(("upstream", problem, "use the same for both".to_owned()));
    }
    if route.tls_passthrough && !left.iter().any(|listener| listener.passes_tls()) {
        let problem = "no listener passes TLS through".to_owned();
        return Some(("tls_passthrough", problem, "set `tls_passthrough: true` at the listener".to_owned()));
    }
    if !route.snis.is_empty() && !left.iter().any(|listener| listener.reads_names()) {
        let problem = "it is for a server name, and no listener has `tls` or `tls_passthrough`".to_owned();
        return Some(("sni", problem, "set one of them at the listener, or remove the name".to_owned()));
    }
    None
}

/// What the upstream of a stream route takes; `None` if it does not say it.
fn transport(doubts: &Doubts, route: &StreamRouteSpec) -> Option<Transport> {
    let resources = &doubts.resources;
    let own = route.upstream.as_deref().or_else(|| resources.upstream(&route.upstream_id.as_ref()?.id));
    let of_service = || {
        let service = resources.service(&route.service_id.as_ref()?.id)?;
        service.upstream.as_ref().or_else(|| resources.upstream(&service.upstream_id.as_ref()?.id))
    };
    let upstream: &UpstreamSpec = own.or_else(of_service)?;
    upstream.scheme.of_streams()
}
