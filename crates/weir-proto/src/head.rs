//! A message head in one representation for every protocol: contiguous bytes and an index of the fields in them.
//!
//! Most heads are forwarded without building a map. An edit appends to the bytes and to the index, and a removal sets a flag in
//! the index, so existing [`Span`]s stay valid.

use std::borrow::Cow;
use std::num::NonZeroU64;

use crate::decimal::Decimal;
use crate::field::{self, Known, Name, PreparedField};
use crate::method::Method;
use crate::path::{BadPath, Canonical};

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

/// One field: where its name and value are, and its meaning for the gateway.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: Span,
    pub value: Span,
    pub known: Known,
    /// Not forwarded: hop-by-hop, or removed by a plugin.
    pub removed: bool,
    /// Added by the gateway or a plugin, not sent by the peer.
    pub added: bool,
    /// The line in the head's bytes reads exactly `name: value\r\n`, so adjacent lines can be forwarded in one copy.
    pub(crate) verbatim: bool,
}

/// Header fields in the order of their arrival, and the bytes that contain them.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fields: Vec<Field>,
    /// Fields the gateway must not add on its own: one bit for each [`Known`]. See [`Head::withhold`].
    withheld: u32,
    /// Fields that were received as never indexed (RFC 7541 §6.2.3), a bit for each of the first 63, and the last for all others.
    never_indexed: u64,
}

