//! The state of a cluster, for the nodes that pull it from this controller.
//!
//! There is no queue for each node, but one log of the last changes for all. A node that is so slow that the log has lost its place gets
//! the whole state again.

mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_kube::cluster::{ControllerState, ResourceSink};
use weir_kube::{DerivedResource, ResourceList};

pub use super::lines::MOST_REPORT;
use super::lines::{MOST_LINE, MOST_PROBLEM, MOST_SET_ASIDE, ServedReport};
use crate::stores::live::now_ms;
use crate::stores::resources::ResourceKey;
pub use stream::StateStream;

/// The most changes in the log, and the most bytes of them.
const LOG_REVISIONS: usize = 1_024;
const LOG_BYTES: usize = 16 << 20;
/// A node that serves nothing newer for this long, though there is something, is not waited for any more.
const REPORT_PATIENCE: Duration = Duration::from_secs(30);
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
    is_leader: bool,
    problem: Option<String>,
    nodes: BTreeMap<u64, PullingNode>,
    next_node: u64,
}

/// What changed at a revision.
#[derive(Clone)]
struct LoggedChange {
    revision: u64,
    bytes: usize,
    changes: Arc<ChangedTexts>,
}

/// A node that is connected.
struct PullingNode {
    name: String,
    version: String,
    address: String,
    /// The name of its stream in reports. It is not guessed by other nodes.
    stream: String,
    since_ms: u64,
    reported_ms: u64,
    served: u64,
    set_aside: BTreeMap<String, String>,
    /// Since when it serves nothing newer, though there is something.
    behind_since: Option<Instant>,
    waker: Option<Waker>,
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
        let id = state.next_node;
        state.next_node += 1;
        let NodeIntroduction { name, version, address } = node;
        let behind_since = Some(Instant::now());
        let (since_ms, set_aside) = (now_ms(), BTreeMap::new());
        let node = PullingNode {
            name,
            version,
            address,
            stream: stream.clone(),
            since_ms,
            reported_ms: 0,
            served: 0,
            set_aside,
            behind_since,
            waker: None,
        };
        state.nodes.insert(id, node);
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
        let Some(node) = state.nodes.values_mut().find(|node| node.stream == report.stream) else { return Ok(false) };
        if report.revision > newest {
            return Err(format!("revision {} is not there yet, the newest is {newest}", report.revision));
        }
        node.reported_ms = now_ms();
        let has_progressed = report.revision > node.served;
        node.served = report.revision;
        let bounded = |(key, problem): (String, String)| (key, problem.chars().take(MOST_PROBLEM).collect());
        node.set_aside = report.set_aside.into_iter().take(MOST_SET_ASIDE).map(bounded).collect();
        if node.served == newest {
            node.behind_since = None;
        } else if has_progressed {
            node.behind_since = Some(Instant::now());
        }
        Ok(true)
    }

    /// What all nodes serve that are waited for: nothing if there is none.
    pub(super) fn served(&self) -> ControllerState {
        let state = self.state();
        let is_waited_for =
            |node: &&PullingNode| node.behind_since.is_none_or(|since| since.elapsed() < REPORT_PATIENCE);
        let waited_for = || state.nodes.values().filter(is_waited_for);
        let revision = waited_for().map(|node| node.served).min().unwrap_or(0);
        let set_aside = waited_for().flat_map(|node| node.set_aside.clone()).collect();
        ControllerState { revision, set_aside }
    }

    pub(super) fn set_leader(&self, is_leader: bool) {
        self.state().is_leader = is_leader;
    }

    /// Whether the cluster has been read, so that there is a state to serve.
    pub fn is_ready(&self) -> bool {
        self.state().revision > 0
    }

    /// The revision, and the nodes that are connected, for people.
    pub fn page(&self) -> Value {
        let (state, now) = (self.state(), now_ms());
        let age_ms = |at: u64| if at == 0 { Value::Null } else { now.saturating_sub(at).into() };
        let node = |node: &PullingNode| {
            json!({
                "node": node.name,
                "version": node.version,
                "address": node.address,
                "served_revision": node.served,
                "report_age_ms": age_ms(node.reported_ms),
                "connected_ms": age_ms(node.since_ms),
                "set_aside": node.set_aside,
            })
        };
        json!({
            "revision": state.revision,
            "resources": state.all.len(),
            "leader": state.is_leader,
            "problem": state.problem,
            "nodes": state.nodes.values().map(node).collect::<Vec<_>>(),
        })
    }
}

impl FeedState {
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
        for node in self.nodes.values_mut() {
            node.behind_since.get_or_insert_with(Instant::now);
            node.waker.take().into_iter().for_each(Waker::wake);
        }
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
