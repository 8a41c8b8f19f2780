//! Health checks over HTTP/2: ordinary requests, and the gRPC health service.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use weir_net::stream::Stream;
use weir_proto::field;
use weir_proto::h1::Limits;
use weir_proto::h2::{Connection, ConnectionEvent, HeadTarget, PeerLimits, Role};
use weir_proto::{Method, ResponseHead, Trailers};

use super::{CheckAnswer, InterimCount};
use crate::snapshot::CheckRequest;

/// The most bytes of a response's head, and of its content.
const MOST: usize = 64 * 1024;
const BOUNDS: PeerLimits = PeerLimits {
    limits: Limits {
        head_bytes: MOST,
        fields: 100,
        target_bytes: 0,
        underscores_in_names: false,
        target_replaces_host: false,
        refuse_path_parameters: false,
    },
    streams: 0,
    stream_window: MOST as u32,
    connection_window: MOST as u32,
};

/// Sends a request; returns the status of the response.
pub(super) async fn status(stream: Stream, asked: &CheckRequest) -> io::Result<CheckAnswer> {
    let fields = request(asked, stream.tls().is_some())?;
    let mut exchange = ProbeExchange::begin(stream, &fields, asked.body.as_bytes())?;
    poll_fn(|context| exchange.poll(context, |exchange| exchange.head.status >= 200)).await?;
    Ok(CheckAnswer::Status(exchange.head.status))
}

/// Calls a gRPC server's health service (`grpc.health.v1.Health/Check`). Any answer but `SERVING` counts as not serving.
pub(super) async fn check_grpc_health(stream: Stream, service: &str, host: &str) -> io::Result<CheckAnswer> {
    let asked =
        CheckRequest { method: "POST".into(), path: "/grpc.health.v1.Health/Check".into(), ..CheckRequest::of(host) };
    let mut fields = request(&asked, stream.tls().is_some())?;
    fields.push(("content-type".into(), "application/grpc".into()));
    fields.push(("te".into(), "trailers".into()));
    let mut exchange = ProbeExchange::begin(stream, &fields, &grpc_health_request(service))?;
    poll_fn(|context| exchange.poll(context, |exchange| exchange.ended)).await?;
    let trailer = exchange.trailers.fields().find(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status"));
    let status = trailer.map(|(_, value)| value).or_else(|| exchange.head.head.value(b"grpc-status"));
    Ok(if status == Some(b"0") && is_serving(&exchange.content) {
        CheckAnswer::Serving
    } else {
        CheckAnswer::NotServing
    })
}

/// One exchange on a connection of its own.
struct ProbeExchange {
    stream: Stream,
    protocol: Connection,
    /// Bytes received that are not a complete frame yet.
    stash: Vec<u8>,
    head: ResponseHead,
    interim: InterimCount,
    content: Vec<u8>,
    trailers: Trailers,
    ended: bool,
}

impl ProbeExchange {
    fn begin(stream: Stream, fields: &[(String, String)], content: &[u8]) -> io::Result<ProbeExchange> {
        if stream.tls().is_some_and(|session| session.protocol() != Some(b"h2")) {
            return Err(io::Error::other("the endpoint does not speak HTTP/2"));
        }
        let mut protocol = Connection::new(Role::Client, BOUNDS, 0);
        let method = Method::parse(fields[0].1.as_bytes());
        let asked = protocol.request(0, method, content.is_empty(), |writer| {
            fields.iter().for_each(|(name, value)| writer.add(name.as_bytes(), value.as_bytes()));
        });
        let (id, _) = asked.expect("it is the first stream");
        if !content.is_empty() && protocol.send_data(id, content, true) < content.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the request body of the health check is larger than 64 KiB",
            ));
        }
        let (stash, head, content) = (Vec::new(), ResponseHead::default(), Vec::new());
        let (interim, trailers) = (InterimCount::default(), Trailers::default());
        Ok(ProbeExchange { stream, protocol, stash, head, interim, content, trailers, ended: false })
    }

    /// Ready when enough of the response has been received.
    fn poll(&mut self, context: &mut Context<'_>, is_enough: impl Fn(&ProbeExchange) -> bool) -> Poll<io::Result<()>> {
        let mut buffer = [0; 4096];
        loop {
            while !self.protocol.output().is_empty() {
                match self.stream.poll_write(context, self.protocol.output())? {
                    Poll::Ready(count) => drop(self.protocol.output().drain(..count)),
                    Poll::Pending => break,
                }
            }
            if is_enough(self) {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.stream.poll_read(context, &mut buffer))? {
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                count => self.received(&buffer[..count])?,
            }
        }
    }

    fn received(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stash.extend_from_slice(bytes);
        let stash = std::mem::take(&mut self.stash);
        let (mut rest, mut next) = (&stash[..], ResponseHead::default());
        loop {
            let event = self.protocol.next(&mut rest, &mut HeadTarget::Response(&mut next));
            match event.map_err(|code| io::Error::other(code.name()))? {
                None => break,
                Some(ConnectionEvent::Response { parsed, ended, .. }) => {
                    parsed.map_err(|bad| io::Error::other(bad.name()))?;
                    self.ended = ended;
                    self.head = std::mem::take(&mut next);
                    if self.head.status < 200 {
                        self.interim.add()?;
                    }
                }
                Some(ConnectionEvent::Data { bytes, ended, .. }) => {
                    self.content.extend_from_slice(bytes);
                    self.ended = ended;
                    if self.content.len() > MOST {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                }
                Some(ConnectionEvent::Trailers { trailers, .. }) => (self.trailers, self.ended) = (trailers, true),
                Some(ConnectionEvent::Reset { code, .. } | ConnectionEvent::Failed { code, .. }) => {
                    return Err(io::Error::other(code.name()));
                }
                Some(ConnectionEvent::GoAway { last: 0, code }) => return Err(io::Error::other(code.name())),
                Some(_) => {}
            }
        }
        self.stash = rest.to_vec();
        Ok(())
    }
}

