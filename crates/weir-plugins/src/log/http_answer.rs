//! What answers of receivers mean for a batch as a whole.

use std::time::{Duration, SystemTime};

use http::Response;
use http::header::RETRY_AFTER;
use hyper::body::Bytes;
use weir_client::CallError;
use weir_records::{RejectReason, SendOutcome};

/// Bytes of an answer that are read.
pub const MOST_BYTES: usize = 64 * 1024;

/// Bytes of an answer's text that are quoted.
const QUOTED: usize = 200;

/// An answer whose status says that the batch was not taken. What cannot be delivered now may be later: only a batch that
/// is too large is not sent again as it is.
pub fn failure(answer: &Response<Bytes>) -> SendOutcome {
    let status = answer.status().as_u16();
    let error = format!("the answer is {status}");
    match status {
        413 => SendOutcome::TooLarge(error),
        429 => SendOutcome::Busy { error, after: retry_after(answer) },
        _ => SendOutcome::Failed { error, after: retry_after(answer) },
    }
}

/// The same for receivers that say with 400 that a batch will never be right.
pub fn strict_failure(answer: &Response<Bytes>) -> SendOutcome {
    match answer.status().as_u16() {
        400 | 422 => SendOutcome::Refused { reason: RejectReason::Invalid, error: quoted(answer) },
        _ => failure(answer),
    }
}

/// The status, and the beginning of the text.
pub fn quoted(answer: &Response<Bytes>) -> String {
    let text =
        String::from_utf8_lossy(&answer.body()[..answer.body().len().min(QUOTED)]).replace(char::is_control, " ");
    format!("the answer is {}: {}", answer.status().as_u16(), text.trim())
}

/// Nothing is known of what became of the batch. A connection that broke while a large one was sent may mean that it was
/// too large: such answers come before all of a request is read, and get lost.
pub fn no_answer(error: &CallError) -> SendOutcome {
    SendOutcome::Failed { error: error.to_string(), after: None }
}

/// `Retry-After`, in seconds or as a date (RFC 9110 §10.2.3).
pub fn retry_after(answer: &Response<Bytes>) -> Option<Duration> {
    let value = answer.headers().get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(value).ok()?.duration_since(SystemTime::now()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, after: Option<&str>) -> Response<Bytes> {
        let mut builder = Response::builder().status(status);
        if let Some(after) = after {
            builder = builder.header(RETRY_AFTER, after);
        }
        builder.body(Bytes::from_static(b"no\nway")).expect("valid")
    }

    #[test]
    fn answers_say_when_and_how_to_try_again() {
        assert!(matches!(failure(&answer(413, None)), SendOutcome::TooLarge(_)));
        let seven = Some(Duration::from_secs(7));
        assert!(matches!(failure(&answer(429, Some("7"))), SendOutcome::Busy { after, .. } if after == seven));
        assert!(matches!(failure(&answer(503, Some("7"))), SendOutcome::Failed { after, .. } if after == seven));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
        let SendOutcome::Failed { after: Some(after), .. } = failure(&answer(503, Some(&date))) else {
            panic!("a date")
        };
        assert!((3500..=3600).contains(&after.as_secs()));
        let SendOutcome::Refused { error, .. } = strict_failure(&answer(400, None)) else { panic!("refused") };
        assert_eq!(error, "the answer is 400: no way");
    }
}
