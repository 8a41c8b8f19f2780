//! Request heads (RFC 9112 §3, §5, §6).

use crate::authority::HostPort;
use crate::field::{self, Known};
use crate::head::{Framing, RequestHead, Span, Version};
use crate::method::Method;
use crate::request::{Reject, is_dropped_for_underscore, method, set_host, set_target_path};
use crate::scan;

use super::lines::{self, BadLines, ConnectionOptions, FieldLines};
use crate::limits::{Limits, MAX_FIELDS};

/// Parses the request head at the start of `bytes` into `request`, which must be clear. Returns the length of the head,
/// or `None` while it is incomplete. An empty line before the request line is skipped (RFC 9112 §2.2).
pub fn parse_request(bytes: &[u8], limits: &Limits, request: &mut RequestHead) -> Result<Option<usize>, Reject> {
    let skipped = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    let bytes = &bytes[skipped..];
    let Some(line_end) = request_line(bytes, limits, request)? else { return Ok(None) };
    let most = limits.fields.min(MAX_FIELDS);
    let section = match lines::fields(bytes, line_end, most, &mut request.head) {
        Ok(Some(section)) => section,
        Ok(None) if bytes.len() > limits.head_bytes => return Err(Reject::HeadTooLarge),
        Ok(None) => return Ok(None),
        Err(BadLines::Syntax) => return Err(Reject::Syntax),
        Err(BadLines::TooMany) => return Err(Reject::HeadTooLarge),
    };
    if section.end > limits.head_bytes {
        return Err(Reject::HeadTooLarge);
    }
    derive(request, limits, section)?;
    Ok(Some(skipped + section.end))
}

/// The longest method accepted, in bytes. The longest registered method has 17.
const MAX_METHOD: usize = 64;

/// `method SP request-target SP HTTP-version CRLF` (RFC 9112 §3). Returns where the next line starts.
fn request_line(bytes: &[u8], limits: &Limits, request: &mut RequestHead) -> Result<Option<usize>, Reject> {
    let method_end = bytes.iter().position(|&byte| !field::is_token_byte(byte)).unwrap_or(bytes.len());
    match bytes.get(method_end) {
        _ if method_end > MAX_METHOD => return Err(Reject::MethodTooLong),
        None => return Ok(None),
        Some(b' ') if method_end > 0 => {}
        // A lone CR may be the start of the empty line that is allowed before a request.
        Some(b'\r') if bytes.len() == 1 => return Ok(None),
        Some(_) => return Err(Reject::Syntax),
    }
    let target_start = method_end + 1;
    let target_end = scan::target_end(bytes, target_start);
    if target_end - target_start > limits.target_bytes {
        return Err(Reject::TargetTooLong);
    }
    match bytes.get(target_end) {
        None => return Ok(None),
        Some(b' ') if target_end > target_start => {}
        Some(_) => return Err(Reject::Syntax), // HTTP/0.9, or a byte that is not allowed in a target
    }
    const VERSION: usize = "HTTP/1.1\r\n".len();
    let line_end = target_end + 1 + VERSION;
    request.version = match bytes.get(target_end + 1..line_end) {
        Some(b"HTTP/1.1\r\n") => Version::Http11,
        Some(b"HTTP/1.0\r\n") => Version::Http10,
        // RFC 9110 §2.5: a higher minor version is processed as the highest minor version implemented.
        Some([b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9', b'\r', b'\n']) => Version::Http11,
        // RFC 9110 §15.6.6: another major version is answered with 505, not 400.
        Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor, b'\r', b'\n'])
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(Reject::Version);
        }
        Some(_) => return Err(Reject::Syntax),
        // The line is incomplete: wait for more only if the bytes received can still become a version.
        None => {
            let rest = &bytes[target_end + 1..];
            let fits = b"HTTP/".starts_with(&rest[..rest.len().min(5)]) && !rest.contains(&b'\n');
            return if fits { Ok(None) } else { Err(Reject::Syntax) };
        }
    };
    request.method = method(&bytes[..method_end])?;
    request.method_name = Span::new(0, method_end);
    request.target = Span::new(target_start, target_end);
    Ok(Some(line_end))
}

