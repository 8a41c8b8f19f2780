//! Stream routes: each is compiled to a piece of the snapshot, as a route is, and to a rule of a table of their own.

use std::collections::HashMap;
use std::sync::Arc;

use weir_gateway::snapshot::{Route, StreamRule, StreamTables, TakenStream, Target, Transport};
use weir_plugin::RouteFacts;

use super::RouteCompiler;
use crate::compile::Compiler;
use crate::compile::chains::{Chains, RoutePlugins};
use crate::compile::dependencies::Dependencies;
use crate::compile::parts::CompiledRoute;
use crate::compile::upstreams::Upstreams;
use crate::document::{ServiceSpec, StreamRouteSpec};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::join;

/// What stream routes may refer to.
pub(super) struct StreamReferences<'r, 'a> {
    pub services: &'r HashMap<&'r str, &'a ServiceSpec>,
    /// The upstream of each service.
    pub targets: &'r HashMap<&'r str, Option<usize>>,
}

/// The kind of the resource, which stands before the id in logs and metrics: a route may have the same id.
const KIND: &str = "stream_route";

impl<'a> RouteCompiler<'a> {
    pub(super) fn add_stream(
        &mut self,
        written: &'a StreamRouteSpec,
        references: &StreamReferences<'_, 'a>,
        upstreams: &mut Upstreams<'a>,
        chains: &Chains<'a>,
    ) {
        let compiler = self.compiler;
        let identity = Fingerprint::of((KIND, &written.id));
        let known = self.catalog.find(identity);
        let number = known.map_or_else(|| self.catalog.new_number(), |known| known.number);
        let StreamReferences { services, targets } = references;
        let service = compiler.referred(&written.origin, "service_id", &written.service_id, services, "services");
        let known_upstream = known.and_then(|known| known.upstream.as_ref());
        let inline = written.upstream.as_deref();
        let inline = inline.map(|inline| upstreams.part(inline, known_upstream, (KIND, &written.id, "")));
        if let (Some(known), None) = (known_upstream, &inline) {
            upstreams.remove(known);
        }
        let upstream = match &inline {
            Some(part) => Some(part.number),
            None => upstreams.referred(&written.origin, &written.upstream_id),
        };
        let upstream = upstream.or_else(|| targets.get(&*service?.id).copied().flatten());
        compiler.warn_of_missing_listeners(&written.origin, &written.listeners);
        compiler.report_unfit(&written.origin, upstream.and_then(|number| upstreams.unfit_for_streams(number)));
        chains.refuse_plugins_for_http(written, service);
        let transport = upstream.and_then(|number| upstreams.transport(number));
        self.stream_rules.push(rule(written, number, transport));
        let plugins = chains.plugins_of_stream(written, service);
        let content = (written.content, service.map(|service| service.content));
        let key = plugins.key.map(|plugins| Fingerprint::of((content, plugins, upstream)));
        if let Some(known) = known.filter(|known| self.before.is_some() && self.is_same_stream(known, key)) {
            known.declarations.iter().for_each(|declarations| chains.redeclare(declarations));
            let part = CompiledRoute { upstream: inline, ..known.clone() };
            return self.catalog.add(identity, written.content, part);
        }
        let warnings = compiler.warnings.count();
        let (route, part) = self.built_stream(written, service, upstream, &plugins, chains);
        self.pieces.set(number, Arc::new(route));
        let key = key.filter(|_| compiler.warnings.count() == warnings);
        self.catalog.add(identity, written.content, CompiledRoute { number, key, upstream: inline, ..part });
    }

    /// The rule of a stream route is made each time, which costs less than to find out whether it may stay.
    fn is_same_stream(&self, known: &CompiledRoute, key: Option<Fingerprint>) -> bool {
        let built_from = Dependencies::CONSUMERS | Dependencies::METADATA | Dependencies::HTTP;
        key.is_some() && known.key == key && known.depends_on.are_among(self.unchanged.dependencies | !built_from)
    }

    fn built_stream(
        &self,
        written: &StreamRouteSpec,
        service: Option<&ServiceSpec>,
        upstream: Option<usize>,
        plugins: &RoutePlugins,
        chains: &Chains<'a>,
    ) -> (Route, CompiledRoute) {
        let (chain, own) = chains.of_stream(written, plugins);
        let route = Route {
            facts: RouteFacts {
                route_id: format!("{KIND}/{}", written.id).into(),
                route_name: written.name.clone(),
                service_id: service.map(|service| service.id.clone()).unwrap_or_default(),
                service_name: service.map(|service| service.name.clone()).unwrap_or_default(),
                ..RouteFacts::default()
            },
            chain,
            target: upstream.map_or(Target::Nothing, Target::Upstream),
            timeouts: None,
            request_timeout: None,
            upgrades: false,
            encoded_separators: false,
            merge_slashes: false,
        };
        let declarations = (!own.declarations.is_empty()).then(|| own.declarations.into());
        let refers = written.service_id.is_some()
            || written.upstream_id.is_some()
            || written.plugins.iter().any(|one| !one.shares.is_empty());
        let depends_on = Dependencies::from(own.inputs) | Dependencies::REFERENCES.only_if(refers);
        let part =
            CompiledRoute { number: 0, key: None, depends_on, rule: None, order: 0, declarations, upstream: None };
        (route, part)
    }
}

fn rule(written: &StreamRouteSpec, number: usize, transport: Option<Transport>) -> StreamRule {
    StreamRule {
        server_names: written.snis.clone(),
        server_port: written.server_port,
        server_addr: written.server_addr,
        remote_addr: written.remote_addr,
        listeners: written.listeners.iter().map(|listener| listener.id.clone()).collect(),
        transport,
        taken: TakenStream {
            route: number as u32,
            tls_passthrough: written.tls_passthrough,
            idle_timeout: written.idle_timeout,
        },
    }
}

impl Compiler<'_> {
    /// The tables of the rules of all stream routes; a name that is not valid is a fault.
    pub(super) fn stream_tables(&self, rules: &[StreamRule]) -> StreamTables {
        StreamTables::build(rules).unwrap_or_else(|(rule, name, reason)| {
            // The rules are in the order of the document.
            let origin = &self.document.stream_routes[rule].origin;
            let is_list = self.document.place_at(&join(&origin.path, "snis")) != origin.place;
            let key = if is_list { format!("snis[{name}]") } else { "sni".to_owned() };
            let path = join(&origin.path, &key);
            self.report(&path, self.document.place_at(&path), reason, None);
            StreamTables::default()
        })
    }
}
