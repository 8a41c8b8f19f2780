//! The addresses of a Gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aws_lc_rs::digest;
use serde_json::{Value, json};

use super::super::conditions::Problem;
use super::super::precedence::precedence;
use super::super::proxies;
use crate::objects::gateway::{GatewayAddress, KubeGateway};
use crate::translation::{GatewayAddresses, KubeOptions};
use crate::world::{ObjectName, World};

/// Where the listeners of a Gateway are reached.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// What the addresses of its listeners begin with; empty: every interface.
    pub host: String,
    /// `status.addresses`.
    pub published: Vec<Value>,
    /// The specification asks for a type of address, or for parameters, that are not known here. The Gateway is then not accepted.
    pub unsupported: Option<Problem>,
    /// It asks for an address that it cannot get.
    pub unusable: Option<Problem>,
}

impl Addresses {
    /// Whether listeners are opened.
    pub(super) fn can_be_listened_on(&self) -> bool {
        self.unsupported.is_none() && (self.unusable.is_none() || !self.host.is_empty())
    }
}

/// The addresses of all Gateways. Those that have one keep it; others get a free one, the oldest Gateway first.
pub(super) fn assign(gateways: &[&KubeGateway], world: &World, options: &KubeOptions) -> Vec<Addresses> {
    let mut all: Vec<Addresses> = gateways.iter().map(|gateway| stated(gateway, world, options)).collect();
    let GatewayAddresses::Pool { first, last } = &options.addresses else { return all };
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
    for index in order {
        let mut free = candidates(&name_of(gateways[index]), *first, *last).map(|address| address.to_string());
        match kept.remove(&index).or_else(|| free.find(|address| !taken.contains(address))) {
            Some(address) => {
                taken.insert(address.clone());
                set_host(&mut all[index], address);
            }
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
fn stated(gateway: &KubeGateway, world: &World, options: &KubeOptions) -> Addresses {
    let mut addresses = Addresses::default();
    let parameters = gateway.spec.infrastructure.as_ref().and_then(|wanted| wanted.parameters_ref.as_ref());
    let namespace = &gateway.metadata.namespace;
    addresses.unsupported = parameters.and_then(|reference| proxies::refusal(world, options, reference, namespace));
    if addresses.unsupported.is_some() {
        return addresses;
    }
    let proxy = parameters.and_then(|reference| proxies::find(world, options, reference, namespace));
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
            |value| match &options.addresses {
                GatewayAddresses::Node { published } => published.iter().any(|known| known == value),
                GatewayAddresses::Pool { first, last } => value.parse().is_ok_and(|value| is_in(value, *first, *last)),
            },
        );
    if let Some(value) = unusable.first() {
        let message = format!("{value} is not an address of this controller");
        addresses.unusable = Some(Problem::new("AddressNotUsable", message));
    }
    match &options.addresses {
        GatewayAddresses::Node { .. } if proxy.is_some_and(|proxy| !proxy.spec.status_address.is_empty()) => {
            let stated = proxy.iter().flat_map(|proxy| &proxy.spec.status_address);
            addresses.published = stated.map(|value| published_address(value)).collect();
        }
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

/// All addresses from the first to the last, beginning with one that depends on the name of the Gateway: of two new Gateways, each
/// gets the same address whether the other is known yet or not, unless their names lead to the same.
fn candidates(name: &ObjectName, first: IpAddr, last: IpAddr) -> impl Iterator<Item = IpAddr> + use<> {
    let (low, high) = (bits(first), bits(last));
    let count = high.saturating_sub(low).saturating_add(1);
    let hash = digest::digest(&digest::SHA256, name.to_string().as_bytes());
    let begin = hash.as_ref().iter().fold(0, |sum: u128, byte| (sum * 256 + u128::from(*byte)) % count.min(1 << 64));
    let at = move |index: u128| match first {
        IpAddr::V4(_) => u32::try_from(low + index).map(|bits| IpAddr::V4(bits.into())).ok(),
        IpAddr::V6(_) => Some(IpAddr::V6((low + index).into())),
    };
    (begin..count).chain(0..begin).filter_map(at)
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
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

    fn of_network(first: [u8; 4], last: [u8; 4]) -> KubeOptions {
        let addresses = GatewayAddresses::Pool { first: first.into(), last: last.into() };
        KubeOptions { addresses, ..KubeOptions::default() }
    }

    fn pool() -> KubeOptions {
        of_network([10, 0, 0, 1], [10, 0, 0, 3])
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
        let all = assign(&gateways.iter().collect::<Vec<_>>(), &World::default(), &pool());
        assert_eq!(all.iter().map(|one| &*one.host).collect::<Vec<_>>(), ["", "10.0.0.3", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(all[0].unusable.as_ref().map(|problem| problem.reason), Some("AddressNotAssigned"));
    }

    #[test]
    fn the_address_of_a_new_gateway_does_not_depend_on_others_that_are_new() {
        let wide = of_network([10, 0, 0, 1], [10, 0, 255, 254]);
        let [one, other] = ["one", "other"].map(|name| gateway(name, "2026-01-01", json!([]), json!([])));
        let alone = assign(&[&other], &World::default(), &wide).remove(0).host;
        let both: Vec<String> =
            assign(&[&one, &other], &World::default(), &wide).into_iter().map(|found| found.host).collect();
        assert_eq!(both[1], alone);
        assert_ne!(both[0], both[1]);
    }

    #[test]
    fn an_address_that_is_not_ours_is_a_problem() {
        let reason = |address: Value| {
            let gateway = gateway("a", "", json!([address]), json!([]));
            let one = assign(&[&gateway], &World::default(), &pool()).remove(0);
            one.unsupported.or(one.unusable).map(|problem| problem.reason)
        };
        assert_eq!(reason(json!({ "type": "IPAddress", "value": "10.0.0.9" })), Some("AddressNotUsable"));
        assert_eq!(reason(json!({ "type": "example.com/any", "value": "a" })), Some("UnsupportedAddress"));
        assert_eq!(reason(json!({ "type": "IPAddress" })), None);
    }
}
