//! GatewayClass, Gateway and ListenerSet.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::meta::{LabelSelector, ObjectMeta, ObjectReference, StatusCondition};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClass {
    pub metadata: ObjectMeta,
    pub spec: GatewayClassSpec,
    pub status: ConditionsOnly,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClassSpec {
    pub controller_name: String,
    pub parameters_ref: Option<ObjectReference>,
}

/// Of a status that the API server has, only the conditions: for those whose status does not change, the time of the last
/// transition is kept.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConditionsOnly {
    pub conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeGateway {
    pub metadata: ObjectMeta,
    pub spec: GatewaySpec,
    pub status: GatewayStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewaySpec {
    pub gateway_class_name: String,
    pub listeners: Vec<GatewayListener>,
    pub addresses: Vec<GatewayAddress>,
    pub infrastructure: Option<GatewayInfrastructure>,
    pub allowed_listeners: Option<AllowedListeners>,
    pub tls: Option<GatewayTls>,
}

/// Of a Gateway, or of a ListenerSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayListener {
    pub name: String,
    /// Not stated: all hosts. `*.example.com` covers any number of labels.
    pub hostname: Option<String>,
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`.
    pub protocol: String,
    pub tls: Option<ListenerTls>,
    pub allowed_routes: Option<AllowedRoutes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerTls {
    /// `Terminate` if not stated, or `Passthrough`.
    pub mode: Option<String>,
    pub certificate_refs: Vec<ObjectReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedRoutes {
    pub namespaces: Option<AllowedNamespaces>,
    /// Empty: all kinds that the protocol allows.
    pub kinds: Vec<RouteGroupKind>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedListeners {
    pub namespaces: Option<AllowedNamespaces>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// `All`, `Same`, `Selector` or `None`. The default is `Same` for routes and `None` for listener sets.
    pub from: Option<String>,
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteGroupKind {
    /// That of the Gateway API if not stated.
    pub group: Option<String>,
    pub kind: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayAddress {
    /// `IPAddress` if not stated, or `Hostname`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Empty: any address of the type.
    pub value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayInfrastructure {
    /// Of the objects that are made for the Gateway.
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub parameters_ref: Option<ObjectReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayTls {
    pub backend: Option<GatewayBackendTls>,
    pub frontend: Option<FrontendTls>,
}

/// The certificate that the gateway shows to backends.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayBackendTls {
    pub client_certificate_ref: Option<ObjectReference>,
}

/// How clients are verified: on ports without an entry of their own by `default`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTls {
    pub default: FrontendTlsConfig,
    pub per_port: Vec<FrontendTlsPort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTlsPort {
    pub port: u16,
    pub tls: FrontendTlsConfig,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTlsConfig {
    pub validation: Option<FrontendTlsValidation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTlsValidation {
    pub ca_certificate_refs: Vec<ObjectReference>,
    /// `AllowValidOnly` if empty, or `AllowInsecureFallback`.
    pub mode: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayStatus {
    pub conditions: Vec<StatusCondition>,
    /// Written by the part that gives a Gateway its address.
    pub addresses: Vec<Value>,
    pub listeners: Vec<ListenerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerStatus {
    pub name: String,
    pub conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSet {
    pub metadata: ObjectMeta,
    pub spec: ListenerSetSpec,
    pub status: ListenerSetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetSpec {
    pub parent_ref: ObjectReference,
    pub listeners: Vec<GatewayListener>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetStatus {
    pub conditions: Vec<StatusCondition>,
    pub listeners: Vec<ListenerStatus>,
}
