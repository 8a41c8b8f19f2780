//! The resources of a running node: those committed in its store, a candidate change, and those set aside.
//!
//! Only one thread changes them (see [`super::watch`]); any thread may read the committed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::read_lists::{ReadLists, is_long};
use super::resources::{
    Author, PendingResources, ResourceChange, ResourceKey, ResourceSet, ResourceView, RevisionRecord, StoredResource,
};
use super::shared::{OutsideChange, ServedContent};
use super::store::{CommitFailure, ResourceStore, StoreFailure};
use crate::document::RESOURCE_LISTS;
use crate::document::lists::LongLists;
use crate::document::resource_access::ResourceAccess;
use crate::text::diagnostic::Diagnostic;
use crate::text::json;
use crate::text::tree::{MapEntry, NodeKind, TreeNode};

/// A change to one resource.
#[derive(Clone, Debug, PartialEq)]
pub enum ResourceEdit {
    Put { key: ResourceKey, value: Value, expires_ms: Option<u64> },
    Delete { key: ResourceKey },
}

/// The resources of a store, shared by the thread that changes them and its readers.
pub struct LiveResources {
    store: Box<dyn ResourceStore>,
    committed: RwLock<ResourceSet>,
    trial: Mutex<DocumentTrial>,
}

#[derive(Default)]
struct DocumentTrial {
    pending: PendingResources,
    records: Vec<RevisionRecord>,
    /// The resources that are set aside (kept in the store, but not served as they are), each with its fault.
    set_aside: BTreeMap<ResourceKey, Diagnostic>,
    /// The keys of the items of each short list in the last document, in order.
    order: BTreeMap<&'static str, Vec<ResourceKey>>,
    /// The long lists of the last document.
    read: ReadLists,
    /// Keys in long lists that may have changed since they were read.
    unread: BTreeSet<ResourceKey>,
    /// The texts last served of resources that other nodes have changed, in case the change cannot be served.
    last_good: BTreeMap<ResourceKey, Arc<str>>,
    /// The texts that are served in place of those of resources that are set aside.
    instead: BTreeMap<ResourceKey, Arc<str>>,
    /// Set while changes of other nodes are being published.
    follows: bool,
    /// A hash of all keys and the revisions that changed them last.
    content: u64,
    /// The resources that expire, with their times in milliseconds since 1970.
    expiring: BTreeMap<ResourceKey, u64>,
}

/// The lists of resources for a document.
pub(super) struct DocumentLists {
    /// The short lists, as entries of the document's tree.
    pub(super) short: Vec<MapEntry>,
    pub(super) long: LongLists,
}

/// The faults of a candidate, by resource.
#[derive(Debug, Default)]
pub struct SortedFaults {
    /// The faults of resources, by key.
    pub resources: BTreeMap<ResourceKey, Vec<Diagnostic>>,
    /// All other faults.
    pub other: Vec<Diagnostic>,
}

