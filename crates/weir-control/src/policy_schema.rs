//! The definition of WeirPolicy for Kubernetes, made of the schemas of the plugins.
//!
//! An API server takes structural schemas alone: each value has one type, and there are no references. What cannot be said so is left
//! to the translation, which checks all options and writes faults to the status. Unknown members are kept for the same reason: a
//! misspelled option that the API server drops would be a plugin without it.

use serde_json::{Map, Value, json};
use weir_plugin::{Entry, Registry};

use crate::document::is_secret_at;
use crate::document::kinds;
use crate::keys::schema;

const KEEP_UNKNOWN: &str = "x-kubernetes-preserve-unknown-fields";
/// The deepest options that are described.
const MOST_DEPTH: usize = 6;
/// The most targets of a policy: as many entries as the status has room for.
const MOST_TARGETS: u32 = 16;

/// What users of a namespace may set of the upstreams of their Services: how endpoints are chosen, watched, tried again and waited for. Which
/// endpoints there are, which protocol they speak and how they are trusted, is said by other objects, with which this could not go together.
/// What takes memory or connections of the node is that of its operator.
pub(crate) const UPSTREAM_SETTINGS: [&str; 15] = [
    "type",
    "hash_on",
    "key",
    "checks",
    "retries",
    "retry_timeout",
    "retry_budget",
    "retry_on",
    "retry_same_endpoint",
    "all_down",
    "timeout",
    "pass_host",
    "upstream_host",
    "concurrency",
    "slow_start",
];

/// The CustomResourceDefinition.
pub fn definition(registry: &Registry) -> Value {
    let version = json!({
        "name": "v1alpha1",
        "served": true,
        "storage": true,
        "subresources": { "status": {} },
        "additionalPrinterColumns": [
            { "name": "Accepted", "type": "string",
              "jsonPath": ".status.ancestors[*].conditions[?(@.type==\"Accepted\")].status" },
            { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
        ],
        "schema": { "openAPIV3Schema": {
            "type": "object",
            "description": "Plugins for what its targets serve, and settings of the upstreams of Services.",
            "required": ["spec"],
            "properties": {
                "apiVersion": { "type": "string" },
                "kind": { "type": "string" },
                "metadata": { "type": "object" },
                "spec": spec(registry),
                "status": status(),
            },
        } },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "weirpolicies.weir.dev",
            "annotations": { "helm.sh/resource-policy": "keep" },
            "labels": { "gateway.networking.k8s.io/policy": "Inherited" },
        },
        "spec": {
            "group": "weir.dev",
            "scope": "Namespaced",
            "names": {
                "kind": "WeirPolicy",
                "listKind": "WeirPolicyList",
                "plural": "weirpolicies",
                "singular": "weirpolicy",
                "categories": ["gateway-api"],
            },
            "versions": [version],
        },
    })
}

fn spec(registry: &Registry) -> Value {
    let possible = registry.entries().iter().filter(|entry| entry.of_node.is_none());
    let plugins: Map<String, Value> = possible.map(|entry| (entry.name.to_owned(), plugin(entry))).collect();
    json!({
        "type": "object",
        "required": ["targetRefs"],
        "x-kubernetes-validations": [{
            "rule": "has(self.plugins) || has(self.upstream)",
            "message": "needs plugins, or upstream for Services",
        }],
        "properties": {
            "targetRefs": {
                "description": "What the plugins and the settings are for, in the namespace of the policy.",
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_TARGETS,
                "items": {
                    "type": "object",
                    "required": ["group", "kind", "name"],
                    "x-kubernetes-validations": [
                        {
                            "rule": "(self.kind == 'Ingress') == (self.group == 'networking.k8s.io')",
                            "message": "Ingress is of the group networking.k8s.io, Service of none, and the other kinds are of gateway.networking.k8s.io",
                        },
                        {
                            "rule": "(self.kind == 'Service') == (self.group == '')",
                            "message": "Ingress is of the group networking.k8s.io, Service of none, and the other kinds are of gateway.networking.k8s.io",
                        },
                        {
                            "rule": "self.kind != 'Ingress' || !has(self.sectionName)",
                            "message": "an Ingress has no parts: leave sectionName out",
                        },
                    ],
                    "properties": {
                        "group": { "type": "string", "enum": ["gateway.networking.k8s.io", "networking.k8s.io", ""] },
                        "kind": { "type": "string", "enum": ["Gateway", "HTTPRoute", "GRPCRoute", "Ingress", "Service"] },
                        "name": { "type": "string", "minLength": 1, "maxLength": 253 },
                        "sectionName": {
                            "description": "A listener of a Gateway, a rule of a route, or a port of a Service.",
                            "type": "string", "minLength": 1, "maxLength": 253,
                        },
                    },
                },
            },
            "plugins": {
                "description": "The options of each plugin.",
                "type": "object",
                "minProperties": 1,
                KEEP_UNKNOWN: true,
                "properties": plugins,
            },
            "upstream": upstream(),
        },
    })
}

