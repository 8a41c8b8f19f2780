use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::proto::head::BadField;
use weir_plugin::proto::{Framing, Method, Trailers, field};
use weir_plugin::{
    Build, ConfigError, Definition, EndedBy, Exchange, Filter, Flow, NoteKey, Phases, Plugin, Stage, Stop,
};

use crate::answer::RefusalResponse;
use crate::content::content_type;
use crate::security::cors;

/// Lets browsers call gRPC services: translates gRPC-Web of clients to gRPC, for an upstream whose `scheme` is `grpc`
/// or `grpcs`.
///
/// The plugin accepts POST requests with the content type `application/grpc-web` or `application/grpc-web-text`,
/// optionally with the suffix `+proto` or `+json`. It refuses other methods with 405 and other content types with 415.
/// The last two segments of the path are the gRPC service and method, so a route can have a prefix: `/web/*` matches
/// `/web/shop.Orders/Place`.
///
/// Messages are streamed in both directions. The trailers, which contain the status of the call, become the last frame
/// of the response body. If the upstream cannot be reached, the status is `grpc-status: 14`; if it resets the call, the
/// status is that of the cause, such as 13; if the call times out, it is 4.
///
/// OPTIONS requests are answered with 204, and pages of any origin can read the responses. If the route also has the
/// plugin `cors`, that plugin decides which origins are allowed. A call that the gateway or another plugin refuses gets
/// the HTTP status of that refusal, and its content is a frame of trailers with the gRPC status for it: 401 is 16, 403
/// is 7, 404 is 12, 400 is 13, 429, 502, 503 and 504 are 14, and any other status is 2.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrpcWeb {
    /// The value of `Access-Control-Allow-Headers`: header fields that a page can send, separated by commas.
    #[serde(default = "default_cors_allow_headers")]
    cors_allow_headers: String,
    /// The maximum size of a request body, in bytes as received (before base64 decoding). A larger body is refused with
    /// 413.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
}

fn default_cors_allow_headers() -> String {
    "content-type,x-grpc-web,x-user-agent".to_owned()
}

fn default_max_req_body_size() -> u64 {
    64 << 20
}

impl Definition for GrpcWeb {
    const NAME: &'static str = "grpc-web";
    const PRIORITY: i32 = 505;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        r#"grpc-web: { cors_allow_headers: "content-type,x-grpc-web,x-user-agent,grpc-timeout" }"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if !field::is_value(self.cors_allow_headers.as_bytes()) {
            return Err(ConfigError::new(
                "cors_allow_headers",
                "has a character that is not allowed in a header field",
            ));
        }
        Ok(Arc::new(GrpcWebTranslator {
            allowed_headers: self.cors_allow_headers,
            max_bytes: self.max_req_body_size,
            note: NoteKey::unique(),
            refused: NoteKey::unique(),
        }))
    }
}

/// A media type of gRPC-Web, and the one of gRPC that replaces it.
struct GrpcWebType {
    web: &'static str,
    plain: &'static str,
    /// Whether the content is encoded in base64.
    text: bool,
}

static FORMS: [GrpcWebType; 6] = [
    GrpcWebType { web: "application/grpc-web", plain: "application/grpc", text: false },
    GrpcWebType { web: "application/grpc-web+proto", plain: "application/grpc+proto", text: false },
    GrpcWebType { web: "application/grpc-web+json", plain: "application/grpc+json", text: false },
    GrpcWebType { web: "application/grpc-web-text", plain: "application/grpc", text: true },
    GrpcWebType { web: "application/grpc-web-text+proto", plain: "application/grpc+proto", text: true },
    GrpcWebType { web: "application/grpc-web-text+json", plain: "application/grpc+json", text: true },
];

struct GrpcWebTranslator {
    allowed_headers: String,
    max_bytes: u64,
    /// The note of an exchange that stores the index of its form.
    note: NoteKey,
    /// The note of a refused exchange, whose content is complete.
    refused: NoteKey,
}

