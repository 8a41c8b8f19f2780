//! Response heads from upstreams, which are trusted no more than clients (RFC 9112 §4, §6.3).

use crate::field::{self, Known};
use crate::head::{Framing, ResponseHead, Span, Version};
use crate::method::Method;
use crate::scan;

use super::lines::{self, BadLines, ConnectionOptions};
use crate::limits::{Limits, MAX_FIELDS};

/// Why a response is refused. The client gets 502 and the upstream connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadResponse {
    Syntax,
    /// `Content-Length` with `Transfer-Encoding`, differing lengths, a malformed length, or a coding other than `chunked`.
    Framing,
    HeadTooLarge,
}

impl BadResponse {
    /// The reason code in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            BadResponse::Syntax => "upstream_bad_syntax",
            BadResponse::Framing => "upstream_bad_framing",
            BadResponse::HeadTooLarge => "upstream_head_too_large",
        }
    }
}

/// Deviations from the RFCs that are accepted from an upstream; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tolerance {
    /// Statuses from 600 to 999, for which RFC 9110 §15 defines no class.
    pub extended_status: bool,
    /// `Content-Length` several times, or as a list, of equal values (RFC 9110 §8.6).
    pub repeated_length: bool,
}

/// Parses the response head at the start of `bytes` into `response`, which must be clear. `method` is the method of the request
/// being answered. Returns the length of the head, or `None` while it is incomplete.
pub fn parse_response(
    bytes: &[u8],
    limits: &Limits,
    tolerance: Tolerance,
    method: Method,
    response: &mut ResponseHead,
) -> Result<Option<usize>, BadResponse> {
    let Some(line_end) = status_line(bytes, limits, tolerance, response)? else { return Ok(None) };
    let most = limits.fields.min(MAX_FIELDS);
    let length = match lines::fields(bytes, line_end, most, &mut response.head) {
        Ok(Some(section)) => section.end,
        Ok(None) if bytes.len() > limits.head_bytes => return Err(BadResponse::HeadTooLarge),
        Ok(None) => return Ok(None),
        Err(BadLines::Syntax) => return Err(BadResponse::Syntax),
        Err(BadLines::TooMany) => return Err(BadResponse::HeadTooLarge),
    };
    if length > limits.head_bytes {
        return Err(BadResponse::HeadTooLarge);
    }
    derive(response, tolerance, method)?;
    Ok(Some(length))
}

/// `HTTP-version SP status-code [ SP [ reason-phrase ] ] CRLF` (RFC 9112 §4); the second blank may be missing together with the
/// phrase. Returns where the next line starts.
fn status_line(
    bytes: &[u8],
    limits: &Limits,
    tolerance: Tolerance,
    response: &mut ResponseHead,
) -> Result<Option<usize>, BadResponse> {
    const STATUS: usize = "HTTP/1.1 ".len();
    const REASON: usize = "HTTP/1.1 200".len();
    let Some(start) = bytes.get(..REASON) else {
        let expected = &b"HTTP/1."[..bytes.len().min(7)];
        return if bytes.starts_with(expected) { Ok(None) } else { Err(BadResponse::Syntax) };
    };
    response.version = match &start[..STATUS] {
        b"HTTP/1.1 " => Version::Http11,
        b"HTTP/1.0 " => Version::Http10,
        _ => return Err(BadResponse::Syntax),
    };
    let digits = &start[STATUS..];
    let last_class = if tolerance.extended_status { b'9' } else { b'5' };
    if !digits.iter().all(u8::is_ascii_digit) || !(b'1'..=last_class).contains(&digits[0]) {
        return Err(BadResponse::Syntax);
    }
    response.status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    let line_end = scan::value_end(bytes, REASON);
    match &bytes[line_end..] {
        [] | [b'\r'] if bytes.len() > limits.head_bytes => return Err(BadResponse::HeadTooLarge),
        [] | [b'\r'] => return Ok(None),
        [b'\r', b'\n', ..] => {}
        _ => return Err(BadResponse::Syntax),
    }
    response.reason = match &bytes[REASON..line_end] {
        [] => Span::default(),
        [b' ', ..] => Span::new(REASON + 1, line_end),
        _ => return Err(BadResponse::Syntax),
    };
    Ok(Some(line_end + 2))
}

