//! TCPRoute, TLSRoute and UDPRoute.

use serde::Deserialize;

use super::meta::{ObjectMeta, ObjectReference};
use super::routes::{BackendRef, RouteStatus};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TcpRoute {
    pub metadata: ObjectMeta,
    pub spec: KubeStreamSpec,
    pub status: RouteStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TlsRoute {
    pub metadata: ObjectMeta,
    pub spec: KubeStreamSpec,
    pub status: RouteStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UdpRoute {
    pub metadata: ObjectMeta,
    pub spec: KubeStreamSpec,
    pub status: RouteStatus,
}

/// What the three have in common.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeStreamSpec {
    pub parent_refs: Vec<ObjectReference>,
    /// The server names of a TLSRoute. Empty: all, and the others have none.
    pub hostnames: Vec<String>,
    /// One: nothing would tell several apart.
    pub rules: Vec<KubeStreamRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeStreamRule {
    pub name: Option<String>,
    pub backend_refs: Vec<BackendRef>,
}
