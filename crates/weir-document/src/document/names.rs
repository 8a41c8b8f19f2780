//! Names of hosts and services that stand for endpoints, and the results of their lookups.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_client::ServiceTarget;
use weir_discovery::ServiceInstance;

/// A lookup in DNS, or in a registry of services.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameQuery {
    /// The addresses of a host (A, AAAA).
    Host(Box<str>),
    /// The hosts and ports of a service (SRV).
    Service(Box<str>),
    /// The instances of a service in a registry.
    Registered { registry: &'static str, service: Box<str> },
}

impl NameQuery {
    pub fn name(&self) -> &str {
        match self {
            NameQuery::Host(name) | NameQuery::Service(name) | NameQuery::Registered { service: name, .. } => name,
        }
    }
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedName {
    Addresses(Vec<IpAddr>),
    Targets(Vec<ServiceTarget>),
    Instances(Vec<ServiceInstance>),
}

/// The results of all lookups. Lookups are I/O, so the store performs them before the document is compiled.
pub type ResolvedNames = HashMap<NameQuery, ResolvedName>;
