//! Records the content of requests and responses for the loggers, without changing it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_plugin::{Build, ConfigError, Exchange, Expression, Filter, NoteKey, Phases};
use weir_records::Attachment;

use crate::content::body_recorder::BodyRecorder;
use crate::log::capture::{REQUEST_BODY, REQUEST_BODY_OMITTED, RESPONSE_BODY};

/// Whether records say what exchanges carried.
#[derive(Deserialize, JsonSchema)]
pub struct BodyOptions {
    /// Adds the request body to the record, as `request.body`. Has no effect with a `log_format`.
    #[serde(default)]
    include_req_body: bool,
    /// An expression, such as `[[request_method, "==", "POST"]]`. The request body is recorded only if the expression
    /// is true.
    include_req_body_expr: Option<Value>,
    /// Adds the response body to the record, as `response.body`. Has no effect with a `log_format`.
    #[serde(default)]
    include_resp_body: bool,
    /// An expression, such as `[[status, ">=", 400]]`. The response body is recorded only if the expression is true.
    include_resp_body_expr: Option<Value>,
    /// The maximum number of bytes of a request body in a record. Longer bodies are truncated.
    #[serde(default = "default_max_body_bytes")]
    #[schemars(range(min = 1))]
    max_req_body_bytes: usize,
    /// The maximum number of bytes of a response body in a record. Longer bodies are truncated.
    #[serde(default = "default_max_body_bytes")]
    #[schemars(range(min = 1))]
    max_resp_body_bytes: usize,
}

fn default_max_body_bytes() -> usize {
    512 * 1024
}

/// The most bytes of content in one record.
const MOST: usize = 64 << 20;

/// The recording of one direction.
struct BodyCapture {
    key: NoteKey,
    only: Option<Expression>,
    most: usize,
}

/// The content that a logger records.
pub struct BodyCaptures {
    request: Option<BodyCapture>,
    response: Option<BodyCapture>,
}

impl BodyCapture {
    fn compile(
        include: bool,
        only: Option<&Value>,
        most: usize,
        names: [&str; 2],
        build: &mut Build,
    ) -> Result<Option<BodyCapture>, ConfigError> {
        let [only_name, most_name] = names;
        if !(1..=MOST).contains(&most) {
            return Err(ConfigError::new(most_name, format!("must be from 1 to {MOST}")));
        }
        let only = only.map(|only| build.condition_of_record(only, only_name)).transpose()?;
        Ok(include.then(|| BodyCapture { key: NoteKey::unique(), only, most }))
    }

    fn filter(&self, exchange: &mut Exchange) -> Option<Box<dyn Filter>> {
        let is_wanted = self.only.as_ref().is_none_or(|only| only.holds(&*exchange));
        is_wanted.then(|| BodyRecorder::filter(exchange.notes.keep(self.key, exchange.client.addr), self.most))
    }

    /// The recorded content with its memory permit, and whether it is incomplete.
    fn take(&self, exchange: &Exchange) -> Option<(Attachment, bool)> {
        let mut kept = exchange.notes.kept(self.key)?.borrow_mut();
        let is_cut = kept.is_cut() || !kept.has_ended() || kept.len() > self.most;
        let (mut bytes, held) = kept.take();
        bytes.truncate(self.most);
        Some((Attachment { bytes, _held: Box::new(held) }, is_cut))
    }
}

impl BodyCaptures {
    pub fn compile(options: &BodyOptions, build: &mut Build) -> Result<BodyCaptures, ConfigError> {
        let request = BodyCapture::compile(
            options.include_req_body,
            options.include_req_body_expr.as_ref(),
            options.max_req_body_bytes,
            ["include_req_body_expr", "max_req_body_bytes"],
            build,
        )?;
        let response = BodyCapture::compile(
            options.include_resp_body,
            options.include_resp_body_expr.as_ref(),
            options.max_resp_body_bytes,
            ["include_resp_body_expr", "max_resp_body_bytes"],
            build,
        )?;
        Ok(BodyCaptures { request, response })
    }

    pub fn phases(&self) -> Phases {
        Phases { request_body: self.request.is_some(), response_body: self.response.is_some(), ..Phases::LOG }
    }

    pub fn request_filter(&self, exchange: &mut Exchange) -> Option<Box<dyn Filter>> {
        self.request.as_ref()?.filter(exchange)
    }

    pub fn response_filter(&self, exchange: &mut Exchange) -> Option<Box<dyn Filter>> {
        self.response.as_ref()?.filter(exchange)
    }

    /// The number of recorded bytes of an exchange.
    pub fn kept_bytes(&self, exchange: &Exchange) -> usize {
        let wanted = [&self.request, &self.response].into_iter().flatten();
        wanted.map(|wanted| exchange.notes.kept_bytes(wanted.key)).sum()
    }

    /// The recorded content of request and response, and the flags of those that are present.
    pub fn take(&self, exchange: &Exchange) -> (u8, Vec<Attachment>) {
        let (mut flags, mut attachments) = (0, Vec::new());
        if let Some((kept, is_cut)) = self.request.as_ref().and_then(|capture| capture.take(exchange)) {
            match exchange.masked_body(kept.bytes, is_cut) {
                Some(bytes) => {
                    flags |= REQUEST_BODY;
                    attachments.push(Attachment { bytes, ..kept });
                }
                None => flags |= REQUEST_BODY_OMITTED,
            }
        }
        if let Some((kept, _)) = self.response.as_ref().and_then(|capture| capture.take(exchange)) {
            flags |= RESPONSE_BODY;
            attachments.push(kept);
        }
        (flags, attachments)
    }
}
