//! Verifies the tokens of one issuer outside of exchanges, for the Admin API. The process caches the issuer's keys, and
//! fetches them again when they are old, or when a token needs a key that is not among them: once for all tokens that wait. A token
//! with a key that is known waits for no fetch that others have caused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, Request, Response};
use hyper::body::Bytes;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use weir_client::{CallSettings, HttpClient, ServiceUrl};

use crate::provider_metadata::ProviderMetadata;
use crate::signed_token::{SignedToken, SigningKey, TokenRules, now_s};

/// Keys older than this are fetched again, beside their use.
const KEYS_FOR: Duration = Duration::from_secs(3600);
/// Keys older than this are not used before a fetch has been tried.
const KEYS_AT_MOST: Duration = Duration::from_secs(2 * 3600);
/// The most tokens that wait for a fetch. Anyone can send tokens that do.
const MOST_WAITING: usize = 32;
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
    rules: TokenRules,
    source: Arc<KeySource>,
}

/// Where keys come from, and those that are known.
struct KeySource {
    http: HttpClient,
    keys_at: IssuerKeys,
    /// Whether keys may be fetched from a URL.
    is_trusted: fn(&str) -> bool,
    issuer: String,
    known: Mutex<KnownKeys>,
}

#[derive(Default)]
struct KnownKeys {
    keys: Arc<[SigningKey]>,
    /// What the issuer says about itself, if the keys are found by that.
    metadata: Option<Arc<ProviderMetadata>>,
    /// When the keys were fetched.
    read_at: Option<Instant>,
    /// When a fetch last ended, and its error, if it failed.
    tried: Option<(Instant, Option<String>)>,
    /// The fetch that is under way.
    fetch: Option<KeyFetch>,
}

/// A fetch of keys. Each token that waits for it has a clone.
#[derive(Clone)]
struct KeyFetch {
    /// Its sender is dropped when the fetch ends.
    end: watch::Receiver<()>,
    /// The places of those that wait.
    places: Arc<Semaphore>,
}

impl KnownKeys {
    fn has(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        self.keys.iter().any(|key| key.is_for(id, algorithm))
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        self.read_at.is_some_and(|at| at.elapsed() < age)
    }

    /// Whether a fetch may begin now, by what came of the last one.
    fn is_due(&self) -> bool {
        self.tried.as_ref().is_none_or(|(at, _)| at.elapsed() >= REFRESH)
    }

    /// Why what is not known is not, if that is because of the last fetch. What is known continues to be used.
    fn found(&self, is_known: bool) -> Result<(), TokenError> {
        match self.tried.as_ref().and_then(|(_, problem)| problem.as_ref()) {
            Some(problem) if !is_known => Err(TokenError::NoKeys(problem.clone())),
            _ => Ok(()),
        }
    }
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
        let source = KeySource { http, keys_at, is_trusted, issuer: issuer.to_owned(), known: Mutex::default() };
        TokenIssuer { rules, source: Arc::new(source) }
    }

    /// The claims of a valid token.
    ///
    /// # Errors
    /// The token is not valid, or cannot be verified.
    pub async fn verify(&self, token: &str) -> Result<Map<String, Value>, TokenError> {
        let signed = SignedToken::parse(token.as_bytes(), None).map_err(TokenError::Invalid)?;
        let (id, algorithm) = (signed.token.key_id(), signed.algorithm);
        let keys = self.source.known_with(|known| known.has(id, algorithm), |known| Arc::clone(&known.keys)).await?;
        if !signed.is_signed_with_one_of(&keys) {
            return Err(TokenError::Invalid("the signature of the token is not valid"));
        }
        match self.rules.fault(signed.token.payload(), &self.source.issuer, now_s()) {
            Some(fault) => Err(TokenError::Invalid(fault)),
            None => Ok(signed.token.payload().clone()),
        }
    }

    /// What the issuer says about itself, as old as its keys.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn metadata(&self) -> Result<Arc<ProviderMetadata>, TokenError> {
        let metadata = self.source.known_with(|known| known.metadata.is_some(), |known| known.metadata.clone()).await?;
        metadata.ok_or_else(|| TokenError::NoKeys("the metadata of the provider lacks its endpoints".to_owned()))
    }

    /// Whether a URL is protected against manipulation in transit.
    pub(crate) fn trusts(&self, url: &str) -> bool {
        (self.source.is_trusted)(url)
    }

    /// Sends a request to the issuer. An error is a text, without what was sent.
    pub(crate) async fn ask(
        &self,
        url: &str,
        method: Method,
        fields: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Bytes>, String> {
        self.source.ask(url, method, fields, body).await
    }
}

