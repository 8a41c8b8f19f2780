//! What a collector says about an export, whichever protocol it was sent by.

use std::time::Duration;

use http::Response;
use hyper::body::Bytes;
use weir_client::CallError;
use weir_records::{Outcome, RejectReason, SendOutcome};

use super::rejected;
use crate::log::http_answer;

/// What became of an export.
#[derive(Debug, PartialEq, Eq)]
pub enum ExportAnswer {
    /// The collector has accepted it, without this many items.
    Taken { rejected: u64, why: String },
    /// It is too large; parts of it may be accepted.
    TooLarge(String),
    /// It may be sent again. `is_busy`: the collector has too much to do, so that smaller exports may help.
    Retry { error: String, after: Option<Duration>, is_busy: bool },
    /// It must not be sent again.
    Refused(String),
}

impl ExportAnswer {
    /// From the content of an accepted export: an `Export…ServiceResponse`.
    pub fn taken(content: &[u8]) -> ExportAnswer {
        let (rejected, why) = rejected(content);
        ExportAnswer::Taken { rejected, why }
    }

    /// From an answer by HTTP. OTLP allows a retry for four statuses only; a batch that is too large is divided.
    pub fn of_http(answer: &Response<Bytes>) -> ExportAnswer {
        let error = || format!("the answer is {}", answer.status().as_u16());
        match answer.status().as_u16() {
            200..=299 => ExportAnswer::taken(answer.body()),
            413 => ExportAnswer::TooLarge(error()),
            status @ (429 | 502 | 503 | 504) => {
                ExportAnswer::Retry { error: error(), after: http_answer::retry_after(answer), is_busy: status == 429 }
            }
            _ => ExportAnswer::Refused(http_answer::quoted(answer)),
        }
    }

    /// There is no answer, so whether the export was accepted is unknown.
    pub fn none(error: &CallError) -> ExportAnswer {
        ExportAnswer::Retry { error: error.to_string(), after: None, is_busy: false }
    }

    /// The outcome for a batch of `count` records. `what` names the items, for the error.
    pub fn outcome(self, count: usize, what: &str) -> SendOutcome {
        match self {
            ExportAnswer::Taken { rejected: 0, .. } => SendOutcome::Taken,
            ExportAnswer::Taken { rejected: items, why } => {
                // The answer does not identify the rejected items, so the first ones are counted as rejected.
                let rejected = usize::try_from(items).unwrap_or(count).min(count);
                let outcome = |index| match index < rejected {
                    true => Outcome::Rejected(RejectReason::Invalid),
                    false => Outcome::Delivered,
                };
                let error = Some(format!("the collector has rejected {items} {what}: {why}"));
                SendOutcome::Each { outcomes: (0..count).map(outcome).collect(), error }
            }
            ExportAnswer::TooLarge(error) => SendOutcome::TooLarge(error),
            ExportAnswer::Retry { error, after, is_busy: true } => SendOutcome::Busy { error, after },
            ExportAnswer::Retry { error, after, is_busy: false } => SendOutcome::Failed { error, after },
            ExportAnswer::Refused(error) => SendOutcome::Refused { reason: RejectReason::Invalid, error },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_what_became_of_a_batch() {
        let judged = |status, body: &'static [u8]| {
            let answer = Response::builder().status(status).body(Bytes::from_static(body)).expect("valid");
            ExportAnswer::of_http(&answer).outcome(3, "spans")
        };
        assert!(matches!(judged(200, b""), SendOutcome::Taken));
        let SendOutcome::Each { outcomes, error } = judged(200, b"\x0a\x05\x08\x02\x12\x01x") else {
            panic!("in part")
        };
        let rejected = Outcome::Rejected(RejectReason::Invalid);
        assert_eq!(outcomes, [rejected, rejected, Outcome::Delivered]);
        assert_eq!(error.as_deref(), Some("the collector has rejected 2 spans: x"));
        assert!(matches!(judged(413, b""), SendOutcome::TooLarge(_)));
        assert!(matches!(judged(429, b""), SendOutcome::Busy { .. }));
        for status in [502, 503, 504] {
            assert!(matches!(judged(status, b""), SendOutcome::Failed { .. }), "{status}");
        }
        for status in [400, 401, 404, 500] {
            assert!(matches!(judged(status, b""), SendOutcome::Refused { .. }), "{status}");
        }
    }
}
