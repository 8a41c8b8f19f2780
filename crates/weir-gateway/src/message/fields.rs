//! Message heads as they are sent over HTTP/2 and HTTP/3.

use weir_plugin::Exchange;
use weir_proto::{Field, FieldSink, Framing, Head, Known};

use crate::message::forward::{self, HopFraming};

/// Writes the fields for which `keep` holds, without those that are forbidden (RFC 9113 §8.2.2, RFC 9114 §4.2).
fn write(writer: &mut impl FieldSink, head: &Head, mut keep: impl FnMut(&Field) -> bool) {
    for (index, field) in head.entries().iter().enumerate() {
        let belongs_here = !field.removed
            && (!field.known.is_hop_by_hop()
                || matches!(field.known, Known::ProxyAuthenticate | Known::ProxyAuthenticationInfo));
        if belongs_here && keep(field) {
            writer.add_as(head.slice(field.name), head.slice(field.value), head.is_never_indexed(index));
        }
    }
}

fn content_length(writer: &mut impl FieldSink, length: u64) {
    writer.add(b"content-length", itoa::Buffer::new().format(length).as_bytes());
}

/// Writes the head of the exchange's response.
pub(crate) fn response(writer: &mut impl FieldSink, exchange: &Exchange, coding: HopFraming) {
    let head = &exchange.response.head;
    // As in HTTP/1, the length of a response without a body is what GET would bring, and is passed on.
    write(writer, head, |field| field.known != Known::ContentLength || coding == HopFraming::None);
    // A length of 0 is not added to a response that did not name one: the end of the stream shows it. gRPC sends such
    // heads.
    if let (HopFraming::Plain, Framing::Sized(length)) = (coding, exchange.response.framing)
        && (length > 0 || head.known(Known::ContentLength).is_some())
    {
        content_length(writer, length);
    }
}

/// Writes the interim response in the exchange.
pub(crate) fn interim(writer: &mut impl FieldSink, exchange: &Exchange) {
    write(writer, &exchange.response.head, |field| field.known != Known::ContentLength);
}

/// Writes the 200 to a client whose WebSocket is established (RFC 8441 §5.1), without the `Sec-WebSocket-Accept` of an
/// HTTP/1 upstream.
pub(crate) fn upgraded(writer: &mut impl FieldSink, exchange: &Exchange) {
    let head = &exchange.response.head;
    let is_proof = |field: &Field| head.slice(field.name).eq_ignore_ascii_case(b"sec-websocket-accept");
    write(writer, head, |field| field.known != Known::ContentLength && !is_proof(field));
}

/// The target of a request, apart from its path.
pub(crate) struct RequestTarget<'t> {
    pub scheme: &'t [u8],
    pub host: &'t [u8],
    /// The request asks for a WebSocket in its stream (RFC 8441 §4).
    pub is_websocket: bool,
}

/// Writes the head of the request to an upstream. `scratch` must be empty, and is left empty.
pub(crate) fn request(
    writer: &mut impl FieldSink,
    exchange: &Exchange,
    target: &RequestTarget<'_>,
    scratch: &mut Vec<u8>,
) {
    let request = &exchange.request;
    if target.is_websocket {
        writer.add(b":method", b"CONNECT");
        writer.add(b":protocol", b"websocket");
    } else {
        writer.add(b":method", request.method_name());
    }
    writer.add(b":scheme", target.scheme);
    if !target.host.is_empty() {
        writer.add(b":authority", target.host);
    }
    match request.query() {
        None => writer.add(b":path", request.unmerged_path()),
        Some(query) => {
            scratch.extend_from_slice(request.unmerged_path());
            scratch.push(b'?');
            scratch.extend_from_slice(query);
            writer.add(b":path", scratch);
            scratch.clear();
        }
    }
    // RFC 8441 §5: `Sec-WebSocket-Key` is not used in HTTP/2.
    let is_key = |field: &Field| request.head.slice(field.name).eq_ignore_ascii_case(b"sec-websocket-key");
    write(writer, &request.head, |field| {
        forward::is_forwarded_upstream(exchange, field) && !(target.is_websocket && is_key(field))
    });
    forward::forwarding_fields(scratch, exchange);
    for line in scratch.split(|&byte| byte == b'\n') {
        if let Some(colon) = memchr::memchr(b':', line) {
            writer.add(&line[..colon], &line[colon + 2..line.len() - 1]);
        }
    }
    scratch.clear();
    if request.sends_te {
        writer.add(b"te", b"trailers");
    }
    if let Framing::Sized(length) = request.framing {
        content_length(writer, length);
    }
}

/// How the body of a request is framed.
pub(crate) fn request_coding(exchange: &Exchange) -> HopFraming {
    match exchange.request.framing {
        Framing::None => HopFraming::None,
        Framing::Sized(_) => HopFraming::Plain,
        Framing::Chunked | Framing::UntilClose => HopFraming::UntilClose,
    }
}
