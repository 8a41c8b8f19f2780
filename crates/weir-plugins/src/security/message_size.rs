use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::Framing;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Filter, Flow, Phases, Plugin, Stage, Stop};

/// Sets a maximum and a minimum size for request and response bodies.
///
/// A message with a `Content-Length` out of range is refused before any of it is forwarded: a request with 413 (too
/// large) or 400 (too small), a response with 502. A body of unknown length is counted while it is forwarded. If it
/// becomes too large or ends too early, the message is aborted, so its receiver can tell that it is incomplete.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageSize {
    /// The size of request bodies, in bytes.
    #[serde(default)]
    request: SizeRange,
    /// The size of response bodies, in bytes.
    #[serde(default)]
    response: SizeRange,
}

/// From and to, both included, in bytes as they are sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SizeRange {
    /// The minimum size of a body, in bytes.
    #[serde(default)]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    min: u64,
    /// The maximum size of a body, in bytes. Without it there is no maximum.
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max: Option<u64>,
}

impl Definition for MessageSize {
    const NAME: &'static str = "message-size";
    const PRIORITY: i32 = 2890;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "message-size: { request: { max: 1048576 }, response: { max: 16777216 } }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        for (name, range) in [("request", self.request), ("response", self.response)] {
            if range.max.is_some_and(|max| max < range.min) {
                build.fault(format!("{name}.max"), "is less than `min`");
            }
        }
        if self.request == SizeRange::default() && self.response == SizeRange::default() {
            build.warnings.push(ConfigError::new("", "has neither `min` nor `max`, so it limits nothing"));
        }
        Ok(Arc::new(self))
    }
}

impl SizeRange {
    fn is_over(&self, length: u64) -> bool {
        self.max.is_some_and(|max| length > max)
    }

    fn count(self, too_large: Stop, too_small: Stop) -> Option<Box<dyn Filter>> {
        match self == SizeRange::default() {
            true => None,
            false => Some(Box::new(SizeLimitFilter { range: self, so_far: 0, too_large, too_small })),
        }
    }
}

/// The request is smaller than the minimum.
const TOO_SMALL: Stop = Stop::Respond(400);

impl Plugin for MessageSize {
    fn phases(&self) -> Phases {
        let request = Phases::REQUEST.and(Phases::REQUEST_BODY);
        let response = Phases::RESPONSE.and(Phases::RESPONSE_BODY);
        match (self.request == SizeRange::default(), self.response == SizeRange::default()) {
            (false, true) => request,
            (true, false) => response,
            _ => request.and(response),
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let length = match exchange.request.framing {
            Framing::None => 0,
            Framing::Sized(length) => length,
            Framing::Chunked | Framing::UntilClose => return Ok(Flow::Continue),
        };
        if self.request.is_over(length) {
            return Err(Stop::BodyTooLarge);
        }
        if length < self.request.min { Err(TOO_SMALL) } else { Ok(Flow::Continue) }
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        match exchange.request.framing {
            // Another plugin may have buffered it by now, so that its length is known.
            Framing::Sized(_) => self.on_request(exchange).map(|_| None),
            _ => Ok(self.request.count(Stop::BodyTooLarge, TOO_SMALL)),
        }
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        // The gateway's own responses are not limited.
        if exchange.is_answered_here() {
            return Ok(());
        }
        match exchange.response.framing {
            Framing::Sized(length) if self.response.is_over(length) => Err(Stop::ResponseTooLarge),
            Framing::Sized(length) if length < self.response.min => Err(Stop::Respond(502)),
            _ => Ok(()),
        }
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        match exchange.response.framing {
            Framing::Chunked | Framing::UntilClose => {
                Ok(self.response.count(Stop::ResponseTooLarge, Stop::UpstreamAborted))
            }
            // Another plugin may have buffered it by now, so that its length is known.
            Framing::Sized(_) => self.on_response(exchange).map(|_| None),
            Framing::None => Ok(None),
        }
    }
}

/// Limits content whose length is not known in advance.
struct SizeLimitFilter {
    range: SizeRange,
    so_far: u64,
    too_large: Stop,
    too_small: Stop,
}

impl Filter for SizeLimitFilter {
    fn observe(&mut self, piece: &[u8]) -> Result<(), Stop> {
        self.so_far += piece.len() as u64;
        if self.range.is_over(self.so_far) { Err(self.too_large) } else { Ok(()) }
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<(), Stop> {
        if self.so_far < self.range.min { Err(self.too_small) } else { Ok(()) }
    }

    fn is_observer(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{build, exchange, on_request, refused};

    #[test]
    fn declared_lengths_are_looked_at() {
        let step = build::<MessageSize>(json!({"request": {"min": 2, "max": 10}, "response": {"min": 1, "max": 5}}));
        for (length, want) in [(1, Err(TOO_SMALL)), (2, Ok(())), (10, Ok(())), (11, Err(Stop::BodyTooLarge))] {
            let mut exchange = exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Length: {length}"));
            assert_eq!(on_request(&step, &mut exchange), want, "{length}");
        }
        assert_eq!(on_request(&step, &mut exchange("GET / HTTP/1.1\nHost: h")), Err(TOO_SMALL));
        for (length, want) in [(0, Err(Stop::Respond(502))), (5, Ok(())), (6, Err(Stop::ResponseTooLarge))] {
            let mut exchange = exchange("GET / HTTP/1.1\nHost: h");
            exchange.response.framing = Framing::Sized(length);
            assert_eq!(step.on_response(&mut exchange), Ok(()), "an answer of the gateway");
            exchange.upstream.status = 200;
            assert_eq!(step.on_response(&mut exchange), want, "{length}");
        }
    }

    #[test]
    fn other_content_is_counted() {
        let step = build::<MessageSize>(json!({"request": {"min": 2, "max": 4}}));
        let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nTransfer-Encoding: chunked");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        for (pieces, want) in
            [(&["12", "34"][..], Ok("1234")), (&["1"], Err(TOO_SMALL)), (&["123", "45"], Err(Stop::BodyTooLarge))]
        {
            let Ok(Some(mut filter)) = step.request_filter(&mut exchange) else { panic!("it counts") };
            let mut out = Vec::new();
            let end = pieces.iter().try_for_each(|piece| filter.piece(piece.as_bytes(), &mut out));
            let end = end.and_then(|()| filter.end(&mut out));
            assert_eq!(end.map(|()| String::from_utf8(out).expect("text")), want.map(str::to_owned));
        }
        assert!(!step.phases().response && !step.phases().response_body);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"request": {"min": 2, "max": 1}}), "request.max: is less than `min`"),
            (json!({"response": {"most": 1}}), "response.most: the option `most` is not known"),
        ] {
            let error = refused::<MessageSize>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
