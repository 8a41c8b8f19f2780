//! Upstreams and their nodes.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use weir_gateway::snapshot::{AllDownPolicy, Concurrency, Keepalive, PassHost, PassiveChecks, Queue, Timeouts};
use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_proto::h1::Tolerance;

use super::balance::{self, BalanceSpec};
use super::certificate::{self, UpstreamTls};
use super::checks::{self, ActiveChecksSpec};
use super::discovery;
use super::names::NameQuery;
use super::persistence::{self, PersistenceSpec};
use super::resource::{self, COMMON, ResourceOrigin};
use super::scheme::{self, Scheme};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::{MapEntry, NodeKind, TextPosition};

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
    pub timeouts: Timeouts,
    /// `None`: as many as there are further nodes.
    pub retries: Option<u32>,
    pub retry_timeout: Option<Duration>,
    /// Not in APISIX: the most retries, in percent of requests.
    pub retry_budget: u32,
    /// Not in APISIX: a read time-out, too, is a reason to try another endpoint.
    pub retry_read_timeouts: bool,
    /// Not in APISIX: the statuses of responses that are a reason, too.
    pub retry_statuses: Box<[u16]>,
    /// Not in APISIX: what happens while every endpoint is out of rotation.
    pub all_down: AllDownPolicy,
    /// Not in APISIX: faults in responses that are tolerated.
    pub tolerance: Tolerance,
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

/// In percent of requests: enough for an endpoint that fails now and then, too little to make an outage worse.
const RETRY_BUDGET: u32 = 20;

const ALL_DOWN: &[(&str, AllDownPolicy)] = &[("try", AllDownPolicy::Try), ("refuse", AllDownPolicy::Refuse)];

pub(super) fn read_named(at: &NodeReader, index: usize) -> Option<UpstreamSpec> {
    let upstream = read_inline(at)?;
    let id = match upstream.id.is_empty() {
        true => format!("arr_{}", index + 1).into(),
        false => upstream.id,
    };
    let content = Fingerprint::of((&id, upstream.content));
    Some(UpstreamSpec { id, content, ..upstream })
}

const OWN: &[&str] = &[
    "type",
    "nodes",
    "nodes_file",
    "hash_on",
    "key",
    "checks",
    "retries",
    "retry_timeout",
    "retry_budget",
    "retry_on",
    "all_down",
    "tolerate",
    "timeout",
    "scheme",
    "http2",
    "proxy_protocol",
    "pass_host",
    "upstream_host",
    "keepalive_pool",
    "concurrency",
    "queue",
    "slow_start",
    "persistence",
    "tls",
    "service_name",
    "discovery_type",
    "discovery_args",
];

