//! Time-outs and retries of a rule.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::super::conditions::Problem;
use super::duration;
use crate::objects::routes::{HttpRetry, HttpTimeouts};

/// What no limit is for a time-out that must have one.
const NO_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long connecting and sending may take if nothing is said.
const DEFAULT: Duration = Duration::from_secs(60);

/// Adds the time-outs to a route.
///
/// # Errors
/// If a duration is not one.
pub(super) fn write(timeouts: Option<&HttpTimeouts>, route: &mut Map<String, Value>) -> Result<(), Problem> {
    let Some(timeouts) = timeouts else { return Ok(()) };
    let read = |text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => duration::parse(text).map(Some).ok_or_else(|| {
            Problem::new("UnsupportedValue", format!("{text} is not a duration: write it as 1h30m, 10s or 500ms"))
        }),
    };
    let (request, backend) = (read(&timeouts.request)?, read(&timeouts.backend_request)?);
    let unlimited = |limit: Duration| if limit.is_zero() { NO_LIMIT } else { limit };
    let time = |limit: Duration| format!("{}ms", limit.as_millis());
    if let Some(limit) = request.filter(|limit| !limit.is_zero()) {
        route.insert("request_timeout".to_owned(), time(limit).into());
    }
    let Some(limit) = backend.map(unlimited) else { return Ok(()) };
    let step = time(limit.min(DEFAULT));
    route.insert("timeout".to_owned(), json!({ "connect": step, "send": step, "read": time(limit) }));
    Ok(())
}

/// The statuses after which an upstream can retry.
const RETRIED: [u16; 7] = [403, 404, 429, 500, 502, 503, 504];
/// In percent of the requests: the largest budget that an upstream can have.
const LARGEST_BUDGET: u32 = 1_000;

/// The retries of a rule, as keys of its upstreams. A Service may have one endpoint alone, which is then tried again.
///
/// # Errors
/// If a status or a pause is stated that upstreams do not support.
pub(super) fn retries(retry: Option<&HttpRetry>) -> Result<Option<Map<String, Value>>, Problem> {
    let Some(HttpRetry { codes, attempts, backoff }) = retry else { return Ok(None) };
    let unsupported = |message: String| Err(Problem::new("UnsupportedValue", message));
    if let Some(backoff) = backoff {
        return unsupported(format!("retry.backoff {backoff} is not supported: leave it out; its rule answers 500"));
    }
    if let Some(code) = codes.iter().find(|code| !RETRIED.contains(code)) {
        let known = RETRIED.map(|code| code.to_string()).join(", ");
        return unsupported(format!("retry.codes {code} is not supported: use {known}; its rule answers 500"));
    }
    let attempts = attempts.unwrap_or(1);
    let reasons = codes.iter().map(|code| format!("http_{code}"));
    Ok(Some(Map::from_iter([
        ("retries".to_owned(), attempts.into()),
        ("retry_budget".to_owned(), attempts.saturating_mul(100).min(LARGEST_BUDGET).into()),
        ("retry_same_endpoint".to_owned(), true.into()),
        // A connection that fails needs no mention.
        ("retry_on".to_owned(), ["read_timeout".to_owned()].into_iter().chain(reasons).collect()),
    ])))
}
