//! Routes: each is compiled to a piece of the snapshot, and to a rule of the route table.

mod streams;

use std::collections::HashMap;
use std::sync::Arc;

use weir_gateway::route::{BuildError, MethodSet, uri_template};
use weir_gateway::snapshot::{Chain, Pieces, Route, RouteRule, RouteTable, StreamRule, StreamTables, Target};
use weir_plugin::RouteFacts;
use weir_proto::Method;

use super::catalog::{Block, Catalog, Cataloger};
use super::chains::Chains;
use super::dependencies::{Dependencies, Unchanged};
use super::hubs::HubResponders;
use super::parts::{CompiledRoute, Parts, Places, UpstreamPart};
use super::upstreams::Upstreams;
use super::{Compiler, by_id};
use crate::document::{self, AcmeHost, ResourceOrigin, ServiceSpec};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::join;
use streams::StreamReferences;

/// The routes of a snapshot while it is built.
pub(super) struct RouteCompiler<'a> {
    compiler: &'a Compiler<'a>,
    /// The parts whose routes and rules may be reused; `None`: none. Upstreams are reused in any case.
    before: Option<&'a Parts>,
    unchanged: Unchanged,
    hubs: HubResponders<'a>,
    catalog: Cataloger<'a, CompiledRoute>,
    pieces: Pieces<Arc<Route>>,
    places: Places,
    /// Rules to add to the table, and the routes they are of, at the same indices; the challenge rule has none.
    added: Vec<RouteRule>,
    sources: Vec<Option<&'a document::RouteSpec>>,
    /// The rules of all stream routes, in the order of the document.
    stream_rules: Vec<StreamRule>,
    /// Numbers of routes whose rules are to be removed from the table.
    removed: Vec<u32>,
    /// Some rule could not be given a sort key between its neighbours.
    has_no_room: bool,
}

/// What is compiled of routes and stream routes.
pub(super) struct CompiledRoutes {
    pub(super) catalog: Catalog<CompiledRoute>,
    pub(super) pieces: Pieces<Arc<Route>>,
    pub(super) table: RouteTable,
    pub(super) streams: StreamTables,
}

/// The service and upstream of a route.
struct RouteOrigins<'s> {
    service: Option<&'s ServiceSpec>,
    /// The route's inline upstream.
    inline: Option<UpstreamPart>,
    /// The number of the upstream, wherever it is defined.
    upstream: Option<usize>,
}

impl<'a> RouteCompiler<'a> {
    /// Reuses the parts of `before` that are `unchanged`: all upstreams, and routes where possible.
    pub(super) fn new(compiler: &'a Compiler<'a>, before: Option<&'a Parts>, unchanged: Unchanged) -> Self {
        let reused = before.filter(|_| unchanged.general);
        RouteCompiler {
            compiler,
            hubs: HubResponders::new(compiler),
            before: reused,
            unchanged,
            catalog: Cataloger::new(compiler.document.routes.len(), before.map(|parts| &*parts.routes)),
            pieces: reused.map(|parts| parts.route_pieces.clone()).unwrap_or_default(),
            places: Places::new(),
            added: Vec::new(),
            sources: Vec::new(),
            stream_rules: Vec::new(),
            removed: Vec::new(),
            has_no_room: false,
        }
    }

