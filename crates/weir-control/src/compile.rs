//! Compiles a document into a snapshot, without I/O. Either the whole document is compiled, or all of its faults are reported.

mod acme;
mod answers;
mod built;
mod catalog;
mod certificates;
mod chains;
mod consumers;
mod dependencies;
mod file_plugins;
mod http_client;
mod hubs;
mod listeners;
mod meta;
mod parts;
mod plugin_findings;
mod routes;
mod secured;
mod spiffe;
mod upstreams;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use weir_client::HttpClient;
use weir_gateway::snapshot::{Certificates, ClientSettings, Snapshot};
use weir_plugin::{ExchangePhase, Expression, Registry};

use crate::acme::{AcmeTerms, Challenges};
use crate::data_directory::data_directory;
use crate::document::{Challenge, CompleteDocument, Document, NameQuery, NodeSettings, Reference, ResourceOrigin};
use crate::hubs::{HubTerms, Hubs};
use crate::text::diagnostic::{Diagnostic, FaultCause, Faults};
use crate::text::read::join;
use crate::text::tree::TextPosition;
use weir_plugin::suggest::{closest, meant};

use built::Sets;
pub use certificates::{CertificateEnd, ListedCertificate};
pub(crate) use certificates::{DocumentCertificates, ServedCertificates};
use chains::Chains;
use dependencies::{Dependencies, Surroundings, Unchanged};
pub(crate) use file_plugins::registry_of;
pub use parts::Parts;
use routes::{CompiledRoutes, RouteCompiler};
use upstreams::Upstreams;

/// The result of compiling a document without faults.
pub struct Compiled {
    /// Its revision is 0: revisions are numbered when snapshots are published.
    pub snapshot: Snapshot,
    /// The certificates to obtain from an ACME authority.
    pub acme: Option<Arc<AcmeTerms>>,
    /// The hubs to run.
    pub hubs: Arc<[HubTerms]>,
    /// Settings that are accepted but probably not intended.
    pub warnings: Vec<Diagnostic>,
    /// The compiled parts that the next document may reuse.
    pub parts: Parts,
    pub(crate) presented: DocumentCertificates,
    /// The client for requests that the gateway itself makes.
    pub http: HttpClient,
}

/// Compiles a document. Does no I/O: host names must have been looked up ([`CompleteDocument::found`]); a node whose name has no address
/// gets no endpoint.
///
/// Parts that did not change since `previous` are reused. This affects only the cost: the snapshot is equivalent to one compiled
/// from scratch, except that its routes and upstreams may have other numbers.
///
/// # Errors
/// All faults of the document, in the order of its text.
pub fn compile(
    document: &CompleteDocument,
    registry: &Registry,
    previous: Option<&Parts>,
) -> Result<Compiled, Vec<Diagnostic>> {
    compile_for(document, registry, previous, &NodeServices::default())
}

/// The services of a node that outlive its configurations; snapshots refer to them.
#[derive(Clone, Default)]
pub(crate) struct NodeServices {
    /// The responses to ACME challenges of open orders.
    pub(crate) challenges: Arc<Challenges>,
    pub(crate) hubs: Arc<Hubs>,
    /// The settings that the node started with, some of which cannot change later; empty before the first publication.
    pub(crate) started_with: Arc<OnceLock<Arc<NodeSettings>>>,
}

/// Like [`compile`], for a node with its services.
pub(crate) fn compile_for(
    document: &CompleteDocument,
    registry: &Registry,
    previous: Option<&Parts>,
    services: &NodeServices,
) -> Result<Compiled, Vec<Diagnostic>> {
    let registry = &registry_of(registry, &document.settings);
    let compiler = || Compiler::new(document, services.clone());
    if let Some(parts) = previous
        && document.faults.is_empty()
        && let Some(compiled) = compiler().changes(registry, parts)
    {
        return Ok(compiled);
    }
    compiler().whole(registry, previous)
}

struct Compiler<'a> {
    document: &'a CompleteDocument,
    surroundings: Surroundings,
    faults: Faults,
    warnings: Faults,
    presented: DocumentCertificates,
    /// The client for requests that the gateway itself makes.
    http: HttpClient,
    node: NodeServices,
}

