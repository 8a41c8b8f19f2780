//! The addresses of a Gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::conditions::Problem;
use super::context::precedence;
use crate::objects::gateway::{GatewayAddress, KubeGateway};
use crate::translation::GatewayAddresses;
use crate::world::ObjectName;

/// Where the listeners of a Gateway are reached.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// What the addresses of its listeners begin with; empty: every interface.
    pub host: String,
    /// `status.addresses`.
    pub published: Vec<Value>,
    /// The specification asks for a type of address that is not known here. The Gateway is then not accepted.
    pub unsupported: Option<Problem>,
    /// It asks for an address that it cannot get.
    pub unusable: Option<Problem>,
}

/// The addresses of all Gateways. Those that have one keep it; others get the first that is free, the oldest Gateway first.
pub(super) fn assign(gateways: &[&KubeGateway], options: &GatewayAddresses) -> Vec<Addresses> {
    let mut all: Vec<Addresses> = gateways.iter().map(|gateway| stated(gateway, options)).collect();
    let GatewayAddresses::Pool { first, last } = options else { return all };
    let mut taken: BTreeSet<String> = all.iter().map(|one| one.host.clone()).collect();
    let mut order: Vec<usize> = (0..gateways.len()).filter(|index| needs_address(&all[*index])).collect();
    order.sort_by(|one, other| precedence(&gateways[*one].metadata, &gateways[*other].metadata));
    let mut kept = BTreeMap::new();
    for &index in &order {
        let before = gateways[index].status.addresses.iter().filter_map(|address| address["value"].as_str());
        let mut before = before.filter(|value| value.parse().is_ok_and(|value| is_in(value, *first, *last)));
        if let Some(value) = before.find(|value| !taken.contains(*value)) {
            taken.insert(value.to_owned());
            kept.insert(index, value.to_owned());
        }
    }
    let mut free = range(*first, *last).map(|address| address.to_string());
    for index in order {
        match kept.remove(&index).or_else(|| free.find(|address| !taken.contains(address))) {
            Some(address) => set_host(&mut all[index], address),
            None => {
                let message = format!("no address from {first} to {last} is free");
                all[index].unusable = Some(Problem::new("AddressNotAssigned", message));
            }
        }
    }
    all
}

fn needs_address(addresses: &Addresses) -> bool {
    addresses.host.is_empty() && addresses.unsupported.is_none() && addresses.unusable.is_none()
}

fn set_host(addresses: &mut Addresses, address: String) {
    addresses.published = vec![json!({ "type": "IPAddress", "value": address })];
    addresses.host = address;
}

/// What follows from the specification alone.
fn stated(gateway: &KubeGateway, options: &GatewayAddresses) -> Addresses {
    let mut addresses = Addresses::default();
    let wanted: Vec<&GatewayAddress> = gateway.spec.addresses.iter().collect();
    let is_known = |address: &&GatewayAddress| matches!(address.kind.as_deref(), None | Some("IPAddress" | "Hostname"));
    if let Some(other) = wanted.iter().find(|address| !is_known(address)) {
        let kind = other.kind.as_deref().unwrap_or_default();
        let message = format!("addresses of type {kind} are not supported: use IPAddress");
        addresses.unsupported = Some(Problem::new("UnsupportedAddress", message));
        return addresses;
    }
    let (usable, unusable): (Vec<&str>, Vec<&str>) =
        wanted.iter().map(|address| &*address.value).filter(|value| !value.is_empty()).partition(
            |value| match options {
                GatewayAddresses::Node { published } => published.iter().any(|known| known == value),
                GatewayAddresses::Pool { first, last } => value.parse().is_ok_and(|value| is_in(value, *first, *last)),
            },
        );
    if let Some(value) = unusable.first() {
        let message = format!("{value} is not an address of this controller");
        addresses.unusable = Some(Problem::new("AddressNotUsable", message));
    }
    match options {
        GatewayAddresses::Node { published } => {
            let shown = published.iter().filter(|known| usable.is_empty() || usable.contains(&known.as_str()));
            addresses.published = shown.map(|value| published_address(value)).collect();
        }
        GatewayAddresses::Pool { .. } => {
            if let Some(first) = usable.first() {
                set_host(&mut addresses, (*first).to_owned());
            }
        }
    }
    addresses
}

fn published_address(value: &str) -> Value {
    let kind = if value.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
    json!({ "type": kind, "value": value })
}

fn is_in(address: IpAddr, first: IpAddr, last: IpAddr) -> bool {
    address.is_ipv4() == first.is_ipv4() && first <= address && address <= last
}

fn range(first: IpAddr, last: IpAddr) -> Box<dyn Iterator<Item = IpAddr>> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Box::new((u32::from(first)..=u32::from(last)).map(|bits| IpAddr::V4(bits.into())))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Box::new((u128::from(first)..=u128::from(last)).map(|bits| IpAddr::V6(bits.into())))
        }
        _ => Box::new(std::iter::empty()),
    }
}

/// The name of a Gateway in the world.
pub(super) fn name_of(gateway: &KubeGateway) -> ObjectName {
    ObjectName::new(&gateway.metadata.namespace, &gateway.metadata.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str, created: &str, wanted: Value, has: Value) -> KubeGateway {
        serde_json::from_value(json!({
            "metadata": { "name": name, "creationTimestamp": created },
            "spec": { "addresses": wanted },
            "status": { "addresses": has },
        }))
        .unwrap()
    }

    fn pool() -> GatewayAddresses {
        GatewayAddresses::Pool { first: [10, 0, 0, 1].into(), last: [10, 0, 0, 3].into() }
    }

    #[test]
    fn a_gateway_keeps_its_address_and_others_get_free_ones() {
        let (wants, none) = (json!([{ "value": "10.0.0.2" }]), json!([]));
        let gateways = [
            gateway("young", "2026-01-03", none.clone(), none.clone()),
            gateway("old", "2026-01-01", none.clone(), none.clone()),
            gateway("has", "2026-01-02", none.clone(), json!([{ "value": "10.0.0.1" }])),
            gateway("wants", "2026-01-04", wants, none),
        ];
        let all = assign(&gateways.iter().collect::<Vec<_>>(), &pool());
        assert_eq!(all.iter().map(|one| &*one.host).collect::<Vec<_>>(), ["", "10.0.0.3", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(all[0].unusable.as_ref().map(|problem| problem.reason), Some("AddressNotAssigned"));
    }

    #[test]
    fn an_address_that_is_not_ours_is_a_problem() {
        let reason = |address: Value| {
            let gateway = gateway("a", "", json!([address]), json!([]));
            let one = assign(&[&gateway], &pool()).remove(0);
            one.unsupported.or(one.unusable).map(|problem| problem.reason)
        };
        assert_eq!(reason(json!({ "type": "IPAddress", "value": "10.0.0.9" })), Some("AddressNotUsable"));
        assert_eq!(reason(json!({ "type": "example.com/any", "value": "a" })), Some("UnsupportedAddress"));
        assert_eq!(reason(json!({ "type": "IPAddress" })), None);
    }
}
