//! A store whose resources are objects of a cluster: others change them, and this node only reads. A thread gets them, in one way or
//! another; the last ones stay in memory, and in a copy on disk that a node starts with while the cluster cannot be reached.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::interval;
use weir_kube::cluster::ControllerState;
use weir_kube::{ResourceList, SubstituteResource, substitute};

use super::followed::{CopiedChanges, FollowedSet};
use super::told_faults;
use crate::store_state::StoreState;
use crate::stores::disk_copy::DiskCopy;
use crate::stores::embedded::EmbeddedStore;
use crate::stores::live::now_ms;
use crate::stores::mailbox::Mailbox;
use crate::stores::resources::{ResourceKey, ResourceSet, RevisionRecord};
use crate::stores::shared::{KnownNodes, NodeReport, OutsideChange, ServedContent, SharedStore};
use crate::stores::source::Wake;
use crate::stores::store::{CommitFailure, ResourceStore, StoreFailure, Substitute};
use crate::text::diagnostic::Diagnostic;

/// How long a start waits for the first resources before it uses the copy.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a node without a copy waits for them.
const FIRST_START_PATIENCE: Duration = Duration::from_secs(30);
/// After this time, such a node says that it waits.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// How often the copy is written, if it lacks something.
const COPY_EVERY: Duration = Duration::from_secs(1);

/// Reports what the node serves. What follows the cluster ends when this is dropped.
type ServedReporting = Box<dyn Fn(ControllerState) + Send + Sync>;
/// Asks who knows the nodes, and waits for the answer.
pub(super) type NodesQuery = Box<dyn Fn() -> Result<KnownNodes, String> + Send + Sync>;

/// The resources of a cluster.
pub(in crate::stores) struct ClusterStore {
    name: String,
    mailbox: Arc<Mailbox>,
    copy: Option<Arc<EmbeddedStore>>,
    start: Mutex<ResourceSet>,
    report: Mutex<NodeReport>,
    reporting: Option<ServedReporting>,
    /// `None`: this node has no source that knows other nodes.
    query: Option<NodesQuery>,
    thread: Option<JoinHandle<()>>,
}

/// A store whose copy has been read, and whose thread does not run yet.
pub(super) struct OpeningStore {
    /// The name of the node; empty if there is none.
    pub(super) node: String,
    pub(super) mailbox: Arc<Mailbox>,
    known: ResourceSet,
    copy: Option<Arc<EmbeddedStore>>,
    kept: KeptCopy,
}

impl OpeningStore {
    /// `kind` is the store in the name of the copy, and in messages; `node` is the name of the node and the directory of its copy. Without
    /// it nothing is kept. The set has what the copy has.
    ///
    /// # Errors
    /// If the copy cannot be read.
    pub(super) fn new(
        kind: &'static str,
        node: Option<(String, PathBuf)>,
        zone: Option<&str>,
    ) -> Result<(OpeningStore, FollowedSet), StoreFailure> {
        let (node, directory) = node.unzip();
        let copy = directory.map(|directory| EmbeddedStore::open_copy(&directory.join(format!("{kind}-copy.redb"))));
        let copy = copy.transpose()?.map(Arc::new);
        let known = copy.as_ref().map(|copy| copy.load()).transpose()?.unwrap_or_default();
        let mailbox = Arc::new(Mailbox::default());
        let (copied, to_copy) = unbounded_channel();
        let kept = KeptCopy(DiskCopy::new(kind, copy.clone(), known.revision), to_copy);
        let followed = FollowedSet::new(Arc::clone(&mailbox), known.clone(), copied).in_zone(zone.unwrap_or_default());
        Ok((OpeningStore { node: node.unwrap_or_default(), mailbox, known, copy, kept }, followed))
    }

    /// Starts the thread, which runs until what `reporting` reports to has ended, and waits for the first resources.
    ///
    /// # Errors
    /// If there are none in time, and there is no copy.
    pub(super) fn start(
        self,
        name: String,
        (reporting, query): (ServedReporting, Option<NodesQuery>),
        (told, advice): (&dyn Fn(&str), &str),
        run: impl FnOnce(KeptCopy) + Send + 'static,
    ) -> Result<ClusterStore, StoreFailure> {
        let OpeningStore { node, mailbox, known, copy, kept } = self;
        let thread = thread::Builder::new().name("weir-kubernetes".to_owned()).spawn(move || run(kept));
        let thread = thread.map_err(|error| StoreFailure::new(format!("a thread cannot be started: {error}"), ""))?;
        let mut store = ClusterStore {
            name,
            mailbox,
            copy,
            start: Mutex::default(),
            report: Mutex::new(node_report(node)),
            reporting: Some(reporting),
            query,
            thread: Some(thread),
        };
        let start = first_content(&store.mailbox, known, &store.name, told, advice)?;
        *store.start.get_mut().unwrap_or_else(PoisonError::into_inner) = start;
        Ok(store)
    }
}

/// The copy on disk, and what is to be written to it.
pub(super) struct KeptCopy(DiskCopy, UnboundedReceiver<CopiedChanges>);

impl KeptCopy {
    /// Writes what changes, until what follows the cluster has ended.
    pub(super) async fn keep(self) {
        let KeptCopy(mut copy, mut changes) = self;
        let mut ticks = interval(COPY_EVERY);
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Some((revision, resources)) => copy.add(revision, &resources),
                    None => return copy.finish().await,
                },
                _ = ticks.tick() => copy.write().await,
            }
        }
    }
}

