//! Upstreams: their nodes are compiled to endpoints.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use weir_client::ServiceTarget;
use weir_discovery::ServiceInstance;
use weir_gateway::snapshot::{Balance, Endpoint, HashKey, Hashing, PassiveChecks, Pieces, Transport, Upstream};

use weir_net::tls;

use super::Compiler;
use super::catalog::{Catalog, Cataloger};
use super::dependencies::{Dependencies, Unchanged};
use super::parts::{Parts, UpstreamPart};
use super::secured::Secured;
use crate::document::{
    self, CompleteDocument, NameQuery, NodeSpec, Reference, ResolvedName, ResolvedNames, ResourceOrigin, Scheme,
    TrafficShare,
};
use crate::text::fingerprint::Fingerprint;
use crate::text::tree::TextPosition;

/// The most addresses of one name that are used.
const MAX_ADDRESSES: usize = 1_000;
/// How long a stream may carry nothing if the upstream has no `timeout`; the default of nginx's `proxy_timeout`. The 60 s of requests
/// would end the idle connections of every pool to a database.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// The same for a session of datagrams, which no side can end.
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The upstreams of a snapshot while it is built: the named ones first, then the inline ones.
pub(super) struct Upstreams<'a> {
    compiler: &'a Compiler<'a>,
    /// The named upstreams by id; built only when an id is not found by binary search in the document.
    named: OnceCell<HashMap<&'a str, usize>>,
    /// The number of each upstream of the document, at the same index.
    numbers: Vec<usize>,
    catalog: Cataloger<'a, UpstreamPart>,
    pieces: Pieces<Arc<Upstream>>,
    secured: Secured<'a>,
    tls_has_warned: bool,
}

/// The place of an upstream: the kind and id of a resource, and a path within its plugins.
pub(super) type UpstreamName<'n> = (&'n str, &'n str, &'n str);

impl<'a> Upstreams<'a> {
    pub(super) fn new(compiler: &'a Compiler<'a>, before: Option<&'a Parts>) -> Self {
        compiler.report_missing_registry();
        let mut upstreams = Upstreams {
            compiler,
            named: OnceCell::new(),
            numbers: Vec::with_capacity(compiler.document.upstreams.len()),
            catalog: Cataloger::new(compiler.document.upstreams.len(), before.map(|parts| &*parts.upstreams)),
            pieces: before.map(|parts| parts.upstream_pieces.clone()).unwrap_or_default(),
            secured: Secured::new(compiler),
            tls_has_warned: false,
        };
        let unchanged = Unchanged::since(before.map(|parts| &parts.surroundings), &compiler.surroundings).dependencies;
        upstreams.add_prepared_name(unchanged);
        upstreams
    }

    fn add_prepared_name(&mut self, unchanged: Dependencies) {
        let document = self.compiler.document;
        let mut index = 0;
        while let Some(upstream) = document.upstreams.get(index) {
            if let Some(block) =
                self.catalog.next_block(unchanged, |block| document.upstreams.continues_with(index, block))
            {
                self.numbers.extend(block.parts().map(|part| part.number));
                index += block.len();
                self.catalog.take_block();
                continue;
            }
            let number = self.add(upstream, ("", &upstream.id, ""));
            self.numbers.push(number);
            index += 1;
        }
    }

