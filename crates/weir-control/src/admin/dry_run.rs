//! Dry runs: what a change would do, to resources and to requests.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{self, AdminResponse, Refused, json_of, refuse};
use super::audit::audit_change;
use super::difference::difference;
use super::request::AdminRequest;
use crate::explain::{self, RequestDescription, described};
use crate::stores::writes::WriteReceipt;

/// The most requests to compare in one dry run.
const MOST_REQUESTS: usize = 10_000;

/// The requests to compare: those of the query (`?request=GET https://shop.example/orders/1`, any number of times) and `listed`.
///
/// # Errors
/// A refusal if one cannot be read, there are too many, this is no dry run, or the caller may not see all resources.
pub(super) fn requests(request: &AdminRequest, listed: Option<&Value>) -> Refused<Vec<RequestDescription>> {
    let of_query = request.query.all("request").map(of_text);
    let mut requests = of_query.collect::<Refused<Vec<_>>>()?;
    match listed {
        None => {}
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let read = described(item);
                requests.push(read.or_else(|problem| refuse(format!("requests[{index}]: {problem}")))?);
            }
        }
        Some(_) => return refuse("`requests` must be a list, for example of `GET https://shop.example/orders/1`"),
    }
    if requests.is_empty() {
        return Ok(requests);
    }
    if !request.query.is_true("dry_run") {
        return refuse("requests are compared in a dry run only: add `dry_run=true`");
    }
    if requests.len() > MOST_REQUESTS {
        return refuse(format!("{} requests are more than the limit of {MOST_REQUESTS}", requests.len()));
    }
    request.caller.needs_all("the comparison of requests")?;
    Ok(requests)
}

fn of_text(text: &str) -> Refused<RequestDescription> {
    described(&text.into()).or_else(|problem| refuse(format!("invalid argument request: {problem}")))
}

/// The response to a dry run.
pub(super) fn tried(receipt: &WriteReceipt) -> AdminResponse {
    let WriteReceipt { record, compared, warnings, .. } = receipt;
    let changes: Vec<Value> = record.changes.iter().map(difference).collect();
    let mut body = json!({ "dry_run": true, "revision": record.revision, "changes": changes });
    answer::warn(&mut body, warnings);
    if !compared.is_empty() {
        body["requests"] = explain::told(compared);
    }
    let mut answer = json_of(StatusCode::OK, &body);
    audit_change(&mut answer, record, true);
    answer
}
