//! Time-outs and retries of a rule.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::conditions::Problem;
use super::duration;
use crate::objects::routes::{HttpRetry, HttpTimeouts};

/// What no limit is for a time-out that must have one.
const NO_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long connecting and sending may take if nothing is said.
const DEFAULT: Duration = Duration::from_secs(60);

/// Adds the time-outs to a route.
///
/// # Errors
/// If a duration is not one, or the rule has retries.
pub(super) fn write(
    timeouts: Option<&HttpTimeouts>,
    retry: Option<&HttpRetry>,
    route: &mut Map<String, Value>,
) -> Result<(), Problem> {
    if retry.is_some() {
        return Err(Problem::new("UnsupportedValue", "retry is not supported; the requests of its rule get 500"));
    }
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
