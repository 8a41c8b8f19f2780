//! Pushed authorization requests (RFC 9126): the gateway sends the parameters of a login to the provider itself, so that the browser
//! carries only a reference to them, and cannot change them.

use http::header::HeaderMap;
use serde_json::Value;
use weir_tokens::ClientAuthMethod;

use super::provider::{Provider, ProviderError, missing_endpoint};

/// Authorization requests that the gateway sends to the provider itself (RFC 9126).
pub(super) struct PushedRequests {
    /// `None` for the endpoint of the discovery document.
    pub endpoint: Option<String>,
    pub proof: ClientAuthMethod,
}

impl PushedRequests {
    /// Sends the parameters of an authorization request, and returns the URI that stands for them.
    pub(super) async fn push(&self, provider: &Provider, pairs: &[(&str, &str)]) -> Result<String, ProviderError> {
        const ENDPOINT: &str = "pushed_authorization_request_endpoint";
        let url = match &self.endpoint {
            Some(url) => url.clone(),
            None => {
                let discovery = provider.discovery().await?;
                discovery.pushed_authorization_request_endpoint.clone().ok_or_else(|| missing_endpoint(ENDPOINT))?
            }
        };
        let answer = provider.post(&provider.endpoint(&url)?, self.proof, HeaderMap::new(), pairs).await?;
        let request_uri = answer.get("request_uri").and_then(Value::as_str);
        let problem = || ProviderError::Answer(format!("{url} sent an answer without `request_uri`"));
        request_uri.map(str::to_owned).ok_or_else(problem)
    }
}
