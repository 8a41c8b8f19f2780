//! JSON Schemas of resources, for editors and forms. They are not used for validation, which is done by reading documents; a test
//! keeps both consistent.

use serde_json::{Value, json};

/// The schema of a kind of resource, by its singular name.
pub(super) fn of(name: &str) -> Option<Value> {
    Some(match name {
        "route" => route(),
        "service" => object(
            json!({
                "upstream": upstream(), "upstream_id": id(), "plugins": plugins(), "hosts": list(host()),
                "enable_websocket": { "type": "boolean" },
            }),
            &[],
        ),
        "upstream" => upstream(),
        "consumer" => object(
            json!({ "username": { "type": "string", "pattern": "^[a-zA-Z0-9_-]{1,256}$" }, "group_id": id(), "plugins": plugins() }),
            &["username"],
        ),
        "credential" => object(json!({ "plugins": plugins() }), &["plugins"]),
        "consumer_group" | "plugin_config" | "global_rule" => object(json!({ "plugins": plugins() }), &["plugins"]),
        "ssl" => ssl(),
        "proto" => object(json!({ "content": { "type": "string", "minLength": 1 } }), &["content"]),
        "stream_route" => object(
            json!({
                "remote_addr": text(), "server_addr": text(), "server_port": { "type": "integer" }, "sni": text(),
                "upstream": upstream(), "upstream_id": id(), "service_id": id(), "plugins": plugins(),
            }),
            &[],
        ),
        "secret" => object(
            json!({ "uri": text(), "prefix": text(), "token": text(), "namespace": text(), "ttl": {} }),
            &["uri", "prefix", "token"],
        ),
        _ => return None,
    })
}

/// A map with these members and those common to all resources.
fn object(own: Value, required: &[&str]) -> Value {
    let mut properties = json!({
        "id": id(),
        "name": { "type": "string", "minLength": 1, "maxLength": 256 },
        "desc": { "type": "string", "maxLength": 256 },
        "labels": { "type": "object", "additionalProperties": { "type": "string", "pattern": "^\\S+$", "maxLength": 256 } },
        "create_time": { "type": "integer" },
        "update_time": { "type": "integer" },
    });
    for (name, schema) in own.as_object().into_iter().flatten() {
        properties[name] = schema.clone();
    }
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn text() -> Value {
    json!({ "type": "string", "minLength": 1 })
}

fn id() -> Value {
    json!({ "anyOf": [
        { "type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$" },
        { "type": "integer", "minimum": 1 },
    ] })
}

fn host() -> Value {
    json!({ "type": "string", "pattern": "^\\*?[0-9a-zA-Z._:\\[\\]-]*$", "minLength": 1 })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items, "minItems": 1, "uniqueItems": true })
}

fn plugins() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "object" } })
}

fn timeout() -> Value {
    let seconds = json!({ "type": "number", "exclusiveMinimum": 0 });
    json!({
        "type": "object", "required": ["connect", "send", "read"],
        "properties": { "connect": seconds, "send": seconds, "read": seconds },
    })
}

