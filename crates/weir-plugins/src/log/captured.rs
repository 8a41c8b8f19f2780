//! Reads a record that [`super::capture`] has written, and makes JSON of it, on the sink's thread.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use weir_records::Record;

use crate::log::capture::{
    END, EVERYTHING, FORMAT, HTTPS, JSON, OBJECT, REQUEST_BODY, REQUEST_BODY_CODED, REQUEST_BODY_OMITTED,
    RESPONSE_BODY, RESPONSE_BODY_CODED, TEXT, UPSTREAM_TIMED,
};
use crate::log::decoding::{BatchDecoder, RecordedContent};
use crate::log::json::{JsonObjectWriter, Pair};

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
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
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

    /// A list of names and values.
    fn fields(&mut self) -> Vec<Pair<'a>> {
        let count = self.number::<4>() as usize;
        let mut pairs = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            let (name, value) = (self.text(), self.text());
            pairs.push((lower_case(name), Cow::Borrowed(value)));
        }
        pairs
    }
}

/// Avoids the copy for names that are in lower case already, as most are.
fn lower_case(name: &[u8]) -> Cow<'_, [u8]> {
    match name.iter().any(u8::is_ascii_uppercase) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
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

    /// The URL as the client requested it, with the port.
    fn url(&self) -> Vec<u8> {
        let scheme: &[u8] = if self.flags & HTTPS == 0 { b"http" } else { b"https" };
        let mut url = [scheme, b"://", self.authority].concat();
        let colon = self.authority.iter().rposition(|&byte| byte == b':');
        if !colon.is_some_and(|colon| self.authority[colon + 1..].iter().all(u8::is_ascii_digit)) {
            url.push(b':');
            url.extend_from_slice(itoa::Buffer::new().format(self.port).as_bytes());
        }
        url.extend_from_slice(self.target);
        url
    }
}

/// Writes records as JSON, with the host name of the gateway.
pub struct RecordWriter {
    hostname: Vec<u8>,
}

impl Default for RecordWriter {
    fn default() -> Self {
        RecordWriter { hostname: rustix::system::uname().nodename().to_bytes().to_vec() }
    }
}

impl RecordWriter {
    /// The host name of this machine.
    pub fn hostname(&self) -> &[u8] {
        &self.hostname
    }

    /// Writes the records of one batch.
    pub fn batch(&self) -> BatchWriter<'_> {
        BatchWriter { hostname: &self.hostname, decoder: BatchDecoder::default() }
    }

    /// The records as a JSON list, or, if `is_single`, the only record as an object.
    pub fn list(&self, records: &[Record], is_single: bool) -> Vec<u8> {
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
pub struct BatchWriter<'a> {
    hostname: &'a [u8],
    decoder: BatchDecoder,
}

impl BatchWriter<'_> {
    /// Appends a record as one JSON object without line breaks.
    pub fn json(&self, record: &Record, out: &mut Vec<u8>) {
        let (kind, end_ms, mut bytes) = opened(record);
        hidden_texts(&mut bytes);
        let mut object = JsonObjectWriter::begin(out);
        match kind {
            Some(EVERYTHING) => self.everything(&mut object, &mut bytes, end_ms, record),
            Some(FORMAT) => write_members(&mut object, &mut bytes),
            _ => object.text("error", b"this record was written by an incompatible version of weir"),
        }
    }

    /// Writes the members of a record of Apache APISIX.
    fn everything(&self, object: &mut JsonObjectWriter<'_>, bytes: &mut Bytes<'_>, end_ms: u64, record: &Record) {
        let facts = CapturedFacts::read(bytes);
        let (request_fields, response_fields) = (bytes.fields(), bytes.fields());
        let extra = Extra::read(*bytes);
        let mut bodies = record.attachments.iter().map(|attachment| &*attachment.bytes);
        let mut content = |is_there: u8, is_coded: u8| {
            let bytes = (facts.flags & is_there != 0).then(|| bodies.next()).flatten()?;
            Some(if facts.flags & is_coded == 0 { RecordedContent::plain(bytes) } else { self.decoder.content(bytes) })
        };
        let request_body = content(REQUEST_BODY, REQUEST_BODY_CODED);
        let response_body = content(RESPONSE_BODY, RESPONSE_BODY_CODED);
        if !extra.has("request") {
            let mut request = object.object("request");
            request.text("url", &facts.url());
            request.text("uri", facts.target);
            request.text("method", facts.method);
            request.object("headers").grouped(request_fields);
            request.object("querystring").grouped(query(facts.query));
            request.number("size", facts.sizes[0]);
            body(&mut request, request_body);
            if facts.flags & REQUEST_BODY_OMITTED != 0 {
                request.text("body_omitted", b"data-mask could not read the body");
            }
        }
        if !extra.has("response") {
            let mut response = object.object("response");
            response.number("status", facts.status);
            response.object("headers").grouped(response_fields);
            response.number("size", facts.sizes[1]);
            body(&mut response, response_body);
        }
        if !extra.has("server") {
            let mut server = object.object("server");
            server.text("hostname", self.hostname);
            server.text("version", concat!("weir/", env!("CARGO_PKG_VERSION")).as_bytes());
        }
        whereabouts(object, &facts, &extra);
        times(object, &facts, end_ms, &extra);
        if !extra.has("consumer") && !facts.consumer.is_empty() {
            object.object("consumer").text("username", facts.consumer);
        }
        if !extra.has("record_id") {
            object.text("record_id", record.id().as_bytes());
        }
        write_members(object, bytes);
    }
}