/// What is compiled from a document, without the warnings.
struct CompiledParts {
    snapshot: Snapshot,
    acme: Option<Arc<AcmeTerms>>,
    hubs: Arc<[HubTerms]>,
    parts: Parts,
}

impl<'a> Compiler<'a> {
    fn new(document: &'a CompleteDocument, node: NodeServices) -> Compiler<'a> {
        let faults = match document.store_revision() {
            Some(_) => Faults::of_each_resource(document.source.clone()),
            None => Faults::new(document.source.clone()),
        };
        let mut compiler = Compiler {
            document,
            surroundings: Surroundings::of(document),
            faults,
            warnings: Faults::new(document.source.clone()),
            presented: DocumentCertificates::default(),
            http: HttpClient::default(),
            node,
        };
        compiler.http = compiler.http_client();
        compiler
    }

    /// Compiles what is not in `parts` already. `None` if that is not possible: there is a fault, and listing all faults needs a
    /// whole compilation, or a change affects everything.
    fn changes(self, registry: &Registry, parts: &Parts) -> Option<Compiled> {
        let unchanged = Unchanged::since(Some(&parts.surroundings), &self.surroundings);
        let made = self.make(registry, Some(parts), unchanged)?;
        self.faults.into_diagnostics().is_empty().then(|| Compiled {
            snapshot: made.snapshot,
            acme: made.acme,
            hubs: made.hubs,
            warnings: located(self.document, self.warnings),
            parts: made.parts,
            presented: self.presented,
            http: self.http,
        })
    }

    /// Compiles everything, except that unchanged upstreams are reused, since they depend on nothing else.
    fn whole(self, registry: &Registry, previous: Option<&Parts>) -> Result<Compiled, Vec<Diagnostic>> {
        let made = self.make(registry, previous, Unchanged::default());
        let mut faults = self.document.faults.clone();
        faults.extend(self.faults.into_diagnostics());
        match made {
            Some(CompiledParts { snapshot, acme, hubs, parts }) if faults.is_empty() => {
                let warnings = located(self.document, self.warnings);
                Ok(Compiled { snapshot, acme, hubs, warnings, parts, presented: self.presented, http: self.http })
            }
            _ => {
                // The sort is stable; faults without a line come last.
                faults.sort_by_key(|fault| (fault.line.unwrap_or(u32::MAX), fault.column));
                Err(faults.into_iter().map(|fault| self.document.located(fault)).collect())
            }
        }
    }

    /// `None` only if a fault has been reported, or a reused part of `before` does not fit.
    fn make(&self, registry: &Registry, before: Option<&Parts>, unchanged: Unchanged) -> Option<CompiledParts> {
        let document = self.document;
        let listeners = self.listeners();
        let mut upstreams = Upstreams::new(self, before);
        let shares = upstreams.of_shares();
        let reused = before.filter(|_| unchanged.general);
        let sets = Sets::new(reused.map(|parts| &*parts.sets));
        let file_plugins = self.loaded_plugins(registry);
        let known = consumers::read(self, registry, &file_plugins);
        let same = before.filter(|_| Dependencies::CONSUMERS.are_among(unchanged.dependencies));
        let identities =
            same.map_or_else(|| Arc::new(known.shared.consumers.identities()), |parts| Arc::clone(&parts.identities));
        let chains = Chains::new(self, registry, known, shares, sets, unchanged.dependencies);
        let mut routes = RouteCompiler::new(self, before, unchanged);
        let references = routes.add_all(&mut upstreams, &chains);
        let mut certificates = self.certificates();
        let acme = self.acme(&certificates);
        if let Some(terms) = &acme {
            self.add_obtained(&terms.hosts, &mut certificates);
            self.add_challenges(terms, &mut routes, &mut certificates);
        }
        self.warn_of_silence(&certificates);
        self.warn_of_open_workload_api();
        let CompiledRoutes { catalog, pieces: route_pieces, table, streams } = routes.finish(&mut upstreams)?;
        let (upstream_catalog, upstream_pieces) = upstreams.finish();
        let (overlays, secret_fields) = (chains.overlays(), chains.secret_fields());
        if chains.disagrees() || reused.is_some_and(|parts| parts.secret_fields != secret_fields) {
            return None;
        }
        let snapshot = Snapshot {
            revision: 0,
            clients: self.clients(),
            listeners,
            table: table.clone(),
            streams,
            routes: route_pieces.clone(),
            upstreams: upstream_pieces.clone(),
            unmatched: chains.unmatched(),
            certificates,
            overlays,
            identities: Arc::clone(&identities),
            secret_arguments: chains.secret_arguments(),
            price_every: document.settings.price_every,
        };
        let parts = Parts {
            surroundings: self.surroundings.clone(),
            references,
            global: chains.global_key(),
            upstreams: Arc::new(upstream_catalog),
            upstream_pieces,
            routes: Arc::new(catalog),
            route_pieces,
            table,
            sets: Arc::new(chains.into_sets().into_used()),
            identities,
            secret_fields,
            file_plugins,
        };
        Some(CompiledParts { snapshot, acme, hubs: self.hub_terms(), parts })
    }

    fn clients(&self) -> ClientSettings {
        let mut clients = self.document.settings.clients.clone();
        clients.traced.directory = data_directory(self.lasting(), &self.document.beside.directory).join("qlog");
        clients
    }

    /// The settings to read what a running node does not change, such as where its files are.
    fn lasting(&self) -> &NodeSettings {
        self.node.started_with.get().map_or(&self.document.settings, |settings| settings)
    }

    /// Adds what answers the challenges of an authority.
    fn add_challenges(&self, terms: &AcmeTerms, routes: &mut RouteCompiler<'_>, certificates: &mut Certificates) {
        match terms.challenge {
            Challenge::Http01 => routes.add_challenges(&terms.hosts),
            Challenge::TlsAlpn01 => certificates.set_challenge_certificates(Arc::clone(&self.node.challenges) as _),
        }
    }

    /// Reports upstreams whose endpoints come from a registry that the node does not know.
    fn report_missing_registry(&self) {
        let has_faults = || self.document.faults.iter().any(|fault| fault.path.starts_with("discovery"));
        if has_faults() {
            return;
        }
        for upstream in self.document.noted_upstreams() {
            let Some((NameQuery::Registered { registry, service }, place)) = &upstream.service else { continue };
            let missing = self.document.settings.discovery.missing_for(registry, service);
            let Some((problem, advice)) = missing else { continue };
            let path = join(&upstream.origin.path, "discovery_type");
            self.report(&path, *place, problem, Some(advice));
        }
    }

    fn report(&self, path: &str, place: TextPosition, problem: impl Into<String>, advice: Option<String>) {
        self.faults.report_text(path, place, problem, advice);
    }

    /// Warns of unknown variables, which are always empty, and of conditions that are probably not intended.
    fn warn_of_condition(&self, path: &str, condition: &Expression) {
        for variable in condition.variables() {
            if variable.is_known() {
                continue;
            }
            let advice = meant(variable).map(|known| format!("did you mean `{known}`?"));
            let problem =
                variable.absence(ExchangePhase::Record).expect("an unknown variable has no value at any moment");
            self.warnings.report_text(path, self.document.place_at(path), problem, advice);
        }
        for doubt in condition.doubts() {
            let path = format!("{path}{}", doubt.place);
            let place = self.document.place_at(&path);
            self.warnings.report_text(&path, place, &doubt.reason, Some(doubt.help.clone()));
        }
    }

    /// The resource that a reference refers to. A dangling reference is a fault.
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
            let suggestion = if self.faults.has_suggested() { None } else { closest(id, all.keys().copied()) };
            let advice = match suggestion {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("add it to `{list}`"),
            };
            let fault = Diagnostic::at_place(&self.document.source, *place, format!("`{list}` has no `{id}`"));
            let path = join(&origin.path, key);
            let cause = FaultCause::missing(list, id);
            self.faults.add(Diagnostic { path, cause, ..fault.advise(advice) });
        }
        found
    }
}

/// All findings, each with the file that it concerns.
fn located(document: &Document, found: Faults) -> Vec<Diagnostic> {
    found.into_diagnostics().into_iter().map(|diagnostic| document.located(diagnostic)).collect()
}

fn by_id<'a, T>(all: impl Iterator<Item = &'a T>, id: impl Fn(&'a T) -> &'a str) -> HashMap<&'a str, &'a T> {
    all.map(|one| (id(one), one)).collect()
}
