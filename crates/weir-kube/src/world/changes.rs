//! What has changed in a world.

use std::collections::BTreeSet;

use super::{ObjectName, World, service_of};
use crate::objects::{Kind, Object, ObjectRef};

/// What has changed in a world since it was translated last.
#[derive(Clone, Debug, Default)]
pub struct WorldChanges {
    /// The objects that mean something else, perhaps, or are gone. EndpointSlices are not among them.
    pub objects: BTreeSet<ObjectRef>,
    /// The Services whose endpoints may be others.
    pub endpoints: BTreeSet<ObjectName>,
    /// The objects of which the status alone has changed.
    pub statuses: BTreeSet<ObjectRef>,
}

impl WorldChanges {
    /// Puts an object into a world.
    pub fn put(&mut self, world: &mut World, object: Object) {
        let reference = object.reference();
        self.note_service(world, &reference);
        world.put(object);
        self.note(world, reference);
    }

    /// Removes an object from a world. Returns whether there was one.
    pub fn remove(&mut self, world: &mut World, object: &ObjectRef) -> bool {
        self.note_service(world, object);
        let was_there = world.remove(object);
        if was_there {
            self.note(world, object.clone());
        }
        was_there
    }

    /// The Services among the objects.
    pub fn services(&self) -> BTreeSet<ObjectName> {
        let services = self.objects.iter().filter(|object| object.kind == Kind::Service);
        services.map(|object| ObjectName::new(&object.namespace, &object.name)).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.endpoints.is_empty() && self.statuses.is_empty()
    }

    fn note(&mut self, world: &World, object: ObjectRef) {
        self.note_service(world, &object);
        if object.kind != Kind::EndpointSlice {
            self.objects.insert(object);
        }
    }

    /// Notes the Service of an EndpointSlice; it may be another one after a change.
    fn note_service(&mut self, world: &World, object: &ObjectRef) {
        if object.kind == Kind::EndpointSlice {
            let slice = world.endpoint_slices.get(&ObjectName::new(&object.namespace, &object.name));
            self.endpoints.extend(slice.and_then(|slice| service_of(slice)));
        }
    }
}
