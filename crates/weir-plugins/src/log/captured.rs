//! Reads a record that [`super::capture`] has written, and makes JSON of it, on the sink's thread.

use std::cell::Cell;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use weir_plugin::escape;
use weir_records::Record;

use crate::log::capture::{
    BODIES_OMITTED, END, EVERYTHING, FORMAT, HTTPS, JSON, OBJECT, RECORD_ID, REQUEST_BODY, REQUEST_BODY_CODED,
    REQUEST_BODY_OMITTED, RESPONSE_BODY, RESPONSE_BODY_CODED, TEXT, UPSTREAM_TIMED,
};
use crate::log::decoding::{BatchDecoder, RecordedContent};
use crate::log::json::{JsonObjectWriter, MemberName, PairKind, known};

/// Bytes to be read from the front. Missing bytes are read as empty or 0: a record of another version must not cause a panic.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).first().copied()
    }

    fn number<const N: usize>(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let Some((taken, rest)) = self.0.split_first_chunk::<N>() else {
            self.0 = &[];
            return 0;
        };
        bytes[..N].copy_from_slice(taken);
        self.0 = rest;
        u64::from_le_bytes(bytes)
    }

    fn text(&mut self) -> &'a [u8] {
        let length = self.number::<4>() as usize;
        self.take(length)
    }

    fn address(&mut self) -> Option<IpAddr> {
        let kind = self.byte();
        let octets: [u8; 16] = self.take(16).try_into().ok()?;
        match kind {
            Some(4) => Some(Ipv4Addr::from(<[u8; 4]>::try_from(&octets[..4]).expect("four bytes")).into()),
            Some(6) => Some(Ipv6Addr::from(octets).into()),
            _ => None,
        }
    }

    /// Skips a list of names and values, and returns it.
    fn fields(&mut self) -> CapturedFields<'a> {
        let from = self.0;
        let count = self.number::<4>();
        for _ in 0..2 * count {
            if self.0.is_empty() {
                break;
            }
            self.text();
        }
        CapturedFields(Bytes(&from[..from.len() - self.0.len()]))
    }
}

/// A list of header fields.
struct CapturedFields<'a>(Bytes<'a>);

impl<'a> CapturedFields<'a> {
    fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        let mut bytes = self.0;
        let count = bytes.number::<4>();
        (0..count).map_while(move |_| (!bytes.0.is_empty()).then(|| (bytes.text(), bytes.text())))
    }
}

/// The fixed-size facts in a record with everything.
struct CapturedFacts<'a> {
    flags: u8,
    status: u64,
    port: u64,
    latency_ns: u64,
    upstream_ns: u64,
    sizes: [u64; 2],
    client: Option<IpAddr>,
    upstream: Option<SocketAddr>,
    target: &'a [u8],
    query: &'a [u8],
    method: &'a [u8],
    authority: &'a [u8],
    route: &'a [u8],
    service: &'a [u8],
    error_cause: &'a [u8],
    consumer: &'a [u8],
}

