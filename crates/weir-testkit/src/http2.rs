//! Sends requests that are written as HTTP/1 text over HTTP/2: what a feature does must not depend on the protocol.
//!
//! With `WEIR_TEST_HTTP2` in the environment, the clients of a [`crate::Gateway`] do so for all requests that have the
//! same meaning in HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use http::{HeaderMap, HeaderValue, Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;

use crate::reading::ReadError;
use crate::secured;
use crate::wait::DEADLINE;
use crate::wire::{BodyFraming, Fields, Response};

/// Whether tests use HTTP/2.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("WEIR_TEST_HTTP2").is_some()
}

/// One connection, with one request at a time.
pub(crate) struct Http2Connection {
    runtime: Runtime,
    requests: SendRequest<Bytes>,
}

impl Http2Connection {
    pub(crate) fn connect(address: SocketAddr) -> std::io::Result<Http2Connection> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let requests = runtime.block_on(async {
            let tcp = TcpStream::connect(address).await?;
            tcp.set_nodelay(true)?;
            match secured::client_for(address) {
                None => requests_over(tcp).await,
                Some(tls) => {
                    let connector = TlsConnector::from(Arc::clone(tls.speaking(&["h2"]).config()));
                    let name = secured::NAME.try_into().expect("it is a host");
                    requests_over(connector.connect(name, tcp).await?).await
                }
            }
        })?;
        Ok(Http2Connection { runtime, requests })
    }

    pub(crate) fn ask(&mut self, request: Request<Bytes>) -> Result<Response, ReadError> {
        self.ask_noting(request, || ())
    }

    /// The same; `arrived` is called for each part of the content that has come.
    pub(crate) fn ask_noting(
        &mut self,
        request: Request<Bytes>,
        mut arrived: impl FnMut(),
    ) -> Result<Response, ReadError> {
        let (head, body) = request.into_parts();
        let requests = self.requests.clone();
        let answer = async move {
            let mut requests = requests.ready().await?;
            let (response, mut sending) = requests.send_request(Request::from_parts(head, ()), body.is_empty())?;
            if !body.is_empty() {
                // The library waits for the flow-control window. A server that answers early may refuse the rest, so
                // errors are ignored.
                let _ = sending.send_data(body, true);
            }
            let (head, mut content) = response.await?.into_parts();
            let mut body = Vec::new();
            while let Some(piece) = content.data().await {
                let piece = piece?;
                arrived();
                content.flow_control().release_capacity(piece.len())?;
                body.extend_from_slice(&piece);
            }
            let trailers = content.trailers().await?.unwrap_or_default();
            Ok::<_, h2::Error>((head, body, trailers))
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(DEADLINE, answer).await });
        let (head, body, trailers) = answer
            .map_err(|_| ReadError::TimedOut { partial: String::new() })?
            .map_err(|error| ReadError::Reset { partial: error.to_string() })?;
        let headers = fields(&head.headers);
        let length = headers.get("content-length").and_then(|length| length.parse().ok());
        Ok(Response {
            status: head.status.as_u16(),
            reason: head.status.canonical_reason().unwrap_or_default().to_owned(),
            version: "HTTP/2.0".to_owned(),
            framing: length.map_or(BodyFraming::Close, BodyFraming::Length),
            headers,
            body,
            trailers: fields(&trailers),
            informational: Vec::new(),
        })
    }
}

/// Starts HTTP/2 on a connection, whose driver runs in a task of its own.
async fn requests_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> std::io::Result<SendRequest<Bytes>> {
    let (requests, connection) = handshake(stream).await.map_err(std::io::Error::other)?;
    // Errors of the connection are reported by its streams.
    tokio::spawn(async move { drop(connection.await) });
    Ok(requests)
}

/// The same request for HTTP/2; `None` if the text contains something that only exists in HTTP/1.
pub(crate) fn request(text: &[u8]) -> Option<Request<Bytes>> {
    const ONLY_THERE: [&str; 4] = ["connection", "transfer-encoding", "upgrade", "expect"];
    let end = text.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let (head, body) = (text.get(..end)?, text.get(end + 4..)?);
    let mut lines = head.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut first = std::str::from_utf8(lines.next()?).ok()?.splitn(3, ' ');
    let (method, target, version) = (first.next()?, first.next()?, first.next()?);
    if version != "HTTP/1.1" || !target.starts_with('/') {
        return None;
    }
    let mut headers = HeaderMap::new();
    let mut host = None;
    for line in lines {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = std::str::from_utf8(&line[..colon]).ok()?.to_ascii_lowercase();
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        match &*name {
            "host" if host.is_none() => host = Some(value.to_str().ok()?.to_owned()),
            "host" => return None,
            name if ONLY_THERE.contains(&name) => return None,
            _ => _ = headers.append(http::HeaderName::from_bytes(name.as_bytes()).ok()?, value),
        }
    }
    let length = headers.get("content-length").and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.unwrap_or(0) != body.len() {
        return None;
    }
    let host = host?;
    let uri: Uri = format!("http://{host}{target}").parse().ok()?;
    if uri.authority().is_none_or(|authority| authority.as_str() != host) {
        return None;
    }
    let mut request = Request::builder().method(method).uri(uri).body(Bytes::copy_from_slice(body)).ok()?;
    *request.headers_mut() = headers;
    Some(request)
}

/// The fields of a message, with each byte as a character.
pub fn fields(map: &HeaderMap) -> Fields {
    let text = |value: &HeaderValue| value.as_bytes().iter().map(|&byte| char::from(byte)).collect();
    Fields(map.iter().map(|(name, value)| (name.to_string(), text(value))).collect())
}
