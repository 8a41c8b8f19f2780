//! The addresses of a Service, from its EndpointSlices.

use std::net::IpAddr;

use crate::objects::core::{EndpointConditions, EndpointSlice, Service, SliceEndpoint};
use crate::world::{ObjectName, World};

/// The address of a pod, or of whatever else a slice lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodAddress {
    pub address: IpAddr,
    pub port: u16,
}

/// The addresses of a port of a Service that may get requests, sorted. Those that terminate are used only while there are no others.
///
/// Of a service with two families of addresses, only those of one are used, since each pod would be there twice: the primary one, or the
/// other while the primary one has none. A headless Service without a selector gets both from the API server, whichever its slices have.
pub(super) fn addresses(world: &World, service: &Service, port: &str) -> Vec<PodAddress> {
    let families = &service.spec.ip_families;
    if families.is_empty() {
        return addresses_of(world, service, port, |slice| slice.address_type != "FQDN");
    }
    let of_family = |family: &String| addresses_of(world, service, port, |slice| slice.address_type == *family);
    families.iter().map(of_family).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The same of the slices that are meant.
fn addresses_of(
    world: &World,
    service: &Service,
    port: &str,
    is_meant: impl Fn(&EndpointSlice) -> bool,
) -> Vec<PodAddress> {
    let metadata = &service.metadata;
    let name = ObjectName::new(&metadata.namespace, &metadata.name);
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for slice in world.slices_of(&name).filter(|slice| is_meant(slice)) {
        let mut ports = slice.ports.iter().filter(|known| known.name == port);
        let Some(port) = ports.find_map(|port| port.port) else { continue };
        for endpoint in &slice.endpoints {
            let Some(address) = address(endpoint) else { continue };
            let EndpointConditions { ready, serving, terminating } = endpoint.conditions;
            match (ready.unwrap_or(true), terminating.unwrap_or(false)) {
                (true, false) => staying.push(PodAddress { address, port }),
                // With `publishNotReadyAddresses`, what terminates is ready as well.
                (true, true) => leaving.push(PodAddress { address, port }),
                (false, true) if serving.unwrap_or(false) => leaving.push(PodAddress { address, port }),
                (false, _) => {}
            }
        }
    }
    let mut addresses = if staying.is_empty() { leaving } else { staying };
    addresses.sort();
    // During a move, an address is in two slices.
    addresses.dedup();
    addresses
}

fn address(endpoint: &SliceEndpoint) -> Option<IpAddr> {
    endpoint.addresses.first()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(slices: &str) -> World {
        world_of("ports: [{ name: web, port: 80, targetPort: 8080 }]", slices)
    }

    /// A world with the Service `a` of this specification.
    fn world_of(spec: &str, slices: &str) -> World {
        let service = format!(
            "
apiVersion: v1
kind: Service
metadata: {{ name: a, namespace: n }}
spec: {{ {spec} }}
"
        );
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
    #[test]
    fn what_is_published_though_not_ready_is_used_and_what_terminates_only_without_it() {
        let leaving = "{ addresses: [10.0.0.1], conditions: { ready: true, serving: true, terminating: true } }";
        let starting = "{ addresses: [10.0.0.2], conditions: { ready: true, serving: false, terminating: false } }";
        assert_eq!(hosts(&world(&slice("s", &format!("[{leaving}]")))), ["10.0.0.1:8080"]);
        assert_eq!(hosts(&world(&slice("s", &format!("[{leaving}, {starting}]")))), ["10.0.0.2:8080"]);
    }

    #[test]
    fn one_family_of_addresses_is_used_the_primary_one_if_it_has_any() {
        let four = slice("four", "[{ addresses: [10.0.0.1] }]");
        let six = slice("six", "[{ addresses: [\"fd00::1\"] }]").replace("IPv4", "IPv6");
        let both = format!("{four}{six}");
        let gone = slice("four", "[{ addresses: [10.0.0.1], conditions: { ready: false } }]");
        let port = "ports: [{ name: web, port: 80 }]";
        for (families, slices, used) in [
            ("[IPv4, IPv6]", &both, "10.0.0.1:8080"),
            ("[IPv6, IPv4]", &both, "fd00::1:8080"),
            // Written by hand for a headless Service.
            ("[IPv4, IPv6]", &six, "fd00::1:8080"),
            ("[IPv6, IPv4]", &four, "10.0.0.1:8080"),
            ("[IPv4, IPv6]", &format!("{gone}{six}"), "fd00::1:8080"),
        ] {
            let spec = format!("clusterIP: None, ipFamilies: {families}, {port}");
            assert_eq!(hosts(&world_of(&spec, slices)), [used], "{families}");
        }
        let spec = format!("ipFamilies: [IPv4], {port}");
        assert!(hosts(&world_of(&spec, &six)).is_empty(), "it is no family of the Service");
    }

    #[test]
    fn slices_that_do_not_name_the_port_or_no_address_give_nothing() {
        let good = slice("good", "[{ addresses: [10.0.0.1] }]");
        for other in [
            slice("other", "[{ addresses: [10.0.0.2] }]").replace("name: web, port", "name: metrics, port"),
            slice("other", "[{ addresses: [10.0.0.2] }]").replace("name: web, port: 8080", "name: web"),
            slice("other", "[{ addresses: [10.0.0.2] }]").replace("[{ name: web, port: 8080 }]", "null"),
            slice("other", "null"),
            slice("other", "[{ addresses: [] }]"),
            slice("other", "[{ addresses: [db.example] }]").replace("IPv4", "FQDN"),
        ] {
            assert_eq!(hosts(&world(&format!("{good}{other}"))), ["10.0.0.1:8080"], "{other}");
        }
    }
}
