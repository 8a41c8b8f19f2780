//! HTTP/1.1 of the backend. A request that is received at once is answered with one write, and without allocations.

use std::io;
use std::rc::Rc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::prefixed::Prefixed;
use super::request::{BackendRequest, action_of};
use super::{BackendAnswer, BackendConnection, BackendState, InjectedFailureKind, OpenWork, http2, sse, websocket};
use crate::chunked::{Chunked, MalformedMessage};
use crate::engine::filler;

/// The longest accepted head, in bytes.
const LONGEST_HEAD: usize = 64 * 1024;
/// The longest body that is echoed, in bytes.
const LONGEST_BODY: u64 = 64 * 1024 * 1024;
/// The same answer as nginx's `return 200 'OK'`.
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nOK";
/// Start of an HTTP/2 connection (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The parsed head of a request.
struct BackendHead {
    length: usize,
    target: std::ops::Range<usize>,
    body: RequestFraming,
    keep_alive: bool,
    /// The version is HTTP/1.0, so a persistent connection must be announced.
    old: bool,
    head_only: bool,
    upgrade: bool,
    expects_continue: bool,
}

/// What comes next on a connection.
enum NextMessage {
    Request(BackendHead),
    Http2,
    End,
}

enum RequestFraming {
    Length(u64),
    Chunked,
}