/// The keys of upstreams that a policy may have.
fn upstream() -> Value {
    let table = kinds::find("upstreams").and_then(|kind| kind.table()).expect("upstreams are a kind with keys");
    let schema = schema::of(table);
    let conversion = SchemaConversion { definitions: &schema["$defs"] };
    let described = |key: &&str| {
        let mut converted = conversion.structural(&schema["properties"][key], &mut vec!["upstream".to_owned()], 1);
        converted["description"] = first_sentence(&schema["properties"][key]).into();
        ((*key).to_owned(), converted)
    };
    let keys: Map<String, Value> = UPSTREAM_SETTINGS.iter().map(described).collect();
    json!({
        "description": "For Services: how their endpoints are chosen, checked, tried again and waited for, by keys of upstreams.",
        "type": "object",
        "minProperties": 1,
        KEEP_UNKNOWN: true,
        "properties": keys,
    })
}

fn status() -> Value {
    let text = || json!({ "type": "string" });
    let reference = json!({
        "type": "object",
        "properties": { "group": text(), "kind": text(), "namespace": text(), "name": text(), "sectionName": text() },
    });
    let condition = json!({
        "type": "object",
        "properties": {
            "type": text(), "status": text(), "reason": text(), "message": text(),
            "observedGeneration": { "type": "integer", "format": "int64" },
            "lastTransitionTime": { "type": "string", "format": "date-time" },
        },
    });
    json!({
        "type": "object",
        "properties": { "ancestors": {
            "type": "array",
            "maxItems": MOST_TARGETS,
            "items": {
                "type": "object",
                "properties": {
                    "ancestorRef": reference,
                    "controllerName": text(),
                    "conditions": { "type": "array", "items": condition },
                },
            },
        } },
    })
}

/// The options of a plugin. None is required: with `_meta: { disable: true }` there are none.
fn plugin(entry: &Entry) -> Value {
    let schema = (entry.schema)();
    let conversion = SchemaConversion { definitions: &schema["$defs"] };
    let mut names = vec!["plugins".to_owned(), entry.name.to_owned()];
    let mut converted = conversion.structural(&schema, &mut names, 0);
    if let Value::Object(members) = &mut converted {
        members.remove("required");
        members.insert("description".to_owned(), first_sentence(&schema).into());
    }
    converted
}

struct SchemaConversion<'s> {
    definitions: &'s Value,
}

impl SchemaConversion<'_> {
    /// A structural schema that accepts what a schema does, and perhaps more. `names` lead to the value.
    fn structural(&self, schema: &Value, names: &mut Vec<String>, depth: usize) -> Value {
        let schema = self.resolved(schema);
        let kinds: Vec<&str> = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect(),
            kind => kind.as_str().into_iter().collect(),
        };
        let values = enumerated(schema);
        match kinds[..] {
            _ if depth > MOST_DEPTH => anything(),
            _ if !values.is_empty() => json!({ "type": "string", "enum": values }),
            ["object"] => self.object(schema, names, depth),
            ["array"] => {
                let items = self.structural(&schema["items"], names, depth + 1);
                bounded(json!({ "type": "array", "items": items }), schema, &["minItems", "maxItems"])
            }
            ["string"] => {
                let path: Vec<&str> = names.iter().map(String::as_str).collect();
                // A reference to a Secret may stand in place of the value.
                let is_secret = is_secret_at("routes", &path);
                let bounds: &[&str] = if is_secret { &[] } else { &["minLength", "maxLength"] };
                bounded(json!({ "type": "string" }), schema, bounds)
            }
            [kind @ ("integer" | "number")] => bounded(json!({ "type": kind }), schema, &["minimum", "maximum"]),
            ["boolean"] => json!({ "type": "boolean" }),
            ["integer", "string"] | ["string", "integer"] => json!({ "x-kubernetes-int-or-string": true }),
            _ => anything(),
        }
    }

    fn object(&self, schema: &Value, names: &mut Vec<String>, depth: usize) -> Value {
        let mut properties = Map::new();
        for (name, option) in schema["properties"].as_object().into_iter().flatten() {
            names.push(name.clone());
            let mut converted = self.structural(option, names, depth + 1);
            names.pop();
            if depth == 0 {
                converted["description"] = first_sentence(option).into();
            }
            properties.insert(name.clone(), converted);
        }
        let has_alternatives = ["anyOf", "oneOf", "allOf"].iter().any(|form| schema.get(form).is_some());
        let mut converted = json!({ "type": "object", KEEP_UNKNOWN: true });
        if !properties.is_empty() {
            converted["properties"] = Value::Object(properties);
        } else if schema["additionalProperties"].is_object() && !has_alternatives {
            let values = self.structural(&schema["additionalProperties"], names, depth + 1);
            return json!({ "type": "object", "additionalProperties": values });
        }
        if let Some(required) = schema.get("required") {
            converted["required"] = required.clone();
        }
        converted
    }

    /// What a reference, or the only alternative beside `null`, says.
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            return self.resolved(&self.definitions[name]);
        }
        let alternatives = schema["anyOf"].as_array().map(Vec::as_slice).unwrap_or_default();
        let beside_null: Vec<&Value> = alternatives.iter().filter(|one| one["type"] != "null").collect();
        match beside_null[..] {
            [only] if schema.get("type").is_none() => self.resolved(only),
            _ => schema,
        }
    }
}

