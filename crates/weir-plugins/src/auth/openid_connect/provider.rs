//! A provider: its discovery document (OpenID Connect Discovery 1.0 §3), its keys (RFC 7517), and calls to its endpoints. All
//! workers share document and keys: one request at a time is sent for each, however many exchanges wait. They share refreshes, too.

mod document;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};
use tokio::sync::watch;
use weir_client::{CallError, HttpClient, IdleConnections};
use weir_plugin::{Build, ConfigError, form};
use weir_services::http_service::HttpService;
use weir_tokens::{ClientAuthMethod, OpenidClient, ProviderMetadata, SigningKey};

use self::document::SharedDocument;
use crate::auth::json_bytes::map_bytes;
use crate::auth::recent::{RecentResults, SecretDigest};

/// The configuration of a provider, and of this client.
pub(crate) struct Provider {
    http: HttpClient,
    source: ProviderSource,
    /// The name in the log.
    name: String,
    timeout: Duration,
    verify: bool,
    keys_for: Duration,
    pub client: OpenidClient,
    metadata: SharedDocument<ProviderMetadata>,
    keys: SharedDocument<[SigningKey]>,
    renewals: Arc<Renewals>,
}

/// The source of the provider's metadata.
#[derive(Clone)]
enum ProviderSource {
    /// The provider's discovery document.
    Discovery(HttpService),
    /// The configuration: only the URL of its keys.
    KeySet(ProviderMetadata),
}

/// The URL in the configuration: of the discovery document, or of the keys.
pub(crate) enum ProviderUrl<'a> {
    Discovery(&'a str),
    KeySet(&'a str),
    /// Nothing is read: the key of tokens is in the configuration.
    None,
}

/// An endpoint of the provider.
pub(super) struct ProviderEndpoint {
    url: String,
    service: HttpService,
}

/// The URL of the token endpoint.
pub(super) fn token_endpoint(metadata: &ProviderMetadata) -> Result<&str, ProviderError> {
    metadata.token_endpoint.as_deref().ok_or_else(|| missing_endpoint("token_endpoint"))
}

/// The discovery document has no such member.
pub(super) fn missing_endpoint(endpoint: &str) -> ProviderError {
    ProviderError::Answer(format!("the discovery document has no `{endpoint}`"))
}

/// The most bytes of an answer.
const MOST_ANSWERED: usize = 1024 * 1024;
/// The shortest interval between two fetches of the keys, and between a fetch that has failed and the next one. A token with an
/// unknown key causes a fetch, and any client can send such tokens.
const REFRESH: Duration = Duration::from_secs(5);

/// Why a call to the provider failed.
#[derive(Debug)]
pub(crate) enum ProviderError {
    Service(String, CallError),
    /// The status of the answer is neither 200 nor 201.
    Refused(String, u16),
    /// The answer is not valid.
    Answer(String),
    /// The last fetch has failed, with this error, and the next one is not due.
    Recent(Arc<str>),
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProviderError::Service(name, failure) => write!(f, "{name}: {failure}"),
            ProviderError::Refused(name, status) => write!(f, "{name} answers with {status}"),
            ProviderError::Answer(what) => f.write_str(what),
            ProviderError::Recent(what) => write!(f, "{what} (asked again after {} s)", REFRESH.as_secs()),
        }
    }
}

/// The answer to a refresh token; `None` if the provider does not accept it.
pub(super) type RefreshAnswer = Option<Arc<Map<String, Value>>>;
/// The result of a refresh; `None` while it is awaited. An error is its text.
type RenewalResult = Option<Result<RefreshAnswer, Arc<str>>>;
type Renewal = watch::Receiver<RenewalResult>;

/// How long the answer to a refresh token is kept: a browser sends several requests at a time with the session that it has.
const RENEWED: Duration = Duration::from_secs(10);
/// The most renewals that are kept of a provider.
const MOST_RENEWALS: usize = 4096;
/// The most bytes of their answers.
const MOST_RENEWAL_BYTES: usize = 16 << 20;

/// Refreshes in progress, and those that have just ended, by digest of their refresh token. All workers share them: requests of
/// one session come to any of them, and a provider that sees a token twice may end the session.
struct Renewals(Mutex<RecentResults<Renewal>>);

impl Default for Renewals {
    fn default() -> Renewals {
        Renewals(Mutex::new(RecentResults::new(MOST_RENEWALS).with_most_bytes(MOST_RENEWAL_BYTES)))
    }
}

impl Renewals {
    /// The refresh with this token, and its sender if the caller has to begin it.
    fn join(&self, mark: SecretDigest, until: Instant) -> (Renewal, Option<watch::Sender<RenewalResult>>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(renewal) = all.find(mark) {
            return (renewal, None);
        }
        let (sender, renewal) = watch::channel(None);
        all.keep(mark, renewal.clone(), until);
        (renewal, Some(sender))
    }

