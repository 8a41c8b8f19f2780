//! How an authority is asked: a connection for each question, as there are a dozen of them in two months.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{HOST, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_net::tls::{Client, ServerName};

/// An answer takes no longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// No answer is longer: chains have some kilobytes.
const MOST_BYTES: usize = 1 << 20;

/// Asks over HTTPS, in HTTP/1.1.
#[derive(Clone)]
pub(super) struct Http {
    tls: TlsConnector,
    told_to_wait: Arc<Mutex<Option<SystemTime>>>,
}

/// There was no answer. That is no refusal.
#[derive(Debug)]
pub(super) struct NoAnswer(String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for NoAnswer {}

impl Http {
    pub(super) fn new(client: &Client) -> Http {
        Http { tls: Arc::clone(client.config()).into(), told_to_wait: Arc::default() }
    }

    /// Until when the authority wants to be left alone, if it has said so since this was asked last.
    pub(super) fn told_to_wait(&self) -> Option<SystemTime> {
        self.told_to_wait.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn ask(self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, NoAnswer> {
        let uri = request.uri().clone();
        let host = uri.host().unwrap_or_default().to_owned();
        let no_answer = |error: &dyn fmt::Display| NoAnswer(format!("{host} gives no answer: {error}"));
        match tokio::time::timeout(PATIENCE, self.exchange(&uri, request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(no_answer(&error)),
            Err(_) => Err(no_answer(&format_args!("none within {} s", PATIENCE.as_secs()))),
        }
    }

    async fn exchange(
        &self,
        uri: &Uri,
        mut request: Request<BodyWrapper<Bytes>>,
    ) -> Result<Response<Full<Bytes>>, Box<dyn StdError + Send + Sync>> {
        let authority = uri.authority().ok_or("its URL names no host")?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())?;
        let tcp = TcpStream::connect((host, authority.port_u16().unwrap_or(443))).await?;
        let tls = self.tls.connect(name, tcp).await?;
        let (mut sender, connection) = handshake(TokioIo::new(tls)).await?;
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
        *request.uri_mut() = uri.path_and_query().map_or("/", |target| target.as_str()).parse()?;
        // Nothing is asked a second time, so the sender goes with the answer.
        let answer = pin!(async move {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MOST_BYTES).collect().await?.to_bytes();
            Ok::<_, Box<dyn StdError + Send + Sync>>(Response::from_parts(parts, Full::new(body)))
        });
        // The connection moves only while somebody looks after it. What goes wrong with it the answer says, too.
        let response = match select(answer, pin!(connection)).await {
            Either::Left((response, _)) => response?,
            Either::Right((_, answer)) => answer.await?,
        };
        self.note(&response);
        Ok(response)
    }

    /// Remembers what an authority that is asked too often says of it.
    fn note(&self, response: &Response<Full<Bytes>>) {
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

impl HttpClient for Http {
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
