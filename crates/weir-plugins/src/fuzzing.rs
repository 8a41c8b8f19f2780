//! The parsers of this crate that the targets in `fuzz/` exercise.

pub use crate::content::{graphql, json, xml};
use http::Response;
use hyper::body::Bytes;
use weir_otlp::answer::{ExportAnswer, ExportItems};
use weir_records::SendOutcome;

use crate::content::chat::ChatBody;
use crate::log::elasticsearch_logger;
pub use crate::observe::trace::{b3, sw8, w3c};
use crate::security::oas_validator;
pub use crate::traffic::proxy_cache::{CacheReading, read_response as read_cached_response};
pub use crate::transform::body_transformer::decoding::InputFormat;
pub use crate::transform::body_transformer::{BodyTemplate, Scene, SceneVariables};
pub use crate::transform::grpc_transcode::fuzzing::TranscodedCall;
pub use crate::transform::grpc_web::Base64Decoder as GrpcWebDecoder;
pub use weir_otlp::grpc::delay_of as grpc_retry_delay;
pub use weir_otlp::messages::rejected as otlp_rejected;

/// The faults of a definition of OpenAPI for `oas-validator`, with the responses of its operations or without, as one that is read from a
/// server.
pub fn compiled_definition(text: &str, with_responses: bool) -> Result<(), Vec<String>> {
    oas_validator::compiled(text.to_owned(), with_responses).map_err(|fault| vec![fault])
}

/// The number of messages of a body in OpenAI's chat format, and the body with others before and after them; `None` if it is no such
/// body, or has no messages.
pub fn chat_with_messages(body: &[u8], before: &str, after: &str) -> Option<(usize, Vec<u8>)> {
    let chat = ChatBody::read(body).ok()?;
    let count = chat.value().ok()?.get("messages")?.as_array()?.len();
    // Those that cannot be told are refused by the plugins.
    if let Ok(messages) = chat.messages() {
        assert_eq!(messages?.len(), count);
    }
    Some((count, chat.with_messages(before, after)?))
}

/// For how many records the answer to a bulk request has an outcome; `None` if it has one outcome for all of them.
pub fn bulk_outcomes(answer: &[u8], count: usize) -> Option<usize> {
    told(&elasticsearch_logger::judge(&Response::new(Bytes::copy_from_slice(answer)), count))
}

/// The same for the answer of an OpenTelemetry collector.
pub fn otlp_outcomes(answer: &[u8], count: usize) -> Option<usize> {
    let answer = Response::new(Bytes::copy_from_slice(answer));
    told(&ExportAnswer::of_http(&answer).outcome(count, ExportItems::Spans))
}

fn told(outcome: &SendOutcome) -> Option<usize> {
    match outcome {
        SendOutcome::Each { outcomes, .. } => Some(outcomes.len()),
        _ => None,
    }
}
