//! Ingress and IngressClass (`networking.k8s.io/v1`).

use serde::Deserialize;
use serde_json::Value;

use super::meta::{ObjectMeta, ObjectReference};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub metadata: ObjectMeta,
    pub spec: IngressSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressSpec {
    pub ingress_class_name: Option<String>,
    pub default_backend: Option<IngressBackend>,
    pub tls: Vec<IngressTls>,
    pub rules: Vec<IngressRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressTls {
    pub hosts: Vec<String>,
    pub secret_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressRule {
    /// Empty means any.
    pub host: String,
    pub http: Option<IngressPaths>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressPaths {
    pub paths: Vec<IngressPath>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressPath {
    pub path: String,
    /// `Exact`, `Prefix` or `ImplementationSpecific`.
    pub path_type: String,
    pub backend: IngressBackend,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressBackend {
    pub service: Option<IngressService>,
    /// A reference to a backend of another kind; it is not served.
    pub resource: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressService {
    pub name: String,
    pub port: IngressServicePort,
}

/// Either the name or the number is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressServicePort {
    pub name: String,
    pub number: u16,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressClass {
    pub metadata: ObjectMeta,
    pub spec: IngressClassSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressClassSpec {
    pub controller: String,
    /// With the namespace of an object that is in one.
    pub parameters: Option<ObjectReference>,
}
