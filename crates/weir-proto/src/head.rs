//! One head for every protocol: contiguous bytes and an index of the fields in them.
//!
//! The common case forwards without building a map. An edit appends to the bytes and to the index, a removal marks the
//! index, so that nothing already pointed at ever moves.

use std::num::NonZeroU64;

use crate::decimal::Decimal;
use crate::field::{self, Known, Line, Name};
use crate::method::Method;

/// A range of a head's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Span {
        // Heads are limited far below 4 GiB by `Limits::head_bytes`.
        Span { start: start as u32, end: end as u32 }
    }

    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// Where a field stands, and what it is to the gateway.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: Span,
    pub value: Span,
    pub known: Known,
    /// Not forwarded: hop-by-hop, or removed by a plugin.
    pub removed: bool,
    /// Nobody sent it: it was added on the way.
    pub added: bool,
    /// The line in the head's bytes reads exactly `name: value\r\n`, so neighbours can be forwarded in one copy.
    pub(crate) verbatim: bool,
}

/// Header fields in the order of their arrival, and the bytes they stand in.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fields: Vec<Field>,
    /// Fields that are not to be written, not even by the gateway itself: a bit for each [`Known`].
    withheld: u32,
}

impl Head {
    /// Forgets everything but keeps the memory, so that a head can be used for exchange after exchange.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        self.withheld = 0;
    }

    /// As many bytes as it has memory for.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// What spans point into.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn slice(&self, span: Span) -> &[u8] {
        &self.bytes[span.range()]
    }

    /// Fields that will be forwarded, with their names as received.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.present().map(|field| (self.slice(field.name), self.slice(field.value)))
    }

    /// All fields in their order, also those that were removed.
    pub fn entries(&self) -> &[Field] {
        &self.fields
    }

    /// All present fields with what they are to the gateway.
    pub fn present(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| !field.removed)
    }

    /// The first value of a field, by name in any case.
    pub fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let field = self.present().find(|field| field::same_name(self.slice(field.name), name))?;
        Some(self.slice(field.value))
    }

    /// Every value of a field, by name in any case.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.present()
            .filter(move |field| field::same_name(self.slice(field.name), name))
            .map(|field| self.slice(field.value))
    }

    /// The same for the fields as they came and as they were added, removed ones among them.
    pub fn received<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.fields
            .iter()
            .filter(move |field| field::same_name(self.slice(field.name), name))
            .map(|field| self.slice(field.value))
    }

    /// The first value of a field as its sender wrote it, whatever has become of it since.
    pub fn original<'a>(&'a self, name: &'a [u8]) -> Option<&'a [u8]> {
        let mut sent = self.fields.iter().filter(|field| !field.added);
        let field = sent.find(|field| field::same_name(self.slice(field.name), name))?;
        Some(self.slice(field.value))
    }

    /// The first value of a field the gateway knows, removed or not: hop-by-hop fields stay readable for the gateway.
    pub fn known(&self, known: Known) -> Option<&[u8]> {
        self.fields.iter().find(|field| field.known == known).map(|field| self.slice(field.value))
    }

    /// Adds a field after the others. Names and values that would break the line are refused, and nothing changes.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        if !field::is_name(name) || !field::is_value(value) {
            return Err(BadField);
        }
        let known = Known::parse(name);
        let name = self.append(name);
        self.bytes.extend_from_slice(b": ");
        let value = self.append(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.push(name, value, known);
        Ok(())
    }

    /// Replaces every field of this name by one.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        if !field::is_name(name) || !field::is_value(value) {
            return Err(BadField);
        }
        self.remove(name);
        self.add(name, value)
    }

    /// Removes every field of these names, which were looked at before.
    pub fn remove_named<const N: usize>(&mut self, names: [&Name; N]) {
        // Few fields have a name as long as one of these, modulo 64.
        let lengths = names.iter().fold(0_u64, |lengths, name| lengths | 1 << (name.as_bytes().len() % 64));
        for field in &mut self.fields {
            if lengths >> ((field.name.end - field.name.start) % 64) & 1 == 1 {
                let name = &self.bytes[field.name.range()];
                field.removed |= names.iter().any(|removed| field::same_name(removed.as_bytes(), name));
            }
        }
    }

    /// Adds a field whose value is a number.
    pub fn add_number(&mut self, name: &Name, number: &Decimal) {
        let written = self.begin(name);
        let (padded, len) = number.padded();
        let start = self.bytes.len();
        self.bytes.extend_from_slice(padded);
        self.bytes.truncate(start + len + 2);
        self.push(written, Span::new(start, start + len), name.known());
    }

    /// Adds a field that was looked at before.
    pub fn add_line(&mut self, line: &Line) {
        let written = self.append(&line.bytes);
        let value = written.start as usize + line.value;
        let name = Span::new(written.start as usize, value - 2);
        self.push(name, Span::new(value, written.end as usize - 2), line.known);
    }

    /// Adds a field whose name was looked at before.
    pub fn add_named(&mut self, name: &Name, value: &[u8]) -> Result<(), BadField> {
        if !field::is_value(value) {
            return Err(BadField);
        }
        let (written, value) = (self.begin(name), self.append(value));
        self.bytes.extend_from_slice(b"\r\n");
        self.push(written, value, name.known());
        Ok(())
    }

    /// Writes the beginning of a line, and says where the name stands in it.
    fn begin(&mut self, name: &Name) -> Span {
        let Span { start, end } = self.append(name.line());
        Span { start, end: end - 2 }
    }

    fn push(&mut self, name: Span, value: Span, known: Known) {
        self.fields.push(Field { name, value, known, removed: false, added: true, verbatim: true });
    }

    /// Removes every field that is this to the gateway.
    pub fn remove_known(&mut self, known: Known) {
        for field in self.fields.iter_mut().filter(|field| field.known == known) {
            field.removed = true;
        }
    }

    /// Removes every field of this name; says whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let mut found = false;
        for field in &mut self.fields {
            if !field.removed && field::same_name(&self.bytes[field.name.range()], name) {
                field.removed = true;
                found = true;
            }
        }
        found
    }

    /// Gives every field of this name another value, removed ones among them; `None` forgets the field. For a copy that is
    /// only looked at.
    pub fn replace_values(&mut self, name: &[u8], replace: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        let Head { bytes, fields, .. } = self;
        fields.retain_mut(|field| {
            if !field::same_name(&bytes[field.name.range()], name) {
                return true;
            }
            let Some(value) = replace(&bytes[field.value.range()]) else { return false };
            let start = bytes.len();
            bytes.extend_from_slice(&value);
            field.value = Span::new(start, bytes.len());
            field.verbatim = false;
            true
        });
    }

    /// Removes every field of this name, and keeps the gateway from adding it of its own accord.
    pub fn withhold(&mut self, name: &[u8]) {
        self.remove(name);
        match Known::parse(name) {
            Known::Other => {}
            known => self.withheld |= 1 << known as u8,
        }
    }

    /// See [`Head::withhold`].
    pub fn is_withheld(&self, known: Known) -> bool {
        self.withheld >> known as u8 & 1 == 1
    }

    /// Appends bytes that belong to no field (a new path, a host) and says where they are.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, self.bytes.len())
    }

    /// Writes the present fields that `keep` lets through as lines. Neighbouring lines that stand in the bytes as they
    /// would be written are copied together.
    pub fn write_fields(&self, out: &mut Vec<u8>, keep: impl FnMut(&Field) -> bool) {
        self.write_after(Span::default(), out, keep);
    }

    /// The same behind a start line, which stands in the bytes as it is to be written.
    #[inline]
    fn write_after(&self, start_line: Span, out: &mut Vec<u8>, mut keep: impl FnMut(&Field) -> bool) {
        let mut run = start_line;
        for field in &self.fields {
            if field.removed || !keep(field) {
                continue;
            }
            let end = field.value.end + 2;
            if field.verbatim && field.name.start == run.end {
                run.end = end;
                continue;
            }
            out.extend_from_slice(self.slice(run));
            run = Span::default();
            if field.verbatim {
                run = Span { start: field.name.start, end };
            } else {
                write_field(out, self.slice(field.name), self.slice(field.value));
            }
        }
        out.extend_from_slice(self.slice(run));
    }
}

