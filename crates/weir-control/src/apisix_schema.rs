//! The definitions of the kinds of the APISIX ingress controller for Kubernetes, for clusters in which that controller has not installed
//! its own.
//!
//! They say what an API server can check. The options of plugins are left to the translation, which knows the plugins.

use serde_json::{Map, Value, json};

const GROUP: &str = "apisix.apache.org";
const KEEP_UNKNOWN: &str = "x-kubernetes-preserve-unknown-fields";
/// The most entries of each list, so that the cost of rules in CEL is bounded.
const MOST_ITEMS: u32 = 256;

/// A kind: its version, name, name in URLs, short name, specification, status, and the column that `kubectl get` shows beside the age.
struct ApisixKind {
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    spec: fn() -> Value,
    status: Option<fn() -> Value>,
    column: Option<(&'static str, &'static str)>,
}

const KINDS: [ApisixKind; 12] = [
    ApisixKind {
        version: "v2",
        kind: "ApisixRoute",
        plural: "apisixroutes",
        short: "ar",
        spec: route,
        status: Some(conditions),
        column: Some(("Hosts", ".spec.http[*].match.hosts")),
    },
    ApisixKind {
        version: "v2",
        kind: "ApisixUpstream",
        plural: "apisixupstreams",
        short: "au",
        spec: upstream,
        status: Some(conditions),
        column: None,
    },
    ApisixKind {
        version: "v2",
        kind: "ApisixTls",
        plural: "apisixtlses",
        short: "atls",
        spec: tls,
        status: Some(conditions),
        column: Some(("SNIs", ".spec.hosts")),
    },
    ApisixKind {
        version: "v2",
        kind: "ApisixConsumer",
        plural: "apisixconsumers",
        short: "ac",
        spec: consumer,
        status: Some(conditions),
        column: None,
    },
    ApisixKind {
        version: "v2",
        kind: "ApisixPluginConfig",
        plural: "apisixpluginconfigs",
        short: "apc",
        spec: plugins_only,
        status: Some(conditions),
        column: None,
    },
    ApisixKind {
        version: "v2",
        kind: "ApisixGlobalRule",
        plural: "apisixglobalrules",
        short: "agr",
        spec: plugins_only,
        status: Some(conditions),
        column: None,
    },
    ApisixKind {
        version: "v1alpha1",
        kind: "GatewayProxy",
        plural: "gatewayproxies",
        short: "",
        spec: gateway_proxy,
        status: None,
        column: None,
    },
    ApisixKind {
        version: "v1alpha1",
        kind: "PluginConfig",
        plural: "pluginconfigs",
        short: "",
        spec: plugin_config,
        status: None,
        column: None,
    },
    ApisixKind {
        version: "v1alpha1",
        kind: "BackendTrafficPolicy",
        plural: "backendtrafficpolicies",
        short: "",
        spec: traffic_policy,
        status: Some(ancestors),
        column: None,
    },
    ApisixKind {
        version: "v1alpha1",
        kind: "HTTPRoutePolicy",
        plural: "httproutepolicies",
        short: "",
        spec: route_policy,
        status: Some(ancestors),
        column: None,
    },
    ApisixKind {
        version: "v1alpha1",
        kind: "L4RoutePolicy",
        plural: "l4routepolicies",
        short: "",
        spec: stream_policy,
        status: Some(ancestors),
        column: None,
    },
    ApisixKind {
        version: "v1alpha1",
        kind: "Consumer",
        plural: "consumers",
        short: "",
        spec: gateway_consumer,
        status: Some(conditions),
        column: None,
    },
];

/// The CustomResourceDefinitions.
pub fn definitions() -> Vec<Value> {
    KINDS.iter().map(definition).collect()
}

