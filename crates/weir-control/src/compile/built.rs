//! Plugins that have been built: those of one resource, and the sets that later documents use again.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use foldhash::HashMap;
use weir_gateway::snapshot::Link;
use weir_plugin::{BuildInputs, Declaration};

use crate::text::fingerprint::Fingerprint;

/// The plugins of a resource that several may share, once built.
#[derive(Clone)]
pub(super) struct BuiltSet {
    /// What it was made from; nothing if that caused a warning.
    pub(super) key: Option<Fingerprint>,
    pub(super) built: Arc<[BuiltPlugin]>,
    pub(super) told: Arc<[Declaration]>,
    /// What its plugins were built from besides their options.
    pub(super) inputs: BuildInputs,
}

/// What a resource says about one plugin: how it runs, or that it does not.
pub(super) struct BuiltPlugin {
    pub(super) name: Box<str>,
    /// Nothing where `_meta.disable` is set; that, too, overrides what a service says.
    pub(super) link: Option<Link>,
}

/// Each plugin from the nearest that names it.
pub(super) fn nearest<'b>(
    layers: impl IntoIterator<Item = Option<&'b [BuiltPlugin]>>,
) -> impl Iterator<Item = &'b BuiltPlugin> {
    let mut taken: HashSet<&str> = HashSet::new();
    layers.into_iter().flatten().flatten().filter(move |built| taken.insert(&built.name))
}

/// Sets of plugins that were built, by what they were built from: those of the document before, and those that are used.
pub(super) struct Sets<'a> {
    before: Option<&'a HashMap<Fingerprint, BuiltSet>>,
    used: RefCell<HashMap<Fingerprint, BuiltSet>>,
}

impl<'a> Sets<'a> {
    pub(super) fn new(before: Option<&'a HashMap<Fingerprint, BuiltSet>>) -> Sets<'a> {
        Sets { before, used: RefCell::default() }
    }

    pub(super) fn find(&self, key: Fingerprint, is_it: impl Fn(&BuiltSet) -> bool) -> Option<&'a BuiltSet> {
        let found = self.before?.get(&key).filter(|set| is_it(set))?;
        self.used.borrow_mut().insert(key, found.clone());
        Some(found)
    }

    pub(super) fn add(&self, key: Fingerprint, set: BuiltSet) {
        self.used.borrow_mut().insert(key, set);
    }

    pub(super) fn into_used(self) -> HashMap<Fingerprint, BuiltSet> {
        self.used.into_inner()
    }
}