impl LiveResources {
    /// Loads the resources of a store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn of_store(store: Box<dyn ResourceStore>) -> Result<LiveResources, StoreFailure> {
        let set = store.load()?;
        let expiring = set.all.iter().filter_map(|(key, resource)| Some((key.clone(), resource.expires_ms?)));
        let unread = set.all.keys().cloned().collect();
        let content = content_of(&set);
        let trial = DocumentTrial { expiring: expiring.collect(), unread, content, ..DocumentTrial::default() };
        Ok(LiveResources { store, committed: RwLock::new(set), trial: Mutex::new(trial) })
    }

    pub fn store(&self) -> &dyn ResourceStore {
        &*self.store
    }

    /// The committed resources. Changes are blocked while the guard is held.
    pub fn committed(&self) -> RwLockReadGuard<'_, ResourceSet> {
        self.committed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The resources that are set aside, each with its fault.
    pub fn set_aside(&self) -> BTreeMap<ResourceKey, Diagnostic> {
        self.trial().set_aside.clone()
    }

    pub(super) fn has_set_aside(&self) -> bool {
        !self.trial().set_aside.is_empty()
    }

    fn trial(&self) -> MutexGuard<'_, DocumentTrial> {
        self.trial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The revision of the candidate, or the committed one if there is none.
    pub(super) fn revision(&self) -> u64 {
        let of_trial = self.trial().records.last().map(|record| record.revision);
        of_trial.unwrap_or_else(|| self.committed().revision)
    }

    /// Calls `look` with the resources, including the candidate's changes.
    pub(super) fn view<T>(&self, look: impl FnOnce(&ResourceView) -> T) -> T {
        let (trial, set) = (self.trial(), self.committed());
        let revision = trial.records.last().map_or(set.revision, |record| record.revision);
        look(&ResourceView { set: &set, pending: &trial.pending, revision })
    }

    /// Adds a revision to the candidate. Edits that change nothing except times count as well, since they were requested.
    pub(super) fn stage(&self, edits: Vec<ResourceEdit>, author: Author) -> RevisionRecord {
        let (mut trial, set) = (self.trial(), self.committed());
        let revision = trial.records.last().map_or(set.revision, |record| record.revision) + 1;
        let mut changes = Vec::new();
        for edit in edits {
            let (ResourceEdit::Put { key, .. } | ResourceEdit::Delete { key }) = &edit;
            let before = match trial.pending.get(key) {
                Some(pending) => pending.clone(),
                None => set.all.get(key).cloned(),
            };
            let after = match &edit {
                ResourceEdit::Put { value, expires_ms, .. } => Some(StoredResource {
                    json: value.to_string().into(),
                    // 0 if the store has lost it.
                    created: before.as_ref().map(|before| before.created).filter(|at| *at > 0).unwrap_or(revision),
                    modified: revision,
                    expires_ms: *expires_ms,
                }),
                ResourceEdit::Delete { .. } => None,
            };
            trial.pending.insert(key.clone(), after.clone());
            trial.unread.insert(key.clone());
            changes.push(ResourceChange { key: key.clone(), before, after });
        }
        let record = RevisionRecord { revision, at_ms: now_ms(), author, changes };
        trial.records.push(record.clone());
        record
    }

    /// Whether a candidate change is being compiled.
    pub(super) fn is_trying(&self) -> bool {
        let trial = self.trial();
        trial.follows || !trial.records.is_empty()
    }

    /// Drops the candidate.
    pub(super) fn drop_trial(&self) {
        let mut trial = self.trial();
        let given_up = std::mem::take(&mut trial.pending);
        trial.unread.extend(given_up.into_keys());
        trial.records.clear();
    }

    /// Commits the candidate to the store. Returns the revision that the store has given it.
    pub(super) fn commit(&self) -> Result<Option<u64>, CommitFailure> {
        let mut trial = self.trial();
        let Some(last) = trial.records.last().map(|record| record.revision) else { return Ok(None) };
        let revision = self.store.commit(&trial.records)?;
        let mut set = self.committed.write().unwrap_or_else(PoisonError::into_inner);
        set.revision = revision;
        let number = |of_trial: &mut u64| {
            if *of_trial == last {
                *of_trial = revision;
            }
        };
        for (key, mut pending) in std::mem::take(&mut trial.pending) {
            if let Some(resource) = &mut pending {
                number(&mut resource.created);
                number(&mut resource.modified);
                // A shared store deletes expired resources itself.
                resource.expires_ms = resource.expires_ms.filter(|_| self.store.shared().is_none());
            }
            let before = set.all.get(&key).map(|resource| resource.modified);
            trial.content = exchanged(trial.content, &key, before, pending.as_ref().map(|resource| resource.modified));
            match pending.as_ref().and_then(|resource| resource.expires_ms) {
                Some(at) => drop(trial.expiring.insert(key.clone(), at)),
                None => drop(trial.expiring.remove(&key)),
            }
            match pending {
                Some(resource) => drop(set.all.insert(key, resource)),
                None => drop(set.all.remove(&key)),
            }
        }
        trial.records.clear();
        Ok(Some(revision))
    }

    /// Applies the changes of other nodes, if the store is shared. Returns whether there is something to publish. Resources set
    /// aside are tried again, since a change may have added what they lacked.
    pub(super) fn take_outside(&self) -> bool {
        let Some(shared) = self.store.shared() else { return false };
        let changes = shared.take_changes();
        if changes.is_empty() {
            return self.trial().follows;
        }
        let mut trial = self.trial();
        let mut set = self.committed.write().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            match change {
                OutsideChange::Some { revision, resources } => {
                    set.revision = set.revision.max(revision);
                    resources
                        .into_iter()
                        .for_each(|(key, resource)| trial.take(&mut set, key, resource, Some(revision)));
                }
                // After a reset, an empty store is not believed: only individual deletions are.
                OutsideChange::All { set: new, is_doubtful }
                    if is_doubtful && new.all.is_empty() && !set.all.is_empty() =>
                {
                    trial.forget_revisions(&mut set);
                    set.revision = new.revision;
                }
                OutsideChange::All { set: new, is_doubtful } => {
                    // Changes that this node has written after the set was read are still to come from the watch, so they are
                    // kept.
                    let is_newer = |set: &ResourceSet, key: &ResourceKey| {
                        !is_doubtful && set.all.get(key).is_some_and(|own| own.modified > new.revision)
                    };
                    // What the store has lost before stays in use.
                    let was_lost = |resource: &StoredResource| !is_doubtful && resource.modified == 0;
                    let gone = set.all.iter().filter(|(key, resource)| {
                        !new.all.contains_key(*key) && !is_newer(&set, key) && !was_lost(resource)
                    });
                    let gone: Vec<ResourceKey> = gone.map(|(key, _)| key.clone()).collect();
                    gone.into_iter().for_each(|key| trial.take(&mut set, key, None, None));
                    for (key, resource) in new.all {
                        if !is_newer(&set, &key) {
                            trial.take(&mut set, key, Some(resource), None);
                        }
                    }
                    set.revision = new.revision;
                }
            }
        }
        if trial.follows {
            let aside = std::mem::take(&mut trial.set_aside);
            for key in aside.into_keys() {
                if let Some(instead) = trial.instead.remove(&key) {
                    trial.last_good.entry(key.clone()).or_insert(instead);
                }
                trial.unread.insert(key);
            }
        }
        trial.follows
    }

    /// Sets these resources aside: the texts last served are used instead, or nothing if these are faulty as well.
    pub(super) fn leave_out(&self, faulty: BTreeMap<ResourceKey, Diagnostic>) {
        let mut trial = self.trial();
        for (key, fault) in faulty {
            trial.unread.insert(key.clone());
            if trial.set_aside.contains_key(&key) {
                trial.instead.remove(&key);
            } else {
                if let Some(good) = trial.last_good.get(&key).cloned() {
                    trial.instead.insert(key.clone(), good);
                }
                tracing::warn!(
                    resource = %key, problem = %fault.problem,
                    "a resource that another writer has changed cannot be served, its last good version stays in use, if there is one"
                );
                trial.set_aside.insert(key, fault);
            }
        }
    }

    /// The committed state, as it is published to other nodes.
    pub fn content(&self) -> ServedContent {
        let (trial, set) = (self.trial(), self.committed());
        ServedContent { revision: set.revision, content: trial.content, set_aside: trial.set_aside.len() }
    }

    /// Called when the current resources are served. If the store is shared, other nodes are informed.
    pub(super) fn served(&self) {
        let Some(shared) = self.store.shared() else { return };
        let (mut trial, set) = (self.trial(), self.committed());
        let DocumentTrial { last_good, instead, set_aside, follows, content, .. } = &mut *trial;
        last_good.clear();
        instead.retain(|key, _| set_aside.contains_key(key));
        *follows = false;
        shared.serves(ServedContent { revision: set.revision, content: *content, set_aside: set_aside.len() });
    }

    /// The keys of resources that have expired.
    pub(super) fn expired(&self) -> Vec<ResourceKey> {
        let now = now_ms();
        self.trial().expiring.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect()
    }

    /// Replaces the set of resources that are set aside.
    pub(super) fn put_aside(&self, set_aside: BTreeMap<ResourceKey, Diagnostic>) {
        let mut trial = self.trial();
        let other: Vec<ResourceKey> = {
            let both = trial.set_aside.keys().chain(set_aside.keys());
            both.filter(|key| trial.set_aside.contains_key(*key) != set_aside.contains_key(*key)).cloned().collect()
        };
        trial.unread.extend(other);
        trial.set_aside = set_aside;
    }

    /// Drops the texts that are served in place of these resources, if they are set aside: these texts are faulty as well.
    pub(super) fn drop_replacements<'k>(&self, faulty: impl Iterator<Item = &'k ResourceKey>) {
        let mut trial = self.trial();
        for key in faulty {
            if trial.set_aside.contains_key(key) && trial.instead.remove(key).is_some() {
                trial.unread.insert(key.clone());
            }
        }
    }

    /// What the resources of the last document may use of the node.
    pub(crate) fn access(&self) -> Arc<ResourceAccess> {
        Arc::clone(self.trial().read.access())
    }

    /// The lists for a document, without the resources that are set aside. Of long lists, only resources that may have changed
    /// are read again.
    pub(super) fn lists(&self, source: &Arc<str>, access: &Arc<ResourceAccess>) -> DocumentLists {
        let (mut trial, set) = (self.trial(), self.committed());
        let DocumentTrial { pending, set_aside, instead, order, read, unread, .. } = &mut *trial;
        if read.set_access(access) {
            unread.extend(set.all.keys().chain(pending.keys()).cloned());
        }
        let view = ResourceView { set: &set, pending: &*pending, revision: set.revision };
        for key in std::mem::take(unread).iter().filter(|key| is_long(key.list())) {
            let json = if set_aside.contains_key(key) {
                instead.get(key)
            } else {
                view.get(key).map(|resource| &resource.json)
            };
            read.set(source, key, json.map(|json| item(key, json)));
        }
        order.clear();
        let mut short = Vec::new();
        for list in RESOURCE_LISTS.iter().copied().filter(|list| !is_long(list)) {
            let all = view.list(list).into_iter();
            let served: Vec<_> = all
                .filter_map(|(key, resource)| match set_aside.contains_key(key) {
                    true => Some((key, instead.get(key)?)),
                    false => Some((key, &resource.json)),
                })
                .collect();
            if served.is_empty() {
                continue;
            }
            let items = served.iter().map(|(key, json)| item(key, json)).collect();
            order.insert(list, served.into_iter().map(|(key, _)| key.clone()).collect());
            let value = TreeNode::unplaced(NodeKind::List(items));
            short.push(MapEntry::unplaced(list, value));
        }
        DocumentLists { short, long: read.lists() }
    }

    /// Assigns faults to resources: `routes[r1].uri` of the document is `uri` of `routes/r1`.
    pub(super) fn sort(&self, faults: &[Diagnostic]) -> SortedFaults {
        let mut sorted = SortedFaults::default();
        for fault in faults {
            match self.resource_of(&fault.path) {
                Some((key, rest)) => {
                    let path = match rest.trim_start_matches('.') {
                        "" => key.to_string(),
                        rest => format!("{key}: {rest}"),
                    };
                    let fault = Diagnostic { path, line: None, column: None, ..fault.clone() };
                    let known = sorted.resources.entry(key.clone()).or_default();
                    match self.view(|view| view.get(&key).and_then(StoredResource::fault)) {
                        // This is the reason for all other faults of the resource.
                        Some(problem) => {
                            let advice = Some("write the resource as a JSON object".to_owned());
                            *known = vec![Diagnostic { path: key.to_string(), problem, advice, ..fault }];
                        }
                        None => known.push(fault),
                    }
                }
                None => sorted.other.push(fault.clone()),
            }
        }
        sorted
    }

    /// The resource at the start of a path of the document, and the rest of the path. Long lists have ids in place of indices.
    fn resource_of<'p>(&self, path: &'p str) -> Option<(ResourceKey, &'p str)> {
        let (list, rest) = path.split_once('[')?;
        if !is_long(list) {
            let (index, rest) = rest.split_once(']')?;
            let order = &self.trial().order;
            return Some((order.get(list)?.get(index.parse::<usize>().ok()?)?.clone(), rest));
        }
        // Other writers of a shared store may use any id, even with brackets.
        let ends = rest.match_indices(']').map(|(end, _)| (ResourceKey::new(list, &rest[..end]), &rest[end + 1..]));
        self.view(|view| ends.into_iter().find(|(key, _)| view.get(key).is_some()))
    }
}