impl KeySource {
    /// A part of what is known. Begins a fetch if there is need for one, and waits for it if the part is not known.
    async fn known_with<T>(
        self: &Arc<Self>,
        has: impl Fn(&KnownKeys) -> bool,
        part: impl Fn(&KnownKeys) -> T,
    ) -> Result<T, TokenError> {
        let (mut fetch, place) = {
            let mut known = self.known();
            let is_known = has(&known);
            if is_known && known.is_younger_than(KEYS_FOR) {
                return Ok(part(&known));
            }
            // It has no sender any more if its task panicked.
            if known.fetch.as_ref().is_none_or(|fetch| fetch.end.has_changed().is_err()) {
                if !known.is_due() {
                    return known.found(is_known).map(|()| part(&known));
                }
                known.fetch = Some(self.begin_fetch());
            }
            if is_known && known.is_younger_than(KEYS_AT_MOST) {
                return Ok(part(&known));
            }
            let fetch = known.fetch.clone().expect("there was one, or it has just begun");
            let Ok(place) = Arc::clone(&fetch.places).try_acquire_owned() else {
                let problem = "too many tokens wait for the keys of the issuer; try again later";
                known.found(is_known)?;
                return if is_known { Ok(part(&known)) } else { Err(TokenError::NoKeys(problem.to_owned())) };
            };
            (fetch, place)
        };
        // An error: the fetch has ended.
        let _ = fetch.end.changed().await;
        drop(place);
        let known = self.known();
        known.found(has(&known)).map(|()| part(&known))
    }

    /// Fetches the keys in a task of its own, which goes on when those that wait for it leave.
    fn begin_fetch(self: &Arc<Self>) -> KeyFetch {
        let (sender, end) = watch::channel(());
        let source = Arc::clone(self);
        tokio::spawn(async move {
            let _ends = sender;
            let read = source.read_keys().await;
            let mut known = source.known();
            known.fetch = None;
            known.tried = Some((Instant::now(), read.as_ref().err().cloned()));
            if let Ok((metadata, keys)) = read {
                known.keys = keys.into();
                known.metadata = metadata.map(Arc::new);
                known.read_at = Some(Instant::now());
            }
        });
        KeyFetch { end, places: Arc::new(Semaphore::new(MOST_WAITING)) }
    }

    fn known(&self) -> MutexGuard<'_, KnownKeys> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_keys(&self) -> Result<(Option<ProviderMetadata>, Vec<SigningKey>), String> {
        let (metadata, set) = match &self.keys_at {
            IssuerKeys::KeySet(url) => (None, self.read(url).await?),
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
                let set = self.read(set).await?;
                (serde_json::from_value(Value::Object(document)).ok(), set)
            }
        };
        match SigningKey::of_set(&set) {
            keys if keys.is_empty() => Err("the key set has no key for signatures".to_owned()),
            keys => Ok((metadata, keys)),
        }
    }

    async fn read(&self, url: &str) -> Result<Map<String, Value>, String> {
        let fields = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
        let answer = self.ask(url, Method::GET, fields, Bytes::new()).await?;
        if answer.status() != 200 {
            return Err(format!("{url} answers with {}", answer.status().as_u16()));
        }
        serde_json::from_slice(answer.body()).map_err(|error| format!("{url} is not a JSON object: {error}"))
    }

    /// Asks on a separate thread with its own runtime: the connections of an `HttpClient` belong to a thread.
    async fn ask(&self, url: &str, method: Method, fields: HeaderMap, body: Bytes) -> Result<Response<Bytes>, String> {
        let service = ServiceUrl::parse(url).map_err(|error| format!("`{url}` is not a URL: {error}"))?;
        let (http, name) = (self.http.clone(), url.to_owned());
        let asking = move || {
            let request = Request::builder().method(method).uri(service.target().as_str());
            let mut request = request.body(body).map_err(|error| format!("{name}: {error}"))?;
            *request.headers_mut() = fields;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| format!("an async runtime cannot be started: {error}"))?;
            let settings = CallSettings { connect_timeout: TIMEOUT, timeout: TIMEOUT, ..CallSettings::default() };
            let answer = runtime.block_on(http.call(&service, request, &settings));
            answer.map_err(|error| format!("{name}: {error}"))
        };
        spawn_blocking(asking).await.unwrap_or_else(|_| Err("the request failed".to_owned()))
    }
}