/// Derives the framing, connection options, host and path from the fields, in one pass over them.
fn derive(request: &mut RequestHead, limits: &Limits, section: FieldLines) -> Result<(), Reject> {
    let mut seen = SeenFields::default();
    for index in 0..request.head.fields.len() {
        let field = &mut request.head.fields[index];
        match field.known {
            Known::Other if section.is_plain => continue,
            Known::Other => {
                let name = &request.head.bytes[field.name.range()];
                field.removed = is_dropped_for_underscore(name, limits.underscores_in_names);
                continue;
            }
            Known::Host => seen.host = Some(SeenFields::once(seen.host, field.value).ok_or(Reject::Host)?),
            Known::ContentLength => {
                seen.length = Some(SeenFields::once(seen.length, field.value).ok_or(Reject::Framing)?);
            }
            Known::TransferEncoding => {
                seen.coding = Some(SeenFields::once(seen.coding, field.value).ok_or(Reject::Framing)?);
            }
            // Not a list (RFC 9110 §11.6.2), so it occurs once (§5.3).
            Known::Authorization => {
                let twice = Reject::Authorization;
                seen.authorization = Some(SeenFields::once(seen.authorization, field.value).ok_or(twice)?);
            }
            Known::Expect => seen.expect = Some(SeenFields::once(seen.expect, field.value).ok_or(Reject::Expectation)?),
            Known::Connection => seen.connection.add(&request.head.bytes[field.value.range()]),
            Known::Upgrade => {
                seen.has_several_upgrades = seen.upgrade.is_some();
                seen.upgrade = Some(field.value);
            }
            Known::Te => seen.te = Some(field.value),
            _ => {}
        }
        // Only auth plugins set identity fields; those a client sends are not forwarded.
        field.removed = field.known.is_hop_by_hop() || field.known == Known::Identity;
    }
    let ConnectionOptions { close, keep_alive, upgrade, names_field, .. } = seen.connection;
    if close || names_field {
        if seen.connection.are_too_many() {
            return Err(Reject::Syntax);
        }
        lines::remove_nominated(&mut request.head);
    }
    // RFC 9112 §9.3: HTTP/1.1 is persistent unless `close` is sent, HTTP/1.0 only if `keep-alive` is sent.
    request.keep_alive = !close && (request.version != Version::Http10 || keep_alive);
    request.framing = framing(request, &seen)?;
    request.takes_trailers = seen.te.is_some_and(|value| {
        field::list(request.head.slice(value)).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
    });
    request.sends_te = request.takes_trailers;
    if let Some(expect) = seen.expect {
        if !request.head.slice(expect).eq_ignore_ascii_case(b"100-continue") {
            return Err(Reject::Expectation);
        }
        // RFC 9110 §10.1.1: without a body, or from HTTP/1.0, there is nothing to wait for.
        request.expects_continue = request.version != Version::Http10 && request.framing.has_body();
    }
    request.upgrade = upgrade && may_upgrade(request, &seen);
    target(request, limits, seen.host)
}

/// Whether the protocol that `Upgrade` names may be switched to (RFC 9110 §7.8). `h2c` is obsolete (RFC 9113 §3.1), and requests
/// sent over it would bypass the plugins. Only one line is checked and forwarded.
#[inline]
fn may_upgrade(request: &RequestHead, seen: &SeenFields) -> bool {
    request.version == Version::Http11
        && request.method == Method::Get
        && request.framing == Framing::None
        && !seen.has_several_upgrades
        && seen.upgrade.is_some_and(|value| !names_h2c_or_tls(request.head.slice(value)))
}