impl Plugin for GrpcWebTranslator {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY).and(Phases::RESPONSE).and(Phases::RESPONSE_BODY)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        match exchange.request.method {
            Method::Options => {
                exchange.response.clear();
                exchange.body.clear();
                exchange.response.set_status(204);
                return Err(Stop::Answered);
            }
            Method::Post => {}
            _ => {
                let stop = RefusalResponse::error(405, Some("calls of gRPC-Web are POST requests")).send(exchange);
                exchange.response.head.add(b"Allow", b"POST, OPTIONS").expect("constant and valid");
                return Err(stop);
            }
        }
        let Some(number) = requested(exchange) else {
            let problem = "the content type must be application/grpc-web or application/grpc-web-text";
            return Err(RefusalResponse::error(415, Some(problem)).send(exchange));
        };
        let Some(call) = call(exchange.request.path()).map(<[u8]>::to_vec) else {
            return Err(RefusalResponse::error(400, Some("the path must end with /Service/Method")).send(exchange));
        };
        let query = exchange.request.query().map(<[u8]>::to_vec);
        exchange.request.set_path(&call, query.as_deref()).map_err(|_| Stop::Respond(400))?;
        let head = &mut exchange.request.head;
        head.set(b"Content-Type", FORMS[number].plain.as_bytes()).map_err(|_| Stop::Internal)?;
        // Whether or not the client supports trailers: they are appended to the content.
        exchange.request.takes_trailers = true;
        exchange.request.sends_te = true; // a gRPC server may refuse calls without it
        exchange.body_limit = exchange.body_limit.min(self.max_bytes);
        if matches!(exchange.request.framing, Framing::Sized(length) if length > exchange.body_limit) {
            return Err(Stop::BodyTooLarge);
        }
        exchange.notes.write(self.note, [number as u64, 0, 0]);
        Ok(Flow::Continue)
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        Ok(match self.form(exchange) {
            Some(GrpcWebType { text: true, .. }) => Some(Box::new(Base64Decoder::default())),
            _ => None,
        })
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if let Some(form) = self.form(exchange) {
            self.respond_with_grpc_error(exchange);
            if exchange.response.is_grpc() {
                exchange.response.head.set(b"Content-Type", form.web.as_bytes()).map_err(|_| Stop::Internal)?;
            }
        }
        self.explain_refusal(exchange).map_err(|_| Stop::Internal)?;
        self.allow(exchange).map_err(|_| Stop::Internal)
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        let is_relayed = exchange.response.is_grpc() && exchange.notes.read(self.refused).is_none();
        let Some(form) = self.form(exchange).filter(|_| is_relayed) else { return Ok(None) };
        // A response may consist of its head alone; then the status is in the head, where clients look first.
        if !exchange.response.framing.has_body() && exchange.response.head.value(b"grpc-status").is_some() {
            return Ok(None);
        }
        Ok(Some(Box::new(TrailerEncoder { text: form.text, kept: Vec::new() })))
    }
}

impl GrpcWebTranslator {
    fn form(&self, exchange: &Exchange) -> Option<&'static GrpcWebType> {
        exchange.notes.read(self.note).map(|[number, ..]| &FORMS[number as usize])
    }

    /// If the upstream has not answered, the response is that of a failed gRPC call: 200, with the status in its head.
    fn respond_with_grpc_error(&self, exchange: &mut Exchange) {
        let Some(ending) = exchange.stop().map(Stop::ending).filter(|ending| ending.blame == EndedBy::Upstream) else {
            return;
        };
        exchange.respond(200, "application/grpc", b"");
        let head = &mut exchange.response.head;
        head.add(b"grpc-status", b"14").expect("constant and valid");
        head.add(b"grpc-message", ending.name.as_bytes()).expect("a word");
    }

    /// Gives the refusal of a call the content that clients of gRPC-Web read: a frame of trailers. A plugin may have refused it
    /// before this one has seen it.
    fn explain_refusal(&self, exchange: &mut Exchange) -> Result<(), BadField> {
        let is_refusal = exchange.response.status >= 400 && exchange.is_answered_here() && !exchange.response.is_grpc();
        let noted = exchange.notes.read(self.note).map(|[number, ..]| number as usize);
        let Some(form) = noted.or_else(|| requested(exchange)).filter(|_| is_refusal).map(|number| &FORMS[number])
        else {
            return Ok(());
        };
        let mut trailers = Trailers::default();
        trailers.add(b"grpc-status", grpc_status(exchange.response.status))?;
        trailers.add(b"grpc-message", message_of(exchange).as_bytes())?;
        let mut encoder = TrailerEncoder { text: form.text, kept: Vec::new() };
        encoder.trailers(&mut trailers);
        exchange.body.clear();
        encoder.write(&mut exchange.body);
        exchange.notes.write(self.refused, [0; 3]);
        exchange.response.head.set(b"Content-Type", form.web.as_bytes())
    }

    /// Adds the fields that allow web pages to read the response.
    fn allow(&self, exchange: &mut Exchange) -> Result<(), BadField> {
        if cors::has_refused(exchange) {
            return Ok(());
        }
        let is_preflight = exchange.request.method == Method::Options;
        let head = &mut exchange.response.head;
        if is_preflight {
            head.set(b"Access-Control-Allow-Methods", b"POST, OPTIONS")?;
            head.set(b"Access-Control-Allow-Headers", self.allowed_headers.as_bytes())?;
        }
        if head.value(b"access-control-allow-origin").is_none() {
            head.add(b"Access-Control-Allow-Origin", b"*")?;
        }
        head.set(b"Access-Control-Expose-Headers", b"grpc-message,grpc-status")
    }
}