fn definition(of: &ApisixKind) -> Value {
    let mut columns = Vec::new();
    if of.version == "v2" || of.kind == "Consumer" {
        let path = ".status.conditions[?(@.type==\"Accepted\")].status";
        columns.push(json!({ "name": "Accepted", "type": "string", "jsonPath": path }));
    }
    columns.extend(of.column.map(|(name, path)| json!({ "name": name, "type": "string", "jsonPath": path })));
    columns.push(json!({ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" }));
    let mut schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": text(),
            "kind": text(),
            "metadata": { "type": "object" },
            "spec": (of.spec)(),
        },
    });
    let mut subresources = json!({});
    if let Some(status) = of.status {
        schema["properties"]["status"] = status();
        subresources["status"] = json!({});
    }
    let version = json!({
        "name": of.version,
        "served": true,
        "storage": true,
        "subresources": subresources,
        "additionalPrinterColumns": columns,
        "schema": { "openAPIV3Schema": schema },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{GROUP}", of.plural),
            "annotations": { "helm.sh/resource-policy": "keep" },
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": of.kind,
                "listKind": format!("{}List", of.kind),
                "plural": of.plural,
                "singular": of.kind.to_ascii_lowercase(),
                "shortNames": if of.short.is_empty() { json!([]) } else { json!([of.short]) },
            },
            "versions": [version],
        },
    })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn one_of(values: &[&str]) -> Value {
    json!({ "type": "string", "enum": values })
}

fn number(minimum: i64, maximum: i64) -> Value {
    json!({ "type": "integer", "minimum": minimum, "maximum": maximum })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "maxItems": MOST_ITEMS, "items": items })
}