/// Writes `name: value` and the end of the line.
pub fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// A field name that is not a token, or a value that could end the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadField;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
}

impl Version {
    /// As `$server_protocol` and log lines say it.
    pub fn name(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
        }
    }
}

/// How the end of a body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    #[default]
    None,
    Sized(u64),
    Chunked,
    /// Until the sender closes: its connection, which is for responses only, or its stream of HTTP/2.
    UntilClose,
}

impl Framing {
    pub fn has_body(self) -> bool {
        !matches!(self, Framing::None | Framing::Sized(0))
    }
}

/// A request's head, checked and with everything derived from it once.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    pub head: Head,
    pub method: Method,
    pub version: Version,
    pub framing: Framing,
    /// Another request may follow in the same stream of bytes. In HTTP/2 none ever does.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1).
    pub expects_continue: bool,
    /// `Connection: upgrade` with an `Upgrade` that is not `h2c`, on a bodiless GET of HTTP/1.1.
    pub upgrade: bool,
    /// `TE: trailers`: the client can take trailer fields.
    pub takes_trailers: bool,
    /// `%2F` or `%5C` stands in the path.
    pub encoded_separator: bool,
    /// The request came with an absolute-form target; its authority has replaced `Host`.
    pub absolute_form: bool,
    /// How long the client waits, from when it has asked; only a call of gRPC in HTTP/2 says so.
    pub(crate) timeout_ns: Option<NonZeroU64>,
    pub(crate) method_name: Span,
    /// What the client has sent where another method goes upstream, with its name.
    pub(crate) client_method: Option<(Method, Span)>,
    pub(crate) target: Span,
    pub(crate) path: Span,
    pub(crate) query: Option<Span>,
    pub(crate) authority: Span,
    /// What stands for it on the way to the upstream.
    pub(crate) new_authority: Option<Span>,
    pub(crate) host: Span,
    pub(crate) port: Option<u16>,
}

