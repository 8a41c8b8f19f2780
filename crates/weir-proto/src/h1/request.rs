//! Request heads (RFC 9112 §3, §5, §6).

use crate::authority::Authority;
use crate::field::{self, Known};
use crate::head::{Framing, RequestHead, Span, Version};
use crate::method::Method;
use crate::path::{self, BadPath, Canonical};

use super::limits::{Limits, MAX_FIELDS};
use super::lines::{self, BadLines};

/// Why a request is refused before anything of it is forwarded. After each of these the connection is closed: where
/// this message ends, and the next one starts, is not certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// Request line, field line or line end out of order.
    Syntax,
    /// `Host` missing, doubled or not a host.
    Host,
    /// The request target is in no form that fits the method, or its path is ambiguous.
    Target,
    /// Both lengths, two lengths, or a length that is none.
    Framing,
    /// A transfer coding other than `chunked`.
    TransferCoding,
    /// An expectation other than `100-continue`.
    Expectation,
    /// Not HTTP/1.0 or HTTP/1.1.
    Version,
    TargetTooLong,
    HeadTooLarge,
}

impl Reject {
    /// The status that answers it.
    pub fn status(self) -> u16 {
        match self {
            Reject::Syntax | Reject::Host | Reject::Target | Reject::Framing => 400,
            Reject::TransferCoding => 501,
            Reject::Expectation => 417,
            Reject::Version => 505,
            Reject::TargetTooLong => 414,
            Reject::HeadTooLarge => 431,
        }
    }

    /// A word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reject::Syntax => "bad_syntax",
            Reject::Host => "bad_host",
            Reject::Target => "bad_target",
            Reject::Framing => "bad_framing",
            Reject::TransferCoding => "unknown_transfer_coding",
            Reject::Expectation => "unknown_expectation",
            Reject::Version => "unsupported_version",
            Reject::TargetTooLong => "target_too_long",
            Reject::HeadTooLarge => "head_too_large",
        }
    }
}

/// Parses the request head at the start of `bytes` into `request`, which must be clear. Returns the length of the head,
/// or `None` while it is incomplete. An empty line before the request line is skipped (RFC 9112 §2.2).
pub fn parse_request(bytes: &[u8], limits: &Limits, request: &mut RequestHead) -> Result<Option<usize>, Reject> {
    let skipped = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    let bytes = &bytes[skipped..];
    let Some(line_end) = request_line(bytes, limits, request)? else { return Ok(None) };
    let most = limits.fields.min(MAX_FIELDS);
    let length = match lines::fields(bytes, line_end, most, &mut request.head) {
        Ok(Some(length)) => length,
        Ok(None) if bytes.len() > limits.head_bytes => return Err(Reject::HeadTooLarge),
        Ok(None) => return Ok(None),
        Err(BadLines::Syntax) => return Err(Reject::Syntax),
        Err(BadLines::TooMany) => return Err(Reject::HeadTooLarge),
    };
    if length > limits.head_bytes {
        return Err(Reject::HeadTooLarge);
    }
    derive(request, limits)?;
    Ok(Some(skipped + length))
}

/// `method SP request-target SP HTTP-version CRLF` (RFC 9112 §3). Returns where the next line starts.
fn request_line(bytes: &[u8], limits: &Limits, request: &mut RequestHead) -> Result<Option<usize>, Reject> {
    let method_end = bytes.iter().position(|&byte| !field::is_token_byte(byte)).unwrap_or(bytes.len());
    match bytes.get(method_end) {
        None if bytes.len() > limits.target_bytes => return Err(Reject::TargetTooLong),
        None => return Ok(None),
        Some(b' ') if method_end > 0 => {}
        // A CR may yet become the empty line before a request.
        Some(b'\r') if bytes.len() == 1 => return Ok(None),
        Some(_) => return Err(Reject::Syntax),
    }
    let target_start = method_end + 1;
    let target_end =
        target_start + bytes[target_start..].iter().take_while(|&&byte| matches!(byte, 0x21..=0x7e)).count();
    if target_end - target_start > limits.target_bytes {
        return Err(Reject::TargetTooLong);
    }
    match bytes.get(target_end) {
        None => return Ok(None),
        Some(b' ') if target_end > target_start => {}
        Some(_) => return Err(Reject::Syntax), // HTTP/0.9 ends here, and so do bytes no target may hold
    }
    const VERSION: usize = "HTTP/1.1\r\n".len();
    let line_end = target_end + 1 + VERSION;
    request.version = match bytes.get(target_end + 1..line_end) {
        Some(b"HTTP/1.1\r\n") => Version::Http11,
        Some(b"HTTP/1.0\r\n") => Version::Http10,
        // RFC 9110 §15.6.6: a version that exists, or could, has a status of its own.
        Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor, b'\r', b'\n'])
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(Reject::Version);
        }
        Some(_) => return Err(Reject::Syntax),
        // Not even the line is complete; what is there of the version must be able to become one.
        None => {
            let rest = &bytes[target_end + 1..];
            let fits = b"HTTP/".starts_with(&rest[..rest.len().min(5)]) && !rest.contains(&b'\n');
            return if fits { Ok(None) } else { Err(Reject::Syntax) };
        }
    };
    request.method = Method::parse(&bytes[..method_end]);
    request.method_name = Span::new(0, method_end);
    request.target = Span::new(target_start, target_end);
    Ok(Some(line_end))
}

