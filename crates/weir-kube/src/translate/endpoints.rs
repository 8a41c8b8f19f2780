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

/// An address, and the zones whose clients should prefer it.
pub(super) struct HintedAddress {
    pub at: PodAddress,
    /// Empty for all addresses of a Service of which any has no zone, as for kube-proxy.
    pub zones: Vec<String>,
}

/// The addresses of a port of a Service that may get requests, sorted. Those that terminate are used only while there are no others.
pub(super) fn addresses(world: &World, service: &Service, port: &str) -> Vec<PodAddress> {
    hinted_addresses(world, service, port).into_iter().map(|address| address.at).collect()
}

/// The same with zones.
///
/// Of a service with two families of addresses, only those of one are used, since each pod would be there twice: the primary one, or the
/// other while the primary one has none. A headless Service without a selector gets both from the API server, whichever its slices have.
pub(super) fn hinted_addresses(world: &World, service: &Service, port: &str) -> Vec<HintedAddress> {
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
) -> Vec<HintedAddress> {
    let metadata = &service.metadata;
    let name = ObjectName::new(&metadata.namespace, &metadata.name);
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for slice in world.slices_of(&name).filter(|slice| is_meant(slice)) {
        let mut ports = slice.ports.iter().filter(|known| known.name == port);
        let Some(port) = ports.find_map(|port| port.port) else { continue };
        for endpoint in &slice.endpoints {
            let Some(address) = address(endpoint) else { continue };
            let EndpointConditions { ready, serving, terminating } = endpoint.conditions;
            let zones = endpoint.hints.for_zones.iter().map(|zone| zone.name.clone()).collect();
            let found = HintedAddress { at: PodAddress { address, port }, zones };
            match (ready.unwrap_or(true), terminating.unwrap_or(false)) {
                (true, false) => staying.push(found),
                // With `publishNotReadyAddresses`, what terminates is ready as well.
                (true, true) => leaving.push(found),
                (false, true) if serving.unwrap_or(false) => leaving.push(found),
                (false, _) => {}
            }
        }
    }
    merged(if staying.is_empty() { leaving } else { staying })
}

/// Each address once: during a move, it is in two slices.
fn merged(mut addresses: Vec<HintedAddress>) -> Vec<HintedAddress> {
    addresses.sort_by_key(|address| address.at);
    addresses.dedup_by(|next, kept| {
        let is_same = next.at == kept.at;
        if is_same {
            kept.zones.append(&mut next.zones);
        }
        is_same
    });
    let is_hinted = addresses.iter().all(|address| !address.zones.is_empty());
    for address in &mut addresses {
        if is_hinted {
            address.zones.sort_unstable();
            address.zones.dedup();
        } else {
            address.zones.clear();
        }
    }
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
    fn pods_published_though_not_ready_are_used_and_those_that_end_only_without_them() {
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
    fn zones_are_hints_only_if_all_addresses_have_some() {
        let zones = |slices: &str| {
            let world = world(slices);
            let service = world.services.get(&ObjectName::new("n", "a")).unwrap();
            let found = hinted_addresses(&world, service, "web").into_iter();
            found.map(|it| format!("{} {}", it.at.address, it.zones.join(" "))).collect::<Vec<_>>()
        };
        let near = "{ addresses: [10.0.0.1], hints: { forZones: [{ name: b }, { name: a }] } }";
        let far = "{ addresses: [10.0.0.2], hints: { forZones: [{ name: c }] } }";
        assert_eq!(zones(&slice("s", &format!("[{near}, {far}]"))), ["10.0.0.1 a b", "10.0.0.2 c"]);
        assert_eq!(zones(&slice("s", &format!("[{near}, {{ addresses: [10.0.0.2] }}]"))), ["10.0.0.1 ", "10.0.0.2 "]);
        // Those that get no requests do not count, and an address that is there twice has the zones of both.
        let gone = "{ addresses: [10.0.0.3], conditions: { ready: false } }";
        let again = near.replace("name: b", "name: d");
        let twice = format!("{}{}", slice("s", &format!("[{near}, {gone}]")), slice("t", &format!("[{again}]")));
        assert_eq!(zones(&twice), ["10.0.0.1 a b d"]);
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