impl RequestHead {
    pub fn clear(&mut self) {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        *self = RequestHead { head, ..RequestHead::default() };
    }

    pub fn method_name(&self) -> &[u8] {
        match self.method.name() {
            Some(name) => name.as_bytes(),
            None => self.head.slice(self.method_name),
        }
    }

    /// The method of the client's request, which its response is framed by (RFC 9112 §6.3).
    pub fn client_method(&self) -> Method {
        self.client_method.map_or(self.method, |(method, _)| method)
    }

    pub fn client_method_name(&self) -> &[u8] {
        match self.client_method {
            None => self.method_name(),
            Some((method, name)) => method.name().map_or(self.head.slice(name), str::as_bytes),
        }
    }

    /// Replaces the method that goes upstream. `false`, and nothing changes, if it is not a token.
    pub fn set_method(&mut self, name: &[u8]) -> bool {
        if !field::is_name(name) {
            return false;
        }
        self.client_method.get_or_insert((self.method, self.method_name));
        self.method = Method::parse(name);
        self.method_name = self.head.append(name);
        true
    }

    /// Writes the request line, `Host`, and the present fields that `keep` lets through. Where everything is to go on as it
    /// came it is copied together.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, host: &[u8], mut keep: impl FnMut(&Field) -> bool) {
        if let Some((line, host_field)) = self.unchanged_start(host) {
            return self.head.write_after(line, out, |field| field.name.start == host_field || keep(field));
        }
        out.extend_from_slice(self.method_name());
        out.push(b' ');
        out.extend_from_slice(self.path());
        if let Some(query) = self.query() {
            out.push(b'?');
            out.extend_from_slice(query);
        }
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(host);
        out.extend_from_slice(b"\r\n");
        self.head.write_fields(out, keep);
    }

    /// The request line, if it stands in the bytes as it is to be written and this `Host` follows it; and where that begins.
    fn unchanged_start(&self, host: &[u8]) -> Option<(Span, u32)> {
        let first = self.head.fields.first()?;
        let line = Span { start: 0, end: first.name.start };
        let target_end = self.query.map_or(self.path.end, |query| query.end);
        let is_target_unchanged = self.path.start == self.method_name.end + 1
            && self.query.is_none_or(|query| query.start == self.path.end + 1)
            && self.head.bytes.get(target_end as usize..line.end as usize)? == b" HTTP/1.1\r\n";
        let is_host_unchanged = first.known == Known::Host
            && first.verbatim
            && !first.removed
            && self.head.slice(first.name) == b"Host"
            && self.head.slice(first.value) == host;
        let is_unchanged = self.method_name.start == 0 && is_target_unchanged && is_host_unchanged;
        is_unchanged.then_some((line, first.name.start))
    }

    /// A call of gRPC, by its content type.
    pub fn is_grpc(&self) -> bool {
        is_grpc(&self.head)
    }

    /// How many nanoseconds the client of a call of gRPC waits, from when it has asked.
    pub fn timeout_ns(&self) -> Option<u64> {
        self.timeout_ns.map(NonZeroU64::get)
    }

    /// The request target as the client sent it.
    pub fn target(&self) -> &[u8] {
        self.head.slice(self.target)
    }

    /// The canonical path; `*` for the asterisk form.
    pub fn path(&self) -> &[u8] {
        self.head.slice(self.path)
    }

    /// What stands after the first `?`, if there is one.
    pub fn query(&self) -> Option<&[u8]> {
        self.query.map(|span| self.head.slice(span))
    }

    /// Replaces the path, which is brought into canonical form first, and with `Some` the query.
    pub fn set_path(&mut self, path: &[u8], query: Option<&[u8]>) -> Result<(), crate::path::BadPath> {
        if query.is_some_and(|query| !crate::path::is_query(query)) {
            return Err(crate::path::BadPath::Syntax);
        }
        let start = self.head.bytes.len();
        let path = match crate::path::canonical(path, &mut self.head.bytes) {
            Ok(crate::path::Canonical::AsIs) => self.head.append(path),
            Ok(crate::path::Canonical::Rewritten { .. }) => Span::new(start, self.head.bytes.len()),
            Err(bad) => {
                self.head.bytes.truncate(start);
                return Err(bad);
            }
        };
        self.path = path;
        if let Some(query) = query {
            self.query = (!query.is_empty()).then(|| self.head.append(query));
        }
        Ok(())
    }

    /// Replaces the query in the target and in what has become of it. For a copy that is only looked at.
    pub fn replace_query(&mut self, replace: impl Fn(&[u8]) -> Vec<u8>) {
        if let Some(query) = self.query.map(|query| replace(self.head.slice(query))) {
            self.query = (!query.is_empty()).then(|| self.head.append(&query));
        }
        let target = self.target();
        let Some(mark) = target.iter().position(|&byte| byte == b'?') else { return };
        let query = replace(&target[mark + 1..]);
        let end = if query.is_empty() { mark } else { mark + 1 };
        let target = [&target[..end], &query].concat();
        self.target = self.head.append(&target);
    }

    /// The host, canonical: lower case, without port and trailing dot. Empty if an HTTP/1.0 client named none.
    pub fn host(&self) -> &[u8] {
        self.head.slice(self.host)
    }

    /// The authority as the client named it, with its port.
    pub fn client_authority(&self) -> &[u8] {
        self.head.slice(self.authority)
    }

    /// The authority for the upstream: the client's, unless it was replaced.
    pub fn authority(&self) -> &[u8] {
        self.head.slice(self.new_authority.unwrap_or(self.authority))
    }

    /// The port in the authority as the client named it.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Replaces the authority that is forwarded as `Host`. What the client named stays: routing is not done again, and later
    /// plugins and logs are told of the host that it asked for.
    pub fn set_authority(&mut self, authority: &[u8]) -> Result<(), crate::authority::BadAuthority> {
        crate::authority::HostPort::parse(authority)?;
        self.new_authority = Some(self.head.append(authority));
        Ok(())
    }
}

