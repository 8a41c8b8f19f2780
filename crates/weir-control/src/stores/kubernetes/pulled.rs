//! The resources of a cluster as a controller (`weir controller`) serves them: a store for nodes without rights in the cluster.
//!
//! A thread pulls the state. Revisions of different controllers are not comparable, so each connection begins with all resources; they
//! are compared with those that are known, and have revisions of this node alone.

mod session;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use weir_client::DnsSettings;

use super::followed::FollowedSet;
use super::{first_content, keep_copy, node_report, problem_of, substitute_of, told_faults};
use crate::document::PullSettings;
use crate::store_state::StoreState;
use crate::stores::disk_copy::DiskCopy;
use crate::stores::embedded::EmbeddedStore;
use crate::stores::live::now_ms;
use crate::stores::mailbox::Mailbox;
use crate::stores::resources::{ResourceKey, ResourceSet, RevisionRecord};
use crate::stores::shared::{NodeReport, OutsideChange, ServedContent, SharedStore};
use crate::stores::source::Wake;
use crate::stores::store::{CommitFailure, ResourceStore, StoreFailure, Substitute};
use crate::text::diagnostic::Diagnostic;
use session::Puller;

/// The most revisions of which it is kept which one of the controller they are.
const MOST_PAIRS: usize = 1_024;

/// What a node serves, for the controller.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeServes {
    /// The node's own revision.
    revision: u64,
    set_aside: BTreeMap<String, String>,
}

/// Which revision of the controller each of the node's own is.
#[derive(Debug, Default)]
struct RevisionPairs(VecDeque<(u64, u64)>);

impl RevisionPairs {
    fn add(&mut self, own: u64, of_controller: u64) {
        self.0.push_back((own, of_controller));
        if self.0.len() > MOST_PAIRS {
            self.0.pop_front();
        }
    }

    /// The newest revision of the controller that a node serves with its own revision.
    fn served(&self, own: u64) -> Option<u64> {
        self.0.iter().take_while(|(published, _)| *published <= own).last().map(|(_, of_controller)| *of_controller)
    }
}

/// The resources that controllers serve.
pub struct PulledStore {
    name: String,
    mailbox: Arc<Mailbox>,
    copy: Option<Arc<EmbeddedStore>>,
    start: Mutex<ResourceSet>,
    report: Mutex<NodeReport>,
    /// Dropping it ends the thread.
    serves: Option<watch::Sender<NodeServes>>,
    thread: Option<JoinHandle<()>>,
}

impl PulledStore {
    /// Pulls the resources, or reads the copy if no controller answers. `node` is the name of this node and the directory of its
    /// copy; without it nothing is kept.
    ///
    /// # Errors
    /// If there is neither a controller nor a copy.
    pub fn open(
        settings: &PullSettings,
        dns: &DnsSettings,
        node: Option<(String, &Path)>,
        beside: &Path,
        told: &dyn Fn(&str),
    ) -> Result<PulledStore, StoreFailure> {
        let (node, directory) = node.unzip();
        let copy = directory.map(|directory| EmbeddedStore::open(&directory.join("controller-copy.redb"), 1));
        let copy = copy.transpose()?.map(Arc::new);
        let known = copy.as_ref().map(|copy| copy.load()).transpose()?.unwrap_or_default();
        let mailbox = Arc::new(Mailbox::default());
        let (copied, to_copy) = unbounded_channel();
        let disk_copy = DiskCopy::new("controller", copy.clone(), known.revision);
        let (serves, served) = watch::channel(NodeServes::default());
        let node = node.unwrap_or_default();
        let followed = FollowedSet::new(Arc::clone(&mailbox), known.clone(), copied);
        let files = PullFiles { settings: settings.clone(), beside: beside.to_owned(), dns: dns.clone() };
        let puller = Puller::new(files, node.clone(), Arc::clone(&mailbox), followed, served);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| StoreFailure::new(format!("a runtime cannot be started: {error}"), ""))?;
        let run = move || {
            runtime.block_on(async {
                let copying = tokio::spawn(keep_copy(disk_copy, to_copy));
                puller.run().await;
                // An error is a panic, which has been reported.
                let _ = copying.await;
            });
        };
        let thread = thread::Builder::new().name("weir-pull".to_owned()).spawn(run);
        let thread = thread.map_err(|error| StoreFailure::new(format!("a thread cannot be started: {error}"), ""))?;
        let name = format!("controller {}", settings.hosts.join(","));
        let mut store = PulledStore {
            name,
            mailbox,
            copy,
            start: Mutex::default(),
            report: Mutex::new(node_report(node)),
            serves: Some(serves),
            thread: Some(thread),
        };
        let start = first_content(&store.mailbox, known, &store.name, told, ADVICE)?;
        *store.start.get_mut().unwrap_or_else(PoisonError::into_inner) = start;
        Ok(store)
    }
}

/// The settings of the connections, and what their files are relative to.
struct PullFiles {
    settings: PullSettings,
    beside: PathBuf,
    dns: DnsSettings,
}

const ADVICE: &str = "check `store.controller` and that a controller runs (`weir controller`), then start the node again; a node that \
                      has pulled the resources once starts without a controller, from the copy in its data directory (`data_dir`)";

fn is_read_only() -> StoreFailure {
    StoreFailure::new("the resources of this node are objects of a Kubernetes cluster", "change the objects there")
}

impl ResourceStore for PulledStore {
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

impl SharedStore for PulledStore {
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
        let set_aside = set_aside.iter().map(problem_of).collect();
        if let Some(serves) = &self.serves {
            serves.send_replace(NodeServes { revision: served.revision, set_aside });
        }
    }

    fn nodes(&self) -> Result<Vec<NodeReport>, StoreFailure> {
        // The others are known to the controllers.
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(vec![NodeReport { told_ms: now_ms(), ..report }])
    }

    fn state(&self) -> StoreState {
        self.mailbox.content().state.clone()
    }
}

impl Drop for PulledStore {
    fn drop(&mut self) {
        drop(self.serves.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_of_the_controller_are_those_that_the_node_has_published() {
        let mut pairs = RevisionPairs::default();
        assert_eq!(pairs.served(9), None);
        for (own, of_controller) in [(4, 17), (4, 18), (6, 19)] {
            pairs.add(own, of_controller);
        }
        let served = [3, 4, 5, 6, 7].map(|own| pairs.served(own));
        assert_eq!(served, [None, Some(18), Some(18), Some(19), Some(19)]);
        (0..2 * MOST_PAIRS as u64).for_each(|number| pairs.add(number, number));
        assert_eq!(pairs.0.len(), MOST_PAIRS);
    }
}