pub(super) fn read_inline(at: &NodeReader) -> Option<UpstreamSpec> {
    let fields = at.fields(&[OWN, COMMON].concat())?;
    resource::common(&fields);
    report_sources_of_nodes(at, &fields);
    let (found, service) = match discovered(&fields) {
        Some(Discovered::Node(node)) => (Some(vec![node]), None),
        Some(Discovered::Service(query, place)) => (None, Some((query, place))),
        None => (None, None),
    };
    let scheme = scheme::read(&fields);
    let http2 = scheme.is_http2() || fields.get("http2").and_then(|at| at.boolean()).unwrap_or(false);
    let nodes = found.unwrap_or_else(|| fields.get("nodes").map(|at| nodes(&at, scheme.port())).unwrap_or_default());
    let (active, passive) = fields.get("checks").map(|at| checks::read(&at)).unwrap_or_default();
    let (retry_read_timeouts, retry_statuses) = fields.get("retry_on").map(|at| retry_reasons(&at)).unwrap_or_default();
    Some(UpstreamSpec {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of_node(at.node()),
        id: resource::reference(&fields, "id").map(|id| id.id).unwrap_or_default(),
        is_elsewhere: service.is_some()
            || fields.has("nodes_file")
            || nodes.iter().any(|node| node.host_name().is_some()),
        nodes,
        scheme,
        http2,
        proxy_protocol: fields.get("proxy_protocol").and_then(|at| proxy_protocol(&at, http2)),
        tls: fields.get("tls").and_then(|at| certificate::read_upstream(&at)).unwrap_or_default(),
        service,
        nodes_file: fields.get("nodes_file").and_then(|at| {
            Some(NodesFile { path: at.text_of(1..=4_096)?.into(), place: at.place(), default_port: scheme.port() })
        }),
        balance: balance::read(&fields),
        persistence: fields.get("persistence").and_then(|at| persistence::read(&at)),
        slow_start: fields.get("slow_start").and_then(|at| at.any_duration()).filter(|time| !time.is_zero()),
        timeouts: fields.get("timeout").and_then(|at| timeouts(&at)).unwrap_or_default(),
        retries: fields.get("retries").and_then(|at| at.integer(0..=u16::MAX.into())),
        // In APISIX, 0 means no limit.
        retry_timeout: fields.get("retry_timeout").and_then(|at| at.any_duration()).filter(|time| !time.is_zero()),
        retry_budget: fields.get("retry_budget").and_then(|at| at.integer(0..=1_000)).unwrap_or(RETRY_BUDGET),
        retry_read_timeouts,
        retry_statuses,
        all_down: fields.get("all_down").and_then(|at| at.choice(ALL_DOWN)).unwrap_or_default(),
        tolerance: fields.get("tolerate").map(|at| tolerance(&at)).unwrap_or_default(),
        pass_host: pass_host(&fields),
        keepalive: fields.get("keepalive_pool").and_then(|at| keepalive(&at)).unwrap_or_default(),
        concurrency: fields.get("concurrency").and_then(|at| concurrency(&at)).unwrap_or_default(),
        queue: fields.get("queue").and_then(|at| queue(&at)).unwrap_or_default(),
        active: active.map(Box::new),
        passive: passive.map(Arc::new),
    })
}

/// Reports an upstream without nodes, and one with several sources of nodes.
fn report_sources_of_nodes(at: &NodeReader, fields: &MapReader) {
    if !["nodes", "service_name", "nodes_file"].iter().any(|key| fields.has(key)) {
        at.report_advising("has no `nodes`", "add `nodes: { \"127.0.0.1:8080\": 1 }`");
    }
    if let Some(at) = fields.get("nodes_file")
        && (fields.has("nodes") || fields.has("service_name"))
    {
        at.report_advising(
            "cannot be combined with other nodes",
            "keep one of `nodes`, `nodes_file` and `service_name`",
        );
    }
}

/// Not in APISIX: what besides a failed connection is a reason to try another endpoint: `read_timeout`, and statuses with the
/// names of nginx. Whether a time-out is one, and the statuses.
fn retry_reasons(at: &NodeReader) -> (bool, Box<[u16]>) {
    const REASONS: &[(&str, Option<u16>)] = &[
        ("read_timeout", None),
        ("http_403", Some(403)),
        ("http_404", Some(404)),
        ("http_429", Some(429)),
        ("http_500", Some(500)),
        ("http_502", Some(502)),
        ("http_503", Some(503)),
        ("http_504", Some(504)),
    ];
    let reasons: Vec<Option<u16>> = at.items().filter_map(|item| item.choice(REASONS)).collect();
    (reasons.contains(&None), reasons.into_iter().flatten().collect())
}