/// A response's head.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    pub head: Head,
    pub status: u16,
    pub version: Version,
    pub framing: Framing,
    /// The upstream lets its connection be used again.
    pub keep_alive: bool,
    pub(crate) reason: Span,
}

impl ResponseHead {
    pub fn clear(&mut self) {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        *self = ResponseHead { head, ..ResponseHead::default() };
    }

    /// The reason phrase as the upstream wrote it, or the usual one if the status was set here.
    pub fn reason(&self) -> &[u8] {
        match self.reason.is_empty() {
            true => reason(self.status).as_bytes(),
            false => self.head.slice(self.reason),
        }
    }

    /// Writes the status line, and the present fields that `keep` lets through. Where everything is to go on as it came it is
    /// copied together.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, keep: impl FnMut(&Field) -> bool) {
        if let Some(line) = self.unchanged_line() {
            return self.head.write_after(line, out, keep);
        }
        let status = self.status;
        let digit = |divisor: u16| b'0' + (status / divisor % 10) as u8;
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&[digit(100), digit(10), digit(1), b' ']);
        out.extend_from_slice(self.reason());
        out.extend_from_slice(b"\r\n");
        self.head.write_fields(out, keep);
    }

    /// The status line, if it stands in the bytes as it is to be written.
    fn unchanged_line(&self) -> Option<Span> {
        const REASON: u32 = "HTTP/1.1 200 ".len() as u32;
        if self.reason.start != REASON || self.reason.is_empty() {
            return None;
        }
        let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1', b' ', hundreds, tens, ones, b' '] =
            self.head.bytes.first_chunk()?
        else {
            return None;
        };
        let [hundreds, tens, ones] = [hundreds, tens, ones].map(|digit| u16::from(digit.wrapping_sub(b'0')));
        let is_unchanged = hundreds * 100 + tens * 10 + ones == self.status;
        is_unchanged.then_some(Span { start: 0, end: self.reason.end + 2 })
    }

    /// What answers a call of gRPC, by its content type.
    pub fn is_grpc(&self) -> bool {
        is_grpc(&self.head)
    }

    /// Replaces the status, and with it the reason phrase.
    pub fn set_status(&mut self, status: u16) {
        self.status = status;
        self.reason = Span::default();
    }
}

