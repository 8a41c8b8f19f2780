//! OTLP over gRPC: what an answer's status means.

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, Response};
use hyper::body::Bytes;

use weir_services::grpc_call::{GrpcStatus, unframed};

use crate::answer::ExportAnswer;
use crate::messages::{ProtobufFields, ProtobufValue};

const DETAILS: &str = "grpc-status-details-bin";

const INVALID_ARGUMENT: u16 = 3;
const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;
/// CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE and DATA_LOSS: the codes for which OTLP allows a retry
/// without further conditions.
const RETRYABLE: [u16; 6] = [1, 4, 10, 11, UNAVAILABLE, 15];

/// What became of an export.
pub fn read(answer: &Response<Bytes>) -> ExportAnswer {
    let Some(status) = GrpcStatus::of(answer) else { return without_status(answer) };
    if status.code == GrpcStatus::OK {
        return match unframed(answer.body()) {
            Some(message) => ExportAnswer::taken(message),
            None => ExportAnswer::Refused("the answer is OK, but has no message of the protocol".to_owned()),
        };
    }
    let error = status.to_string();
    let after = retry_delay(status.fields);
    match status.code {
        // The collector will accept the same export later only if it says so (OTLP, "Failures").
        RESOURCE_EXHAUSTED if after.is_some() => ExportAnswer::Retry { error, after, is_busy: true },
        // The libraries of gRPC have this code for a message that exceeds the limit of the server.
        RESOURCE_EXHAUSTED if status.message().to_ascii_lowercase().contains("larger than max") => {
            ExportAnswer::TooLarge(error)
        }
        INVALID_ARGUMENT => ExportAnswer::Invalid(error),
        code if RETRYABLE.contains(&code) => ExportAnswer::Retry { error, after, is_busy: false },
        _ => ExportAnswer::Refused(error),
    }
}

/// An answer that is not gRPC, such as one of a proxy before the collector, by its HTTP status.
fn without_status(answer: &Response<Bytes>) -> ExportAnswer {
    match ExportAnswer::of_http(answer) {
        ExportAnswer::Taken { .. } => {
            ExportAnswer::Refused("the answer has no gRPC status; is it an address of OTLP over gRPC?".to_owned())
        }
        other => other,
    }
}

/// `retry_delay` of the `google.rpc.RetryInfo` among the details of a `google.rpc.Status`.
fn retry_delay(fields: &HeaderMap) -> Option<Duration> {
    // Senders may leave the padding out.
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    delay_of(&LENIENT.decode(fields.get(DETAILS)?.as_bytes()).ok()?)
}

/// The same from the bytes of the `Status`.
pub fn delay_of(status: &[u8]) -> Option<Duration> {
    part(status, 3, |any| {
        let kind = part(any, 1, Some)?;
        if !kind.ends_with(b"/google.rpc.RetryInfo") {
            return None;
        }
        let info = part(any, 2, Some).unwrap_or_default();
        let delay = part(info, 1, Some).unwrap_or_default();
        let number = |field| {
            let found = |(name, value)| match value {
                ProtobufValue::Number(value) if name == field => Some(value),
                _ => None,
            };
            ProtobufFields(delay).find_map(found).unwrap_or_default()
        };
        let seconds = i64::try_from(number(1)).ok()?;
        let nanos = u32::try_from(number(2)).ok().filter(|nanos| *nanos < 1_000_000_000)?;
        Some(Duration::new(seconds.unsigned_abs(), nanos))
    })
}

