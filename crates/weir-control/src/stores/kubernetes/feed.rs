//! The state of a cluster, for the nodes that pull it from this controller.
//!
//! There is no queue for each node, but one log of the last changes for all. A node that is so slow that the log has lost its place gets
//! the whole state again.

mod nodes;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use weir_kube::cluster::{ControllerState, ResourceSink, Tenure};
use weir_kube::{DerivedResource, ResourceList};

pub use super::lines::MOST_REPORT;
use super::lines::{FINDING, MOST_LINE, ServedReport, StatusWriting};
use crate::stores::resources::ResourceKey;
use nodes::FeedNodes;
pub use stream::StateStream;

/// The most changes in the log, and the most bytes of them.
const LOG_REVISIONS: usize = 1_024;
const LOG_BYTES: usize = 16 << 20;
/// The longest name of a node.
pub const MOST_NODE_NAME: usize = 256;

/// A resource as it is now; `None`: it is gone.
type ChangedTexts = Vec<(ResourceKey, Option<Arc<str>>)>;

/// The state that is served, and the nodes that pull it.
#[derive(Clone, Default)]
pub struct StateFeed(Arc<Mutex<FeedState>>);

#[derive(Default)]
struct FeedState {
    /// 0 until the cluster has been read.
    revision: u64,
    all: Arc<BTreeMap<ResourceKey, Arc<str>>>,
    log: VecDeque<LoggedChange>,
    log_bytes: usize,
    /// Since when this controller writes the statuses; `None` if it does not.
    tenure: Option<Tenure>,
    /// The name of the controller that writes them.
    writer: String,
    problem: Option<String>,
    nodes: FeedNodes,
}

/// What changed at a revision.
#[derive(Clone)]
struct LoggedChange {
    revision: u64,
    bytes: usize,
    changes: Arc<ChangedTexts>,
}

/// A node that asks for the state.
pub struct NodeIntroduction {
    pub name: String,
    pub version: String,
    pub address: String,
}

impl StateFeed {
    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, and all its changes from now on; `None` until there is one.
    pub fn open(&self, node: NodeIntroduction) -> Option<StateStream> {
        let stream = format!("{:016x}", rand::random::<u64>());
        let mut state = self.state();
        if state.revision == 0 {
            return None;
        }
        let id = state.nodes.add(node, stream.clone(), Instant::now());
        drop(state);
        Some(StateStream::new(self.clone(), id, stream))
    }

    /// Takes a report. Returns false if there is no such stream: its node has to open another one.
    ///
    /// # Errors
    /// If it is not a report.
    pub fn report(&self, text: &[u8]) -> Result<bool, String> {
        let report: ServedReport = serde_json::from_slice(text).map_err(|error| format!("not a report: {error}"))?;
        let mut state = self.state();
        let newest = state.revision;
        state.nodes.report(report, newest, Instant::now())
    }

    /// What all nodes serve that are waited for. `None`: other controllers may know of more nodes, and it is not for this one to say.
    pub(super) fn served(&self, now: Instant) -> Option<ControllerState> {
        let state = self.state();
        state.knows_nodes(now).then(|| state.nodes.served(now))
    }

    /// Which controller writes the statuses, and since when, if it is this one.
    pub(super) fn set_writer(&self, tenure: Option<Tenure>, writer: String) {
        let mut state = self.state();
        (state.tenure, state.writer) = (tenure, writer);
    }

    /// Whether this controller writes the statuses.
    pub fn writes_statuses(&self) -> bool {
        self.state().tenure.is_some()
    }

    /// Whether the cluster has been read, so that there is a state to serve.
    pub fn is_ready(&self) -> bool {
        self.state().revision > 0
    }

