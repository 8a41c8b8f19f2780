//! The objects of a Kubernetes cluster as resources: a store that others change, and this node only reads.
//!
//! A thread follows the cluster and translates each change (`weir-kube`). The resources last translated stay in memory, and in a
//! copy on disk that a node starts with while the API server cannot be reached.

mod feed;
mod followed;
mod lines;
mod policy_plugins;
mod pulled;
mod served_cluster;
mod sink;
mod told_faults;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::interval;
use weir_kube::cluster::{ApiServer, ClusterAccess, Controller, ControllerSettings, ControllerState, ElectionSettings};
use weir_kube::{GatewayAddresses, KubeOptions, ResourceList, SubstituteResource, substitute};

use super::disk_copy::DiskCopy;
use super::embedded::EmbeddedStore;
use super::live::now_ms;
use super::mailbox::Mailbox;
use super::resources::{ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use super::shared::{NodeReport, OutsideChange, ServedContent, SharedStore};
use super::source::Wake;
use super::store::{CommitFailure, ResourceStore, StoreFailure, Substitute};
use crate::document::KubernetesSettings;
use crate::store_state::StoreState;
use crate::text::diagnostic::Diagnostic;
pub use feed::{MOST_NODE_NAME, MOST_REPORT, NodeIntroduction, StateFeed, StateStream};
pub(super) use policy_plugins::NodePlugins;
pub(super) use pulled::PulledStore;
pub use served_cluster::ServedCluster;
use sink::StoreSink;

/// How long a start waits for the API server before it uses the copy.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a node without a copy tries to reach it.
const FIRST_START_PATIENCE: Duration = Duration::from_secs(30);
/// After this time, such a node says that it waits.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// How often the copy is written, if it lacks something.
const COPY_EVERY: Duration = Duration::from_secs(1);
/// The name of the Lease without one in the settings.
const LEASE: &str = "weir-status-writer";

/// Changes for the copy on disk.
type CopiedChanges = (u64, Vec<(ResourceKey, Option<StoredResource>)>);

/// The resources of a cluster.
pub(super) struct KubernetesStore {
    name: String,
    mailbox: Arc<Mailbox>,
    controller: Option<Controller>,
    copy: Option<Arc<EmbeddedStore>>,
    start: Mutex<ResourceSet>,
    report: Mutex<NodeReport>,
    thread: Option<JoinHandle<()>>,
}

impl KubernetesStore {
    /// Reads the objects of the cluster, or the copy if the API server cannot be reached. `node` is the name of this node and the
    /// directory of its copy; without it nothing is kept, and nothing is written to the cluster.
    ///
    /// # Errors
    /// If neither the cluster nor a copy can be read.
    pub(super) fn open(
        settings: &KubernetesSettings,
        node: Option<(String, &Path)>,
        beside: &Path,
        (plugins, told): (NodePlugins, &dyn Fn(&str)),
    ) -> Result<KubernetesStore, StoreFailure> {
        let (node, directory) = node.unzip();
        let copy = directory.map(|directory| EmbeddedStore::open(&directory.join("kubernetes-copy.redb"), 1));
        let copy = copy.transpose()?.map(Arc::new);
        let known = copy.as_ref().map(|copy| copy.load()).transpose()?.unwrap_or_default();
        let node = node.unwrap_or_default();
        let mailbox = Arc::new(Mailbox::default());
        let (runtime, server) = connect(settings, beside)?;
        let name = format!("kubernetes {}", server.address());
        let (copied, to_copy) = unbounded_channel();
        let sink = StoreSink::new(Arc::clone(&mailbox), server.address(), known.clone(), copied);
        let settings = controller_settings(settings, &node, plugins);
        let disk_copy = DiskCopy::new("kubernetes", copy.clone(), known.revision);
        let entered = runtime.enter();
        let controller = Controller::start(Arc::new(server), settings, Box::new(sink));
        drop(entered);
        let keeping = move || runtime.block_on(keep_copy(disk_copy, to_copy));
        let thread = thread::Builder::new().name("weir-kubernetes".to_owned()).spawn(keeping);
        let thread = thread.map_err(|error| StoreFailure::new(format!("a thread cannot be started: {error}"), ""))?;
        let mut store = KubernetesStore {
            name,
            mailbox,
            controller: Some(controller),
            copy,
            start: Mutex::default(),
            report: Mutex::new(node_report(node)),
            thread: Some(thread),
        };
        let start = first_content(&store.mailbox, known, &store.name, told, ADVICE)?;
        *store.start.get_mut().unwrap_or_else(PoisonError::into_inner) = start;
        Ok(store)
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

const ADVICE: &str = "check `store.kubernetes` and the rights of the credentials, then start the node again; a node that has read the \
                      objects once starts without the API server, from the copy in its data directory (`data_dir`)";

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

/// The runtime of the thread, and the API server.
fn connect(settings: &KubernetesSettings, beside: &Path) -> Result<(tokio::runtime::Runtime, ApiServer), StoreFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| StoreFailure::new(format!("a runtime cannot be started: {error}"), ""))?;
    let access = match &settings.kubeconfig {
        None => ClusterAccess::InCluster,
        Some(path) => ClusterAccess::Kubeconfig {
            path: beside.join(&**path),
            context: settings.context.as_deref().map(str::to_owned),
        },
    };
    let server = runtime.block_on(ApiServer::new(&access)).map_err(|error| {
        StoreFailure::new(format!("the cluster cannot be used: {error}"), "check `store.kubernetes`")
    })?;
    Ok((runtime, server))
}

fn controller_settings(settings: &KubernetesSettings, node: &str, plugins: NodePlugins) -> ControllerSettings {
    let mut options = KubeOptions { plugins: Arc::new(plugins), ..KubeOptions::default() };
    let text = |value: &Option<Box<str>>, default: String| value.as_deref().map_or(default, str::to_owned);
    options.controller_name = text(&settings.gateway_controller, options.controller_name);
    options.adopt_ingress_nginx = settings.adopts_ingress_nginx;
    options.ingress_controller = text(&settings.ingress_controller, options.ingress_controller);
    options.publish_addresses = settings.publish_addresses.iter().map(|address| address.to_string()).collect();
    options.addresses = match settings.gateway_addresses {
        Some(network) => {
            let mut hosts = network.hosts();
            let first = hosts.next().unwrap_or(network.addr());
            GatewayAddresses::Pool { first, last: hosts.next_back().unwrap_or(first) }
        }
        None => GatewayAddresses::Node { published: options.publish_addresses.clone() },
    };
    options.makes_services = settings.makes_gateway_services;
    let election = ElectionSettings {
        namespace: text(&settings.lease.namespace, String::new()),
        name: text(&settings.lease.name, LEASE.to_owned()),
        holder: node.to_owned(),
    };
    ControllerSettings {
        namespaces: settings.namespaces.iter().map(|namespace| namespace.to_string()).collect(),
        options,
        election: Some(election).filter(|_| settings.writes_status && !node.is_empty()),
    }
}

/// Writes what changes to the copy, until the controller has ended.
async fn keep_copy(mut copy: DiskCopy, mut changes: UnboundedReceiver<CopiedChanges>) {
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

fn is_read_only() -> StoreFailure {
    StoreFailure::new("the resources of this node are objects of a Kubernetes cluster", "change the objects there")
}

impl ResourceStore for KubernetesStore {
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

impl SharedStore for KubernetesStore {
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
        if let Some(controller) = &self.controller {
            let set_aside = set_aside.iter().map(problem_of).collect();
            controller.served(ControllerState { revision: served.revision, set_aside });
        }
    }

    fn nodes(&self) -> Result<Vec<NodeReport>, StoreFailure> {
        // Each node reads the cluster by itself, so it knows of no other.
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(vec![NodeReport { told_ms: now_ms(), ..report }])
    }

    fn state(&self) -> StoreState {
        self.mailbox.content().state.clone()
    }
}

impl Drop for KubernetesStore {
    fn drop(&mut self) {
        // The controller ends, with it the channel of its changes, and then the thread.
        drop(self.controller.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
