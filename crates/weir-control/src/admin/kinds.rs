//! The kinds of resources of the Admin API: their names, and the operations they allow.

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
pub(super) static CREDENTIAL: ResourceKind = kind("consumers", "credential", IdRule::Required, false);

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

/// The refusal of stream routes, in the words of an APISIX without stream mode.
pub(super) const NO_STREAM_ROUTES: &str = "stream mode is disabled, can not add stream routes";

/// The refusal of protos. Those that a shared etcd already has can be read and deleted.
pub(super) const NO_PROTOS: &str =
    "this version does not support protos (`grpc-transcode`), so they would have no effect";

pub(super) fn find(list: &str) -> Option<&'static ResourceKind> {
    KINDS.iter().find(|kind| kind.list == list)
}