impl SortedFaults {
    /// All faults, those of resources first.
    pub fn into_all(self) -> Vec<Diagnostic> {
        self.resources.into_values().flatten().chain(self.other).collect()
    }

    /// All faults except those of resources for which `is_left_out`; all faults if there are no others.
    pub fn into_all_but(mut self, is_left_out: impl Fn(&ResourceKey) -> bool) -> Vec<Diagnostic> {
        if !self.other.is_empty() || self.resources.keys().any(|key| !is_left_out(key)) {
            self.resources.retain(|key, _| !is_left_out(key));
        }
        self.into_all()
    }

    /// The resources that have faults, each with its first one. `None` if there is any other fault.
    pub fn only_resources(&self) -> Option<BTreeMap<ResourceKey, Diagnostic>> {
        let first = |(key, faults): (&ResourceKey, &Vec<Diagnostic>)| Some((key.clone(), faults.first()?.clone()));
        self.other.is_empty().then(|| self.resources.iter().filter_map(first).collect())
    }
}

impl DocumentTrial {
    /// Marks all resources as absent from the store, which has lost them and counts revisions anew: any state of them that the
    /// store has from now on is newer, and to write them again is to create them.
    fn forget_revisions(&mut self, set: &mut ResourceSet) {
        self.follows = true;
        for resource in set.all.values_mut() {
            (resource.created, resource.modified) = (0, 0);
        }
        self.content = content_of(set);
    }

