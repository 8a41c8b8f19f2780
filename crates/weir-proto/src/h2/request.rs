//! Request heads (RFC 9113 §8.3.1), and WebSockets by extended CONNECT (RFC 8441).

use super::class::FieldClass;
use super::hpack::DecodedField;
use super::priority::Priority;
use super::{add_crumb, push};
use crate::field::{self, Known};
use crate::grpc;
use crate::h1::Limits;
use crate::h1::content_length;
use crate::head::{Framing, RequestHead, Span, Version};
use crate::method::Method;
use crate::request::{Reject, is_dropped_for_underscore, method, set_host, set_target_path};

/// The pseudo-fields of a request, and whether the request has no content.
#[derive(Clone, Copy, Debug, Default)]
pub struct PseudoField<'a> {
    pub method: &'a [u8],
    pub scheme: Option<&'a [u8]>,
    pub authority: Option<&'a [u8]>,
    pub path: Option<&'a [u8]>,
    /// `:protocol` of an extended CONNECT (RFC 8441 §4).
    pub protocol: Option<&'a [u8]>,
    /// END_STREAM is set on the field section: no content follows.
    pub ended: bool,
}

/// Makes a head of a request's field section; `request` must be clear. What HTTP/1 refuses is refused here with the same reason;
/// errors that only HTTP/2 can have are [`Reject::Malformed`].
pub fn request_head<'a>(
    pseudo: &PseudoField<'a>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    limits: &Limits,
    request: &mut RequestHead,
) -> Result<(), Reject> {
    let mut reader = RequestReader::new(request, limits);
    let known = [
        (&b":method"[..], Some(pseudo.method)),
        (b":scheme", pseudo.scheme),
        (b":authority", pseudo.authority),
        (b":path", pseudo.path),
        (b":protocol", pseudo.protocol),
    ];
    for (name, value) in known.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(fields) {
        reader.field(DecodedField::of(name, value));
    }
    reader.finish(pseudo.ended)
}

/// Which pseudo-fields have occurred, and the values of fields that are evaluated at the end.
#[derive(Default)]
struct Seen {
    method: bool,
    scheme: bool,
    authority: bool,
    path: bool,
    protocol: Option<ConnectProtocol>,
    /// A regular field has occurred: no pseudo-field may follow (RFC 9113 §8.3).
    field: bool,
    host: Option<Span>,
    length: Option<Span>,
    authorization: Option<Span>,
    expect: Option<Span>,
    timeout: Option<Span>,
    priority: Option<Span>,
    cookie: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectProtocol {
    Websocket,
    Other,
}

/// Builds a head from fields as they are decoded. After a refusal the remaining fields are only checked for being malformed.
pub struct RequestReader<'r> {
    request: &'r mut RequestHead,
    limits: &'r Limits,
    seen: Seen,
    count: usize,
    refused: Option<Reject>,
}

