//! Publishing: a document that compiles becomes the next revision, one that does not leaves the last good one serving.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use serde::Serialize;
use weir_gateway::snapshot::Snapshot;
use weir_plugin::Registry;

use crate::acme::{AcmeTerms, Challenges};
use crate::compile::{Compiled, Parts, Presented, compile_answering};
use crate::document::{Document, NodeSettings};
use crate::text::diagnostic::Diagnostic;

/// A snapshot on its way to the workers.
#[derive(Clone)]
pub struct Publication {
    /// From 1, one more with every publication of this process; the snapshot carries it too.
    pub revision: u64,
    pub snapshot: Arc<Snapshot>,
    pub settings: Arc<NodeSettings>,
    /// The certificates that are to be got from an authority.
    pub acme: Option<Arc<AcmeTerms>>,
    /// What was accepted but probably not meant.
    pub warnings: Arc<[Diagnostic]>,
}

/// Who takes snapshots to the workers, and says in the log what became of a change. Called in the order of revisions.
pub trait Subscriber: Send + Sync {
    fn published(&self, publication: &Publication);

    /// A change was refused whole; what was published last goes on serving.
    fn refused(&self, diagnostics: &[Diagnostic]);
}

/// What an operator wants to know about the configuration. Serialises as the `configuration` of `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigStatus {
    /// The file, or whatever else the configuration comes from.
    pub source: Arc<str>,
    /// 0 before anything was published.
    pub revision: u64,
    #[serde(serialize_with = "unix_ms")]
    pub loaded_at: SystemTime,
    /// Of the text that serves, with variables not yet put in. Equal texts have equal hashes on every node.
    pub hash: String,
    /// How long it took to compile it and take it to the workers.
    pub publish_ms: f64,
    pub routes: usize,
    pub upstreams: usize,
    pub reloads_ok: u64,
    pub reloads_failed: u64,
    pub warnings: Arc<[Diagnostic]>,
    /// The last change, if it was refused. A change that is published clears it.
    pub last_error: Option<RefusedChange>,
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

/// The one road to the workers.
pub struct Publisher {
    registry: Registry,
    subscriber: Box<dyn Subscriber>,
    /// What an authority may be asking for at this moment: every snapshot answers that.
    challenges: Arc<Challenges>,
    status: ArcSwap<ConfigStatus>,
    /// Held while something is published, so that revisions arrive in order.
    state: Mutex<PublisherState>,
}

#[derive(Default)]
struct PublisherState {
    /// Those the node was started with: some of them cannot change later.
    started_with: Option<Arc<NodeSettings>>,
    /// The certificates that serve.
    presented: Presented,
    /// What the configuration that serves was compiled to.
    parts: Option<Parts>,
}

impl Publisher {
    pub fn new(source: &str, registry: Registry, subscriber: Box<dyn Subscriber>) -> Self {
        let status = ConfigStatus {
            source: source.into(),
            revision: 0,
            loaded_at: SystemTime::UNIX_EPOCH,
            hash: String::new(),
            publish_ms: 0.0,
            routes: 0,
            upstreams: 0,
            reloads_ok: 0,
            reloads_failed: 0,
            warnings: Arc::default(),
            last_error: None,
        };
        let status = ArcSwap::from_pointee(status);
        Publisher { registry, subscriber, challenges: Arc::default(), status, state: Mutex::default() }
    }

    /// What an authority may be asking for at this moment. All snapshots answer it.
    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    pub fn status(&self) -> Arc<ConfigStatus> {
        self.status.load_full()
    }

    /// Compiles and publishes, or refuses the document whole. `warnings` are those its store has.
    ///
    /// # Errors
    /// What is wrong with the document; it has been reported, too.
    pub fn publish(
        &self,
        document: &Document,
        hash: String,
        warnings: Vec<Diagnostic>,
    ) -> Result<Publication, Arc<[Diagnostic]>> {
        let begin = Instant::now();
        let mut state = self.lock();
        let compiled = compile_answering(document, &self.registry, state.parts.as_ref(), &self.challenges);
        let Compiled { mut snapshot, acme, warnings: of_compiler, parts, presented } = match compiled {
            Ok(compiled) => compiled,
            Err(diagnostics) => return Err(self.refuse_while(&state, diagnostics)),
        };
        let status = self.status();
        // A node without anything to serve starts with what there is.
        let against = if status.revision == 0 { Vec::new() } else { presented.against(&state.presented) };
        if !against.is_empty() {
            return Err(self.refuse_while(&state, against));
        }
        snapshot.revision = status.revision + 1;
        let settings = Arc::new(document.settings.clone());
        let started_with = state.started_with.get_or_insert_with(|| settings.clone());
        let mut all = warnings;
        all.extend(of_compiler);
        all.extend(unchangeable(document, started_with));
        let publication = Publication {
            revision: snapshot.revision,
            snapshot: Arc::new(snapshot),
            settings,
            acme,
            warnings: all.into(),
        };
        state.presented = presented;
        let parts_before = state.parts.replace(parts);
        self.subscriber.published(&publication);
        publication.snapshot.start_plugins(parts_before.as_ref().map(Parts::routes));
        self.status.store(Arc::new(ConfigStatus {
            source: document.source.clone(),
            revision: publication.revision,
            loaded_at: SystemTime::now(),
            hash,
            publish_ms: begin.elapsed().as_secs_f64() * 1_000.0,
            routes: document.routes.iter().filter(|route| route.enabled).count(),
            upstreams: publication.snapshot.upstreams.len(),
            // The first is no reload.
            reloads_ok: status.reloads_ok + u64::from(status.revision > 0),
            reloads_failed: status.reloads_failed,
            warnings: publication.warnings.clone(),
            last_error: None,
        }));
        Ok(publication)
    }

    /// Reports a change that cannot even be read.
    pub fn refuse(&self, diagnostics: Vec<Diagnostic>) -> Arc<[Diagnostic]> {
        self.refuse_while(&self.lock(), diagnostics)
    }

    fn refuse_while(&self, _order: &MutexGuard<'_, PublisherState>, diagnostics: Vec<Diagnostic>) -> Arc<[Diagnostic]> {
        let diagnostics: Arc<[Diagnostic]> = diagnostics.into();
        self.subscriber.refused(&diagnostics);
        let status = self.status();
        self.status.store(Arc::new(ConfigStatus {
            reloads_failed: status.reloads_failed + u64::from(status.revision > 0),
            last_error: Some(RefusedChange { at: SystemTime::now(), diagnostics: diagnostics.clone() }),
            ..(*status).clone()
        }));
        diagnostics
    }

    /// A poisoned lock means that a subscriber has panicked; what it protects is whole at any time.
    fn lock(&self) -> MutexGuard<'_, PublisherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Warns of settings that a running node cannot change.
fn unchangeable(document: &Document, started_with: &NodeSettings) -> Vec<Diagnostic> {
    let settings = &document.settings;
    let changed = [
        ("listen", settings.listen != started_with.listen),
        ("worker_processes", settings.worker_processes != started_with.worker_processes),
        ("status", settings.status != started_with.status),
        ("enable_access_log", settings.enable_access_log != started_with.enable_access_log),
        ("error_log_level", settings.error_log_level != started_with.error_log_level),
    ];
    let warn = |key: &str| Diagnostic {
        path: key.to_owned(),
        ..Diagnostic::at_place(
            &document.source,
            document.tree.place_of(key),
            "has changed, which a running node cannot do",
        )
        .advise("it takes effect at the next start or binary upgrade")
    };
    changed.iter().filter(|(_, changed)| *changed).map(|(key, _)| warn(key)).collect()
}
