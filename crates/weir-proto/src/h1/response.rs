//! Response heads from upstreams, which are trusted no more than clients are (RFC 9112 §4, §6.3).

use crate::field::{self, Known};
use crate::head::{Framing, ResponseHead, Span, Version};
use crate::method::Method;

use super::limits::Limits;
use super::lines;

/// Why a response is refused. The client gets 502 and the upstream connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadResponse {
    Syntax,
    /// Both lengths, two lengths, a length that is none, or a coding that is not `chunked`.
    Framing,
    HeadTooLarge,
}

impl BadResponse {
    /// A word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            BadResponse::Syntax => "upstream_bad_syntax",
            BadResponse::Framing => "upstream_bad_framing",
            BadResponse::HeadTooLarge => "upstream_head_too_large",
        }
    }
}

/// Parses the response head at the start of `bytes` into `response`, which must be clear; `method` is the one of the
/// request it answers. Returns the length of the head, or `None` while it is incomplete.
pub fn parse_response(
    bytes: &[u8],
    limits: &Limits,
    method: Method,
    response: &mut ResponseHead,
) -> Result<Option<usize>, BadResponse> {
    let mut slots = lines::slots();
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut slots) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() > limits.head_bytes => return Err(BadResponse::HeadTooLarge),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(BadResponse::HeadTooLarge),
        Err(_) => return Err(BadResponse::Syntax),
    };
    let (Some(minor), Some(status), Some(reason)) = (parsed.version, parsed.code, parsed.reason) else {
        return Err(BadResponse::Syntax);
    };
    if length > limits.head_bytes || parsed.headers.len() > limits.fields {
        return Err(BadResponse::HeadTooLarge);
    }
    // `HTTP/1.1 200` and then a blank or the line end; the reason phrase may be missing with its blank.
    const STATUS_END: usize = "HTTP/1.1 200".len();
    let line_end = memchr::memchr(b'\n', &bytes[..length]).ok_or(BadResponse::Syntax)? + 1;
    let reason_is_visible =
        bytes[STATUS_END..line_end - 2].iter().all(|&byte| byte == b'\t' || byte >= b' ' && byte != 0x7f);
    if !bytes.starts_with(b"HTTP/1.")
        || bytes[line_end - 2] != b'\r'
        || !reason_is_visible
        || !(100..=599).contains(&status)
    {
        return Err(BadResponse::Syntax);
    }
    response.status = status;
    response.version = if minor == 0 { Version::Http10 } else { Version::Http11 };
    // httparse blanks a reason with obs-text; the line itself still has it.
    let reason_start = if reason.is_empty() { line_end - 2 } else { lines::offset(bytes, reason.as_bytes()) };
    response.reason = Span::new(reason_start, line_end - 2);
    lines::index(&bytes[..length], line_end, parsed.headers, &mut response.head).map_err(|_| BadResponse::Syntax)?;
    derive(response, method)?;
    Ok(Some(length))
}

fn derive(response: &mut ResponseHead, method: Method) -> Result<(), BadResponse> {
    let mut length = None;
    let mut chunked = false;
    let mut close = false;
    let mut keep_alive = false;
    let mut nominated = false;
    for index in 0..response.head.fields.len() {
        let field = response.head.fields[index];
        let value = &response.head.bytes[field.value.range()];
        match field.known {
            Known::Other => continue,
            Known::ContentLength => {
                let value = lines::content_length(value).ok_or(BadResponse::Framing)?;
                if length.replace(value).is_some() {
                    return Err(BadResponse::Framing);
                }
            }
            Known::TransferEncoding => {
                if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(BadResponse::Framing);
                }
                chunked = true;
            }
            Known::Connection => {
                for option in field::list(value) {
                    if option.eq_ignore_ascii_case(b"close") {
                        close = true;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") {
                        keep_alive = true;
                    } else {
                        nominated = true;
                    }
                }
            }
            _ => {}
        }
        response.head.fields[index].removed = field.known.is_hop_by_hop() && !is_for_the_client(field.known);
    }
    if nominated {
        lines::remove_nominated(&mut response.head);
    }
    if chunked && (length.is_some() || response.version == Version::Http10) {
        return Err(BadResponse::Framing); // RFC 9112 §6.1
    }
    response.keep_alive = !close && (response.version == Version::Http11 || keep_alive);
    let is_bodiless = method == Method::Head || matches!(response.status, 100..=199 | 204 | 304);
    response.framing = match length {
        _ if is_bodiless => Framing::None,
        _ if chunked => Framing::Chunked,
        Some(length) => Framing::Sized(length),
        None => Framing::UntilClose,
    };
    Ok(())
}

/// An upstream that asks for proxy credentials asks the client's side of us: passed on as every gateway does.
fn is_for_the_client(known: Known) -> bool {
    matches!(known, Known::ProxyAuthenticate | Known::ProxyAuthenticationInfo)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Option<ResponseHead>, BadResponse> {
        let mut response = ResponseHead::default();
        Ok(parse_response(bytes, &Limits::default(), Method::Get, &mut response)?.map(|_| response))
    }

    fn complete(bytes: &str) -> ResponseHead {
        parse(bytes.as_bytes()).expect("valid").expect("complete")
    }

    #[test]
    fn framing_follows_status_and_method() {
        assert_eq!(complete("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").framing, Framing::Sized(5));
        assert_eq!(complete("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").framing, Framing::Chunked);
        assert_eq!(complete("HTTP/1.1 200 OK\r\n\r\n").framing, Framing::UntilClose);
        assert_eq!(complete("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n").framing, Framing::None);
        assert_eq!(complete("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").framing, Framing::None);
        let mut response = ResponseHead::default();
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        parse_response(head, &Limits::default(), Method::Head, &mut response).unwrap();
        assert_eq!(response.framing, Framing::None);
    }

    #[test]
    fn reasons_and_persistence() {
        let response = complete("HTTP/1.0 404 Nothing Here\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!((response.status, response.reason(), response.keep_alive), (404, &b"Nothing Here"[..], true));
        assert_eq!(complete("HTTP/1.1 200\r\n\r\n").reason(), b"OK");
        assert_eq!(complete("HTTP/1.1 200 \r\n\r\n").reason(), b"OK");
        assert!(!complete("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").keep_alive);
        assert!(!complete("HTTP/1.0 200 OK\r\n\r\n").keep_alive);
    }

    #[test]
    fn doubtful_responses_are_refused() {
        for bytes in [
            &b"HTTP/1.1 200 OK\nContent-Length: 5\n\n"[..],
            b"HTTP/1.1 99 X\r\n\r\n",
            b"HTTP/1.1 099 X\r\n\r\n",
            b"HTTP/1.1 600 X\r\n\r\n",
            b"HTTP/2.0 200 OK\r\n\r\n",
            b"hello\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
            b"HTTP/1.1 200 O\x00K\r\n\r\n",
        ] {
            assert_eq!(parse(bytes).err(), Some(BadResponse::Syntax), "{}", bytes.escape_ascii());
        }
        for fields in [
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: x\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ] {
            let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
            assert_eq!(parse(bytes.as_bytes()).err(), Some(BadResponse::Framing), "{fields:?}");
        }
    }

    #[test]
    fn incomplete_responses_wait_up_to_the_limit() {
        assert!(parse(b"HTTP/1.1 200 OK\r\nA: b\r\n").unwrap().is_none());
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(40_000));
        assert_eq!(parse(long.as_bytes()).err(), Some(BadResponse::HeadTooLarge));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let mut with_start = b"HTTP/1.1 200 ".to_vec();
            with_start.extend(&bytes);
            let _ = parse(&with_start);
        }
    }
}
