//! Listeners, and their certificates, as resources.

use serde_json::{Map, Value, json};

use super::parents::{ListenerState, Parents};
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};

/// Adds the listeners that are served.
pub(super) fn write(parents: &Parents, translation: &mut Translation) {
    for state in parents.listeners.iter().filter(|state| state.is_served()) {
        let addresses = &parents.gateways[state.gateway].addresses;
        if !addresses.can_be_listened_on() {
            continue;
        }
        let value = listener(parents, state, &addresses.host);
        push(ResourceList::Listeners, state.id.clone(), value, state, translation);
        for (number, certificate) in state.certificates.iter().enumerate() {
            let id = certificate_id(state, number);
            let mut value = json!({
                "sni": state.host().map_or("*".to_owned(), str::to_ascii_lowercase),
                "cert": certificate.chain,
                "key": certificate.key,
                "listeners": [state.id],
            });
            if !state.clients.authorities.is_empty() {
                let mode = if state.clients.is_insecure { "any" } else { "required" };
                value["client"] = json!({ "ca": state.clients.authorities, "mode": mode });
            }
            push(ResourceList::Ssls, id, value, state, translation);
        }
    }
}

/// The resources of a listener, which are all needed to serve it.
pub(super) fn keys(state: &ListenerState) -> impl Iterator<Item = (ResourceList, String)> {
    let certificate = move |number| (ResourceList::Ssls, certificate_id(state, number));
    let certificates = (0..state.certificates.len()).map(certificate);
    std::iter::once((ResourceList::Listeners, state.id.clone())).chain(certificates)
}

fn certificate_id(state: &ListenerState, number: usize) -> String {
    resource_id(&[&state.id, &number.to_string()])
}

fn listener(parents: &Parents, state: &ListenerState, host: &str) -> Value {
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut value = Map::from_iter([("address".to_owned(), format!("{bracketed}:{}", state.listener.port).into())]);
    // Listeners of one address have the same settings; where some end TLS and others do not, each stream route decides.
    let is_any = |has: &dyn Fn(&ListenerState) -> bool| parents.beside(state, host).any(has);
    let (ends_tls, passes_tls) = match &*state.listener.protocol {
        "TLS" => (is_any(&|other| other.is_tls()), is_any(&|other| other.passes_tls())),
        _ => (state.is_tls(), false),
    };
    if ends_tls {
        value.insert("tls".to_owned(), true.into());
    }
    if passes_tls {
        value.insert("tls_passthrough".to_owned(), true.into());
    }
    match &*state.listener.protocol {
        "TCP" | "TLS" => value.insert("protocol".to_owned(), "tcp".into()),
        "UDP" => value.insert("protocol".to_owned(), "udp".into()),
        _ => None,
    };
    if let Some(host) = state.host() {
        value.insert("hosts".to_owned(), json!([host.to_ascii_lowercase()]));
    }
    Value::Object(value)
}

fn push(kind: ResourceList, id: String, value: Value, state: &ListenerState, translation: &mut Translation) {
    translation.resources.push(DerivedResource { kind, id, value, origin: state.owner.clone(), beside: Vec::new() });
}
