//! Translates the answers of receivers into outcomes for a whole batch.

use std::time::{Duration, SystemTime};

use http::Response;
use http::header::{LOCATION, RETRY_AFTER};
use hyper::body::Bytes;
use weir_client::CallError;
use weir_records::{RejectReason, SendOutcome};

/// The most bytes of an answer that are read.
pub const MOST_BYTES: usize = 64 * 1024;

/// The most bytes of an answer that are quoted in an error.
const QUOTED: usize = 200;

/// The outcome for a status that is not a success. The batch is retried later, and split only if it is too large.
pub fn failure(answer: &Response<Bytes>) -> SendOutcome {
    let status = answer.status().as_u16();
    let error = match answer.headers().get(LOCATION).and_then(|location| location.to_str().ok()) {
        Some(location) if (300..400).contains(&status) => {
            format!("the answer is {status}, and redirects are not followed: write {location:?} as the address")
        }
        _ => format!("the answer is {status}"),
    };
    match status {
        413 => SendOutcome::TooLarge(error),
        429 => SendOutcome::Busy { error, after: retry_after(answer) },
        _ => SendOutcome::Failed { error, after: retry_after(answer) },
    }
}

/// The same for receivers that answer with 400 or 422 if they do not accept a record of the batch.
pub fn strict_failure(answer: &Response<Bytes>) -> SendOutcome {
    match answer.status().as_u16() {
        400 | 422 => SendOutcome::Invalid { reason: RejectReason::Invalid, error: quoted(answer) },
        _ => failure(answer),
    }
}

/// An error text: the status and the beginning of the body.
pub fn quoted(answer: &Response<Bytes>) -> String {
    let text =
        String::from_utf8_lossy(&answer.body()[..answer.body().len().min(QUOTED)]).replace(char::is_control, " ");
    format!("the answer is {}: {}", answer.status().as_u16(), text.trim())
}

/// A body from which on, in bytes, a connection that breaks may mean that it was too large. Proxies accept 1 MiB by default.
const LARGE: usize = 512 << 10;

/// The outcome of a batch with so many bytes is unknown. If the connection broke while a large one was sent, it may have been too
/// large: receivers answer that before they have read the whole request, and the answer may be lost.
pub fn no_answer(error: &CallError, bytes: usize) -> SendOutcome {
    let is_too_large = bytes >= LARGE && matches!(error, CallError::Broken { .. });
    let error = error.to_string();
    match is_too_large {
        true => SendOutcome::Busy { error, after: None },
        false => SendOutcome::Failed { error, after: None },
    }
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
        let SendOutcome::Invalid { error, .. } = strict_failure(&answer(400, None)) else { panic!("refused") };
        assert_eq!(error, "the answer is 400: no way");
    }
}