    fn named(&self) -> &HashMap<&'a str, usize> {
        self.named.get_or_init(|| {
            let document = self.compiler.document;
            document.upstreams.iter().zip(&self.numbers).map(|(upstream, number)| (&*upstream.id, *number)).collect()
        })
    }

    /// The numbers of the named upstreams, in the order of the document.
    pub(super) fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// The upstream of a service, or of a share of traffic, inline or by reference.
    pub(super) fn of(
        &mut self,
        origin: &ResourceOrigin,
        inline: &Option<document::UpstreamSpec>,
        reference: &Option<Reference>,
        name: UpstreamName,
    ) -> Option<usize> {
        match inline {
            Some(inline) => Some(self.add(inline, name)),
            None => self.referred(origin, reference),
        }
    }

    /// The upstream that a resource refers to.
    pub(super) fn referred(&self, origin: &ResourceOrigin, reference: &Option<Reference>) -> Option<usize> {
        let id = &reference.as_ref()?.id;
        let document = self.compiler.document;
        // Building the index takes time in proportion to all upstreams; a change of one route looks up only one.
        if let Some(position) = document.upstreams.position(id) {
            return Some(self.numbers[position]);
        }
        self.compiler.referred(origin, "upstream_id", reference, self.named(), "upstreams")
    }

    /// The upstreams of the shares that plugins give, by the path of the share.
    pub(super) fn of_shares(&mut self) -> HashMap<&'a str, u32> {
        let document = self.compiler.document;
        let number = |(kind, id, share): (&str, &str, &'a TrafficShare)| {
            let number = self.of(&share.origin, &share.upstream, &share.upstream_id, (kind, id, &share.path))?;
            Some((&*share.origin.path, number as u32))
        };
        document.shares().filter_map(number).collect()
    }

    /// Returns its number.
    fn add(&mut self, written: &document::UpstreamSpec, name: UpstreamName) -> usize {
        let identity = Fingerprint::of(name);
        let known = self.catalog.find(identity);
        let part = self.part(written, known, name);
        let number = part.number;
        self.catalog.add(identity, written.content, part);
        number
    }

    /// The part of an upstream; `known`, the previous one, if nothing has changed.
    pub(super) fn part(
        &mut self,
        written: &document::UpstreamSpec,
        known: Option<&UpstreamPart>,
        name: UpstreamName,
    ) -> UpstreamPart {
        let key = self.key(written);
        if let Some(known) = known
            && known.key == Some(key)
        {
            return known.clone();
        }
        let number = known.map_or_else(|| self.catalog.new_number(), |known| known.number);
        let warnings = self.compiler.warnings.count();
        let upstream = self.compile(written, &shown(name));
        self.pieces.set(number, Arc::new(upstream));
        let has_warned = self.compiler.warnings.count() > warnings;
        // Upstreams with equal TLS settings share a connector, and only the first of them causes its warnings; so none of them is
        // reused after a warning.
        self.tls_has_warned |= has_warned && is_secured(written);
        let stays = !has_warned && written.tls.identity.is_none() && !(self.tls_has_warned && is_secured(written));
        let depends_on = Dependencies::NAMES.only_if(written.is_elsewhere)
            | Dependencies::TLS.only_if(is_secured(written))
            | Dependencies::SPIFFE.only_if(written.tls.is_spiffe());
        UpstreamPart { number, key: stays.then_some(key), depends_on }
    }

    /// What stream routes carry to an upstream; `None` if that does not say it.
    pub(super) fn transport(&self, number: usize) -> Option<Transport> {
        self.pieces.get(number)?.of_streams
    }

    /// Why stream routes cannot use an upstream, and what would be right.
    pub(super) fn unfit_for_streams(&self, number: usize) -> Option<(&'static str, &'static str)> {
        let upstream = self.pieces.get(number)?;
        let is_http = upstream.http2 || upstream.tls.is_some() && upstream.of_streams.is_none();
        is_http.then_some((
            "the `scheme` of its upstream is of HTTP, and a stream route carries bytes as they are",
            "use an upstream with `scheme: tcp`, `tls` or `udp`",
        ))
    }

    /// The same for routes.
    pub(super) fn unfit_for_http(&self, number: usize) -> Option<(&'static str, &'static str)> {
        self.pieces.get(number)?.of_streams?;
        Some((
            "the `scheme` of its upstream is for stream routes, and a route needs HTTP",
            "use an upstream with `scheme: http`, `https`, `grpc` or `grpcs`, or make this a stream route",
        ))
    }

    /// Removes the upstream of a part that is not in the catalog.
    pub(super) fn remove(&mut self, part: &UpstreamPart) {
        self.pieces.remove(part.number);
        self.catalog.release(part.number);
    }

    /// The fingerprint of all inputs of an upstream.
    fn key(&self, written: &document::UpstreamSpec) -> Fingerprint {
        let document = self.compiler.document;
        let addresses = written.is_elsewhere.then(|| {
            let node = |(node, addresses): NodeAddresses| {
                (Fingerprint::of((&node.host, node.port, node.weight, node.priority)), addresses)
            };
            placed(written, document).into_iter().map(node).collect::<Vec<_>>()
        });
        let tls = is_secured(written).then_some(self.compiler.surroundings.tls);
        let spiffe = written.tls.is_spiffe().then_some(self.compiler.surroundings.spiffe);
        Fingerprint::of((written.content, addresses, tls, spiffe))
    }

    fn compile(&mut self, written: &document::UpstreamSpec, name: &str) -> Upstream {
        self.secured.refuse_svid(written);
        let (tls, checker) = (self.secured.client(written), self.secured.checker(written));
        let mut upstream = compiled(written, name, self.compiler.document, tls);
        for endpoint in &mut upstream.endpoints {
            let checks = |active: &document::ActiveChecksSpec| {
                let http2 = active.is_http2(written.scheme, written.http2);
                let mut checks = active.of_node(&endpoint.host, endpoint.addr, checker.as_ref(), http2);
                // A separate port for checks does not expect the PROXY header.
                checks.question.proxy_protocol = written.proxy_protocol.filter(|_| checks.question.port.is_none());
                checks
            };
            endpoint.checks = written.active.as_ref().map(|active| Arc::new(checks(active)));
        }
        upstream
    }

    pub(super) fn finish(mut self) -> (Catalog<UpstreamPart>, Pieces<Arc<Upstream>>) {
        let (catalog, gone) = self.catalog.finish();
        gone.into_iter().for_each(|part| drop(self.pieces.remove(part.number)));
        (catalog, self.pieces)
    }
}

