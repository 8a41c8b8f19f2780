//! What a provider says about itself.

use serde::Deserialize;

/// The metadata of a provider (OpenID Connect Discovery 1.0 §3).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ProviderMetadata {
    pub issuer: String,
    pub jwks_uri: Option<String>,
    pub introspection_endpoint: Option<String>,
    pub authorization_endpoint: Option<String>,
    pub token_endpoint: Option<String>,
    pub userinfo_endpoint: Option<String>,
    pub end_session_endpoint: Option<String>,
    pub revocation_endpoint: Option<String>,
    pub pushed_authorization_request_endpoint: Option<String>,
}
