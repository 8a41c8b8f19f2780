//! Namespaces, Services, EndpointSlices, Secrets and ConfigMaps.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::meta::ObjectMeta;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeNamespace {
    pub metadata: ObjectMeta,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Service {
    pub metadata: ObjectMeta,
    pub spec: KubeServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeServiceSpec {
    /// `ClusterIP` if empty.
    #[serde(rename = "type")]
    pub kind: String,
    /// `None` for a headless service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub external_name: String,
    /// `IPv4` and `IPv6`, the primary one first.
    pub ip_families: Vec<String>,
    pub ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// Empty if the service has one port only.
    pub name: String,
    pub port: u16,
    /// `TCP` if empty.
    pub protocol: String,
    /// `kubernetes.io/h2c`, `kubernetes.io/ws`, `http`, `https` and so on (KEP-3726).
    pub app_protocol: Option<String>,
    pub target_port: Option<NumberOrName>,
}

/// A port by its number or its name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum NumberOrName {
    Number(u16),
    Name(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    pub endpoints: Vec<SliceEndpoint>,
    pub ports: Vec<EndpointPort>,
}

/// `endpoints[]` of an EndpointSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    /// All lead to the same pod; only the first is used, as the API says.
    pub addresses: Vec<String>,
    pub conditions: EndpointConditions,
    pub hints: EndpointHints,
}

/// `hints` of an endpoint: which clients should prefer it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointHints {
    pub for_zones: Vec<ForZone>,
}

/// A zone whose clients should prefer an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ForZone {
    pub name: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointConditions {
    /// Not stated means ready.
    pub ready: Option<bool>,
    /// Ready, or still serving while it terminates.
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointPort {
    /// That of the service's port.
    pub name: String,
    /// The port of the pod.
    pub port: Option<u16>,
    pub protocol: String,
    pub app_protocol: Option<String>,
}

impl EndpointSlice {
    /// The service that the slice belongs to.
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.get("kubernetes.io/service-name").map(String::as_str)
    }
}

/// The type of Secrets whose values policies may use: their authors have meant them for plugins.
pub const SECRET_OF_PLUGINS: &str = "weir.dev/plugin";

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Secret {
    pub metadata: ObjectMeta,
    #[serde(rename = "type")]
    pub kind: String,
    /// In Base64.
    pub data: BTreeMap<String, String>,
    /// As text; only in manifests, an API server returns it as `data`.
    pub string_data: BTreeMap<String, String>,
}

impl Secret {
    /// A value as text.
    ///
    /// # Errors
    /// If there is none, or it is not text.
    pub fn text(&self, key: &str) -> Result<String, String> {
        if let Some(text) = self.string_data.get(key) {
            return Ok(text.clone());
        }
        let name = &self.metadata.name;
        let encoded = self.data.get(key).ok_or_else(|| format!("the Secret `{name}` has no `{key}`"))?;
        let bytes = STANDARD.decode(encoded.trim()).ok();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        text.ok_or_else(|| format!("`{key}` of the Secret `{name}` is not text in Base64"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Secret").field("metadata", &self.metadata.name).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConfigMap {
    pub metadata: ObjectMeta,
    pub data: BTreeMap<String, String>,
}
