//! Objects that are all translated together: what they have made, and what they have looked up.

use std::collections::{BTreeMap, BTreeSet};

use super::backends::{BackendLookups, BackendPort, ServiceBackends, UpstreamKey};
use super::endpoints::addresses;
use super::shared::{SharedKey, SharedResources};
use crate::objects::{Kind, ObjectRef};
use crate::translation::{ObjectEvent, ObjectStatus, ResourceList, Translation, TranslationReader};
use crate::world::{World, WorldChanges};

/// What the last translation of such objects has made.
#[derive(Default)]
pub(super) struct TranslatedTogether {
    /// The resources, each with the object that it comes from.
    resources: BTreeMap<(ResourceList, String), ObjectRef>,
    /// The server names that have a certificate.
    pub server_names: BTreeSet<String>,
    upstreams: Vec<UpstreamKey>,
    /// The plugins that resources share.
    plugins: Vec<SharedKey>,
    lookups: BackendLookups,
    statuses: BTreeMap<ObjectRef, ObjectStatus>,
    pub events: Vec<ObjectEvent>,
}

impl TranslatedTogether {
    /// Whether changes concern any of them: changes of objects of these kinds, and of what has been looked up.
    pub(super) fn is_stale(&self, world: &World, changes: &WorldChanges, kinds: &[Kind]) -> bool {
        let BackendLookups { services, addresses: addressed, endpoints } = &self.lookups;
        let has_endpoint_now = |port: &BackendPort| {
            port.find(world).is_some_and(|backend| !addresses(world, backend.service, &backend.port.name).is_empty())
        };
        changes.objects.iter().any(|object| kinds.contains(&object.kind))
            || changes.services().iter().any(|service| services.contains(service))
            || changes.endpoints.iter().any(|service| addressed.contains(service))
            || endpoints
                .iter()
                .filter(|(port, _)| changes.endpoints.contains(&port.service))
                .any(|(port, had_endpoint)| has_endpoint_now(port) != *had_endpoint)
    }

    /// Takes what they mean now in place of what they meant before.
    pub(super) fn replace(
        &mut self,
        translation: Translation,
        backends: ServiceBackends,
        shared: &mut SharedResources,
        reader: &mut dyn TranslationReader,
    ) {
        let (wanted, lookups) = backends.finish();
        self.lookups = lookups;
        let upstreams_now = wanted.map(|wanted| shared.upstreams.add(wanted)).collect();
        let before = std::mem::replace(&mut self.upstreams, upstreams_now);
        before.iter().for_each(|key| shared.upstreams.release(key));
        let Translation { resources, statuses, events, .. } = translation;
        let (plugins, resources) = shared.plugins.take(resources);
        let before = std::mem::replace(&mut self.plugins, plugins);
        before.iter().for_each(|key| shared.plugins.release(key));
        let names = resources.iter().map(|one| ((one.kind, one.id.clone()), one.origin.clone())).collect();
        let certified = resources.iter().filter(|one| one.kind == ResourceList::Ssls);
        let certified = certified.flat_map(|one| one.value["snis"].as_array().into_iter().flatten());
        self.server_names = certified.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        let mut gone = std::mem::replace(&mut self.resources, names);
        gone.retain(|name, _| !self.resources.contains_key(name));
        gone.keys().for_each(|(kind, id)| reader.remove(*kind, id));
        resources.into_iter().for_each(|resource| reader.put(resource));
        statuses.iter().cloned().for_each(|status| reader.status(status));
        let statuses = statuses.into_iter().map(|status| (status.object.clone(), status)).collect();
        let before = std::mem::replace(&mut self.statuses, statuses);
        before.keys().filter(|object| !self.statuses.contains_key(*object)).for_each(|object| reader.no_status(object));
        self.events = events;
    }

    /// The statuses of objects of which the status has changed.
    pub(super) fn statuses(&self, changes: &WorldChanges, reader: &mut dyn TranslationReader) {
        let known = changes.statuses.iter().filter_map(|object| self.statuses.get(object));
        known.cloned().for_each(|status| reader.status(status));
    }

    /// The object that a resource comes from.
    pub(super) fn origin(&self, kind: ResourceList, id: &str) -> Option<ObjectRef> {
        self.resources.get(&(kind, id.to_owned())).cloned()
    }
}