impl<'a> CapturedFacts<'a> {
    /// In the order in which they were written: Rust evaluates the fields in the order of the expression.
    fn read(bytes: &mut Bytes<'a>) -> CapturedFacts<'a> {
        CapturedFacts {
            flags: bytes.byte().unwrap_or_default(),
            status: bytes.number::<2>(),
            port: bytes.number::<2>(),
            latency_ns: bytes.number::<8>(),
            upstream_ns: bytes.number::<8>(),
            sizes: [bytes.number::<8>(), bytes.number::<8>()],
            client: bytes.address(),
            upstream: {
                let address = bytes.address();
                let port = bytes.number::<2>() as u16;
                address.map(|address| SocketAddr::new(address, port))
            },
            target: bytes.text(),
            query: bytes.text(),
            method: bytes.text(),
            authority: bytes.text(),
            route: bytes.text(),
            service: bytes.text(),
            error_cause: bytes.text(),
            consumer: bytes.text(),
        }
    }

    /// Writes the URL as the client requested it, with the port, and the target by itself, which is escaped once. Returns what the
    /// arguments of the query are.
    fn url(&self, object: &mut JsonObjectWriter<'_>) -> PairKind {
        let colon = self.authority.iter().rposition(|&byte| byte == b':');
        let has_port = colon.is_some_and(|colon| self.authority[colon + 1..].iter().all(u8::is_ascii_digit));
        let mut target = 0..0;
        object.plain_text(known!("url"), |out| {
            out.extend_from_slice(if self.flags & HTTPS == 0 { b"http://" } else { b"https://" });
            escape::json(out, self.authority);
            if !has_port {
                out.push(b':');
                out.extend_from_slice(itoa::Buffer::new().format(self.port).as_bytes());
            }
            target.start = out.len();
            escape::json(out, self.target);
            target.end = out.len();
        });
        let mut is_plain = false;
        object.plain_text(known!("uri"), |out| {
            is_plain = out[target.clone()] == *self.target;
            out.extend_from_within(target);
        });
        match is_plain && self.target.ends_with(self.query) {
            true => PairKind::PlainArguments,
            false => PairKind::Arguments,
        }
    }
}

/// What a record with everything has before its own members.
struct CapturedExchange<'a> {
    facts: CapturedFacts<'a>,
    request_fields: CapturedFields<'a>,
    response_fields: CapturedFields<'a>,
}

impl<'a> CapturedExchange<'a> {
    fn read(bytes: &mut Bytes<'a>) -> CapturedExchange<'a> {
        CapturedExchange {
            facts: CapturedFacts::read(bytes),
            request_fields: bytes.fields(),
            response_fields: bytes.fields(),
        }
    }
}

/// Writes records as JSON, with the host name of the gateway.
pub(crate) struct RecordWriter {
    hostname: Vec<u8>,
    /// As it is in JSON.
    hostname_escaped: Vec<u8>,
}

impl Default for RecordWriter {
    fn default() -> Self {
        let hostname = rustix::system::uname().nodename().to_bytes().to_vec();
        let mut hostname_escaped = Vec::new();
        escape::json(&mut hostname_escaped, &hostname);
        RecordWriter { hostname, hostname_escaped }
    }
}

impl RecordWriter {
    /// The host name of this machine.
    pub(crate) fn hostname(&self) -> &[u8] {
        &self.hostname
    }

    /// Writes the records of one batch.
    pub(crate) fn batch(&self) -> BatchWriter<'_> {
        BatchWriter {
            hostname: &self.hostname_escaped,
            decoder: BatchDecoder::default(),
            second: Cell::new((0, EPOCH)),
        }
    }

    /// The records as JSON objects, each on a line of its own.
    pub(crate) fn lines(&self, records: &[Record]) -> Vec<u8> {
        let (batch, mut out) = (self.batch(), Vec::with_capacity(records.len() * 1024));
        for (index, record) in records.iter().enumerate() {
            out.extend((index > 0).then_some(b'\n'));
            batch.json(record, &mut out);
        }
        out
    }

    /// The records as a JSON list, or, if `is_single`, the only record as an object.
    pub(crate) fn list(&self, records: &[Record], is_single: bool) -> Vec<u8> {
        let (batch, mut out) = (self.batch(), Vec::with_capacity(records.len() * 1024));
        out.extend((!is_single).then_some(b'['));
        for (index, record) in records.iter().enumerate() {
            out.extend((index > 0).then_some(b','));
            batch.json(record, &mut out);
        }
        out.extend((!is_single).then_some(b']'));
        out
    }
}

/// Writes the records of one batch as JSON. What it decodes has a limit for the batch.
pub(crate) struct BatchWriter<'a> {
    /// Escaped.
    hostname: &'a [u8],
    decoder: BatchDecoder,
    /// The second of the last timestamp, and its text: many records of a batch have it in common.
    second: Cell<(u64, [u8; SECOND_BYTES])>,
}

/// The member with the time of the record, for stores that expect it.
const TIMESTAMP: MemberName = known!("@timestamp");
/// The length of a time up to the second, such as `2023-11-14T22:13:20`.
const SECOND_BYTES: usize = 19;
const EPOCH: [u8; SECOND_BYTES] = *b"1970-01-01T00:00:00";
const NS_PER_MS: u64 = 1_000_000;