impl<'r> RequestReader<'r> {
    /// `request` must be clear.
    pub fn new(request: &'r mut RequestHead, limits: &'r Limits) -> RequestReader<'r> {
        request.version = Version::Http2;
        RequestReader { request, limits, seen: Seen::default(), count: 0, refused: None }
    }

    /// Adds a field of a known class.
    pub fn field(&mut self, DecodedField { class, name, value, never_indexed }: DecodedField<'_>) {
        // A malformed field makes the request malformed, even if it was refused for another reason before.
        if self.refused.is_some() && class != FieldClass::Malformed {
            return;
        }
        let taken = match class {
            FieldClass::Field(known) => self.regular(known, name, value, never_indexed),
            FieldClass::Cookie => self.cookie(name, value),
            FieldClass::Malformed | FieldClass::Status => Err(Reject::Malformed),
            class => self.pseudo(class, value),
        };
        if let Err(reject) = taken {
            self.refused = Some(reject);
        }
    }

    fn pseudo(&mut self, class: FieldClass, value: &[u8]) -> Result<(), Reject> {
        let (seen, request) = (&mut self.seen, &mut *self.request);
        if seen.field {
            return Err(Reject::Malformed);
        }
        let twice = match class {
            FieldClass::Method => {
                if !field::is_name(value) {
                    return Err(Reject::Malformed);
                }
                request.method = method(value)?;
                request.method_name = request.head.append(value);
                std::mem::replace(&mut seen.method, true)
            }
            FieldClass::Scheme => {
                if !is_http(value) {
                    self.refused = Some(Reject::Target);
                }
                std::mem::replace(&mut seen.scheme, true)
            }
            FieldClass::Authority => {
                push(&mut request.head, Known::Host, b"host", value); // so that a lookup of `Host` finds it
                seen.host = request.head.fields.last().map(|field| field.value);
                std::mem::replace(&mut seen.authority, true)
            }
            FieldClass::Path => {
                if value.len() > self.limits.target_bytes {
                    return Err(Reject::TargetTooLong);
                }
                request.target = request.head.append(value);
                std::mem::replace(&mut seen.path, true)
            }
            _ => {
                let protocol = if value == b"websocket" { ConnectProtocol::Websocket } else { ConnectProtocol::Other };
                seen.protocol.replace(protocol).is_some()
            }
        };
        if twice { Err(Reject::Malformed) } else { Ok(()) }
    }

    /// Counts one more field, and checks the limits of number and size.
    fn has_room(&mut self, name: &[u8], value: &[u8]) -> Result<(), Reject> {
        self.seen.field = true;
        self.count += 1;
        let bytes = self.request.head.bytes.len() + name.len() + value.len() + 4;
        match self.count > self.limits.fields || bytes > self.limits.head_bytes {
            true => Err(Reject::HeadTooLarge),
            false => Ok(()),
        }
    }

    fn cookie(&mut self, name: &[u8], value: &[u8]) -> Result<(), Reject> {
        self.has_room(name, value)?;
        let head = &mut self.request.head;
        match self.seen.cookie {
            Some(cookie) => add_crumb(head, cookie, value),
            None => {
                self.seen.cookie = Some(head.fields.len());
                push(head, Known::Other, name, value);
            }
        }
        Ok(())
    }

    fn regular(&mut self, known: Known, name: &[u8], value: &[u8], never_indexed: bool) -> Result<(), Reject> {
        self.has_room(name, value)?;
        let (seen, head) = (&mut self.seen, &mut self.request.head);
        if known == Known::Host
            && let Some(host) = seen.host
        {
            // RFC 9113 §8.3.1: `Host` must equal `:authority`. A second `Host` is refused as in HTTP/1.
            return match head.slice(host).eq_ignore_ascii_case(value) && seen.authority {
                true => Ok(()),
                false => Err(Reject::Host),
            };
        }
        push(head, known, name, value);
        if never_indexed {
            head.mark_never_indexed();
        }
        let field = head.fields.last_mut().expect("it was pushed just now");
        field.removed = match known {
            Known::Other => is_dropped_for_underscore(name, self.limits.underscores_in_names),
            known => known.is_hop_by_hop() || known == Known::Identity,
        };
        let once = match known {
            Known::Host => &mut seen.host,
            Known::ContentLength => &mut seen.length,
            Known::Authorization => &mut seen.authorization,
            Known::Expect => &mut seen.expect,
            Known::GrpcTimeout => {
                seen.timeout = Some(field.value);
                return Ok(());
            }
            // Another value than `trailers` is malformed.
            Known::Te => {
                self.request.sends_te = true;
                return Ok(());
            }
            Known::Other if name == b"priority" => {
                seen.priority = Some(field.value);
                return Ok(());
            }
            _ => return Ok(()),
        };
        match once.replace(field.value) {
            None => Ok(()),
            Some(_) if known == Known::Authorization => Err(Reject::Authorization),
            Some(_) => Err(Reject::Framing),
        }
    }

    /// Regular fields seen, whether they were kept or not.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The client's `Priority` field (RFC 9218).
    pub fn priority(&self) -> Option<Priority> {
        self.seen.priority.map(|priority| Priority::parse(self.request.head.slice(priority)))
    }

    /// Completes the head. With `ended` the request has no content.
    pub fn finish(mut self, ended: bool) -> Result<(), Reject> {
        if let Some(reject) = self.refused {
            return Err(reject);
        }
        self.target(ended)?;
        let RequestReader { request, limits, seen, .. } = self;
        request.framing = framing(ended, request, &seen)?;
        if let Some(expect) = seen.expect {
            if !request.head.slice(expect).eq_ignore_ascii_case(b"100-continue") {
                return Err(Reject::Expectation);
            }
            request.expects_continue = request.framing.has_body();
        }
        if let Some(timeout) = seen.timeout.filter(|_| request.is_grpc()) {
            request.timeout_ns = grpc::timeout_ns(request.head.slice(timeout));
        }
        request.takes_trailers = true; // HTTP/2 has a frame for trailers, which a client may ignore
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

    /// Checks the pseudo-fields, and converts an extended CONNECT for a WebSocket to its HTTP/1 form.
    fn target(&mut self, ended: bool) -> Result<(), Reject> {
        let (seen, request) = (&self.seen, &mut *self.request);
        if !seen.method {
            return Err(Reject::Malformed);
        }
        if request.method == Method::Connect && seen.protocol.is_none() {
            return if seen.scheme || seen.path { Err(Reject::Malformed) } else { Ok(()) };
        }
        if seen.protocol.is_some() && request.method != Method::Connect || !seen.scheme {
            return Err(Reject::Malformed);
        }
        match request.head.slice(request.target) {
            [] => return Err(Reject::Malformed),
            [b'/', ..] => {}
            b"*" if request.method == Method::Options => {}
            _ => return Err(Reject::Target),
        }
        if seen.protocol == Some(ConnectProtocol::Websocket) && !ended {
            // RFC 8441 §5: the equivalent of GET with `Upgrade` in HTTP/1.1.
            request.set_method(b"GET");
            request.upgrade = true;
            push(&mut request.head, Known::Upgrade, b"upgrade", b"websocket");
            request.head.fields.last_mut().expect("it was pushed just now").removed = true;
        }
        Ok(())
    }
}

fn is_http(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")
}

/// The content ends with the stream, whatever `Content-Length` says; that both agree is checked as content arrives (RFC 9113
/// §8.1.1).
fn framing(ended: bool, request: &RequestHead, seen: &Seen) -> Result<Framing, Reject> {
    let length = match seen.length {
        None => None,
        Some(span) => Some(content_length(request.head.slice(span)).ok_or(Reject::Framing)?),
    };
    match (length, ended) {
        (Some(length), true) if length > 0 => Err(Reject::Malformed),
        (Some(_), _) if request.upgrade => Err(Reject::Malformed),
        (Some(length), _) => Ok(Framing::Sized(length)),
        (None, false) if request.upgrade => Ok(Framing::None),
        (None, false) => Ok(Framing::UntilClose),
        // RFC 9110 §8.6: HTTP/1 sends `Content-Length: 0` where content is expected and there is none.
        (None, true) if matches!(request.method, Method::Post | Method::Put | Method::Patch) => Ok(Framing::Sized(0)),
        (None, true) => Ok(Framing::None),
    }
}

#[cfg(test)]
mod tests;
