//! All objects that are known, by kind and name.

mod changes;
mod manifests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::objects::apisix::{
    ApisixConsumer, ApisixGlobalRule, ApisixPluginConfig, ApisixRoute, ApisixTls, ApisixUpstream,
};
use crate::objects::apisix_gateway::{
    BackendTrafficPolicy, ExtensionPlugins, GatewayConsumer, GatewayProxy, HttpRoutePolicy, L4RoutePolicy,
};
use crate::objects::core::{ConfigMap, EndpointSlice, KubeNamespace, Secret, Service};
use crate::objects::gateway::{GatewayClass, KubeGateway, ListenerSet};
use crate::objects::ingress::{Ingress, IngressClass};
use crate::objects::policy::{BackendTlsPolicy, ReferenceGrant, WeirPolicy};
use crate::objects::routes::{GrpcRoute, HttpRoute};
use crate::objects::streams::{TcpRoute, TlsRoute, UdpRoute};
use crate::objects::{Kind, Object, ObjectRef};

pub use changes::WorldChanges;
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
    /// Private, since `slices` must agree with it.
    endpoint_slices: Objects<EndpointSlice>,
    pub secrets: Objects<Secret>,
    pub config_maps: Objects<ConfigMap>,
    pub gateway_classes: Objects<GatewayClass>,
    pub gateways: Objects<KubeGateway>,
    pub listener_sets: Objects<ListenerSet>,
    pub http_routes: Objects<HttpRoute>,
    pub grpc_routes: Objects<GrpcRoute>,
    pub tcp_routes: Objects<TcpRoute>,
    pub tls_routes: Objects<TlsRoute>,
    pub udp_routes: Objects<UdpRoute>,
    pub reference_grants: Objects<ReferenceGrant>,
    pub backend_tls_policies: Objects<BackendTlsPolicy>,
    pub weir_policies: Objects<WeirPolicy>,
    pub ingresses: Objects<Ingress>,
    pub ingress_classes: Objects<IngressClass>,
    pub apisix_routes: Objects<ApisixRoute>,
    pub apisix_upstreams: Objects<ApisixUpstream>,
    pub apisix_tls: Objects<ApisixTls>,
    pub apisix_consumers: Objects<ApisixConsumer>,
    pub apisix_plugin_configs: Objects<ApisixPluginConfig>,
    pub apisix_global_rules: Objects<ApisixGlobalRule>,
    pub gateway_proxies: Objects<GatewayProxy>,
    pub extension_plugins: Objects<ExtensionPlugins>,
    pub backend_traffic_policies: Objects<BackendTrafficPolicy>,
    pub http_route_policies: Objects<HttpRoutePolicy>,
    pub l4_route_policies: Objects<L4RoutePolicy>,
    pub gateway_consumers: Objects<GatewayConsumer>,
    /// The names of the EndpointSlices of each Service; they are in its namespace.
    slices: BTreeMap<ObjectName, BTreeSet<String>>,
}

/// Calls a macro with the map of each kind.
macro_rules! each_kind {
    ($each:ident) => {
        $each! {
            Namespace namespaces, Service services, EndpointSlice endpoint_slices, Secret secrets, ConfigMap config_maps,
            GatewayClass gateway_classes, Gateway gateways, ListenerSet listener_sets, HTTPRoute http_routes,
            GRPCRoute grpc_routes, TCPRoute tcp_routes, TLSRoute tls_routes, UDPRoute udp_routes,
            ReferenceGrant reference_grants, BackendTLSPolicy backend_tls_policies, WeirPolicy weir_policies,
            Ingress ingresses, IngressClass ingress_classes, ApisixRoute apisix_routes, ApisixUpstream apisix_upstreams,
            ApisixTls apisix_tls, ApisixConsumer apisix_consumers, ApisixPluginConfig apisix_plugin_configs,
            ApisixGlobalRule apisix_global_rules, GatewayProxy gateway_proxies, PluginConfig extension_plugins,
            BackendTrafficPolicy backend_traffic_policies, HTTPRoutePolicy http_route_policies,
            L4RoutePolicy l4_route_policies,
            Consumer gateway_consumers
        }
    };
}

impl World {
    /// Adds an object, or replaces the one with its name.
    pub fn put(&mut self, object: Object) {
        let metadata = object.metadata();
        let name = ObjectName::new(&metadata.namespace, &metadata.name);
        if let Object::EndpointSlice(slice) = &object {
            self.forget_slice(&name);
            if let Some(service) = service_of(slice) {
                self.slices.entry(service).or_default().insert(name.name.clone());
            }
        }
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
        if object.kind == Kind::EndpointSlice {
            self.forget_slice(&name);
        }
        macro_rules! remove {
            ($($kind:ident $map:ident),+) => {
                match object.kind { $(Kind::$kind => self.$map.remove(&name).is_some()),+ }
            };
        }
        each_kind!(remove)
    }

    /// All objects.
    pub fn objects(&self) -> Vec<Object> {
        let mut all = Vec::new();
        macro_rules! objects {
            ($($kind:ident $map:ident),+) => {
                $(all.extend(self.$map.values().cloned().map(Object::$kind));)+
            };
        }
        each_kind!(objects);
        all
    }

    /// Puts the objects of another world that are of these kinds.
    pub fn extend(&mut self, other: &World, kinds: &[Kind]) {
        other.objects().into_iter().filter(|object| kinds.contains(&object.kind())).for_each(|object| self.put(object));
    }

    /// The EndpointSlices of a Service.
    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        let names = self.slices.get(service).into_iter().flatten();
        let named = |name: &String| ObjectName::new(&service.namespace, name);
        names.filter_map(move |name| self.endpoint_slices.get(&named(name)).map(|slice| &**slice))
    }

    fn forget_slice(&mut self, name: &ObjectName) {
        let Some(service) = self.endpoint_slices.get(name).and_then(|slice| service_of(slice)) else { return };
        if let Some(names) = self.slices.get_mut(&service) {
            names.remove(&name.name);
            if names.is_empty() {
                self.slices.remove(&service);
            }
        }
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

/// The Service that a slice belongs to.
fn service_of(slice: &EndpointSlice) -> Option<ObjectName> {
    Some(ObjectName::new(&slice.metadata.namespace, slice.service_name()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slice_belongs_to_the_service_that_its_label_names_now() {
        let mut world = World::default();
        let slice = |service: &str| {
            let labels = json!({ "kubernetes.io/service-name": service });
            let metadata = json!({ "name": "s", "namespace": "n", "labels": labels });
            Kind::EndpointSlice.read(json!({ "metadata": metadata })).unwrap()
        };
        let count = |world: &World, service: &str| world.slices_of(&ObjectName::new("n", service)).count();
        world.put(slice("a"));
        world.put(slice("a"));
        assert_eq!((count(&world, "a"), count(&world, "b")), (1, 0));
        world.put(slice("b"));
        assert_eq!((count(&world, "a"), count(&world, "b")), (0, 1));
        world.remove(&ObjectRef { kind: Kind::EndpointSlice, namespace: "n".to_owned(), name: "s".to_owned() });
        assert!(count(&world, "b") == 0 && world.slices.is_empty());
    }

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
