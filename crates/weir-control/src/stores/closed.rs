//! What is served in place of a resource that cannot be served and has no good version: what it was for is refused. Without it, a wider
//! route, or a certificate for all names, would take its requests, without its access control.

use serde_json::{Map, Value, json};

/// What says which requests a route is for.
const OF_ROUTE: [&str; 16] = [
    "name",
    "labels",
    "uri",
    "uris",
    "host",
    "hosts",
    "methods",
    "remote_addr",
    "remote_addrs",
    "vars",
    "priority",
    "listeners",
    "merge_slashes",
    "allow_encoded_slashes",
    "enable_websocket",
    "status",
];
const OF_STREAM_ROUTE: [&str; 10] = [
    "name",
    "labels",
    "server_port",
    "server_addr",
    "remote_addr",
    "sni",
    "snis",
    "listeners",
    "tls_passthrough",
    "status",
];
const OF_SSL: [&str; 6] = ["name", "labels", "sni", "snis", "listeners", "status"];

/// Plugins that decide nothing, beside loggers: a global rule of nothing else protects nothing. `real-ip` is none of them, since others
/// restrict addresses by what it finds.
const OBSERVERS: [&str; 7] = ["prometheus", "opentelemetry", "zipkin", "request-id", "gzip", "brotli", "alt-svc"];

/// A closed form of a resource of a list: a route answers with 503, a stream route leads nowhere, a certificate refuses handshakes, and a
/// global rule answers every request with 503. `None` if nothing has to be closed: what refers to an upstream, a service or a consumer
/// cannot be served either, and is closed itself. `hosts_of` knows the hosts of a service.
pub(super) fn closed(list: &str, text: &str, hosts_of: impl Fn(&str) -> Option<Value>) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    let written = value.as_object()?;
    let closed = match list {
        "routes" => route(written, hosts_of),
        "stream_routes" => stream_route(written),
        "ssls" if written.get("type").is_none_or(|kind| kind == "server") => {
            with(written, &OF_SSL, "reject_handshake", json!(true))
        }
        "global_rules" if protects(written) => {
            Map::from_iter([("plugins".to_owned(), json!({ "fault-injection": { "abort": { "http_status": 503 } } }))])
        }
        _ => return None,
    };
    Some(Value::Object(closed).to_string())
}

/// What the closed form of a resource of a list does, for messages.
pub(super) fn told(list: &str) -> &'static str {
    match list {
        "routes" => "the route is closed, and its requests are answered with 503",
        "stream_routes" => "the route is closed, and its connections are ended",
        "ssls" => "handshakes for its names are refused",
        _ => "every request is answered with 503",
    }
}

/// What it means that nothing takes the place of a resource of a list, for messages.
pub(super) fn nothing(list: &str) -> &'static str {
    match list {
        "upstreams" | "services" | "plugin_configs" => "nothing takes its place, and routes that need it are closed",
        "consumers" | "consumer_groups" => "nothing takes its place, and its credentials admit no one",
        _ => "nothing takes its place",
    }
}

fn with(written: &Map<String, Value>, kept: &[&str], name: &str, value: Value) -> Map<String, Value> {
    let kept = written.iter().filter(|(name, _)| kept.contains(&name.as_str()));
    let kept = kept.map(|(name, value)| (name.clone(), value.clone()));
    kept.chain([(name.to_owned(), value)]).collect()
}

fn route(written: &Map<String, Value>, hosts_of: impl Fn(&str) -> Option<Value>) -> Map<String, Value> {
    let mut closed = with(written, &OF_ROUTE, "plugins", json!({}));
    let service = written.get("service_id").and_then(|id| match id {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    });
    // A route without hosts is for those of its service.
    let has_hosts = closed.contains_key("host") || closed.contains_key("hosts");
    if let Some(hosts) = service.filter(|_| !has_hosts).and_then(|id| hosts_of(&id)) {
        closed.insert("hosts".to_owned(), hosts);
    }
    closed
}

fn stream_route(written: &Map<String, Value>) -> Map<String, Value> {
    let mut upstream = json!({ "nodes": [] });
    if let Some(scheme) = written.get("upstream").and_then(|upstream| upstream.get("scheme")) {
        upstream["scheme"] = scheme.clone();
    }
    with(written, &OF_STREAM_ROUTE, "upstream", upstream)
}

fn protects(rule: &Map<String, Value>) -> bool {
    let plugins = rule.get("plugins").and_then(Value::as_object);
    plugins.is_none_or(|plugins| !plugins.keys().all(|plugin| is_observer(plugin)))
}

/// Whether a plugin decides nothing.
pub(in crate::stores) fn is_observer(plugin: &str) -> bool {
    OBSERVERS.contains(&plugin) || plugin.contains("-logg") || plugin == "syslog"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &str, value: Value) -> Option<Value> {
        let hosts = |id: &str| (id == "s").then(|| json!(["a.example"]));
        closed(list, &value.to_string(), hosts).map(|text| serde_json::from_str(&text).expect("JSON"))
    }

    #[test]
    fn a_closed_route_is_for_the_same_requests_and_does_nothing() {
        let written = json!({ "uri": "/a", "vars": [["a", "==", "b"]], "priority": 3, "service_id": "s", "plugins": { "cors": {} } });
        let closed =
            json!({ "uri": "/a", "vars": [["a", "==", "b"]], "priority": 3, "hosts": ["a.example"], "plugins": {} });
        assert_eq!(of("routes", written), Some(closed));
        let own = json!({ "uri": "/a", "host": "b.example", "service_id": "s", "upstream": {} });
        assert_eq!(of("routes", own), Some(json!({ "uri": "/a", "host": "b.example", "plugins": {} })));
    }

    #[test]
    fn a_resource_that_others_refer_to_stays_open_and_a_rule_that_protects_is_closed() {
        for list in ["services", "upstreams", "plugin_configs", "consumers", "plugin_metadata"] {
            assert_eq!(of(list, json!({ "plugins": {} })), None);
        }
        assert_eq!(
            of("global_rules", json!({ "plugins": { "prometheus": {}, "kafka-logger": {}, "syslog": {} } })),
            None
        );
        let closed = json!({ "plugins": { "fault-injection": { "abort": { "http_status": 503 } } } });
        assert_eq!(of("global_rules", json!({ "plugins": { "prometheus": {}, "basic-auth": {} } })), Some(closed));
        let refused = json!({ "snis": ["a.example"], "reject_handshake": true });
        assert_eq!(of("ssls", json!({ "snis": ["a.example"], "cert": "c", "key": "k" })), Some(refused));
        assert_eq!(of("ssls", json!({ "type": "client", "cert": "c", "key": "k" })), None);
        let stream = json!({ "server_port": 53, "upstream": { "scheme": "udp", "nodes": [] } });
        assert_eq!(
            of(
                "stream_routes",
                json!({ "server_port": 53, "upstream": { "scheme": "udp", "nodes": { "a:1": 1 } }, "plugins": {} })
            ),
            Some(stream)
        );
    }
}
