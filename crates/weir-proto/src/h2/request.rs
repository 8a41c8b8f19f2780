//! Requests (RFC 9113 §8.3.1), and WebSockets that ask for a stream of their own (RFC 8441).

use super::{add_crumb, check, push};
use crate::field::{self, Known};
use crate::grpc;
use crate::h1::Limits;
use crate::h1::content_length;
use crate::head::{Framing, RequestHead, Span, Version};
use crate::method::Method;
use crate::request::{Reject, is_doubtful, method, set_host, set_target_path};

/// The pseudo-fields of a request, and whether it is over with its head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pseudo<'a> {
    pub method: &'a [u8],
    pub scheme: Option<&'a [u8]>,
    pub authority: Option<&'a [u8]>,
    pub path: Option<&'a [u8]>,
    /// `:protocol` of an extended CONNECT (RFC 8441 §4).
    pub protocol: Option<&'a [u8]>,
    /// END_STREAM stands on the field section: no content follows.
    pub ended: bool,
}

/// Makes a head of a request's field section; `request` must be clear. The same is refused as in HTTP/1, with the same
/// answers; what only HTTP/2 can get wrong is [`Reject::Malformed`].
pub fn request_head<'a>(
    pseudo: &Pseudo<'a>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    limits: &Limits,
    request: &mut RequestHead,
) -> Result<(), Reject> {
    request.version = Version::Http2;
    start(pseudo, limits, request)?;
    let seen = read_fields(pseudo, fields, limits, request)?;
    request.framing = framing(pseudo, request, &seen)?;
    if let Some(expect) = seen.expect {
        if !request.head.slice(expect).eq_ignore_ascii_case(b"100-continue") {
            return Err(Reject::Expectation);
        }
        request.expects_continue = request.framing.has_body();
    }
    if let Some(timeout) = seen.timeout.filter(|_| request.is_grpc()) {
        request.timeout_ns = grpc::timeout_ns(request.head.slice(timeout));
    }
    request.takes_trailers = true; // they have a place of their own, and cost nothing to who does not look
    match seen.host {
        Some(host) => set_host(request, host)?,
        None => return Err(Reject::Host),
    }
    if request.method == Method::Connect {
        request.target = request.authority; // RFC 9113 §8.5: it has no path
        return Ok(());
    }
    set_target_path(request, limits, request.target)
}

/// Method, target and, in the form HTTP/1 has for it, what is asked for beyond them.
fn start(pseudo: &Pseudo<'_>, limits: &Limits, request: &mut RequestHead) -> Result<(), Reject> {
    if !field::is_name(pseudo.method) {
        return Err(Reject::Malformed);
    }
    request.method = method(pseudo.method)?;
    request.method_name = request.head.append(pseudo.method);
    let is_websocket = pseudo.protocol == Some(b"websocket");
    if request.method == Method::Connect && pseudo.protocol.is_none() {
        return match (pseudo.scheme, pseudo.path) {
            (None, None) => Ok(()),
            _ => Err(Reject::Malformed),
        };
    }
    if pseudo.protocol.is_some() && request.method != Method::Connect {
        return Err(Reject::Malformed);
    }
    let path = pseudo.path.unwrap_or_default();
    if path.len() > limits.target_bytes {
        return Err(Reject::TargetTooLong);
    }
    if pseudo.scheme.is_some_and(|scheme| !is_http(scheme)) {
        return Err(Reject::Target);
    }
    match path {
        [] => return Err(Reject::Malformed),
        [b'/', ..] => {}
        b"*" if request.method == Method::Options => {}
        _ => return Err(Reject::Target),
    }
    request.target = request.head.append(path);
    if is_websocket && !pseudo.ended {
        // RFC 8441 §5: what HTTP/1.1 says with a GET and `Upgrade`.
        request.set_method(b"GET");
        request.upgrade = true;
        push(&mut request.head, b"upgrade", b"websocket");
        request.head.fields[0].removed = true;
    }
    Ok(())
}

fn is_http(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")
}

/// Fields that mean something, by where their values stand.
#[derive(Default)]
struct Seen {
    host: Option<Span>,
    length: Option<Span>,
    expect: Option<Span>,
    timeout: Option<Span>,
    cookie: Option<usize>,
}

fn read_fields<'a>(
    pseudo: &Pseudo<'a>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    limits: &Limits,
    request: &mut RequestHead,
) -> Result<Seen, Reject> {
    // Long, since each field of a request is looked at once, and what it may be stands in one place.
    let mut seen = Seen::default();
    let head = &mut request.head;
    if let Some(authority) = pseudo.authority {
        if !field::is_value(authority) {
            return Err(Reject::Malformed);
        }
        push(head, b"host", authority); // what asks for `Host` finds it
        seen.host = Some(head.fields[head.fields.len() - 1].value);
    }
    let mut count = 0;
    for (name, value) in fields {
        check(name, value)?;
        count += 1;
        if count > limits.fields || head.bytes.len() + name.len() + value.len() + 4 > limits.head_bytes {
            return Err(Reject::HeadTooLarge);
        }
        if name == b"cookie" {
            match seen.cookie {
                Some(cookie) => add_crumb(head, cookie, value),
                None => {
                    seen.cookie = Some(head.fields.len());
                    push(head, name, value);
                }
            }
            continue;
        }
        if name == b"host"
            && let Some(host) = seen.host
        {
            // RFC 9113 §8.3.1: it must not say anything else. Twice is refused as in HTTP/1.
            match head.slice(host).eq_ignore_ascii_case(value) && pseudo.authority.is_some() {
                true => continue,
                false => return Err(Reject::Host),
            }
        }
        push(head, name, value);
        let field = head.fields.last_mut().expect("it was pushed just now");
        field.removed = match field.known {
            Known::Other => is_doubtful(name, limits.underscores_in_names),
            known => known.is_hop_by_hop() || known == Known::Identity,
        };
        let once = match field.known {
            Known::Host => &mut seen.host,
            Known::ContentLength => &mut seen.length,
            Known::Expect => &mut seen.expect,
            Known::GrpcTimeout => {
                seen.timeout = Some(field.value);
                continue;
            }
            _ => continue,
        };
        if once.replace(field.value).is_some() {
            return Err(Reject::Framing);
        }
    }
    Ok(seen)
}

/// The end of the content is the end of the stream, whatever is said of its length; that both agree is checked as it
/// comes (RFC 9113 §8.1.1).
fn framing(pseudo: &Pseudo<'_>, request: &RequestHead, seen: &Seen) -> Result<Framing, Reject> {
    let length = match seen.length {
        None => None,
        Some(span) => Some(content_length(request.head.slice(span)).ok_or(Reject::Framing)?),
    };
    match (length, pseudo.ended) {
        (Some(length), true) if length > 0 => Err(Reject::Malformed),
        (Some(_), _) if request.upgrade => Err(Reject::Malformed),
        (Some(length), _) => Ok(Framing::Sized(length)),
        (None, false) if request.upgrade => Ok(Framing::None),
        (None, false) => Ok(Framing::UntilClose),
        // RFC 9110 §8.6: where content is to be expected, HTTP/1 says that there is none.
        (None, true) if matches!(request.method, Method::Post | Method::Put | Method::Patch) => Ok(Framing::Sized(0)),
        (None, true) => Ok(Framing::None),
    }
}

#[cfg(test)]
mod tests;
