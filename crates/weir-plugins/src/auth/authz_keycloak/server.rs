//! Calls to Keycloak.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Map, Value};
use weir_client::HttpClient;
use weir_plugin::{ConfigError, form};
use weir_services::http_service::{HttpService, ServiceCallOptions};
use weir_tokens::ProviderMetadata;

use super::login::UserCredentials;
use super::own_token::OwnTokens;
use crate::auth::openid_connect::provider::Provider;

/// The most bytes of an answer.
const MOST_ANSWERED: usize = 256 << 10;
/// The most resources that may fit a path: each is a permission of the request for a decision.
const MOST_RESOURCES: usize = 64;

/// Why Keycloak has not decided.
#[derive(Debug)]
pub(crate) struct KeycloakFailure(String);

impl KeycloakFailure {
    pub(crate) fn new(why: String) -> KeycloakFailure {
        KeycloakFailure(why)
    }
}

impl fmt::Display for KeycloakFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An endpoint of Keycloak.
#[derive(Clone)]
pub(crate) struct KeycloakEndpoint(HttpService);

impl KeycloakEndpoint {
    pub(crate) fn new(
        call: &ServiceCallOptions,
        http: &HttpClient,
        url: &str,
        option: &str,
    ) -> Result<KeycloakEndpoint, ConfigError> {
        call.service(http, url, option).map(KeycloakEndpoint)
    }
}

/// A realm of Keycloak, and this gateway as a client of it.
pub(crate) struct KeycloakServer {
    pub http: HttpClient,
    pub call: ServiceCallOptions,
    pub client_id: String,
    pub client_secret: Option<String>,
    /// The discovery document, if it is to be read.
    pub provider: Option<Provider>,
    /// The endpoints that the configuration names.
    pub token: Option<KeycloakEndpoint>,
    pub resources: Option<KeycloakEndpoint>,
    pub tokens: OwnTokens,
}

impl KeycloakServer {
    /// Asks for a decision about permissions of the owner of a token, which is a value of `Authorization`.
    ///
    /// # Errors
    /// There is no answer.
    pub(crate) async fn decide(
        &self,
        token: &HeaderValue,
        permissions: &[String],
    ) -> Result<Response<Bytes>, KeycloakFailure> {
        let mut pairs = vec![
            ("grant_type", "urn:ietf:params:oauth:grant-type:uma-ticket"),
            ("audience", &*self.client_id),
            ("response_mode", "decision"),
        ];
        pairs.extend(permissions.iter().map(|permission| ("permission", &**permission)));
        self.post(&pairs, Some(token)).await
    }

    /// Asks for a token for a user.
    ///
    /// # Errors
    /// There is no answer.
    pub(crate) async fn log_in(&self, user: &UserCredentials) -> Result<Response<Bytes>, KeycloakFailure> {
        self.post_as_client(&[("grant_type", "password"), ("username", &user.username), ("password", &user.password)])
            .await
    }

    /// The ids of the resources whose URIs fit a path.
    ///
    /// # Errors
    /// They cannot be looked up.
    pub(crate) async fn resources_of(self: &Arc<Self>, path: &str) -> Result<Vec<String>, KeycloakFailure> {
        let is_kept = self.tokens.find().is_some();
        let token = self.own_token().await?;
        let answer = self.look_up(path, &token).await?;
        if !is_refused(&answer) {
            return resources(&answer);
        }
        self.tokens.forget(&token);
        let (again, token) = match is_kept {
            // Keycloak may have forgotten it, for example since it was started anew.
            true => {
                let token = self.own_token().await?;
                (self.look_up(path, &token).await?, token)
            }
            false => (answer, token),
        };
        if is_refused(&again) {
            let why = "Keycloak does not accept the gateway's own token";
            self.tokens.refused(&token, why);
            return Err(KeycloakFailure(why.to_owned()));
        }
        resources(&again)
    }

