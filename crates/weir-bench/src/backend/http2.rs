//! HTTP/2 of the backend, and gRPC, which echoes every message.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;

use super::request::{BackendRequest, action_of};
use super::{BackendAnswer, BackendPhase, BackendState, OpenWork};
use crate::engine::filler;

/// The flow-control window, large enough not to limit the throughput.
const WINDOW: u32 = 16 * 1024 * 1024;

/// Serves a connection until it ends.
pub(super) async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: Rc<BackendState>,
    _open: Option<OpenWork>,
) -> io::Result<()> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(10_000)
        .handshake(stream)
        .await
        .map_err(io::Error::other)?;
    let (mut phases, mut is_draining) = (host.phases.clone(), false);
    loop {
        let request = tokio::select! {
            request = connection.accept() => request,
            _ = phases.wait_for(|phase| *phase != BackendPhase::Serving), if !is_draining => {
                is_draining = true;
                connection.graceful_shutdown();
                continue;
            }
        };
        let Some(request) = request else { return Ok(()) };
        let (request, respond) = request.map_err(io::Error::other)?;
        // A stream that fails does not affect the others.
        spawn_local(answer(request, respond, host.clone()));
    }
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
        tokio::time::sleep(host.delay()).await;
        return grpc(&head.headers, body, respond).await;
    }
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let (status, content) = match action_of(&host, target).await {
        BackendRequest::Answer { status, answer } => {
            let body = collect(body).await?;
            let content = match answer {
                BackendAnswer::Ok => BackendContent::Whole(Bytes::from_static(b"OK")),
                BackendAnswer::Sized(bytes) => BackendContent::Sized { sent: 0, length: bytes },
                BackendAnswer::Echo => BackendContent::Whole(body),
            };
            (status, content)
        }
        // Events are supported with HTTP/1.1 only. Every kind of failure resets the stream.
        BackendRequest::Events(_) => (501, BackendContent::Whole(Bytes::from_static(b"events are sent over HTTP/1.1"))),
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
    let without_body = head.method == http::Method::HEAD || content.len() == 0;
    let mut send = respond.send_response(response, without_body)?;
    if without_body { Ok(()) } else { content.send(&mut send).await }
}

/// The content of an answer. Pieces are generated when the peer's flow-control windows have room for them: otherwise a
/// peer that opens no window, on thousands of streams, would cost the time and memory of all their contents, and delay
/// other peers.
enum BackendContent {
    Whole(Bytes),
    /// Printable bytes, as [`filler`] makes them.
    Sized {
        sent: u64,
        length: u64,
    },
}

/// The most bytes that are sent at once.
const PIECE: usize = 64 * 1024;
/// The number of bytes after which the filler repeats.
const PERIOD: usize = 36;
/// Filler for a piece that begins at any offset of the period.
static FILLER: LazyLock<Bytes> = LazyLock::new(|| filler(PIECE + PERIOD).into());

impl BackendContent {
    fn len(&self) -> u64 {
        match self {
            BackendContent::Whole(bytes) => bytes.len() as u64,
            BackendContent::Sized { sent, length } => length - sent,
        }
    }

    fn take(&mut self, most: usize) -> Bytes {
        match self {
            BackendContent::Whole(bytes) => bytes.split_to(most.min(bytes.len())),
            BackendContent::Sized { sent, length } => {
                let from = (*sent % PERIOD as u64) as usize;
                let piece = most.min(PIECE).min((*length - *sent) as usize);
                *sent += piece as u64;
                FILLER.slice(from..from + piece)
            }
        }
    }

    async fn send(self, send: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
        self.send_all(send, true).await
    }

    /// Sends the content; the stream goes on after it.
    async fn send_part(self, send: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
        self.send_all(send, false).await
    }

    async fn send_all(mut self, send: &mut SendStream<Bytes>, ends: bool) -> Result<(), h2::Error> {
        while self.len() > 0 {
            send.reserve_capacity(self.len().min(PIECE as u64) as usize);
            // `None` means that the peer has reset the stream.
            let Some(room) = poll_fn(|context| send.poll_capacity(context)).await else { return Ok(()) };
            let piece = self.take(room?);
            send.send_data(piece, ends && self.len() == 0)?;
        }
        Ok(())
    }
}

/// The most times that messages are sent back.
const MOST_REPEATED: u32 = 100_000;

/// Echoes each length-prefixed message, and all of them as often as the metadata asks for; the call ends with status 0 or the one
/// that the metadata asks for.
async fn grpc(metadata: &HeaderMap, mut body: RecvStream, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let asked = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    let response =
        Response::builder().header("content-type", "application/grpc").body(()).expect("the parts are valid");
    let mut send = respond.send_response(response, false)?;
    match asked("x-repeat") {
        None => {
            while let Some(data) = body.data().await {
                let data = data?;
                body.flow_control().release_capacity(data.len())?;
                send.send_data(data, false)?;
            }
        }
        Some(times) => {
            let messages = collect(body).await?;
            for _ in 0..times.min(MOST_REPEATED) {
                BackendContent::Whole(messages.clone()).send_part(&mut send).await?;
            }
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(asked("x-status").unwrap_or(0)));
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
