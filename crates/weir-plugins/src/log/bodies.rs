//! Records the content of requests and responses for the loggers, without changing it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::proto::{Framing, Head};
use weir_plugin::{AllOf, Build, ConfigError, ContentBuffer, Exchange, Expression, Filter, Held, NoteKey, Phases};
use weir_records::{Attachment, SinkWriter};

use crate::content::body_recorder::BodyRecorder;
use crate::content::coding::{self, ContentCoding, DecodedEnd};
use crate::log::capture::{
    BODIES_OMITTED, REQUEST_BODY, REQUEST_BODY_CODED, REQUEST_BODY_OMITTED, RESPONSE_BODY, RESPONSE_BODY_CODED,
};
use crate::log::decoding;

/// Whether records say what exchanges carried.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct BodyOptions {
    /// Adds the request body to the record, as `request.body`. Has no effect with a `log_format`.
    #[serde(default)]
    include_req_body: bool,
    /// An expression, such as `[[request_method, "==", "POST"]]`. The request body is recorded only if the expression
    /// is true.
    #[schemars(extend("x-weir-only-if" = { "include_req_body": [true] }))]
    include_req_body_expr: Option<Value>,
    /// Adds the response body to the record, as `response.body`. Has no effect with a `log_format`.
    #[serde(default)]
    include_resp_body: bool,
    /// An expression, such as `[[status, ">=", 400]]`. The response body is recorded only if the expression is true.
    #[schemars(extend("x-weir-only-if" = { "include_resp_body": [true] }))]
    include_resp_body_expr: Option<Value>,
    /// The maximum number of bytes of a request body in a record. Longer bodies are truncated.
    #[serde(default = "default_max_body_bytes")]
    #[schemars(extend("x-weir-only-if" = { "include_req_body": [true] }))]
    #[schemars(range(min = 1, max = MOST))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_bytes: usize,
    /// The maximum number of bytes of a response body in a record. Longer bodies are truncated.
    #[serde(default = "default_max_body_bytes")]
    #[schemars(extend("x-weir-only-if" = { "include_resp_body": [true] }))]
    #[schemars(range(min = 1, max = MOST))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_resp_body_bytes: usize,
    /// Decodes recorded bodies whose `Content-Encoding` is `gzip`, `deflate` or `br`, outside of the worker. The limits
    /// above apply to the decoded body as well. `body_decoded` in the record names the coding. If a body can be decoded in
    /// part only, this part is recorded, and `body_fault` says why: `truncated`, `corrupt` or `too long`. Not in APISIX.
    #[serde(default)]
    decode_body: bool,
}

fn default_max_body_bytes() -> usize {
    512 * 1024
}

/// What a record takes beside its content: seldom more.
const REST_BYTES: u64 = 16 << 10;

/// The most bytes of content in one record.
const MOST: usize = 64 << 20;

/// The recording of one direction.
struct BodyCapture {
    key: NoteKey,
    only: Option<Expression>,
    most: usize,
    decodes: bool,
}

/// The content that a logger records.
pub(crate) struct BodyCaptures {
    request: Option<BodyCapture>,
    response: Option<BodyCapture>,
}

impl BodyCapture {
    fn compile(
        include: bool,
        only: Option<&Value>,
        (most, decodes): (usize, bool),
        only_name: &str,
        build: &mut Build,
    ) -> Result<Option<BodyCapture>, ConfigError> {
        let only = only.map(|only| build.condition_of_record(only, only_name)).transpose()?;
        Ok(include.then(|| BodyCapture { key: NoteKey::unique(), only, most, decodes }))
    }

    /// Records the content, unless the sink has no room for it: copying what is dropped in the end would only cost time.
    fn filter(&self, exchange: &mut Exchange, framing: Framing, sink: &SinkWriter) -> Option<Box<dyn Filter>> {
        // A batch: each request in it has a record, with the masks of its own route, which do not know this body.
        if exchange.responder().is_some_and(|responder| responder.asks_gateway()) {
            return None;
        }
        if self.only.as_ref().is_some_and(|only| !only.holds(&*exchange)) {
            return None;
        }
        let expected = match framing {
            Framing::Sized(length) => length.min(self.most as u64),
            Framing::None | Framing::Chunked | Framing::UntilClose => 0,
        };
        if !sink.has_room(expected + REST_BYTES) {
            exchange.notes.write(self.key, [1, 0, 0]);
            return None;
        }
        Some(BodyRecorder::filter(exchange.notes.keep(self.key, exchange.client.addr), self.most, framing))
    }