impl BatchWriter<'_> {
    /// Appends a record as one JSON object without line breaks.
    pub(crate) fn json(&self, record: &Record, out: &mut Vec<u8>) {
        self.object(record, false, out);
    }

    /// The same with the member `@timestamp` (RFC 3339, UTC, in milliseconds), unless the format has a member of this name.
    pub(crate) fn json_with_timestamp(&self, record: &Record, out: &mut Vec<u8>) {
        self.object(record, true, out);
    }

    fn object(&self, record: &Record, is_stamped: bool, out: &mut Vec<u8>) {
        let mut opened = OpenedRecord::of(record);
        let mut object = JsonObjectWriter::begin(out);
        let stamp = |object: &mut JsonObjectWriter<'_>, members: &MemberNames<'_>| {
            if is_stamped && !members.has(TIMESTAMP.name()) {
                object.plain_text(TIMESTAMP, |out| self.timestamp(opened.end_ms, out));
            }
        };
        match opened.kind {
            Some(EVERYTHING) => {
                let exchange = CapturedExchange::read(&mut opened.members);
                let extra = MemberNames::read(opened.members);
                stamp(&mut object, &extra);
                self.everything(&mut object, exchange, &extra, opened.end_ms, record);
                write_members(&mut object, &mut opened.members, record);
            }
            Some(FORMAT) => {
                if is_stamped {
                    stamp(&mut object, &MemberNames::read(opened.members));
                }
                write_members(&mut object, &mut opened.members, record);
            }
            _ => {
                stamp(&mut object, &MemberNames(Vec::new()));
                object.text(known!("error"), b"this record was written by an incompatible version of weir");
            }
        }
    }

    /// Appends a time in milliseconds since 1970.
    fn timestamp(&self, end_ms: u64, out: &mut Vec<u8>) {
        let second = end_ms / 1000;
        let mut known = self.second.get();
        if known.0 != second {
            let time = Timestamp::from_second(second as i64).unwrap_or_default().to_string();
            known = (second, time.as_bytes().first_chunk().copied().unwrap_or(EPOCH));
            self.second.set(known);
        }
        let ms = end_ms % 1000;
        out.extend_from_slice(&known.1);
        out.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms), b'Z']);
    }

    /// Writes the members of a record of Apache APISIX.
    fn everything(
        &self,
        object: &mut JsonObjectWriter<'_>,
        exchange: CapturedExchange<'_>,
        extra: &MemberNames<'_>,
        end_ms: u64,
        record: &Record,
    ) {
        let CapturedExchange { facts, request_fields, response_fields } = exchange;
        let mut bodies = record.attachments.iter().map(|attachment| &**attachment);
        let mut content = |is_there: u8, is_coded: u8| {
            let bytes = (facts.flags & is_there != 0).then(|| bodies.next()).flatten()?;
            Some(if facts.flags & is_coded == 0 { RecordedContent::plain(bytes) } else { self.decoder.content(bytes) })
        };
        let request_body = content(REQUEST_BODY, REQUEST_BODY_CODED);
        let response_body = content(RESPONSE_BODY, RESPONSE_BODY_CODED);
        if !extra.has("request") {
            let mut request = object.object(known!("request"));
            let arguments = facts.url(&mut request);
            request.text(known!("method"), facts.method);
            request.object(known!("headers")).grouped(request_fields.iter(), PairKind::Fields);
            request.object(known!("querystring")).grouped(query(facts.query), arguments);
            request.number(known!("size"), facts.sizes[0]);
            body(&mut request, request_body);
            if facts.flags & REQUEST_BODY_OMITTED != 0 {
                request.text(known!("body_omitted"), b"data-mask could not read the body");
            }
        }
        if !extra.has("response") {
            let mut response = object.object(known!("response"));
            response.number(known!("status"), facts.status);
            response.object(known!("headers")).grouped(response_fields.iter(), PairKind::Fields);
            response.number(known!("size"), facts.sizes[1]);
            body(&mut response, response_body);
        }
        if !extra.has("server") {
            let mut server = object.object(known!("server"));
            server.plain_text(known!("hostname"), |out| out.extend_from_slice(self.hostname));
            server.plain_text(known!("version"), |out| {
                out.extend_from_slice(concat!("weir/", env!("CARGO_PKG_VERSION")).as_bytes());
            });
        }
        whereabouts(object, &facts, extra);
        times(object, &facts, end_ms, extra);
        if !extra.has("consumer") && !facts.consumer.is_empty() {
            object.object(known!("consumer")).text(known!("username"), facts.consumer);
        }
        if facts.flags & BODIES_OMITTED != 0 && !extra.has("bodies_omitted") {
            object.text(known!("bodies_omitted"), b"the logger had no memory for them");
        }
        if !extra.has("record_id") {
            object.plain_text(known!("record_id"), |out| record.write_id(out));
        }
    }
}