/// Not in APISIX: the faults in responses that are tolerated, by name.
fn tolerance(at: &NodeReader) -> Tolerance {
    const FAULTS: &[(&str, Tolerance)] = &[
        ("extended_status", Tolerance { extended_status: true, repeated_length: false }),
        ("repeated_content_length", Tolerance { extended_status: false, repeated_length: true }),
    ];
    at.items().filter_map(|item| item.choice(FAULTS)).fold(Tolerance::default(), |sum, one| Tolerance {
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
    let kind = fields.get("discovery_type");
    let named = match kind.as_ref().map(|at| at.text()) {
        Some(None) => return None,
        Some(Some(name)) if !discovery::KINDS.contains(&name) => {
            discovery::report_unknown(kind.as_ref()?, name, &discovery::KINDS);
            return None;
        }
        Some(Some(name)) => name,
        None => "dns",
    };
    fields.unsupported(&["discovery_args"]);
    let Some(at) = fields.get("service_name") else {
        if named != "dns"
            && let Some(at) = kind
        {
            at.report_advising("needs `service_name`", "add the name of the service, as `service_name: orders`");
        }
        return None;
    };
    if fields.has("nodes") {
        at.report_advising("cannot be combined with `nodes`", "keep one of them");
    }
    if !fields.has("discovery_type") {
        let advice = "add `discovery_type: dns`, `discovery_type: eureka` or `discovery_type: consul`";
        at.report_advising("needs `discovery_type`", advice);
    }
    match named {
        "dns" => in_dns(&at),
        registry => Some(Discovered::Service(discovery::service(registry, &at)?, at.place())),
    }
}

fn in_dns(at: &NodeReader) -> Option<Discovered> {
    match host_and_port(at.text()?) {
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

/// APISIX `timeout`: all three fields are required.
pub(super) fn timeouts(at: &NodeReader) -> Option<Timeouts> {
    let fields = at.fields(&["connect", "send", "read"])?;
    let one = |key: &str| match fields.get(key) {
        Some(at) => at.duration(),
        None => {
            at.report_advising(format!("has no `{key}`"), format!("add `{key}: 60`"));
            None
        }
    };
    let (connect, send, read) = (one("connect"), one("send"), one("read"));
    Some(Timeouts { connect: connect?, send: send?, read: read? })
}

fn keepalive(at: &NodeReader) -> Option<Keepalive> {
    let default = Keepalive::default();
    let fields = at.fields(&["size", "idle_timeout", "requests"])?;
    Some(Keepalive {
        size: fields
            .get("size")
            .and_then(|at| at.integer(1..=1_000_000_u32))
            .map_or(default.size, |size| size as usize),
        idle_timeout: fields.get("idle_timeout").and_then(|at| at.any_duration()).unwrap_or(default.idle_timeout),
        requests: fields.get("requests").and_then(|at| at.integer(1..=u32::MAX)).map_or(default.requests, u64::from),
    })
}

fn proxy_protocol(at: &NodeReader, http2: bool) -> Option<ProxyProtocolVersion> {
    let version = at.choice(&[("v1", ProxyProtocolVersion::V1), ("v2", ProxyProtocolVersion::V2)])?;
    if http2 {
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
        _ => at.integer(1..=1_000_000).map(Concurrency::Fixed),
    }
}

fn queue(at: &NodeReader) -> Option<Queue> {
    let fields = at.fields(&["size", "timeout"])?;
    let size = fields.get("size").and_then(|at| at.integer(0..=1_000_000_u32));
    Some(Queue {
        size: size.map_or(Queue::default().size, |size| size as usize),
        timeout: fields.get("timeout").and_then(|at| at.any_duration()),
    })
}

fn pass_host(fields: &MapReader) -> PassHost {
    const CHOICES: &[(&str, &str)] = &[("pass", "pass"), ("node", "node"), ("rewrite", "rewrite")];
    let host = fields.get("upstream_host").and_then(|at| resource::host_pattern(&at));
    match fields.get("pass_host").map(|at| (at.choice(CHOICES), at)) {
        Some((Some("node"), _)) => PassHost::Node,
        Some((Some("rewrite"), at)) => match host {
            Some(host) => PassHost::Rewrite(host.into()),
            None => {
                if !fields.has("upstream_host") {
                    at.report_advising("needs `upstream_host`", "add `upstream_host: example.com`");
                }
                PassHost::Pass
            }
        },
        _ => PassHost::Pass,
    }
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
    let port = port.unwrap_or(default_port);
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
    let fields = at.fields(&["host", "port", "weight", "priority", "metadata"])?;
    let Some(host_at) = fields.get("host") else {
        at.report_advising("has no `host`", "add `host: 127.0.0.1`");
        return None;
    };
    if !fields.has("weight") {
        at.report_advising("has no `weight`", "add `weight: 1`");
    }
    if let Some(metadata) = fields.get("metadata") {
        metadata.entries();
    }
    let weight = fields.get("weight").and_then(|at| at.integer(0..=MAX_WEIGHT)).unwrap_or(1);
    let priority = fields.get("priority").and_then(|at| at.whole()).unwrap_or(0);
    let port = fields.get("port").map(|at| at.integer(1..=u16::MAX));
    let text = host_at.text()?;
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
    Some(NodeSpec { host, port: port.unwrap_or(Some(default_port))?, weight, priority, place: at.place() })
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
