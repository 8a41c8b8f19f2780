//! Asking a service over HTTP/1.1, with a connection for each question: the control plane has few.

use std::error::Error;
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_net::tls::ServerName;

/// No answer is longer.
const MOST_BYTES: usize = 1 << 20;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The answer to a request for an absolute URI, over TLS with what that takes.
pub(crate) async fn fetch<B>(request: Request<B>, tls: Option<&TlsConnector>) -> Result<Response<Bytes>, Failure>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Failure>,
{
    let authority = request.uri().authority().ok_or("the URL names no host")?.clone();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = |usual| authority.port_u16().unwrap_or(usual);
    match tls {
        None => exchange(TcpStream::connect((host, port(80))).await?, request).await,
        Some(connector) => {
            let name = ServerName::try_from(host.to_owned())?;
            let tcp = TcpStream::connect((host, port(443))).await?;
            exchange(connector.connect(name, tcp).await?, request).await
        }
    }
}

async fn exchange<B>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<B>,
) -> Result<Response<Bytes>, Failure>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Failure>,
{
    let uri = request.uri().clone();
    let authority = uri.authority().ok_or("the URL names no host")?;
    request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
    *request.uri_mut() = uri.path_and_query().map_or("/", |target| target.as_str()).parse()?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Nothing is asked a second time, so the sender goes with the answer.
    let answer = pin!(async move {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, MOST_BYTES).collect().await?.to_bytes();
        Ok::<_, Failure>(Response::from_parts(parts, body))
    });
    // The connection moves only while somebody looks after it. What goes wrong with it the answer says, too.
    match select(answer, pin!(connection)).await {
        Either::Left((response, _)) => response,
        Either::Right((_, answer)) => answer.await,
    }
}