/// The last decimal digit of a number.
fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}

/// The parts of a record.
struct OpenedRecord<'a> {
    kind: Option<u8>,
    /// When its exchange ended, in ms since 1970.
    end_ms: u64,
    hidden_count: u8,
    /// The texts of [`super::capture::Capture::with_hidden`], each with its length.
    hidden: Bytes<'a>,
    /// Everything else.
    members: Bytes<'a>,
}

impl<'a> OpenedRecord<'a> {
    fn of(record: &'a Record) -> OpenedRecord<'a> {
        let mut bytes = Bytes(&record.payload);
        let (kind, end_ms) = (bytes.byte(), bytes.number::<8>());
        let hidden_count = bytes.byte().unwrap_or_default();
        let from = bytes.0;
        for _ in 0..hidden_count {
            bytes.text();
        }
        let hidden = Bytes(&from[..from.len() - bytes.0.len()]);
        OpenedRecord { kind, end_ms, hidden_count, hidden, members: bytes }
    }
}

/// When the exchange of a record ended, in ms since 1970; constant across retries.
pub(crate) fn end_ms(record: &Record) -> u64 {
    OpenedRecord::of(record).end_ms
}

/// Whether a record has everything, and not the members of a `log_format`.
pub(crate) fn has_everything(record: &Record) -> bool {
    OpenedRecord::of(record).kind == Some(EVERYTHING)
}

/// The texts of [`super::capture::Capture::with_hidden`], in their order.
pub(crate) fn hidden(record: &Record) -> Vec<&[u8]> {
    let OpenedRecord { hidden_count, mut hidden, .. } = OpenedRecord::of(record);
    (0..hidden_count).map(|_| hidden.text()).collect()
}

/// The same texts as they are in the record: equal for records whose texts are equal.
pub(crate) fn hidden_bytes(record: &Record) -> &[u8] {
    OpenedRecord::of(record).hidden.0
}

fn whereabouts(object: &mut JsonObjectWriter<'_>, facts: &CapturedFacts<'_>, extra: &MemberNames<'_>) {
    if !extra.has("upstream") {
        object.plain_text(known!("upstream"), |out| {
            if let Some(upstream) = facts.upstream {
                socket_address(out, upstream);
            }
        });
    }
    let cause = Some(facts.error_cause).filter(|cause| !cause.is_empty());
    for (name, text) in [
        (known!("service_id"), Some(facts.service)),
        (known!("route_id"), Some(facts.route)),
        (known!("error_cause"), cause),
    ] {
        if !extra.has(name.name()) {
            object.text_if(name, text);
        }
    }
    if let Some(client) = facts.client.filter(|_| !extra.has("client_ip")) {
        object.plain_text(known!("client_ip"), |out| ip_address(out, client));
    }
}

fn socket_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(_) => ip_address(out, address.ip()),
        IpAddr::V6(ip) => write!(out, "[{ip}]").expect("a Vec takes everything"),
    }
    out.push(b':');
    out.extend_from_slice(itoa::Buffer::new().format(address.port()).as_bytes());
}

/// The number of each octet as it is written, with the point behind it, and its length.
const OCTETS: [([u8; 4], usize); 256] = {
    let (mut octets, mut octet) = ([([0; 4], 0); 256], 0);
    while octet < 256 {
        let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10];
        let [hundreds, tens, ones] = [b'0' + hundreds as u8, b'0' + tens as u8, b'0' + ones as u8];
        octets[octet] = match octet {
            0..10 => ([ones, b'.', 0, 0], 2),
            10..100 => ([tens, ones, b'.', 0], 3),
            _ => ([hundreds, tens, ones, b'.'], 4),
        };
        octet += 1;
    }
    octets
};