/// Everything the gateway wants to know of a head, found in one pass over its fields.
fn derive(request: &mut RequestHead, limits: &Limits) -> Result<(), Reject> {
    let mut seen = Seen::default();
    for index in 0..request.head.fields.len() {
        let field = &mut request.head.fields[index];
        match field.known {
            Known::Other => {
                let name = &request.head.bytes[field.name.range()];
                if memchr::memchr(b'_', name).is_some() {
                    field.removed = !limits.underscores_in_names || reads_as_known(name);
                }
                continue;
            }
            Known::Host => seen.host = Some(Seen::once(seen.host, field.value).ok_or(Reject::Host)?),
            Known::ContentLength => {
                seen.length = Some(Seen::once(seen.length, field.value).ok_or(Reject::Framing)?);
            }
            Known::TransferEncoding => {
                seen.coding = Some(Seen::once(seen.coding, field.value).ok_or(Reject::Framing)?);
            }
            Known::Expect => seen.expect = Some(Seen::once(seen.expect, field.value).ok_or(Reject::Expectation)?),
            Known::Connection => seen.connection = true,
            Known::Upgrade => seen.upgrade = Some(field.value),
            Known::Te => seen.te = Some(field.value),
            _ => {}
        }
        // Identity is only ever said by an auth plugin; what a client claims goes no further.
        field.removed = field.known.is_hop_by_hop() || field.known == Known::Identity;
    }
    let mut close = false;
    let mut keep_alive = false;
    let mut upgrade = false;
    if seen.connection {
        for field in request.head.fields.iter().filter(|field| field.known == Known::Connection) {
            for option in field::list(request.head.slice(field.value)) {
                close |= option.eq_ignore_ascii_case(b"close");
                keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                upgrade |= option.eq_ignore_ascii_case(b"upgrade");
            }
        }
        lines::remove_nominated(&mut request.head);
    }
    // RFC 9112 §9.3: persistent unless said otherwise; with HTTP/1.0 the other way round.
    request.keep_alive = !close && (request.version != Version::Http10 || keep_alive);
    request.framing = framing(request, &seen)?;
    request.takes_trailers = seen.te.is_some_and(|value| {
        field::list(request.head.slice(value)).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
    });
    if let Some(expect) = seen.expect {
        if !request.head.slice(expect).eq_ignore_ascii_case(b"100-continue") {
            return Err(Reject::Expectation);
        }
        // RFC 9110 §10.1.1: without a body, or from HTTP/1.0, there is nothing to wait for.
        request.expects_continue = request.version != Version::Http10 && request.framing.has_body();
    }
    // RFC 9110 §7.8; `h2c` is obsolete (RFC 9113 §3.1) and would carry requests past the policy chain.
    request.upgrade = upgrade
        && request.version == Version::Http11
        && request.method == Method::Get
        && request.framing == Framing::None
        && seen.upgrade.is_some_and(|value| {
            !field::list(request.head.slice(value)).any(|protocol| {
                let name = protocol.split(|&byte| byte == b'/').next().unwrap_or_default();
                name.eq_ignore_ascii_case(b"h2c")
                    || name.eq_ignore_ascii_case(b"h2")
                    || name.eq_ignore_ascii_case(b"tls")
            })
        });
    target(request, seen.host)
}

/// Whether an upstream that takes `_` for `-`, as CGI does (RFC 3875 §4.1.18), would take the name for one that means
/// something.
fn reads_as_known(name: &[u8]) -> bool {
    let dashed: Vec<u8> = name.iter().map(|&byte| if byte == b'_' { b'-' } else { byte }).collect();
    Known::parse(&dashed) != Known::Other
}

/// Field values that may stand once only.
#[derive(Default)]
struct Seen {
    host: Option<Span>,
    length: Option<Span>,
    coding: Option<Span>,
    expect: Option<Span>,
    upgrade: Option<Span>,
    te: Option<Span>,
    connection: bool,
}

impl Seen {
    fn once(before: Option<Span>, value: Span) -> Option<Span> {
        before.is_none().then_some(value)
    }
}

