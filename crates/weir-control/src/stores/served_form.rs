//! The resources of a store in the form in which documents contain them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::read_lists::ReadLists;
use super::resources::{ResourceKey, StoredResource};
use crate::text::diagnostic::Diagnostic;

/// Resources in the form in which documents contain them.
#[derive(Clone, Default)]
pub(super) struct ServedForm {
    /// The resources that are set aside (kept in the store, but not served as they are), each with its fault.
    pub(super) set_aside: BTreeMap<ResourceKey, Diagnostic>,
    /// The texts that are served in place of those of resources that are set aside.
    pub(super) instead: BTreeMap<ResourceKey, Arc<str>>,
    /// The long lists of the last document.
    pub(super) read: ReadLists,
    /// Keys in long lists that may have changed since they were read.
    pub(super) unread: BTreeSet<ResourceKey>,
    /// The texts last served of resources that have changed, in case the change cannot be served.
    pub(super) last_good: BTreeMap<ResourceKey, Arc<str>>,
}

impl ServedForm {
    /// Keeps the text that is served of a resource before it changes.
    pub(super) fn note_last_good(&mut self, key: &ResourceKey, before: Option<&StoredResource>) {
        let served = match self.set_aside.contains_key(key) {
            true => self.instead.get(key),
            false => before.map(|before| &before.json),
        };
        if let Some(served) = served {
            self.last_good.entry(key.clone()).or_insert_with(|| Arc::clone(served));
        }
    }
}
