//! From a document to a snapshot: pure, all or nothing, all faults at once.

mod acme;
mod certificates;
mod chains;
mod consumers;
mod http_client;
mod meta;
mod parts;
mod routes;
mod secured;
mod upstreams;

use std::collections::HashMap;
use std::sync::Arc;

use weir_client::HttpClient;
use weir_gateway::snapshot::Snapshot;
use weir_plugin::{Expression, Moment, Registry};

use crate::acme::{AcmeTerms, Challenges};
use crate::document::{Challenge, Document, Reference, ResourceOrigin};
use crate::text::diagnostic::{Diagnostic, Faults};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::join;
use crate::text::suggest::{closest, meant};
use crate::text::tree::TextPosition;

pub(crate) use certificates::Presented;
use chains::Chains;
pub use parts::Parts;
use parts::Sets;
use routes::Routes;
use upstreams::Upstreams;

/// A document that can be served.
pub struct Compiled {
    /// With revision 0: numbers are given where snapshots are published.
    pub snapshot: Snapshot,
    /// The certificates that are to be got from an authority.
    pub acme: Option<Arc<AcmeTerms>>,
    /// What is accepted but probably not meant.
    pub warnings: Vec<Diagnostic>,
    /// What the next document may have in common with this one.
    pub parts: Parts,
    pub(crate) presented: Presented,
}

/// Compiles a document. Does no I/O: names of hosts must have been looked up ([`Document::addresses`]), and a node whose
/// name has no address gets no endpoint.
///
/// What did not change since `previous` is taken from there. That changes the cost and nothing else: the snapshot means the same
/// as one that was compiled from scratch. Only the numbers of its routes and upstreams may be other ones.
///
/// # Errors
/// Everything that is wrong with the document, in the order of its text.
pub fn compile(
    document: &Document,
    registry: &Registry,
    previous: Option<&Parts>,
) -> Result<Compiled, Vec<Diagnostic>> {
    compile_answering(document, registry, previous, &Arc::default())
}

/// The same, for a node that answers these challenges of an authority while orders are open.
pub(crate) fn compile_answering(
    document: &Document,
    registry: &Registry,
    previous: Option<&Parts>,
    challenges: &Arc<Challenges>,
) -> Result<Compiled, Vec<Diagnostic>> {
    let compiler = || Compiler::new(document, Arc::clone(challenges));
    if let Some(parts) = previous
        && parts.context == context(document)
        && document.faults.is_empty()
        && let Some(compiled) = compiler().changes(registry, parts)
    {
        return Ok(compiled);
    }
    compiler().whole(registry, previous)
}

/// What every route depends on: all of the document but what is compiled part by part, and the files and certificates that
/// clients for the gateway's own requests and for upstreams are made from.
fn context(document: &Document) -> Fingerprint {
    let mut files: Vec<_> =
        document.files.iter().filter(|(name, _)| !document.node_files.contains_key(*name)).collect();
    files.sort_by_key(|(name, _)| *name);
    let roots: Vec<&[u8]> = document.system_roots.iter().map(|root| &**root).collect();
    Fingerprint::of((document.context, files, roots))
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

/// What is made of a document, but for what it keeps for the next one.
struct Made {
    snapshot: Snapshot,
    acme: Option<Arc<AcmeTerms>>,
    parts: Parts,
}

impl<'a> Compiler<'a> {
    fn new(document: &'a Document, challenges: Arc<Challenges>) -> Compiler<'a> {
        let mut compiler = Compiler {
            document,
            faults: Faults::new(document.source.clone()),
            warnings: Faults::new(document.source.clone()),
            presented: Presented::default(),
            http: HttpClient::default(),
            challenges,
        };
        compiler.http = compiler.http_client();
        compiler
    }

    /// Compiles what is not in `parts` already. Nothing where that does not do: something is wrong, and to say all that is wrong
    /// takes a look at everything, or a change concerns all.
    fn changes(self, registry: &Registry, parts: &Parts) -> Option<Compiled> {
        let made = self.make(registry, Some(parts), Some(parts))?;
        self.faults.into_diagnostics().is_empty().then(|| Compiled {
            snapshot: made.snapshot,
            acme: made.acme,
            warnings: self.warnings.into_diagnostics(),
            parts: made.parts,
            presented: self.presented,
        })
    }

    /// Compiles everything but the upstreams that are there already, which depend on nothing else.
    fn whole(self, registry: &Registry, previous: Option<&Parts>) -> Result<Compiled, Vec<Diagnostic>> {
        let made = self.make(registry, previous, None);
        let mut faults = self.document.faults.clone();
        faults.extend(self.faults.into_diagnostics());
        match made {
            Some(Made { snapshot, acme, parts }) if faults.is_empty() => {
                let warnings = self.warnings.into_diagnostics();
                Ok(Compiled { snapshot, acme, warnings, parts, presented: self.presented })
            }
            _ => {
                // Stable, and what has no place comes last.
                faults.sort_by_key(|fault| (fault.line.unwrap_or(u32::MAX), fault.column));
                Err(faults)
            }
        }
    }

    /// Nothing only where a fault has been reported, or `before` does not do.
    fn make(&self, registry: &Registry, with_upstreams: Option<&Parts>, before: Option<&Parts>) -> Option<Made> {
        let document = self.document;
        let mut upstreams = Upstreams::new(self, with_upstreams);
        let shares = upstreams.of_shares();
        let sets = Sets::new(before.map(|parts| &*parts.sets));
        let chains = Chains::new(self, registry, consumers::read(self, registry), shares, sets);
        let mut routes = Routes::new(self, before);
        routes.add_all(&mut upstreams, &chains);
        let mut certificates = self.certificates();
        let acme = self.acme(&certificates);
        if let Some(terms) = &acme {
            self.add_obtained(&terms.hosts, &mut certificates);
            match terms.challenge {
                Challenge::Http01 => routes.add_challenges(&terms.hosts),
                Challenge::TlsAlpn01 => certificates.answer_with(Arc::clone(&self.challenges) as _),
            }
        }
        self.warn_of_silence(&certificates);
        let (catalog, route_pieces, table) = routes.finish()?;
        let (upstream_catalog, upstream_pieces) = upstreams.finish();
        let overlays = chains.overlays();
        let secret_fields = chains.secret_fields();
        if chains.disagrees() || before.is_some_and(|parts| parts.secret_fields != secret_fields) {
            return None;
        }
        let snapshot = Snapshot {
            revision: 0,
            clients: document.settings.clients.clone(),
            table: table.clone(),
            routes: route_pieces.clone(),
            upstreams: upstream_pieces.clone(),
            unmatched: chains.unmatched(),
            certificates,
            overlays,
            secret_arguments: chains.secret_arguments(),
            price_every: document.settings.price_every,
        };
        let parts = Parts {
            context: context(document),
            upstreams: Arc::new(upstream_catalog),
            upstream_pieces,
            routes: Arc::new(catalog),
            route_pieces,
            table,
            sets: Arc::new(chains.into_sets().into_used()),
            secret_fields,
        };
        Some(Made { snapshot, acme, parts })
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
            let problem = variable.absence(Moment::Record).expect("an unknown variable has no value at any moment");
            self.warnings.report_text(path, self.document.tree.place_of(path), problem, advice);
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