    /// Returns the fingerprint of everything that references could refer to; `None` if some of it must be compiled again in any
    /// case.
    pub(super) fn add_all(&mut self, upstreams: &mut Upstreams<'a>, chains: &Chains<'a>) -> Option<Fingerprint> {
        let document = self.compiler.document;
        let services: HashMap<&str, &ServiceSpec> = by_id(document.services.iter(), |service| &service.id);
        let of_service = |service: &ServiceSpec| {
            let name = ("service", &*service.id, "");
            upstreams.of(&service.origin, &service.upstream, &service.upstream_id, name)
        };
        let numbers: Vec<Option<usize>> = document.services.iter().map(of_service).collect();
        let targets: HashMap<&str, Option<usize>> =
            document.services.iter().map(|service| &*service.id).zip(numbers.iter().copied()).collect();
        let ids: Vec<&str> = document.upstreams.iter().map(|upstream| &*upstream.id).collect();
        let listeners: Vec<&str> = document.listeners.iter().map(|listener| &*listener.id).collect();
        let numbers_of = (upstreams.numbers(), &numbers);
        let references = chains.sets_key().map(|sets| Fingerprint::of((sets, ids, listeners, numbers_of)));
        let unchanged = self.unchanged_with(references, chains);
        let mut index = 0;
        while let Some(written) = document.routes.get(index) {
            if let Some(unchanged) = unchanged
                && let Some(block) =
                    self.catalog.next_block(unchanged, |block| document.routes.continues_with(index, block))
                && self.keep_places(block)
            {
                block.declarations().iter().for_each(|declarations| chains.redeclare(declarations));
                index += block.len();
                self.catalog.take_block();
                continue;
            }
            self.add(written, &services, &targets, upstreams, chains);
            index += 1;
        }
        let of_streams = StreamReferences { services: &services, targets: &targets };
        for written in &document.stream_routes {
            self.add_stream(written, &of_streams, upstreams, chains);
        }
        references
    }

    /// The inputs that have not changed, if whole blocks of routes may be reused.
    fn unchanged_with(&self, references: Option<Fingerprint>, chains: &Chains<'a>) -> Option<Dependencies> {
        let before = self.before?;
        let same_references = references.is_some() && references == before.references;
        let same_rules = chains.global_key().is_some() && chains.global_key() == before.global;
        same_rules.then(|| self.unchanged.dependencies | Dependencies::REFERENCES.only_if(same_references))
    }

    /// Whether the rules of a block keep their sort keys.
    fn keep_places(&mut self, block: &Block<CompiledRoute>) -> bool {
        let mut orders = block.parts().filter(|part| part.rule.is_some()).map(|part| part.order);
        match (orders.next(), orders.next_back()) {
            (None, _) => true,
            (Some(first), last) => self.places.keep_all(first, last.unwrap_or(first)),
        }
    }

