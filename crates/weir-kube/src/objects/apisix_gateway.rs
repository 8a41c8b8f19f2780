//! The kinds of the APISIX ingress controller beside the Gateway API (`apisix.apache.org/v1alpha1`).

use serde::Deserialize;
use serde_json::{Map, Value};

use super::apisix::{ApisixPlugin, ApisixStatus, ApisixUpstreamSettings, secret_name};
use super::meta::{ObjectMeta, ObjectReference};
use super::policy::PolicyTarget;

/// What a Gateway, a GatewayClass or an IngressClass says by `parametersRef`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GatewayProxy {
    pub metadata: ObjectMeta,
    pub spec: GatewayProxySpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayProxySpec {
    pub publish_service: String,
    /// IP addresses or names.
    pub status_address: Vec<String>,
    /// Where the data plane of APISIX is.
    pub provider: Option<Value>,
    pub plugins: Vec<GatewayProxyPlugin>,
    pub plugin_metadata: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayProxyPlugin {
    pub name: String,
    pub enabled: bool,
    pub config: Map<String, Value>,
}

/// `PluginConfig`: plugins that a rule of an HTTPRoute names by a filter `ExtensionRef`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ExtensionPlugins {
    pub metadata: ObjectMeta,
    pub spec: ExtensionPluginsSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ExtensionPluginsSpec {
    pub plugins: Vec<ExtensionPlugin>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtensionPlugin {
    pub name: String,
    pub config: Map<String, Value>,
    /// A Secret whose values become options, each by its key; dots lead into maps.
    #[serde(deserialize_with = "secret_name")]
    pub secret_ref: Option<String>,
}

/// Settings for the upstreams of Services.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BackendTrafficPolicy {
    pub metadata: ObjectMeta,
    pub spec: BackendTrafficPolicySpec,
    /// As the API server has it.
    pub status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTrafficPolicySpec {
    pub target_refs: Vec<PolicyTarget>,
    #[serde(flatten)]
    pub settings: ApisixUpstreamSettings,
}

/// `HTTPRoutePolicy`: a priority, and further conditions, for the routes of its targets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HttpRoutePolicy {
    pub metadata: ObjectMeta,
    pub spec: HttpRoutePolicySpec,
    /// As the API server has it.
    pub status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRoutePolicySpec {
    pub target_refs: Vec<PolicyTarget>,
    pub priority: Option<i64>,
    /// Conditions as a route has them.
    pub vars: Vec<Value>,
}

/// `L4RoutePolicy`: plugins for TCPRoutes, TLSRoutes and UDPRoutes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct L4RoutePolicy {
    pub metadata: ObjectMeta,
    pub spec: L4RoutePolicySpec,
    /// As the API server has it.
    pub status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct L4RoutePolicySpec {
    pub target_refs: Vec<PolicyTarget>,
    pub plugins: Vec<ExtensionPlugin>,
}

/// `Consumer`: a consumer of the routes of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GatewayConsumer {
    pub metadata: ObjectMeta,
    pub spec: GatewayConsumerSpec,
    pub status: ApisixStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayConsumerSpec {
    pub gateway_ref: ObjectReference,
    pub credentials: Vec<GatewayCredential>,
    pub plugins: Vec<ApisixPlugin>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayCredential {
    /// The auth plugin.
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    pub config: Map<String, Value>,
    pub secret_ref: Option<ObjectReference>,
}

/// The options are secrets.
impl std::fmt::Debug for GatewayCredential {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("GatewayCredential").field("name", &self.name).finish_non_exhaustive()
    }
}
