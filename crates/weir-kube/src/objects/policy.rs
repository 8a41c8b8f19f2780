//! ReferenceGrant, BackendTLSPolicy and WeirPolicy.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::meta::{ObjectMeta, ObjectReference};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReferenceGrant {
    pub metadata: ObjectMeta,
    pub spec: ReferenceGrantSpec,
}

/// Any of `from` may refer to any of `to`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReferenceGrantSpec {
    pub from: Vec<GrantFrom>,
    pub to: Vec<GrantTo>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrantFrom {
    pub group: String,
    pub kind: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrantTo {
    pub group: String,
    pub kind: String,
    /// Not stated: every object of this kind in the namespace of the grant.
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsPolicy {
    pub metadata: ObjectMeta,
    pub spec: BackendTlsPolicySpec,
    /// As the API server has it.
    pub status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsPolicySpec {
    pub target_refs: Vec<PolicyTarget>,
    pub validation: BackendTlsValidation,
    pub options: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyTarget {
    pub group: String,
    pub kind: String,
    pub name: String,
    /// A part of the target, such as a port of a Service or a listener of a Gateway. Not stated: all of it.
    pub section_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsValidation {
    pub hostname: String,
    pub ca_certificate_refs: Vec<ObjectReference>,
    /// `System`: the certificate authorities of the node.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    pub subject_alt_names: Vec<SubjectAltName>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubjectAltName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    pub hostname: String,
    pub uri: String,
}

/// Weir's own kind: plugins for what its targets serve, and settings of the upstreams of Services.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WeirPolicy {
    pub metadata: ObjectMeta,
    pub spec: WeirPolicySpec,
    /// As the API server has it.
    pub status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WeirPolicySpec {
    /// In the namespace of the policy.
    pub target_refs: Vec<PolicyTarget>,
    /// The options of each plugin, for targets other than Services.
    pub plugins: Map<String, Value>,
    /// Keys of upstreams, for targets that are Services.
    pub upstream: Map<String, Value>,
}

impl PolicyTarget {
    pub fn is_service(&self) -> bool {
        self.group.is_empty() && self.kind == "Service"
    }
}