fn derive(response: &mut ResponseHead, tolerance: Tolerance, method: Method) -> Result<(), BadResponse> {
    let mut length = None;
    let mut chunked = false;
    let mut connection = ConnectionOptions::default();
    for index in 0..response.head.fields.len() {
        let field = response.head.fields[index];
        let value = &response.head.bytes[field.value.range()];
        match field.known {
            Known::Other => continue,
            Known::ContentLength => {
                let value = length_of(value, tolerance).ok_or(BadResponse::Framing)?;
                let before = length.replace(value);
                if before.is_some_and(|before| before != value || !tolerance.repeated_length) {
                    return Err(BadResponse::Framing);
                }
            }
            Known::TransferEncoding => {
                if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(BadResponse::Framing);
                }
                chunked = true;
            }
            Known::Connection => connection.add(value),
            _ => {}
        }
        response.head.fields[index].removed = field.known.is_hop_by_hop() && !is_for_the_client(field.known);
    }
    if matches!(response.status, 100..=199 | 204) {
        response.head.remove_known(Known::ContentLength); // RFC 9110 §8.6
    }
    let ConnectionOptions { close, keep_alive, names_field, .. } = connection;
    if connection.are_too_many() {
        return Err(BadResponse::Syntax);
    }
    if names_field {
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

/// Parses a `Content-Length` value; a list of equal lengths only where `tolerance` allows it.
fn length_of(value: &[u8], tolerance: Tolerance) -> Option<u64> {
    if !tolerance.repeated_length {
        return lines::content_length(value);
    }
    let mut lengths = value.split(|&byte| byte == b',').map(|length| lines::content_length(field::trim(length)));
    let first = lengths.next()??;
    lengths.all(|length| length == Some(first)).then_some(first)
}

/// Proxy authentication challenges of an upstream are meant for the client, and forwarded, although these fields are hop-by-hop.
fn is_for_the_client(known: Known) -> bool {
    matches!(known, Known::ProxyAuthenticate | Known::ProxyAuthenticationInfo)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Option<ResponseHead>, BadResponse> {
        let mut response = ResponseHead::default();
        Ok(parse_response(bytes, &Limits::default(), Tolerance::default(), Method::Get, &mut response)?
            .map(|_| response))
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
        parse_response(head, &Limits::default(), Tolerance::default(), Method::Head, &mut response).unwrap();
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
    fn u10_a_204_loses_its_length() {
        for status in ["204 No Content", "103 Early Hints"] {
            let response = complete(&format!("HTTP/1.1 {status}\r\nA: b\r\nContent-Length: 5\r\n\r\n"));
            assert_eq!(response.framing, Framing::None, "{status}");
            assert_eq!(response.head.fields().collect::<Vec<_>>(), [(&b"A"[..], &b"b"[..])], "{status}");
        }
        let response = complete("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n");
        assert_eq!(response.head.value(b"content-length"), Some(&b"5"[..]));
    }

    #[test]
    fn u10_tolerance_is_for_what_it_names() {
        let with = |tolerance, bytes: &str| {
            let mut response = ResponseHead::default();
            let parsed = parse_response(bytes.as_bytes(), &Limits::default(), tolerance, Method::Get, &mut response);
            parsed.map(|_| (response.status, response.framing))
        };
        let extended = Tolerance { extended_status: true, ..Tolerance::default() };
        assert_eq!(with(extended, "HTTP/1.1 999 X\r\nContent-Length: 1\r\n\r\n"), Ok((999, Framing::Sized(1))));
        assert_eq!(with(extended, "HTTP/1.1 099 X\r\n\r\n"), Err(BadResponse::Syntax));
        let repeated = Tolerance { repeated_length: true, ..Tolerance::default() };
        for fields in ["Content-Length: 5\r\nContent-Length: 5", "Content-Length: 5, 5", "Content-Length: 5 ,5"] {
            let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            assert_eq!(with(repeated, &bytes), Ok((200, Framing::Sized(5))), "{fields:?}");
            assert_eq!(with(extended, &bytes), Err(BadResponse::Framing), "{fields:?}");
        }
        for fields in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5, 6",
            "Content-Length: 5,",
            "Content-Length: 5\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        ] {
            let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            assert_eq!(with(repeated, &bytes), Err(BadResponse::Framing), "{fields:?}");
        }
        assert_eq!(with(repeated, "HTTP/1.1 600 X\r\n\r\n"), Err(BadResponse::Syntax));
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