/// Whether the upstream, or its checks, may need TLS.
fn is_secured(written: &document::UpstreamSpec) -> bool {
    written.scheme.is_secured() || written.active.is_some()
}

/// The name of the upstream in logs and metrics.
fn shown((kind, id, path): UpstreamName) -> String {
    match (kind, path) {
        ("", _) => id.to_owned(),
        (_, "") => format!("{kind}/{id}"),
        _ => format!("{kind}/{id}/{path}"),
    }
}

fn compiled(
    written: &document::UpstreamSpec,
    name: &str,
    document: &CompleteDocument,
    tls: Option<tls::TlsConnector>,
) -> Upstream {
    let endpoints = endpoints(&placed(written, document), written.scheme);
    let further = endpoints.iter().filter(|endpoint| endpoint.weight > 0).skip(1).count();
    let further = u32::try_from(further).unwrap_or(u32::MAX);
    let idle = written.timeouts.map(|written| written.read.max(written.send));
    Upstream {
        name: name.into(),
        balance: match written.persistence {
            Some(document::PersistenceSpec::ClientIp) => {
                Balance::Hash(Arc::new(Hashing::new(HashKey::ClientAddr, &endpoints)))
            }
            _ => balance(&written.balance, &endpoints),
        },
        persistence: written.persistence.as_ref().and_then(|written| written.compile(&endpoints)).map(Arc::new),
        slow_start: written.slow_start,
        endpoints,
        timeouts: written.timeouts.unwrap_or_default(),
        stream_idle_timeout: idle.unwrap_or(STREAM_IDLE_TIMEOUT),
        session_idle_timeout: idle.unwrap_or(SESSION_IDLE_TIMEOUT),
        of_streams: written.scheme.of_streams(),
        retries: written.retries.unwrap_or(further),
        retry_timeout: written.retry_timeout,
        retry_budget: written.retry_budget,
        tolerance: written.tolerance,
        response_limits: written.response_limits,
        retry_read_timeouts: written.retry_read_timeouts,
        retry_statuses: written.retry_statuses.clone(),
        retry_same_endpoint: written.retry_same_endpoint,
        all_down: written.all_down,
        pass_host: written.pass_host.clone(),
        tls,
        http2: written.http2,
        proxy_protocol: written.proxy_protocol,
        keepalive: written.keepalive,
        passive: passive(written),
        concurrency: written.concurrency,
        queue: written.queue,
    }
}

/// Nearly all upstreams have one of two settings, which are shared.
fn passive(written: &document::UpstreamSpec) -> Arc<PassiveChecks> {
    static USUAL: LazyLock<[Arc<PassiveChecks>; 2]> = LazyLock::new(|| {
        [false, true].map(|until_checked| Arc::new(PassiveChecks { until_checked, ..Default::default() }))
    });
    let until_checked = written.active.is_some();
    match &written.passive {
        None => Arc::clone(&USUAL[usize::from(until_checked)]),
        Some(written) => Arc::new(PassiveChecks { until_checked, ..(**written).clone() }),
    }
}

fn balance(written: &document::BalanceSpec, endpoints: &[Endpoint]) -> Balance {
    match written {
        document::BalanceSpec::RoundRobin => Balance::RoundRobin,
        document::BalanceSpec::Random => Balance::Random,
        document::BalanceSpec::LeastConn => Balance::LeastConn,
        document::BalanceSpec::LeastTime => Balance::LeastTime,
        document::BalanceSpec::Ewma => Balance::Ewma,
        document::BalanceSpec::Hash(key) => Balance::Hash(Arc::new(Hashing::new(key.clone(), endpoints))),
    }
}

/// A node and its addresses.
type NodeAddresses<'a> = (Cow<'a, NodeSpec>, Vec<IpAddr>);