/// The first result of `read` for a field with bytes.
fn part<'a, T>(message: &'a [u8], field: u64, read: impl Fn(&'a [u8]) -> Option<T>) -> Option<T> {
    ProtobufFields(message).find_map(|(name, value)| match value {
        ProtobufValue::Bytes(value) if name == field => read(value),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use weir_client::AnswerTrailers;

    use weir_services::grpc_call::framed;

    use super::*;
    use crate::messages::{bytes, message, number};

    const STATUS: &str = "grpc-status";
    const MESSAGE: &str = "grpc-message";

    fn answer(code: &str, text: &str, details: Option<&[u8]>, in_trailers: bool) -> Response<Bytes> {
        let mut fields = HeaderMap::new();
        fields.insert(STATUS, code.parse().expect("valid"));
        fields.insert(MESSAGE, text.parse().expect("valid"));
        if let Some(details) = details {
            let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(details);
            fields.insert(DETAILS, encoded.parse().expect("valid"));
        }
        let mut answer = Response::new(Bytes::from(framed(b"")));
        match in_trailers {
            true => drop(answer.extensions_mut().insert(AnswerTrailers(fields))),
            false => *answer.headers_mut() = fields,
        }
        answer
    }

    /// A `Status` with a `RetryInfo` of this many seconds and nanoseconds.
    fn status(seconds: u64, nanos: u64) -> Vec<u8> {
        let mut out = Vec::new();
        message(&mut out, 3, |out| {
            bytes(out, 1, b"type.googleapis.com/google.rpc.Help");
        });
        message(&mut out, 3, |out| {
            bytes(out, 1, b"type.googleapis.com/google.rpc.RetryInfo");
            message(out, 2, |out| {
                message(out, 1, |out| {
                    number(out, 1, seconds);
                    number(out, 2, nanos);
                });
            });
        });
        out
    }

    #[test]
    fn codes_say_whether_to_try_again() {
        for in_trailers in [true, false] {
            for code in 1..=17_u16 {
                let read = read(&answer(&code.to_string(), "why%20not", None, in_trailers));
                let may_retry = [1, 4, 10, 11, 14, 15].contains(&code);
                assert_eq!(matches!(read, ExportAnswer::Retry { .. }), may_retry, "{code}");
                if code == 14 {
                    let error = "the gRPC status is 14 (UNAVAILABLE): why not".to_owned();
                    assert_eq!(read, ExportAnswer::Retry { error, after: None, is_busy: false });
                }
            }
            let taken = ExportAnswer::Taken { rejected: 0, why: String::new() };
            assert_eq!(read(&answer("0", "", None, in_trailers)), taken);
            let large = read(&answer("8", "Received message larger than max (9 vs. 4)", None, in_trailers));
            assert!(matches!(large, ExportAnswer::TooLarge(_)), "{large:?}");
        }
        for code in ["", "-1", "a", "99999"] {
            assert!(matches!(read(&answer(code, "", None, true)), ExportAnswer::Refused(_)), "{code}");
        }
    }

    #[test]
    fn retry_info_says_when() {
        for code in ["8", "14"] {
            let details = status(2, 500_000_000);
            let ExportAnswer::Retry { after, is_busy, .. } = read(&answer(code, "", Some(&details), true)) else {
                panic!("may be sent again")
            };
            assert_eq!((after, is_busy), (Some(Duration::from_millis(2500)), code == "8"));
            for cut in 0..details.len() {
                assert_ne!(delay_of(&details[..cut]), Some(Duration::from_millis(2500)), "it was cut");
            }
        }
        assert_eq!(delay_of(&status(u64::MAX, 0)), None, "a negative delay");
        assert_eq!(delay_of(&status(1, 1_000_000_000)), None);
    }

    #[test]
    fn answer_that_is_not_grpc_is_judged_by_its_http_status() {
        for (status, retries) in [(200, false), (404, false), (503, true), (429, true)] {
            let answer = Response::builder().status(status).body(Bytes::from_static(b"<html>")).expect("valid");
            assert_eq!(matches!(read(&answer), ExportAnswer::Retry { .. }), retries, "{status}");
        }
        let mut cut = answer("0", "", None, true);
        *cut.body_mut() = Bytes::from_static(b"\0\0\0\0\x05ab");
        assert!(matches!(read(&cut), ExportAnswer::Refused(_)));
    }
}
