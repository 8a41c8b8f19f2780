//! Listeners, and their certificates, as resources.

use serde_json::{Map, Value, json};

use super::parents::{ListenerState, Parents};
use crate::translation::{DerivedResource, ResourceList, Translation, resource_id};

/// Adds the listeners that are served.
pub(super) fn write(parents: &Parents, translation: &mut Translation) {
    for state in parents.listeners.iter().filter(|state| state.is_served()) {
        let addresses = &parents.gateways[state.gateway].addresses;
        if addresses.unsupported.is_some() || addresses.unusable.is_some() && addresses.host.is_empty() {
            continue;
        }
        let value = listener(state, &addresses.host);
        push(ResourceList::Listeners, state.id.clone(), value, state, translation);
        for (number, certificate) in state.certificates.iter().enumerate() {
            let id = resource_id(&[&state.id, &number.to_string()]);
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

fn listener(state: &ListenerState, host: &str) -> Value {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut value = Map::from_iter([("address".to_owned(), format!("{host}:{}", state.listener.port).into())]);
    if state.is_tls() {
        value.insert("tls".to_owned(), true.into());
    }
    if let Some(host) = state.host() {
        value.insert("hosts".to_owned(), json!([host.to_ascii_lowercase()]));
    }
    Value::Object(value)
}

fn push(kind: ResourceList, id: String, value: Value, state: &ListenerState, translation: &mut Translation) {
    translation.resources.push(DerivedResource { kind, id, value, origin: state.owner.clone() });
}
