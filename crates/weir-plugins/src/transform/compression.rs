//! Shared by gzip and brotli: which responses are compressed, and the changes to their heads.

use std::borrow::Cow;
use std::sync::LazyLock;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::proto::{Framing, Known, Version, field};
use weir_plugin::{Exchange, NoteKey, Stop};

use crate::content::{DIGESTS, content_type};

/// Media types, or `"*"` for all.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Types(Option<Box<[Box<str>]>>);

impl TryFrom<Value> for Types {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Types, &'static str> {
        const EXPECTED: &str = "expected a list of media types, or `\"*\"`";
        match value {
            Value::String(text) if text == "*" => Ok(Types(None)),
            Value::Array(types) if !types.is_empty() => {
                let lower_case = |value: Value| value.as_str().map(|text| text.to_ascii_lowercase().into());
                let types: Option<Box<[Box<str>]>> = types.into_iter().map(lower_case).collect();
                types
                    .filter(|types| types.iter().all(|name| !name.is_empty()))
                    .map(|types| Types(Some(types)))
                    .ok_or(EXPECTED)
            }
            _ => Err(EXPECTED),
        }
    }
}

impl JsonSchema for Types {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Types".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"oneOf": [{"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}, {"enum": ["*"]}]})
    }
}

impl Types {
    pub(crate) fn html() -> Types {
        Types(Some(Box::new(["text/html".into()])))
    }

    /// Whether the media type in a value of `Content-Type` is one of these; parameters are ignored.
    fn contain(&self, value: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|types| types.iter().any(|known| content_type::is(value, known)))
    }
}

/// The oldest version of HTTP whose clients get compressed content, written as in APISIX: the number 1.1 or 1.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(crate) struct MinHttpVersion(Version);

impl TryFrom<f64> for MinHttpVersion {
    type Error = &'static str;

    fn try_from(number: f64) -> Result<MinHttpVersion, &'static str> {
        match number {
            1.0 => Ok(MinHttpVersion(Version::Http10)),
            1.1 => Ok(MinHttpVersion(Version::Http11)),
            _ => Err("expected 1.1 or 1"),
        }
    }
}

impl JsonSchema for MinHttpVersion {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "MinHttpVersion".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"enum": [1.1, 1]})
    }
}

impl Default for MinHttpVersion {
    fn default() -> MinHttpVersion {
        MinHttpVersion(Version::Http11)
    }
}

/// The note with the coding to which the client gives the highest weight, of those whose plugins suit the response: the weight,
/// and the first byte of the name. It is the same for all plugins, since each must know what the others offer.
static BEST_OFFER: LazyLock<NoteKey> = LazyLock::new(NoteKey::unique);

fn first_byte(coding: &str) -> u64 {
    coding.bytes().next().map_or(0, u64::from)
}

/// Whether another plugin offers a coding that the client gives a higher weight.
fn is_outweighed(coding: &str, exchange: &Exchange) -> bool {
    exchange.notes.read(*BEST_OFFER).is_some_and(|[_, best, _]| best != first_byte(coding))
}

/// `identity;q=0`, or `*;q=0`: content of any length is compressed for this client.
fn refuses_identity(exchange: &Exchange) -> bool {
    CodingWeights::of(exchange, "").identity == Some(0)
}

/// Which responses are compressed.
pub(crate) struct CompressionConditions {
    pub types: Types,
    /// Content of a known length below this is not compressed.
    pub min_length: u64,
    pub oldest: MinHttpVersion,
    pub vary: bool,
}

impl CompressionConditions {
    /// Decides whether this response is sent in `coding`, and changes its head accordingly.
    pub(crate) fn apply(&self, coding: &str, exchange: &mut Exchange) -> Result<bool, Stop> {
        if !self.suit(exchange) {
            return Ok(false);
        }
        let accepted = CodingWeights::of(exchange, coding).prefer_coding() && !is_outweighed(coding, exchange);
        self.add_vary(exchange);
        if !accepted {
            return Ok(false);
        }
        content_changes(exchange)?;
        exchange.response.head.set(b"Content-Encoding", coding.as_bytes()).map_err(|_| Stop::Internal)?;
        Ok(true)
    }

