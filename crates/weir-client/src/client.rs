//! The HTTP client.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::call_content::CallContent;
use crate::content::{AnswerContent, AnswerTrailers};
use crate::error::CallError;
use crate::pool::{self, ConnectionKey, PooledConnection, SendError};
use crate::redirect;
use crate::resolver::Resolver;
use crate::settings::{CallSettings, HttpClientSettings, ServerVerification, SharedSettings};
use crate::tls::{TlsConfigs, TlsKey};
use crate::url::ServiceUrl;

/// An HTTP client. Creating one opens no connection. Clones, and clients with equal settings, share the connections of a thread.
#[derive(Clone, Debug)]
pub struct HttpClient(Arc<ClientState>);

#[derive(Debug)]
struct ClientState {
    settings: SharedSettings,
    resolver: Resolver,
    tls: TlsConfigs,
}

impl Default for HttpClient {
    fn default() -> Self {
        HttpClient::new(HttpClientSettings::default())
    }
}

impl HttpClient {
    pub fn new(settings: HttpClientSettings) -> HttpClient {
        let resolver = Resolver::new(settings.dns.clone());
        HttpClient(Arc::new(ClientState {
            settings: SharedSettings::new(settings),
            resolver,
            tls: TlsConfigs::default(),
        }))
    }

    pub fn settings(&self) -> &HttpClientSettings {
        self.0.settings.get()
    }

    pub fn resolver(&self) -> &Resolver {
        &self.0.resolver
    }

    /// Builds the TLS configuration for these settings in advance: reading the system's CAs blocks.
    ///
    /// # Errors
    /// A CA certificate cannot be used, or the system has none.
    pub fn prepare_tls(&self, how: &CallSettings) -> std::io::Result<()> {
        self.tls_connector(how).map(drop)
    }

    pub(crate) fn tls_connector(&self, how: &CallSettings) -> std::io::Result<TlsConnector> {
        self.0.tls.connector(&self.settings().authorities, &how.verification, Some(how.protocol))
    }

    pub(crate) fn stream_connector(&self, verification: &ServerVerification) -> std::io::Result<TlsConnector> {
        self.0.tls.connector(&self.settings().authorities, verification, None)
    }

    /// Sends a request and waits for the complete response. The request's URI is a path and query, or empty for those of `to`;
    /// `Host` is set unless present. A response with any status is `Ok`; trailer fields are in
    /// its extensions ([`AnswerTrailers`]).
    ///
    /// # Errors
    /// There is no complete response within [`CallSettings::timeout`].
    pub async fn call(
        &self,
        to: &ServiceUrl,
        request: Request<Bytes>,
        how: &CallSettings,
    ) -> Result<Response<Bytes>, CallError> {
        let deadline = Instant::now() + how.timeout;
        let (mut head, content) = self.follow(to, request, how, deadline).await?.into_parts();
        let (content, trailers) = content.collect(deadline).await?;
        if !trailers.is_empty() {
            head.extensions.insert(AnswerTrailers(trailers));
        }
        Ok(Response::from_parts(head, content))
    }

    /// Like [`HttpClient::call`], but returns with the head of the response; its content is read piece by piece.
    ///
    /// # Errors
    /// There is no response head within [`CallSettings::timeout`].
    pub async fn open(
        &self,
        to: &ServiceUrl,
        request: Request<Bytes>,
        how: &CallSettings,
    ) -> Result<Response<AnswerContent>, CallError> {
        self.follow(to, request, how, Instant::now() + how.timeout).await
    }

    /// Keeps the connections of these settings to this origin for no further call of this thread. They close with the calls in progress.
    pub fn forget(&self, to: &ServiceUrl, how: &CallSettings) {
        pool::forget(&self.connection_key(to, how));
    }

    pub(crate) fn connection_key(&self, to: &ServiceUrl, how: &CallSettings) -> ConnectionKey {
        ConnectionKey {
            settings: self.0.settings.clone(),
            origin: Arc::clone(&to.origin),
            tls: to.origin.is_https.then(|| TlsKey::of(&how.verification, how.protocol)),
            protocol: how.protocol,
        }
    }

    async fn follow(
        &self,
        to: &ServiceUrl,
        mut request: Request<Bytes>,
        how: &CallSettings,
        deadline: Instant,
    ) -> Result<Response<AnswerContent>, CallError> {
        if request.uri().path_and_query().is_none_or(|target| target == "/") && request.uri().authority().is_none() {
            *request.uri_mut() = to.target().clone().into();
        }
        let mut to = to.clone();
        let mut left = how.max_redirects;
        loop {
            let answer = self.exchange(&to, &request, how, deadline).await?;
            if how.max_redirects == 0 {
                return Ok(answer);
            }
            let Some(redirected) = redirect::next(&to, &request, answer.status(), answer.headers())? else {
                return Ok(answer);
            };
            if left == 0 {
                let reason = format!("there were {} before it", how.max_redirects);
                return Err(CallError::Redirect { origin: to.origin().to_string(), reason });
            }
            left -= 1;
            (to, request) = redirected;
        }
    }

