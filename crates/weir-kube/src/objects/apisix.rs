//! The kinds of the APISIX ingress controller (`apisix.apache.org/v2`). Numbers are as wide as the definitions of the kinds permit: an object
//! is read as a whole, and the translation refuses the part that has a number out of range.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::meta::{ObjectMeta, StatusCondition};

/// `status` of all of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixStatus {
    pub conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixRoute {
    pub metadata: ObjectMeta,
    pub spec: ApisixRouteSpec,
    pub status: ApisixStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixRouteSpec {
    /// Empty stands for the default class.
    pub ingress_class_name: String,
    pub http: Vec<ApisixHttpRule>,
    pub stream: Vec<ApisixStreamRule>,
}

/// `spec.http[]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixHttpRule {
    pub name: String,
    pub priority: i64,
    pub timeout: Option<ApisixTimeout>,
    #[serde(rename = "match")]
    pub matches: ApisixMatch,
    pub backends: Vec<ApisixBackend>,
    pub upstreams: Vec<ApisixUpstreamReference>,
    pub websocket: bool,
    pub plugin_config_name: String,
    /// Empty stands for the namespace of the route.
    pub plugin_config_namespace: String,
    pub plugins: Vec<ApisixPlugin>,
    pub authentication: ApisixAuthentication,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixMatch {
    pub paths: Vec<String>,
    pub methods: Vec<String>,
    pub hosts: Vec<String>,
    pub remote_addrs: Vec<String>,
    pub exprs: Vec<ApisixExpression>,
    /// Lua code.
    #[serde(rename = "filter_func")]
    pub filter_func: String,
}

/// A condition on a part of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixExpression {
    pub subject: ApisixSubject,
    pub op: String,
    pub set: Option<Vec<String>>,
    pub value: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixSubject {
    /// `Query`, `Header`, `Cookie`, `Path` or `Variable`.
    pub scope: String,
    pub name: String,
}

/// Durations as Go writes them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ApisixTimeout {
    pub connect: String,
    pub send: String,
    pub read: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixBackend {
    pub service_name: String,
    pub service_port: Option<ApisixPort>,
    /// `endpoint` or `service`; also `endpoints`.
    pub resolve_granularity: String,
    pub weight: Option<i64>,
    pub subset: String,
}

/// A port by its number, which may be any that the API takes, or its name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ApisixPort {
    Number(i64),
    Name(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixUpstreamReference {
    pub name: String,
    pub weight: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixPlugin {
    pub name: String,
    pub enable: bool,
    pub config: Map<String, Value>,
    /// A Secret whose values become options, each by its key; dots lead into maps.
    #[serde(deserialize_with = "secret_name")]
    pub secret_ref: Option<String>,
}

/// Kinds of version `v2` name a Secret by a text, of which an empty one stands for none, and others by a map with `name`. What is neither
/// names no Secret, and is a fault of its plugin alone: the rest of the object can be read.
pub(super) fn secret_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(name) => Some(name).filter(|name| !name.is_empty()),
        other => Some(other["name"].as_str().unwrap_or_default().to_owned()),
    })
}

