//! Verifies the tokens of one issuer outside of exchanges, for the Admin API. The process caches the issuer's keys, and
//! fetches them again when they are old, or when a token needs a key that is not among them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Request;
use http::header::ACCEPT;
use hyper::body::Bytes;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use weir_client::{CallSettings, HttpClient, ServiceUrl};

use super::signed_token::{SignedToken, SigningKey, TokenRules, now_s};

/// Keys older than this are fetched again.
const KEYS_FOR: Duration = Duration::from_secs(3600);
/// The least time between two fetches: tokens can name any key, so unknown keys must not cause more.
const REFRESH: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(5);
/// How far a token's `iat` may be in the future, in seconds.
const IAT_SLACK_S: f64 = 120.0;

/// Where the keys of an issuer are published.
#[derive(Clone, Debug)]
pub enum IssuerKeys {
    /// The URL of a document with the URL of the key set (OpenID Connect Discovery).
    Discovery(String),
    /// The URL of the key set.
    KeySet(String),
}

/// Why a token was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The token is not valid, for this reason.
    Invalid(&'static str),
    /// The token cannot be verified, because the keys could not be fetched, for this reason.
    NoKeys(String),
}

/// Verifies the tokens of one issuer.
pub struct TokenIssuer {
    http: HttpClient,
    keys_at: IssuerKeys,
    /// Whether keys may be fetched from a URL.
    is_trusted: fn(&str) -> bool,
    issuer: String,
    rules: TokenRules,
    /// Held while the keys are being fetched; other callers wait.
    known: Mutex<KnownKeys>,
}

#[derive(Default)]
struct KnownKeys {
    keys: Arc<[SigningKey]>,
    /// When the keys were fetched.
    read_at: Option<Instant>,
    /// When a fetch was last tried, and its error, if it failed.
    tried: Option<(Instant, Option<String>)>,
}

impl TokenIssuer {
    /// Accepts tokens of `issuer` for `audience`. `is_trusted` decides whether a URL is protected against manipulation
    /// in transit.
    pub fn new(
        http: HttpClient,
        keys_at: IssuerKeys,
        issuer: &str,
        audience: &str,
        is_trusted: fn(&str) -> bool,
    ) -> TokenIssuer {
        let rules = TokenRules {
            algorithms: None,
            issuers: Some(vec![issuer.to_owned()]),
            audience: "aud".to_owned(),
            audience_required: true,
            for_client: Some(audience.to_owned()),
            iat_slack_s: IAT_SLACK_S,
        };
        TokenIssuer { http, keys_at, is_trusted, issuer: issuer.to_owned(), rules, known: Mutex::default() }
    }

    /// The claims of a valid token.
    ///
    /// # Errors
    /// The token is not valid, or cannot be verified.
    pub async fn verify(&self, token: &str) -> Result<Map<String, Value>, TokenError> {
        let signed = SignedToken::parse(token.as_bytes(), None).map_err(TokenError::Invalid)?;
        let keys = self.keys_for(signed.token.key_id(), signed.algorithm).await?;
        if !signed.is_signed_with_one_of(&keys) {
            return Err(TokenError::Invalid("the signature of the token is not valid"));
        }
        match self.rules.fault(signed.token.payload(), &self.issuer, now_s()) {
            Some(fault) => Err(TokenError::Invalid(fault)),
            None => Ok(signed.token.payload().clone()),
        }
    }

    async fn keys_for(&self, id: Option<&str>, algorithm: Algorithm) -> Result<Arc<[SigningKey]>, TokenError> {
        let mut known = self.known.lock().await;
        let is_known = known.keys.iter().any(|key| key.is_for(id, algorithm));
        let is_young = known.read_at.is_some_and(|at| at.elapsed() < KEYS_FOR);
        let is_due = known.tried.as_ref().is_none_or(|(at, _)| at.elapsed() >= REFRESH);
        if !(is_known && is_young) && is_due {
            let read = self.read_keys().await;
            known.tried = Some((Instant::now(), read.as_ref().err().cloned()));
            if let Ok(keys) = read {
                known.keys = keys.into();
                known.read_at = Some(Instant::now());
            }
        }
        let problem = known.tried.as_ref().and_then(|(_, problem)| problem.as_ref());
        match problem {
            // Otherwise the keys that are known continue to be used.
            Some(problem) if !is_known => Err(TokenError::NoKeys(problem.clone())),
            _ => Ok(Arc::clone(&known.keys)),
        }
    }

    async fn read_keys(&self) -> Result<Vec<SigningKey>, String> {
        let set = match &self.keys_at {
            IssuerKeys::KeySet(url) => self.read(url).await?,
            IssuerKeys::Discovery(url) => {
                let document = self.read(url).await?;
                let text = |member: &str| document.get(member).and_then(Value::as_str);
                // OpenID Connect Discovery §4.3.
                if text("issuer") != Some(&self.issuer) {
                    return Err(format!("{url} is the document of another issuer than `{}`", self.issuer));
                }
                let set = text("jwks_uri").ok_or_else(|| format!("{url} has no `jwks_uri`"))?;
                if !(self.is_trusted)(set) {
                    return Err(format!("the `jwks_uri` in {url} is not an `https` URL"));
                }
                self.read(set).await?
            }
        };
        match SigningKey::of_set(&set) {
            keys if keys.is_empty() => Err("the key set has no key for signatures".to_owned()),
            keys => Ok(keys),
        }
    }

    /// Fetches on a separate thread with its own runtime: the connections of an `HttpClient` belong to a thread.
    async fn read(&self, url: &str) -> Result<Map<String, Value>, String> {
        let service = ServiceUrl::parse(url).map_err(|error| format!("`{url}` is not a URL: {error}"))?;
        let (http, name) = (self.http.clone(), url.to_owned());
        let asking = move || {
            let request = Request::get(service.target().as_str()).header(ACCEPT, "application/json");
            let request = request.body(Bytes::new()).map_err(|error| format!("{name}: {error}"))?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| format!("an async runtime cannot be started: {error}"))?;
            let settings = CallSettings { connect_timeout: TIMEOUT, timeout: TIMEOUT, ..CallSettings::default() };
            let answer = runtime.block_on(http.call(&service, request, &settings));
            let answer = answer.map_err(|error| format!("{name}: {error}"))?;
            if answer.status() != 200 {
                return Err(format!("{name} answers with {}", answer.status().as_u16()));
            }
            serde_json::from_slice(answer.body()).map_err(|error| format!("{name} is not a JSON object: {error}"))
        };
        spawn_blocking(asking).await.unwrap_or_else(|_| Err("the request failed".to_owned()))
    }
}