    /// Sends the request on an idle connection, or on a new one.
    async fn exchange(
        &self,
        to: &ServiceUrl,
        request: &Request<Bytes>,
        how: &CallSettings,
        deadline: Instant,
    ) -> Result<Response<AnswerContent>, CallError> {
        let key = self.connection_key(to, how);
        let late = || CallError::AnswerTimedOut { origin: to.origin.to_string(), after: how.timeout };
        while let Some(mut connection) = pool::take(&key) {
            let sent = connection.send(whole(to, request, connection.is_http2())?);
            let sent = timeout_at(deadline, sent).await;
            // Also after a time-out: the connection may be one that the network has lost, and all further calls share it.
            if !matches!(sent, Ok(Ok(_))) && connection.is_http2() {
                pool::forget_http2(&key);
            }
            match sent.map_err(|_| late())? {
                Ok(answer) => return Ok(streamed(answer, key, connection, how)),
                // The server closed the connection while it was idle. Nothing of the request was sent, or repeating it is
                // harmless (RFC 9110 §9.2.2).
                Err(SendError::Failed { unsent: true, .. }) => {}
                Err(SendError::Failed { error, .. }) if is_stale(&error) && request.method().is_idempotent() => {}
                // Another call on the connection may have caused it. This is the last try: the next connection is a new one.
                Err(SendError::Excess(_)) if connection.is_http2() && request.method().is_idempotent() => {}
                Err(failed) => return Err(call_error(to, failed)),
            }
        }
        let mut connection = match timeout_at(deadline, self.connect(&to.origin, how)).await {
            Ok(connected) => connected?,
            Err(_) => return Err(late()),
        };
        let sent = connection.send(whole(to, request, connection.is_http2())?);
        match timeout_at(deadline, sent).await.map_err(|_| late())? {
            Ok(answer) => {
                // Other calls can use the connection at once.
                if let Some(shared) = connection.shared() {
                    pool::keep(&key, shared, how.idle);
                }
                Ok(streamed(answer, key, connection, how))
            }
            Err(failed) => Err(call_error(to, failed)),
        }
    }
}

pub(crate) fn call_error(to: &ServiceUrl, failed: SendError) -> CallError {
    let origin = to.origin.to_string();
    match failed {
        SendError::Excess(excess) => CallError::Excess { origin, excess },
        SendError::Failed { error, .. } => CallError::Broken { origin, error },
    }
}

fn streamed(
    answer: Response<Incoming>,
    key: ConnectionKey,
    connection: PooledConnection,
    how: &CallSettings,
) -> Response<AnswerContent> {
    answer.map(|incoming| AnswerContent::new(incoming, key, connection, how.clone()))
}

fn whole(to: &ServiceUrl, request: &Request<Bytes>, is_http2: bool) -> Result<Request<CallContent>, CallError> {
    Ok(prepared(to, request, is_http2)?.map(|content| CallContent::Whole(Full::new(content))))
}

/// Converts the request to the protocol: HTTP/1.1 has a path and `Host`, HTTP/2 a scheme and an authority.
pub(crate) fn prepared<B: Clone>(
    to: &ServiceUrl,
    request: &Request<B>,
    is_http2: bool,
) -> Result<Request<B>, CallError> {
    let mut request = request.clone();
    let target = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    if !is_http2 {
        *request.uri_mut() = target.into();
        request.headers_mut().entry(HOST).or_insert_with(|| to.authority.clone());
        return Ok(request);
    }
    let invalid = |error: &dyn std::fmt::Display| CallError::Request(error.to_string());
    let host = request.headers_mut().remove(HOST).unwrap_or_else(|| to.authority.clone());
    let authority = Authority::try_from(host.as_bytes()).map_err(|error| invalid(&error))?;
    let scheme = if to.origin.is_https { Scheme::HTTPS } else { Scheme::HTTP };
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build();
    *request.uri_mut() = uri.map_err(|error| invalid(&error))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}

/// Whether a reused connection was closed before the first byte of a response.
fn is_stale(error: &hyper::Error) -> bool {
    error.is_incomplete_message() || error.is_canceled() || error.is_closed() || is_reset(error)
}

fn is_reset(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
    })
}