impl Default for ApisixPlugin {
    fn default() -> ApisixPlugin {
        ApisixPlugin { name: String::new(), enable: true, config: Map::new(), secret_ref: None }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixAuthentication {
    pub enable: bool,
    #[serde(rename = "type")]
    pub kind: String,
    pub key_auth: Map<String, Value>,
    pub jwt_auth: Map<String, Value>,
    pub ldap_auth: Map<String, Value>,
}

/// `spec.stream[]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixStreamRule {
    pub name: String,
    /// `TCP` or `UDP`.
    pub protocol: String,
    #[serde(rename = "match")]
    pub matches: ApisixStreamMatch,
    /// Without a weight.
    pub backend: ApisixBackend,
    pub plugins: Vec<ApisixPlugin>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixStreamMatch {
    /// A port on which the nodes listen for streams.
    pub ingress_port: Option<i64>,
    /// The server name in TLS. Empty: all connections of the port.
    pub host: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixUpstream {
    pub metadata: ObjectMeta,
    pub spec: ApisixUpstreamSpec,
    pub status: ApisixStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixUpstreamSpec {
    pub ingress_class_name: String,
    pub external_nodes: Vec<ApisixExternalNode>,
    pub port_level_settings: Vec<ApisixPortSettings>,
    #[serde(flatten)]
    pub settings: ApisixUpstreamSettings,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixExternalNode {
    /// A host name or an address; with the type `Service`, a Service of type ExternalName.
    pub name: String,
    /// `Domain` or `Service`.
    #[serde(rename = "type")]
    pub kind: String,
    pub weight: Option<i64>,
    pub port: Option<i64>,
}

/// What a port of a Service has in place of the settings for all of its ports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixPortSettings {
    pub port: i64,
    #[serde(flatten)]
    pub settings: ApisixUpstreamSettings,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixUpstreamSettings {
    #[serde(rename = "loadbalancer")]
    pub load_balancer: Option<ApisixLoadBalancer>,
    pub scheme: String,
    pub retries: Option<i64>,
    pub timeout: Option<ApisixTimeout>,
    pub health_check: Option<ApisixHealthCheck>,
    pub tls_secret: Option<ApisixSecretReference>,
    pub pass_host: String,
    pub upstream_host: String,
    pub discovery: Option<Value>,
}

impl ApisixUpstreamSettings {
    /// These, with each field that others state in place of their own.
    pub(crate) fn with(&self, others: &ApisixUpstreamSettings) -> ApisixUpstreamSettings {
        fn text(own: &str, other: &str) -> String {
            if other.is_empty() { own } else { other }.to_owned()
        }
        ApisixUpstreamSettings {
            load_balancer: others.load_balancer.clone().or_else(|| self.load_balancer.clone()),
            scheme: text(&self.scheme, &others.scheme),
            retries: others.retries.or(self.retries),
            timeout: others.timeout.clone().or_else(|| self.timeout.clone()),
            health_check: others.health_check.clone().or_else(|| self.health_check.clone()),
            tls_secret: others.tls_secret.clone().or_else(|| self.tls_secret.clone()),
            pass_host: text(&self.pass_host, &others.pass_host),
            upstream_host: text(&self.upstream_host, &others.upstream_host),
            discovery: others.discovery.clone().or_else(|| self.discovery.clone()),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixLoadBalancer {
    #[serde(rename = "type")]
    pub kind: String,
    pub hash_on: String,
    pub key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixHealthCheck {
    pub active: Option<ApisixActiveCheck>,
    pub passive: Option<ApisixPassiveCheck>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixActiveCheck {
    #[serde(rename = "type")]
    pub kind: String,
    /// In nanoseconds.
    pub timeout: Option<i64>,
    pub concurrency: Option<i64>,
    pub host: String,
    pub port: i64,
    pub http_path: String,
    #[serde(rename = "strictTLS")]
    pub strict_tls: Option<bool>,
    pub request_headers: Vec<String>,
    pub healthy: Option<ApisixCheckLimits>,
    pub unhealthy: Option<ApisixCheckLimits>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixPassiveCheck {
    #[serde(rename = "type")]
    pub kind: String,
    pub healthy: Option<ApisixCheckLimits>,
    pub unhealthy: Option<ApisixCheckLimits>,
}

/// `healthy` and `unhealthy` of a check.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixCheckLimits {
    pub interval: String,
    pub http_codes: Vec<i64>,
    pub successes: Option<i64>,
    pub http_failures: Option<i64>,
    pub tcp_failures: Option<i64>,
    #[serde(rename = "timeout")]
    pub timeouts: Option<i64>,
}

/// A Secret of any namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ApisixSecretReference {
    pub name: String,
    /// Empty stands for the namespace of the object.
    pub namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixTls {
    pub metadata: ObjectMeta,
    pub spec: ApisixTlsSpec,
    pub status: ApisixStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixTlsSpec {
    pub ingress_class_name: String,
    pub hosts: Vec<String>,
    pub secret: ApisixSecretReference,
    pub client: Option<ApisixTlsClient>,
}

/// How certificates of clients are verified.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixTlsClient {
    pub ca_secret: ApisixSecretReference,
    pub depth: Option<i64>,
    #[serde(rename = "skip_mtls_uri_regex")]
    pub skip_mtls_uri_regex: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixConsumer {
    pub metadata: ObjectMeta,
    pub spec: ApisixConsumerSpec,
    pub status: ApisixStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixConsumerSpec {
    pub ingress_class_name: String,
    pub auth_parameter: ApisixAuthParameter,
}

/// The first that is there counts, in this order.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixAuthParameter {
    pub key_auth: Option<ApisixCredential>,
    pub basic_auth: Option<ApisixCredential>,
    pub jwt_auth: Option<ApisixCredential>,
    #[serde(rename = "wolfRBAC")]
    pub wolf_rbac: Option<ApisixCredential>,
    pub hmac_auth: Option<ApisixCredential>,
    pub ldap_auth: Option<ApisixCredential>,
}

/// The options of an auth plugin for a consumer, here or in a Secret.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixCredential {
    pub value: Option<Map<String, Value>>,
    pub secret_ref: Option<ApisixLocalReference>,
}

/// The values are secrets.
impl std::fmt::Debug for ApisixCredential {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ApisixCredential").field("secret_ref", &self.secret_ref).finish_non_exhaustive()
    }
}

/// An object of the same namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixLocalReference {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixPluginConfig {
    pub metadata: ObjectMeta,
    pub spec: ApisixPluginsSpec,
    pub status: ApisixStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApisixGlobalRule {
    pub metadata: ObjectMeta,
    pub spec: ApisixPluginsSpec,
    pub status: ApisixStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApisixPluginsSpec {
    pub ingress_class_name: String,
    pub plugins: Vec<ApisixPlugin>,
}