/// The nodes that have addresses, from the list, a file or a service.
fn placed<'a>(written: &'a document::UpstreamSpec, document: &'a CompleteDocument) -> Vec<NodeAddresses<'a>> {
    if let Some((service, place)) = &written.service {
        return of_service(written, document.found.get(service), *place);
    }
    let in_file = written.nodes_file.as_ref().and_then(|file| document.node_files.get(&file.path));
    with_addresses(in_file.unwrap_or(&written.nodes), &document.found)
}

fn of_service<'a>(
    written: &document::UpstreamSpec,
    found: Option<&ResolvedName>,
    place: TextPosition,
) -> Vec<NodeAddresses<'a>> {
    let target = |target: &ServiceTarget| {
        let ServiceTarget { host, port, weight, priority, .. } = target.clone();
        // As in APISIX, a record without a port stands for that of the scheme.
        let port = if port == 0 { written.scheme.port() } else { port };
        (Cow::Owned(NodeSpec { host, port, weight, priority, place }), vec![target.address])
    };
    let secured = written.scheme.is_secured();
    let instance = |instance: &ServiceInstance| {
        let (wanted, other) = match secured {
            true => (instance.secure_port, instance.port),
            false => (instance.port, instance.secure_port),
        };
        // Without TLS, nodes are named by their address, as in APISIX.
        let host = if secured { instance.host.clone() } else { instance.address.to_string().into() };
        let node = NodeSpec { host, port: wanted.or(other)?, weight: instance.weight, priority: 0, place };
        Some((Cow::Owned(node), vec![instance.address]))
    };
    match found {
        Some(ResolvedName::Targets(targets)) => targets.iter().map(target).collect(),
        Some(ResolvedName::Instances(instances)) => instances.iter().filter_map(instance).collect(),
        Some(ResolvedName::Addresses(_)) | None => Vec::new(),
    }
}

fn with_addresses<'a>(nodes: &'a [NodeSpec], found: &ResolvedNames) -> Vec<NodeAddresses<'a>> {
    let placed = nodes.iter().map(|node| (Cow::Borrowed(node), addresses_of(node, found)));
    placed.filter(|(_, found)| !found.is_empty()).collect()
}

fn endpoints(placed: &[NodeAddresses], scheme: Scheme) -> Vec<Endpoint> {
    let weights = shares(placed);
    let mut endpoints: Vec<Endpoint> = placed
        .iter()
        .zip(weights)
        .flat_map(|((node, found), weight)| found.iter().map(move |address| endpoint(node, *address, weight, scheme)))
        .collect();
    endpoints.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.priority));
    endpoints.shrink_to_fit();
    endpoints
}

fn addresses_of(node: &NodeSpec, found: &ResolvedNames) -> Vec<IpAddr> {
    if let Some(address) = node.address() {
        return vec![address];
    }
    match found.get(&NameQuery::Host(node.host.clone())) {
        Some(ResolvedName::Addresses(addresses)) => addresses.iter().copied().take(MAX_ADDRESSES).collect(),
        _ => Vec::new(),
    }
}