/// Appends an address. Addresses of IPv4 are written without `fmt`, which takes many times as long.
fn ip_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            let (mut text, mut length) = ([0; 16], 0);
            for octet in address.octets() {
                let (digits, count) = &OCTETS[usize::from(octet)];
                text[length..length + 4].copy_from_slice(digits);
                length += count;
            }
            out.extend_from_slice(&text[..length - 1]);
        }
        IpAddr::V6(address) => write!(out, "{address}").expect("a Vec takes everything"),
    }
}

fn times(object: &mut JsonObjectWriter<'_>, facts: &CapturedFacts<'_>, end_ms: u64, extra: &MemberNames<'_>) {
    let upstream_ns = (facts.flags & UPSTREAM_TIMED != 0).then_some(facts.upstream_ns);
    if !extra.has("start_time") {
        object.number(
            known!("start_time"),
            end_ms.saturating_sub(facts.latency_ns.saturating_add(NS_PER_MS / 2 - 1) / NS_PER_MS),
        );
    }
    for (name, ns) in [
        (known!("latency"), Some(facts.latency_ns)),
        (known!("upstream_latency"), upstream_ns),
        (known!("apisix_latency"), Some(facts.latency_ns.saturating_sub(upstream_ns.unwrap_or_default()))),
    ] {
        if !extra.has(name.name()) {
            object.ms(name, ns);
        }
    }
}

/// Text as it is; other content in base64, marked with `body_encoding`.
fn body(object: &mut JsonObjectWriter<'_>, content: Option<RecordedContent<'_>>) {
    let Some(RecordedContent { bytes, decoded, fault }) = content else { return };
    match is_text(&bytes) {
        true => object.text(known!("body"), &bytes),
        false => {
            object.text(known!("body"), BASE64_STANDARD.encode(&bytes).as_bytes());
            object.text(known!("body_encoding"), b"base64");
        }
    }
    object.text_if(known!("body_decoded"), decoded.map(str::as_bytes));
    object.text_if(known!("body_fault"), fault.map(str::as_bytes));
}

/// Whether it is UTF-8, but for a character that was cut at the end.
fn is_text(body: &[u8]) -> bool {
    match std::str::from_utf8(body) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// The arguments of a query, without decoding them.
fn query(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        // Without `memchr`, which takes longer for the few bytes of a name.
        let equals = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (&pair[..equals], pair.get(equals + 1..).unwrap_or_default())
    })
}

/// The names of the outermost members of a `log_format` or `log_format_extra`.
struct MemberNames<'a>(Vec<&'a [u8]>);

impl<'a> MemberNames<'a> {
    fn read(mut bytes: Bytes<'a>) -> MemberNames<'a> {
        let (mut names, mut depth) = (Vec::new(), 0);
        while let Some(kind) = bytes.byte() {
            if kind == END {
                depth -= 1;
                continue;
            }
            let name = bytes.text();
            if depth == 0 {
                names.push(name);
            }
            match kind {
                OBJECT => depth += 1,
                _ => drop(bytes.text()),
            }
        }
        MemberNames(names)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(&name.as_bytes())
    }
}

fn write_members(object: &mut JsonObjectWriter<'_>, bytes: &mut Bytes<'_>, record: &Record) {
    let mut depth = 0;
    while let Some(kind) = bytes.byte() {
        match kind {
            END => {
                depth -= 1;
                object.end_nested();
            }
            OBJECT => {
                depth += 1;
                object.nested(bytes.text());
            }
            TEXT => object.text_bytes(bytes.text(), bytes.text()),
            JSON => object.raw(bytes.text(), bytes.text()),
            RECORD_ID => {
                let (name, _) = (bytes.text(), bytes.text());
                let mut id = Vec::new();
                record.write_id(&mut id);
                object.text_bytes(name, &id);
            }
            _ => break,
        }
    }
    (0..depth).for_each(|_| object.end_nested());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};
    use weir_plugin::{Build, Exchange, Template};