    /// The sink had no room for the content.
    fn was_omitted(&self, exchange: &Exchange) -> bool {
        exchange.notes.read(self.key).is_some()
    }

    /// The recorded content of a message with this head.
    fn take(&self, exchange: &Exchange, head: &Head) -> Option<TakenBody> {
        let mut kept = exchange.notes.kept(self.key)?.borrow_mut();
        let is_cut = kept.is_cut() || !kept.has_ended() || kept.len() > self.most;
        let (mut bytes, held) = kept.take();
        bytes.truncate(self.most);
        let coding = ContentCoding::of(head).ok().flatten().filter(|_| self.decodes && !bytes.is_empty());
        Some(TakenBody { content: CountedContent { bytes, held }, is_cut, coding, most: self.most })
    }
}

/// Recorded content.
struct TakenBody {
    content: CountedContent,
    /// The content is incomplete.
    is_cut: bool,
    /// The coding that is to be decoded.
    coding: Option<ContentCoding>,
    /// The most bytes in the record.
    most: usize,
}

/// Content whose memory is counted for as long as it is held.
struct CountedContent {
    bytes: ContentBuffer,
    held: Held,
}

impl AsRef<[u8]> for CountedContent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl TakenBody {
    /// With its masks, decoded first: a mask reads no coding. `None` if it cannot be masked reliably.
    fn masked(mut self, exchange: &Exchange) -> Option<TakenBody> {
        if let Some(coding) = self.coding {
            // No more than a mask can read, since the worker serves no other request meanwhile.
            let most = self.most.min(exchange.most_masked_bytes());
            let (bytes, end) = coding::decoded(coding, &self.content.bytes, most as u64);
            if end != DecodedEnd::Complete {
                return None;
            }
            // Without a permit for it, the content is as good as cut.
            self.is_cut |= self.content.held.set(bytes.len() as u64).is_err();
            self.content.bytes = bytes.into();
        }
        let bytes = std::mem::take(&mut *self.content.bytes);
        self.content.bytes = exchange.masked_body(bytes, self.is_cut)?.into();
        Some(self)
    }

    /// `is_decoded`: it is decoded already.
    fn attach(self, is_decoded: bool) -> Attachment {
        let TakenBody { mut content, coding, most, .. } = self;
        match coding {
            Some(coding) if is_decoded => decoding::mark_decoded(&mut content.bytes, coding),
            Some(coding) => decoding::mark_coded(&mut content.bytes, coding, most),
            None => {}
        }
        Attachment::new(content)
    }
}

impl BodyCaptures {
    /// No content is recorded.
    pub(crate) fn none() -> BodyCaptures {
        BodyCaptures { request: None, response: None }
    }

    pub(crate) fn compile(options: &BodyOptions, build: &mut Build) -> Result<BodyCaptures, ConfigError> {
        let request = BodyCapture::compile(
            options.include_req_body,
            options.include_req_body_expr.as_ref(),
            (options.max_req_body_bytes, options.decode_body),
            "include_req_body_expr",
            build,
        );
        let response = BodyCapture::compile(
            options.include_resp_body,
            options.include_resp_body_expr.as_ref(),
            (options.max_resp_body_bytes, options.decode_body),
            "include_resp_body_expr",
            build,
        );
        let (request, response) = (request, response).all_of()?;
        Ok(BodyCaptures { request, response })
    }

    pub(crate) fn phases(&self) -> Phases {
        Phases { request_body: self.request.is_some(), response_body: self.response.is_some(), ..Phases::LOG }
    }