    /// The revision, and the nodes that are connected, for people.
    pub fn page(&self) -> Value {
        let (state, now) = (self.state(), Instant::now());
        json!({
            "revision": state.revision,
            "resources": state.all.len(),
            "leader": state.tenure.is_some(),
            "writer": state.writer,
            "statuses_wait_for_nodes": state.tenure.is_some() && !state.knows_nodes(now),
            "problem": state.problem,
            "nodes": state.nodes.page(),
            "away": state.nodes.page_of_away(now),
        })
    }
}

impl FeedState {
    /// Whether the nodes of the cluster are at this controller: it writes the statuses, and those that were at another one have had the
    /// time to come.
    fn knows_nodes(&self, now: Instant) -> bool {
        self.tenure
            .is_some_and(|tenure| !tenure.follows_another || now.saturating_duration_since(tenure.since) >= FINDING)
    }

    fn statuses(&self) -> StatusWriting {
        StatusWriting { is_here: self.tenure.is_some(), writer: self.writer.clone() }
    }

    fn publish(&mut self, changes: ChangedTexts) -> u64 {
        self.revision += 1;
        let all = Arc::make_mut(&mut self.all);
        let mut bytes = 0;
        for (key, json) in &changes {
            bytes += key.as_str().len() + json.as_ref().map_or(0, |json| json.len());
            match json {
                Some(json) => drop(all.insert(key.clone(), Arc::clone(json))),
                None => drop(all.remove(key)),
            }
        }
        self.log_bytes += bytes;
        self.log.push_back(LoggedChange { revision: self.revision, bytes, changes: Arc::new(changes) });
        while self.log.len() > LOG_REVISIONS || self.log_bytes > LOG_BYTES {
            let Some(oldest) = self.log.pop_front() else { break };
            self.log_bytes -= oldest.bytes;
        }
        self.nodes.published(Instant::now());
        self.revision
    }

    /// The change after a revision: `Err` if the log does not have it any more, `Ok(None)` if there is none yet.
    fn after(&self, revision: u64) -> Result<Option<&LoggedChange>, ()> {
        if revision == self.revision {
            return Ok(None);
        }
        let first = self.log.front().map_or(u64::MAX, |change| change.revision);
        let place = (revision + 1).checked_sub(first).ok_or(())?;
        self.log.get(place as usize).map(Some).ok_or(())
    }
}

/// Puts each translation into the feed.
pub(super) struct FeedSink {
    feed: StateFeed,
    /// Texts as they will be when the changes are published.
    changes: BTreeMap<ResourceKey, Option<Arc<str>>>,
}

impl FeedSink {
    pub(super) fn new(feed: StateFeed) -> FeedSink {
        FeedSink { feed, changes: BTreeMap::new() }
    }

    fn change(&mut self, key: ResourceKey, json: Option<Arc<str>>) {
        let is_known = self.feed.state().all.get(&key) == json.as_ref();
        match is_known {
            true => drop(self.changes.remove(&key)),
            false => drop(self.changes.insert(key, json)),
        }
    }
}

impl ResourceSink for FeedSink {
    fn put(&mut self, resource: DerivedResource) {
        let DerivedResource { kind, id, value, .. } = resource;
        let (key, json) = (ResourceKey::new(kind.list(), &id), value.to_string());
        // Half of it is left for the key and the words around it.
        if json.len() > MOST_LINE / 2 {
            tracing::error!(%key, bytes = json.len(), "a resource is larger than nodes take; it is not served");
            return self.change(key, None);
        }
        self.change(key, Some(json.into()));
    }

    fn remove(&mut self, kind: ResourceList, id: &str) {
        self.change(ResourceKey::new(kind.list(), id), None);
    }

    fn publish(&mut self) -> u64 {
        let mut state = self.feed.state();
        if self.changes.is_empty() && state.revision > 0 {
            return state.revision;
        }
        state.publish(std::mem::take(&mut self.changes).into_iter().collect())
    }

    fn tell(&mut self, problem: Option<&str>) {
        self.feed.state().problem = problem.map(str::to_owned);
    }
}
