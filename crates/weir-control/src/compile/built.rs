//! Built plugins: those of one resource, and the sets that later documents reuse.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use foldhash::HashMap;
use weir_gateway::snapshot::Link;
use weir_plugin::{BuildInputs, Declaration};

use crate::text::fingerprint::Fingerprint;

/// The built plugins of a resource that several routes may share.
#[derive(Clone)]
pub(super) struct BuiltSet {
    /// The fingerprint of all inputs; `None` if building caused a warning.
    pub(super) key: Option<Fingerprint>,
    pub(super) built: Arc<[BuiltPlugin]>,
    pub(super) declarations: Arc<[Declaration]>,
    /// The inputs of its plugins besides their options.
    pub(super) inputs: BuildInputs,
}

/// One plugin of a resource: its link in the chain, or that it is disabled.
pub(super) struct BuiltPlugin {
    pub(super) name: Box<str>,
    /// `None` if `_meta.disable` is set, which also disables the plugin of the same name in a service.
    pub(super) link: Option<Link>,
}

/// Each plugin by name, from the first layer that has it.
pub(super) fn nearest<'b>(
    layers: impl IntoIterator<Item = Option<&'b [BuiltPlugin]>>,
) -> impl Iterator<Item = &'b BuiltPlugin> {
    let mut taken: HashSet<&str> = HashSet::new();
    layers.into_iter().flatten().flatten().filter(move |built| taken.insert(&built.name))
}

/// Sets of built plugins, by the fingerprint of their inputs: those of the previous document, and those used by this one.
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