impl Head {
    /// Empties the head but keeps its memory for the next exchange.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        (self.withheld, self.never_indexed) = (0, 0);
    }

    /// The last field was received as never indexed.
    pub(crate) fn mark_never_indexed(&mut self) {
        self.never_indexed |= 1 << (self.fields.len() - 1).min(63);
    }

    /// Whether the field with this index, among all [entries](Head::entries), must not be indexed when it is forwarded.
    pub fn is_never_indexed(&self, index: usize) -> bool {
        self.never_indexed >> index.min(63) & 1 == 1
    }

    /// Bytes the head can hold without reallocation.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The bytes that spans index.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn slice(&self, span: Span) -> &[u8] {
        &self.bytes[span.range()]
    }

    /// Fields that will be forwarded, as (name, value), with names as received.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.present().map(|field| (self.slice(field.name), self.slice(field.value)))
    }

    /// All fields in their order, including those that were removed.
    pub fn entries(&self) -> &[Field] {
        &self.fields
    }

    /// Fields that will be forwarded, as index entries.
    pub fn present(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| !field.removed)
    }

    /// The first value of a field; the case of the name is ignored.
    pub fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let field = self.present().find(|field| field::same_name(self.slice(field.name), name))?;
        Some(self.slice(field.value))
    }

    /// Every value of a field; the case of the name is ignored.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.present()
            .filter(move |field| field::same_name(self.slice(field.name), name))
            .map(|field| self.slice(field.value))
    }

    /// Like [`Head::values`], with fields that have been removed.
    pub fn received<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.fields
            .iter()
            .filter(move |field| field::same_name(self.slice(field.name), name))
            .map(|field| self.slice(field.value))
    }

    /// The first value of a field as the peer sent it, even if the field was replaced or removed since.
    pub fn original<'a>(&'a self, name: &'a [u8]) -> Option<&'a [u8]> {
        let mut sent = self.fields.iter().filter(|field| !field.added);
        let field = sent.find(|field| field::same_name(self.slice(field.name), name))?;
        Some(self.slice(field.value))
    }

    /// The first value of a known field, removed or not: the gateway still needs hop-by-hop fields that are not forwarded.
    pub fn known(&self, known: Known) -> Option<&[u8]> {
        self.fields.iter().find(|field| field.known == known).map(|field| self.slice(field.value))
    }

    /// Adds a field after the others. A name or value that would break the line is refused and changes nothing.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        if !field::is_name(name) || !field::is_value(value) {
            return Err(BadField);
        }
        self.add_line(name, Known::parse(name), value);
        Ok(())
    }

    /// The same for a caller that has looked at the name before: `known` is what [`Known::parse`] has found.
    pub fn add_known(&mut self, name: &[u8], known: Known, value: &[u8]) -> Result<(), BadField> {
        debug_assert_eq!(known, Known::parse(name), "the field's meaning follows from its name");
        if !field::is_name(name) || !field::is_value(value) {
            return Err(BadField);
        }
        self.add_line(name, known, value);
        Ok(())
    }

    #[inline(always)]
    fn add_line(&mut self, name: &[u8], known: Known, value: &[u8]) {
        let name = self.append(name);
        self.bytes.extend_from_slice(b": ");
        let value = self.append(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.push(name, value, known);
    }

    /// Replaces every field of this name by one.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        if !field::is_name(name) || !field::is_value(value) {
            return Err(BadField);
        }
        self.remove(name);
        self.add(name, value)
    }

    /// Removes every field with one of these names.
    pub fn remove_named<const N: usize>(&mut self, names: [&Name; N]) {
        // Compares only fields whose name has the length (modulo 64) of one of `names`; few others do.
        let lengths = names.iter().fold(0_u64, |lengths, name| lengths | 1 << (name.as_bytes().len() % 64));
        for field in &mut self.fields {
            if lengths >> ((field.name.end - field.name.start) % 64) & 1 == 1 {
                let name = &self.bytes[field.name.range()];
                field.removed |= names.iter().any(|removed| field::same_name(removed.as_bytes(), name));
            }
        }
    }

    /// Adds a field with a decimal number as its value.
    pub fn add_number(&mut self, name: &Name, number: &Decimal) {
        let written = self.begin(name);
        // Copies a constant number of bytes, padding included, and truncates: cheaper than a copy of variable length.
        let (padded, len) = number.padded();
        let start = self.bytes.len();
        self.bytes.extend_from_slice(padded);
        self.bytes.truncate(start + len + 2);
        self.push(written, Span::new(start, start + len), name.known());
    }

    /// Adds a field that was validated beforehand.
    pub fn add_prepared_field(&mut self, line: &PreparedField) {
        let written = self.append(&line.bytes);
        let value = written.start as usize + line.value;
        let name = Span::new(written.start as usize, value - 2);
        self.push(name, Span::new(value, written.end as usize - 2), line.known);
    }

    /// Adds a field whose name was validated beforehand.
    pub fn add_prepared_name(&mut self, name: &Name, value: &[u8]) -> Result<(), BadField> {
        if !field::is_value(value) {
            return Err(BadField);
        }
        let (written, value) = (self.begin(name), self.append(value));
        self.bytes.extend_from_slice(b"\r\n");
        self.push(written, value, name.known());
        Ok(())
    }

    /// Appends the name and `: `, and returns the span of the name.
    fn begin(&mut self, name: &Name) -> Span {
        let Span { start, end } = self.append(name.line());
        Span { start, end: end - 2 }
    }

    fn push(&mut self, name: Span, value: Span, known: Known) {
        self.fields.push(Field { name, value, known, removed: false, added: true, verbatim: true });
    }

    /// Removes every field of this kind.
    pub fn remove_known(&mut self, known: Known) {
        for field in self.fields.iter_mut().filter(|field| field.known == known) {
            field.removed = true;
        }
    }

    /// Removes every field of this name; returns whether there was one.
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

    /// Replaces the value of every field of this name, removed ones included; if `replace` returns `None`, the field is dropped.
    /// For a copy that is logged and never forwarded.
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

    /// Removes every field of this name, and keeps the gateway from adding one on its own.
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

    /// Undoes what was changed since the head was received. What is left out on receipt stays removed: fields of the connection, those
    /// that it names, identities, and names with `_`, of which it is not known here which were left out then.
    fn restore(&mut self) {
        let Head { bytes, fields, .. } = self;
        fields.retain(|field| !field.added);
        let connection = fields.iter().filter(|field| field.known == Known::Connection).map(|field| field.value);
        let named: Vec<_> = connection.flat_map(|value| field::list(&bytes[value.range()])).collect();
        for field in &mut *fields {
            let name = &bytes[field.name.range()];
            let is_left_out = match field.known {
                Known::Other => field.removed && name.contains(&b'_'),
                known => known.is_hop_by_hop() || known == Known::Identity,
            };
            field.removed = is_left_out || named.iter().any(|named| field::same_name(named, name));
        }
        self.withheld = 0;
    }

    /// Appends bytes that belong to no field (a new path, a host) and returns their span.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, self.bytes.len())
    }

    /// Writes the present fields for which `keep` returns `true`, one line each. Adjacent verbatim lines are copied in one piece.
    pub fn write_fields(&self, out: &mut Vec<u8>, keep: impl FnMut(&Field) -> bool) {
        self.write_after(Span::default(), out, keep);
    }

    /// Like `write_fields`, after a start line that is copied as it is in the head's bytes.
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
    Http3,
}