/// The index of the form that the request has; `None` if it is no call of gRPC-Web.
fn requested(exchange: &Exchange) -> Option<usize> {
    let value = content_type::of(&exchange.request.head).ok().flatten().unwrap_or_default();
    let is_call = exchange.request.method == Method::Post;
    FORMS.iter().position(|form| is_call && content_type::is(value, form.web))
}

/// The gRPC status for a status of HTTP ("HTTP to gRPC Status Code Mapping").
fn grpc_status(status: u16) -> &'static [u8] {
    match status {
        400 => b"13",
        401 => b"16",
        403 => b"7",
        404 => b"12",
        429 | 502 | 503 | 504 => b"14",
        _ => b"2",
    }
}

/// What a refusal says, percent-encoded as in `grpc-message`.
fn message_of(exchange: &Exchange) -> String {
    let said = serde_json::from_slice::<Value>(&exchange.body).ok();
    let member = |name: &str| said.as_ref()?.get(name)?.as_str();
    match member("error_msg").or_else(|| member("message")) {
        Some(text) => utf8_percent_encode(text, MESSAGE).to_string(),
        None => format!("HTTP status {}", exchange.response.status),
    }
}

/// What `grpc-message` escapes: everything but printable ASCII, and the percent sign.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// The last two segments of a path, `/Service/Method`.
fn call(path: &[u8]) -> Option<&[u8]> {
    let last_slash = |path: &[u8]| path.iter().rposition(|&byte| byte == b'/');
    let method = last_slash(path)?;
    let service = last_slash(&path[..method])?;
    (service + 1 < method && method + 1 < path.len()).then(|| &path[service..])
}

/// Decodes base64. Each message may have been encoded separately, so padding may follow any group of four.
#[derive(Default)]
pub struct Base64Decoder {
    /// The bytes of an incomplete group.
    kept: Vec<u8>,
}

/// The stop for content that is not base64.
const BROKEN: Stop = Stop::Respond(400);

impl Filter for Base64Decoder {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        self.kept.extend_from_slice(piece);
        let whole = self.kept.len() - self.kept.len() % 4;
        let mut groups = &self.kept[..whole];
        while !groups.is_empty() {
            let padding = groups.iter().position(|&byte| byte == b'=').unwrap_or(groups.len() - 1);
            let (coded, others) = groups.split_at((padding / 4 + 1) * 4);
            STANDARD.decode_vec(coded, out).map_err(|_| BROKEN)?;
            groups = others;
        }
        self.kept.drain(..whole);
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<(), Stop> {
        if self.kept.is_empty() { Ok(()) } else { Err(BROKEN) }
    }
}

/// Appends the trailers to the content as its last frame, and encodes the content in base64 if it is text.
struct TrailerEncoder {
    text: bool,
    /// In text, the bytes of an incomplete group of three; at the end, the frame of trailers.
    kept: Vec<u8>,
}