fn object(required: &[&str], properties: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// A map with any members.
fn free() -> Value {
    json!({ "type": "object", KEEP_UNKNOWN: true })
}

fn with_rule(mut schema: Value, rule: &str, message: &str) -> Value {
    schema["x-kubernetes-validations"] = json!([{ "rule": rule, "message": message }]);
    schema
}

fn number_or_name() -> Value {
    json!({ "x-kubernetes-int-or-string": true })
}

fn timeout() -> Value {
    object(&[], &[("connect", text()), ("send", text()), ("read", text())])
}

fn plugins() -> Value {
    let enable = json!({ "type": "boolean", "default": true });
    let plugin = [("name", text()), ("enable", enable), ("config", free()), ("secretRef", text())];
    list(object(&["name"], &plugin))
}

fn route() -> Value {
    object(&[], &[("ingressClassName", text()), ("http", list(http_rule())), ("stream", list(stream_rule()))])
}

fn http_rule() -> Value {
    let backend = object(
        &["serviceName", "servicePort"],
        &[
            ("serviceName", text()),
            ("servicePort", number_or_name()),
            ("resolveGranularity", one_of(&["endpoint", "endpoints", "service"])),
            ("weight", number(0, 1 << 31)),
            ("subset", text()),
        ],
    );
    let authentication = object(
        &["enable", "type"],
        &[
            ("enable", flag()),
            ("type", text()),
            ("keyAuth", object(&[], &[("header", text())])),
            ("jwtAuth", object(&[], &[("header", text()), ("query", text()), ("cookie", text())])),
            (
                "ldapAuth",
                object(&[], &[("base_dn", text()), ("ldap_uri", text()), ("uid", text()), ("use_tls", flag())]),
            ),
        ],
    );
    object(
        &["name"],
        &[
            ("name", text()),
            ("priority", json!({ "type": "integer" })),
            ("timeout", timeout()),
            ("match", matches()),
            ("backends", list(backend)),
            ("upstreams", list(object(&[], &[("name", text()), ("weight", number(0, 1 << 31))]))),
            ("websocket", flag()),
            ("plugin_config_name", text()),
            ("plugin_config_namespace", text()),
            ("plugins", plugins()),
            ("authentication", authentication),
        ],
    )
}

fn matches() -> Value {
    let operators = [
        "Equal",
        "NotEqual",
        "GreaterThan",
        "GreaterThanEqual",
        "LessThan",
        "LessThanEqual",
        "RegexMatch",
        "RegexNotMatch",
        "RegexMatchCaseInsensitive",
        "RegexNotMatchCaseInsensitive",
        "In",
        "NotIn",
    ];
    let scopes = ["Query", "Header", "Cookie", "Path", "Variable"];
    let subject = with_rule(
        object(&["scope"], &[("scope", one_of(&scopes)), ("name", text())]),
        "self.scope == 'Path' || (has(self.name) && self.name != '')",
        "name is missing: only the scope Path has none",
    );
    let expression = with_rule(
        object(
            &["subject", "op"],
            &[("subject", subject), ("op", one_of(&operators)), ("set", list(text())), ("value", text())],
        ),
        "self.op in ['In', 'NotIn'] ? has(self.set) : has(self.value)",
        "In and NotIn need set, the other operators need value",
    );
    let paths = json!({ "type": "array", "minItems": 1, "maxItems": MOST_ITEMS, "items": text() });
    object(
        &["paths"],
        &[
            ("paths", paths),
            ("methods", list(text())),
            ("hosts", list(text())),
            ("remoteAddrs", list(text())),
            ("exprs", list(expression)),
            ("filter_func", text()),
        ],
    )
}

fn stream_rule() -> Value {
    let backend = object(
        &["serviceName", "servicePort"],
        &[
            ("serviceName", text()),
            ("servicePort", number_or_name()),
            ("resolveGranularity", one_of(&["endpoint", "service"])),
            ("subset", text()),
        ],
    );
    let matches = object(&["ingressPort"], &[("ingressPort", number(1, 65_535)), ("host", text())]);
    object(
        &["name", "protocol", "match", "backend"],
        &[
            ("name", text()),
            ("protocol", one_of(&["TCP", "UDP"])),
            ("match", matches),
            ("backend", backend),
            ("plugins", plugins()),
        ],
    )
}

/// The settings that a Service as a whole and one of its ports can have.
fn upstream_settings() -> Vec<(&'static str, Value)> {
    let balancer = with_rule(
        object(
            &["type"],
            &[
                ("type", one_of(&["roundrobin", "chash", "ewma", "least_conn"])),
                ("hashOn", one_of(&["vars", "header", "cookie", "consumer", "vars_combinations"])),
                ("key", text()),
            ],
        ),
        "self.type != 'chash' || has(self.hashOn)",
        "chash needs hashOn",
    );
    let subset = object(
        &["name", "labels"],
        &[("name", text()), ("labels", json!({ "type": "object", "additionalProperties": text() }))],
    );
    let arguments = json!({ "type": "object", "additionalProperties": text() });
    let discovery = object(&["serviceName", "type"], &[("serviceName", text()), ("type", text()), ("args", arguments)]);
    vec![
        ("loadbalancer", balancer),
        ("scheme", one_of(&["http", "https", "grpc", "grpcs"])),
        ("retries", number(0, 65_535)),
        ("timeout", timeout()),
        ("healthCheck", health_check()),
        ("tlsSecret", secret()),
        ("subsets", list(subset)),
        ("passHost", one_of(&["pass", "node", "rewrite"])),
        ("upstreamHost", text()),
        ("discovery", discovery),
    ]
}

fn health_check() -> Value {
    let codes = || list(number(100, 599));
    let count = || number(0, 254);
    let healthy = || vec![("httpCodes", codes()), ("successes", count())];
    let unhealthy = || {
        vec![
            ("httpCodes", codes()),
            ("httpFailures", count()),
            ("tcpFailures", count()),
            ("timeout", json!({ "type": "integer", "minimum": 0 })),
        ]
    };
    let with_interval = |mut members: Vec<(&'static str, Value)>| {
        members.push(("interval", text()));
        object(&[], &members)
    };
    let active = object(
        &[],
        &[
            ("type", one_of(&["http", "https", "tcp"])),
            ("timeout", json!({ "type": "integer", "format": "int64" })),
            ("concurrency", json!({ "type": "integer", "minimum": 0 })),
            ("host", text()),
            ("port", number(0, 65_535)),
            ("httpPath", text()),
            ("strictTLS", flag()),
            ("requestHeaders", list(text())),
            ("healthy", with_interval(healthy())),
            ("unhealthy", with_interval(unhealthy())),
        ],
    );
    let passive = object(
        &[],
        &[("type", text()), ("healthy", object(&[], &healthy())), ("unhealthy", object(&[], &unhealthy()))],
    );
    object(&[], &[("active", active), ("passive", passive)])
}

fn secret() -> Value {
    let name = || json!({ "type": "string", "minLength": 1, "maxLength": 253 });
    object(&["name", "namespace"], &[("name", name()), ("namespace", name())])
}

fn upstream() -> Value {
    let node = object(
        &[],
        &[
            ("name", text()),
            ("type", one_of(&["Domain", "Service"])),
            ("weight", number(0, 1 << 31)),
            ("port", number(1, 65_535)),
        ],
    );
    let mut of_port = upstream_settings();
    of_port.push(("port", number(1, 65_535)));
    let mut members = upstream_settings();
    members.extend([
        ("ingressClassName", text()),
        ("externalNodes", list(node)),
        ("portLevelSettings", list(object(&["port"], &of_port))),
    ]);
    object(&[], &members)
}

fn tls() -> Value {
    let host = json!({ "type": "string", "pattern": "^\\*?[0-9a-zA-Z-.]+$" });
    let hosts = json!({ "type": "array", "minItems": 1, "maxItems": MOST_ITEMS, "items": host });
    let client = object(
        &[],
        &[("caSecret", secret()), ("depth", json!({ "type": "integer" })), ("skip_mtls_uri_regex", list(text()))],
    );
    object(
        &["hosts", "secret"],
        &[("ingressClassName", text()), ("hosts", hosts), ("secret", secret()), ("client", client)],
    )
}

fn consumer() -> Value {
    let credential = |value: Value| object(&[], &[("value", value), ("secretRef", object(&[], &[("name", text())]))]);
    let whole = || json!({ "type": "integer", "format": "int64" });
    let jwt = [
        ("key", text()),
        ("secret", text()),
        ("public_key", text()),
        ("private_key", text()),
        ("algorithm", text()),
        ("exp", whole()),
        ("base64_secret", flag()),
        ("lifetime_grace_period", whole()),
    ];
    let hmac = [
        ("key_id", text()),
        ("secret_key", text()),
        ("access_key", text()),
        ("algorithm", text()),
        ("clock_skew", whole()),
        ("signed_headers", list(text())),
        ("keep_headers", flag()),
        ("encode_uri_params", flag()),
        ("validate_request_body", flag()),
        ("max_req_body", whole()),
    ];
    let basic = object(&["username", "password"], &[("username", text()), ("password", text())]);
    let parameter = object(
        &[],
        &[
            ("basicAuth", credential(basic)),
            ("keyAuth", credential(object(&["key"], &[("key", text())]))),
            ("jwtAuth", credential(object(&["key"], &jwt))),
            ("hmacAuth", credential(object(&["secret_key"], &hmac))),
            ("ldapAuth", credential(object(&["user_dn"], &[("user_dn", text())]))),
            ("wolfRBAC", credential(free())),
        ],
    );
    object(&["authParameter"], &[("ingressClassName", text()), ("authParameter", parameter)])
}

fn plugins_only() -> Value {
    object(&[], &[("ingressClassName", text()), ("plugins", plugins())])
}

/// Plugins with their options, and no more.
fn plain_plugins() -> Value {
    let secret = object(&["name"], &[("name", text())]);
    list(object(&["name"], &[("name", text()), ("config", free()), ("secretRef", secret)]))
}

fn gateway_proxy() -> Value {
    let plugin = [("name", text()), ("enabled", flag()), ("config", free())];
    object(
        &[],
        &[
            ("publishService", text()),
            ("statusAddress", list(text())),
            ("provider", free()),
            ("plugins", list(object(&[], &plugin))),
            ("pluginMetadata", free()),
        ],
    )
}

fn plugin_config() -> Value {
    object(&["plugins"], &[("plugins", plain_plugins())])
}

/// `targetRefs` of a policy.
fn targets() -> Value {
    let name = || json!({ "type": "string", "minLength": 1, "maxLength": 253 });
    let target = object(
        &["group", "kind", "name"],
        &[("group", text()), ("kind", text()), ("name", name()), ("sectionName", name())],
    );
    json!({ "type": "array", "minItems": 1, "maxItems": 16, "items": target })
}

fn traffic_policy() -> Value {
    let mut members = upstream_settings();
    members.retain(|(name, _)| !["tlsSecret", "subsets", "discovery"].contains(name));
    for (name, schema) in &mut members {
        if *name == "loadbalancer" {
            // `hashOn` is `vars` if it is not stated.
            schema.as_object_mut().into_iter().for_each(|schema| _ = schema.remove("x-kubernetes-validations"));
        }
    }
    members.push(("targetRefs", targets()));
    object(&["targetRefs"], &members)
}

fn route_policy() -> Value {
    let condition = json!({ KEEP_UNKNOWN: true });
    object(
        &["targetRefs"],
        &[
            ("targetRefs", targets()),
            ("priority", json!({ "type": "integer", "format": "int64" })),
            ("vars", list(condition)),
        ],
    )
}

fn stream_policy() -> Value {
    let rule = "self.all(r, r.group == 'gateway.networking.k8s.io' && r.kind in ['TCPRoute', 'TLSRoute', 'UDPRoute'])";
    let targets =
        with_rule(targets(), rule, "a target is a TCPRoute, a TLSRoute or a UDPRoute of gateway.networking.k8s.io");
    object(&["targetRefs"], &[("targetRefs", targets), ("plugins", plain_plugins())])
}

fn gateway_consumer() -> Value {
    let reference = object(&["name"], &[("name", text()), ("kind", text()), ("group", text()), ("namespace", text())]);
    let secret = object(&["name"], &[("name", text()), ("namespace", text())]);
    let types = ["basic-auth", "hmac-auth", "jwt-auth", "key-auth"];
    let credential =
        object(&["type"], &[("type", one_of(&types)), ("name", text()), ("config", free()), ("secretRef", secret)]);
    object(&[], &[("gatewayRef", reference), ("credentials", list(credential)), ("plugins", plain_plugins())])
}

fn condition_list() -> Value {
    let condition = object(
        &[],
        &[
            ("type", text()),
            ("status", text()),
            ("reason", text()),
            ("message", text()),
            ("observedGeneration", json!({ "type": "integer", "format": "int64" })),
            ("lastTransitionTime", json!({ "type": "string", "format": "date-time" })),
        ],
    );
    json!({ "type": "array", "items": condition })
}

/// The status of an object.
fn conditions() -> Value {
    object(&[], &[("conditions", condition_list())])
}

/// The status of a policy.
fn ancestors() -> Value {
    let reference = object(
        &[],
        &[("group", text()), ("kind", text()), ("namespace", text()), ("name", text()), ("sectionName", text())],
    );
    let entry =
        object(&[], &[("ancestorRef", reference), ("controllerName", text()), ("conditions", condition_list())]);
    object(&[], &[("ancestors", json!({ "type": "array", "maxItems": 16, "items": entry }))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_schema::tests::faults;

    #[test]
    fn the_schemas_are_structural_and_of_the_kinds_that_are_read() {
        let kinds: Vec<weir_kube::objects::Kind> = weir_kube::objects::Kind::ALL.to_vec();
        let read: Vec<(&str, &str)> =
            kinds.iter().filter(|kind| kind.is_of_apisix()).map(|kind| (kind.name(), kind.plural())).collect();
        let defined: Vec<(&str, &str)> = KINDS.iter().map(|kind| (kind.kind, kind.plural)).collect();
        assert_eq!(defined, read);
        for definition in definitions() {
            let mut found = Vec::new();
            let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            faults(schema, "", &mut found);
            assert_eq!(found, [""; 0], "{}", definition["metadata"]["name"]);
        }
    }
}
