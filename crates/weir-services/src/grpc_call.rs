//! Calls over gRPC: the form of a message, and the status of an answer.

use std::fmt;

use http::{HeaderMap, Response};
use hyper::body::Bytes;
use percent_encoding::percent_decode;
use weir_client::AnswerTrailers;

/// A message with the prefix that gRPC puts before it: not compressed, and its length.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX + message.len());
    write_prefix(message.len(), &mut out);
    out.extend_from_slice(message);
    out
}

/// The bytes before a message.
pub const PREFIX: usize = 5;

/// The prefix of a message of this length, which is not compressed.
pub fn write_prefix(length: usize, out: &mut Vec<u8>) {
    out.push(0);
    // Messages are limited to far less than 4 GiB.
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

/// The first message of a body; `None` if it is compressed, which was not asked for, or cut.
pub fn unframed(body: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = body.split_first_chunk::<PREFIX>()?;
    let [0, length @ ..] = *prefix else { return None };
    rest.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)
}

/// The message of a body that has no other.
pub fn only_message(body: &[u8]) -> Option<&[u8]> {
    unframed(body).filter(|message| PREFIX + message.len() == body.len())
}

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The most characters of a message that are quoted in an error.
const QUOTED: usize = 200;

/// The status of a call.
pub struct GrpcStatus<'a> {
    pub code: u16,
    /// The fields that it stands in.
    pub fields: &'a HeaderMap,
}

impl GrpcStatus<'_> {
    pub const OK: u16 = 0;

    /// The status in the trailers or, if the answer has no content, in its head ("Trailers-Only"). `None` if the answer is not one
    /// of gRPC.
    pub fn of(answer: &Response<Bytes>) -> Option<GrpcStatus<'_>> {
        let trailers = answer.extensions().get::<AnswerTrailers>().map(|trailers| &trailers.0);
        GrpcStatus::after(trailers, answer.headers())
    }

    /// The status in the trailers of a stream or, if there is none, in its head.
    pub fn after<'a>(trailers: Option<&'a HeaderMap>, head: &'a HeaderMap) -> Option<GrpcStatus<'a>> {
        let fields = trailers.filter(|trailers| trailers.contains_key(STATUS)).unwrap_or(head);
        let code = fields.get(STATUS)?.to_str().ok()?.parse().ok()?;
        Some(GrpcStatus { code, fields })
    }

    /// What the server says about it, decoded.
    pub fn message(&self) -> String {
        let message = self.fields.get(MESSAGE);
        message.map(|value| percent_decode(value.as_bytes()).decode_utf8_lossy().into_owned()).unwrap_or_default()
    }
}

impl fmt::Display for GrpcStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.get(usize::from(self.code)).copied().unwrap_or("an unknown code");
        let shown = self.message().chars().take(QUOTED).collect::<String>().replace(char::is_control, " ");
        write!(f, "the gRPC status is {} ({name}): {shown}", self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_one_message_that_is_not_compressed() {
        let body = framed(b"abc");
        assert_eq!(unframed(&body), Some(&b"abc"[..]));
        assert_eq!(unframed(&framed(b"")), Some(&b""[..]));
        for cut in 0..body.len() {
            assert_eq!(unframed(&body[..cut]), None, "{cut}");
        }
        assert_eq!(unframed(&[&body[..], &body].concat()), Some(&b"abc"[..]));
        assert_eq!(only_message(&body), Some(&b"abc"[..]));
        assert_eq!(only_message(&[&body[..], &body].concat()), None, "two messages");
        assert_eq!(unframed(&[&[1], &body[1..]].concat()), None, "it is compressed");
    }
}