impl Filter for TrailerEncoder {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        if !self.text {
            out.extend_from_slice(piece);
            return Ok(());
        }
        self.kept.extend_from_slice(piece);
        let whole = self.kept.len() - self.kept.len() % 3;
        encode(&self.kept[..whole], out);
        self.kept.drain(..whole);
        Ok(())
    }

    /// Pads an incomplete group, which is allowed anywhere: the client must be able to decode a message once its last
    /// byte has arrived.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        encode(&self.kept, out);
        self.kept.clear();
        Ok(())
    }

    fn trailers(&mut self, trailers: &mut Trailers) {
        let taken = std::mem::take(trailers);
        let mut lines = Vec::new();
        for (name, value) in taken.fields() {
            lines.extend(name.iter().map(u8::to_ascii_lowercase));
            lines.push(b':');
            lines.extend_from_slice(value);
            lines.extend_from_slice(b"\r\n");
        }
        if !taken.fields().any(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status")) {
            lines.extend_from_slice(b"grpc-status:2\r\ngrpc-message:the upstream sent no grpc-status\r\n");
        }
        self.kept.push(TRAILERS);
        let length = u32::try_from(lines.len()).expect("the size limit of message heads also applies to trailers");
        self.kept.extend_from_slice(&length.to_be_bytes());
        self.kept.append(&mut lines);
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.write(out);
        Ok(())
    }
}

impl TrailerEncoder {
    /// Writes what is kept.
    fn write(&mut self, out: &mut Vec<u8>) {
        match self.text {
            true => encode(&self.kept, out),
            false => out.extend_from_slice(&self.kept),
        }
        self.kept.clear();
    }
}

/// The first byte of the frame that holds trailers.
const TRAILERS: u8 = 0x80;

fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    STANDARD.encode_slice(bytes, &mut out[start..]).expect("there is room for every group");
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_plugin::proto::Version;

    use super::*;
    use crate::testing::{body, build, exchange, on_request, refused, sent};

    fn post(path: &str, content_type: &str) -> Exchange {
        exchange(&format!("POST {path} HTTP/1.1\nHost: h\nContent-Type: {content_type}\nContent-Length: 5"))
    }

    /// Whether the request's content is filtered, and whether the response's is.
    fn filters(step: &Arc<dyn Plugin>, exchange: &mut Exchange) -> (bool, bool) {
        let request = step.request_filter(exchange).expect("asked").is_some();
        (request, step.response_filter(exchange).expect("asked").is_some())
    }

    fn answered(content_type: &str) -> (Arc<dyn Plugin>, Exchange) {
        let (step, mut exchange) = (build::<GrpcWeb>(json!({})), post("/s/m", content_type));
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        exchange.response.set_status(200);
        exchange.response.framing = Framing::UntilClose;
        exchange.response.head.add(b"Content-Type", b"application/grpc").expect("valid");
        step.on_response(&mut exchange).expect("let through");
        (step, exchange)
    }

    #[test]
    fn a_call_becomes_one_of_grpc() {
        for (web, plain, text) in [
            ("application/grpc-web", "application/grpc", false),
            ("application/grpc-web+proto", "application/grpc+proto", false),
            ("Application/gRPC-Web+JSON ; a=b", "application/grpc+json", false),
            ("application/grpc-web-text", "application/grpc", true),
            ("application/grpc-web-text+proto", "application/grpc+proto", true),
        ] {
            let (step, mut exchange) = answered(web);
            let request = &exchange.request;
            assert_eq!(request.head.value(b"content-type"), Some(plain.as_bytes()), "{web}");
            assert!(request.takes_trailers && request.is_grpc() && request.version == Version::Http11);
            let said = web.split(' ').next().map(str::to_ascii_lowercase);
            assert_eq!(sent(&exchange, "content-type"), said.as_deref(), "{web}");
            assert_eq!(sent(&exchange, "access-control-allow-origin"), Some("*"));
            assert_eq!(sent(&exchange, "access-control-expose-headers"), Some("grpc-message,grpc-status"));
            assert_eq!(filters(&step, &mut exchange), (text, true), "{web}");
        }
    }

    #[test]
    fn the_end_of_the_path_names_the_call() {
        for (path, want) in [
            ("/a.B/C", "/a.B/C"),
            ("/web/v1/a.B/C", "/a.B/C"),
            ("/web/a.B/C?x=1", "/a.B/C"),
            ("/C", ""),
            ("/", ""),
            ("/a.B/", ""),
        ] {
            let (step, mut exchange) = (build::<GrpcWeb>(json!({})), post(path, "application/grpc-web"));
            match want {
                "" => {
                    assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered), "{path}");
                    assert_eq!(exchange.response.status, 400);
                }
                _ => {
                    assert_eq!(on_request(&step, &mut exchange), Ok(()), "{path}");
                    assert_eq!(exchange.request.path(), want.as_bytes());
                    assert_eq!(exchange.request.query().is_some(), path.contains('?'));
                }
            }
        }
    }

    #[test]
    fn request_that_is_no_grpc_web_call_is_refused() {
        let step = build::<GrpcWeb>(json!({"max_req_body_size": 4}));
        for (method, content_type, status) in [
            ("GET", "application/grpc-web", 405),
            ("PUT", "application/grpc-web", 405),
            ("POST", "application/grpc", 415),
            ("POST", "application/grpc-webby", 415),
            ("POST", "text/plain", 415),
        ] {
            let mut exchange = exchange(&format!("{method} /s/m HTTP/1.1\nHost: h\nContent-Type: {content_type}"));
            assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered), "{method} {content_type}");
            assert_eq!(exchange.response.status, status, "{method} {content_type}");
            assert!(body(&exchange).contains("error_msg"));
            assert_eq!(sent(&exchange, "allow"), (status == 405).then_some("POST, OPTIONS"));
            step.on_response(&mut exchange).expect("let through");
            assert_eq!(sent(&exchange, "access-control-allow-origin"), Some("*"), "a page may read why");
            assert_eq!(sent(&exchange, "content-type"), Some("application/json"));
            assert!(!filters(&step, &mut exchange).1);
        }
        let mut large = post("/s/m", "application/grpc-web");
        assert_eq!(on_request(&step, &mut large), Err(Stop::BodyTooLarge));
    }

    #[test]
    fn preflights_are_answered_here() {
        let step = build::<GrpcWeb>(json!({"cors_allow_headers": "x-a,grpc-timeout"}));
        let mut exchange = exchange("OPTIONS /s/m HTTP/1.1\nHost: h\nOrigin: http://a.com");
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        step.on_response(&mut exchange).expect("let through");
        assert_eq!((exchange.response.status, body(&exchange)), (204, ""));
        assert_eq!(sent(&exchange, "access-control-allow-methods"), Some("POST, OPTIONS"));
        assert_eq!(sent(&exchange, "access-control-allow-headers"), Some("x-a,grpc-timeout"));
        assert_eq!(sent(&exchange, "access-control-allow-origin"), Some("*"));
    }

    #[test]
    fn the_plugin_cors_decides_where_it_is() {
        let step = build::<GrpcWeb>(json!({}));
        let cors = build::<cors::Cors>(json!({"allow_origins": "http://a.com"}));
        for (origin, allowed) in [("http://a.com", Some("http://a.com")), ("http://b.com", None)] {
            let mut exchange = exchange(&format!("POST /s/m HTTP/1.1\nHost: h\nOrigin: {origin}"));
            cors.on_response(&mut exchange).expect("let through");
            step.on_response(&mut exchange).expect("let through");
            assert_eq!(sent(&exchange, "access-control-allow-origin"), allowed, "{origin}");
        }
    }

    #[test]
    fn a_call_that_ends_with_its_head_stays_so() {
        let (step, mut exchange) = answered("application/grpc-web-text");
        exchange.response.framing = Framing::Sized(0);
        assert!(filters(&step, &mut exchange).1, "nothing has been said of its end");
        exchange.response.head.add(b"grpc-status", b"12").expect("valid");
        assert!(!filters(&step, &mut exchange).1);
    }

    #[test]
    fn an_upstream_that_is_not_there_is_unavailable() {
        let (step, mut exchange) = answered("application/grpc-web+proto");
        exchange.end_by(Stop::ConnectFailed);
        exchange.respond(502, "text/plain", b"502 Bad Gateway");
        step.on_response(&mut exchange).expect("let through");
        assert_eq!((exchange.response.status, body(&exchange)), (200, ""));
        assert_eq!(sent(&exchange, "grpc-status"), Some("14"));
        assert_eq!(sent(&exchange, "grpc-message"), Some("connect_failed"));
        assert_eq!(sent(&exchange, "content-type"), Some("application/grpc-web+proto"));
    }

    #[test]
    fn a_refusal_of_another_plugin_is_a_frame_of_trailers() {
        for (was_seen, web, want) in [
            (true, "application/grpc-web+proto", "grpc-status:14\r\ngrpc-message:slow down: 100%25\r\n"),
            (false, "application/grpc-web-text", "grpc-status:14\r\ngrpc-message:slow down: 100%25\r\n"),
        ] {
            let (step, mut exchange) = (build::<GrpcWeb>(json!({})), post("/s/m", web));
            if was_seen {
                assert_eq!(on_request(&step, &mut exchange), Ok(()));
            }
            exchange.respond(429, "application/json", br#"{"error_msg":"slow down: 100%"}"#);
            exchange.response.head.add(b"Retry-After", b"1").expect("valid");
            step.on_response(&mut exchange).expect("let through");
            assert_eq!((exchange.response.status, sent(&exchange, "content-type")), (429, Some(web)));
            assert_eq!(sent(&exchange, "retry-after"), Some("1"));
            let frame = if was_seen { exchange.body.clone() } else { decoded(&[body(&exchange)]).expect("base64") };
            assert_eq!((frame[0], &frame[1..5]), (TRAILERS, &(want.len() as u32).to_be_bytes()[..]), "{web}");
            assert_eq!(str::from_utf8(&frame[5..]), Ok(want));
            assert!(!filters(&step, &mut exchange).1, "its content is complete");
        }
    }

    fn decoded(pieces: &[&str]) -> Result<Vec<u8>, Stop> {
        let (mut decoder, mut out) = (Base64Decoder::default(), Vec::new());
        pieces.iter().try_for_each(|piece| decoder.piece(piece.as_bytes(), &mut out))?;
        decoder.end(&mut out).map(|()| out)
    }

    #[test]
    fn text_is_decoded_wherever_it_is_cut() {
        let text = "AAAAAAE=Ag==AAAAAAID";
        let want = [0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 3];
        for cut in 0..=text.len() {
            let (first, second) = text.split_at(cut);
            assert_eq!(decoded(&[first, second]).as_deref(), Ok(&want[..]), "{cut}");
        }
        let single: Vec<&str> = text.split_inclusive(|_| true).collect();
        assert_eq!(decoded(&single).as_deref(), Ok(&want[..]));
        assert_eq!(decoded(&[]).as_deref(), Ok(&b""[..]));
        for broken in ["AAA", "AAAA=", "A=AA", "====", "AAA*", "AA==A", "AA\r\n", "AB=="] {
            assert_eq!(decoded(&[broken]), Err(BROKEN), "{broken}");
        }
    }

    fn trailers(fields: &[(&str, &str)]) -> Trailers {
        let mut trailers = Trailers::default();
        for (name, value) in fields {
            trailers.add(name.as_bytes(), value.as_bytes()).expect("valid");
        }
        trailers
    }

    /// The output for these pieces, each followed by a flush, and for trailers after them.
    fn encoded(text: bool, pieces: &[&[u8]], mut trailers: Trailers) -> Vec<u8> {
        let (mut encoder, mut out) = (TrailerEncoder { text, kept: Vec::new() }, Vec::new());
        for piece in pieces {
            encoder.piece(piece, &mut out).expect("taken");
            encoder.flush(&mut out).expect("flushed");
        }
        encoder.trailers(&mut trailers);
        encoder.end(&mut out).expect("ended");
        assert_eq!(trailers, Trailers::default(), "nothing is left to follow");
        out
    }

    #[test]
    fn trailers_are_the_last_frame() {
        let fields = [("Grpc-Status", "0"), ("x-sum", "7")];
        let want = b"\0\0\0\0\x01a\x80\0\0\0\x18grpc-status:0\r\nx-sum:7\r\n";
        assert_eq!(encoded(false, &[b"\0\0\0\0\x01", b"a"], trailers(&fields)), want);
        let text = encoded(true, &[b"\0\0\0\0\x01", b"a"], trailers(&fields));
        let text = str::from_utf8(&text).expect("it is text");
        assert!(text.starts_with("AAAAAAE=YQ=="), "{text}");
        assert_eq!(decoded(&[text]).as_deref(), Ok(&want[..]));
    }

    #[test]
    fn an_end_without_an_outcome_is_one_too() {
        let out = encoded(false, &[], trailers(&[("x-sum", "7")]));
        let lines = str::from_utf8(&out[5..]).expect("text");
        assert!(lines.starts_with("x-sum:7\r\ngrpc-status:2\r\ngrpc-message:"), "{lines}");
        assert_eq!(usize::from(out[4]), lines.len());
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"cors_allow_headers": "a\r\nb"}), "cors_allow_headers: has a character"),
            (json!({"strip_path": true}), "the option `strip_path` is not known"),
        ] {
            let error = refused::<GrpcWeb>(options);
            assert!(error.contains(want), "{error}");
        }
    }
}
