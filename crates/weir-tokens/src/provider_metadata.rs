//! What a provider says about itself.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

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
    /// Where resources are registered and looked up (UMA 2.0, Federated Authorization §2).
    pub resource_registration_endpoint: Option<String>,
    /// Whether each response of the provider says that it is its own (RFC 9207 §3).
    #[serde(default, deserialize_with = "is_true")]
    pub authorization_response_iss_parameter_supported: bool,
}

/// Of a member whose other values mean nothing here, and make nothing else unreadable.
fn is_true<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Value::deserialize(deserializer).map(|value| value == true)
}

impl ProviderMetadata {
    /// Whether a response with this parameter `iss` can be one of this provider (RFC 9207 §2.4).
    pub fn may_have_answered(&self, issuer: Option<&str>) -> bool {
        match issuer {
            Some(issuer) => issuer == self.issuer,
            None => !self.authorization_response_iss_parameter_supported,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_says_whose_it_is_if_the_provider_says_so() {
        let of = |is_supported: bool| ProviderMetadata {
            issuer: "a".to_owned(),
            authorization_response_iss_parameter_supported: is_supported,
            ..ProviderMetadata::default()
        };
        for (is_supported, issuer, expected) in [
            (true, Some("a"), true),
            (true, Some("b"), false),
            (true, None, false),
            (false, Some("a"), true),
            (false, Some("b"), false),
            (false, None, true),
        ] {
            assert_eq!(of(is_supported).may_have_answered(issuer), expected, "{is_supported} {issuer:?}");
        }
    }
}