fn is_grpc(head: &Head) -> bool {
    head.value(b"content-type").is_some_and(|value| value.starts_with(b"application/grpc"))
}

/// The reason phrases of the IANA registry; empty for others, which RFC 9112 §4 allows.
pub fn reason(status: u16) -> &'static str {
    // Long, since it is a table.
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(head: &Head) -> String {
        let mut out = Vec::new();
        head.write_fields(&mut out, |_| true);
        String::from_utf8(out).expect("test fields are ASCII")
    }

    #[test]
    fn fields_of_prepared_names_are_written_like_others() {
        let mut head = Head::default();
        head.add(b"x-limit", b"1").unwrap();
        head.add(b"X-Other", b"2").unwrap();
        head.add(b"x-consumer-groups", b"admin").unwrap();
        let [limit, reset, user] =
            [&b"X-Limit"[..], b"X-Reset", b"X-Consumer-Username"].map(|name| Name::new(name).unwrap());
        head.remove_known(Known::Identity);
        head.remove_named([&limit, &reset]);
        head.add_line(&limit.with(b"5").unwrap());
        head.add_number(&reset, &Decimal::hundredths(150));
        assert_eq!(head.add_named(&user, b"3\r\nX-Smuggled: 4"), Err(BadField));
        head.add_named(&user, b"jack").unwrap();
        let fields: Vec<_> = head.fields().collect();
        let named = [(&b"X-Limit"[..], &b"5"[..]), (b"X-Reset", b"1.5"), (b"X-Consumer-Username", b"jack")];
        assert_eq!((fields[0], &fields[1..]), ((&b"X-Other"[..], &b"2"[..]), &named[..]));
        assert_eq!(written(&head), "X-Other: 2\r\nX-Limit: 5\r\nX-Reset: 1.5\r\nX-Consumer-Username: jack\r\n");
        assert_eq!(head.known(Known::Identity), Some(&b"admin"[..]));
    }

    #[test]
    fn edits_keep_the_rest_and_the_order() {
        let mut head = Head::default();
        head.add(b"A", b"1").unwrap();
        head.add(b"B", b"2").unwrap();
        head.add(b"C", b"3").unwrap();
        head.set(b"b", b"22").unwrap();
        assert!(head.remove(b"A"));
        assert!(!head.remove(b"A"));
        assert_eq!(written(&head), "C: 3\r\nb: 22\r\n");
        assert_eq!(head.value(b"B"), Some(&b"22"[..]));
    }

    #[test]
    fn what_could_split_a_message_is_refused() {
        let mut head = Head::default();
        for (name, value) in [("A", "x\r\nB: y"), ("A\r\nB", "x"), ("", "x"), ("A:", "x"), ("A", "\0"), ("A", "\x7f")] {
            assert_eq!(head.add(name.as_bytes(), value.as_bytes()), Err(BadField));
            assert_eq!(head.set(name.as_bytes(), value.as_bytes()), Err(BadField));
        }
        assert_eq!(written(&head), "");
    }

    #[test]
    fn a_new_path_is_canonical_and_keeps_the_query_unless_told() {
        let mut request = RequestHead::default();
        request.set_path(b"/a/../b", Some(b"x=1")).unwrap();
        assert_eq!((request.path(), request.query()), (&b"/b"[..], Some(&b"x=1"[..])));
        request.set_path(b"/c", None).unwrap();
        assert_eq!((request.path(), request.query()), (&b"/c"[..], Some(&b"x=1"[..])));
        assert!(request.set_path(b"/../x", None).is_err());
        assert!(request.set_path(b"/x", Some(b"a b")).is_err());
        assert_eq!(request.path(), b"/c");
    }
}
