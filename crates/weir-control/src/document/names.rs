//! Names that stand for endpoints, and what they have been found to stand for.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_client::ServiceTarget;

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

/// What names have been found to stand for. Looking up is I/O, so the store does it before the document is compiled.
pub type ResolvedNames = HashMap<NameQuery, ResolvedName>;
