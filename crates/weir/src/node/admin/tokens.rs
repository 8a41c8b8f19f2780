//! Connects the plugins' token verification to the Admin API.

use std::path::Path;

use weir_control::admin::{AcceptedTokens, TokenFault, TokenVerifier, VerifiedToken, VerifyingToken};
use weir_control::document::{AdminTokens, NodeSettings, TokenKeys, is_trusted_url};
use weir_control::stores::{FileAccess, http_client};
use weir_tokens::{IssuerKeys, TokenError, TokenIssuer, accepted_until_s};

/// Sends no request yet, so that a node can start while the issuer is down.
pub(super) fn accepted(tokens: &AdminTokens, settings: &NodeSettings, beside: &Path) -> Result<AcceptedTokens, String> {
    let http = http_client(settings, beside, &FileAccess::limited());
    let http = http.map_err(|stall| format!("ssl_trusted_certificate cannot be read: {stall}"))?;
    let keys_at = match &tokens.keys {
        TokenKeys::Discovery(url) => IssuerKeys::Discovery(url.to_string()),
        TokenKeys::KeySet(url) => IssuerKeys::KeySet(url.to_string()),
    };
    let issuer = TokenIssuer::new(http, keys_at, &tokens.issuer, &tokens.audience, is_trusted_url);
    Ok(AcceptedTokens::new(tokens.roles.clone(), Box::new(IssuerTokens(issuer))))
}

struct IssuerTokens(TokenIssuer);

impl TokenVerifier for IssuerTokens {
    fn verify<'a>(&'a self, token: &'a str) -> VerifyingToken<'a> {
        Box::pin(async move {
            let claims = self.0.verify(token).await.map_err(|error| match error {
                TokenError::Invalid(problem) => TokenFault::Invalid(problem.to_owned()),
                TokenError::NoKeys(problem) => TokenFault::Unverifiable(problem),
            })?;
            // A number beyond the range of `u64` becomes the nearest one.
            let until_ms = (accepted_until_s(&claims).unwrap_or_default() * 1e3) as u64;
            Ok(VerifiedToken { claims, until_ms })
        })
    }
}