/// The kind of a record, the time when its exchange ended, and the remaining bytes.
fn opened(record: &Record) -> (Option<u8>, u64, Bytes<'_>) {
    let mut bytes = Bytes(&record.payload);
    (bytes.byte(), bytes.number::<8>(), bytes)
}

fn hidden_texts<'a>(bytes: &mut Bytes<'a>) -> Vec<&'a [u8]> {
    let count = bytes.byte().unwrap_or_default();
    (0..count).map(|_| bytes.text()).collect()
}

/// When the exchange of a record ended, in ms since 1970; constant across retries.
pub fn end_ms(record: &Record) -> u64 {
    opened(record).1
}

/// The texts of [`super::capture::Capture::with_hidden`], in their order.
pub fn hidden(record: &Record) -> Vec<&[u8]> {
    hidden_texts(&mut opened(record).2)
}

fn whereabouts(object: &mut JsonObjectWriter<'_>, facts: &CapturedFacts<'_>, extra: &Extra<'_>) {
    let upstream = facts.upstream.map(|upstream| upstream.to_string()).unwrap_or_default();
    let client = facts.client.map(|client| client.to_string());
    for (name, text) in [
        ("upstream", Some(upstream.as_bytes())),
        ("service_id", Some(facts.service)),
        ("route_id", Some(facts.route)),
        ("client_ip", client.as_deref().map(str::as_bytes)),
        ("error_cause", Some(facts.error_cause).filter(|cause| !cause.is_empty())),
    ] {
        if !extra.has(name) {
            object.text_if(name, text);
        }
    }
}

fn times(object: &mut JsonObjectWriter<'_>, facts: &CapturedFacts<'_>, end_ms: u64, extra: &Extra<'_>) {
    let latency_ms = facts.latency_ns as f64 / 1e6;
    let upstream_ms = (facts.flags & UPSTREAM_TIMED != 0).then_some(facts.upstream_ns as f64 / 1e6);
    if !extra.has("start_time") {
        object.number("start_time", (end_ms as f64 - latency_ms).round() as u64);
    }
    for (name, ms) in [
        ("latency", Some(latency_ms)),
        ("upstream_latency", upstream_ms),
        ("apisix_latency", Some((latency_ms - upstream_ms.unwrap_or_default()).max(0.0))),
    ] {
        if !extra.has(name) {
            object.ms(name, ms);
        }
    }
}

/// Text as it is; other content in base64, marked with `body_encoding`.
fn body(object: &mut JsonObjectWriter<'_>, content: Option<RecordedContent<'_>>) {
    let Some(RecordedContent { bytes, decoded, fault }) = content else { return };
    match is_text(&bytes) {
        true => object.text("body", &bytes),
        false => {
            object.text("body", BASE64_STANDARD.encode(&bytes).as_bytes());
            object.text("body_encoding", b"base64");
        }
    }
    object.text_if("body_decoded", decoded.map(str::as_bytes));
    object.text_if("body_fault", fault.map(str::as_bytes));
}

/// Whether it is UTF-8, but for a character that was cut at the end.
fn is_text(body: &[u8]) -> bool {
    match std::str::from_utf8(body) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// The arguments of a query, without decoding them.
fn query(query: &[u8]) -> Vec<Pair<'_>> {
    let pairs = query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| -> Pair<'_> {
        let equals = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (Cow::Borrowed(&pair[..equals]), Cow::Borrowed(pair.get(equals + 1..).unwrap_or_default()))
    });
    pairs.collect()
}

/// The names of the members of a `log_format_extra`.
struct Extra<'a>(Vec<&'a [u8]>);

impl<'a> Extra<'a> {
    fn read(mut bytes: Bytes<'a>) -> Extra<'a> {
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
        Extra(names)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(&name.as_bytes())
    }
}

fn write_members(object: &mut JsonObjectWriter<'_>, bytes: &mut Bytes<'_>) {
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
            _ => break,
        }
    }
    (0..depth).for_each(|_| object.end_nested());
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_plugin::{Build, Exchange};

    use super::*;
    use crate::log::capture::Capture;
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
