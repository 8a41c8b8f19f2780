//! The resources of a running node: those committed in its store, and those set aside.
//!
//! Only one thread changes them (see [`super::watch`]); any thread may read them, and try changes ([`super::trial`]).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::resources::{ResourceKey, ResourceSet, StoredResource};
use super::served_form::ServedForm;
use super::shared::{OutsideChange, ServedContent};
use super::store::{ResourceStore, StoreFailure};
use crate::text::diagnostic::Diagnostic;

/// A change to one resource.
#[derive(Clone, Debug, PartialEq)]
pub enum ResourceEdit {
    Put { key: ResourceKey, value: Value, expires_ms: Option<u64> },
    Delete { key: ResourceKey },
}

/// The resources of a store, shared by the thread that changes them and its readers.
pub struct LiveResources {
    store: Box<dyn ResourceStore>,
    /// Held only to copy references or to put changes in, never while something is computed.
    state: RwLock<LiveState>,
}

pub(super) struct LiveState {
    /// The committed resources. Readers keep the set as it is: a change meanwhile is made to a copy.
    pub(super) set: Arc<ResourceSet>,
    pub(super) form: ServedForm,
    /// Whether changes of other nodes are to be published.
    pub(super) follows: bool,
    /// A hash of all keys and the revisions that changed them last.
    pub(super) content: u64,
    /// The resources that expire, with their times in milliseconds since 1970.
    pub(super) expiring: BTreeMap<ResourceKey, u64>,
}

impl LiveResources {
    /// Loads the resources of a store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn of_store(store: Box<dyn ResourceStore>) -> Result<LiveResources, StoreFailure> {
        let set = store.load()?;
        let expiring = set.all.iter().filter_map(|(key, resource)| Some((key.clone(), resource.expires_ms?))).collect();
        let form = ServedForm { unread: set.all.keys().cloned().collect(), ..ServedForm::default() };
        let content = content_of(&set);
        let state = LiveState { set: Arc::new(set), form, follows: false, content, expiring };
        Ok(LiveResources { store, state: RwLock::new(state) })
    }

    pub fn store(&self) -> &dyn ResourceStore {
        &*self.store
    }

    /// The committed resources, as they are now.
    pub fn committed(&self) -> Arc<ResourceSet> {
        Arc::clone(&self.state().set)
    }

    /// The resources that are set aside, each with its fault.
    pub fn set_aside(&self) -> BTreeMap<ResourceKey, Diagnostic> {
        self.state().form.set_aside.clone()
    }

    /// What is served in place of a resource that is set aside: its last good text, or a form that refuses what it is for.
    pub fn served_instead(&self, key: &ResourceKey) -> Option<Value> {
        self.state().form.instead.get(key).and_then(|text| serde_json::from_str(text).ok())
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, LiveState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, LiveState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the changes of other nodes, if the store is shared. Returns whether there is something to publish.
    pub(super) fn take_outside(&self) -> bool {
        let Some(shared) = self.store.shared() else { return false };
        let changes = shared.take_changes();
        let mut state = self.state_mut();
        for change in changes {
            match change {
                OutsideChange::Some { revision, resources } => {
                    let set = Arc::make_mut(&mut state.set);
                    set.revision = set.revision.max(revision);
                    resources.into_iter().for_each(|(key, resource)| state.take(key, resource, Some(revision)));
                }
                OutsideChange::All { set, is_doubtful } => state.take_all(set, is_doubtful),
            }
        }
        state.follows
    }

    /// Replaces all resources by those of a file.
    pub(super) fn replace(&self, set: ResourceSet) {
        let mut state = self.state_mut();
        state.content = content_of(&set);
        state.form = ServedForm { unread: set.all.keys().cloned().collect(), ..ServedForm::default() };
        state.set = Arc::new(set);
    }

    /// The committed state, as it is published to other nodes.
    pub fn content(&self) -> ServedContent {
        let state = self.state();
        let set_aside = state.form.set_aside.len();
        ServedContent { revision: state.set.revision, content: state.content, set_aside }
    }

    /// Called when the current resources are served. If the store is shared, other nodes are informed.
    pub(super) fn served(&self) {
        if let Some(shared) = self.store.shared() {
            shared.serves(self.content(), &self.set_aside());
        }
    }

    /// The keys of resources that have expired.
    pub(super) fn expired(&self) -> Vec<ResourceKey> {
        let now = now_ms();
        self.state().expiring.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect()
    }
}

impl LiveState {
    /// Takes the whole content of a shared store that was read again.
    fn take_all(&mut self, new: ResourceSet, is_doubtful: bool) {
        // After a reset, an empty store is not believed, until it has a resource again.
        if is_doubtful && new.all.is_empty() && !self.set.all.is_empty() {
            self.forget_revisions();
            Arc::make_mut(&mut self.set).revision = new.revision;
            return;
        }
        // Changes that this node has written after the set was read are still to come from the watch, so they are kept.
        let is_newer = |set: &ResourceSet, key: &ResourceKey| {
            !is_doubtful && set.all.get(key).is_some_and(|own| own.modified > new.revision)
        };
        let gone = self.set.all.keys().filter(|key| !new.all.contains_key(*key) && !is_newer(&self.set, key));
        let gone: Vec<ResourceKey> = gone.cloned().collect();
        gone.into_iter().for_each(|key| self.take(key, None, None));
        for (key, resource) in new.all {
            if !is_newer(&self.set, &key) {
                self.take(key, Some(resource), None);
            }
        }
        Arc::make_mut(&mut self.set).revision = new.revision;
    }

    /// Marks all resources as absent from the store, which has lost them and counts revisions anew: any state of them that the
    /// store has from now on is newer, and to write them again is to create them.
    fn forget_revisions(&mut self) {
        self.follows = true;
        for resource in Arc::make_mut(&mut self.set).all.values_mut() {
            (resource.created, resource.modified) = (0, 0);
        }
        self.content = content_of(&self.set);
    }

    /// Applies the state of a resource in the store. With `changed_at`, the revision of the change, it is ignored if the resource
    /// here is newer.
    fn take(&mut self, key: ResourceKey, resource: Option<StoredResource>, changed_at: Option<u64>) {
        let before = self.set.all.get(&key);
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
        self.form.unread.insert(key.clone());
        let (was, is) = (before.map(|before| before.modified), resource.as_ref().map(|resource| resource.modified));
        self.content = exchanged(self.content, &key, was, is);
        match &resource {
            Some(_) => self.form.note_last_good(&key, before),
            None => {
                self.form.last_good.remove(&key);
                self.form.instead.remove(&key);
            }
        }
        let set = Arc::make_mut(&mut self.set);
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

pub(super) fn exchanged(content: u64, key: &ResourceKey, before: Option<u64>, after: Option<u64>) -> u64 {
    // FNV-1a, which is the same in all processes.
    let hash = |revision: u64| {
        let bytes = key.as_str().bytes().chain(revision.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    };
    content.wrapping_sub(before.map_or(0, hash)).wrapping_add(after.map_or(0, hash))
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