    use super::*;
    use crate::log::capture::{Capture, TEST_RECORD};
    use crate::testing::exchange;

    fn record(payload: Vec<u8>) -> Record {
        Record { boot: 1, sequence: 2, payload, attachments: Vec::new() }
    }

    fn written(capture: &Capture, exchange: &Exchange) -> Value {
        let (mut payload, mut text) = (Vec::new(), Vec::new());
        capture.write(exchange, 0, &mut payload);
        RecordWriter::default().batch().json(&record(payload), &mut text);
        assert!(!text.contains(&b'\n'), "one record is one line");
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text)))
    }

    #[test]
    fn p14_everything_is_one_line_without_secrets() {
        let mut exchange = exchange(
            "GET /a?b=1&key=k&b=2%0a HTTP/1.1\nHost: h.example\nAuthorization: Bearer t\nReferer: /a?key=k\nX-Key: k\nX: a\nX: \u{2028}\"b",
        );
        exchange.hide_argument(b"key"[..].into());
        (exchange.started_ns, exchange.ended_ns) = (1, 2_000_001);
        exchange.response.status = 200;
        let mut build = Build::default();
        let compiled = Capture::compile(None, None, &mut build).expect("valid");
        build.secret_field(b"X-Key");
        let entry = written(&compiled, &exchange);
        let request = &entry["request"];
        assert_eq!(request["headers"]["x-key"], "***", "whoever was built first");
        assert_eq!(request["uri"], "/a?b=1&key=***&b=2%0a");
        assert_eq!(request["querystring"], json!({"b": ["1", "2%0a"], "key": "***"}));
        assert_eq!(request["headers"]["authorization"], "***");
        assert_eq!(request["headers"]["referer"], "/a?key=***");
        assert_eq!(request["headers"]["x"], json!(["a", "\u{2028}\"b"]));
        assert_eq!((&entry["client_ip"], &entry["response"]["status"]), (&json!("192.0.2.7"), &json!(200)));
        assert_eq!((&entry["latency"], &entry["upstream_latency"]), (&json!(2.0), &Value::Null));
        assert_eq!(entry["record_id"], "0000000000000001-000000000002");
    }

    #[test]
    fn members_of_a_record_stand_in_the_guide() {
        let page = include_str!("../../../../docs/guide/observing.md");
        let (_, list) = page.split_once("\n## Fields of a record\n").expect("a section");
        let list = list.split_once("\n## ").map_or(list, |(list, _)| list);
        let capture = Capture::compile(None, None, &mut Build::default()).expect("valid");
        let entry = written(&capture, &exchange("GET /a?b=1 HTTP/1.1\nHost: h\nX: a"));
        let mut names: Vec<String> = ["upstream_latency", "consumer.username", "error_cause", "request_id"]
            .into_iter()
            .chain(["bodies_omitted", "request.body", "response.body", "service_id", "route_id", "client_ip"])
            .map(str::to_owned)
            .collect();
        for (name, value) in entry.as_object().expect("an object") {
            match value.as_object().filter(|_| ["request", "response", "server"].contains(&name.as_str())) {
                Some(members) => names.extend(members.keys().map(|member| format!("{name}.{member}"))),
                None => names.push(name.clone()),
            }
        }
        for name in names {
            assert!(list.contains(&format!("`{name}`")), "docs/guide/observing.md has no `{name}`");
        }
    }

    #[test]
    fn the_id_of_a_record_is_in_a_format_that_names_it() {
        let id = json!("0000000000000001-000000000002");
        let format = json!({"a": "$request_method", "doc": {"id": "$record_id"}, "z": 1});
        let mut build = Build::default();
        let capture = Capture::compile(format.as_object(), None, &mut build).expect("valid");
        let entry = written(&capture, &exchange("GET / HTTP/1.1\nHost: h"));
        assert_eq!(entry, json!({"a": "GET", "doc": {"id": id}, "z": 1}));
        let extra = json!({"event_id": "$record_id"});
        let capture = Capture::compile(None, extra.as_object(), &mut build).expect("valid");
        let entry = written(&capture, &exchange("GET / HTTP/1.1\nHost: h"));
        assert_eq!((&entry["event_id"], &entry["record_id"]), (&id, &id));
        assert_eq!(build.warnings, []);
    }

    #[test]
    fn the_time_of_a_record_is_added_unless_its_format_has_one() {
        let stamped = |format: Value, extra: Value, target: &str, end_ms: u64| {
            let capture =
                Capture::compile(format.as_object(), extra.as_object(), &mut Build::default()).expect("valid");
            let (mut payload, mut text) = (Vec::new(), Vec::new());
            capture.write(&exchange(&format!("GET {target} HTTP/1.1\nHost: h")), 0, &mut payload);
            payload[1..9].copy_from_slice(&end_ms.to_le_bytes());
            RecordWriter::default().batch().json_with_timestamp(&record(payload), &mut text);
            serde_json::from_slice::<Value>(&text).expect("JSON")["@timestamp"].clone()
        };
        let mine = json!({"@timestamp": "mine"});
        let day = json!("2023-11-14T22:13:20.007Z");
        assert_eq!(stamped(json!(null), json!(null), "/", 1_700_000_000_007), day);
        assert_eq!(stamped(json!(null), json!(null), "/?@timestamp=1", 1_700_000_000_007), day, "a client has no say");
        assert_eq!(stamped(json!({"a": mine}), json!(null), "/", 1_700_000_000_007), day, "one within a member");
        assert_eq!(stamped(json!({"a": 1}), json!(null), "/", 999), "1970-01-01T00:00:00.999Z");
        assert_eq!(stamped(json!({"a": 1}), json!(null), "/", u64::MAX).as_str().map(str::len), Some(24));
        assert_eq!(stamped(mine.clone(), json!(null), "/", 1), "mine");
        assert_eq!(stamped(json!(null), mine, "/", 1), "mine");
    }

    #[test]
    fn addresses_are_written_as_they_are_shown() {
        for text in
            ["0.0.0.0:0", "192.0.2.107:65535", "9.10.99.100:1", "255.255.255.255:80", "[::1]:80", "[2001:db8::7]:8080"]
        {
            let address: SocketAddr = text.parse().expect("an address");
            let (mut whole, mut ip) = (Vec::new(), Vec::new());
            socket_address(&mut whole, address);
            ip_address(&mut ip, address.ip());
            assert_eq!((&*whole, &*ip), (text.as_bytes(), address.ip().to_string().as_bytes()));
        }
    }

    #[test]
    fn the_id_of_the_request_is_recorded_if_it_has_one() {
        let mut exchange = exchange("GET /a HTTP/1.1\nHost: h");
        let shown = |extra: Value, exchange: &Exchange| {
            let capture = Capture::compile(None, extra.as_object(), &mut Build::default()).expect("valid");
            written(&capture, exchange)["request_id"].clone()
        };
        assert_eq!(shown(json!({}), &exchange), Value::Null);
        exchange.set_request_id(b"order-7".to_vec());
        assert_eq!(shown(json!({}), &exchange), "order-7");
        assert_eq!(shown(json!({"request_id": "$host"}), &exchange), "h", "the extra counts");
    }

    #[test]
    fn a_format_says_what_stands_in_a_record() {
        let format = json!({"host": "$host", "none": "$arg_x", "line": "$request_method of $host", "n": 1,
            "inner": {"path": "$uri", "deeper": {"m": "$method"}}, "list": [1, "a"]});
        let entry = Capture::compile(format.as_object(), None, &mut Build::default()).expect("valid");
        let exchange = exchange("GET /a HTTP/1.1\nHost: h");
        let expected = json!({"host": "h", "line": "GET of h", "n": 1, "list": [1, "a"],
            "inner": {"path": "/a", "deeper": {"m": "GET"}}});
        assert_eq!(written(&entry, &exchange), expected);
        let extra = json!({"team": "a", "response": {"code": "$status"}, "route_id": "mine"});
        let entry = Capture::compile(None, extra.as_object(), &mut Build::default()).expect("valid");
        let record = written(&entry, &exchange);
        assert_eq!((&record["team"], &record["request"]["method"]), (&json!("a"), &json!("GET")));
        assert_eq!((&record["route_id"], &record["response"]), (&json!("mine"), &json!({})), "the extra counts");
    }

    #[test]
    fn a_test_record_has_the_form_of_all_others_and_a_mark() {
        let test = |format: Option<Value>, extra: Value, hidden: &str| {
            let format = format.as_ref().and_then(Value::as_object);
            let capture = Capture::compile(format, extra.as_object(), &mut Build::default()).expect("valid");
            let capture = capture.with_hidden(vec![Template::compile(hidden)]).with_matched_uri();
            let (record, mut text) = (record(capture.test_record("id-7")), Vec::new());
            RecordWriter::default().batch().json(&record, &mut text);
            let hidden: Vec<String> =
                super::hidden(&record).into_iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
            (serde_json::from_slice::<Value>(&text).expect("JSON"), hidden)
        };
        let (everything, hidden) = test(None, json!({"team": "a"}), "index-$host");
        assert_eq!((&everything[TEST_RECORD], &everything["team"]), (&json!("id-7"), &json!("a")));
        let (request, response) = (&everything["request"], &everything["response"]);
        assert_eq!((&request["method"], &request["uri"]), (&json!("GET"), &json!("/weir-test-record")));
        assert_eq!((&response["status"], &everything["client_ip"]), (&json!(200), &json!("127.0.0.1")));
        assert_eq!(hidden, ["index-localhost", "/weir-test-record"]);
        let members = |value: &Value| value.as_object().expect("a map").keys().cloned().collect::<BTreeSet<_>>();
        let capture = Capture::compile(None, json!({"team": "a"}).as_object(), &mut Build::default()).expect("valid");
        let mut of_exchange = members(&written(&capture, &exchange("GET /a HTTP/1.1\nHost: h")));
        of_exchange.insert(TEST_RECORD.to_owned());
        assert_eq!(members(&everything), of_exchange, "no other member");
        let format = json!({"path": "$uri", "status": "$status", "none": "$arg_x", "n": 1, "weir_test_record": "no"});
        let (formatted, _) = test(Some(format), json!({"weir_test_record": "no"}), "");
        let expected = json!({"path": "/weir-test-record", "status": "200", "n": 1, "weir_test_record": "id-7"});
        assert_eq!(formatted, expected);
    }

    #[test]
    fn values_of_one_name_are_a_list_however_many_names_there_are() {
        let entry = Capture::compile(None, None, &mut Build::default()).expect("valid");
        for names in [1, 40] {
            let query: Vec<String> = (0..3 * names).map(|number| format!("n{}={number}", number % names)).collect();
            let record = written(&entry, &exchange(&format!("GET /?{} HTTP/1.1\nHost: h", query.join("&"))));
            let arguments = record["request"]["querystring"].as_object().expect("an object");
            assert_eq!(arguments.len(), names);
            assert_eq!(arguments["n0"], json!(["0", names.to_string(), (2 * names).to_string()]));
        }
    }

    #[test]
    fn a_record_that_is_cut_short_becomes_json_all_the_same() {
        let extra = json!({"a": {"b": "$uri"}});
        let capture = Capture::compile(None, extra.as_object(), &mut Build::default()).expect("valid");
        let mut payload = Vec::new();
        capture.write(&exchange("GET /a HTTP/1.1\nHost: h\nX: y"), 0, &mut payload);
        for length in 0..payload.len() {
            let mut text = Vec::new();
            RecordWriter::default().batch().json(&record(payload[..length].to_vec()), &mut text);
            serde_json::from_slice::<Value>(&text).unwrap_or_else(|error| panic!("{length}: {error}"));
        }
    }

    #[test]
    fn content_is_text_or_base64() {
        for (content, want, encoding) in [
            (&b"caf\xc3\xa9"[..], "caf\u{e9}", Value::Null),
            (b"caf\xc3", "caf\u{fffd}", Value::Null),
            (b"\xff\x00", "/wA=", json!("base64")),
        ] {
            let mut text = Vec::new();
            body(&mut JsonObjectWriter::begin(&mut text), Some(RecordedContent::plain(content)));
            let object: Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!((&object["body"], &object["body_encoding"]), (&json!(want), &encoding));
        }
    }
}