    async fn look_up(&self, path: &str, token: &str) -> Result<Response<Bytes>, KeycloakFailure> {
        let endpoint = self.endpoint(&self.resources, "resource_registration_endpoint", |discovered| {
            discovered.resource_registration_endpoint.as_deref()
        });
        let KeycloakEndpoint(service) = endpoint.await?;
        let target = form::with_pairs(&service.target, &[("matchingUri", "true"), ("uri", path)]);
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| KeycloakFailure("the gateway's own token is not a valid field value".to_owned()))?;
        value.set_sensitive(true);
        let mut request = Request::new(Full::default());
        *request.uri_mut() = parsed(&target)?;
        request.headers_mut().insert(AUTHORIZATION, value);
        ask(&service, request).await
    }

    /// The gateway's own token. Of the exchanges that need one, one asks for it. The request for it does not end with this exchange: its
    /// refresh token can be used once, and the next exchanges need what it brings.
    async fn own_token(self: &Arc<Self>) -> Result<Rc<str>, KeycloakFailure> {
        if let Some(found) = self.known_token() {
            return found;
        }
        let server = Arc::clone(self);
        let asking = tokio::task::spawn_local(async move {
            let state = server.tokens.state.get();
            let _asking = state.asking.lock().await;
            if let Some(found) = server.known_token() {
                return found;
            }
            let token = server.new_token().await;
            if let Err(failure) = &token {
                server.tokens.fail(&failure.0);
            }
            token
        });
        let cancelled = |_| Err(KeycloakFailure("the request for the gateway's own token was cancelled".to_owned()));
        asking.await.unwrap_or_else(cancelled)
    }

    fn known_token(&self) -> Option<Result<Rc<str>, KeycloakFailure>> {
        Some(self.tokens.find()?.map_err(|why| KeycloakFailure(why.to_string())))
    }

    /// Asks for a token with the refresh token, if there is one that Keycloak accepts, and otherwise with the credentials.
    async fn new_token(&self) -> Result<Rc<str>, KeycloakFailure> {
        if let Some(refresh) = self.tokens.take_refresh() {
            let pairs = [("grant_type", "refresh_token"), ("refresh_token", &*refresh)];
            let answer = self.post_as_client(&pairs).await?;
            if let Some(token) = object(&answer).and_then(|answer| self.tokens.keep(&answer)) {
                return Ok(token);
            }
        }
        let answer = self.post_as_client(&[("grant_type", "client_credentials")]).await?;
        let status = answer.status();
        object(&answer).and_then(|answer| self.tokens.keep(&answer)).ok_or_else(|| {
            KeycloakFailure(format!("the token endpoint answers with {status}, and no token, to `client_credentials`"))
        })
    }

    async fn post_as_client(&self, pairs: &[(&str, &str)]) -> Result<Response<Bytes>, KeycloakFailure> {
        let secret = self.client_secret.as_deref().map(|secret| ("client_secret", secret));
        let all: Vec<_> = pairs.iter().copied().chain([("client_id", &*self.client_id)]).chain(secret).collect();
        self.post(&all, None).await
    }

    /// Sends a form to the token endpoint.
    async fn post(
        &self,
        pairs: &[(&str, &str)],
        token: Option<&HeaderValue>,
    ) -> Result<Response<Bytes>, KeycloakFailure> {
        let endpoint = self.endpoint(&self.token, "token_endpoint", |discovered| discovered.token_endpoint.as_deref());
        let KeycloakEndpoint(service) = endpoint.await?;
        let mut request = Request::new(Full::new(Bytes::from(form::encoded_pairs(pairs))));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = parsed(&service.target)?;
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, kind);
        if let Some(token) = token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        ask(&service, request).await
    }

    /// The endpoint that the configuration names, or else the discovery document.
    async fn endpoint(
        &self,
        stated: &Option<KeycloakEndpoint>,
        name: &str,
        discovered: fn(&ProviderMetadata) -> Option<&str>,
    ) -> Result<KeycloakEndpoint, KeycloakFailure> {
        if let Some(endpoint) = stated {
            return Ok(endpoint.clone());
        }
        let unknown = || KeycloakFailure(format!("the discovery document has no `{name}`"));
        let provider = self.provider.as_ref().ok_or_else(unknown)?;
        let document = provider.discovery().await.map_err(|error| KeycloakFailure(error.to_string()))?;
        let url = discovered(&document).ok_or_else(unknown)?;
        let endpoint = KeycloakEndpoint::new(&self.call, &self.http, url, name);
        endpoint.map_err(|error| KeycloakFailure(format!("the discovery document: {error}")))
    }
}

fn parsed(target: &str) -> Result<http::Uri, KeycloakFailure> {
    target.parse().map_err(|_| KeycloakFailure("the path of a URL is not valid".to_owned()))
}

async fn ask(service: &HttpService, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>, KeycloakFailure> {
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    let answer = service.ask(request, MOST_ANSWERED).await;
    answer.map_err(|failure| KeycloakFailure(format!("{}: {failure}", service.name())))
}

/// The object in a successful answer.
fn object(answer: &Response<Bytes>) -> Option<Map<String, Value>> {
    answer.status().is_success().then(|| serde_json::from_slice(answer.body()).ok()).flatten()
}

/// Whether an answer says that the token is not valid. Another 403 says that it does not suffice.
fn is_refused(answer: &Response<Bytes>) -> bool {
    let says_so = || {
        let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        body["error"] == "invalid_bearer_token"
    };
    answer.status().as_u16() == 401 || answer.status().as_u16() == 403 && says_so()
}

/// The ids in an answer: a list of texts.
fn resources(answer: &Response<Bytes>) -> Result<Vec<String>, KeycloakFailure> {
    if !answer.status().is_success() {
        let status = answer.status();
        let hint = if status.as_u16() == 403 { "; has its service account the role `uma_protection`?" } else { "" };
        return Err(KeycloakFailure(format!("the resource registration endpoint answers with {status}{hint}")));
    }
    let ids: Vec<String> = serde_json::from_slice(answer.body()).map_err(|error| {
        KeycloakFailure(format!("the resource registration endpoint has sent no list of resources: {error}"))
    })?;
    match ids.len() {
        0..=MOST_RESOURCES => Ok(ids),
        count => Err(KeycloakFailure(format!("{count} resources fit a path, and {MOST_RESOURCES} are allowed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &'static str) -> Response<Bytes> {
        Response::builder().status(status).body(Bytes::from_static(body.as_bytes())).expect("valid")
    }

    #[test]
    fn resources_are_a_list_of_ids() {
        assert_eq!(resources(&answer(200, r#"["a","b"]"#)).expect("a list"), ["a", "b"]);
        assert_eq!(resources(&answer(200, "[]")).expect("a list"), [""; 0]);
        for (status, body, want) in [
            (200, r#"[{"_id":"a"}]"#, "no list of resources"),
            (200, "<html>", "no list of resources"),
            (403, r#"{"error":"invalid_scope"}"#, "`uma_protection`"),
            (500, "", "answers with 500"),
        ] {
            let failure = resources(&answer(status, body)).expect_err("refused").to_string();
            assert!(failure.contains(want), "{failure}");
        }
    }

    #[test]
    fn a_token_that_does_not_suffice_is_valid_all_the_same() {
        assert!(is_refused(&answer(403, r#"{"error":"invalid_bearer_token"}"#)) && is_refused(&answer(401, "")));
        assert!(!is_refused(&answer(403, r#"{"error":"invalid_scope"}"#)) && !is_refused(&answer(200, "[]")));
    }
}