/// Serves a connection until it ends.
pub(super) async fn connection(
    mut stream: impl BackendConnection,
    host: Rc<BackendState>,
    open: OpenWork,
) -> io::Result<()> {
    // Until the first request has been answered, and then from the head of each to its answer.
    let mut open = Some(open);
    // Grows as needed; an idle connection keeps the capacity that its largest request needed.
    let mut buffer: Vec<u8> = Vec::with_capacity(1024);
    loop {
        let mut head = match next_message(&mut stream, &mut buffer).await? {
            NextMessage::Request(head) => head,
            NextMessage::Http2 => {
                let open = open.or_else(|| host.open());
                return http2::connection(Prefixed::new(buffer, stream), host.clone(), open).await;
            }
            NextMessage::End => return Ok(()),
        };
        open = open.or_else(|| host.open());
        let target = String::from_utf8_lossy(&buffer[head.target.clone()]);
        if head.upgrade {
            drop(open);
            let reverse = target.ends_with("/reverse");
            return websocket::connection(Prefixed::new(buffer, stream), host, reverse).await;
        }
        if head.expects_continue {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let requested = requested(&host, &target).await;
        let echoes = matches!(requested, BackendRequest::Answer { answer: BackendAnswer::Echo, .. });
        let body = body(&mut stream, &mut buffer, &head, echoes).await?;
        head.keep_alive &= !host.is_draining.get();
        match requested {
            BackendRequest::Answer { status: 200, answer: BackendAnswer::Ok }
                if head.keep_alive && !head.old && !head.head_only =>
            {
                stream.write_all(OK).await?;
            }
            BackendRequest::Answer { status, answer } => {
                stream.write_all(&response(&head, status, answer, body)).await?;
            }
            BackendRequest::Events(events) => {
                drop(open);
                return sse::events(stream, events).await;
            }
            BackendRequest::Fail(InjectedFailureKind::Hang) => {
                drop(open);
                return read_to_end(stream).await;
            }
            BackendRequest::Fail(InjectedFailureKind::Reset) => {
                return socket2::SockRef::from(stream.socket()).set_linger(Some(std::time::Duration::ZERO));
            }
            BackendRequest::Fail(_) => return Ok(()),
        }
        if !head.keep_alive {
            return stream.shutdown().await;
        }
        open = None;
    }
}

/// Reads until a head is there whole, or the beginning of HTTP/2.
async fn next_message(stream: &mut impl BackendConnection, buffer: &mut Vec<u8>) -> io::Result<NextMessage> {
    loop {
        match parse(buffer)? {
            Some(head) => return Ok(NextMessage::Request(head)),
            None if buffer.len() >= PREFACE.len() && buffer.starts_with(PREFACE) => return Ok(NextMessage::Http2),
            None if buffer.len() > LONGEST_HEAD => return Err(malformed()),
            None => {}
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(NextMessage::End);
        }
    }
}

/// Says nothing until the client ends the connection.
async fn read_to_end(mut stream: impl BackendConnection) -> io::Result<()> {
    let mut rest = [0; 512];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

async fn requested(host: &BackendState, target: &str) -> BackendRequest {
    match target {
        "/" if host.is_plain() => BackendRequest::Answer { status: 200, answer: host.behaviour.answer },
        target => action_of(host, target).await,
    }
}

/// Renders a whole response; `request_body` is for [`BackendAnswer::Echo`].
fn response(head: &BackendHead, status: u16, answer: BackendAnswer, request_body: Vec<u8>) -> Vec<u8> {
    let body = match answer {
        BackendAnswer::Ok => b"OK".to_vec(),
        BackendAnswer::Sized(bytes) => filler(bytes as usize),
        BackendAnswer::Echo => request_body,
    };
    let mut response = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n",
        http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or(""),
        body.len()
    )
    .into_bytes();
    if !head.keep_alive {
        response.extend_from_slice(b"Connection: close\r\n");
    } else if head.old {
        response.extend_from_slice(b"Connection: keep-alive\r\n");
    }
    response.extend_from_slice(b"\r\n");
    if !head.head_only && status != 204 && status != 304 {
        response.extend_from_slice(&body);
    }
    response
}

impl BackendState {
    /// Whether ordinary requests need neither delay, work nor failures.
    fn is_plain(&self) -> bool {
        self.behaviour.delay == super::BackendDelay::None
            && self.behaviour.work_ns == 0
            && self.behaviour.failure.is_none()
    }
}

/// Parses a head; `None` while it is incomplete.
fn parse(data: &[u8]) -> io::Result<Option<BackendHead>> {
    if data.is_empty() || PREFACE.starts_with(data) || data.starts_with(PREFACE) {
        return Ok(None);
    }
    let mut fields = [const { std::mem::MaybeUninit::uninit() }; 128];
    let mut request = httparse::Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(data, &mut fields).map_err(|_| malformed())?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let target = request.path.ok_or_else(malformed)?;
    let start = target.as_ptr() as usize - data.as_ptr() as usize;
    let old = request.version == Some(0);
    let mut head = BackendHead {
        length,
        target: start..start + target.len(),
        body: RequestFraming::Length(0),
        keep_alive: !old,
        old,
        head_only: request.method == Some("HEAD"),
        upgrade: false,
        expects_continue: false,
    };
    for field in request.headers.iter() {
        let has = |option: &[u8]| {
            field.value.split(|byte| *byte == b',').any(|value| value.trim_ascii().eq_ignore_ascii_case(option))
        };
        match field.name.len() {
            14 if field.name.eq_ignore_ascii_case("content-length") => {
                let value = std::str::from_utf8(field.value).ok().and_then(|value| value.trim().parse().ok());
                head.body = RequestFraming::Length(value.ok_or_else(malformed)?);
            }
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => head.body = RequestFraming::Chunked,
            10 if field.name.eq_ignore_ascii_case("connection") => {
                if has(b"close") {
                    head.keep_alive = false;
                } else if has(b"keep-alive") {
                    head.keep_alive = true;
                }
            }
            7 if field.name.eq_ignore_ascii_case("upgrade") => head.upgrade = has(b"websocket"),
            6 if field.name.eq_ignore_ascii_case("expect") => head.expects_continue = has(b"100-continue"),
            _ => {}
        }
    }
    Ok(Some(head))
}

/// Removes the request, head and body, from the buffer, after reading what is missing. Returns the body if it is `wanted`.
async fn body(
    stream: &mut impl BackendConnection,
    buffer: &mut Vec<u8>,
    head: &BackendHead,
    wanted: bool,
) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let RequestFraming::Length(length) = head.body {
        if length > LONGEST_BODY {
            return Err(malformed());
        }
        let whole = head.length + length as usize;
        if buffer.len() == whole && !wanted {
            buffer.clear();
            return Ok(kept);
        }
    }
    buffer.drain(..head.length);
    match head.body {
        RequestFraming::Length(length) => {
            let mut left = length as usize;
            loop {
                let here = left.min(buffer.len());
                if wanted {
                    kept.extend_from_slice(&buffer[..here]);
                }
                buffer.drain(..here);
                left -= here;
                if left == 0 {
                    return Ok(kept);
                }
                read_on(stream, buffer).await?;
            }
        }
        RequestFraming::Chunked => {
            let mut chunked = Chunked::default();
            loop {
                let end = chunked.feed(buffer, |content| {
                    if wanted {
                        kept.extend_from_slice(content);
                    }
                });
                match end.map_err(|MalformedMessage| malformed())? {
                    Some(used) => {
                        buffer.drain(..used);
                        return Ok(kept);
                    }
                    None if kept.len() as u64 > LONGEST_BODY => return Err(malformed()),
                    None => buffer.clear(),
                }
                read_on(stream, buffer).await?;
            }
        }
    }
}

async fn read_on(stream: &mut impl BackendConnection, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.reserve(16 * 1024);
    match stream.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