/// Whether an `Upgrade` field names a protocol the gateway must not switch to.
fn names_h2c_or_tls(upgrade: &[u8]) -> bool {
    field::list(upgrade).any(|protocol| {
        let name = protocol.split(|&byte| byte == b'/').next().unwrap_or_default();
        [&b"h2c"[..], b"h2", b"tls"].iter().any(|refused| name.eq_ignore_ascii_case(refused))
    })
}

/// The field values that `derive` needs after its pass.
#[derive(Default)]
struct SeenFields {
    host: Option<Span>,
    length: Option<Span>,
    coding: Option<Span>,
    authorization: Option<Span>,
    expect: Option<Span>,
    upgrade: Option<Span>,
    has_several_upgrades: bool,
    te: Option<Span>,
    connection: ConnectionOptions,
}

impl SeenFields {
    /// `value`, or `None` if the field occurred before.
    fn once(before: Option<Span>, value: Span) -> Option<Span> {
        before.is_none().then_some(value)
    }
}

/// Determines the message length (RFC 9112 §6.3), without any of the leniency the RFC permits.
fn framing(request: &RequestHead, seen: &SeenFields) -> Result<Framing, Reject> {
    if let Some(coding) = seen.coding {
        // RFC 9112 §6.1: `Content-Length` with `Transfer-Encoding` may be request smuggling; so may a coding from HTTP/1.0.
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
    // Unsupported codings, well-formed and without `chunked`, are 501 (RFC 9112 §6.1). `chunked` beside another coding, or a
    // malformed value, is an attack or a broken sender: 400.
    let is_unknown = !value.is_empty()
        && value.split(|&byte| byte == b',').all(|coding| {
            let coding = field::trim(coding);
            field::is_name(coding) && !coding.eq_ignore_ascii_case(b"chunked")
        });
    Err(if is_unknown { Reject::TransferCoding } else { Reject::Framing })
}

/// Parses the request target in its four forms (RFC 9112 §3.2), and determines the host.
fn target(request: &mut RequestHead, limits: &Limits, host: Option<Span>) -> Result<(), Reject> {
    let Span { start, end } = request.target;
    let host_value = host.map(|host| request.head.slice(host));
    if host_value.is_none() && request.version == Version::Http11 {
        return Err(Reject::Host);
    }
    let mut authority = host;
    let mut path_start = start;
    match request.head.slice(request.target) {
        target if request.method == Method::Connect => {
            let parsed = HostPort::parse(target).map_err(|_| Reject::Target)?;
            if parsed.port.is_none() || host_value.is_some_and(|host| !host.eq_ignore_ascii_case(target)) {
                return Err(Reject::Target);
            }
        }
        [b'/', ..] => {}
        b"*" if request.method == Method::Options => {}
        target => {
            // RFC 9112 §3.2.2: the authority of an absolute target replaces Host. Both must agree, unless
            // `target_replaces_host` is set.
            let starts = |scheme: &[u8]| target.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme));
            let (scheme, default_port) = match (starts(b"http://"), starts(b"https://")) {
                (true, _) => (7, 80),
                (_, true) => (8, 443),
                _ => return Err(Reject::Target),
            };
            let rest = &target[scheme..];
            let length = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            let same = |host: &[u8]| is_same_authority(host, &rest[..length], default_port);
            if !limits.target_replaces_host && host_value.is_some_and(|host| !same(host)) {
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
    set_target_path(request, limits, Span { start: path_start, end })
}

/// Whether both name the same host and port. `default_port` stands for an omitted port (RFC 9110 §4.2.3).
fn is_same_authority(one: &[u8], other: &[u8], default_port: u16) -> bool {
    let (Ok(one), Ok(other)) = (HostPort::parse(one), HostPort::parse(other)) else { return false };
    one.host.eq_ignore_ascii_case(other.host) && one.port.unwrap_or(default_port) == other.port.unwrap_or(default_port)
}

#[cfg(test)]
mod tests;
