//! The addresses of a Service, from its EndpointSlices.

use std::net::IpAddr;

use crate::objects::core::{EndpointSlice, Service, SliceEndpoint};
use crate::world::{ObjectName, World};

/// The address of a pod, or of whatever else a slice lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodAddress {
    pub address: IpAddr,
    pub port: u16,
}

/// The addresses of a port of a Service that may get requests, sorted. While none is ready, those that terminate but still serve.
pub(super) fn addresses(world: &World, service: &Service, port: &str) -> Vec<PodAddress> {
    let metadata = &service.metadata;
    let name = ObjectName::new(&metadata.namespace, &metadata.name);
    let slices = world.slices_of(&name);
    let (mut ready, mut leaving) = (Vec::new(), Vec::new());
    for slice in slices.filter(|slice| is_reached(service, slice)) {
        let mut ports = slice.ports.iter().filter(|known| known.name == port);
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
spec: { ports: [{ name: web, port: 80, targetPort: 8080 }] }
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
ports: [{{ name: web, port: 8080 }}]
endpoints: {endpoints}
"
        )
    }

    fn hosts(world: &World) -> Vec<String> {
        let service = world.services.get(&ObjectName::new("n", "a")).unwrap();
        addresses(world, service, "web").into_iter().map(|at| format!("{}:{}", at.address, at.port)).collect()
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
}
