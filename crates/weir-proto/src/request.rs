//! Derives host and path of a request, and defines why one is refused: common to all HTTP versions.

use crate::authority::{self, HostPort};
use crate::field::{Known, dashed};
use crate::head::{Head, RequestHead, Span};
use crate::limits::Limits;
use crate::method::Method;
use crate::path::{self, BadPath};
use crate::scan;

/// Why a request is refused before any of it is forwarded. After each of these an HTTP/1 connection is closed: it is not certain
/// where this message ends and the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// A malformed request line, field line or line end.
    Syntax,
    /// `Host` is missing, repeated or not a valid host.
    Host,
    /// `Authorization` is repeated: a plugin would verify one of them, and the upstream might use another.
    Authorization,
    /// The form of the target does not fit the method, or its path is ambiguous.
    Target,
    /// `Content-Length` with `Transfer-Encoding`, a repeated or malformed length.
    Framing,
    /// A transfer coding other than `chunked`.
    TransferCoding,
    /// An expectation other than `100-continue`.
    Expectation,
    /// A version other than HTTP/1.x.
    Version,
    /// Lower-case letters in the method: some upstreams take `delete` for `DELETE`, against RFC 9110 §9.1.
    Method,
    /// A method longer than any registered one (RFC 9112 §3).
    MethodTooLong,
    TargetTooLong,
    HeadTooLarge,
    /// A malformed HTTP/2 request: its stream is reset without a response (RFC 9113 §8.1.1).
    Malformed,
}

impl Reject {
    /// The status of the response to the client.
    pub fn status(self) -> u16 {
        match self {
            Reject::Syntax | Reject::Method | Reject::Host | Reject::Authorization | Reject::Target => 400,
            Reject::Framing | Reject::Malformed => 400,
            Reject::TransferCoding | Reject::MethodTooLong => 501,
            Reject::Expectation => 417,
            Reject::Version => 505,
            Reject::TargetTooLong => 414,
            Reject::HeadTooLarge => 431,
        }
    }

    /// The reason code in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reject::Syntax => "bad_syntax",
            Reject::Method => "bad_method",
            Reject::Host => "bad_host",
            Reject::Authorization => "repeated_authorization",
            Reject::Target => "bad_target",
            Reject::Framing => "bad_framing",
            Reject::TransferCoding => "unknown_transfer_coding",
            Reject::Expectation => "unknown_expectation",
            Reject::Version => "unsupported_version",
            Reject::MethodTooLong => "method_too_long",
            Reject::TargetTooLong => "target_too_long",
            Reject::HeadTooLarge => "head_too_large",
            Reject::Malformed => "malformed",
        }
    }
}

/// Parses a method; an unknown one with lower-case letters is refused.
pub(crate) fn method(name: &[u8]) -> Result<Method, Reject> {
    let method = Method::parse(name);
    let is_refused = method == Method::Other && name.iter().any(u8::is_ascii_lowercase);
    if is_refused { Err(Reject::Method) } else { Ok(method) }
}

/// Whether a field is not forwarded because of a `_` in its name. Even if underscores are allowed, a name that equals a known
/// one with `-` for `_` is dropped: CGI-like upstreams do not distinguish them (RFC 3875 §4.1.18).
pub(crate) fn is_dropped_for_underscore(name: &[u8], underscores: bool) -> bool {
    memchr::memchr(b'_', name).is_some() && (!underscores || reads_as_known(name))
}

fn reads_as_known(name: &[u8]) -> bool {
    Known::parse(&dashed(name)) != Known::Other
}

/// Stores the authority as sent, and its host in canonical form.
pub(crate) fn set_host(request: &mut RequestHead, authority: Span) -> Result<(), Reject> {
    let bytes = request.head.slice(authority);
    let plain = plain_host(&request.head, authority);
    let parsed = match plain {
        Some(host) => HostPort { host, port: authority::port_of(&bytes[host.len()..]).map_err(|_| Reject::Host)? },
        None => HostPort::parse(bytes).map_err(|_| Reject::Host)?,
    };
    let length = parsed.host.len();
    let is_lower = plain.is_some() || !parsed.host.iter().any(u8::is_ascii_uppercase);
    request.port = parsed.port;
    request.authority = authority;
    request.host = Span { start: authority.start, end: authority.start + length as u32 };
    if !is_lower {
        let start = request.head.bytes.len();
        request.head.bytes.extend_from_within(request.host.range());
        request.head.bytes[start..].make_ascii_lowercase();
        request.host = Span::new(start, start + length);
    }
    Ok(())
}

