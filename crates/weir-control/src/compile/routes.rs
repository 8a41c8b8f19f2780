//! Routes: each becomes a piece of the snapshot, and a rule of the table that finds it.

use std::collections::HashMap;
use std::sync::Arc;

use weir_gateway::route::{BuildError, MethodSet};
use weir_gateway::snapshot::{Chain, Pieces, Route, RouteRule, RouteTable, Target};
use weir_plugin::RouteFacts;
use weir_proto::Method;

use super::chains::Chains;
use super::parts::{Catalog, Cataloger, Parts, Places, RoutePart};
use super::upstreams::Upstreams;
use super::{Compiler, by_id};
use crate::document::{self, AcmeHost, ServiceSpec};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::join;

/// The routes of a snapshot while it is made.
pub(super) struct Routes<'a> {
    compiler: &'a Compiler<'a>,
    before: Option<&'a Parts>,
    catalog: Cataloger<'a, RoutePart>,
    pieces: Pieces<Arc<Route>>,
    places: Places,
    /// Rules that the table does not have yet, each beside the route it is of; ours has none.
    added: Vec<RouteRule>,
    sources: Vec<Option<&'a document::RouteSpec>>,
    /// Numbers whose rules the table has and is not to have any more.
    removed: Vec<u32>,
    /// Rules have changed places so that there is no room for others between them.
    has_no_room: bool,
}

impl<'a> Routes<'a> {
    pub(super) fn new(compiler: &'a Compiler<'a>, before: Option<&'a Parts>) -> Self {
        Routes {
            compiler,
            before,
            catalog: Cataloger::new(before.map(|parts| &*parts.routes)),
            pieces: before.map(|parts| parts.route_pieces.clone()).unwrap_or_default(),
            places: Places::new(),
            added: Vec::new(),
            sources: Vec::new(),
            removed: Vec::new(),
            has_no_room: false,
        }
    }

    pub(super) fn add_all(&mut self, upstreams: &mut Upstreams<'a>, chains: &Chains<'a>) {
        let document = self.compiler.document;
        let services: HashMap<&str, &ServiceSpec> = by_id(&document.services, |service| &service.id);
        let targets: HashMap<&str, Option<usize>> = document
            .services
            .iter()
            .map(|service| {
                let name = ("service", &*service.id, "");
                (name.1, upstreams.of(&service.origin, &service.upstream, &service.upstream_id, name))
            })
            .collect();
        for written in &document.routes {
            let service =
                self.compiler.referred(&written.origin, "service_id", &written.service_id, &services, "services");
            let name = ("route", &*written.id, "");
            let own = upstreams.of(&written.origin, &written.upstream, &written.upstream_id, name);
            let upstream = own.or_else(|| targets.get(&*service?.id).copied().flatten());
            self.add(written, service, upstream, chains);
        }
    }

    fn add(
        &mut self,
        written: &'a document::RouteSpec,
        service: Option<&ServiceSpec>,
        upstream: Option<usize>,
        chains: &Chains<'a>,
    ) {
        let plugins = chains.plugins_of(written, service);
        let content = (written.content, service.map(|service| service.content));
        let identity = Fingerprint::of(&written.id);
        let known = self.catalog.find(identity);
        let key = plugins.key.map(|plugins| Fingerprint::of((content, plugins, upstream)));
        let same = known.filter(|known| key.is_some() && known.key == key);
        let number = known.map_or_else(|| self.catalog.new_number(), |known| known.number);
        // A route without uris has a fault already.
        let is_on = written.enabled && !written.uris.is_empty();
        let rule_key = is_on.then(|| Fingerprint::of(content));
        let order = self.place(known, rule_key, number);
        if is_on && known.is_none_or(|known| known.rule != rule_key || known.order != order) {
            self.added.push(rule(written, service, number, order));
            self.sources.push(Some(written));
        }
        if let Some(known) = same {
            known.told.iter().for_each(|told| chains.tell_again(told));
            return self.catalog.add(identity, RoutePart { order, ..known.clone() });
        }
        let warnings = self.compiler.warnings.count();
        let (chain, told) = chains.of_route(written, &plugins);
        match is_on {
            true => {
                if let Some(vars) = &written.vars {
                    self.compiler.warn_of_unknown(&join(&written.origin.path, "vars"), vars);
                }
                self.pieces.set(number, Arc::new(self.route(written, service, upstream, chain)));
            }
            false => drop(self.pieces.remove(number)),
        }
        let key = key.filter(|_| self.compiler.warnings.count() == warnings);
        let told = (!told.is_empty()).then(|| told.into());
        self.catalog.add(identity, RoutePart { number, key, rule: rule_key, order, told });
    }

