//! The kinds of resources of the Admin API: their names, and the operations they allow.

use serde_json::Value;

/// How the id of a resource is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdRule {
    /// In the path or in the body; POST generates one.
    Any,
    /// In the path or in the body.
    Required,
    /// The name of the consumer: in the body, and in the path if there.
    Username,
    /// The name of a plugin.
    Plugin,
    /// The kind and id of a secret manager: `vault/1`.
    Manager,
}

/// A kind of resource, with the names of Apache APISIX.
#[derive(Debug)]
pub(super) struct ResourceKind {
    /// The name in paths and keys.
    pub(super) list: &'static str,
    /// The name in messages.
    pub(super) name: &'static str,
    pub(super) id: IdRule,
    pub(super) patch: bool,
    /// Whether it has `create_time` and `update_time`.
    pub(super) timed: bool,
}

const fn kind(list: &'static str, name: &'static str, id: IdRule, patch: bool) -> ResourceKind {
    ResourceKind { list, name, id, patch, timed: true }
}

/// Credentials are below consumers.
pub(super) const CREDENTIAL: ResourceKind = kind("consumers", "credential", IdRule::Required, false);

pub(super) const KINDS: &[ResourceKind] = &[
    kind("routes", "route", IdRule::Any, true),
    kind("services", "service", IdRule::Any, true),
    kind("upstreams", "upstream", IdRule::Any, true),
    kind("ssls", "ssl", IdRule::Any, true),
    kind("protos", "proto", IdRule::Any, false),
    kind("stream_routes", "stream route", IdRule::Any, false),
    kind("consumers", "consumer", IdRule::Username, false),
    kind("consumer_groups", "consumer group", IdRule::Required, true),
    kind("plugin_configs", "plugin config", IdRule::Required, true),
    kind("global_rules", "global rule", IdRule::Required, true),
    ResourceKind { timed: false, ..kind("plugin_metadata", "plugin_metadata", IdRule::Plugin, false) },
    kind("secrets", "secret", IdRule::Manager, true),
];

/// The most bytes of a proto, as in Apache APISIX.
const MOST_PROTO: usize = 1 << 20;

/// What is wrong with a proto, with APISIX's messages. Protos are kept for clients and are not part of a document, which would find
/// their faults; other resources have none here.
pub(super) fn fault_of_proto(kind: &ResourceKind, value: &Value) -> Option<String> {
    if kind.list != "protos" {
        return None;
    }
    let known = ["id", "name", "desc", "labels", "create_time", "update_time", "content"];
    let unknown = value.as_object()?.keys().find(|name| !known.contains(&name.as_str()));
    if let Some(unknown) = unknown {
        return Some(format!("invalid configuration: additional properties forbidden, found {unknown}"));
    }
    let told = |problem: &str| Some(format!("invalid configuration: property \"content\" {problem}"));
    match value.get("content") {
        None => told("is required"),
        Some(Value::String(text)) if (1..=MOST_PROTO).contains(&text.len()) => None,
        Some(Value::String(_)) => told("validation failed: must have 1 to 1048576 bytes"),
        Some(_) => told("validation failed: wrong type: expected string"),
    }
}

pub(super) fn find(list: &str) -> Option<&'static ResourceKind> {
    KINDS.iter().find(|kind| kind.list == list)
}
