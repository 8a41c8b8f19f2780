//! Explains how a request is routed, and which plugins run for it.

mod comparison;
mod connection;
mod explanation;
mod handshake;
mod outcome;
mod resource_index;
mod unreached;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use weir_gateway::route::{Candidate, CandidateVerdict, Lookup, TieBreak};
use weir_gateway::snapshot::{ChainReach, Snapshot};
use weir_plugin::{Exchange, Registry, Stage, Tls};
use weir_proto::h1::parse_request;

use crate::compile::{Compiled, compile, registry_of};
use crate::document::{CompleteDocument, NodeSettings, PluginSet, PluginSpec};
use crate::text::diagnostic::Diagnostic;
use crate::text::fingerprint::Fingerprint;

pub(crate) use comparison::{RoutingOutcomes, compared};
pub(crate) use explanation::NearPath;
use explanation::{ExplainedCandidate, ExplainedRow};
pub(crate) use handshake::HandshakeNote;
pub(crate) use outcome::outcome;
pub(crate) use resource_index::ResourceIndex;
pub(crate) use unreached::UnreachedPlugins;

pub use comparison::{ComparedRequest, DocumentRouting, compare_documents, described, told};
pub use connection::{ConnectionDescription, ConnectionExplanation, explain_connection};
pub use explanation::Explanation;
pub use outcome::{OutcomePlugin, RoutingComparison, RoutingOutcome};

/// The description of a hypothetical request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestDescription {
    pub method: String,
    /// `https://host/path?query`; the default scheme is http.
    pub url: String,
    /// Lines such as `Name: value`.
    pub headers: Vec<String>,
    /// The client's address.
    pub from: IpAddr,
    /// The server name in its TLS handshake, if it is not the host of the URL.
    pub server_name: Option<String>,
}

#[derive(Debug)]
struct PluginRow {
    stage: Stage,
    reach: ChainReach,
    priority: i32,
    plugin: Box<str>,
    /// The kind and id of the resource that contains it.
    source: String,
    /// The resources of `upstreams` that its options refer to.
    upstreams: Vec<NamedUpstream>,
    off: bool,
    identifies: bool,
    /// The fingerprint of its options.
    content: Fingerprint,
}

/// A resource of `upstreams`, and the fingerprint of its content.
type NamedUpstream = (String, Option<Fingerprint>);

/// Why a request cannot be explained.
#[derive(Debug)]
pub enum Unexplained {
    Document(Vec<Diagnostic>),
    /// The request is malformed, and would be rejected regardless of routes.
    Request(String),
}

/// Explains how a request would be handled, without sending anything.
///
/// # Errors
/// If the document is invalid, or the request malformed.
pub fn explain(
    document: &CompleteDocument,
    registry: &Registry,
    question: &RequestDescription,
) -> Result<Explanation, Unexplained> {
    let Compiled { snapshot, .. } = compile(document, registry, None).map_err(Unexplained::Document)?;
    let candidates = Candidates::of(&snapshot, &document.settings, question).map_err(Unexplained::Request)?;
    let Candidates { tried, chosen, near, has_listener, handshake, unreached } = candidates;
    // Of names whose certificates are obtained by ACME, files may not be there yet.
    let obtained = |name: &str| document.acme.iter().flat_map(|acme| &acme.hosts).any(|host| *host.name == *name);
    let handshake = handshake.filter(|note| !note.unknown_name.as_deref().is_some_and(obtained));
    let resources = ResourceIndex::new(document);
    let plugins = rows(&resources, registry, chosen.as_deref());
    let upstream = chosen.as_deref().and_then(|id| outcome::target(&resources, resources.routes.find(id)?));
    let knows_consumers = plugins.iter().any(|row| row.identifies && !row.off);
    let candidates = tried.into_iter().map(|(route, Candidate { host, uri, verdict, .. })| ExplainedCandidate {
        route,
        host,
        uri,
        reason: VerdictText(&verdict).to_string(),
    });
    let plugins = plugins.into_iter().map(|row| {
        let PluginRow { stage, reach, priority, plugin: name, source, upstreams, off, .. } = row;
        let unreached = unreached.has(&name, reach).then(|| unreached.behind.into());
        let upstreams = upstreams.into_iter().map(|(key, _)| key).collect();
        let (stage, priority) = (stage.to_string(), priority.into());
        ExplainedRow { name, stage, priority, source, upstreams, off, unreached, price: None }
    });
    Ok(Explanation {
        route: chosen,
        set_aside: None,
        handshake: handshake.map(|note| note.text),
        near,
        has_listener,
        candidates: candidates.collect(),
        upstream: upstream.map(|(key, _)| key.into()),
        plugins: plugins.collect(),
        knows_consumers,
    })
}