/// The host of an authority, if it is in canonical form, as most are. Such a host passes every check of [`HostPort::parse`].
fn plain_host(head: &Head, authority: Span) -> Option<&[u8]> {
    let (start, end) = (authority.start as usize, authority.end as usize);
    let host_end = scan::plain_host_end(&head.bytes, start).min(end);
    let host = head.bytes.get(start..host_end)?;
    let is_plain = matches!(host, [first, .., last] if *first != b'.' && *last != b'.');
    // Other bytes may belong to the name as well, such as `_`.
    let is_whole = host_end == end || head.bytes[host_end] == b':';
    (is_plain && is_whole).then_some(host)
}

/// Stores the query, and the path in canonical form. `target` is the part of the head's bytes that contains both.
pub(crate) fn set_target_path(request: &mut RequestHead, limits: &Limits, target: Span) -> Result<(), Reject> {
    set_query_and_path(request, target)?;
    let refused = limits.refuse_path_parameters && path::has_parameters(request.path());
    if refused { Err(Reject::Target) } else { Ok(()) }
}

fn set_query_and_path(request: &mut RequestHead, target: Span) -> Result<(), Reject> {
    let plain_end = scan::plain_path_end(&request.head.bytes, target.start as usize).min(target.end as usize);
    let rest = &request.head.bytes[plain_end..target.end as usize];
    let path_end = match rest.first() {
        None | Some(b'?') => plain_end,
        Some(_) => plain_end + memchr::memchr(b'?', rest).unwrap_or(rest.len()),
    };
    if path_end < target.end as usize {
        let query = Span { start: path_end as u32 + 1, end: target.end };
        if scan::query_end(&request.head.bytes, path_end + 1) < target.end as usize {
            return Err(Reject::Target);
        }
        request.query = Some(query);
    }
    let raw = Span { start: target.start, end: path_end as u32 };
    if raw.is_empty() && request.absolute_form {
        // RFC 9112 §3.2.1: an empty path is sent as "/"; §3.2.4: with OPTIONS, and without a query, it means the server.
        let is_server = request.method == Method::Options && request.query.is_none();
        request.path = request.head.append(if is_server { b"*" } else { b"/" });
        return Ok(());
    }
    request.path = raw;
    if path_end == plain_end && request.head.bytes[raw.range()].first() == Some(&b'/') {
        return Ok(());
    }
    if request.method == Method::Connect || request.head.slice(raw) == b"*" {
        return Ok(());
    }
    // Rare: the canonical forms are appended to the same buffer the path is in, so it is copied first.
    let raw = request.head.slice(raw).to_vec();
    match request.store_path(&raw) {
        Ok(encoded_separator) => request.encoded_separator = encoded_separator,
        Err(BadPath::Syntax | BadPath::Nul | BadPath::DotSegment) => return Err(Reject::Target),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host as the router gets it, and the port.
    fn stored(authority: &[u8]) -> Option<(Vec<u8>, Option<u16>)> {
        let mut request = RequestHead::default();
        request.head.bytes.extend_from_slice(authority);
        set_host(&mut request, Span::new(0, authority.len())).ok()?;
        Some((request.head.slice(request.host).to_vec(), request.port))
    }

    fn parsed(authority: &[u8]) -> Option<(Vec<u8>, Option<u16>)> {
        HostPort::parse(authority).ok().map(|parsed| (parsed.host.to_ascii_lowercase(), parsed.port))
    }

    #[test]
    fn names_of_all_forms_are_hosts() {
        for (authority, host, port) in [
            ("my_service:8080", "my_service", Some(8080)),
            ("foo_bar.example.com", "foo_bar.example.com", None),
            ("exAmple.com", "example.com", None),
            ("api.Example.com.:1", "api.example.com", Some(1)),
            ("a.b", "a.b", None),
        ] {
            assert_eq!(stored(authority.as_bytes()), Some((host.as_bytes().to_vec(), port)), "{authority}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_host_is_stored_as_it_is_parsed(authority in "[aA0_.:~/ -]{0,24}") {
            proptest::prop_assert_eq!(stored(authority.as_bytes()), parsed(authority.as_bytes()));
        }
    }
}
