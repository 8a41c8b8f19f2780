//! Heads and trailers, between our form and the library's.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use weir_plugin::Exchange;
use weir_proto::h1::{Limits, Reject};
use weir_proto::h2::{Pseudo, request_head};
use weir_proto::{Field, Framing, Head, Known, RequestHead, Trailers};

use crate::message::forward::{self, Coding};

/// Makes a head of what a client asks for. `ended`: no content follows.
pub fn read_request<B>(
    request: &Request<B>,
    ended: bool,
    limits: &Limits,
    head: &mut RequestHead,
) -> Result<(), Reject> {
    let uri = request.uri();
    let connects = request.method() == Method::CONNECT;
    let protocol = request.extensions().get::<h2::ext::Protocol>();
    let has_path = !connects || protocol.is_some();
    let pseudo = Pseudo {
        method: request.method().as_str().as_bytes(),
        scheme: uri.scheme_str().map(str::as_bytes),
        authority: uri.authority().map(|authority| authority.as_str().as_bytes()),
        path: uri.path_and_query().filter(|_| has_path).map(|path| path.as_str().as_bytes()),
        protocol: protocol.map(|protocol| protocol.as_str().as_bytes()),
        ended,
    };
    request_head(&pseudo, pairs(request.headers()), limits, head)
}

/// The request for an upstream; `Err` if its target is none for the library. `scratch` comes and goes empty.
pub fn request(
    exchange: &Exchange,
    scheme: Scheme,
    host: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<(Request<()>, Coding), http::Error> {
    let request = &exchange.request;
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(scheme);
    uri.authority = Some(Authority::from_maybe_shared(Bytes::copy_from_slice(host))?);
    uri.path_and_query = Some(PathAndQuery::from_maybe_shared(target(request))?);
    let uri = Uri::from_parts(uri)?;
    let mut fields = library_fields(&request.head, FIELDS_OF_OURS, |field| forward::goes_upstream(exchange, field));
    scratch.clear();
    forward::forwarding_fields(scratch, exchange);
    let lines = Bytes::copy_from_slice(scratch);
    scratch.clear();
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', &lines) {
        if let Some(colon) = memchr::memchr(b':', &lines[start..end])
            && let Some(name) = forwarding_name(&lines[start..start + colon])
            && let Ok(value) = HeaderValue::from_maybe_shared(lines.slice(start + colon + 2..end - 1))
        {
            fields.append(name, value);
        }
        start = end + 1;
    }
    if request.takes_trailers {
        fields.insert(TE, HeaderValue::from_static("trailers"));
    }
    let coding = match request.framing {
        Framing::None => Coding::None,
        Framing::Sized(length) => {
            fields.insert(CONTENT_LENGTH, length.into());
            Coding::Plain
        }
        Framing::Chunked | Framing::UntilClose => Coding::UntilClose,
    };
    let mut built = Request::new(());
    *built.method_mut() = Method::from_bytes(request.method_name())?;
    *built.uri_mut() = uri;
    *built.headers_mut() = fields;
    Ok((built, coding))
}

fn target(request: &RequestHead) -> Bytes {
    let (path, query) = (request.path(), request.query());
    let mut target = Vec::with_capacity(path.len() + query.map_or(0, |query| 1 + query.len()));
    target.extend_from_slice(path);
    if let Some(query) = query {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    target.into()
}

/// What may be added to the client's fields: forwarding, content length, and the wish for trailers.
const FIELDS_OF_OURS: usize = 7;

/// The name of a field of ours, which need not be made anew for each request.
fn forwarding_name(name: &[u8]) -> Option<HeaderName> {
    static NAMES: [HeaderName; 5] = [
        HeaderName::from_static("x-real-ip"),
        HeaderName::from_static("x-forwarded-for"),
        HeaderName::from_static("x-forwarded-proto"),
        HeaderName::from_static("x-forwarded-host"),
        HeaderName::from_static("x-forwarded-port"),
    ];
    let known = NAMES.iter().find(|known| known.as_str().as_bytes().eq_ignore_ascii_case(name));
    known.cloned().or_else(|| HeaderName::from_bytes(name).ok())
}

/// Every field with its name.
pub fn pairs(fields: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// About as many bytes as the fields would be without compression.
pub fn size(fields: &HeaderMap) -> u64 {
    pairs(fields).map(|(name, value)| name.len() + value.len() + 4).sum::<usize>() as u64
}

/// The response's head that stands in the exchange.
pub fn response(exchange: &Exchange, coding: Coding) -> Response<()> {
    let head = &exchange.response.head;
    // As in HTTP/1: without a body a length describes what GET would bring, and is passed on.
    let mut fields = library_fields(head, 1, |field| field.known != Known::ContentLength || coding == Coding::None);
    // Where there is no content and nobody has said so, the end of the stream says it: gRPC sends such heads.
    if let (Coding::Plain, Framing::Sized(length)) = (coding, exchange.response.framing)
        && (length > 0 || head.known(Known::ContentLength).is_some())
    {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    with_status(exchange.response.status, fields)
}

/// The interim response that stands in the exchange.
pub fn interim(exchange: &Exchange) -> Response<()> {
    let fields = library_fields(&exchange.response.head, 0, |field| field.known != Known::ContentLength);
    with_status(exchange.response.status, fields)
}

/// The answer to a client whose WebSocket begins (RFC 8441 §5.1): what proved an HTTP/1 upstream's consent stays here.
pub fn upgraded(exchange: &Exchange) -> Response<()> {
    let mut fields = library_fields(&exchange.response.head, 0, |field| field.known != Known::ContentLength);
    fields.remove("sec-websocket-accept");
    with_status(200, fields)
}

fn with_status(status: u16, fields: HeaderMap) -> Response<()> {
    let mut response = Response::new(());
    // Upstreams and plugins give statuses of three digits.
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = fields;
    response
}

/// The fields that `keep` lets through, less those that HTTP/2 has no place for (RFC 9113 §8.2.2), with room for `more`.
pub fn library_fields(head: &Head, more: usize, mut keep: impl FnMut(&Field) -> bool) -> HeaderMap {
    // One allocation for all values.
    let bytes = Bytes::copy_from_slice(head.bytes());
    let mut fields = HeaderMap::with_capacity(head.present().count() + more);
    for field in head.present() {
        let belongs_here = !field.known.is_hop_by_hop()
            || matches!(field.known, Known::ProxyAuthenticate | Known::ProxyAuthenticationInfo);
        if !belongs_here || !keep(field) {
            continue;
        }
        // Both were checked where they came in; what the library takes for bad all the same is left out.
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(head.slice(field.name)),
            HeaderValue::from_maybe_shared(bytes.slice(field.value.range())),
        ) {
            fields.append(name, value);
        }
    }
    fields
}

/// Trailers for the library.
pub fn trailers(trailers: &Trailers) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in trailers.fields() {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            fields.append(name, value);
        }
    }
    fields
}

/// Trailers from the library.
pub fn read_trailers(fields: &HeaderMap) -> Trailers {
    let mut trailers = Trailers::default();
    for (name, value) in pairs(fields) {
        // One that could not stand in a line is left out.
        let _ = trailers.add(name, value);
    }
    trailers
}
