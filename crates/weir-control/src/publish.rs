//! Publishing: a document that compiles becomes the next revision; after one that does not, the last good one stays in use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use serde::Serialize;
use weir_client::HttpClient;
use weir_gateway::snapshot::Snapshot;
use weir_plugin::Registry;

use crate::acme::{AcmeTerms, Challenges};
use crate::compile::{
    CertificateEnd, Compiled, ListedCertificate, NodeServices, Parts, ServedCertificates, compile_for, registry_of,
};
use crate::document::{CompleteDocument, Document, NodeSettings};
use crate::explain::{RequestDescription, ResourceIndex, RoutingOutcomes, RunningConfiguration, outcome};
use crate::hubs::{HubTerms, Hubs};
use crate::store_state::StoreState;
use crate::text::diagnostic::Diagnostic;

/// A snapshot on its way to the workers.
#[derive(Clone)]
pub struct Publication {
    /// Counts from 1, by one with each publication of this process; the snapshot has the same number.
    pub revision: u64,
    pub snapshot: Arc<Snapshot>,
    pub settings: Arc<NodeSettings>,
    /// The certificates to obtain from an ACME authority.
    pub acme: Option<Arc<AcmeTerms>>,
    /// The hubs to run.
    pub hubs: Arc<[HubTerms]>,
    /// The client for requests that the gateway itself makes.
    pub http: HttpClient,
    /// Accepted settings that are probably a mistake.
    pub warnings: Arc<[Diagnostic]>,
    /// Whether the author of the change gets an answer. Then the change is not logged: the store has it in its history.
    pub is_answered: bool,
}

/// What a configuration needs of the machine, opened before it is published. It is put into service when this is called, and given
/// back when it is dropped.
pub type PreparedPublication<'s> = Box<dyn FnOnce() + 's>;

/// Receives snapshots for the workers, and logs the outcome of each change. Called in the order of revisions.
pub trait Subscriber: Send + Sync {
    /// Opens what the document needs of the machine, such as new addresses to listen on. Called before the document is made
    /// durable and published.
    ///
    /// # Errors
    /// What cannot be opened; the document is refused.
    fn reserve(&self, _document: &Document) -> Result<PreparedPublication<'_>, Vec<Diagnostic>> {
        Ok(Box::new(|| {}))
    }

    /// Publishes to the workers. `reserved` is put into service after they use the configuration.
    fn published(&self, publication: &Publication, reserved: PreparedPublication<'_>);

    /// Called when a change was refused as a whole; the last published snapshot stays in use.
    fn refused(&self, diagnostics: &[Diagnostic]);

    /// Called when the source of the configuration, or something that it refers to, does not respond, so that it is not known
    /// whether it has changed; the last published snapshot stays in use.
    fn unavailable(&self, diagnostics: &[Diagnostic]) {
        self.refused(diagnostics);
    }
}

/// The state of the configuration for operators. Serialises as the `configuration` of `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigStatus {
    /// The file, or another source of the configuration.
    pub source: Arc<str>,
    /// 0 before the first publication.
    pub revision: u64,
    #[serde(serialize_with = "unix_ms")]
    pub loaded_at: SystemTime,
    /// Hash of the text in use, before variables are substituted. Equal texts have equal hashes on every node.
    pub hash: String,
    /// The revision of the store that the resources come from; absent if they are in the file.
    pub store_revision: Option<u64>,
    /// The duration of compiling and of handing the snapshot to the workers.
    pub publish_ms: f64,
    pub routes: usize,
    pub upstreams: usize,
    pub reloads_ok: u64,
    pub reloads_failed: u64,
    pub warnings: Arc<[Diagnostic]>,
    /// The expiries of the certificates in use, by name. `/metrics` shows them.
    #[serde(skip)]
    pub certificates: Arc<[CertificateEnd]>,
    /// The certificates in use, ordered by expiry.
    #[serde(skip)]
    pub listed_certificates: Arc<[ListedCertificate]>,
    /// The last change, if it was refused. A published change clears it.
    pub last_error: Option<RefusedChange>,
    /// The connection to the store; absent if no other node uses the store.
    pub store: Option<StoreState>,
}

