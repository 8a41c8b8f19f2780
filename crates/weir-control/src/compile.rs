//! From a document to a snapshot: pure, all or nothing, all faults at once.

mod acme;
mod certificates;
mod chains;
mod consumers;
mod http_client;
mod meta;
mod secured;
mod upstreams;

use std::collections::HashMap;
use std::sync::Arc;

use weir_client::HttpClient;
use weir_gateway::route::{BuildError, MethodSet};
use weir_gateway::snapshot::{Route, RouteRule, RouteTable, Snapshot, Target};
use weir_plugin::{Expression, Moment, Registry, RouteFacts};
use weir_proto::Method;

use crate::acme::{AcmeTerms, Challenges};
use crate::document::{self, Challenge, Document, Reference, ResourceOrigin, ServiceSpec};
use crate::text::diagnostic::{Diagnostic, Faults};
use crate::text::read::join;
use crate::text::suggest::{closest, meant};
use crate::text::tree::TextPosition;

pub(crate) use certificates::Presented;
use chains::Chains;
use upstreams::Upstreams;

/// A document that can be served.
pub struct Compiled {
    /// With revision 0: numbers are given where snapshots are published.
    pub snapshot: Snapshot,
    /// The certificates that are to be got from an authority.
    pub acme: Option<Arc<AcmeTerms>>,
    /// What is accepted but probably not meant.
    pub warnings: Vec<Diagnostic>,
    pub(crate) presented: Presented,
}

/// Compiles a document. Does no I/O: names of hosts must have been looked up ([`Document::addresses`]), and a node whose
/// name has no address gets no endpoint.
///
/// # Errors
/// Everything that is wrong with the document, in the order of its text.
pub fn compile(document: &Document, registry: &Registry) -> Result<Compiled, Vec<Diagnostic>> {
    compile_answering(document, registry, &Arc::default())
}

/// The same, for a node that answers these challenges of an authority while orders are open.
pub(crate) fn compile_answering(
    document: &Document,
    registry: &Registry,
    challenges: &Arc<Challenges>,
) -> Result<Compiled, Vec<Diagnostic>> {
    let mut compiler = Compiler {
        document,
        faults: Faults::new(document.source.clone()),
        warnings: Faults::new(document.source.clone()),
        presented: Presented::default(),
        http: HttpClient::default(),
        challenges: Arc::clone(challenges),
    };
    compiler.http = compiler.http_client();
    let compiled = compiler.snapshot(registry);
    let mut faults = document.faults.clone();
    faults.extend(compiler.faults.into_diagnostics());
    match compiled {
        Some((snapshot, acme)) if faults.is_empty() => {
            let warnings = compiler.warnings.into_diagnostics();
            Ok(Compiled { snapshot, acme, warnings, presented: compiler.presented })
        }
        _ => {
            // Stable, and what has no place comes last.
            faults.sort_by_key(|fault| (fault.line.unwrap_or(u32::MAX), fault.column));
            Err(faults)
        }
    }
}

struct Compiler<'a> {
    document: &'a Document,
    faults: Faults,
    warnings: Faults,
    presented: Presented,
    /// For the gateway's own requests.
    http: HttpClient,
    challenges: Arc<Challenges>,
}

