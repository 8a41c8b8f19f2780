//! `discovery`: the registries of services that upstreams with `service_name` take their endpoints from.

mod consul;
mod eureka;

use serde_json::{Value, json};

use crate::document::names::NameQuery;
use crate::keys::keys;
use crate::keys::kinds::{RefusedKey, SubMap, refused, section};
use crate::keys::schema::Definitions;
use crate::text::read::{MapReader, NodeReader, listed, shortened};

pub use consul::ConsulSettings;
pub use eureka::{EurekaServer, EurekaSettings};

/// The most milliseconds of a time-out.
const MOST_MS: u32 = 600_000;
/// The longest time between two requests for the services, in seconds.
const MOST_INTERVAL_S: u32 = 86_400;
const MOST_WEIGHT: u32 = 100_000;

/// The registries of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoverySettings {
    pub eureka: Option<EurekaSettings>,
    pub consul: Option<ConsulSettings>,
}

/// The kinds of service discovery, as values of `discovery_type`.
const KINDS: [&str; 3] = ["dns", "eureka", "consul"];

/// Registries of APISIX that are known and not built, each with what to use in its place.
const NOT_BUILT: [(&str, &str, &str); 5] = [
    (
        "consul_kv",
        "discovery by `consul_kv` is not built",
        "use `discovery_type: dns` with Consul's DNS interface as `dns_resolver`, or `nodes_file`",
    ),
    (
        "nacos",
        "discovery by `nacos` is not built",
        "use `nodes_file`, or `discovery_type: dns` with Nacos' DNS server as `dns_resolver`",
    ),
    (
        "kubernetes",
        "discovery by `kubernetes` is not built",
        "use `discovery_type: dns` with the name of a headless service",
    ),
    ("tars", "discovery by `tars` is not built", "use `nodes_file`"),
    ("zookeeper", "discovery by `zookeeper` is not built", "use `nodes_file`"),
];

const fn not_built(number: usize) -> RefusedKey {
    let (_, problem, advice) = NOT_BUILT[number];
    refused(problem, advice)
}

keys! {
    /// The registries of services of a node.
    pub(super) static DISCOVERY: DiscoveryKeys = "discovery";

    /// The servers of a Eureka registry.
    eureka: SubMap<EurekaSettings> = section(&eureka::EUREKA, eureka::read), absent("none"),
        guide("configuration.md#service-discovery-by-eureka");
    /// The agents of a Consul cluster.
    consul: SubMap<ConsulSettings> = section(&consul::CONSUL, consul::read), absent("none"),
        guide("configuration.md#service-discovery-by-consul");

    refused {
        dns: refused("is set elsewhere in Weir", "write the servers as `dns_resolver: [10.0.0.2]`");
        consul_kv: not_built(0);
        nacos: not_built(1);
        kubernetes: not_built(2);
        tars: not_built(3);
        zookeeper: not_built(4);
    }
}

pub(super) fn kinds_schema(_: &mut Definitions) -> Value {
    json!({ "type": "string", "enum": KINDS })
}

/// Reads a `discovery_type`.
pub(super) fn kind(at: &NodeReader) -> Option<Box<str>> {
    let name = at.text()?;
    if KINDS.contains(&name) {
        return Some(name.into());
    }
    match NOT_BUILT.iter().find(|(known, ..)| *known == name) {
        Some((_, problem, advice)) => at.report_advising(*problem, *advice),
        None => {
            let problem = format!("`{}` is not a kind of service discovery", shortened(name));
            at.report_advising(problem, format!("use {}", listed(&KINDS)));
        }
    }
    None
}

pub(super) fn read(fields: &MapReader) -> Option<DiscoverySettings> {
    Some(DiscoverySettings { eureka: fields.read(&DISCOVERY.eureka), consul: fields.read(&DISCOVERY.consul) })
}

/// The name of a service in a registry; `None` if the kind of discovery is not a registry.
pub(super) fn service(kind: &str, at: &NodeReader) -> Option<NameQuery> {
    match kind {
        "eureka" => Some(NameQuery::Eureka(at.text_of(1..=256)?.to_uppercase().into())),
        "consul" => consul::service_name(at).map(NameQuery::Consul),
        _ => None,
    }
}

impl DiscoverySettings {
    /// What a node lacks that an upstream of this kind needs: the problem and its correction.
    pub fn missing_for(&self, query: &NameQuery) -> Option<(&'static str, &'static str)> {
        match query {
            NameQuery::Eureka(_) if self.eureka.is_none() => Some((
                "needs the address of a Eureka server, and this node has none",
                "add `discovery: { eureka: { host: [\"http://127.0.0.1:8761\"] } }` to the node's file",
            )),
            NameQuery::Consul(_) if self.consul.is_none() => Some((
                "needs the address of a Consul server, and this node has none",
                "add `discovery: { consul: { servers: [\"http://127.0.0.1:8500\"] } }` to the node's file",
            )),
            NameQuery::Consul(name)
                if self.consul.as_ref().is_some_and(|consul| consul.skip_services.contains(name)) =>
            {
                Some(("is a service in `discovery.consul.skip_services`", "remove it from this list"))
            }
            _ => None,
        }
    }
}
