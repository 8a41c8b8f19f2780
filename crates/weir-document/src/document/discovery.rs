//! `discovery`: the registries of services that upstreams with `service_name` take their endpoints from.

mod consul;
mod eureka;

use serde_json::{Value, json};

use crate::document::names::NameQuery;
use crate::keys::schema::Definitions;
use crate::text::read::{NodeReader, listed, shortened};

pub use consul::ConsulSettings;
pub use eureka::{EurekaServer, EurekaSettings};

/// The most milliseconds of a time-out.
const MOST_MS: u64 = 600_000;

/// The registries of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoverySettings {
    pub eureka: Option<EurekaSettings>,
    pub consul: Option<ConsulSettings>,
}

/// The kinds of service discovery, as values of `discovery_type`.
const KINDS: [&str; 3] = ["dns", "eureka", "consul"];

/// Registries of APISIX that are known and not built, each with what to use in its place.
const NOT_BUILT: &[(&str, &str)] = &[
    ("consul_kv", "use `discovery_type: dns` with Consul's DNS interface as `dns_resolver`, or `nodes_file`"),
    ("nacos", "use `nodes_file`, or `discovery_type: dns` with Nacos' DNS server as `dns_resolver`"),
    ("kubernetes", "use `discovery_type: dns` with the name of a headless service"),
    ("tars", "use `nodes_file`"),
    ("zookeeper", "use `nodes_file`"),
];

pub(super) fn kinds_schema(_: &mut Definitions) -> Value {
    json!({ "type": "string", "enum": KINDS })
}

/// Reads a `discovery_type`.
pub(super) fn kind(at: &NodeReader) -> Option<Box<str>> {
    let name = at.text()?;
    if !KINDS.contains(&name) {
        report_unknown(at, name, &KINDS);
        return None;
    }
    Some(name.into())
}

/// Reports a value of `discovery_type`, or a key of `discovery`, that is not `known`.
fn report_unknown(at: &NodeReader, kind: &str, known: &[&str]) {
    match NOT_BUILT.iter().find(|(name, _)| *name == kind) {
        Some((name, advice)) => at.report_advising(format!("discovery by `{name}` is not built"), *advice),
        None => {
            let problem = format!("`{}` is not a kind of service discovery", shortened(kind));
            at.report_advising(problem, format!("use {}", listed(known)));
        }
    }
}

pub(super) fn read(at: &NodeReader) -> Option<DiscoverySettings> {
    let names: Vec<&str> = NOT_BUILT.iter().map(|(name, _)| *name).collect();
    let fields = at.fields(&[&KINDS, &names[..]].concat())?;
    for name in names {
        if let Some(at) = fields.get(name) {
            report_unknown(&at, name, &[]);
        }
    }
    if let Some(at) = fields.get("dns") {
        at.report_advising("is set elsewhere in Weir", "write the servers as `dns_resolver: [10.0.0.2]`");
    }
    Some(DiscoverySettings {
        eureka: fields.get("eureka").and_then(|at| eureka::read(&at)),
        consul: fields.get("consul").and_then(|at| consul::read(&at)),
    })
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
