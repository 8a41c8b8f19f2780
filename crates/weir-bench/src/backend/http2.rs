//! The backend's HTTP/2, and gRPC: every message comes back.

use std::io;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;

use super::request::{BackendRequest, wish};
use super::{BackendAnswer, BackendState};
use crate::engine::filler;

/// Flow-control window: large enough never to be what is measured.
const WINDOW: u32 = 16 * 1024 * 1024;

/// Serves a connection to its end.
pub(super) async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, host: Rc<BackendState>) -> io::Result<()> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(10_000)
        .handshake(stream)
        .await
        .map_err(io::Error::other)?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request.map_err(io::Error::other)?;
        // A stream that fails concerns nobody else.
        spawn_local(answer(request, respond, host.clone()));
    }
    Ok(())
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    host: Rc<BackendState>,
) -> Result<(), h2::Error> {
    let (head, body) = request.into_parts();
    let is_grpc = head
        .headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        return grpc(body, respond).await;
    }
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let (status, content) = match wish(&host, target).await {
        BackendRequest::Answer { status, answer } => {
            let body = collect(body).await?;
            let content = match answer {
                BackendAnswer::Ok => Bytes::from_static(b"OK"),
                BackendAnswer::Sized(bytes) => filler(bytes as usize).into(),
                BackendAnswer::Echo => body,
            };
            (status, content)
        }
        // Events are HTTP/1.1 only here; a failing stream is a reset one, whatever way was asked for.
        BackendRequest::Events(_) => (501, Bytes::from_static(b"events are sent over HTTP/1.1")),
        BackendRequest::Fail(_) => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        }
    };
    let response = Response::builder()
        .status(status)
        .header("content-type", "text/plain")
        .header("content-length", content.len())
        .body(())
        .expect("the parts are valid");
    let without_body = head.method == http::Method::HEAD || content.is_empty();
    let mut send = respond.send_response(response, without_body)?;
    if !without_body {
        send.send_data(content, true)?;
    }
    Ok(())
}

/// Each length-prefixed message goes back as it comes; the call ends with status 0.
async fn grpc(mut body: RecvStream, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let response =
        Response::builder().header("content-type", "application/grpc").body(()).expect("the parts are valid");
    let mut send = respond.send_response(response, false)?;
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        send.send_data(data, false)?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    send.send_trailers(trailers)
}

async fn collect(mut body: RecvStream) -> Result<Bytes, h2::Error> {
    let mut collected = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        collected.extend_from_slice(&data);
    }
    Ok(collected.freeze())
}
