//! What a node is called, and where its resources are.

use std::net::IpAddr;

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;

use crate::document::is_local_name;

/// Where the resources of a node are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminMode {
    /// In the configuration file and those it includes, so that they cannot be changed here.
    File,
    /// In a file of the node.
    Embedded,
    /// In a cluster of etcd.
    Etcd,
    /// In a Kubernetes cluster, as objects that are changed there.
    Kubernetes,
    /// In memory (API-driven standalone mode).
    Memory,
}

impl AdminMode {
    /// Whether the resources can be changed by requests.
    pub(super) fn is_writable(self) -> bool {
        !matches!(self, AdminMode::File | AdminMode::Kubernetes)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            AdminMode::File => "file",
            AdminMode::Embedded => "embedded",
            AdminMode::Etcd => "etcd",
            AdminMode::Kubernetes => "kubernetes",
            AdminMode::Memory => "memory",
        }
    }
}

/// What a session tells about the node.
#[derive(Clone, Debug, Default)]
pub struct NodeIdentity {
    /// The name of the machine.
    pub name: String,
    /// When the process started, in milliseconds since 1970.
    pub started_ms: u64,
    /// The file with the generated key; `None` if keys are configured.
    pub key_file: Option<String>,
}

/// The host that a request is for.
pub(super) fn host_of(head: &Parts) -> &str {
    let field = head.headers.get(HOST).and_then(|value| value.to_str().ok());
    head.uri.authority().map(Authority::as_str).or(field).unwrap_or_default()
}

/// Whether a `Host` is one of this node. On loopback: an address, a name without dots, which public DNS does not have, or a name
/// in `hosts`. An address that other machines can reach accepts any name, unless `hosts` is configured.
pub(super) fn is_own_name(host: &str, local: IpAddr, hosts: &[Box<str>]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().to_ascii_lowercase();
    is_local_name(&name) || hosts.iter().any(|own| **own == *name) || !local.is_loopback() && hosts.is_empty()
}
