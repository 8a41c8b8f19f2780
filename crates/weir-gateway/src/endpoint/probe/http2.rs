//! Checks in HTTP/2: requests as in HTTP/1.1, and what gRPC has for the purpose.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::Builder;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, Uri};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_net::stream::Stream;

use super::CheckAnswer;
use crate::snapshot::Asked;

/// The largest head and the largest content of an answer.
const MOST: usize = 64 * 1024;

fn broken(error: h2::Error) -> io::Error {
    io::Error::other(error)
}

/// Sends a request; its answer's status.
pub async fn status(stream: Stream, asked: &Asked) -> io::Result<CheckAnswer> {
    let request = request(asked, stream.tls().is_some()).map_err(io::Error::other)?;
    let content = Bytes::copy_from_slice(asked.body.as_bytes());
    let head = async |response: Response<RecvStream>| Ok(CheckAnswer::Status(response.status().as_u16()));
    exchange(stream, request, content, head).await
}

/// Asks a gRPC server whether it serves (`grpc.health.v1.Health/Check`). Whatever it says else is that it does not.
pub async fn serves(stream: Stream, service: &str, host: &str) -> io::Result<CheckAnswer> {
    let asked = Asked { method: "POST".into(), path: "/grpc.health.v1.Health/Check".into(), ..Asked::of(host) };
    let mut request = request(&asked, stream.tls().is_some()).map_err(io::Error::other)?;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    let read = async |response: Response<RecvStream>| {
        let (head, mut body) = response.into_parts();
        let mut content = Vec::new();
        while let Some(piece) = body.data().await {
            content.extend_from_slice(&piece.map_err(broken)?);
            if content.len() > MOST {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let trailers = body.trailers().await.map_err(broken)?.unwrap_or(head.headers);
        let is_good = trailers.get("grpc-status").is_some_and(|status| status == "0");
        Ok(if is_good && serving(&content) { CheckAnswer::Well } else { CheckAnswer::Ill })
    };
    exchange(stream, request, question(service).into(), read).await
}

/// One exchange in a connection of its own.
async fn exchange<A>(
    stream: Stream,
    request: Request<()>,
    content: Bytes,
    read: impl AsyncFnOnce(Response<RecvStream>) -> io::Result<A>,
) -> io::Result<A> {
    if stream.tls().is_some_and(|session| session.protocol() != Some(b"h2")) {
        return Err(io::Error::other("it does not speak HTTP/2"));
    }
    let handshake = Builder::new().enable_push(false).max_header_list_size(MOST as u32).handshake(ProbeIo(stream));
    let (mut requests, connection) = handshake.await.map_err(broken)?;
    let answer = async {
        let (response, mut sending) = requests.send_request(request, content.is_empty()).map_err(broken)?;
        if !content.is_empty() {
            sending.send_data(content, true).map_err(broken)?;
        }
        read(response.await.map_err(broken)?).await
    };
    let (mut connection, mut answer) = (pin!(connection), pin!(answer));
    let mut is_over = false;
    poll_fn(|context| {
        // How it ended, the answer is told.
        is_over = is_over || connection.as_mut().poll(context).is_ready();
        answer.as_mut().poll(context)
    })
    .await
}

fn request(asked: &Asked, secured: bool) -> Result<Request<()>, http::Error> {
    let mut fields = HeaderMap::new();
    for line in &asked.headers {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let name = HeaderName::from_bytes(name.trim().as_bytes())?;
        fields.append(name, HeaderValue::from_str(value.trim())?);
    }
    fields.entry(USER_AGENT).or_insert(HeaderValue::from_static(super::USER_AGENT));
    // RFC 9113 §8.3.1: whom it is for stands in `:authority`.
    let host = fields.remove(HOST);
    let host = host.as_ref().map_or(asked.host.as_bytes(), HeaderValue::as_bytes);
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(if secured { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(Authority::try_from(host)?);
    uri.path_and_query = Some(PathAndQuery::try_from(&*asked.path)?);
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(asked.method.as_bytes())?;
    *request.uri_mut() = Uri::from_parts(uri)?;
    *request.headers_mut() = fields;
    Ok(request)
}

/// A `HealthCheckRequest` in its frame: the service is its field 1.
fn question(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(1 << 3 | 2);
        let mut length = service.len();
        while length >= 0x80 {
            message.push(length as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).expect("names are short").to_be_bytes();
    [&[0], &length[..], &message].concat()
}

/// Whether content is the frame of a `HealthCheckResponse` whose field 1 is `SERVING`.
fn serving(content: &[u8]) -> bool {
    const SERVING: u64 = 1;
    let Some((&[0, a, b, c, d], message)) = content.split_first_chunk() else { return false };
    message.len() == u32::from_be_bytes([a, b, c, d]) as usize && status_of(message) == Some(SERVING)
}

/// Field 1 of a message, a number; `None` where the message is broken. Fields that nobody knows yet are passed over.
fn status_of(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let key = number(&mut message)?;
        let skipped = match key & 7 {
            0 => {
                let value = number(&mut message)?;
                status = if key >> 3 == 1 { value } else { status };
                0
            }
            1 => 8,
            2 => usize::try_from(number(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        message = message.get(skipped..)?;
    }
    Some(status)
}

/// Takes a number off the front, as Protocol Buffers write it.
fn number(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The bytes of a connection as the library wants them.
struct ProbeIo(Stream);

impl AsyncRead for ProbeIo {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let count = ready!(self.get_mut().0.poll_read(context, out.initialize_unfilled()))?;
        out.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ProbeIo {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().0.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().0.poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_asked_about_by_name() {
        assert_eq!(question(""), [0, 0, 0, 0, 0]);
        assert_eq!(question("a.B"), [0, 0, 0, 0, 5, 10, 3, b'a', b'.', b'B']);
        let long = question(&"x".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 10, 0xac, 2]);
        assert_eq!(long.len(), 5 + 303);
    }

    #[test]
    fn only_serving_is_well() {
        for (message, want) in [
            (&[8, 1][..], true),
            (&[8, 2], false),
            (&[8, 3], false),
            (&[], false),
            (&[8, 2, 8, 1], true),
            (&[18, 2, 8, 2, 8, 1], true),
            (&[8, 1, 16], false),
            (&[8], false),
            (&[8, 0x81, 0], true),
            (&[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], false),
            (&[18, 100], false),
        ] {
            let frame = [&[0, 0, 0, 0, message.len() as u8], message].concat();
            assert_eq!(serving(&frame), want, "{message:?}");
        }
        assert!(!serving(&[]) && !serving(&[1, 0, 0, 0, 2, 8, 1]) && !serving(&[0, 0, 0, 0, 3, 8, 1]));
    }

    #[test]
    fn a_request_says_who_asks_unless_told_otherwise() {
        let asked = Asked { path: "/health?x".into(), ..Asked::of("a:1") };
        let plain = request(&asked, false).expect("valid");
        assert_eq!((plain.method(), plain.uri().to_string()), (&Method::GET, "http://a:1/health?x".to_owned()));
        assert_eq!(plain.headers()["user-agent"], "weir-health-check");
        let headers = ["HOST: b".into(), "User-Agent: me".into()].into();
        let other = request(&Asked { headers, method: "HEAD".into(), ..Asked::of("a") }, true).expect("valid");
        assert_eq!((other.method(), other.uri().to_string()), (&Method::HEAD, "https://b/".to_owned()));
        assert_eq!((other.headers().len(), &other.headers()["user-agent"]), (1, &HeaderValue::from_static("me")));
    }
}