/// The fields of a request, pseudo-fields first.
fn request(asked: &CheckRequest, secured: bool) -> io::Result<Vec<(String, String)>> {
    let mut fields: Vec<(String, String)> = Vec::new();
    let mut host = asked.host.to_string();
    for line in &asked.headers {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        if !field::is_name(name.as_bytes()) || !field::is_value(value.as_bytes()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a header of the health check is not valid"));
        }
        match name == "host" {
            true => host = value, // RFC 9113 §8.3.1: the host is sent as `:authority`
            false => fields.push((name, value)),
        }
    }
    if !fields.iter().any(|(name, _)| name == "user-agent") {
        fields.push(("user-agent".into(), super::USER_AGENT.into()));
    }
    let scheme = if secured { "https" } else { "http" };
    let pseudo = [(":method", &*asked.method), (":scheme", scheme), (":authority", &*host), (":path", &*asked.path)];
    Ok(pseudo.map(|(name, value)| (name.into(), value.into())).into_iter().chain(fields).collect())
}

/// A `HealthCheckRequest` in a gRPC frame: field 1 is the service.
fn grpc_health_request(service: &str) -> Vec<u8> {
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

/// Whether `content` is a gRPC frame with a `HealthCheckResponse` whose field 1 is `SERVING`.
fn is_serving(content: &[u8]) -> bool {
    const SERVING: u64 = 1;
    let Some((&[0, a, b, c, d], message)) = content.split_first_chunk() else { return false };
    message.len() == u32::from_be_bytes([a, b, c, d]) as usize && status_of(message) == Some(SERVING)
}

/// Field 1 of a message, a number; `None` if the message is malformed. Unknown fields are skipped.
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

/// Removes a varint of Protocol Buffers from the front.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_asked_about_by_name() {
        assert_eq!(grpc_health_request(""), [0, 0, 0, 0, 0]);
        assert_eq!(grpc_health_request("a.B"), [0, 0, 0, 0, 5, 10, 3, b'a', b'.', b'B']);
        let long = grpc_health_request(&"x".repeat(300));
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
            // Unknown fields of 32 and of 64 bits, which read like other states.
            (&[21, 8, 2, 8, 2, 8, 1], true),
            (&[17, 8, 2, 8, 2, 8, 2, 8, 2, 8, 1], true),
            (&[8, 1, 16], false),
            (&[8], false),
            (&[8, 0x81, 0], true),
            (&[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], false),
            (&[18, 100], false),
        ] {
            let frame = [&[0, 0, 0, 0, message.len() as u8], message].concat();
            assert_eq!(is_serving(&frame), want, "{message:?}");
        }
        assert!(!is_serving(&[]) && !is_serving(&[1, 0, 0, 0, 2, 8, 1]) && !is_serving(&[0, 0, 0, 0, 3, 8, 1]));
    }

    #[test]
    fn a_request_says_who_asks_unless_told_otherwise() {
        let asked = CheckRequest { path: "/health?x".into(), ..CheckRequest::of("a:1") };
        let text = |asked: &CheckRequest, secured| {
            let fields = request(asked, secured).expect("valid");
            fields.into_iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>()
        };
        let plain =
            [":method GET", ":scheme http", ":authority a:1", ":path /health?x", "user-agent weir-health-check"];
        assert_eq!(text(&asked, false), plain);
        let headers = ["HOST: b".into(), "User-Agent: me".into()].into();
        let other = CheckRequest { headers, method: "HEAD".into(), ..CheckRequest::of("a") };
        assert_eq!(text(&other, true), [":method HEAD", ":scheme https", ":authority b", ":path /", "user-agent me"]);
        assert!(request(&CheckRequest { headers: ["a b: c".into()].into(), ..CheckRequest::of("a") }, false).is_err());
    }
}