impl Compiler<'_> {
    /// Nothing only where a fault has been reported.
    fn snapshot(&self, registry: &Registry) -> Option<(Snapshot, Option<Arc<AcmeTerms>>)> {
        let document = self.document;
        let services: HashMap<&str, &ServiceSpec> = by_id(&document.services, |service| &service.id);
        let mut upstreams = Upstreams::new(self);
        let shares = upstreams.of_shares();
        let chains = Chains::new(self, registry, consumers::read(self, registry), shares);
        let targets: HashMap<&str, Option<usize>> = document
            .services
            .iter()
            .map(|service| {
                let name = || format!("service/{}", service.id);
                (&*service.id, upstreams.of(&service.origin, &service.upstream, &service.upstream_id, name))
            })
            .collect();
        let mut routes = Vec::with_capacity(document.routes.len());
        let mut rules = Vec::with_capacity(document.routes.len());
        let mut sources = Vec::with_capacity(document.routes.len());
        for written in &document.routes {
            let service = self.referred(&written.origin, "service_id", &written.service_id, &services, "services");
            let name = || format!("route/{}", written.id);
            let own = upstreams.of(&written.origin, &written.upstream, &written.upstream_id, name);
            let upstream = own.or_else(|| targets.get(&*service?.id).copied().flatten());
            let chain = chains.of_route(written, service);
            // A route without uris has a fault already.
            if !written.enabled || written.uris.is_empty() {
                continue;
            }
            if let Some(vars) = &written.vars {
                self.warn_of_unknown(&join(&written.origin.path, "vars"), vars);
            }
            rules.push(rule(written, service, routes.len()));
            sources.push(written);
            routes.push(Route {
                facts: RouteFacts {
                    route_id: written.id.clone(),
                    route_name: written.name.clone(),
                    service_id: service.map(|service| service.id.clone()).unwrap_or_default(),
                    service_name: service.map(|service| service.name.clone()).unwrap_or_default(),
                },
                chain,
                target: upstream.map_or(Target::Nothing, Target::Upstream),
                timeouts: written.timeouts,
                upgrades: written
                    .enable_websocket
                    .or_else(|| service.and_then(|service| service.enable_websocket))
                    .unwrap_or(true),
                encoded_separators: document.settings.allow_encoded_slashes,
            });
        }
        let mut certificates = self.certificates();
        let acme = self.acme(&certificates);
        if let Some(terms) = &acme {
            self.add_obtained(&terms.hosts, &mut certificates);
            match terms.challenge {
                Challenge::Http01 => {
                    let (rule, route) = self.challenge_route(&terms.hosts, routes.len());
                    rules.push(rule);
                    routes.push(route);
                }
                Challenge::TlsAlpn01 => certificates.answer_with(Arc::clone(&self.challenges) as _),
            }
        }
        self.warn_of_silence(&certificates);
        let table = RouteTable::build(rules)
            .map_err(|errors| errors.iter().for_each(|error| self.report_rule(&sources, error)))
            .ok()?;
        let snapshot = Snapshot {
            revision: 0,
            clients: document.settings.clients.clone(),
            table,
            routes,
            upstreams: upstreams.into_compiled(),
            unmatched: chains.unmatched(),
            certificates,
            overlays: chains.overlays(),
            secret_arguments: chains.secret_arguments(),
            price_every: document.settings.price_every,
        };
        Some((snapshot, acme))
    }

    fn report(&self, path: &str, place: TextPosition, problem: impl Into<String>, advice: Option<String>) {
        self.faults.report_text(path, place, problem, advice);
    }

    /// Warns of variables that are always empty because nobody knows them.
    fn warn_of_unknown(&self, path: &str, condition: &Expression) {
        for variable in condition.variables() {
            if variable.is_known() {
                continue;
            }
            let advice = meant(variable).map(|known| format!("did you mean `{known}`?"));
            let problem = variable.absence(Moment::Record).expect("nobody knows it");
            self.warnings.report_text(path, self.document.tree.place_of(path), problem, advice);
        }
    }

    fn report_rule(&self, sources: &[&document::RouteSpec], error: &BuildError) {
        // The last rule may be one of our own.
        let Some(route) = sources.get(error.rule) else {
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

    /// What a reference refers to. A reference to nothing is a fault.
    fn referred<T: Copy>(
        &self,
        origin: &ResourceOrigin,
        key: &str,
        reference: &Option<Reference>,
        all: &HashMap<&str, T>,
        list: &str,
    ) -> Option<T> {
        let Reference { id, place } = reference.as_ref()?;
        let found = all.get(&**id).copied();
        if found.is_none() {
            let suggestion = if self.faults.is_full() { None } else { closest(id, all.keys().copied()) };
            let advice = match suggestion {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("add it to `{list}`"),
            };
            self.report(&join(&origin.path, key), *place, format!("`{list}` has no `{id}`"), Some(advice));
        }
        found
    }
}

fn by_id<T>(all: &[T], id: impl Fn(&T) -> &str) -> HashMap<&str, &T> {
    all.iter().map(|one| (id(one), one)).collect()
}

fn rule(written: &document::RouteSpec, service: Option<&ServiceSpec>, number: usize) -> RouteRule {
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
        route: number as u32,
    }
}
