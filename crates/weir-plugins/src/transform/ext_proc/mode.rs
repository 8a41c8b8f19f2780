//! What of an exchange the service is sent.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Exchange;

use super::messages::ModeOverride;

/// Whether a head or trailers are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum HeaderMode {
    #[default]
    Default,
    Send,
    Skip,
}

/// How content is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum BodyMode {
    #[default]
    None,
    Streamed,
    Buffered,
    BufferedPartial,
    FullDuplexStreamed,
}

impl BodyMode {
    pub(super) fn number(self) -> i32 {
        self as i32
    }

    fn of(number: i32) -> Option<BodyMode> {
        use BodyMode::{Buffered, BufferedPartial, FullDuplexStreamed, None, Streamed};
        [None, Streamed, Buffered, BufferedPartial, FullDuplexStreamed].into_iter().find(|mode| mode.number() == number)
    }
}

/// What is sent of a request, or of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentParts {
    pub head: bool,
    pub content: BodyMode,
    pub trailers: bool,
}

impl SentParts {
    pub(super) const NOTHING: SentParts = SentParts { head: false, content: BodyMode::None, trailers: false };

    /// Something is sent after the head.
    pub(super) fn has_more(self) -> bool {
        self.content != BodyMode::None || self.trailers
    }
}

/// What is sent of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentModes {
    pub request: SentParts,
    pub response: SentParts,
}

impl SentModes {
    /// The modes for this exchange: what it does not have is not sent.
    pub(super) fn of(self, exchange: &Exchange) -> SentModes {
        let SentModes { mut request, mut response } = self;
        if !exchange.request.framing.has_body() {
            request = SentParts { head: request.head, ..SentParts::NOTHING };
        }
        if exchange.request.upgrade {
            // What follows a 101 is no content, and the response to an upgrade does not pass a responder.
            (request, response) = (SentParts { head: request.head, ..SentParts::NOTHING }, SentParts::NOTHING);
        }
        SentModes { request, response }
    }

    /// The head of the request cannot be answered before its content is sent.
    pub(super) fn answers_head_with_content(&self) -> bool {
        self.request.content == BodyMode::FullDuplexStreamed
    }

    /// Nothing is sent after the head of the request.
    pub(super) fn end_with_request_head(&self) -> bool {
        !self.request.has_more() && self.response == SentParts::NOTHING
    }

    /// The service changes what follows the head of the request.
    ///
    /// # Errors
    /// The number of a mode that is not known.
    pub(super) fn override_after_request(&mut self, by: &ModeOverride) -> Result<(), i32> {
        let mut changed = *self;
        changed.request.content = BodyMode::of(by.request_body).ok_or(by.request_body)?;
        changed.request.trailers = is_sent(by.request_trailers, false)?;
        changed.response.head = is_sent(by.response_headers, true)?;
        changed.override_after_response(by)?;
        *self = changed;
        Ok(())
    }

    /// The same for the head of the response.
    ///
    /// # Errors
    /// The number of a mode that is not known.
    pub(super) fn override_after_response(&mut self, by: &ModeOverride) -> Result<(), i32> {
        let content = BodyMode::of(by.response_body).ok_or(by.response_body)?;
        (self.response.trailers, self.response.content) = (is_sent(by.response_trailers, false)?, content);
        Ok(())
    }
}

fn is_sent(mode: i32, by_default: bool) -> Result<bool, i32> {
    match mode {
        0 => Ok(by_default),
        1 => Ok(true),
        2 => Ok(false),
        other => Err(other),
    }
}

impl HeaderMode {
    pub(super) fn is_sent(self, by_default: bool) -> bool {
        match self {
            HeaderMode::Default => by_default,
            HeaderMode::Send => true,
            HeaderMode::Skip => false,
        }
    }
}
