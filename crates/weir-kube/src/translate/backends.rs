//! Services and their EndpointSlices as upstreams. A Service that several routes refer to is one upstream for each port.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::objects::ObjectRef;
use crate::objects::core::{EndpointSlice, NumberOrName, Service, ServicePort, SliceEndpoint};
use crate::translation::{DerivedResource, ResourceList, resource_id};
use crate::world::{ObjectName, World};

/// Finds backends, and collects the upstreams that resources refer to.
pub(super) struct ServiceBackends<'a> {
    world: &'a World,
    /// The slices of each service.
    slices: BTreeMap<ObjectName, Vec<&'a EndpointSlice>>,
    upstreams: BTreeMap<String, DerivedResource>,
}

/// A port of a Service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backend<'a> {
    pub service: &'a Service,
    pub port: &'a ServicePort,
}

/// Why a reference does not lead to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBackend {
    NoService,
    NoPort,
    /// Its name is resolved by DNS, and could lead past the borders of namespaces.
    ExternalName,
}

/// The address of a pod, or of whatever else a slice lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodAddress {
    pub address: IpAddr,
    pub port: u16,
}

impl<'a> ServiceBackends<'a> {
    pub(super) fn new(world: &'a World) -> ServiceBackends<'a> {
        let mut slices: BTreeMap<ObjectName, Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in world.endpoint_slices.values() {
            if let Some(service) = slice.service_name() {
                slices.entry(ObjectName::new(&slice.metadata.namespace, service)).or_default().push(slice);
            }
        }
        ServiceBackends { world, slices, upstreams: BTreeMap::new() }
    }

    /// The port of a service, by its number or its name.
    pub(super) fn find(&self, service: &ObjectName, port: &NumberOrName) -> Result<Backend<'a>, NoBackend> {
        let service = self.world.services.get(service).ok_or(NoBackend::NoService)?;
        if service.spec.kind == "ExternalName" {
            return Err(NoBackend::ExternalName);
        }
        let is_meant = |known: &&ServicePort| match port {
            NumberOrName::Number(number) => known.port == *number,
            NumberOrName::Name(name) => known.name == *name,
        };
        // A number may be there twice, for TCP and for UDP.
        let mut ports = service.spec.ports.iter().filter(|known| matches!(known.protocol.as_str(), "" | "TCP"));
        ports.find(is_meant).map(|port| Backend { service, port }).ok_or(NoBackend::NoPort)
    }

    /// The addresses of a backend that may get requests, sorted. While none is ready, those that terminate but still serve.
    pub(super) fn addresses(&self, backend: Backend) -> Vec<PodAddress> {
        let metadata = &backend.service.metadata;
        let slices = self.slices.get(&ObjectName::new(&metadata.namespace, &metadata.name));
        let (mut ready, mut leaving) = (Vec::new(), Vec::new());
        for slice in slices.into_iter().flatten().filter(|slice| is_reached(backend.service, slice)) {
            let mut ports = slice.ports.iter().filter(|port| port.name == backend.port.name);
            let Some(port) = ports.find_map(|port| port.port) else { continue };
            for endpoint in &slice.endpoints {
                let Some(address) = address(endpoint) else { continue };
                let conditions = endpoint.conditions;
                if conditions.ready.unwrap_or(true) {
                    ready.push(PodAddress { address, port });
                } else if conditions.serving.unwrap_or(false) && conditions.terminating.unwrap_or(false) {
                    leaving.push(PodAddress { address, port });
                }
            }
        }
        let mut addresses = if ready.is_empty() { leaving } else { ready };
        addresses.sort();
        // During a move, an address is in two slices.
        addresses.dedup();
        addresses
    }

    /// Adds the upstream of a backend, and returns its id. `settings` are further keys of the upstream, which win over those that
    /// follow from the Service; uses with different settings state a `variant`, which becomes a part of the id.
    pub(super) fn upstream(&mut self, backend: Backend, variant: Option<&str>, settings: Map<String, Value>) -> String {
        let metadata = &backend.service.metadata;
        let port = backend.port.port.to_string();
        let parts = [&metadata.namespace, &metadata.name, &port].map(String::as_str);
        let id = resource_id(&parts.into_iter().chain(variant).collect::<Vec<_>>());
        if !self.upstreams.contains_key(&id) {
            let mut value = self.upstream_value(backend);
            value.extend(settings);
            let origin = ObjectRef::of(backend.service);
            let resource =
                DerivedResource { kind: ResourceList::Upstreams, id: id.clone(), value: Value::Object(value), origin };
            self.upstreams.insert(id.clone(), resource);
        }
        id
    }

