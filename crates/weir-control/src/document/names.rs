//! Names that stand for endpoints, and what they have been found to stand for.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// APISIX `dns_resolver` and `dns_resolver_valid`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsSettings {
    /// Who is asked; those of `/etc/resolv.conf` where there is none.
    pub servers: Vec<SocketAddr>,
    /// How long an answer is good, whatever it says itself.
    pub valid: Option<Duration>,
}

/// What is looked up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameQuery {
    /// The addresses of a host (A, AAAA).
    Host(Box<str>),
    /// The hosts and ports of a service (SRV).
    Service(Box<str>),
}

impl NameQuery {
    pub fn name(&self) -> &str {
        match self {
            NameQuery::Host(name) | NameQuery::Service(name) => name,
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedName {
    Addresses(Vec<IpAddr>),
    Targets(Vec<ServiceTarget>),
}

/// An address of a target of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceTarget {
    /// Its name, which is what it proves to be where it speaks TLS.
    pub host: Box<str>,
    pub address: IpAddr,
    pub port: u16,
    pub weight: u32,
    /// Higher is used first, as with nodes.
    pub priority: i64,
}

/// What names have been found to stand for. Looking up is I/O, so the store does it before the document is compiled.
pub type ResolvedNames = HashMap<NameQuery, ResolvedName>;
