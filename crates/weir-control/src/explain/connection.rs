//! Explains which stream route takes a connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use weir_gateway::snapshot::{Route, Snapshot, Target, Transport};
use weir_plugin::Registry;

use crate::compile::{Compiled, compile};
use crate::document::CompleteDocument;
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
    Ok(ConnectionExplanation {
        transport: question.transport,
        matching: routes.iter().map(|route| route.facts.route_id.clone()).collect(),
        upstream: first.and_then(|route| upstream(&snapshot, route)),
        plugins: first.map(plugins).unwrap_or_default(),
    })
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
        let ConnectionExplanation { transport, matching, upstream, plugins } = self;
        let (subject, fate) = match transport {
            Transport::Tcp => ("connection", "is reset"),
            Transport::Udp => ("datagram", "is dropped"),
        };
        let Some((chosen, others)) = matching.split_first() else {
            return writeln!(f, "No stream route takes this {subject}; it {fate}.");
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