    /// Applies the state of a resource in the store. With `changed_at`, the revision of the change, it is ignored if the resource
    /// here is newer.
    fn take(
        &mut self,
        set: &mut ResourceSet,
        key: ResourceKey,
        resource: Option<StoredResource>,
        changed_at: Option<u64>,
    ) {
        let before = set.all.get(&key);
        let is_known = match (&resource, before) {
            (Some(resource), Some(before)) => {
                changed_at.is_some() && resource.modified <= before.modified || resource == before
            }
            (None, Some(before)) => changed_at.is_some_and(|revision| revision <= before.modified),
            (Some(_), None) => false,
            (None, None) => true,
        };
        if is_known {
            return;
        }
        self.follows = true;
        self.unread.insert(key.clone());
        let (was, is) = (before.map(|before| before.modified), resource.as_ref().map(|resource| resource.modified));
        self.content = exchanged(self.content, &key, was, is);
        match (&resource, before) {
            (Some(_), Some(before)) if !self.set_aside.contains_key(&key) => {
                self.last_good.entry(key.clone()).or_insert_with(|| Arc::clone(&before.json));
            }
            (None, _) => {
                self.last_good.remove(&key);
                self.instead.remove(&key);
            }
            _ => {}
        }
        match resource {
            Some(resource) => drop(set.all.insert(key, resource)),
            None => drop(set.all.remove(&key)),
        }
    }
}