fn route() -> Value {
    let uri = json!({ "type": "string", "minLength": 1, "maxLength": 4096 });
    let methods = json!(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"]);
    let mut schema = object(
        json!({
            "uri": uri, "uris": list(uri), "host": host(), "hosts": list(host()),
            "methods": { "type": "array", "uniqueItems": true, "items": { "type": "string", "enum": methods } },
            "remote_addr": text(), "remote_addrs": list(text()),
            "priority": { "type": "integer", "default": 0 },
            "vars": { "type": "array" },
            "timeout": timeout(),
            "status": { "enum": [0, 1], "default": 1 },
            "enable_websocket": { "type": "boolean" },
            "plugins": plugins(), "plugin_config_id": id(),
            "upstream": upstream(), "upstream_id": id(), "service_id": id(), "hub_id": id(),
        }),
        &[],
    );
    schema["oneOf"] = json!([{ "required": ["uri"] }, { "required": ["uris"] }]);
    schema["anyOf"] = json!([
        { "required": ["plugins"] }, { "required": ["upstream"] }, { "required": ["upstream_id"] },
        { "required": ["service_id"] }, { "required": ["plugin_config_id"] }, { "required": ["hub_id"] },
    ]);
    schema["not"] = json!({ "anyOf": [
        { "required": ["host", "hosts"] }, { "required": ["remote_addr", "remote_addrs"] },
    ] });
    schema
}

/// The types of APISIX, and three of Weir's own.
const UPSTREAM_TYPES: [&str; 7] = ["roundrobin", "chash", "ewma", "least_conn", "least_time", "random", "ip_hash"];

fn upstream() -> Value {
    let node = json!({
        "type": "object", "required": ["host", "weight"],
        "properties": {
            "host": text(), "port": { "type": "integer", "minimum": 1, "maximum": 65535 },
            "weight": { "type": "integer", "minimum": 0 }, "priority": { "type": "integer" },
            "metadata": { "type": "object" },
        },
    });
    object(
        json!({
            "type": { "enum": UPSTREAM_TYPES, "default": "roundrobin" },
            "nodes": { "anyOf": [
                { "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } },
                { "type": "array", "items": node },
            ] },
            "service_name": text(), "discovery_type": text(), "discovery_args": { "type": "object" },
            "hash_on": { "enum": ["vars", "header", "cookie", "consumer", "vars_combinations"], "default": "vars" },
            "key": text(),
            "scheme": { "enum": ["http", "https", "grpc", "grpcs"], "default": "http" },
            "pass_host": { "enum": ["pass", "node", "rewrite"], "default": "pass" },
            "upstream_host": host(),
            "retries": { "type": "integer", "minimum": 0 },
            "retry_timeout": { "type": "number", "minimum": 0 },
            "timeout": timeout(),
            "checks": { "type": "object" }, "tls": { "type": "object" }, "keepalive_pool": { "type": "object" },
        }),
        &[],
    )
    .as_object()
    .map(|schema| {
        let mut schema = schema.clone();
        // Weir has further members: see the guide to balancing.
        schema.shift_remove("additionalProperties");
        Value::Object(schema)
    })
    .unwrap_or_default()
}

fn ssl() -> Value {
    let pem = json!({ "type": "string", "minLength": 64, "maxLength": 65536 });
    object(
        json!({
            "type": { "enum": ["server", "client"], "default": "server" },
            "cert": pem, "key": pem, "certs": list(pem.clone()), "keys": list(pem.clone()),
            "sni": host(), "snis": list(host()),
            "client": { "type": "object", "required": ["ca"], "properties": {
                "ca": pem, "depth": { "type": "integer", "minimum": 0, "default": 1 },
                "skip_mtls_uri_regex": list(text()),
            } },
            "status": { "enum": [0, 1], "default": 1 },
            "ssl_protocols": list(json!({ "enum": ["TLSv1.1", "TLSv1.2", "TLSv1.3"] })),
        }),
        &["cert", "key"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every member of a schema must be known to documents, so that a form offers nothing that is refused.
    #[test]
    fn schemas_offer_what_documents_know() {
        let lists = [
            ("route", "routes"),
            ("service", "services"),
            ("upstream", "upstreams"),
            ("consumer", "consumers"),
            ("consumer_group", "consumer_groups"),
            ("plugin_config", "plugin_configs"),
            ("ssl", "ssls"),
            ("secret", "secrets"),
        ];
        for (name, list) in lists {
            let schema = of(name).expect("a schema");
            for member in schema["properties"].as_object().expect("members").keys() {
                let text = format!("{{\"{list}\": [{{\"{member}\": null}}]}}");
                let faults = crate::check_text(&text).err().unwrap_or_default();
                let unknown = faults.iter().find(|fault| fault.problem.contains("is not known"));
                assert!(unknown.is_none(), "{name}: {unknown:?}");
            }
        }
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn schemas_allow_what_apisix_does_not_have() {
        for kind in UPSTREAM_TYPES {
            let text =
                format!("{{\"upstreams\": [{{\"type\": \"{kind}\", \"key\": \"uri\", \"nodes\": {{\"a:1\": 1}}}}]}}");
            assert!(crate::check_text(&text).is_ok(), "{kind}");
        }
        let unknown = crate::check_text("{\"upstreams\": [{\"type\": \"none\", \"nodes\": {\"a:1\": 1}}]}").err();
        let advice = unknown.and_then(|faults| faults.first()?.advice.clone()).unwrap_or_default();
        assert_eq!(advice.matches('`').count(), 2 * UPSTREAM_TYPES.len(), "one is missing here: {advice}");
        let route = of("route").expect("a schema");
        let targets = route["anyOf"].as_array().expect("a list");
        assert!(targets.contains(&json!({ "required": ["hub_id"] })), "a route may lead to a hub alone: {targets:?}");
    }
}
