//! Names of hosts and services that stand for endpoints, and the results of their lookups.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_client::ServiceTarget;

/// A lookup in DNS, or in a registry of services.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameQuery {
    /// The addresses of a host (A, AAAA).
    Host(Box<str>),
    /// The hosts and ports of a service (SRV).
    Service(Box<str>),
    /// The instances of an application in Eureka; the name is in upper case, as Eureka keeps it.
    Eureka(Box<str>),
    /// The passing instances of a service in Consul.
    Consul(Box<str>),
}

impl NameQuery {
    pub fn name(&self) -> &str {
        match self {
            NameQuery::Host(name) | NameQuery::Service(name) | NameQuery::Eureka(name) | NameQuery::Consul(name) => {
                name
            }
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

/// An instance of a service, from a registry. At least one of its ports is present.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceInstance {
    pub address: IpAddr,
    pub port: Option<u16>,
    /// The port for TLS.
    pub secure_port: Option<u16>,
    /// The name that the certificate must contain; the address if the registry has no name.
    pub host: Box<str>,
    pub weight: u32,
}

/// The results of all lookups. Lookups are I/O, so the store performs them before the document is compiled.
pub type ResolvedNames = HashMap<NameQuery, ResolvedName>;