/// The weight of each address of a node. The addresses of one name share the weight of their node, so all weights are multiplied
/// by the least factor that makes every share a whole number.
fn shares(nodes: &[NodeAddresses]) -> Vec<u32> {
    let mut counts = nodes.iter().map(|(_, found)| found.len() as u64);
    let multiple = counts.try_fold(1_u64, |multiple, count| (multiple / gcd(multiple, count)).checked_mul(count));
    let exact = |(node, found): &NodeAddresses| {
        let share = u64::from(node.weight).checked_mul(multiple? / found.len() as u64)?;
        u32::try_from(share).ok()
    };
    // The factor overflows only with very uneven numbers of addresses; the shares are then approximate.
    let approximate = |(node, found): &NodeAddresses| {
        let share = u64::from(node.weight) * MAX_ADDRESSES as u64 / found.len() as u64;
        u32::try_from(share).unwrap_or(u32::MAX).max(node.weight.min(1))
    };
    let exact: Option<Vec<u32>> = nodes.iter().map(exact).collect();
    exact.unwrap_or_else(|| nodes.iter().map(approximate).collect())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn endpoint(node: &NodeSpec, address: IpAddr, weight: u32, scheme: Scheme) -> Endpoint {
    let host = match node.address() {
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        _ => node.host.to_string(),
    };
    Endpoint {
        name: format!("{host}:{}", node.port).into(),
        addr: SocketAddr::new(address, node.port),
        weight,
        priority: node.priority,
        host: match node.port {
            port if port == scheme.port() => host.into(),
            port => format!("{host}:{port}").into(),
        },
        checks: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, weight: u32, priority: i64) -> NodeSpec {
        NodeSpec { host: host.into(), port: 80, weight, priority, place: Default::default() }
    }

    fn shown(nodes: &[NodeSpec], addresses_of_names: &[(&str, &[&str])]) -> Vec<(String, u32)> {
        let addresses = |all: &[&str]| all.iter().map(|one| one.parse().expect("an address")).collect();
        let found = addresses_of_names
            .iter()
            .map(|(name, all)| (NameQuery::Host((*name).into()), ResolvedName::Addresses(addresses(all))))
            .collect();
        endpoints(&with_addresses(nodes, &found), Scheme::Http)
            .iter()
            .map(|endpoint| (endpoint.addr.to_string(), endpoint.weight))
            .collect()
    }

    #[test]
    fn the_addresses_of_a_name_share_its_weight() {
        let nodes = [node("a", 2, 0), node("10.0.0.9", 1, 0), node("b", 1, 0)];
        let found = shown(&nodes, &[("a", &["10.0.0.1", "10.0.0.2"]), ("b", &["10.0.1.1", "10.0.1.2", "10.0.1.3"])]);
        let expected = [
            ("10.0.0.1:80", 6),
            ("10.0.0.2:80", 6),
            ("10.0.0.9:80", 6),
            ("10.0.1.1:80", 2),
            ("10.0.1.2:80", 2),
            ("10.0.1.3:80", 2),
        ];
        assert_eq!(found, expected.map(|(address, weight)| (address.to_owned(), weight)));
    }

    #[test]
    fn names_with_very_uneven_numbers_of_addresses_keep_their_weights() {
        // The least common multiple of these numbers does not fit 64 bits.
        let counts = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61];
        let nodes: Vec<NodeSpec> = counts.iter().map(|count| node(&format!("n{count}"), 1, 0)).collect();
        let addresses = |count: u8| (0..count).map(|last| IpAddr::from([10, 0, count, last])).collect();
        let found = counts
            .iter()
            .map(|&count| (NameQuery::Host(format!("n{count}").into()), ResolvedName::Addresses(addresses(count))))
            .collect();
        let endpoints = endpoints(&with_addresses(&nodes, &found), Scheme::Http);
        for count in counts {
            let of_name = |endpoint: &&Endpoint| endpoint.name.starts_with(&format!("n{count}:"));
            let weight: u32 = endpoints.iter().filter(of_name).map(|endpoint| endpoint.weight).sum();
            assert!((MAX_ADDRESSES as u32 - 61..=MAX_ADDRESSES as u32).contains(&weight), "{count}: {weight}");
        }
    }

    #[test]
    fn u18_the_host_of_a_node_has_no_usual_port() {
        let host = |port, scheme| {
            let node = NodeSpec { port, ..node("api.example", 1, 0) };
            endpoint(&node, [127, 0, 0, 1].into(), 1, scheme).host.to_string()
        };
        assert_eq!(host(80, Scheme::Http), "api.example");
        assert_eq!(host(443, Scheme::Https), "api.example");
        assert_eq!(host(443, Scheme::Http), "api.example:443");
        assert_eq!(host(8080, Scheme::Http), "api.example:8080");
    }

    #[test]
    fn priorities_come_first_weightless_nodes_stay_and_nameless_ones_do_not() {
        let nodes = [node("10.0.0.1", 1, 0), node("10.0.0.2", 1, 5), node("10.0.0.3", 0, 9), node("gone", 1, 9)];
        let expected = [("10.0.0.3:80", 0), ("10.0.0.2:80", 1), ("10.0.0.1:80", 1)];
        assert_eq!(shown(&nodes, &[]), expected.map(|(address, weight)| (address.to_owned(), weight)));
    }

    #[test]
    fn endless_answers_of_a_resolver_do_not_overflow_weights() {
        let many: Vec<String> = (0..1_500).map(|last| format!("10.0.{}.{}", last / 250, last % 250)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let counts = [("a", 1_500), ("b", 997), ("c", 991), ("d", 983)];
        let nodes = counts.map(|(name, _)| node(name, 100_000, 0));
        let found = shown(&nodes, &counts.map(|(name, count)| (name, &many[..count])));
        assert_eq!(found.len(), 1_000 + 997 + 991 + 983);
        assert!(found.iter().all(|(_, weight)| (100_000..102_000).contains(weight)));
    }
}
