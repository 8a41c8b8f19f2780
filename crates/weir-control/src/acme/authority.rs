//! The HTTP client for requests to an authority.

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
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
}

tokio::task_local! {
    /// When the authority wants the next request of the order in progress: the last `Retry-After` of its responses.
    static TOLD_TO_WAIT: Cell<Option<SystemTime>>;
}

/// Runs an order; returns the time of the last `Retry-After` that it was told, if there was one.
pub(super) async fn noting_waits<T>(order: impl Future<Output = T>) -> (T, Option<SystemTime>) {
    let noting = async {
        let end = order.await;
        (end, TOLD_TO_WAIT.with(Cell::get))
    };
    TOLD_TO_WAIT.scope(Cell::new(None), noting).await
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
        AuthorityClient { http, settings }
    }

    async fn ask(self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, NoAnswer> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let no_answer = |error: &dyn fmt::Display| NoAnswer(format!("no answer from {host}: {error}"));
        let to = ServiceUrl::of(request.uri()).map_err(|error| no_answer(&error))?;
        let (head, content) = request.into_parts();
        let content = content.collect().await.map_err(|error| no_answer(&error))?.to_bytes();
        let answer = self.http.call(&to, Request::from_parts(head, content), &self.settings).await;
        let answer = answer.map_err(|error| no_answer(&error))?;
        note(&answer);
        Ok(answer.map(Full::new))
    }
}

/// Stores the `Retry-After` of a response with status 429 or 503.
fn note(response: &Response<Bytes>) {
    if !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return;
    }
    let told = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let until = told.and_then(|told| match told.trim().parse() {
        Ok(seconds) => SystemTime::now().checked_add(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(told.trim()).ok(),
    });
    // Requests outside of an order have nothing to note.
    let _ = TOLD_TO_WAIT.try_with(|told| told.set(until));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_is_for_the_order_that_was_told_to() {
        let answered = async |status: u16, seconds: u32| {
            tokio::task::yield_now().await;
            note(
                &Response::builder()
                    .status(status)
                    .header(RETRY_AFTER, seconds)
                    .body(Bytes::new())
                    .expect("a response"),
            );
            tokio::task::yield_now().await;
        };
        let (limited, other, away) = tokio::join!(
            noting_waits(answered(429, 86_400)),
            noting_waits(answered(400, 86_400)),
            noting_waits(answered(503, 10)),
        );
        let seconds = |told: Option<SystemTime>| {
            told.map(|until| until.duration_since(SystemTime::now()).expect("it is later").as_secs().div_ceil(10))
        };
        assert_eq!((seconds(limited.1), seconds(other.1), seconds(away.1)), (Some(8_640), None, Some(1)));
        answered(429, 10).await;
    }
}