/// The first resources that the thread of a store leaves in the mailbox. If there are none in time, those of the copy.
fn first_content(
    mailbox: &Mailbox,
    known: ResourceSet,
    name: &str,
    told: &dyn Fn(&str),
    advice: &str,
) -> Result<ResourceSet, StoreFailure> {
    let patience = if known.revision > 0 { START_PATIENCE } else { FIRST_START_PATIENCE };
    let deadline = Instant::now() + patience;
    let mut has_told = false;
    let mut content = mailbox.content();
    while content.changes.is_empty() {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            let problem = content.state.problem.clone().unwrap_or_else(|| "it does not answer".to_owned());
            drop(content);
            let problem = format!("{name} cannot be used, tried for {FIRST_START_PATIENCE:?}: {problem}");
            return if known.revision > 0 { Ok(known) } else { Err(StoreFailure::away(problem, advice)) };
        };
        let waited = mailbox.changed.wait_timeout(content, left.min(TELL_AFTER));
        content = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let Some(problem) = content.state.problem.as_ref().filter(|_| !has_told) {
            told(&format!("{name} cannot be used yet, trying for {} seconds: {problem}", patience.as_secs()));
            has_told = true;
        }
    }
    let mut set = known;
    for change in std::mem::take(&mut content.changes) {
        let OutsideChange::Some { revision, resources } = change else { continue };
        set.revision = revision;
        for (key, resource) in resources {
            match resource {
                Some(resource) => drop(set.all.insert(key, resource)),
                None => drop(set.all.remove(&key)),
            }
        }
    }
    Ok(set)
}

/// What is known of a node that starts.
fn node_report(id: String) -> NodeReport {
    NodeReport {
        id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: now_ms(),
        told_ms: 0,
        served: ServedContent::default(),
    }
}

/// A resource that is set aside, with the problem.
fn problem_of((key, fault): (&ResourceKey, &Diagnostic)) -> (String, String) {
    // The path begins with the key of the resource.
    let problem = match fault.path.split_once(": ") {
        Some((_, place)) => format!("{place}: {}", fault.problem),
        None => fault.problem.clone(),
    };
    (key.as_str().to_owned(), problem)
}

/// What is served in place of a resource that cannot be served.
fn substitute_of(key: &ResourceKey, json: &str) -> Substitute {
    let value = serde_json::from_str(json).unwrap_or_default();
    match ResourceList::find(key.list()).map(|list| substitute(list, key.id(), &value)) {
        None | Some(SubstituteResource::Last) => Substitute::Last,
        Some(SubstituteResource::Nothing) => Substitute::Nothing,
        Some(SubstituteResource::Other(value)) => Substitute::Text(value.to_string().into()),
    }
}

fn is_read_only() -> StoreFailure {
    StoreFailure::new("the resources of this node are objects of a Kubernetes cluster", "change the objects there")
}

impl ResourceStore for ClusterStore {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        Ok(std::mem::take(&mut self.start.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn commit(&self, _revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        Err(CommitFailure::Failed(is_read_only()))
    }

    fn history(&self, _before: u64, _count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        Ok(Vec::new())
    }

    fn substitute(&self, key: &ResourceKey, json: &str) -> Substitute {
        substitute_of(key, json)
    }

    fn told(&self, key: &ResourceKey, json: &str, fault: Diagnostic) -> Diagnostic {
        told_faults::without_secrets(key, json, fault)
    }

    fn lend(&self, lent: bool) -> Result<(), StoreFailure> {
        self.copy.as_ref().map_or(Ok(()), |copy| copy.lend(lent))
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }
}

impl SharedStore for ClusterStore {
    fn notify(&self, wake: Wake) {
        self.mailbox.notify(wake);
    }

    fn take_changes(&self) -> Vec<OutsideChange> {
        std::mem::take(&mut self.mailbox.content().changes)
    }

    fn catch_up(&self) -> bool {
        // Only needed before a write.
        false
    }

    fn fits(&self, _record: &RevisionRecord) -> Result<(), StoreFailure> {
        Err(is_read_only())
    }

    fn serves(&self, served: ServedContent, set_aside: &BTreeMap<ResourceKey, Diagnostic>) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).served = served;
        if let Some(reporting) = &self.reporting {
            let set_aside = set_aside.iter().map(problem_of).collect();
            reporting(ControllerState { revision: served.revision, set_aside });
        }
    }

    fn nodes(&self) -> Result<KnownNodes, StoreFailure> {
        if let Some(query) = &self.query {
            return query().map_err(|problem| StoreFailure::away(problem, "see `configuration.store` at /status"));
        }
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own = NodeReport { told_ms: now_ms(), ..report };
        let told_by = "this node, since nodes that read a cluster do not know each other".to_owned();
        Ok(KnownNodes { told_by, newest: None, list: vec![own] })
    }

    fn state(&self) -> StoreState {
        self.mailbox.content().state.clone()
    }
}

impl Drop for ClusterStore {
    fn drop(&mut self) {
        drop(self.query.take());
        // What follows the cluster ends, with it the channel of its changes, and then the thread, which writes the rest of the copy.
        drop(self.reporting.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