/// The path with or without its last slash, if a route takes it.
fn near_path(snapshot: &Snapshot, settings: &NodeSettings, question: &RequestDescription) -> Option<NearPath> {
    let (address, query) = question.url.split_at(question.url.find('?').unwrap_or(question.url.len()));
    let address = match address.strip_suffix('/') {
        Some(shorter) => shorter.to_owned(),
        None => format!("{address}/"),
    };
    let question = RequestDescription { url: format!("{address}{query}"), ..question.clone() };
    let exchange = exchange(settings, &question).ok()?;
    let path = String::from_utf8_lossy(exchange.request.path()).into_owned();
    Some(NearPath { route: route_of(snapshot, &exchange)?.into(), path })
}

/// The configuration in use.
#[derive(Clone)]
pub(crate) struct RunningConfiguration {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) settings: Arc<NodeSettings>,
}

/// The routes that a configuration tries for a request.
pub(crate) struct Candidates {
    /// In their order, with their ids.
    pub(crate) tried: Vec<(Box<str>, Candidate)>,
    /// The id of the one that the request takes.
    pub(crate) chosen: Option<Box<str>>,
    /// If it takes none of them.
    pub(crate) near: Option<NearPath>,
    /// Whether the host is one that is served on the port: otherwise no route is tried.
    pub(crate) has_listener: bool,
    /// What comes before the route.
    pub(crate) handshake: Option<HandshakeNote>,
    /// The plugins of the chosen route that no request comes to.
    pub(crate) unreached: UnreachedPlugins,
}

impl Candidates {
    /// # Errors
    /// If the request is malformed, and would be rejected regardless of routes.
    pub(crate) fn of(
        snapshot: &Snapshot,
        settings: &NodeSettings,
        question: &RequestDescription,
    ) -> Result<Candidates, String> {
        let exchange = exchange(settings, question)?;
        let lookup = lookup(snapshot, &exchange);
        let has_listener = lookup.is_some();
        let found = lookup.map(|lookup| snapshot.table.explain(&lookup)).unwrap_or_default();
        let id_of = |candidate: &Candidate| snapshot.routes[candidate.route as usize].facts.route_id.clone();
        let tried: Vec<_> = found.into_iter().map(|candidate| (id_of(&candidate), candidate)).collect();
        let is_chosen = |(_, candidate): &&(Box<str>, Candidate)| candidate.verdict == CandidateVerdict::Chosen;
        let chosen = tried.iter().find(is_chosen).map(|(id, _)| id.clone());
        let route = tried.iter().find(is_chosen).map(|(_, candidate)| &*snapshot.routes[candidate.route as usize]);
        let unreached = route.map(|route| UnreachedPlugins::of(&route.chain.request)).unwrap_or_default();
        let near = if chosen.is_none() { near_path(snapshot, settings, question) } else { None };
        let handshake = handshake::note(snapshot, &exchange);
        Ok(Candidates { tried, chosen, near, has_listener, handshake, unreached })
    }
}

/// `None` if no listener has the host.
fn lookup<'a>(snapshot: &'a Snapshot, exchange: &'a Exchange) -> Option<Lookup<'a>> {
    let request = &exchange.request;
    let listener = snapshot.listeners.find_by_port(exchange.client.public_port, request.host())?;
    Some(Lookup {
        host: request.host(),
        path: request.path(),
        method: request.method,
        listener: listener.id.as_deref(),
        remote_addr: exchange.client.addr,
        variables: exchange,
    })
}

/// The id of the route that a request takes.
fn route_of<'s>(snapshot: &'s Snapshot, exchange: &Exchange) -> Option<&'s str> {
    let route = snapshot.table.find(&lookup(snapshot, exchange)?)?;
    Some(&snapshot.routes[route as usize].facts.route_id)
}

fn exchange(settings: &NodeSettings, question: &RequestDescription) -> Result<Exchange, String> {
    let (scheme, rest) = question.url.split_once("://").unwrap_or(("http", &question.url));
    if !matches!(scheme, "http" | "https") {
        return Err(format!("`{scheme}` is neither http nor https"));
    }
    let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let slash = if target.starts_with('/') { "" } else { "/" };
    let is_host = |header: &&String| header.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("host"));
    let mut head = format!("{} {slash}{target} HTTP/1.1\r\n", question.method);
    // A path alone is asked of this machine, and a field `Host` says more than the URL, as with other programs.
    if !question.headers.iter().any(|header| is_host(&header)) {
        let host = if authority.is_empty() { "localhost" } else { authority };
        head.push_str(&format!("Host: {host}\r\n"));
    }
    for header in &question.headers {
        if !header.contains(':') || header.contains(['\r', '\n']) {
            return Err(format!("`{}` does not have the form `Name: value`", header.escape_debug()));
        }
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    let mut exchange = Exchange::default();
    match parse_request(head.as_bytes(), &settings.clients.limits, &mut exchange.request) {
        Ok(Some(length)) if length == head.len() => {}
        Ok(_) => return Err("this is not a valid request".to_owned()),
        Err(reject) => {
            let problem = format!("the gateway would reject this request with {} ({})", reject.status(), reject.name());
            let in_capitals = question.method.to_ascii_uppercase();
            // Methods are case-sensitive (RFC 9110 §9.1).
            let advice =
                (in_capitals != question.method).then(|| format!("; methods are in capital letters: `{in_capitals}`"));
            return Err(problem + &advice.unwrap_or_default());
        }
    }
    exchange.client.addr = question.from;
    exchange.client.peer.set_ip(question.from);
    exchange.client.tls = scheme == "https";
    let usual = if exchange.client.tls { 443 } else { 80 };
    let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(usual);
    exchange.client.local.set_port(port);
    // An address in place of a name is that at which the client connects (`server_addr`).
    let host = authority.strip_suffix(&format!(":{port}")).unwrap_or(authority);
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        exchange.client.local.set_ip(address);
    }
    exchange.client.public_port = port;
    match (&question.server_name, exchange.client.tls) {
        (Some(_), false) => return Err("a server name is of a TLS handshake; write the URL with `https://`".to_owned()),
        (_, false) => {}
        (named, true) => {
            let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
            let of_url = Some(host).filter(|host| !host.is_empty() && !is_address);
            let server_name = named.as_deref().or(of_url).map(|name| name.to_ascii_lowercase().into());
            exchange.tls = Some(Rc::new(Tls { server_name, ..Tls::default() }));
        }
    }
    Ok(exchange)
}

