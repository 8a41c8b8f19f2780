//! All objects that are known, by kind and name.

mod manifests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::objects::core::{ConfigMap, EndpointSlice, KubeNamespace, Secret, Service};
use crate::objects::gateway::{GatewayClass, KubeGateway, ListenerSet};
use crate::objects::ingress::{Ingress, IngressClass};
use crate::objects::policy::{BackendTlsPolicy, ReferenceGrant};
use crate::objects::routes::{GrpcRoute, HttpRoute};
use crate::objects::{Kind, Object, ObjectRef};

pub use manifests::Manifests;

/// The name of an object among those of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Empty if objects of this kind are in no namespace.
    pub namespace: String,
    pub name: String,
}

impl ObjectName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> ObjectName {
        ObjectName { namespace: namespace.into(), name: name.into() }
    }
}

/// As in messages: `shop/orders`.
impl fmt::Display for ObjectName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(out, "{}/", self.namespace)?;
        }
        out.write_str(&self.name)
    }
}

/// The objects of a kind, in the order of their names: the order in which they came cannot matter.
pub type Objects<T> = BTreeMap<ObjectName, Arc<T>>;

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub namespaces: Objects<KubeNamespace>,
    pub services: Objects<Service>,
    pub endpoint_slices: Objects<EndpointSlice>,
    pub secrets: Objects<Secret>,
    pub config_maps: Objects<ConfigMap>,
    pub gateway_classes: Objects<GatewayClass>,
    pub gateways: Objects<KubeGateway>,
    pub listener_sets: Objects<ListenerSet>,
    pub http_routes: Objects<HttpRoute>,
    pub grpc_routes: Objects<GrpcRoute>,
    pub reference_grants: Objects<ReferenceGrant>,
    pub backend_tls_policies: Objects<BackendTlsPolicy>,
    pub ingresses: Objects<Ingress>,
    pub ingress_classes: Objects<IngressClass>,
}

/// Calls a macro with the map of each kind.
macro_rules! each_kind {
    ($each:ident) => {
        $each! {
            Namespace namespaces, Service services, EndpointSlice endpoint_slices, Secret secrets, ConfigMap config_maps,
            GatewayClass gateway_classes, Gateway gateways, ListenerSet listener_sets, HTTPRoute http_routes,
            GRPCRoute grpc_routes, ReferenceGrant reference_grants, BackendTLSPolicy backend_tls_policies,
            Ingress ingresses, IngressClass ingress_classes
        }
    };
}

impl World {
    /// Adds an object, or replaces the one with its name.
    pub fn put(&mut self, object: Object) {
        let metadata = object.metadata();
        let name = ObjectName::new(&metadata.namespace, &metadata.name);
        macro_rules! put {
            ($($kind:ident $map:ident),+) => {
                match object { $(Object::$kind(object) => { self.$map.insert(name, object); }),+ }
            };
        }
        each_kind!(put);
    }

    /// Removes an object. Returns whether there was one.
    pub fn remove(&mut self, object: &ObjectRef) -> bool {
        let name = ObjectName::new(&object.namespace, &object.name);
        macro_rules! remove {
            ($($kind:ident $map:ident),+) => {
                match object.kind { $(Kind::$kind => self.$map.remove(&name).is_some()),+ }
            };
        }
        each_kind!(remove)
    }

    /// The names of all objects of a kind.
    pub fn names(&self, kind: Kind) -> Vec<ObjectName> {
        macro_rules! names {
            ($($kind:ident $map:ident),+) => {
                match kind { $(Kind::$kind => self.$map.keys().cloned().collect()),+ }
            };
        }
        each_kind!(names)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_of_each_kind_is_put_found_and_removed() {
        for &kind in Kind::ALL {
            let mut world = World::default();
            let namespace = if kind.is_namespaced() { "n" } else { "" };
            world.put(kind.read(json!({ "metadata": { "name": "a", "namespace": namespace } })).unwrap());
            assert_eq!(world.names(kind), [ObjectName::new(namespace, "a")]);
            let others = Kind::ALL.iter().filter(|other| **other != kind);
            assert!(others.into_iter().all(|other| world.names(*other).is_empty()));

            let object = ObjectRef { kind, namespace: namespace.to_owned(), name: "a".to_owned() };
            assert!(world.remove(&object));
            assert!(!world.remove(&object));
            assert!(world.names(kind).is_empty());
        }
    }
}
