//! `discovery`: the registries of services that upstreams with `service_name` take their endpoints from.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use weir_keys::keys;
use weir_keys::keys::kinds::{Kind, RefusedKey, refused};
use weir_keys::keys::schema::Definitions;
use weir_keys::keys::{KeyTable, MapKeys};
use weir_keys::text::read::{MapReader, NodeReader, listed, shortened};

use crate::registry::ServiceRegistry;
use crate::{KEYS, REGISTRIES};

/// The registries of a node, by their names.
#[derive(Clone, Debug, Default)]
pub struct DiscoverySettings(Vec<(&'static str, Arc<dyn ServiceRegistry>)>);

impl PartialEq for DiscoverySettings {
    fn eq(&self, other: &DiscoverySettings) -> bool {
        let both = || self.0.iter().zip(&other.0);
        self.0.len() == other.0.len()
            && both().all(|((one, registry), (other, of_other))| one == other && registry.is_equal(&**of_other))
    }
}

impl Eq for DiscoverySettings {}

/// Registries of APISIX that Weir knows and does not support, each with what to use in its place.
const UNSUPPORTED: [(&str, &str, &str); 5] = [
    (
        "consul_kv",
        "discovery by `consul_kv` is not supported",
        "use `discovery_type: dns` with Consul's DNS interface as `dns_resolver`, or `nodes_file`",
    ),
    (
        "nacos",
        "discovery by `nacos` is not supported",
        "use `nodes_file`, or `discovery_type: dns` with Nacos' DNS server as `dns_resolver`",
    ),
    (
        "kubernetes",
        "discovery by `kubernetes` is not supported",
        "use `discovery_type: dns` with the name of a headless service",
    ),
    ("tars", "discovery by `tars` is not supported", "use `nodes_file`"),
    ("zookeeper", "discovery by `zookeeper` is not supported", "use `nodes_file`"),
];

const fn unsupported(number: usize) -> RefusedKey {
    let (_, problem, advice) = UNSUPPORTED[number];
    refused(problem, advice)
}

keys! {
    /// The keys of APISIX that are refused.
    static REFUSED: RefusedKeys = "discovery_refused";

    refused {
        dns: refused("is set elsewhere in Weir", "write the servers as `dns_resolver: [10.0.0.2]`");
        consul_kv: unsupported(0);
        nacos: unsupported(1);
        kubernetes: unsupported(2);
        tars: unsupported(3);
        zookeeper: unsupported(4);
    }
}

/// The keys of `discovery`.
pub struct DiscoveryKeys;

pub static DISCOVERY: DiscoveryKeys = DiscoveryKeys;

impl MapKeys for DiscoveryKeys {
    fn table(&self) -> &'static KeyTable {
        const LINES: &[&str] = &["The registries of services of a node."];
        static TABLE: KeyTable = KeyTable::new("discovery", LINES, KEYS, Some(|| REFUSED.table()), &[]);
        &TABLE
    }
}

/// Reads `discovery`.
pub fn read(fields: &MapReader) -> Option<DiscoverySettings> {
    let configured = REGISTRIES.iter().filter_map(|kind| Some((kind.name(), fields.read(&kind.key)?)));
    Some(DiscoverySettings(configured.collect()))
}

impl DiscoverySettings {
    pub fn find(&self, registry: &str) -> Option<&Arc<dyn ServiceRegistry>> {
        self.0.iter().find(|(name, _)| *name == registry).map(|(_, found)| found)
    }

    /// Why this node cannot ask a registry for a service: the problem and its correction.
    pub fn missing_for(&self, registry: &str, service: &str) -> Option<(String, String)> {
        if let Some(found) = self.find(registry) {
            return found.refusal(service).map(|(problem, advice)| (problem.to_owned(), advice.to_owned()));
        }
        let kind = REGISTRIES.iter().find(|kind| kind.name() == registry)?;
        let problem = format!("needs the address of a {} server, and this node has none", kind.title);
        Some((problem, format!("add `discovery: {{ {registry}: {} }}` to the node's file", kind.example)))
    }
}

/// The kinds of service discovery, as values of `discovery_type`.
pub fn discovery_types() -> Vec<&'static str> {
    std::iter::once("dns").chain(REGISTRIES.iter().map(|kind| kind.name())).collect()
}

/// The kind of the values of `discovery_type`.
pub struct DiscoveryType;

impl Kind for DiscoveryType {
    type Value = &'static str;

    fn read(&self, at: &NodeReader) -> Option<&'static str> {
        let name = at.text()?;
        let types = discovery_types();
        if let Some(known) = types.iter().find(|known| **known == name) {
            return Some(known);
        }
        match UNSUPPORTED.iter().find(|(known, ..)| *known == name) {
            Some((_, problem, advice)) => at.report_advising(*problem, *advice),
            None => {
                let problem = format!("`{}` is not a kind of service discovery", shortened(name));
                at.report_advising(problem, format!("use {}", listed(&types)));
            }
        }
        None
    }

    fn schema(&self, _: &mut Definitions) -> Map<String, Value> {
        Map::from_iter([("type".to_owned(), json!("string")), ("enum".to_owned(), json!(discovery_types()))])
    }

    fn form(&self) -> String {
        let types: Vec<String> = discovery_types().iter().map(|name| format!("`{name}`")).collect();
        one_of(&types)
    }
}

/// `a`, `b` or `c`.
pub fn one_of(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
