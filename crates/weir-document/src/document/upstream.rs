//! Upstreams and their nodes.

mod keys;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use weir_discovery::{REGISTRIES, discovery_types, one_of};
use weir_gateway::snapshot::{AllDownPolicy, Concurrency, Keepalive, PassHost, PassiveChecks, Queue, Timeouts};
use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_proto::h1::{Limits, Tolerance};

use super::balance::{self, BalanceSpec};
use super::certificate::UpstreamTls;
use super::checks::ActiveChecksSpec;
use super::names::NameQuery;
use super::persistence::PersistenceSpec;
use super::resource::{self, COMMON, ResourceOrigin};
use super::scheme::{NO_PORT, Scheme};
use crate::keys::MapKeys;
use crate::keys::schema::Definitions;
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::{MapEntry, NodeKind, TextPosition};
use keys::{KEEPALIVE_POOL, NODE, QUEUE};
pub(super) use keys::{TIMEOUT, UPSTREAM};

/// APISIX `upstream`, in a list of its own or inside a route or service.
///
/// A document may have a hundred thousand of them, so rarely used fields are boxed.
#[derive(Clone, Debug)]
pub struct UpstreamSpec {
    pub origin: ResourceOrigin,
    /// The fingerprint of the whole upstream.
    pub content: Fingerprint,
    /// Empty for an inline upstream without an id.
    pub id: Box<str>,
    pub nodes: Vec<NodeSpec>,
    /// The endpoints do not follow from its text alone: nodes have host names, come from a service or from a file.
    pub is_elsewhere: bool,
    pub scheme: Scheme,
    /// Requests to its nodes use HTTP/2.
    pub http2: bool,
    /// Not in APISIX: a connection to a node begins with a PROXY header that names the client.
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    pub tls: UpstreamTls,
    /// The service whose instances are the nodes, and the position of its name.
    pub service: Option<(NameQuery, TextPosition)>,
    /// Not in APISIX: a file that contains the nodes.
    pub nodes_file: Option<NodesFile>,
    pub balance: BalanceSpec,
    pub persistence: Option<PersistenceSpec>,
    /// Not in APISIX: the time over which an endpoint's share grows to its full size after it has come into rotation.
    pub slow_start: Option<Duration>,
    /// `None`: 60 s each.
    pub timeouts: Option<Timeouts>,
    /// `None`: as many as there are further nodes.
    pub retries: Option<u32>,
    pub retry_timeout: Option<Duration>,
    /// Not in APISIX: the most retries, in percent of requests.
    pub retry_budget: u32,
    /// Not in APISIX: a read time-out, too, is a reason to try another endpoint.
    pub retry_read_timeouts: bool,
    /// Not in APISIX: the statuses of responses that are a reason, too.
    pub retry_statuses: Box<[u16]>,
    /// Not in APISIX: endpoints that have been tried are tried again when no other is left.
    pub retry_same_endpoint: bool,
    /// Not in APISIX: what happens while every endpoint is out of rotation.
    pub all_down: AllDownPolicy,
    /// Not in APISIX: faults in responses that are tolerated.
    pub tolerance: Tolerance,
    /// Not in APISIX: limits of the heads of responses.
    pub response_limits: Limits,
    pub pass_host: PassHost,
    pub keepalive: Keepalive,
    /// Not in APISIX: the most requests that one worker may have in flight at an endpoint.
    pub concurrency: Concurrency,
    /// Not in APISIX: the queue of requests that wait for a permit of an endpoint.
    pub queue: Queue,
    pub active: Option<Box<ActiveChecksSpec>>,
    pub passive: Option<Arc<PassiveChecks>>,
}

/// A file with nodes, in either form of `nodes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodesFile {
    /// As written, relative to the directory of the configuration.
    pub path: Box<str>,
    pub place: TextPosition,
    /// The port of nodes without one.
    pub default_port: u16,
}