/// A hash of all keys with the revisions that changed them last. Nodes with the same resources have the same hash, in whatever
/// order changes arrived.
fn content_of(set: &ResourceSet) -> u64 {
    set.all.iter().fold(0, |content, (key, resource)| exchanged(content, key, None, Some(resource.modified)))
}

fn exchanged(content: u64, key: &ResourceKey, before: Option<u64>, after: Option<u64>) -> u64 {
    // FNV-1a, which is the same in all processes.
    let hash = |revision: u64| {
        let bytes = key.as_str().bytes().chain(revision.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    };
    content.wrapping_sub(before.map_or(0, hash)).wrapping_add(after.map_or(0, hash))
}

/// A resource as an item of a document, with its id.
fn item(key: &ResourceKey, text: &str) -> TreeNode {
    // A text that is not JSON is refused as a resource that is no map, and [`LiveResources::sort`] says why.
    let mut tree = json::tree(text).unwrap_or(TreeNode::unplaced(NodeKind::Null));
    let has_id = key.list() != "consumers" || key.consumer_of_credential().is_some();
    if let NodeKind::Map(entries) = &mut tree.kind
        && has_id
    {
        let value = TreeNode::unplaced(NodeKind::Text(key.id().into()));
        match entries.iter_mut().find(|entry| &*entry.key == "id") {
            Some(entry) => entry.value = value,
            None => entries.push(MapEntry::unplaced("id", value)),
        }
    }
    tree
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
