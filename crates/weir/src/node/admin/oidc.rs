//! Connects the log-in at an identity provider to the Admin API.

use std::path::Path;

use weir_control::admin::{
    BeginningLogIn, BroughtCode, FinishingLogIn, LeavingProvider, LogInProvider, OidcParts, PendingSecrets, TokenFault,
};
use weir_control::document::{AdminOidc, NodeSettings, SecretProof, is_trusted_url};
use weir_control::stores::{FileAccess, http_client};
use weir_tokens::{ClientAuthMethod, LoginError, LoginSecrets, LoginTerms, OpenidClient, OpenidProvider, ReturnedCode};

/// Sends no request yet, so that a node can start while the provider is down.
pub(super) fn parts(oidc: &AdminOidc, settings: &NodeSettings, beside: &Path) -> Result<OidcParts, String> {
    let http = http_client(settings, beside, &FileAccess::limited());
    let http = http.map_err(|stall| format!("ssl_trusted_certificate cannot be read: {stall}"))?;
    let proof = match oidc.client_proof {
        SecretProof::Basic => ClientAuthMethod::Basic,
        SecretProof::Post => ClientAuthMethod::Post,
    };
    let terms = LoginTerms {
        client: OpenidClient::with_secret(&oidc.client_id, oidc.client_secret.as_deref()),
        proof: oidc.client_secret.is_some().then_some(proof),
        redirect_uri: oidc.redirect_uri.to_string(),
        scope: oidc.scope.to_string(),
        claim: oidc.roles.claim.to_string(),
    };
    let provider = OpenidProvider::new(http, (&oidc.issuer, &oidc.discovery), terms, is_trusted_url);
    Ok(OidcParts { settings: oidc.clone(), provider: Box::new(AskedProvider(provider)) })
}

struct AskedProvider(OpenidProvider);

impl LogInProvider for AskedProvider {
    fn begin<'a>(&'a self, secrets: PendingSecrets<'a>) -> BeginningLogIn<'a> {
        Box::pin(async move { self.0.begin(login_secrets(secrets)).await.map_err(fault) })
    }

    fn finish<'a>(&'a self, brought: BroughtCode<'a>, secrets: PendingSecrets<'a>) -> FinishingLogIn<'a> {
        let BroughtCode { code, issuer } = brought;
        let back = ReturnedCode { code, issuer };
        Box::pin(async move { self.0.finish(back, login_secrets(secrets)).await.map_err(fault) })
    }

    fn leave<'a>(&'a self, after: &'a str) -> LeavingProvider<'a> {
        Box::pin(async move { self.0.leave(after).await.map_err(fault) })
    }
}

fn login_secrets(PendingSecrets { state, nonce, verifier }: PendingSecrets<'_>) -> LoginSecrets<'_> {
    LoginSecrets { state, nonce, verifier }
}

fn fault(error: LoginError) -> TokenFault {
    match error {
        LoginError::Refused(problem) => TokenFault::Invalid(problem),
        LoginError::Unavailable(problem) => TokenFault::Unverifiable(problem),
    }
}