/// One node as written; a host name may stand for several addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// In lower case, without brackets.
    pub host: Box<str>,
    pub port: u16,
    /// A node of weight 0 is never picked.
    pub weight: u32,
    /// Nodes of higher priority are used first.
    pub priority: i64,
    pub place: TextPosition,
}

impl NodeSpec {
    /// The host, unless it is an address.
    pub fn host_name(&self) -> Option<&str> {
        self.address().is_none().then_some(&*self.host)
    }

    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Enough for shares of a thousandth of a percent, and small enough that products of weights do not overflow.
const MAX_WEIGHT: u32 = 100_000;

const ALL_DOWN: &[(&str, AllDownPolicy)] = &[("try", AllDownPolicy::Try), ("refuse", AllDownPolicy::Refuse)];

/// A read time-out, and statuses with the names of nginx.
const RETRY_REASONS: &[(&str, Option<u16>)] = &[
    ("read_timeout", None),
    ("http_403", Some(403)),
    ("http_404", Some(404)),
    ("http_429", Some(429)),
    ("http_500", Some(500)),
    ("http_502", Some(502)),
    ("http_503", Some(503)),
    ("http_504", Some(504)),
];

const TOLERABLE: &[(&str, Tolerance)] = &[
    ("extended_status", Tolerance { extended_status: true, repeated_length: false }),
    ("repeated_content_length", Tolerance { extended_status: false, repeated_length: true }),
];

const PROXY_VERSIONS: &[(&str, ProxyProtocolVersion)] =
    &[("v1", ProxyProtocolVersion::V1), ("v2", ProxyProtocolVersion::V2)];

/// APISIX `pass_host`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum HostChoice {
    Pass,
    Node,
    Rewrite,
}

const HOSTS: &[(&str, HostChoice)] =
    &[("pass", HostChoice::Pass), ("node", HostChoice::Node), ("rewrite", HostChoice::Rewrite)];

/// The most header fields that a parser takes.
const MAX_FIELDS: u32 = weir_proto::limits::MAX_FIELDS as u32;

const MOST_IN_FLIGHT: u32 = 1_000_000;

pub(super) fn read_named(at: &NodeReader, index: usize) -> Option<UpstreamSpec> {
    let upstream = read_inline(at)?;
    let id = match upstream.id.is_empty() {
        true => resource::position_id(index),
        false => upstream.id,
    };
    let content = Fingerprint::of((&id, upstream.content));
    Some(UpstreamSpec { id, content, ..upstream })
}

pub(super) fn read_inline(at: &NodeReader) -> Option<UpstreamSpec> {
    of_fields(&at.keys(&UPSTREAM)?)
}

