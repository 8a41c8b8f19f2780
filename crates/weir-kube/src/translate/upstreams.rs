//! The upstreams that resources refer to: how many do, and which must be written anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::backends::{UpstreamKey, WantedUpstream};
use super::endpoints::{HintedAddress, hinted_addresses};
use super::traffic_policies::TrafficPolicies;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{DerivedResource, ResourceList, TranslationReader};
use crate::world::{ObjectName, World};

/// All upstreams, by Service and id.
#[derive(Default)]
pub(super) struct TranslatedUpstreams {
    known: BTreeMap<UpstreamKey, KnownUpstream>,
    /// Those that may be others than were written last.
    changed: BTreeSet<UpstreamKey>,
    /// Settings of Services for all that refers to them.
    pub traffic: TrafficPolicies,
}

struct KnownUpstream {
    wanted: WantedUpstream,
    /// How many parts of the translation refer to it.
    users: usize,
}

impl TranslatedUpstreams {
    /// Counts a part of the translation that refers to an upstream.
    pub(super) fn add(&mut self, wanted: WantedUpstream) -> UpstreamKey {
        let known = self.known.get_mut(&wanted.key);
        match known {
            Some(known) => {
                known.users += 1;
                let key = Arc::clone(&known.wanted.key);
                if known.wanted != wanted {
                    known.wanted = WantedUpstream { key: Arc::clone(&key), ..wanted };
                    self.changed.insert(Arc::clone(&key));
                }
                key
            }
            None => {
                let key = Arc::clone(&wanted.key);
                self.changed.insert(Arc::clone(&key));
                self.known.insert(Arc::clone(&key), KnownUpstream { wanted, users: 1 });
                key
            }
        }
    }

    /// A part does not refer to it any more.
    pub(super) fn release(&mut self, key: &UpstreamKey) {
        if let Some(known) = self.known.get_mut(key) {
            known.users -= 1;
            if known.users == 0 {
                self.changed.insert(Arc::clone(key));
            }
        }
    }

    /// The Service, or what its EndpointSlices say, has changed.
    pub(super) fn change(&mut self, service: &ObjectName) {
        let first = Arc::new((service.clone(), String::new()));
        let of_service = self.known.range(first..).take_while(|(key, _)| key.0 == *service);
        self.changed.extend(of_service.map(|(key, _)| Arc::clone(key)));
    }

    /// Writes what may have changed. With `zones`, nodes have those that should prefer them, for a reader that makes priorities of them.
    pub(super) fn write(&mut self, world: &World, zones: bool, reader: &mut dyn TranslationReader) {
        for key in std::mem::take(&mut self.changed) {
            let used = self.known.get(&key).filter(|known| known.users > 0);
            let is_unused = used.is_none();
            match used.and_then(|known| value(&known.wanted, (world, zones), &self.traffic)) {
                Some(value) => reader.put(DerivedResource {
                    kind: ResourceList::Upstreams,
                    id: key.1.clone(),
                    value: Value::Object(value),
                    origin: origin(&key),
                    beside: Vec::new(),
                }),
                None => reader.remove(ResourceList::Upstreams, &key.1),
            }
            if is_unused {
                self.known.remove(&key);
            }
        }
    }

    /// The Service of an upstream.
    pub(super) fn origin(&self, id: &str) -> Option<ObjectRef> {
        self.known.keys().find(|key| key.1 == id).map(origin)
    }
}

fn origin(key: &UpstreamKey) -> ObjectRef {
    let ObjectName { namespace, name } = key.0.clone();
    ObjectRef { kind: Kind::Service, namespace, name }
}

fn is_of_streams(settings: &Map<String, Value>) -> bool {
    settings.get("scheme").and_then(Value::as_str).is_some_and(|scheme| matches!(scheme, "tcp" | "tls" | "udp"))
}

fn value(
    wanted: &WantedUpstream,
    (world, zones): (&World, bool),
    traffic: &TrafficPolicies,
) -> Option<Map<String, Value>> {
    let backend = wanted.port.find(world)?;
    let node = |found: HintedAddress| {
        let mut node = json!({ "host": found.at.address.to_string(), "port": found.at.port, "weight": 1 });
        if zones && !found.zones.is_empty() {
            node["zones"] = found.zones.into();
        }
        node
    };
    let found = hinted_addresses(world, backend.service, &backend.port.name);
    let nodes: Vec<Value> = found.into_iter().map(node).collect();
    let mut value = Map::from_iter([("nodes".to_owned(), Value::Array(nodes))]);
    // A stream says nothing of what it carries.
    let app_protocol = backend.port.app_protocol.as_deref().filter(|_| !is_of_streams(&wanted.settings));
    match app_protocol {
        Some("kubernetes.io/h2c") => value.insert("http2".to_owned(), true.into()),
        Some("kubernetes.io/wss") => value.insert("scheme".to_owned(), "https".into()),
        _ => None,
    };
    let of_service = traffic.settings(&wanted.port.service, &backend.port.name);
    value.extend(of_service.filter(|_| !is_of_streams(&wanted.settings)).cloned().unwrap_or_default());
    value.extend(wanted.settings.clone());
    Some(value)
}