    /// Takes note of the coding if the client gives it a higher weight than those of the plugins before.
    pub(crate) fn offer(&self, coding: &'static str, exchange: &mut Exchange) {
        let weights = CodingWeights::of(exchange, coding);
        if !weights.are_given || !weights.prefer_coding() || !self.suit(exchange) {
            return;
        }
        let weight = u64::from(weights.coding);
        if exchange.notes.read(*BEST_OFFER).is_none_or(|[best, ..]| weight > best) {
            exchange.notes.write(*BEST_OFFER, [weight, first_byte(coding), 0]);
        }
    }

    /// Completes the head of a response that is never compressed and stands in the place of a 200 that may be. A 304 gets the `Vary`
    /// and the `ETag` that the 200 would have (RFC 9110 §15.4.5), and a 206 its `Vary` (§15.3.7): a cache must not give the part to
    /// a client that has the rest compressed. So does a 416.
    pub(crate) fn complete_head(&self, coding: &str, exchange: &mut Exchange) -> Result<(), Stop> {
        match exchange.response.status {
            // The length of a part says nothing about the whole.
            206 | 416 if self.suit_whatever_length(exchange) => self.add_vary(exchange),
            304 if self.suit(exchange) => self.add_vary(exchange),
            _ => return Ok(()),
        }
        let is_coded = || CodingWeights::of(exchange, coding).prefer_coding() && names_weak_tag(exchange);
        if exchange.response.status == 304 && is_coded() {
            content_changes(exchange)?;
        }
        Ok(())
    }

    /// Also if this client gets it uncompressed: caches must not send that response to clients that accept the coding.
    fn add_vary(&self, exchange: &mut Exchange) {
        let head = &mut exchange.response.head;
        if self.vary
            && !head.values(b"vary").flat_map(field::list).any(|name| name == b"*" || is(name, "accept-encoding"))
        {
            head.add(b"Vary", b"Accept-Encoding").expect("constant and valid");
        }
    }

    fn suit(&self, exchange: &Exchange) -> bool {
        let response = &exchange.response;
        let length = match response.framing {
            Framing::Sized(length) => Some(length),
            // RFC 9110 §9.3.2, §15.4.5: the answer to a HEAD, and a 304, tell the length of what a GET would get.
            Framing::None => {
                response.head.known(Known::ContentLength).and_then(|text| str::from_utf8(text).ok()?.parse().ok())
            }
            _ => None,
        };
        let is_long = length.is_none_or(|length| length >= self.min_length) || refuses_identity(exchange);
        // A range (206) is a range of the uncompressed content.
        is_long && response.status != 206 && self.suit_whatever_length(exchange)
    }

    fn suit_whatever_length(&self, exchange: &Exchange) -> bool {
        let (request, response) = (&exchange.request, &exchange.response);
        // RFC 9111 §5.2.2.6: `no-transform` forbids it.
        let may_change = ![&request.head, &response.head]
            .iter()
            .flat_map(|head| head.values(b"cache-control").flat_map(field::list))
            .any(|directive| is(directive, "no-transform"));
        let is_plain =
            response.head.values(b"content-encoding").flat_map(field::list).all(|coding| is(coding, "identity"));
        request.version >= self.oldest.0
            && is_plain
            && may_change
            // Messages of gRPC are compressed one by one, if at all.
            && !response.is_grpc()
            && match response.head.value(b"content-type") {
                Some(value) => response.status == 416 || self.types.contain(value),
                // A 304 does not tell the type of what it confirms, which may have been compressed, and neither does a 416.
                None => matches!(response.status, 304 | 416),
            }
    }
}

/// Whether the client asks by the weak form of the response's tag: it has the compressed content, whose tag was made weak. A
/// cache would not take a strong tag for that of what it has stored (RFC 9111 §4.3.4).
fn names_weak_tag(exchange: &Exchange) -> bool {
    let Some(tag) = exchange.response.head.value(b"etag") else { return false };
    let weak = [b"W/", tag.strip_prefix(b"W/").unwrap_or(tag)].concat();
    // Not as a list: a tag may contain commas. It contains no quotes, so this finds whole tags only.
    exchange.request.head.received(b"if-none-match").any(|tags| tags.windows(weak.len()).any(|part| part == weak))
}

