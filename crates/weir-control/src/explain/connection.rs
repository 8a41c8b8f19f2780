//! Explains which stream route takes a connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use weir_gateway::snapshot::{Route, Snapshot, Target, Transport};
use weir_plugin::Registry;

use crate::compile::{Compiled, compile};
use crate::document::{CompleteDocument, Document, StreamRouteSpec};
use crate::text::diagnostic::Diagnostic;

/// The description of a hypothetical connection without HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionDescription {
    /// A connection, or a datagram.
    pub transport: Transport,
    /// Where the client connects.
    pub to: SocketAddr,
    /// The client's address.
    pub from: IpAddr,
    /// The server name in its TLS handshake.
    pub server_name: Option<String>,
}

/// The result, whose `Display` prints a short table.
#[derive(Debug)]
pub struct ConnectionExplanation {
    transport: Transport,
    port: u16,
    /// Whether a listener for stream routes has the port.
    is_listened_on: bool,
    /// The stream routes that do not match, with their kinds and ids, and the reasons.
    rejected: Vec<(String, &'static str)>,
    /// The stream routes that match, the most specific first, with their kinds and ids.
    matching: Vec<Box<str>>,
    /// The upstream of the first one.
    upstream: Option<Box<str>>,
    /// The plugins of the first one.
    plugins: Vec<&'static str>,
}

/// Explains how a connection would be handled, without opening one.
///
/// # Errors
/// If the document is invalid.
pub fn explain_connection(
    document: &CompleteDocument,
    registry: &Registry,
    question: &ConnectionDescription,
) -> Result<ConnectionExplanation, Vec<Diagnostic>> {
    let Compiled { snapshot, .. } = compile(document, registry, None)?;
    let server_name = question.server_name.as_deref().map(str::to_ascii_lowercase);
    let lookup = snapshot.stream_lookup(question.transport, question.to, question.from, server_name.as_deref());
    let routes: Vec<&Route> = snapshot
        .streams
        .of(question.transport)
        .matching(&lookup)
        .map(|taken| &*snapshot.routes[taken.route as usize])
        .collect();
    let first = routes.first().copied();
    let matching: Vec<Box<str>> = routes.iter().map(|route| route.facts.route_id.clone()).collect();
    Ok(ConnectionExplanation {
        transport: question.transport,
        port: question.to.port(),
        is_listened_on: is_listened_on(document, question),
        rejected: rejected(document, question, server_name.as_deref(), &matching),
        matching,
        upstream: first.and_then(|route| upstream(&snapshot, route)),
        plugins: first.map(plugins).unwrap_or_default(),
    })
}

/// Whether a listener for stream routes is at the address. An address that says its port alone is at any of them.
fn is_listened_on(document: &Document, question: &ConnectionDescription) -> bool {
    let of_resources = document.listeners.iter().map(|listener| &listener.listen);
    document.settings.listen.iter().chain(of_resources).any(|listen| {
        let address = listen.address.socket_addr();
        let is_at =
            address.ip().is_unspecified() || question.to.ip().is_unspecified() || address.ip() == question.to.ip();
        let protocol = listen.settings.protocol;
        address.port() == question.to.port()
            && is_at
            && protocol.is_stream()
            && protocol.transport() == question.transport
    })
}

/// The most stream routes that are told with the reason why they do not match.
const MOST_REJECTED: usize = 20;

fn rejected(
    document: &Document,
    question: &ConnectionDescription,
    server_name: Option<&str>,
    matching: &[Box<str>],
) -> Vec<(String, &'static str)> {
    let named = document.stream_routes.iter().map(|route| (format!("stream_route/{}", route.id), route));
    named
        .filter(|(name, _)| !matching.iter().any(|known| **known == **name))
        .take(MOST_REJECTED)
        .map(|(name, route)| (name, reason(route, question, server_name)))
        .collect()
}

/// The first condition of a stream route that does not hold.
fn reason(route: &StreamRouteSpec, question: &ConnectionDescription, server_name: Option<&str>) -> &'static str {
    let is_name = |written: &String| {
        let written = written.to_ascii_lowercase();
        server_name.is_some_and(|name| match written.strip_prefix('*') {
            Some(suffix) => name.ends_with(suffix),
            None => name == written,
        })
    };
    if route.server_port.is_some_and(|port| port != question.to.port()) {
        "another port"
    } else if route.server_addr.is_some_and(|network| !network.contains(&question.to.ip())) {
        "another address of the node (`server_addr`)"
    } else if route.remote_addr.is_some_and(|network| !network.contains(&question.from)) {
        "another address of the client (`remote_addr`)"
    } else if !route.snis.is_empty() && server_name.is_none() {
        "needs a server name (`--sni`)"
    } else if !route.snis.is_empty() && !route.snis.iter().any(is_name) {
        "another server name"
    } else if !route.listeners.is_empty() {
        "another listener, or an upstream of another transport"
    } else {
        "an upstream of another transport (`scheme`)"
    }
}

fn upstream(snapshot: &Snapshot, route: &Route) -> Option<Box<str>> {
    match route.target {
        Target::Upstream(number) => Some(snapshot.upstreams[number].name.clone()),
        Target::Responder(_) | Target::Nothing => None,
    }
}

fn plugins(route: &Route) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = route.chain.request.iter().map(|link| link.name).collect();
    let of_log = route.chain.log.iter().map(|link| link.name).filter(|name| !names.contains(name));
    let of_log: Vec<&'static str> = of_log.collect();
    names.extend(of_log);
    names
}

impl fmt::Display for ConnectionExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionExplanation { transport, port, is_listened_on, rejected, matching, upstream, plugins } = self;
        let (subject, protocol, fate) = match transport {
            Transport::Tcp => ("connection", "tcp", "is refused: with TLS by an alert, otherwise by a reset"),
            Transport::Udp => ("datagram", "udp", "is dropped"),
        };
        if !is_listened_on {
            writeln!(f, "No listener with `protocol: {protocol}` is at port {port} of this address.")?;
        }
        let Some((chosen, others)) = matching.split_first() else {
            writeln!(f, "No stream route takes this {subject}; it {fate}.")?;
            return rejected.iter().try_for_each(|(name, reason)| writeln!(f, "  {name:<32} no match: {reason}"));
        };
        writeln!(f, "Stream routes that match:")?;
        writeln!(f, "  {chosen:<32} chosen")?;
        for other in others {
            writeln!(f, "  {other:<32} outranked: the conditions are less specific")?;
        }
        match upstream {
            Some(name) => writeln!(f, "Upstream: {name}")?,
            None => writeln!(f, "It has no upstream; the {subject} {fate}.")?,
        }
        match plugins.is_empty() {
            true => Ok(()),
            false => writeln!(f, "Plugins in the order in which they run: {}", plugins.join(", ")),
        }
    }
}