    fn origins(
        &self,
        written: &'a document::RouteSpec,
        known: Option<&UpstreamPart>,
        services: &HashMap<&str, &'a ServiceSpec>,
        targets: &HashMap<&str, Option<usize>>,
        upstreams: &mut Upstreams<'a>,
    ) -> RouteOrigins<'a> {
        let service = self.compiler.referred(&written.origin, "service_id", &written.service_id, services, "services");
        let inline =
            written.upstream.as_deref().map(|inline| upstreams.part(inline, known, ("route", &*written.id, "")));
        if let (Some(known), None) = (known, &inline) {
            upstreams.remove(known);
        }
        let own = match &inline {
            Some(part) => Some(part.number),
            None => upstreams.referred(&written.origin, &written.upstream_id),
        };
        let upstream = own.or_else(|| targets.get(&*service?.id).copied().flatten());
        RouteOrigins { service, inline, upstream }
    }

    fn add(
        &mut self,
        written: &'a document::RouteSpec,
        services: &HashMap<&str, &'a ServiceSpec>,
        targets: &HashMap<&str, Option<usize>>,
        upstreams: &mut Upstreams<'a>,
        chains: &Chains<'a>,
    ) {
        let identity = Fingerprint::of(&written.id);
        let known = self.catalog.find(identity);
        let known_upstream = known.and_then(|known| known.upstream.as_ref());
        let RouteOrigins { service, inline, upstream } =
            self.origins(written, known_upstream, services, targets, upstreams);
        self.compiler.report_unfit(&written.origin, upstream.and_then(|number| upstreams.unfit_for_http(number)));
        let number = known.map_or_else(|| self.catalog.new_number(), |known| known.number);
        let known = known.filter(|_| self.before.is_some());
        let plugins = chains.plugins_of(written, service);
        let content = (written.content, service.map(|service| service.content));
        let key = plugins.key.map(|plugins| Fingerprint::of((content, plugins, upstream)));
        // A fault has been reported for a route without uris.
        let is_on = written.enabled && !written.uris.is_empty();
        let rule_key = is_on.then(|| Fingerprint::of(content));
        let order = self.place(known, rule_key, number);
        if is_on && known.is_none_or(|known| known.rule != rule_key || known.order != order) {
            self.added.push(rule(written, service, number, order));
            self.sources.push(Some(written));
        }
        let is_same = |known: &&CompiledRoute| {
            let unchanged = self.unchanged.dependencies | !Dependencies::OF_PLUGINS;
            key.is_some() && known.key == key && known.depends_on.are_among(unchanged)
        };
        if let Some(known) = known.filter(is_same) {
            known.declarations.iter().for_each(|declarations| chains.redeclare(declarations));
            let part = CompiledRoute { order, upstream: inline, ..known.clone() };
            return self.catalog.add(identity, written.content, part);
        }
        let warnings = self.compiler.warnings.count();
        let (chain, own) = chains.of_route(written, &plugins);
        let target = match self.hubs.of(self.compiler, written, &chain.request) {
            Some(hub) => Target::Responder(hub),
            None => upstream.map_or(Target::Nothing, Target::Upstream),
        };
        self.compiler.warn_of_missing_listeners(&written.origin, &written.listeners);
        match is_on {
            true => {
                if let Some(vars) = &written.vars {
                    self.compiler.warn_of_condition(&join(&written.origin.path, "vars"), vars);
                }
                self.pieces.set(number, Arc::new(self.route(written, service, target, chain)));
            }
            false => drop(self.pieces.remove(number)),
        }
        let key = key.filter(|_| self.compiler.warnings.count() == warnings);
        let declarations = (!own.declarations.is_empty()).then(|| own.declarations.into());
        let depends_on = Dependencies::from(own.inputs) | Dependencies::REFERENCES.only_if(refers(written));
        let part = CompiledRoute { number, key, depends_on, rule: rule_key, order, declarations, upstream: inline };
        self.catalog.add(identity, written.content, part);
    }

    /// The sort key of a rule: the previous one, if that still follows the key of the rule before it.
    fn place(&mut self, known: Option<&CompiledRoute>, rule: Option<Fingerprint>, number: usize) -> u64 {
        if let Some(known) = known {
            if known.rule == rule && (rule.is_none() || self.places.keep(known.order)) {
                return known.order;
            }
            if known.rule.is_some() {
                self.removed.push(number as u32);
            }
            if rule.is_some() && self.places.keep(known.order) {
                return known.order;
            }
        }
        if rule.is_none() {
            return 0;
        }
        let next = self.catalog.expected().filter(|next| self.before.is_some() && next.rule.is_some());
        let next = next.map(|next| next.order);
        self.places.before(next).unwrap_or_else(|| {
            self.has_no_room = true;
            0
        })
    }

    fn route(
        &self,
        written: &document::RouteSpec,
        service: Option<&ServiceSpec>,
        target: Target,
        chain: Chain,
    ) -> Route {
        let settings = &self.compiler.document.settings;
        let websocket = written.enable_websocket.or_else(|| service.and_then(|service| service.enable_websocket));
        Route {
            facts: RouteFacts {
                route_id: written.id.clone(),
                route_name: written.name.clone(),
                service_id: service.map(|service| service.id.clone()).unwrap_or_default(),
                service_name: service.map(|service| service.name.clone()).unwrap_or_default(),
                uris: written.uris.iter().map(|uri| uri.as_str().into()).collect(),
                hosts: hosts(written, service).iter().map(|host| host.as_str().into()).collect(),
                templates: written.uris.iter().filter_map(|uri| uri_template(uri)).collect(),
            },
            chain,
            target,
            timeouts: written.timeouts,
            request_timeout: written.request_timeout,
            upgrades: websocket.unwrap_or(true),
            encoded_separators: written.allow_encoded_slashes.unwrap_or(settings.allow_encoded_slashes),
            merge_slashes: written.merge_slashes.unwrap_or(settings.merge_slashes),
        }
    }

    /// The route of ACME challenges, which is compiled each time.
    pub(super) fn add_challenges(&mut self, hosts: &[AcmeHost]) {
        let identity = Fingerprint::of(("acme", "challenges"));
        let known = self.catalog.find(identity);
        let number = known.map_or_else(|| self.catalog.new_number(), |known| known.number);
        self.removed.extend(known.filter(|_| self.before.is_some()).map(|known| known.number as u32));
        let (rule, route) = self.compiler.challenge_route(hosts, number);
        self.added.push(rule);
        self.sources.push(None);
        self.pieces.set(number, Arc::new(route));
        let depends_on = Dependencies::default();
        let (rule, order) = (Some(identity), u64::MAX);
        let part = CompiledRoute { number, key: None, depends_on, rule, order, declarations: None, upstream: None };
        self.catalog.add(identity, identity, part);
    }

    /// `None` if a fault has been reported, or the table must be built from scratch.
    pub(super) fn finish(mut self, upstreams: &mut Upstreams<'a>) -> Option<CompiledRoutes> {
        let (catalog, gone) = self.catalog.finish();
        for part in gone {
            part.upstream.iter().for_each(|part| upstreams.remove(part));
            self.pieces.remove(part.number);
            self.removed.extend(part.rule.map(|_| part.number as u32));
        }
        if self.has_no_room {
            return None;
        }
        let table = match self.before {
            Some(before) => before.table.edited(&self.removed, self.added).ok()?,
            None => RouteTable::build(self.added)
                .map_err(|errors| errors.iter().for_each(|error| self.compiler.report_rule(&self.sources, error)))
                .ok()?,
        };
        let streams = self.compiler.stream_tables(&self.stream_rules);
        Some(CompiledRoutes { catalog, pieces: self.pieces, table, streams })
    }
}