/// Removes the fields of a response's head that describe the content before the change. Entity tags become weak: the
/// meaning is the same, the bytes are not (RFC 9110 §8.8.1).
pub(crate) fn content_changes(exchange: &mut Exchange) -> Result<(), Stop> {
    let head = &mut exchange.response.head;
    for name in [&b"Content-Length"[..], b"Accept-Ranges"].into_iter().chain(DIGESTS) {
        head.remove(name);
    }
    let strong = head.value(b"etag").filter(|tag| !tag.starts_with(b"W/"));
    if let Some(weak) = strong.map(|tag| [b"W/", tag].concat()) {
        head.set(b"ETag", &weak).map_err(|_| Stop::Internal)?;
    }
    Ok(())
}

/// What a client says about a coding in `Accept-Encoding` (RFC 9110 §12.5.3), in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CodingWeights {
    /// 0: the coding is not accepted. Without `Accept-Encoding`, none is.
    coding: u16,
    /// Content without a coding; `None` if the client does not say, which makes it the last choice.
    identity: Option<u16>,
    /// The client has given a weight to anything.
    are_given: bool,
}

impl CodingWeights {
    fn of(exchange: &Exchange, coding: &str) -> CodingWeights {
        let (mut own, mut identity, mut wildcard, mut are_given) = (None, None, None, false);
        // The fields as received: a plugin that inspects the content has removed `Accept-Encoding` from the upstream's request.
        for item in exchange.request.head.received(b"accept-encoding").flat_map(field::list) {
            let mut parts = item.split(|&byte| byte == b';').map(field::trim);
            let name = parts.next().unwrap_or_default();
            let given = parts.find_map(weight);
            are_given |= given.is_some();
            let place = match name {
                b"*" => &mut wildcard,
                name if is(name, coding) => &mut own,
                name if is(name, "identity") => &mut identity,
                _ => continue,
            };
            place.get_or_insert(given.unwrap_or(MOST_WEIGHT));
        }
        let refused = wildcard.filter(|&weight| weight == 0);
        CodingWeights { coding: own.or(wildcard).unwrap_or_default(), identity: identity.or(refused), are_given }
    }

    /// Whether the client wants the coding at least as much as no coding.
    fn prefer_coding(self) -> bool {
        self.coding > 0 && self.identity.is_none_or(|identity| self.coding >= identity)
    }
}

/// The weight of an element that gives none.
const MOST_WEIGHT: u16 = 1000;

/// The weight in a parameter `q=0.5`, in thousandths (RFC 9110 §12.4.2); that of one that is not valid is the highest.
fn weight(parameter: &[u8]) -> Option<u16> {
    let (b"q" | b"Q", value) = parameter.split_at_checked(1)? else { return None };
    let value = field::trim(value).strip_prefix(b"=").map(field::trim)?;
    let text = str::from_utf8(value).ok();
    let number: Option<f64> = text.and_then(|text| text.parse().ok()).filter(|number| (0.0..=1.0).contains(number));
    Some(number.map_or(MOST_WEIGHT, |number| (number * f64::from(MOST_WEIGHT)).round() as u16))
}

