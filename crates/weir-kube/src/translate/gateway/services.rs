//! A Service for each Gateway: programs of the cluster reach the Gateway by its name, and the labels and annotations of its
//! `infrastructure` are on it. It has no selector, since the node may be in another namespace, or outside of the cluster: its EndpointSlice
//! has the addresses of the Gateway.

use std::net::IpAddr;

use aws_lc_rs::digest;
use serde_json::{Value, json};

use super::context::Context;
use super::parents::{GatewayState, Parents};
use crate::objects::gateway::KubeGateway;
use crate::objects::{Kind, ObjectRef};
use crate::translation::{EventKind, ObjectEvent, OwnedObject, Translation};
use crate::world::ObjectName;

/// The label that names the Gateway of an object (GEP-1762).
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The labels that say who writes a Service and an EndpointSlice.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const WRITER: &str = "weir";
/// The longest name of a Service (RFC 1035 label).
const LONGEST_NAME: usize = 63;

/// The number of a port, and `TCP` or `UDP`.
type GatewayPort = (u16, &'static str);

/// Adds the Services of Gateways that have IP addresses and ports.
pub(super) fn write(context: &Context, parents: &Parents, translation: &mut Translation) {
    if !context.options.makes_services {
        return;
    }
    for (number, state) in parents.gateways.iter().enumerate() {
        let mut ports: Vec<GatewayPort> = parents
            .listeners
            .iter()
            .filter(|it| it.gateway == number && it.is_served())
            .map(|it| (it.listener.port, it.transport()))
            .collect();
        ports.sort_unstable();
        ports.dedup();
        let addresses = addresses(state);
        if state.addresses.unsupported.is_some() || ports.is_empty() || addresses.is_empty() {
            continue;
        }
        let ObjectName { namespace, name } = service_name(state.gateway);
        let taken = context.world.services.get(&ObjectName::new(&namespace, &name));
        if taken.is_some_and(|service| service.metadata.labels.get(MANAGED_BY).is_none_or(|by| by != WRITER)) {
            translation.events.push(ObjectEvent {
                object: ObjectRef::of(state.gateway),
                kind: EventKind::Warning,
                reason: "NoService".to_owned(),
                message: format!(
                    "Service {name} was not made for this Gateway and stays as it is: the Gateway has none"
                ),
            });
            continue;
        }
        let owned = |kind, value| OwnedObject {
            object: ObjectRef { kind, namespace: namespace.clone(), name: name.clone() },
            owner: ObjectRef::of(state.gateway),
            exists: taken.is_some(),
            value,
        };
        translation.owned.push(owned(Kind::Service, service(state.gateway, &ports)));
        translation.owned.push(owned(Kind::EndpointSlice, slice(state.gateway, &name, &addresses, &ports)));
    }
}

/// The IP addresses of a Gateway of the family of the first one.
fn addresses(state: &GatewayState) -> Vec<IpAddr> {
    let published = state.addresses.published.iter().filter_map(|address| address["value"].as_str()?.parse().ok());
    let mut all: Vec<IpAddr> = published.collect();
    let first = all.first().is_some_and(IpAddr::is_ipv4);
    all.retain(|address| address.is_ipv4() == first);
    all
}

fn service_name(gateway: &KubeGateway) -> ObjectName {
    let full = format!("{}-{}", gateway.metadata.name, gateway.spec.gateway_class_name);
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label =
        full.len() <= LONGEST_NAME && full.chars().all(is_plain) && full.starts_with(|c: char| c.is_ascii_lowercase());
    let hashed = || format!("gateway-{}", &hex::encode(digest::digest(&digest::SHA256, full.as_bytes()))[..24]);
    ObjectName::new(&gateway.metadata.namespace, if is_label { full } else { hashed() })
}

/// The labels and annotations of the infrastructure, and labels of this part, which win.
fn metadata(gateway: &KubeGateway, labels: &[(&str, &str)]) -> Value {
    let infrastructure = gateway.spec.infrastructure.clone().unwrap_or_default();
    let mut all = infrastructure.labels;
    all.insert(GATEWAY_NAME.to_owned(), gateway.metadata.name.clone());
    all.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    json!({ "labels": all, "annotations": infrastructure.annotations })
}

fn service(gateway: &KubeGateway, ports: &[GatewayPort]) -> Value {
    let port = |of: &GatewayPort| json!({ "name": port_name(of), "port": of.0, "protocol": of.1, "targetPort": of.0 });
    json!({
        "metadata": metadata(gateway, &[(MANAGED_BY, WRITER)]),
        "spec": { "type": "ClusterIP", "ports": ports.iter().map(port).collect::<Vec<_>>() },
    })
}

fn slice(gateway: &KubeGateway, service: &str, addresses: &[IpAddr], ports: &[GatewayPort]) -> Value {
    let port = |of: &GatewayPort| json!({ "name": port_name(of), "port": of.0, "protocol": of.1 });
    let endpoint = |address: &IpAddr| json!({ "addresses": [address], "conditions": { "ready": true } });
    let labels = [("kubernetes.io/service-name", service), (SLICE_MANAGED_BY, WRITER), (MANAGED_BY, WRITER)];
    json!({
        "metadata": metadata(gateway, &labels),
        "addressType": if addresses.iter().all(IpAddr::is_ipv4) { "IPv4" } else { "IPv6" },
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn port_name((port, transport): &GatewayPort) -> String {
    match *transport {
        "UDP" => format!("udp-{port}"),
        _ => format!("port-{port}"),
    }
}