impl Version {
    /// The name in `$server_protocol` and log lines.
    pub fn name(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }
}

/// How the end of a body is determined (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    #[default]
    None,
    Sized(u64),
    Chunked,
    /// Until the sender ends it: by closing the connection (HTTP/1.x responses only), or by ending the HTTP/2 stream.
    UntilClose,
}

impl Framing {
    pub fn has_body(self) -> bool {
        !matches!(self, Framing::None | Framing::Sized(0))
    }
}

/// What a client asked for, kept once a plugin has replaced it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientTarget {
    path: Span,
    unmerged_path: Option<Span>,
    query: Option<Span>,
}

/// A request's head, checked, with everything the gateway derives from it.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    pub head: Head,
    pub method: Method,
    pub version: Version,
    pub framing: Framing,
    /// The HTTP/1.x connection may carry another request after this one. Always `false` in HTTP/2.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1).
    pub expects_continue: bool,
    /// `Connection: upgrade` on a bodiless GET of HTTP/1.1, with an `Upgrade` that names neither HTTP/2 nor TLS.
    pub upgrade: bool,
    /// The client can take trailer fields: it has sent `TE: trailers`, or it is one of HTTP/2.
    pub takes_trailers: bool,
    /// `TE: trailers` is sent to the upstream (RFC 9110 §10.1.4): the client has sent it, or a plugin takes the trailers.
    pub sends_te: bool,
    /// The path contains `%2F` or `%5C`.
    pub encoded_separator: bool,
    /// The target was in absolute form; its authority has replaced `Host`.
    pub absolute_form: bool,
    /// The client's `grpc-timeout` in nanoseconds, counted from the arrival of the request; gRPC over HTTP/2 only.
    pub(crate) timeout_ns: Option<NonZeroU64>,
    pub(crate) method_name: Span,
    /// The client's method and its name, if [`RequestHead::set_method`] replaced it for the upstream.
    pub(crate) client_method: Option<(Method, Span)>,
    pub(crate) target: Span,
    pub(crate) path: Span,
    /// The path with its empty segments, if it has some that are forwarded.
    pub(crate) unmerged_path: Option<Span>,
    pub(crate) query: Option<Span>,
    /// The target of the client, if it was replaced for the upstream.
    pub(crate) client_target: Option<Box<ClientTarget>>,
    pub(crate) authority: Span,
    /// Replaces `authority` in the forwarded `Host`.
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

    /// The request with the fields and the authority that the client has sent, whatever plugins have added and removed since.
    pub fn as_sent(&self) -> RequestHead {
        let mut sent = self.clone();
        sent.head.restore();
        sent.new_authority = None;
        sent
    }

    pub fn method_name(&self) -> &[u8] {
        match self.method.name() {
            Some(name) => name.as_bytes(),
            None => self.head.slice(self.method_name),
        }
    }

    /// The method the client sent, which determines the framing of the response (RFC 9112 §6.3).
    pub fn client_method(&self) -> Method {
        self.client_method.map_or(self.method, |(method, _)| method)
    }

    /// The name of the method the client sent.
    pub fn client_method_name(&self) -> &[u8] {
        match self.client_method {
            None => self.method_name(),
            Some((method, name)) => method.name().map_or(self.head.slice(name), str::as_bytes),
        }
    }

    /// Replaces the method for the upstream. Returns `false` and changes nothing if `name` is not a token.
    pub fn set_method(&mut self, name: &[u8]) -> bool {
        if !field::is_name(name) {
            return false;
        }
        self.client_method.get_or_insert((self.method, self.method_name));
        self.method = Method::parse(name);
        self.method_name = self.head.append(name);
        true
    }

    /// Makes this a request of the gateway itself, without what the client has sent in place of the method.
    pub fn forget_client_method(&mut self) {
        self.client_method = None;
    }

    /// Writes the request line, `Host`, and the present fields for which `keep` returns `true`. If the request line and `Host`
    /// are unchanged, they are copied in one piece with the verbatim fields that follow.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, host: &[u8], mut keep: impl FnMut(&Field) -> bool) {
        if let Some((line, host_field)) = self.unchanged_start(host) {
            return self.head.write_after(line, out, |field| field.name.start == host_field || keep(field));
        }
        out.extend_from_slice(self.method_name());
        out.push(b' ');
        out.extend_from_slice(self.unmerged_path());
        if let Some(query) = self.query() {
            out.push(b'?');
            out.extend_from_slice(query);
        }
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(host);
        out.extend_from_slice(b"\r\n");
        self.head.write_fields(out, keep);
    }

    /// The request line and the offset of the `Host` line after it, if both are to be written exactly as received.
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

    /// Whether this is a gRPC call, by its content type.
    pub fn is_grpc(&self) -> bool {
        is_grpc(&self.head)
    }

    /// The client's `grpc-timeout` in nanoseconds, counted from the arrival of the request.
    pub fn timeout_ns(&self) -> Option<u64> {
        self.timeout_ns.map(NonZeroU64::get)
    }

    /// The request target as the client sent it.
    pub fn target(&self) -> &[u8] {
        self.head.slice(self.target)
    }

    /// The request target as the client sent it, without the scheme and authority of the absolute form (RFC 9112 §3.2.2). It
    /// begins with `/`, or is `*`, or the authority of a `CONNECT`.
    pub fn origin_form(&self) -> Cow<'_, [u8]> {
        let target = self.target();
        let Some(colon) = self.absolute_form.then(|| memchr::memmem::find(target, b"://")).flatten() else {
            return Cow::Borrowed(target);
        };
        let rest = &target[colon + 3..];
        match memchr::memchr2(b'/', b'?', rest).map(|end| &rest[end..]) {
            None => Cow::Borrowed(b"/"),
            Some(rest) if rest[0] == b'?' => Cow::Owned([b"/", rest].concat()),
            Some(rest) => Cow::Borrowed(rest),
        }
    }

    /// The canonical path of the client's request, which was used for routing, even if [`RequestHead::set_path`] has replaced it.
    pub fn client_path(&self) -> &[u8] {
        self.head.slice(self.client_target().path)
    }

    /// [`RequestHead::client_path`] with its empty segments.
    pub fn client_unmerged_path(&self) -> &[u8] {
        let target = self.client_target();
        self.head.slice(target.unmerged_path.unwrap_or(target.path))
    }

    /// The query that the client sent, without its `?`, even if [`RequestHead::set_path`] has replaced it.
    pub fn client_query(&self) -> Option<&[u8]> {
        self.client_target().query.map(|span| self.head.slice(span))
    }

    fn client_target(&self) -> ClientTarget {
        let current = ClientTarget { path: self.path, unmerged_path: self.unmerged_path, query: self.query };
        self.client_target.as_deref().copied().unwrap_or(current)
    }

    /// The canonical path, without empty segments; `*` for the asterisk form. Routes and plugins decide by this form.
    pub fn path(&self) -> &[u8] {
        self.head.slice(self.path)
    }

    /// The path as it is forwarded: canonical, with the empty segments that came.
    pub fn unmerged_path(&self) -> &[u8] {
        self.head.slice(self.unmerged_path.unwrap_or(self.path))
    }

    /// Whether [`RequestHead::unmerged_path`] differs from [`RequestHead::path`].
    pub fn has_empty_segments(&self) -> bool {
        self.unmerged_path.is_some()
    }

    /// Removes empty segments from the path that is forwarded.
    pub fn merge_slashes(&mut self) {
        self.unmerged_path = None;
    }

    /// The query without its `?`, if there is one.
    pub fn query(&self) -> Option<&[u8]> {
        self.query.map(|span| self.head.slice(span))
    }

    /// Replaces the path, after converting it to canonical form; its empty segments are forwarded. `Some` replaces the query too;
    /// `Some(b"")` removes it.
    pub fn set_path(&mut self, path: &[u8], query: Option<&[u8]>) -> Result<(), BadPath> {
        if query.is_some_and(|query| !crate::path::is_query(query)) {
            return Err(BadPath::Syntax);
        }
        let client = self.client_target();
        self.store_path(path)?;
        self.client_target.get_or_insert_with(|| Box::new(client));
        if let Some(query) = query {
            self.query = (!query.is_empty()).then(|| self.head.append(query));
        }
        Ok(())
    }

    /// Replaces the query; an empty one is removed.
    pub fn set_query(&mut self, query: &[u8]) -> Result<(), BadPath> {
        if !crate::path::is_query(query) {
            return Err(BadPath::Syntax);
        }
        let client = self.client_target();
        self.client_target.get_or_insert_with(|| Box::new(client));
        self.query = (!query.is_empty()).then(|| self.head.append(query));
        Ok(())
    }

    /// Appends both canonical forms of a path to the head. Returns whether it contains an encoded separator.
    pub(crate) fn store_path(&mut self, path: &[u8]) -> Result<bool, BadPath> {
        let mut rewritten = Vec::new();
        let (is_encoded, is_unmerged) = match crate::path::canonical(path, &mut rewritten)? {
            Canonical::AsIs => {
                rewritten.extend_from_slice(path);
                (false, false)
            }
            Canonical::Rewritten { encoded_separator, empty_segments } => (encoded_separator, empty_segments),
        };
        self.path = self.head.append(&rewritten);
        self.unmerged_path = is_unmerged.then(|| self.head.append(&crate::path::with_empty_segments(path)));
        Ok(is_encoded)
    }

    /// Replaces the query, in the current target and in the one received. For a copy that is logged and never forwarded.
    pub fn replace_query(&mut self, replace: impl Fn(&[u8]) -> Vec<u8>) {
        if let Some(client) = &mut self.client_target
            && let Some(query) = client.query
        {
            let query = replace(self.head.slice(query));
            client.query = (!query.is_empty()).then(|| self.head.append(&query));
        }
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

    /// The host in canonical form: lower case, without port and trailing dot. Empty if an HTTP/1.0 client sent none.
    pub fn host(&self) -> &[u8] {
        self.head.slice(self.host)
    }

    /// The authority as the client sent it, with its port.
    pub fn client_authority(&self) -> &[u8] {
        self.head.slice(self.authority)
    }

    /// The authority for the upstream: the client's, unless it was replaced.
    pub fn authority(&self) -> &[u8] {
        self.head.slice(self.new_authority.unwrap_or(self.authority))
    }

    /// The host for the upstream, without port: as the client sent it, in canonical form, or as a plugin has set it.
    pub fn upstream_host(&self) -> &[u8] {
        let Some(authority) = self.new_authority else { return self.host() };
        crate::authority::HostPort::parse(self.head.slice(authority)).map_or(b"", |new| new.host)
    }

    /// The port in the authority the client sent.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Replaces the authority that is forwarded as `Host`. `host`, `port` and `client_authority` keep the client's values:
    /// routing is not repeated, and later plugins and logs use the requested host.
    pub fn set_authority(&mut self, authority: &[u8]) -> Result<(), crate::authority::BadAuthority> {
        crate::authority::HostPort::parse(authority)?;
        self.new_authority = Some(self.head.append(authority));
        Ok(())
    }
}