    fn upstream_value(&self, backend: Backend) -> Map<String, Value> {
        let node = |at: PodAddress| json!({ "host": at.address.to_string(), "port": at.port, "weight": 1 });
        let nodes: Vec<Value> = self.addresses(backend).into_iter().map(node).collect();
        let mut value = Map::from_iter([("nodes".to_owned(), Value::Array(nodes))]);
        match backend.port.app_protocol.as_deref() {
            Some("kubernetes.io/h2c") => value.insert("http2".to_owned(), true.into()),
            Some("kubernetes.io/wss") => value.insert("scheme".to_owned(), "https".into()),
            _ => None,
        };
        value
    }

    /// All upstreams that were asked for.
    pub(super) fn into_resources(self) -> impl Iterator<Item = DerivedResource> {
        self.upstreams.into_values()
    }
}

/// Of a service with two families of addresses, only those of the primary one are used: each pod would be there twice.
fn is_reached(service: &Service, slice: &EndpointSlice) -> bool {
    match service.spec.ip_families.first() {
        Some(family) => slice.address_type == *family,
        None => slice.address_type != "FQDN",
    }
}

fn address(endpoint: &SliceEndpoint) -> Option<IpAddr> {
    endpoint.addresses.first()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(slices: &str) -> World {
        let service = "
apiVersion: v1
kind: Service
metadata: { name: a, namespace: n }
spec: { ports: [{ name: web, port: 80, targetPort: 8080 }, { name: calls, port: 81, appProtocol: kubernetes.io/h2c }] }
";
        World::from_manifests(&format!("{service}{slices}")).unwrap().world
    }

    fn slice(name: &str, endpoints: &str) -> String {
        format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{ name: {name}, namespace: n, labels: {{ kubernetes.io/service-name: a }} }}
addressType: IPv4
ports: [{{ name: web, port: 8080 }}, {{ name: calls, port: 9090 }}]
endpoints: {endpoints}
"
        )
    }

    fn hosts(world: &World) -> Vec<String> {
        let backends = ServiceBackends::new(world);
        let found = backends.find(&ObjectName::new("n", "a"), &NumberOrName::Number(80)).unwrap();
        backends.addresses(found).into_iter().map(|at| format!("{}:{}", at.address, at.port)).collect()
    }

    #[test]
    fn addresses_of_all_slices_are_joined_without_duplicates() {
        let one = slice("one", "[{ addresses: [10.0.0.2] }, { addresses: [10.0.0.1], conditions: { ready: true } }]");
        let two = slice("two", "[{ addresses: [10.0.0.2] }, { addresses: [10.0.0.3], conditions: { ready: false } }]");
        assert_eq!(hosts(&world(&format!("{one}{two}"))), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    }

    #[test]
    fn pods_that_terminate_are_used_only_while_no_other_is_ready() {
        let leaving = "{ addresses: [10.0.0.1], conditions: { ready: false, serving: true, terminating: true } }";
        let gone = "{ addresses: [10.0.0.2], conditions: { ready: false, serving: false, terminating: true } }";
        assert_eq!(hosts(&world(&slice("s", &format!("[{leaving}, {gone}]")))), ["10.0.0.1:8080"]);
        let all = format!("[{leaving}, {gone}, {{ addresses: [10.0.0.3] }}]");
        assert_eq!(hosts(&world(&slice("s", &all))), ["10.0.0.3:8080"]);
    }

    #[test]
    fn an_upstream_is_made_once_for_each_port() {
        let world = world(&slice("s", "[{ addresses: [10.0.0.1] }]"));
        let mut backends = ServiceBackends::new(&world);
        let service = ObjectName::new("n", "a");
        let calls = backends.find(&service, &NumberOrName::Name("calls".to_owned())).unwrap();
        assert_eq!(backends.upstream(calls, None, Map::new()), "n_a_81");
        assert_eq!(backends.upstream(calls, None, Map::new()), "n_a_81");
        let resources: Vec<_> = backends.into_resources().collect();
        assert_eq!(resources.len(), 1);
        let expected = json!({ "nodes": [{ "host": "10.0.0.1", "port": 9090, "weight": 1 }], "http2": true });
        assert_eq!(resources[0].value, expected);
    }

    #[test]
    fn a_reference_that_leads_nowhere_says_why() {
        let mut world = world("");
        let find = |world: &World, name: &str, port| {
            ServiceBackends::new(world)
                .find(&ObjectName::new("n", name), &NumberOrName::Number(port))
                .map(|_| ())
                .unwrap_err()
        };
        assert_eq!(find(&world, "b", 80), NoBackend::NoService);
        assert_eq!(find(&world, "a", 8080), NoBackend::NoPort);
        let external = "
apiVersion: v1
kind: Service
metadata: { name: e, namespace: n }
spec: { type: ExternalName, externalName: metadata.internal, ports: [{ port: 80 }] }
";
        world.services.extend(World::from_manifests(external).unwrap().world.services);
        assert_eq!(find(&world, "e", 80), NoBackend::ExternalName);
    }
}