/// The fingerprint of what a plugin does, wherever it is written.
fn content_of(plugin: &PluginSpec) -> Fingerprint {
    let PluginSpec { options, priority, filter, error_response, .. } = plugin;
    Fingerprint::of(format!("{:?}", (options, priority, filter, error_response)))
}

fn rows(resources: &ResourceIndex, registry: &Registry, route: Option<&str>) -> Vec<PluginRow> {
    let registry = registry_of(registry, &resources.document.settings);
    let row = |source: String, reach: ChainReach, plugin: &PluginSpec| {
        let entry = registry.find(&plugin.name)?;
        Some(PluginRow {
            stage: entry.stage,
            reach,
            priority: plugin.priority.unwrap_or(entry.priority),
            plugin: plugin.name.clone(),
            source,
            upstreams: plugin
                .shares
                .iter()
                .filter_map(|share| share.upstream_id.as_ref())
                .map(|id| resources.upstream(id))
                .collect(),
            off: plugin.disabled,
            identifies: entry.identifies,
            content: content_of(plugin),
        })
    };
    let mut rows = Vec::new();
    for PluginSet { id, plugins, .. } in &resources.document.global_rules {
        rows.extend(plugins.iter().filter_map(|plugin| row(format!("global_rule/{id}"), ChainReach::Global, plugin)));
    }
    if let Some(route) = route.and_then(|id| resources.routes.find(id)) {
        let config = resources.plugin_configs.referred(&route.plugin_config_id);
        let service = resources.services.referred(&route.service_id);
        let layers = [
            Some((format!("route/{}", route.id), &route.plugins)),
            config.map(|config| (format!("plugin_config/{}", config.id), &config.plugins)),
            service.map(|service| (format!("service/{}", service.id), &service.plugins)),
        ];
        let mut taken = HashSet::new();
        for (source, plugins) in layers.into_iter().flatten() {
            let nearest = plugins.iter().filter(|plugin| taken.insert(&*plugin.name));
            rows.extend(nearest.filter_map(|plugin| row(source.clone(), ChainReach::Own, plugin)));
        }
    }
    rows.sort_by(|a, b| {
        let rank = |row: &PluginRow| (row.stage, row.reach, Reverse(row.priority));
        rank(a).cmp(&rank(b)).then_with(|| a.plugin.cmp(&b.plugin))
    });
    rows
}

/// The verdict on a candidate, in words.
pub(crate) struct VerdictText<'a>(pub(crate) &'a CandidateVerdict);

impl fmt::Display for VerdictText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            CandidateVerdict::Chosen => "chosen",
            CandidateVerdict::Outranked(TieBreak::Host) => "outranked: the host is less specific",
            CandidateVerdict::Outranked(TieBreak::Path) => "outranked: the path is less specific",
            CandidateVerdict::Outranked(TieBreak::Priority) => "outranked: the priority is lower",
            CandidateVerdict::Outranked(TieBreak::UriLength) => "outranked: the uri is shorter",
            CandidateVerdict::Outranked(TieBreak::Order) => "outranked: the route comes later in the file",
            CandidateVerdict::Host => "no match: the host is different",
            CandidateVerdict::Uri => "no match: the path differs after the first `*` of the uri",
            CandidateVerdict::Method => "no match: the method is different",
            CandidateVerdict::Listener => "no match: the request belongs to no listener of `listeners`",
            CandidateVerdict::RemoteAddr => "no match: the client's address is not in `remote_addrs`",
            CandidateVerdict::Among => "no match: this path is not served at present",
            CandidateVerdict::Vars(rule) => return write!(f, "no match: this rule of `vars` is false: {rule}"),
        })
    }
}