    fn keep(&self, mark: SecretDigest, renewal: Renewal, until: Instant, bytes: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keep_sized(mark, renewal, until, bytes);
    }
}

impl Provider {
    pub(crate) fn new(
        url: ProviderUrl<'_>,
        verify: bool,
        timeout: Duration,
        keys_for: Duration,
        client: OpenidClient,
        build: &Build,
    ) -> Result<Provider, ConfigError> {
        let http = build.http();
        let parsed = |text, option| HttpService::parse(http, text, verify, timeout, IDLE, option);
        let (source, name, timeout, identity) = match url {
            ProviderUrl::Discovery(text) => {
                let service = parsed(text, "discovery")?;
                let (name, timeout, target) = (service.name(), service.timeout, service.target.clone());
                let identity = format!("discovery {name} {target} {verify}");
                (ProviderSource::Discovery(service), name, timeout, identity)
            }
            ProviderUrl::KeySet(text) => {
                let service = parsed(text, "jwks_uri")?;
                let (name, timeout) = (service.name(), service.timeout);
                let identity = format!("jwks_uri {name} {} {verify}", service.target);
                let known = ProviderMetadata { jwks_uri: Some(text.to_owned()), ..ProviderMetadata::default() };
                (ProviderSource::KeySet(known), name, timeout, identity)
            }
            ProviderUrl::None => {
                (ProviderSource::KeySet(ProviderMetadata::default()), String::new(), timeout, "public_key".to_owned())
            }
        };
        let metadata = SharedDocument::of(build, "openid-metadata", &identity, timeout);
        let keys = SharedDocument::of(build, "openid-keys", &identity, timeout);
        let renewals = build.shared("openid-provider", &identity, Renewals::default);
        Ok(Provider { http: http.clone(), source, name, timeout, verify, keys_for, client, metadata, keys, renewals })
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn discovery(&self) -> Result<Arc<ProviderMetadata>, ProviderError> {
        if let Some(found) = self.metadata.find(self.keys_for) {
            return found;
        }
        let source = self.source.clone();
        let read = async move {
            match source {
                ProviderSource::Discovery(service) => Ok(Arc::new(read(&service, question(&service.target)?).await?)),
                ProviderSource::KeySet(known) => Ok(Arc::new(known)),
            }
        };
        self.metadata.fetch(self.keys_for, read).await
    }

    /// The provider's keys; fetched again if the cached ones are older than `age`.
    pub(super) async fn keys(&self, age: Duration) -> Result<Arc<[SigningKey]>, ProviderError> {
        let discovery = self.discovery().await?;
        if let Some(found) = self.keys.find(age) {
            return found;
        }
        let uri = discovery.jwks_uri.as_deref().ok_or_else(|| missing_endpoint("jwks_uri"))?;
        let service = self.endpoint(uri)?.service;
        let read = async move {
            let set: Map<String, Value> = read(&service, question(&service.target)?).await?;
            Ok(SigningKey::of_set(&set).into())
        };
        self.keys.fetch(age, read).await
    }

    /// The keys for a token; fetched again if no cached key fits.
    pub(super) async fn keys_for(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<[SigningKey]>, ProviderError> {
        let keys = self.keys(self.keys_for).await?;
        if keys.iter().any(|key| key.is_for(id, algorithm)) {
            return Ok(keys);
        }
        self.keys(REFRESH).await
    }

    /// The endpoint at this URL.
    pub(super) fn endpoint(&self, url: &str) -> Result<ProviderEndpoint, ProviderError> {
        let service = HttpService::parse(&self.http, url, self.verify, self.timeout(), IDLE, "");
        let service = service.map_err(|error| ProviderError::Answer(error.problem))?;
        Ok(ProviderEndpoint { url: url.to_owned(), service })
    }

    /// Sends a GET to an endpoint with a user's access token.
    pub(super) async fn get_as(
        &self,
        endpoint: &ProviderEndpoint,
        token: &str,
    ) -> Result<Map<String, Value>, ProviderError> {
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| ProviderError::Answer("the access token is not a valid field value".to_owned()))?;
        value.set_sensitive(true);
        let mut request = question(&endpoint.service.target)?;
        request.headers_mut().insert(AUTHORIZATION, value);
        read(&endpoint.service, request).await
    }

    /// Sends a form with this client's credentials, and parses the JSON answer.
    pub(super) async fn post(
        &self,
        endpoint: &ProviderEndpoint,
        proof: ClientAuthMethod,
        fields: HeaderMap,
        pairs: &[(&str, &str)],
    ) -> Result<Map<String, Value>, ProviderError> {
        read(&endpoint.service, self.form(endpoint, proof, fields, pairs)?).await
    }

    /// Revokes a token (RFC 7009), whose answer has no content that matters.
    pub(super) async fn revoke(
        &self,
        endpoint: &ProviderEndpoint,
        proof: ClientAuthMethod,
        token: &str,
        kind: &str,
    ) -> Result<(), ProviderError> {
        let pairs = [("token", token), ("token_type_hint", kind)];
        ask(&endpoint.service, self.form(endpoint, proof, HeaderMap::new(), &pairs)?).await.map(drop)
    }

    /// Sends the form of a refresh, and parses the JSON answer. Exchanges that have the same refresh token share one request,
    /// since a provider may accept the token only once (RFC 9700 §4.14.2). Like a fetch, the request does not end with the
    /// exchange that began it.
    pub(super) async fn refresh(
        &self,
        endpoint: ProviderEndpoint,
        proof: ClientAuthMethod,
        token: &str,
    ) -> Result<RefreshAnswer, ProviderError> {
        let mark = SecretDigest::of(&[self.client.id.as_bytes(), token.as_bytes()]);
        let pairs = [("grant_type", "refresh_token"), ("refresh_token", token)];
        let request = self.form(&endpoint, proof, HeaderMap::new(), &pairs)?;
        let (mut renewal, begun) = self.renewals.join(mark, Instant::now() + self.timeout + RENEWED);
        if let Some(sender) = begun {
            let renewals = Arc::clone(&self.renewals);
            tokio::task::spawn_local(async move {
                let answer = match read(&endpoint.service, request).await {
                    Ok(answer) => Ok(Some(Arc::new(answer))),
                    // RFC 6749 §5.2.
                    Err(ProviderError::Refused(_, 400)) => Ok(None),
                    Err(trouble) => Err(Arc::from(trouble.to_string())),
                };
                let kept_for = if answer.is_ok() { RENEWED } else { Duration::ZERO };
                let bytes = answer.as_ref().ok().and_then(Option::as_ref).map_or(0, |answer| map_bytes(answer));
                let renewal = sender.subscribe();
                sender.send_replace(Some(answer));
                renewals.keep(mark, renewal, Instant::now() + kept_for, bytes);
            });
        }
        let answer = renewal.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        match answer {
            Some(answer) => answer.map_err(|why| ProviderError::Answer(why.to_string())),
            None => Err(ProviderError::Answer("the refresh was cancelled".to_owned())),
        }
    }

    /// The request for a form with this client's credentials.
    fn form(
        &self,
        endpoint: &ProviderEndpoint,
        proof: ClientAuthMethod,
        mut fields: HeaderMap,
        pairs: &[(&str, &str)],
    ) -> Result<Request<Full<Bytes>>, ProviderError> {
        let mut body = form::encoded_pairs(pairs);
        let proved = self.client.prove(proof, &endpoint.url, &mut fields, &mut body);
        proved.map_err(|problem| ProviderError::Answer(problem.to_owned()))?;
        let mut request = Request::new(Full::default());
        *request.headers_mut() = fields;
        *request.method_mut() = Method::POST;
        let target = endpoint.service.target.parse();
        *request.uri_mut() =
            target.map_err(|_| ProviderError::Answer("the path of the URL is not valid".to_owned()))?;
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, kind);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        *request.body_mut() = Full::new(Bytes::from(body));
        Ok(request)
    }
}

const IDLE: IdleConnections = IdleConnections { max_per_origin: 2, timeout: Duration::from_secs(60) };

fn question(target: &str) -> Result<Request<Full<Bytes>>, ProviderError> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() =
        target.parse().map_err(|_| ProviderError::Answer("the path of the URL is not valid".to_owned()))?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    Ok(request)
}

async fn read<T: serde::de::DeserializeOwned>(
    service: &HttpService,
    request: Request<Full<Bytes>>,
) -> Result<T, ProviderError> {
    let answer = ask(service, request).await?;
    serde_json::from_slice(&answer)
        .map_err(|error| ProviderError::Answer(format!("{} sent an unexpected answer: {error}", service.name())))
}

/// The content of a successful answer.
async fn ask(service: &HttpService, request: Request<Full<Bytes>>) -> Result<Bytes, ProviderError> {
    let answer = service.ask(request, MOST_ANSWERED).await;
    let answer = answer.map_err(|failure| ProviderError::Service(service.name(), failure))?;
    match answer.status().as_u16() {
        // 201 is the answer to a pushed authorization request (RFC 9126 §2.2).
        200 | 201 => Ok(answer.into_body()),
        status => Err(ProviderError::Refused(service.name(), status)),
    }
}
