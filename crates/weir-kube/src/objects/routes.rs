//! HTTPRoute and GRPCRoute.

use serde::Deserialize;
use serde_json::Value;

use super::meta::{JsonText, ObjectMeta, ObjectReference, StatusCondition};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRoute {
    pub metadata: ObjectMeta,
    pub spec: HttpRouteSpec,
    pub status: RouteStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRouteSpec {
    pub parent_refs: Vec<ObjectReference>,
    pub hostnames: Vec<String>,
    pub rules: Vec<HttpRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRule {
    pub name: Option<String>,
    /// Empty: all requests.
    pub matches: Vec<HttpMatch>,
    pub filters: Vec<RouteFilter>,
    pub backend_refs: Vec<BackendRef>,
    pub timeouts: Option<HttpTimeouts>,
    pub retry: Option<HttpRetry>,
    /// Not served; the status of the route says so.
    pub session_persistence: Option<Value>,
}

/// A request must satisfy all parts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpMatch {
    pub path: Option<PathMatch>,
    pub headers: Vec<NamedMatch>,
    pub query_params: Vec<NamedMatch>,
    pub method: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathMatch {
    /// `PathPrefix` if not stated, `Exact` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// `/` if not stated.
    pub value: Option<String>,
}

/// Of a header or of a query parameter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NamedMatch {
    /// `Exact` if not stated, or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub name: String,
    pub value: String,
}

/// The member that `kind` names is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteFilter {
    #[serde(rename = "type")]
    pub kind: String,
    pub request_header_modifier: Option<HeaderModifier>,
    pub response_header_modifier: Option<HeaderModifier>,
    pub request_mirror: Option<MirrorFilter>,
    pub request_redirect: Option<RequestRedirect>,
    pub url_rewrite: Option<UrlRewrite>,
    pub cors: Option<CorsFilter>,
    pub external_auth: Option<Value>,
    pub extension_ref: Option<ObjectReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeaderModifier {
    pub set: Vec<HttpHeader>,
    pub add: Vec<HttpHeader>,
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpHeader {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MirrorFilter {
    pub backend_ref: ObjectReference,
    pub percent: Option<u32>,
    pub fraction: Option<Fraction>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Fraction {
    pub numerator: u32,
    /// 100 if not stated.
    pub denominator: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RequestRedirect {
    pub scheme: Option<String>,
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
    pub port: Option<u16>,
    pub status_code: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UrlRewrite {
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    pub replace_full_path: Option<String>,
    pub replace_prefix_match: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CorsFilter {
    pub allow_origins: Vec<String>,
    pub allow_credentials: Option<bool>,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    /// In seconds.
    pub max_age: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendRef {
    #[serde(flatten)]
    pub reference: ObjectReference,
    /// 1 if not stated.
    pub weight: Option<u32>,
    pub filters: Vec<RouteFilter>,
}

/// Durations as GEP-2257 has them: `1h30m`, `500ms`. `0s` means no limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpTimeouts {
    pub request: Option<String>,
    pub backend_request: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpRetry {
    pub codes: Vec<u16>,
    pub attempts: Option<u32>,
    pub backoff: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcRoute {
    pub metadata: ObjectMeta,
    pub spec: GrpcRouteSpec,
    pub status: RouteStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcRouteSpec {
    pub parent_refs: Vec<ObjectReference>,
    pub hostnames: Vec<String>,
    pub rules: Vec<GrpcRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcRule {
    pub name: Option<String>,
    /// Empty: all calls.
    pub matches: Vec<GrpcMatch>,
    pub filters: Vec<RouteFilter>,
    pub backend_refs: Vec<BackendRef>,
    /// Not served; the status of the route says so.
    pub session_persistence: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcMatch {
    pub method: Option<GrpcMethodMatch>,
    pub headers: Vec<NamedMatch>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GrpcMethodMatch {
    /// `Exact` if not stated, or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub service: Option<String>,
    pub method: Option<String>,
}

/// The status of a route: one entry for each parent and controller.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteStatus {
    /// As the API server has them: entries of other controllers are written back as they are.
    parents: JsonText,
}

impl RouteStatus {
    pub fn parents(&self) -> Vec<Value> {
        match self.parents.value() {
            Value::Array(parents) => parents,
            _ => Vec::new(),
        }
    }
}

/// The conditions of an entry of `status.parents`.
pub fn parent_conditions(entry: &Value) -> Vec<StatusCondition> {
    entry.get("conditions").and_then(|conditions| serde_json::from_value(conditions.clone()).ok()).unwrap_or_default()
}
