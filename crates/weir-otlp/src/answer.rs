//! What a collector says about an export, whichever protocol it was sent by.

use std::time::Duration;

use http::Response;
use hyper::body::Bytes;
use weir_client::CallError;
use weir_records::{Outcome, RejectReason, SendOutcome};
use weir_services::http_answer;

use crate::messages::rejected;

/// What became of an export.
#[derive(Debug, PartialEq, Eq)]
pub enum ExportAnswer {
    /// The collector has accepted it, without this many items.
    Taken { rejected: u64, why: String },
    /// It is too large; parts of it may be accepted.
    TooLarge(String),
    /// It may be sent again. `is_busy`: the collector has too much to do, so that smaller exports may help.
    Retry { error: String, after: Option<Duration>, is_busy: bool },
    /// An item is invalid.
    Invalid(String),
    /// The collector accepts no export as things are: credentials, an address or a setting is wrong.
    Refused(String),
}

impl ExportAnswer {
    /// From the content of an accepted export: an `Export…ServiceResponse`.
    pub fn taken(content: &[u8]) -> ExportAnswer {
        let (rejected, why) = rejected(content);
        ExportAnswer::Taken { rejected, why }
    }

    /// From an answer by HTTP. OTLP allows a retry for four statuses only; a batch that is too large, or has an invalid item, is
    /// divided.
    pub fn of_http(answer: &Response<Bytes>) -> ExportAnswer {
        let error = || format!("the answer is {}", answer.status().as_u16());
        match answer.status().as_u16() {
            200..=299 => ExportAnswer::taken(answer.body()),
            400 | 422 => ExportAnswer::Invalid(http_answer::quoted(answer)),
            413 => ExportAnswer::TooLarge(error()),
            status @ (429 | 502 | 503 | 504) => {
                ExportAnswer::Retry { error: error(), after: http_answer::retry_after(answer), is_busy: status == 429 }
            }
            _ => ExportAnswer::Refused(http_answer::quoted(answer)),
        }
    }

    /// There is no answer, so whether the export of so many bytes was accepted is unknown.
    pub fn none(error: &CallError, bytes: usize) -> ExportAnswer {
        let is_busy = matches!(http_answer::no_answer(error, bytes), SendOutcome::Busy { .. });
        ExportAnswer::Retry { error: error.to_string(), after: None, is_busy }
    }

    /// The outcome for a batch of `count` records with these items.
    pub fn outcome(self, count: usize, items: ExportItems) -> SendOutcome {
        match self {
            ExportAnswer::Taken { rejected: 0, .. } => SendOutcome::Taken,
            ExportAnswer::Taken { rejected: rejected_items, why } => {
                // The answer does not identify the rejected items, so the first ones are counted as rejected.
                let rejected = usize::try_from(rejected_items).unwrap_or(count).min(count);
                let outcome = |index| match index < rejected {
                    true => Outcome::Rejected(RejectReason::Invalid),
                    false => Outcome::Delivered,
                };
                let what = items.plural();
                let error = Some(format!("the collector has rejected {rejected_items} {what}: {why}"));
                SendOutcome::Each { outcomes: (0..count).map(outcome).collect(), error }
            }
            ExportAnswer::TooLarge(error) => SendOutcome::TooLarge(error),
            ExportAnswer::Retry { error, after, is_busy: true } => SendOutcome::Busy { error, after },
            ExportAnswer::Retry { error, after, is_busy: false } => SendOutcome::Failed { error, after },
            ExportAnswer::Invalid(error) => SendOutcome::Invalid { reason: RejectReason::Invalid, error },
            ExportAnswer::Refused(error) => match items {
                // A trace is worth little later, and the protocol forbids to repeat the request.
                ExportItems::Spans => SendOutcome::Refused { reason: RejectReason::Invalid, error },
                // Log records wait until the setting has been corrected, as for the other destinations.
                ExportItems::LogRecords => SendOutcome::Failed { error, after: None },
            },
        }
    }
}

/// What an export contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportItems {
    Spans,
    LogRecords,
}

impl ExportItems {
    /// The word for several of them.
    fn plural(self) -> &'static str {
        match self {
            ExportItems::Spans => "spans",
            ExportItems::LogRecords => "log records",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_what_became_of_a_batch() {
        let judged_as = |status, body: &'static [u8], items| {
            let answer = Response::builder().status(status).body(Bytes::from_static(body)).expect("valid");
            ExportAnswer::of_http(&answer).outcome(3, items)
        };
        let judged = |status, body| judged_as(status, body, ExportItems::Spans);
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
        for status in [401, 403, 404, 500] {
            assert!(matches!(judged(status, b""), SendOutcome::Refused { .. }), "{status}");
            let waits = matches!(judged_as(status, b"", ExportItems::LogRecords), SendOutcome::Failed { .. });
            assert!(waits, "{status}");
        }
        assert!(matches!(judged(400, b""), SendOutcome::Invalid { .. }));
        assert!(matches!(judged_as(400, b"", ExportItems::LogRecords), SendOutcome::Invalid { .. }));
    }
}
