//! Resources that several parts of the translation refer to: each is written once, as long as one of them needs it.

use std::collections::{BTreeMap, BTreeSet};

use super::upstreams::TranslatedUpstreams;
use crate::objects::ObjectRef;
use crate::translation::{DerivedResource, KubeOptions, ResourceList, TranslationReader};
use crate::world::World;

/// The resources that are shared.
#[derive(Default)]
pub(super) struct SharedResources {
    pub upstreams: TranslatedUpstreams,
    pub plugins: TranslatedPlugins,
}

impl SharedResources {
    /// Writes what may have changed.
    pub(super) fn write(&mut self, world: &World, options: &KubeOptions, reader: &mut dyn TranslationReader) {
        self.upstreams.write(world, !options.offline, reader);
        self.plugins.write(reader);
    }

    /// The object that a resource comes from.
    pub(super) fn origin(&self, kind: ResourceList, id: &str) -> Option<ObjectRef> {
        match kind {
            ResourceList::Upstreams => self.upstreams.origin(id),
            _ => self.plugins.known.get(&(kind, id.to_owned())).map(|known| known.resource.origin.clone()),
        }
    }
}

/// Names a resource.
pub(super) type SharedKey = (ResourceList, String);

/// The plugins of policies, as services and plugin_configs.
#[derive(Default)]
pub(super) struct TranslatedPlugins {
    known: BTreeMap<SharedKey, SharedPlugins>,
    /// Those that may be others than were written last.
    changed: BTreeSet<SharedKey>,
}

struct SharedPlugins {
    resource: DerivedResource,
    /// How many parts of the translation refer to it.
    users: usize,
}

impl TranslatedPlugins {
    /// Takes those of the resources that are shared. Returns their names, and the others.
    pub(super) fn take(&mut self, resources: Vec<DerivedResource>) -> (Vec<SharedKey>, Vec<DerivedResource>) {
        let is_shared =
            |resource: &DerivedResource| matches!(resource.kind, ResourceList::Services | ResourceList::PluginConfigs);
        let (shared, own): (Vec<_>, Vec<_>) = resources.into_iter().partition(is_shared);
        let shared: BTreeMap<SharedKey, DerivedResource> =
            shared.into_iter().map(|resource| ((resource.kind, resource.id.clone()), resource)).collect();
        (shared.into_iter().map(|(key, resource)| self.add(key, resource)).collect(), own)
    }

    fn add(&mut self, key: SharedKey, resource: DerivedResource) -> SharedKey {
        match self.known.get_mut(&key) {
            Some(known) => {
                known.users += 1;
                if known.resource != resource {
                    known.resource = resource;
                    self.changed.insert(key.clone());
                }
            }
            None => {
                self.changed.insert(key.clone());
                self.known.insert(key.clone(), SharedPlugins { resource, users: 1 });
            }
        }
        key
    }

    /// All the objects that one of them comes from, the one that a user would change first.
    pub(super) fn origins(&self, kind: ResourceList, id: &str) -> Vec<ObjectRef> {
        let known = self.known.get(&(kind, id.to_owned())).map(|known| &known.resource);
        known
            .into_iter()
            .flat_map(|resource| std::iter::once(&resource.origin).chain(&resource.beside))
            .cloned()
            .collect()
    }

    /// A part does not refer to it any more.
    pub(super) fn release(&mut self, key: &SharedKey) {
        if let Some(known) = self.known.get_mut(key) {
            known.users -= 1;
            if known.users == 0 {
                self.changed.insert(key.clone());
            }
        }
    }

    fn write(&mut self, reader: &mut dyn TranslationReader) {
        for key in std::mem::take(&mut self.changed) {
            match self.known.get(&key) {
                Some(known) if known.users > 0 => reader.put(known.resource.clone()),
                _ => {
                    self.known.remove(&key);
                    reader.remove(key.0, &key.1);
                }
            }
        }
    }
}
