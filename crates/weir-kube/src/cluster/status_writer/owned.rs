//! Writes the objects that are made for others: when they are new, changed or missing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::Cluster;
use super::super::seen::SeenObject;
use super::{MOST_PAUSE, PAUSE, report};
use crate::objects::ObjectRef;
use crate::translation::OwnedObject;

/// An object as it is to be written.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct KnownOwned {
    object: ObjectRef,
    exists: bool,
    value: Value,
}

impl KnownOwned {
    /// `None` if the owner has not been seen.
    pub(super) fn new(owned: OwnedObject, objects: &BTreeMap<ObjectRef, SeenObject>) -> Option<KnownOwned> {
        let OwnedObject { object, owner, exists, mut value } = owned;
        let seen = objects.get(&owner)?;
        value["apiVersion"] = object.kind.api_version(object.kind.versions()[0]).into();
        value["kind"] = object.kind.name().into();
        value["metadata"]["name"] = object.name.clone().into();
        value["metadata"]["namespace"] = object.namespace.clone().into();
        value["metadata"]["ownerReferences"] = json!([{
            "apiVersion": owner.kind.api_version(seen.version),
            "kind": owner.kind.name(),
            "name": owner.name,
            "uid": &*seen.uid,
            "controller": true,
        }]);
        Some(KnownOwned { object, exists, value })
    }
}

#[derive(Default)]
pub(super) struct OwnedWriter {
    written: BTreeMap<ObjectRef, LastApplied>,
}

struct LastApplied {
    at: Instant,
    /// `None`: it was refused.
    value: Option<Value>,
    pause: Duration,
}

impl OwnedWriter {
    /// Writes those that are due.
    pub(super) async fn write(&mut self, cluster: &dyn Cluster, all: Vec<KnownOwned>) {
        self.written.retain(|object, _| all.iter().any(|owned| owned.object == *object));
        for owned in all {
            let last = self.written.get(&owned.object);
            if last.is_some_and(|last| !last.is_due(&owned)) {
                continue;
            }
            let pause = last.map_or(PAUSE, |last| last.pause);
            let version = owned.object.kind.versions()[0];
            let (value, pause) = match cluster.apply(&owned.object, version, &owned.value).await {
                Ok(()) => (Some(owned.value), PAUSE),
                Err(error) => {
                    report(&owned.object, &error);
                    (None, (2 * pause).min(MOST_PAUSE))
                }
            };
            self.written.insert(owned.object, LastApplied { at: Instant::now(), value, pause });
        }
    }
}

impl LastApplied {
    fn is_due(&self, owned: &KnownOwned) -> bool {
        let is_right = owned.exists && self.value.as_ref() == Some(&owned.value);
        !is_right && self.at.elapsed() >= self.pause
    }
}