/// RFC 9112 §6.3, less every tolerance it grants.
fn framing(request: &RequestHead, seen: &Seen) -> Result<Framing, Reject> {
    if let Some(coding) = seen.coding {
        // RFC 9112 §6.1: both lengths may be request smuggling; a coding from HTTP/1.0 cannot be trusted either.
        if seen.length.is_some() || request.version == Version::Http10 {
            return Err(Reject::Framing);
        }
        return transfer_coding(request.head.slice(coding));
    }
    match seen.length {
        None => Ok(Framing::None),
        Some(length) => match lines::content_length(request.head.slice(length)) {
            Some(length) => Ok(Framing::Sized(length)),
            None => Err(Reject::Framing),
        },
    }
}

fn transfer_coding(value: &[u8]) -> Result<Framing, Reject> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(Framing::Chunked);
    }
    // A well-formed coding that we do not have is 501 (RFC 9112 §6.1); chunked elsewhere than last and alone is an
    // attack or a broken sender.
    let is_unknown = !value.is_empty()
        && value.split(|&byte| byte == b',').all(|coding| {
            let coding = field::trim(coding);
            field::is_name(coding) && !coding.eq_ignore_ascii_case(b"chunked")
        });
    Err(if is_unknown { Reject::TransferCoding } else { Reject::Framing })
}

/// The request target in its four forms (RFC 9112 §3.2), and the host it is for.
fn target(request: &mut RequestHead, host: Option<Span>) -> Result<(), Reject> {
    let Span { start, end } = request.target;
    let host_value = host.map(|host| request.head.slice(host));
    if host_value.is_none() && request.version == Version::Http11 {
        return Err(Reject::Host);
    }
    let mut authority = host;
    let mut path_start = start;
    match request.head.slice(request.target) {
        target if request.method == Method::Connect => {
            let parsed = Authority::parse(target).map_err(|_| Reject::Target)?;
            if parsed.port.is_none() || host_value.is_some_and(|host| !host.eq_ignore_ascii_case(target)) {
                return Err(Reject::Target);
            }
        }
        [b'/', ..] => {}
        b"*" if request.method == Method::Options => {}
        target => {
            // RFC 9112 §3.2.2: the authority of an absolute target replaces Host. We insist that both agree.
            let starts = |scheme: &[u8]| target.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme));
            let scheme = match (starts(b"http://"), starts(b"https://")) {
                (true, _) => 7,
                (_, true) => 8,
                _ => return Err(Reject::Target),
            };
            let rest = &target[scheme..];
            let length = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            if host_value.is_some_and(|host| !host.eq_ignore_ascii_case(&rest[..length])) {
                return Err(Reject::Host);
            }
            authority = Some(Span { start: start + scheme as u32, end: start + (scheme + length) as u32 });
            path_start = start + (scheme + length) as u32;
            request.absolute_form = true;
        }
    }
    if let Some(authority) = authority {
        set_host(request, authority)?;
    }
    set_target_path(request, Span { start: path_start, end })
}

/// Keeps the authority as sent, and its host in canonical form.
fn set_host(request: &mut RequestHead, authority: Span) -> Result<(), Reject> {
    let bytes = request.head.slice(authority);
    let parsed = Authority::parse(bytes).map_err(|_| Reject::Host)?;
    let length = parsed.host.len();
    let is_lower = !parsed.host.iter().any(u8::is_ascii_uppercase);
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

fn set_target_path(request: &mut RequestHead, target: Span) -> Result<(), Reject> {
    let bytes = &request.head.bytes[target.range()];
    let question = memchr::memchr(b'?', bytes);
    if let Some(question) = question {
        if !path::is_query(&bytes[question + 1..]) {
            return Err(Reject::Target);
        }
        request.query = Some(Span { start: target.start + question as u32 + 1, end: target.end });
    }
    let raw = Span { start: target.start, end: target.start + question.unwrap_or(bytes.len()) as u32 };
    if raw.is_empty() && request.absolute_form {
        request.path = request.head.append(b"/"); // RFC 9112 §3.2.1: an empty path is sent as "/"
        return Ok(());
    }
    request.path = raw;
    if request.method == Method::Connect || request.head.slice(raw) == b"*" {
        return Ok(());
    }
    // The canonical form is built behind the bytes it is read from, so it is read from a copy: the rare case.
    let mut rewritten = Vec::new();
    match path::canonical(request.head.slice(raw), &mut rewritten) {
        Ok(Canonical::AsIs) => {}
        Ok(Canonical::Rewritten { encoded_separator }) => {
            request.encoded_separator = encoded_separator;
            request.path = request.head.append(&rewritten);
        }
        Err(BadPath::Syntax | BadPath::Nul | BadPath::DotSegment) => return Err(Reject::Target),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