/// A change that was refused.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedChange {
    #[serde(serialize_with = "unix_ms")]
    pub at: SystemTime,
    pub diagnostics: Arc<[Diagnostic]>,
}

/// As milliseconds since 1970.
fn unix_ms<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    serializer.serialize_u64(since.as_millis() as u64)
}

/// Makes a change durable, or returns why it cannot. Returns the revision that the store assigned, if any.
pub(crate) type Commit<'a> = dyn FnMut() -> Result<Option<u64>, Vec<Diagnostic>> + 'a;

/// A finding about a document, as operators see it.
pub(crate) type NamedFinding<'a> = dyn Fn(Diagnostic) -> Diagnostic + 'a;

/// What is known of a document that was compiled and not published.
pub(crate) struct CheckedDocument {
    pub(crate) warnings: Vec<Diagnostic>,
    pub(crate) outcomes: RoutingOutcomes,
}

/// Publishes every snapshot to the workers.
pub struct Publisher {
    registry: Registry,
    subscriber: Box<dyn Subscriber>,
    node: NodeServices,
    status: ArcSwap<ConfigStatus>,
    /// Held during a publication, so that revisions arrive in order.
    order: Mutex<()>,
    /// `None` before the first publication.
    running: ArcSwapOption<RunningConfiguration>,
    /// Held only to copy it: documents are also compiled beside publications.
    served: Mutex<ServedParts>,
}

/// What a document is compiled against.
#[derive(Clone, Default)]
struct ServedParts {
    /// The certificates in use.
    certificates: ServedCertificates,
    /// The compiled parts of the configuration in use, for reuse.
    parts: Option<Parts>,
}

impl Publisher {
    pub fn new(source: &str, registry: Registry, subscriber: Box<dyn Subscriber>) -> Self {
        let status = ConfigStatus {
            source: source.into(),
            revision: 0,
            loaded_at: SystemTime::UNIX_EPOCH,
            hash: String::new(),
            store_revision: None,
            publish_ms: 0.0,
            routes: 0,
            upstreams: 0,
            reloads_ok: 0,
            reloads_failed: 0,
            warnings: Arc::default(),
            certificates: Arc::default(),
            listed_certificates: Arc::default(),
            last_error: None,
            store: None,
        };
        let status = ArcSwap::from_pointee(status);
        Publisher {
            registry,
            subscriber,
            node: NodeServices::default(),
            status,
            running: ArcSwapOption::empty(),
            order: Mutex::default(),
            served: Mutex::default(),
        }
    }

