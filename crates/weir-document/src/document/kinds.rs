//! The kinds of resources: what is known of each stands in one table.

use std::fmt;

use super::certificate::SSL;
use super::consumer::CONSUMER;
use super::hub::HUB;
use super::listener::LISTENER;
use super::plugin_set::{GLOBAL_RULE, PLUGIN_SET};
use super::proto::PROTO;
use super::route::{ROUTE, SERVICE};
use super::secrets::SECRET_MANAGER;
use super::stream_route::STREAM_ROUTE;
use super::upstream::UPSTREAM;
use crate::keys::{KeyTable, MapKeys};

/// How the id of a resource is given in the Admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdRule {
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
pub struct ResourceKind {
    /// The key of its list in a file, and its name in paths.
    pub list: &'static str,
    /// One of them, in messages: `stream route`.
    pub name: &'static str,
    pub id: IdRule,
    /// Whether the Admin API knows PATCH for it.
    pub patch: bool,
    /// Whether it has `create_time` and `update_time`.
    pub timed: bool,
    /// Its list may be long: successive documents share what has not changed of it.
    pub is_long: bool,
    /// Whether a store holds it; otherwise only files do.
    pub is_stored: bool,
    /// Whether only admins may change it: it decides what the node is to other machines, or what a name means.
    pub only_admins: bool,
    /// Its keys. `None`: any, which are not known here.
    keys: Option<&'static dyn MapKeys>,
}

const fn kind(list: &'static str, name: &'static str, id: IdRule, keys: Option<&'static dyn MapKeys>) -> ResourceKind {
    ResourceKind {
        list,
        name,
        id,
        patch: false,
        timed: true,
        is_long: false,
        is_stored: true,
        only_admins: false,
        keys,
    }
}

impl fmt::Debug for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResourceKind").field(&self.name).finish()
    }
}

impl ResourceKind {
    const fn patch(self) -> ResourceKind {
        ResourceKind { patch: true, ..self }
    }

    const fn long(self) -> ResourceKind {
        ResourceKind { is_long: true, ..self }
    }

    const fn only_admins(self) -> ResourceKind {
        ResourceKind { only_admins: true, ..self }
    }

    /// The keys that one may have; `None` if that is not known here.
    pub fn table(&self) -> Option<&'static KeyTable> {
        self.keys.map(MapKeys::table)
    }

    /// The name of its schema: `stream_route`.
    pub fn schema_name(&self) -> String {
        self.name.replace(' ', "_")
    }

    /// Whether resources of this kind may have plugins.
    pub fn has_plugins(&self) -> bool {
        self.table().is_some_and(|table| table.find("plugins").is_some())
    }

    /// The keys whose value is the id of another resource, each with that resource's list.
    pub fn references(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let keys = self.table().into_iter().flat_map(KeyTable::keys);
        keys.filter_map(|key| Some((key.about().name, key.refers_to()?)))
    }
}

/// All kinds.
pub static KINDS: &[ResourceKind] = ALL;

const ALL: &[ResourceKind] = &[
    kind("routes", "route", IdRule::Any, Some(&ROUTE)).patch().long(),
    kind("services", "service", IdRule::Any, Some(&SERVICE)).patch().long(),
    kind("upstreams", "upstream", IdRule::Any, Some(&UPSTREAM)).patch().long(),
    kind("plugin_configs", "plugin config", IdRule::Required, Some(&PLUGIN_SET)).patch().long(),
    kind("global_rules", "global rule", IdRule::Required, Some(&GLOBAL_RULE)).patch(),
    kind("consumers", "consumer", IdRule::Username, Some(&CONSUMER)),
    kind("consumer_groups", "consumer group", IdRule::Required, Some(&PLUGIN_SET)).patch(),
    ResourceKind { timed: false, ..kind("plugin_metadata", "plugin_metadata", IdRule::Plugin, None) },
    kind("ssls", "ssl", IdRule::Any, Some(&SSL)).patch(),
    kind("secrets", "secret", IdRule::Manager, Some(&SECRET_MANAGER)).patch().only_admins(),
    kind("listeners", "listener", IdRule::Any, Some(&LISTENER)).patch().only_admins(),
    kind("protos", "proto", IdRule::Any, Some(&PROTO)),
    kind("stream_routes", "stream route", IdRule::Any, Some(&STREAM_ROUTE)),
    ResourceKind { is_stored: false, ..kind("hubs", "hub", IdRule::Any, Some(&HUB)) },
];

/// A further credential of a consumer, whose key is below that of the consumer.
pub static CREDENTIAL: ResourceKind = kind("consumers", "credential", IdRule::Required, Some(&CONSUMER));

/// The lists of resources that a store holds, one key for each resource.
pub const RESOURCE_LISTS: &[&str] = &{
    let mut lists = [""; STORED];
    let (mut index, mut at) = (0, 0);
    while index < ALL.len() {
        if ALL[index].is_stored {
            lists[at] = ALL[index].list;
            at += 1;
        }
        index += 1;
    }
    lists
};

const STORED: usize = {
    let (mut index, mut count) = (0, 0);
    while index < ALL.len() {
        count += ALL[index].is_stored as usize;
        index += 1;
    }
    count
};

/// The kind of the resources of a list.
pub fn find(list: &str) -> Option<&'static ResourceKind> {
    KINDS.iter().find(|kind| kind.list == list)
}