fn is(text: &[u8], word: &str) -> bool {
    text.eq_ignore_ascii_case(word.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{exchange, sent};

    fn terms() -> CompressionConditions {
        let types = Types::try_from(json!(["text/html", "Text/Plain"])).expect("types");
        CompressionConditions { types, min_length: 20, oldest: MinHttpVersion::default(), vary: true }
    }

    fn response(request: &str, fields: &[(&str, &str)], framing: Framing) -> Exchange {
        let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\n{request}"));
        exchange.response.set_status(200);
        exchange.response.framing = framing;
        for (name, value) in fields {
            exchange.response.head.add(name.as_bytes(), value.as_bytes()).expect("valid");
        }
        exchange
    }

    #[test]
    fn codings_are_negotiated() {
        for (accept, want) in [
            ("", false),
            ("Accept-Encoding: gzip", true),
            ("Accept-Encoding: br, GZIP;q=0.5", true),
            ("Accept-Encoding: br\nAccept-Encoding: gzip", true),
            ("Accept-Encoding: gzip;q=0", false),
            ("Accept-Encoding: gzip; Q = 0.00 , *", false),
            ("Accept-Encoding: gzip;q=0.001", true),
            ("Accept-Encoding: *", true),
            ("Accept-Encoding: *;q=0, br", false),
            ("Accept-Encoding: gzipped, identity", false),
            ("Accept-Encoding: gzip;q=0.5, identity", false),
            ("Accept-Encoding: gzip;q=0.5, identity;q=0.4", true),
            ("Accept-Encoding: gzip;q=0.5, identity;q=0.5", true),
            ("Accept-Encoding: identity;q=0.9, *;q=0.1", false),
            ("Accept-Encoding: identity;q=0, *;q=0.1", true),
        ] {
            let mut exchange = response(accept, &[("Content-Type", "text/html")], Framing::Chunked);
            assert_eq!(terms().apply("gzip", &mut exchange), Ok(want), "{accept}");
            assert_eq!(sent(&exchange, "vary"), Some("Accept-Encoding"), "{accept}");
            assert_eq!(sent(&exchange, "content-encoding"), want.then_some("gzip"), "{accept}");
        }
    }

    #[test]
    fn of_two_codings_the_one_with_the_higher_weight_is_sent() {
        let html = [("Content-Type", "text/html")];
        for (accept, want) in [
            ("br, gzip", "br"),
            ("br;q=0.5, gzip;q=0.5", "br"),
            ("br;q=0.5, gzip", "gzip"),
            ("br;q=0.5, *", "gzip"),
            ("br, gzip;q=0.9", "br"),
            ("br;q=0, gzip;q=0.1", "gzip"),
        ] {
            let mut exchange = response(&format!("Accept-Encoding: {accept}"), &html, Framing::Chunked);
            ["br", "gzip"].iter().for_each(|coding| terms().offer(coding, &mut exchange));
            ["br", "gzip"].iter().for_each(|coding| _ = terms().apply(coding, &mut exchange));
            assert_eq!(sent(&exchange, "content-encoding"), Some(want), "{accept}");
        }
        // A plugin that does not suit the response offers nothing.
        let types = Types::try_from(json!(["image/svg+xml"])).expect("types");
        let images = CompressionConditions { types, ..terms() };
        let mut exchange = response("Accept-Encoding: br;q=0.5, gzip", &html, Framing::Chunked);
        terms().offer("br", &mut exchange);
        images.offer("gzip", &mut exchange);
        assert_eq!(terms().apply("br", &mut exchange), Ok(true));
    }

    #[test]
    fn not_everything_is_coded() {
        let html = ("Content-Type", "text/html; charset=utf-8");
        for (request, fields, framing, want) in [
            ("", vec![html], Framing::Sized(20), true),
            ("", vec![html], Framing::Sized(19), false),
            ("Accept-Encoding: identity;q=0", vec![html], Framing::Sized(19), true),
            ("", vec![("Content-Type", "TEXT/plain")], Framing::UntilClose, true),
            ("", vec![("Content-Type", "image/png")], Framing::Chunked, false),
            ("", vec![], Framing::Chunked, false),
            ("", vec![html, ("Content-Encoding", "br")], Framing::Chunked, false),
            ("", vec![html, ("Content-Encoding", "identity")], Framing::Chunked, true),
            ("", vec![html, ("Cache-Control", "max-age=1, No-Transform")], Framing::Chunked, false),
            ("Cache-Control: no-transform", vec![html], Framing::Chunked, false),
        ] {
            let request = format!("Accept-Encoding: gzip\n{request}");
            let mut exchange = response(&request, &fields, framing);
            assert_eq!(terms().apply("gzip", &mut exchange), Ok(want), "{request} {fields:?}");
        }
        for (length, want) in [("19", false), ("20", true)] {
            let mut head = response("Accept-Encoding: gzip", &[html, ("Content-Length", length)], Framing::None);
            assert_eq!(terms().apply("gzip", &mut head), Ok(want), "the answer to a HEAD, of {length} bytes");
            assert_eq!(sent(&head, "content-length"), (!want).then_some(length));
        }
        let mut part = response("Accept-Encoding: gzip", &[html], Framing::Chunked);
        part.response.set_status(206);
        assert_eq!(terms().apply("gzip", &mut part), Ok(false));
    }

    #[test]
    fn a_part_and_a_refused_range_vary_like_the_whole() {
        for (status, fields, vary) in [
            (206, vec![("Content-Type", "text/html"), ("Content-Length", "1")], true),
            (206, vec![("Content-Type", "image/png")], false),
            (206, vec![("Content-Type", "text/html"), ("Content-Encoding", "br")], false),
            (416, vec![("Content-Range", "bytes */9")], true),
            (416, vec![("Content-Type", "text/plain")], true),
            (416, vec![("Cache-Control", "no-transform")], false),
            (200, vec![("Content-Type", "text/html")], false),
        ] {
            let mut exchange = response("Accept-Encoding: gzip", &fields, Framing::Sized(1));
            exchange.response.set_status(status);
            assert_eq!(terms().complete_head("gzip", &mut exchange), Ok(()));
            assert_eq!(sent(&exchange, "vary"), vary.then_some("Accept-Encoding"), "{status} {fields:?}");
        }
    }

    #[test]
    fn a_304_has_the_head_of_the_response_in_its_place() {
        let all = "Accept-Encoding: gzip\nIf-None-Match: ";
        for (request, fields, vary, tag) in [
            (format!("{all}W/\"1\""), vec![("ETag", "\"1\"")], true, "W/\"1\""),
            (format!("{all}\"0\", W/\"1\""), vec![("ETag", "\"1\""), ("Content-Type", "text/html")], true, "W/\"1\""),
            (format!("{all}W/\"a,1\""), vec![("ETag", "W/\"a,1\"")], true, "W/\"a,1\""),
            // The client has what was not compressed.
            (format!("{all}\"1\""), vec![("ETag", "\"1\"")], true, "\"1\""),
            (format!("{all}W/\"11\", \"1\""), vec![("ETag", "\"1\"")], true, "\"1\""),
            ("If-None-Match: W/\"1\"".to_owned(), vec![("ETag", "\"1\"")], true, "\"1\""),
            // The upstream's own, and what is never compressed.
            (format!("{all}W/\"1\""), vec![("ETag", "\"1\""), ("Content-Encoding", "br")], false, "\"1\""),
            (format!("{all}W/\"1\""), vec![("ETag", "\"1\""), ("Content-Type", "image/png")], false, "\"1\""),
            (format!("{all}W/\"1\""), vec![("ETag", "\"1\""), ("Cache-Control", "no-transform")], false, "\"1\""),
        ] {
            let mut exchange = response(&request, &fields, Framing::None);
            exchange.response.set_status(304);
            assert_eq!(terms().complete_head("gzip", &mut exchange), Ok(()), "{request} {fields:?}");
            assert_eq!(sent(&exchange, "vary"), vary.then_some("Accept-Encoding"), "{request} {fields:?}");
            assert_eq!(sent(&exchange, "etag"), Some(tag), "{request} {fields:?}");
            assert_eq!(
                sent(&exchange, "content-encoding"),
                fields.iter().any(|(_, value)| *value == "br").then_some("br")
            );
        }
    }

    #[test]
    fn the_head_says_what_is_sent() {
        let fields = [
            ("Content-Type", "text/html"),
            ("ETag", "\"1\""),
            ("Accept-Ranges", "bytes"),
            ("Content-MD5", "x"),
            ("Vary", "Origin"),
        ];
        let mut exchange = response("Accept-Encoding: gzip", &fields, Framing::Sized(100));
        assert_eq!(terms().apply("gzip", &mut exchange), Ok(true));
        assert_eq!((sent(&exchange, "etag"), sent(&exchange, "accept-ranges")), (Some("W/\"1\""), None));
        assert_eq!(sent(&exchange, "content-md5"), None);
        assert_eq!(exchange.response.head.values(b"vary").collect::<Vec<_>>(), [&b"Origin"[..], b"Accept-Encoding"]);
        assert_eq!(terms().apply("br", &mut exchange), Ok(false), "never twice");
        assert_eq!(exchange.response.head.values(b"vary").count(), 2);
    }
}
