//! What is served in place of a resource that the node refuses.

use serde_json::{Value, json};

use crate::objects::Kind;
use crate::translation::ResourceList;

/// What a route does, unlike which requests it is for.
const ACTIONS: [&str; 6] = ["upstream_id", "upstream", "service_id", "plugin_config_id", "plugins", "timeout"];

/// Which handshakes a certificate is for.
const KEPT_OF_SSL: [&str; 3] = ["sni", "snis", "listeners"];

/// How the ids of the stream routes of rules of ApisixRoutes for UDP begin.
const APISIX_UDP: &str = "apisixroute_udp_";

/// What is served in place of a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum SubstituteResource {
    /// What was served last under its id.
    Last,
    /// Nothing: what refers to it cannot be served either.
    Nothing,
    Other(Value),
}

/// What is served in place of a resource that the node cannot serve. A route answers with 503, a stream route resets
/// connections, and a certificate that asks clients for theirs refuses handshakes: their requests must not go to a wider route, nor to where they went before a policy was added or changed.
pub fn substitute(kind: ResourceList, id: &str, value: &Value) -> SubstituteResource {
    let nowhere = match kind {
        // The last one may have let clients in without certificates, or there was none, and the name has one by a wider name.
        ResourceList::Ssls if !value["client"].is_null() => {
            let mut refusing = value.clone();
            if let Some(members) = refusing.as_object_mut() {
                members.retain(|name, _| KEPT_OF_SSL.contains(&&**name));
                members.insert("reject_handshake".to_owned(), true.into());
            }
            return SubstituteResource::Other(refusing);
        }
        ResourceList::Routes => ("plugins", json!({})),
        ResourceList::StreamRoutes => {
            let is_udp = id.starts_with(&prefix(Kind::UDPRoute)) || id.starts_with(APISIX_UDP);
            let scheme = if is_udp { "udp" } else { "tcp" };
            ("upstream", json!({ "scheme": scheme, "nodes": [] }))
        }
        // The plugins of policies.
        ResourceList::PluginConfigs | ResourceList::Services => return SubstituteResource::Nothing,
        ResourceList::Listeners
        | ResourceList::Ssls
        | ResourceList::Consumers
        | ResourceList::GlobalRules
        | ResourceList::Upstreams => return SubstituteResource::Last,
    };
    let mut closed = value.clone();
    if let Some(members) = closed.as_object_mut() {
        members.retain(|name, _| !ACTIONS.contains(&&**name));
        members.insert(nowhere.0.to_owned(), nowhere.1);
    }
    SubstituteResource::Other(closed)
}

/// How the ids of the resources of routes of a kind begin.
pub(super) fn prefix(kind: Kind) -> String {
    kind.name().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_closed_and_take_the_same_requests() {
        let written = json!({
            "name": "HTTPRoute shop/orders", "uri": "/orders/*", "hosts": ["shop.example"], "priority": 3, "listeners": ["l"],
            "upstream_id": "u", "plugin_config_id": "p", "service_id": "s", "plugins": { "cors": {} }, "timeout": { "read": 5 },
        });
        let closed = json!({
            "name": "HTTPRoute shop/orders", "uri": "/orders/*", "hosts": ["shop.example"], "priority": 3, "listeners": ["l"],
            "plugins": {},
        });
        assert_eq!(
            substitute(ResourceList::Routes, "httproute_shop_orders_0_0", &written),
            SubstituteResource::Other(closed)
        );
    }

    #[test]
    fn certificates_that_ask_clients_for_theirs_refuse_handshakes() {
        let written = json!({ "snis": ["a.example"], "listeners": ["l"], "cert": "c", "key": "k" });
        assert_eq!(substitute(ResourceList::Ssls, "s", &written), SubstituteResource::Last);
        let mut asking = written;
        asking["client"] = json!({ "ca": "a" });
        let refusing = json!({ "snis": ["a.example"], "listeners": ["l"], "reject_handshake": true });
        assert_eq!(substitute(ResourceList::Ssls, "s", &asking), SubstituteResource::Other(refusing));
    }

    #[test]
    fn stream_routes_lead_nowhere() {
        for (id, scheme) in [
            ("udproute_shop_dns_l", "udp"),
            ("tlsroute_shop_db_l", "tcp"),
            ("tcproute_shop_db_l", "tcp"),
            ("apisixroute_udp_shop_dns_all", "udp"),
            ("apisixroute_tcp_shop_db_all", "tcp"),
        ] {
            let closed = substitute(ResourceList::StreamRoutes, id, &json!({ "server_port": 53, "upstream_id": "u" }));
            let wanted = json!({ "server_port": 53, "upstream": { "scheme": scheme, "nodes": [] } });
            assert_eq!(closed, SubstituteResource::Other(wanted));
        }
    }
}