    /// The responses to open challenges of ACME authorities. All snapshots use them.
    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.node.challenges
    }

    /// The hubs that routes of all snapshots lead to, as last set by [`Hubs::follow`].
    pub fn hubs(&self) -> &Arc<Hubs> {
        &self.node.hubs
    }

    pub fn status(&self) -> Arc<ConfigStatus> {
        self.status.load_full()
    }

    /// The plugins that the configuration in use may use.
    pub fn registry(&self) -> Registry {
        self.running().map_or(self.registry, |running| registry_of(&self.registry, &running.settings))
    }

    /// The configuration in use; `None` before the first publication.
    pub(crate) fn running(&self) -> Option<Arc<RunningConfiguration>> {
        self.running.load_full()
    }

    /// Compiles and publishes a document, or refuses it as a whole. `warnings` are those of its store.
    ///
    /// # Errors
    /// The problems of the document, which have also been reported to the subscriber.
    pub fn publish(
        &self,
        document: &CompleteDocument,
        hash: String,
        warnings: Vec<Diagnostic>,
    ) -> Result<Publication, Arc<[Diagnostic]>> {
        let order = self.lock();
        let published = self.attempt(&order, document, hash, (warnings, &|warning| warning), None);
        published.map_err(|diagnostics| self.refuse_while(&order, diagnostics))
    }

    /// Like [`Publisher::publish`], but problems are only returned, and the warnings of the document are shown as `named` writes
    /// them. With `commit`, the author of the change waits for the
    /// outcome; `commit` makes the change durable, after all checks and before any worker uses it.
    ///
    /// # Errors
    /// The problems of the document, or those of `commit`.
    pub(crate) fn try_publish(
        &self,
        document: &CompleteDocument,
        hash: String,
        warnings: (Vec<Diagnostic>, &NamedFinding<'_>),
        commit: Option<&mut Commit<'_>>,
    ) -> Result<Publication, Vec<Diagnostic>> {
        self.attempt(&self.lock(), document, hash, warnings, commit)
    }

    /// Compiles a document that is not published, and does not wait for one that is. Returns how it would handle these requests;
    /// malformed ones have the reason why they are. The warnings are those of publishing it.
    ///
    /// # Errors
    /// The problems for which it would not be published.
    pub(crate) fn check(
        &self,
        document: &CompleteDocument,
        requests: &[RequestDescription],
    ) -> Result<CheckedDocument, Vec<Diagnostic>> {
        let Compiled { snapshot, warnings, .. } = self.compiled(document)?;
        let resources = ResourceIndex::new(document);
        let outcomes = requests.iter().map(|request| outcome(&snapshot, &resources, &self.registry, request));
        Ok(CheckedDocument { warnings, outcomes: outcomes.collect() })
    }

    /// Compiles a document. A panic counts as a problem: the last snapshot stays in use, and the next change is tried.
    fn compiled(&self, document: &CompleteDocument) -> Result<Compiled, Vec<Diagnostic>> {
        let ServedParts { certificates, parts } = self.served().clone();
        let compiling = || compile_for(document, &self.registry, parts.as_ref(), &self.node);
        let compiled = catch_unwind(AssertUnwindSafe(compiling)).unwrap_or_else(|_| {
            // The next document is compiled from scratch.
            self.served().parts = None;
            let problem = "internal error: the configuration could not be compiled";
            let advice = "please report the configuration and what the error log says of it";
            Err(vec![Diagnostic::of_source(&self.status().source, problem).advise(advice)])
        })?;
        let against = compiled.presented.against(&certificates);
        if against.is_empty() { Ok(compiled) } else { Err(against) }
    }

    fn attempt(
        &self,
        _order: &MutexGuard<'_, ()>,
        document: &CompleteDocument,
        hash: String,
        (warnings, named): (Vec<Diagnostic>, &NamedFinding<'_>),
        commit: Option<&mut Commit<'_>>,
    ) -> Result<Publication, Vec<Diagnostic>> {
        let begin = Instant::now();
        let Compiled { mut snapshot, acme, hubs, warnings: of_compiler, parts, presented, http } =
            self.compiled(document)?;
        let (status, is_answered) = (self.status(), commit.is_some());
        let reserved = self.subscriber.reserve(document)?;
        let committed = commit.map_or(Ok(None), |commit| commit())?;
        snapshot.revision = status.revision + 1;
        let settings = Arc::new(document.settings.clone());
        let started_with = self.node.started_with.get_or_init(|| Arc::clone(&settings));
        let of_document = of_compiler.into_iter().map(named);
        let all = warnings.into_iter().chain(of_document).chain(unchangeable(document, started_with));
        let publication = Publication {
            revision: snapshot.revision,
            snapshot: Arc::new(snapshot),
            settings,
            acme,
            hubs,
            http,
            warnings: all.collect(),
            is_answered,
        };
        let running = RunningConfiguration {
            snapshot: Arc::clone(&publication.snapshot),
            settings: Arc::clone(&publication.settings),
        };
        self.running.store(Some(Arc::new(running)));
        let (certificates, listed_certificates) = (presented.ends().into(), presented.listed().into());
        let served = ServedParts { certificates: presented.served(), parts: Some(parts) };
        let parts_before = std::mem::replace(&mut *self.served(), served).parts;
        self.subscriber.published(&publication, reserved);
        publication.snapshot.start_plugins(parts_before.as_ref().map(Parts::routes));
        self.status.store(Arc::new(ConfigStatus {
            source: document.source.clone(),
            revision: publication.revision,
            loaded_at: SystemTime::now(),
            hash,
            store_revision: committed.or(document.store_revision()),
            publish_ms: begin.elapsed().as_secs_f64() * 1_000.0,
            routes: document.enabled_routes,
            upstreams: publication.snapshot.upstreams.len(),
            // The first publication is not a reload.
            reloads_ok: status.reloads_ok + u64::from(status.revision > 0),
            reloads_failed: status.reloads_failed,
            warnings: publication.warnings.clone(),
            certificates,
            listed_certificates,
            // A change of a resource does not correct a refused file, so that error stays.
            last_error: status.last_error.clone().filter(|_| is_answered),
            store: status.store.clone(),
        }));
        Ok(publication)
    }

    /// Reports a change that cannot be parsed.
    pub fn refuse(&self, diagnostics: Vec<Diagnostic>) -> Arc<[Diagnostic]> {
        self.refuse_while(&self.lock(), diagnostics)
    }

    /// Reports that the source does not respond. Counts as a change that was refused.
    pub(crate) fn report_unavailable(&self, diagnostics: Vec<Diagnostic>) {
        let order = self.lock();
        self.subscriber.unavailable(&diagnostics);
        self.set_last_error(&order, diagnostics.into());
    }

    /// Updates the state of the connection to a shared store.
    pub(crate) fn set_store(&self, state: &StoreState) {
        let _order = self.lock();
        let status = self.status();
        if status.store.as_ref() != Some(state) {
            self.status.store(Arc::new(ConfigStatus { store: Some(state.clone()), ..(*status).clone() }));
        }
    }

    fn refuse_while(&self, order: &MutexGuard<'_, ()>, diagnostics: Vec<Diagnostic>) -> Arc<[Diagnostic]> {
        let diagnostics: Arc<[Diagnostic]> = diagnostics.into();
        self.subscriber.refused(&diagnostics);
        self.set_last_error(order, diagnostics.clone());
        diagnostics
    }

    fn set_last_error(&self, _order: &MutexGuard<'_, ()>, diagnostics: Arc<[Diagnostic]>) {
        let status = self.status();
        self.status.store(Arc::new(ConfigStatus {
            reloads_failed: status.reloads_failed + u64::from(status.revision > 0),
            last_error: Some(RefusedChange { at: SystemTime::now(), diagnostics }),
            ..(*status).clone()
        }));
    }

    fn served(&self) -> MutexGuard<'_, ServedParts> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock is poisoned if a subscriber has panicked, which changes nothing for the next publication.
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The settings that a running node cannot change, and whether they have changed.
fn changes(settings: &NodeSettings, started_with: &NodeSettings) -> impl Iterator<Item = (&'static str, bool)> {
    [
        ("controller", settings.controller != started_with.controller),
        ("worker_processes", settings.worker_processes != started_with.worker_processes),
        ("status", settings.status != started_with.status),
        ("enable_access_log", settings.enable_access_log != started_with.enable_access_log),
        ("admin", settings.admin != started_with.admin),
        ("store", settings.store != started_with.store),
        ("data_encryption", settings.data_encryption != started_with.data_encryption),
        ("error_log_level", settings.error_log_level != started_with.error_log_level),
        ("data_dir", settings.data_dir != started_with.data_dir),
        ("metrics_names", settings.metrics_names != started_with.metrics_names),
        ("records_threads", settings.records.threads != started_with.records.threads),
        ("records_cpus", settings.records.cpus != started_with.records.cpus),
        ("records_max_memory", settings.records.memory != started_with.records.memory),
    ]
    .into_iter()
}

/// Warnings about settings that a running node cannot change.
fn unchangeable(document: &Document, started_with: &NodeSettings) -> Vec<Diagnostic> {
    let warn = |key: &str| Diagnostic {
        path: key.to_owned(),
        ..Diagnostic::at_place(
            &document.source,
            document.place_at(key),
            "has changed, and a running node cannot apply this change",
        )
        .advise("it takes effect at the next start or binary upgrade")
    };
    changes(&document.settings, started_with).filter(|(_, changed)| *changed).map(|(key, _)| warn(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::settings;

    #[test]
    fn settings_that_cannot_change_are_those_declared_so() {
        let compared: Vec<&str> =
            changes(&NodeSettings::default(), &NodeSettings::default()).map(|(key, _)| key).collect();
        let mut declared: Vec<&str> = settings::unchangeable().collect();
        declared.sort_by_key(|key| compared.iter().position(|other| other == key));
        assert_eq!(compared, declared);
    }
}