impl Compiler<'_> {
    /// Reports that a resource cannot use its upstream: the problem, and what would be right.
    fn report_unfit(&self, origin: &ResourceOrigin, found: Option<(&str, &str)>) {
        if let Some((problem, advice)) = found {
            self.report(&origin.path, origin.place, problem, Some(advice.to_owned()));
        }
    }

    pub(super) fn report_rule(&self, sources: &[Option<&document::RouteSpec>], error: &BuildError) {
        // The challenge rule belongs to no route.
        let Some(route) = sources.get(error.rule).copied().flatten() else {
            let place = self.document.place_at("acme");
            return self.report("acme", place, format!("{}: {}", error.place, error.reason), None);
        };
        // The table reports indices of lists; a route may have `uri` or `host` instead, or its hosts from the service.
        let written = self.document.place_at(&join(&route.origin.path, &error.place));
        let (single, _) = error.place.split_once("s[").unwrap_or((&error.place, ""));
        let path = join(&route.origin.path, single);
        let place = self.document.place_at(&path);
        match place != route.origin.place && single != error.place {
            true => self.report(&path, place, &error.reason, None),
            false => self.report(&join(&route.origin.path, &error.place), written, &error.reason, None),
        }
    }
}

/// Whether a route depends on what its references refer to. Upstreams in options may be references as well.
fn refers(written: &document::RouteSpec) -> bool {
    let references = [&written.service_id, &written.upstream_id, &written.plugin_config_id];
    !written.listeners.is_empty()
        || references.iter().any(|reference| reference.is_some())
        || written.plugins.iter().any(|one| !one.shares.is_empty())
}

fn hosts<'a>(written: &'a document::RouteSpec, service: Option<&'a ServiceSpec>) -> &'a [String] {
    match service {
        Some(service) if written.hosts.is_empty() => &service.hosts,
        _ => &written.hosts,
    }
}

fn rule(written: &document::RouteSpec, service: Option<&ServiceSpec>, number: usize, order: u64) -> RouteRule {
    let methods = || written.methods.iter().map(|name| Method::parse(name.as_bytes())).collect::<MethodSet>();
    RouteRule {
        uris: written.uris.clone(),
        hosts: hosts(written, service).to_vec(),
        listeners: written.listeners.iter().map(|listener| listener.id.clone()).collect(),
        methods: (!written.methods.is_empty()).then(methods),
        remote_addrs: written.remote_addrs.clone(),
        priority: written.priority,
        vars: written.vars.clone(),
        among: None,
        order,
        route: number as u32,
    }
}
