//! The resources of the Admin API: what each is called, and what may be done to it.

/// Whether a resource has an id of its author's, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdRule {
    /// In the path or in the body; POST makes one.
    Any,
    /// In the path or in the body.
    Required,
    /// The name of the consumer: in the body, and in the path if there.
    Username,
    /// The name of a plugin.
    Plugin,
    /// The kind of a manager and an id: `vault/1`.
    Manager,
}

/// One kind of resource, as Apache APISIX names it.
#[derive(Debug)]
pub(super) struct ResourceKind {
    /// As it stands in paths and keys.
    pub(super) list: &'static str,
    /// As it stands in messages.
    pub(super) name: &'static str,
    pub(super) id: IdRule,
    pub(super) patch: bool,
    /// It has the times of its making and of its last change.
    pub(super) timed: bool,
}

const fn kind(list: &'static str, name: &'static str, id: IdRule, patch: bool) -> ResourceKind {
    ResourceKind { list, name, id, patch, timed: true }
}

/// Credentials stand below consumers.
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

pub(super) fn find(list: &str) -> Option<&'static ResourceKind> {
    KINDS.iter().find(|kind| kind.list == list)
}
