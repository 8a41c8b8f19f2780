//! Resources that others make, compared with those that the node has: only differences are changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use weir_kube::ResourceList;

use super::zones;
use crate::stores::mailbox::Mailbox;
use crate::stores::resources::{ResourceKey, ResourceSet, StoredResource};
use crate::stores::shared::OutsideChange;

/// Changes for the copy on disk.
pub(super) type CopiedChanges = (u64, Vec<(ResourceKey, Option<StoredResource>)>);

/// The resources that are known, and what has changed since they were published. Its revisions are the node's own.
pub(super) struct FollowedSet {
    mailbox: Arc<Mailbox>,
    set: ResourceSet,
    changes: BTreeMap<ResourceKey, Option<StoredResource>>,
    /// While all resources are told anew, those that have not been.
    unconfirmed: Option<BTreeSet<ResourceKey>>,
    /// Whether nothing has been published yet.
    is_first: bool,
    copied: UnboundedSender<CopiedChanges>,
    /// That of the node; empty if it is not known.
    zone: Box<str>,
}

impl FollowedSet {
    /// `set` has the resources that the node knows already. All resources are to be told first.
    pub(super) fn new(mailbox: Arc<Mailbox>, set: ResourceSet, copied: UnboundedSender<CopiedChanges>) -> FollowedSet {
        let changes = BTreeMap::new();
        let zone = Box::default();
        let mut followed = FollowedSet { mailbox, set, changes, unconfirmed: None, is_first: true, copied, zone };
        followed.begin_all();
        followed
    }

    /// For a node in this zone.
    pub(super) fn in_zone(self, zone: &str) -> FollowedSet {
        FollowedSet { zone: zone.into(), ..self }
    }

    /// All resources are told anew: those that are not told until the next publication are gone.
    pub(super) fn begin_all(&mut self) {
        self.unconfirmed = Some(self.set.all.keys().cloned().collect());
    }

    pub(super) fn put(&mut self, key: ResourceKey, mut value: Value) {
        if key.list() == ResourceList::Upstreams.list() {
            zones::prefer(&mut value, &self.zone);
        }
        let json = value.to_string();
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.remove(&key);
        }
        let known = self.set.all.get(&key);
        if known.is_some_and(|known| *known.json == *json) {
            return;
        }
        let revision = self.set.revision + 1;
        let created = known.map_or(revision, |known| known.created);
        let new = StoredResource { json: json.into(), created, modified: revision, expires_ms: None };
        self.changes.insert(key.clone(), Some(new.clone()));
        self.set.all.insert(key, new);
    }

    pub(super) fn remove(&mut self, key: ResourceKey) {
        if self.set.all.remove(&key).is_some() {
            self.changes.insert(key, None);
        }
    }

    /// Leaves the changes in the mailbox, and for the copy. Returns the revision that has them.
    pub(super) fn publish(&mut self) -> u64 {
        self.unconfirmed.take().into_iter().flatten().for_each(|key| self.remove(key));
        let is_first = std::mem::take(&mut self.is_first);
        if !self.changes.is_empty() || is_first {
            // What the copy has already is served at its revision.
            if !self.changes.is_empty() || self.set.revision == 0 {
                self.set.revision += 1;
            }
            let revision = self.set.revision;
            let changes: Vec<_> = std::mem::take(&mut self.changes).into_iter().collect();
            // It fails if the node ends.
            let _ = self.copied.send((revision, changes.clone()));
            self.mailbox.put(OutsideChange::Some { revision, resources: changes });
        }
        self.set.revision
    }

    /// Whether everything has been told once.
    pub(super) fn has_published(&self) -> bool {
        !self.is_first
    }
}
