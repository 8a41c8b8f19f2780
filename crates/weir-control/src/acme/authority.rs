//! The HTTP client for requests to an authority.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error};
use weir_client::{CallSettings, HttpClient, HttpProtocol, ServerVerification, ServiceUrl};
use weir_net::tls;

/// The time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends the requests of `instant-acme`.
#[derive(Clone)]
pub(super) struct AuthorityClient {
    http: HttpClient,
    settings: CallSettings,
    told_to_wait: Arc<Mutex<Option<SystemTime>>>,
}

/// The authority did not respond, which is not a refusal.
#[derive(Debug)]
pub(super) struct NoAnswer(String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for NoAnswer {}

impl AuthorityClient {
    pub(super) fn new(http: HttpClient, tls: &tls::TlsConnector) -> AuthorityClient {
        let settings = CallSettings {
            connect_timeout: TIMEOUT,
            timeout: TIMEOUT,
            protocol: HttpProtocol::Negotiate,
            verification: ServerVerification::Terms(tls.clone()),
            ..CallSettings::default()
        };
        AuthorityClient { http, settings, told_to_wait: Arc::default() }
    }

    /// The time of the last `Retry-After` since the previous call, if there was one.
    pub(super) fn told_to_wait(&self) -> Option<SystemTime> {
        self.told_to_wait.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn ask(self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, NoAnswer> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let no_answer = |error: &dyn fmt::Display| NoAnswer(format!("no answer from {host}: {error}"));
        let to = ServiceUrl::of(request.uri()).map_err(|error| no_answer(&error))?;
        let (head, content) = request.into_parts();
        let content = content.collect().await.map_err(|error| no_answer(&error))?.to_bytes();
        let answer = self.http.call(&to, Request::from_parts(head, content), &self.settings).await;
        let answer = answer.map_err(|error| no_answer(&error))?;
        self.note(&answer);
        Ok(answer.map(Full::new))
    }

    /// Stores the `Retry-After` of a response with status 429 or 503.
    fn note(&self, response: &Response<Bytes>) {
        if !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            return;
        }
        let told = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let until = told.and_then(|told| match told.trim().parse() {
            Ok(seconds) => SystemTime::now().checked_add(Duration::from_secs(seconds)),
            Err(_) => httpdate::parse_http_date(told.trim()).ok(),
        });
        *self.told_to_wait.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

impl instant_acme::HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let http = self.clone();
        Box::pin(async move {
            let answer = http.ask(request).await;
            answer.map(BytesResponse::from).map_err(|error| Error::Other(Box::new(error)))
        })
    }
}