/// The most interim responses (1xx) to one request that a client is sent, and that a health check reads.
pub const MAX_INTERIM_RESPONSES: u8 = 8;
/// The most bytes of interim responses to one request that are read. Those beyond [`MAX_INTERIM_RESPONSES`] are discarded.
pub const MAX_INTERIM_BYTES: usize = 64 << 10;

/// A response's head.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    pub head: Head,
    pub status: u16,
    pub version: Version,
    pub framing: Framing,
    /// The upstream allows another request on its connection.
    pub keep_alive: bool,
    pub(crate) reason: Span,
}

impl ResponseHead {
    pub fn clear(&mut self) {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        *self = ResponseHead { head, ..ResponseHead::default() };
    }

    /// The reason phrase from the upstream, or the registered one if the status was set by the gateway.
    pub fn reason(&self) -> &[u8] {
        match self.reason.is_empty() {
            true => reason(self.status).as_bytes(),
            false => self.head.slice(self.reason),
        }
    }

    /// Writes the status line, and the present fields for which `keep` returns `true`. An unchanged status line is copied in one
    /// piece with the verbatim fields that follow.
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

    /// The status line, if it is to be written exactly as received.
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

    /// Whether this response belongs to a gRPC call, by its content type.
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

/// The reason phrase in the IANA registry; empty for an unregistered status, which RFC 9112 §4 allows.
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
        head.add_prepared_field(&limit.with(b"5").unwrap());
        head.add_number(&reset, &Decimal::hundredths(150));
        assert_eq!(head.add_prepared_name(&user, b"3\r\nX-Smuggled: 4"), Err(BadField));
        head.add_prepared_name(&user, b"jack").unwrap();
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
    fn field_that_could_split_a_message_is_refused() {
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
        assert_eq!((request.client_path(), request.client_query()), (&b""[..], None), "as it was at first");
        assert!(request.set_path(b"/../x", None).is_err());
        assert!(request.set_path(b"/x", Some(b"a b")).is_err());
        assert_eq!(request.path(), b"/c");
    }
}