    /// The place of a rule: the one that it had, if it did not change and still stands after the one before it.
    fn place(&mut self, known: Option<&RoutePart>, rule: Option<Fingerprint>, number: usize) -> u64 {
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
        let next = self.catalog.expected().filter(|next| next.rule.is_some()).map(|next| next.order);
        self.places.before(next).unwrap_or_else(|| {
            self.has_no_room = true;
            0
        })
    }

    fn route(
        &self,
        written: &document::RouteSpec,
        service: Option<&ServiceSpec>,
        upstream: Option<usize>,
        chain: Chain,
    ) -> Route {
        let websocket = written.enable_websocket.or_else(|| service.and_then(|service| service.enable_websocket));
        Route {
            facts: RouteFacts {
                route_id: written.id.clone(),
                route_name: written.name.clone(),
                service_id: service.map(|service| service.id.clone()).unwrap_or_default(),
                service_name: service.map(|service| service.name.clone()).unwrap_or_default(),
            },
            chain,
            target: upstream.map_or(Target::Nothing, Target::Upstream),
            timeouts: written.timeouts,
            upgrades: websocket.unwrap_or(true),
            encoded_separators: self.compiler.document.settings.allow_encoded_slashes,
        }
    }

    /// The route of an authority's challenges, which is made anew each time.
    pub(super) fn add_challenges(&mut self, hosts: &[AcmeHost]) {
        let identity = Fingerprint::of(("acme", "challenges"));
        let known = self.catalog.find(identity);
        let number = known.map_or_else(|| self.catalog.new_number(), |known| known.number);
        self.removed.extend(known.map(|known| known.number as u32));
        let (rule, route) = self.compiler.challenge_route(hosts, number);
        self.added.push(rule);
        self.sources.push(None);
        self.pieces.set(number, Arc::new(route));
        let rule = Some(identity);
        self.catalog.add(identity, RoutePart { number, key: None, rule, order: u64::MAX, told: None });
    }

    /// Nothing where a fault has been reported, or the table must be made from scratch.
    pub(super) fn finish(mut self) -> Option<(Catalog<RoutePart>, Pieces<Arc<Route>>, RouteTable)> {
        let (catalog, gone) = self.catalog.finish(|part| part.number);
        for part in gone {
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
        Some((catalog, self.pieces, table))
    }
}

impl Compiler<'_> {
    pub(super) fn report_rule(&self, sources: &[Option<&document::RouteSpec>], error: &BuildError) {
        // One rule may be our own.
        let Some(route) = sources.get(error.rule).copied().flatten() else {
            let place = self.document.tree.place_of("acme");
            return self.report("acme", place, format!("{}: {}", error.place, error.reason), None);
        };
        // The table counts in lists; a route may say `uri` and `host`, or have its hosts from the service.
        let written = self.document.tree.place_of(&join(&route.origin.path, &error.place));
        let (single, _) = error.place.split_once("s[").unwrap_or((&error.place, ""));
        let path = join(&route.origin.path, single);
        let place = self.document.tree.place_of(&path);
        match place != route.origin.place && single != error.place {
            true => self.report(&path, place, &error.reason, None),
            false => self.report(&join(&route.origin.path, &error.place), written, &error.reason, None),
        }
    }
}

fn rule(written: &document::RouteSpec, service: Option<&ServiceSpec>, number: usize, order: u64) -> RouteRule {
    let hosts = match service {
        Some(service) if written.hosts.is_empty() => &service.hosts,
        _ => &written.hosts,
    };
    let methods = || written.methods.iter().map(|name| Method::parse(name.as_bytes())).collect::<MethodSet>();
    RouteRule {
        uris: written.uris.clone(),
        hosts: hosts.clone(),
        methods: (!written.methods.is_empty()).then(methods),
        remote_addrs: written.remote_addrs.clone(),
        priority: written.priority,
        vars: written.vars.clone(),
        among: None,
        order,
        route: number as u32,
    }
}