/// Any value.
fn anything() -> Value {
    json!({ KEEP_UNKNOWN: true })
}

/// The texts that are allowed, if they are a closed set.
fn enumerated(schema: &Value) -> Vec<&str> {
    let listed = schema["enum"].as_array().map(|values| values.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let constants = || {
        let of = |one: &'_ Value| one.get("const").map(|_| ());
        let alternatives = schema["oneOf"].as_array()?;
        alternatives.iter().all(|one| of(one).is_some()).then_some(())?;
        alternatives.iter().map(|one| one["const"].as_str()).collect::<Option<Vec<_>>>()
    };
    listed.flatten().or_else(constants).unwrap_or_default()
}

/// With those of the bounds that there are.
fn bounded(mut converted: Value, schema: &Value, bounds: &[&str]) -> Value {
    for bound in bounds.iter().filter(|bound| schema[**bound].is_number()) {
        converted[*bound] = schema[*bound].clone();
    }
    converted
}

fn first_sentence(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default().split("\n\n").next().unwrap_or_default();
    let text = text.replace('\n', " ");
    text.split_inclusive(". ").next().unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use weir_plugins::REGISTRY;

    use super::*;

    /// `kubectl apply` keeps the whole object in an annotation, and annotations have 262,144 bytes.
    const MOST_BYTES: usize = 240_000;

    /// What keeps an API server from taking a schema: <https://kubernetes.io/docs> calls it structural otherwise.
    pub(crate) fn faults(schema: &Value, path: &str, found: &mut Vec<String>) {
        let Value::Object(members) = schema else { return found.push(format!("{path}: is no map")) };
        const KNOWN: [&str; 20] = [
            "type",
            "default",
            "pattern",
            "description",
            "properties",
            "additionalProperties",
            "items",
            "required",
            "enum",
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "format",
            KEEP_UNKNOWN,
            "x-kubernetes-int-or-string",
            "x-kubernetes-validations",
        ];
        found.extend(members.keys().filter(|key| !KNOWN.contains(&&***key)).map(|key| format!("{path}: {key}")));
        let is_free = members.contains_key(KEEP_UNKNOWN) || members.contains_key("x-kubernetes-int-or-string");
        if !schema["type"].is_string() && !is_free {
            found.push(format!("{path}: no type"));
        }
        if members.contains_key("properties") && members.contains_key("additionalProperties") {
            found.push(format!("{path}: both kinds of properties"));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            faults(property, &format!("{path}.{name}"), found);
        }
        for inner in ["items", "additionalProperties"].iter().filter_map(|key| members.get(*key)) {
            faults(inner, &format!("{path}[]"), found);
        }
        if schema["type"] == "array" && !members.contains_key("items") {
            found.push(format!("{path}: no items"));
        }
    }

    #[test]
    fn the_schema_is_structural_and_small() {
        let definition = definition(&REGISTRY);
        let mut found = Vec::new();
        faults(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut found);
        assert_eq!(found, [""; 0]);
        let length = definition.to_string().len();
        assert!(length < MOST_BYTES, "{length} bytes");
    }

    #[test]
    fn options_keep_their_types_and_bounds() {
        let definition = definition(&REGISTRY);
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let plugins = &spec["properties"]["plugins"]["properties"];
        assert_eq!(plugins["limit-count"]["properties"]["rejected_code"]["minimum"], 200);
        assert_eq!(plugins["limit-count"]["properties"]["policy"]["type"], "string");
        assert_eq!(plugins["limit-count"][KEEP_UNKNOWN], true);
        assert_eq!(plugins["proxy-cache"], Value::Null, "it is configured by the operator of the node");
        assert_eq!(plugins["csrf"]["properties"]["key"].get("maxLength"), None);
        let described = plugins.as_object().expect("a map").values().all(|plugin| plugin["description"] != "");
        assert!(described);
    }
}