pub(super) fn of_fields(fields: &MapReader) -> Option<UpstreamSpec> {
    let at = fields.at();
    resource::common(fields);
    report_sources_of_nodes(fields);
    let (found, service) = match discovered(fields) {
        Some(Discovered::Node(node)) => (Some(vec![node]), None),
        Some(Discovered::Service(query, place)) => (None, Some((query, place))),
        None => (None, None),
    };
    let scheme = fields.value(&UPSTREAM.scheme);
    let http2 = fields.value(&UPSTREAM.http2) || scheme.is_http2();
    let nodes =
        found.unwrap_or_else(|| fields.get(&UPSTREAM.nodes).map(|at| nodes(&at, scheme.port())).unwrap_or_default());
    let checks = fields.read(&UPSTREAM.checks).unwrap_or_default();
    let retry_reasons = fields.read(&UPSTREAM.retry_on).unwrap_or_default();
    let nodes_file = fields.get(&UPSTREAM.nodes_file).zip(fields.read(&UPSTREAM.nodes_file));
    Some(UpstreamSpec {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of_node(at.node()),
        id: fields.read(&COMMON.id).unwrap_or_default(),
        is_elsewhere: service.is_some()
            || fields.has(&UPSTREAM.nodes_file)
            || nodes.iter().any(|node| node.host_name().is_some()),
        nodes,
        scheme,
        http2,
        proxy_protocol: proxy_protocol(fields, http2),
        tls: fields.read(&UPSTREAM.tls).unwrap_or_default(),
        service,
        nodes_file: nodes_file.map(|(at, path)| NodesFile { path, place: at.place(), default_port: scheme.port() }),
        balance: balance::of(
            fields.value(&UPSTREAM.r#type),
            fields.value(&UPSTREAM.hash_on),
            fields.get(&UPSTREAM.key).map(|at| (at, fields.read(&UPSTREAM.key))),
            fields,
        ),
        persistence: fields.read(&UPSTREAM.persistence),
        slow_start: fields.read(&UPSTREAM.slow_start).filter(|time| !time.is_zero()),
        timeouts: fields.read(&UPSTREAM.timeout),
        retries: fields.read(&UPSTREAM.retries),
        // In APISIX, 0 means no limit.
        retry_timeout: fields.read(&UPSTREAM.retry_timeout).filter(|time| !time.is_zero()),
        retry_budget: fields.value(&UPSTREAM.retry_budget),
        retry_read_timeouts: retry_reasons.contains(&None),
        retry_statuses: retry_reasons.into_iter().flatten().collect(),
        retry_same_endpoint: fields.value(&UPSTREAM.retry_same_endpoint),
        all_down: fields.value(&UPSTREAM.all_down),
        tolerance: tolerance(fields),
        response_limits: response_limits(fields),
        pass_host: pass_host(fields),
        keepalive: fields.read(&UPSTREAM.keepalive_pool).unwrap_or_default(),
        concurrency: fields.read(&UPSTREAM.concurrency).unwrap_or_default(),
        queue: fields.read(&UPSTREAM.queue).unwrap_or_default(),
        active: checks.active.map(Box::new),
        passive: checks.passive.map(Arc::new),
    })
}

fn response_limits(fields: &MapReader) -> Limits {
    Limits {
        head_bytes: fields.value(&UPSTREAM.response_max_header_size) as usize,
        fields: fields.value(&UPSTREAM.response_max_header_count) as usize,
        ..Limits::default()
    }
}

/// Reports an upstream without nodes, and one with several sources of nodes.
fn report_sources_of_nodes(fields: &MapReader) {
    let (in_file, of_service) = (fields.get(&UPSTREAM.nodes_file), fields.has(&UPSTREAM.service_name));
    if !fields.has(&UPSTREAM.nodes) && in_file.is_none() && !of_service {
        fields.at().report_advising("has no `nodes`", "add `nodes: { \"127.0.0.1:8080\": 1 }`");
    }
    if let Some(at) = in_file
        && (fields.has(&UPSTREAM.nodes) || of_service)
    {
        at.report_advising(
            "cannot be combined with other nodes",
            "keep one of `nodes`, `nodes_file` and `service_name`",
        );
    }
}

/// All faults in responses that are tolerated.
fn tolerance(fields: &MapReader) -> Tolerance {
    let tolerated = fields.read(&UPSTREAM.tolerate).unwrap_or_default();
    tolerated.into_iter().fold(Tolerance::default(), |sum, one| Tolerance {
        extended_status: sum.extended_status | one.extended_status,
        repeated_length: sum.repeated_length | one.repeated_length,
    })
}

enum Discovered {
    /// `name:port`: the addresses of a host (A, AAAA).
    Node(NodeSpec),
    /// A service, in DNS (SRV) or in a registry.
    Service(NameQuery, TextPosition),
}

/// APISIX `service_name` and `discovery_type`.
fn discovered(fields: &MapReader) -> Option<Discovered> {
    let kind = fields.get(&UPSTREAM.discovery_type);
    let named = match kind {
        Some(_) => fields.read(&UPSTREAM.discovery_type)?,
        None => "dns",
    };
    let Some(at) = fields.get(&UPSTREAM.service_name) else {
        if named != "dns"
            && let Some(at) = kind
        {
            at.report_advising("needs `service_name`", "add the name of the service, as `service_name: orders`");
        }
        return None;
    };
    if fields.has(&UPSTREAM.nodes) {
        at.report_advising("cannot be combined with `nodes`", "keep one of them");
    }
    if kind.is_none() {
        let types: Vec<String> = discovery_types().iter().map(|name| format!("`discovery_type: {name}`")).collect();
        at.report_advising("needs `discovery_type`", format!("add {}", one_of(&types)));
    }
    let Some(registry) = REGISTRIES.iter().find(|kind| kind.name() == named) else {
        return in_dns(&at, &fields.read(&UPSTREAM.service_name)?);
    };
    let query = NameQuery::Registered { registry: registry.name(), service: registry.service_name(&at)? };
    Some(Discovered::Service(query, at.place()))
}

fn in_dns(at: &NodeReader, name: &str) -> Option<Discovered> {
    match host_and_port(name) {
        Ok((host, Some(port))) => {
            Some(Discovered::Node(NodeSpec { host, port, weight: 1, priority: 0, place: at.place() }))
        }
        Ok((host, None)) if host.parse::<IpAddr>().is_err() => {
            Some(Discovered::Service(NameQuery::Service(host), at.place()))
        }
        Ok(_) => {
            at.report_advising("is an address without a port", "use `nodes`");
            None
        }
        Err((problem, advice)) => {
            at.report_advising(problem, advice);
            None
        }
    }
}

/// APISIX `timeout`.
pub(super) fn timeouts(fields: &MapReader) -> Option<Timeouts> {
    let (connect, send, read) = (fields.read(&TIMEOUT.connect), fields.read(&TIMEOUT.send), fields.read(&TIMEOUT.read));
    Some(Timeouts { connect: connect?, send: send?, read: read? })
}

fn keepalive(fields: &MapReader) -> Option<Keepalive> {
    Some(Keepalive {
        size: fields.value(&KEEPALIVE_POOL.size) as usize,
        idle_timeout: fields.value(&KEEPALIVE_POOL.idle_timeout),
        requests: fields.value(&KEEPALIVE_POOL.requests).into(),
    })
}

fn proxy_protocol(fields: &MapReader, http2: bool) -> Option<ProxyProtocolVersion> {
    let version = fields.read(&UPSTREAM.proxy_protocol)?;
    if http2 && let Some(at) = fields.get(&UPSTREAM.proxy_protocol) {
        at.report_advising(
            "cannot be used with HTTP/2: clients share connections, and the PROXY header describes one client",
            "remove it, or use HTTP/1.1 for this upstream",
        );
    }
    Some(version)
}

fn concurrency(at: &NodeReader) -> Option<Concurrency> {
    match at.node().kind {
        NodeKind::Text(_) => at.choice(&[("auto", Concurrency::Auto), ("unlimited", Concurrency::Unlimited)]),
        _ => at.integer(1..=MOST_IN_FLIGHT).map(Concurrency::Fixed),
    }
}

fn concurrency_schema(_: &mut Definitions) -> Value {
    json!({ "oneOf": [
        { "type": "string", "enum": ["auto", "unlimited"] },
        { "type": "integer", "minimum": 1, "maximum": MOST_IN_FLIGHT },
    ] })
}

fn queue(fields: &MapReader) -> Option<Queue> {
    Some(Queue { size: fields.value(&QUEUE.size) as usize, timeout: fields.read(&QUEUE.timeout) })
}

fn pass_host(fields: &MapReader) -> PassHost {
    let host = fields.read(&UPSTREAM.upstream_host);
    match fields.value(&UPSTREAM.pass_host) {
        HostChoice::Pass => PassHost::Pass,
        HostChoice::Node => PassHost::Node,
        HostChoice::Rewrite => match host {
            Some(host) => PassHost::Rewrite(host.into()),
            None => {
                if let Some(at) = fields.get(&UPSTREAM.pass_host)
                    && !fields.has(&UPSTREAM.upstream_host)
                {
                    at.report_advising("needs `upstream_host`", "add `upstream_host: example.com`");
                }
                PassHost::Pass
            }
        },
    }
}

/// Both forms of `nodes`.
fn nodes_schema(definitions: &mut Definitions) -> Value {
    let weight = json!({ "type": "integer", "minimum": 0, "maximum": MAX_WEIGHT });
    let node = json!({ "$ref": definitions.reference(NODE.table()) });
    json!({ "oneOf": [{ "type": "object", "additionalProperties": weight }, { "type": "array", "items": node }] })
}

/// Either form: `{ "host:port": weight }` or `[{ host, port, weight, priority, metadata }]`.
pub(super) fn nodes(at: &NodeReader, default_port: u16) -> Vec<NodeSpec> {
    let mut all: Vec<NodeSpec> = Vec::new();
    let mut seen: HashSet<(Box<str>, u16)> = HashSet::new();
    let mut add = |node: NodeSpec, at: &NodeReader| match seen.insert((node.host.clone(), node.port)) {
        true => all.push(node),
        false => at.report_advising("is listed twice", "write one node with the sum of the weights"),
    };
    if at.is_map() {
        for entry in at.entries().unwrap_or_default() {
            let node_at = at.below(entry);
            if let Some(node) = node_of_map(&node_at, entry, default_port) {
                add(node, &node_at);
            }
        }
    } else if at.is_list() {
        for item in at.items() {
            if let Some(node) = node_of_list(&item, default_port) {
                add(node, &item);
            }
        }
    } else {
        at.report_advising("expected a map or a list of nodes", "write as `{ \"127.0.0.1:8080\": 1 }`");
    }
    all.shrink_to_fit();
    all
}

fn node_of_map(at: &NodeReader, entry: &MapEntry, default_port: u16) -> Option<NodeSpec> {
    let weight = at.integer(0..=MAX_WEIGHT);
    let (host, port) = match host_and_port(&entry.key) {
        Ok(found) => found,
        Err((problem, advice)) => {
            at.report_advising(problem, advice);
            return None;
        }
    };
    let port = port.or_else(|| usual_port(at, default_port))?;
    Some(NodeSpec { host, port, weight: weight?, priority: 0, place: entry.key_place })
}

fn node_of_list(at: &NodeReader, default_port: u16) -> Option<NodeSpec> {
    if let NodeKind::Text(text) = &at.node().kind {
        let (node, scheme) = node_of_url(text);
        at.report_advising(
            format!("expected a map, found `{}`", shortened(text)),
            format!("write the list as a map with weights: `nodes: {{ \"{}\": 1 }}`{scheme}", shortened(node)),
        );
        return None;
    }
    let fields = at.keys(&NODE)?;
    let host_at = fields.get(&NODE.host)?;
    fields.read(&NODE.metadata);
    let (weight, priority) = (fields.value(&NODE.weight), fields.value(&NODE.priority));
    let port = fields.get(&NODE.port).map(|_| fields.read(&NODE.port));
    let text = &*fields.read(&NODE.host)?;
    let host = match host_and_port(text) {
        Ok((host, None)) => host,
        // `port` is a field of its own here, so IPv6 needs no brackets.
        Err(_) if text.parse::<Ipv6Addr>().is_ok() => text.to_ascii_lowercase().into(),
        Ok((_, Some(port))) => {
            host_at.report_advising("contains a port", format!("write the port separately: `port: {port}`"));
            return None;
        }
        Err((problem, advice)) => {
            host_at.report_advising(problem, advice);
            return None;
        }
    };
    let port = port.unwrap_or_else(|| usual_port(at, default_port))?;
    Some(NodeSpec { host, port, weight, priority, place: at.place() })
}

/// The port of a node that has none.
fn usual_port(at: &NodeReader, default_port: u16) -> Option<u16> {
    if default_port == NO_PORT {
        at.report_advising(
            "has no port, and the `scheme` of the upstream has no usual one",
            "add the port of the node",
        );
        return None;
    }
    Some(default_port)
}

/// The node in what may be a URL, and the advice for its scheme.
fn node_of_url(text: &str) -> (&str, &'static str) {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let node = rest.split('/').next().unwrap_or_default();
    let node = if node.is_empty() { "backend.example:8080" } else { node };
    match scheme {
        "https" => (node, ", and `scheme: https` in the upstream"),
        "grpc" | "grpcs" | "h2c" => (node, ", and `scheme: grpc` or `grpcs` in the upstream"),
        _ => (node, ""),
    }
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`. The error is a problem and an advice.
fn host_and_port(text: &str) -> Result<(Box<str>, Option<u16>), (String, String)> {
    let shown = shortened(text);
    if text.parse::<Ipv6Addr>().is_ok() {
        let with_port = text.rsplit_once(':').filter(|(host, port)| {
            host.parse::<Ipv6Addr>().is_ok() && port.len() > 1 && port.bytes().all(|byte| byte.is_ascii_digit())
        });
        let meant = with_port.map_or(format!("[{text}]:8080"), |(host, port)| format!("[{host}]:{port}"));
        return Err((format!("`{shown}` is an IPv6 address without brackets"), format!("write `{meant}`")));
    }
    if text.contains("//") {
        let (node, scheme) = node_of_url(text);
        return Err((format!("`{shown}` is a URL, not a node"), format!("write `{}`{scheme}", shortened(node))));
    }
    if let Some((node, path)) = text.split_once('/') {
        let path = shortened(path);
        let advice = format!("write `{}`, and the path by the plugin `proxy-rewrite`", shortened(node));
        return Err((format!("`{shown}` has the path `/{path}`, and a node is a host and a port"), advice));
    }
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, rest))) => {
            if host.parse::<Ipv6Addr>().is_err() {
                return Err((format!("`{shown}` is not an IPv6 address"), "write as `[::1]:8080`".to_owned()));
            }
            match (rest, rest.strip_prefix(':')) {
                ("", _) => (host, None),
                (_, Some(port)) => (host, Some(port)),
                _ => return Err((format!("`{shown}` is not a node"), "write as `[::1]:8080`".to_owned())),
            }
        }
        Some(None) => return Err((format!("`{shown}` has no closing `]`"), "write as `[::1]:8080`".to_owned())),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => None,
        Some(digits) => match digits.parse::<u16>() {
            Ok(port) if port > 0 && digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(port),
            _ => return Err((format!("invalid port `{}`", shortened(digits)), "use 1 to 65535".to_owned())),
        },
    };
    if host.parse::<IpAddr>().is_err() && !is_host_name(host) {
        let problem = format!("`{}` is neither an address nor a host name", shortened(host));
        return Err((problem, "write as `127.0.0.1:8080` or `backend.example:8080`".to_owned()));
    }
    Ok((host.to_ascii_lowercase().into(), port))
}

/// RFC 1123 §2.1, and `_`, which occurs in names inside clusters. Only digits and dots would be a malformed address.
fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    name.len() <= 253 && name.split('.').all(label) && name.contains(|c: char| !c.is_ascii_digit() && c != '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_hosts_and_ports() {
        let ok = |text| host_and_port(text).map(|(host, port)| (host.to_string(), port)).expect(text);
        assert_eq!(ok("127.0.0.1:80"), ("127.0.0.1".into(), Some(80)));
        assert_eq!(ok("Backend_1.local"), ("backend_1.local".into(), None));
        assert_eq!(ok("[::1]:8080"), ("::1".into(), Some(8080)));
        assert_eq!(ok("[::1]"), ("::1".into(), None));
        for text in [
            "",
            ":80",
            "::1",
            "fe80::1:80",
            "[::1",
            "[::1]80",
            "[localhost]:80",
            "a:0",
            "a:65536",
            "a:+1",
            "a:",
            "a:b:1",
            "1.2.3",
            "256.1.1.1:80",
            "-a:1",
            "a..b:1",
            "a b:1",
            "http://a:1",
            "a/b",
        ] {
            assert!(host_and_port(text).is_err(), "{text}");
        }
    }
}