    pub(crate) fn request_filter(&self, exchange: &mut Exchange, sink: &SinkWriter) -> Option<Box<dyn Filter>> {
        self.request.as_ref()?.filter(exchange, exchange.request.framing, sink)
    }

    pub(crate) fn response_filter(&self, exchange: &mut Exchange, sink: &SinkWriter) -> Option<Box<dyn Filter>> {
        self.response.as_ref()?.filter(exchange, exchange.response.framing, sink)
    }

    /// The number of recorded bytes of an exchange.
    pub(crate) fn kept_bytes(&self, exchange: &Exchange) -> usize {
        let kept = |wanted: &Option<BodyCapture>| match wanted {
            Some(wanted) => exchange.notes.kept_bytes(wanted.key),
            None => 0,
        };
        kept(&self.request) + kept(&self.response)
    }

    /// The recorded content of request and response, and the flags of those that are present.
    pub(crate) fn take(&self, exchange: &Exchange) -> (u8, Vec<Attachment>) {
        if self.request.is_none() && self.response.is_none() {
            return (0, Vec::new());
        }
        let (mut flags, mut attachments) = (0, Vec::with_capacity(2));
        let mut attach = |body: TakenBody, is_decoded: bool, plain: u8, coded: u8| {
            flags |= if body.coding.is_some() { plain | coded } else { plain };
            attachments.push(body.attach(is_decoded));
        };
        let mut is_omitted = false;
        if let Some(body) = self.request.as_ref().and_then(|capture| capture.take(exchange, &exchange.request.head)) {
            let has_masks = exchange.masks_body();
            let body = if has_masks { body.masked(exchange) } else { Some(body) };
            match body {
                Some(body) => attach(body, has_masks, REQUEST_BODY, REQUEST_BODY_CODED),
                None => is_omitted = true,
            }
        }
        if let Some(body) = self.response.as_ref().and_then(|capture| capture.take(exchange, &exchange.response.head)) {
            attach(body, false, RESPONSE_BODY, RESPONSE_BODY_CODED);
        }
        if is_omitted {
            flags |= REQUEST_BODY_OMITTED;
        }
        if [&self.request, &self.response].into_iter().flatten().any(|capture| capture.was_omitted(exchange)) {
            flags |= BODIES_OMITTED;
        }
        (flags, attachments)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{IpAddr, Ipv4Addr};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use serde_json::json;

    use super::*;
    use crate::log::data_mask::DataMask;
    use crate::testing::{build, get};

    fn gzipped(content: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content.as_bytes()).expect("memory takes everything");
        encoder.finish().expect("memory takes everything")
    }

    /// What a record shows of content with a coding on a route with a mask for bodies of at most 50 bytes.
    fn masked(bytes: Vec<u8>) -> Option<String> {
        let rule = json!({"type": "body", "body_format": "json", "name": "$.p", "action": "replace", "value": "*"});
        let mask = build::<DataMask>(json!({"request": [rule], "max_body_size": 50}));
        let mut exchange = get("/");
        exchange.mask_copy_for_records(|exchange, shown| {
            mask.mask(exchange, shown);
            Ok::<_, ()>(())
        });
        let held = Held::of(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let content = CountedContent { bytes: bytes.into(), held };
        let body = TakenBody { content, is_cut: false, coding: Some(ContentCoding::Gzip), most: MOST };
        let masked = body.masked(exchange.shown());
        masked.map(|body| String::from_utf8(body.content.bytes.to_vec()).expect("text"))
    }

    #[test]
    fn content_that_cannot_be_decoded_completely_is_left_out_where_it_needs_masks() {
        let whole = gzipped(r#"{"p": "secret"}"#);
        assert_eq!(masked(whole.clone()).as_deref(), Some(r#"{"p": "*"}"#));
        assert_eq!(masked(whole[..whole.len() - 1].to_vec()), None, "truncated");
        assert_eq!(masked(b"secret".to_vec()), None, "nothing of it can be decoded");
        assert_eq!(masked(gzipped(&format!(r#"{{"p": "{}"}}"#, "s".repeat(50)))), None, "larger than the mask allows");
    }
}
