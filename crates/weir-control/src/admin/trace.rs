//! `POST /weir/v1/trace`: a request that the node sends to its own listener.

use serde_json::Value;

use super::answer::{AdminResponse, Refused, refuse};
use super::node_pages::{NodePages, TracedRequest};
use super::request::AdminRequest;
use crate::explain::{RequestDescription, described};

/// Sends the request in the body: a text such as `GET http://shop.example/orders/1`, or a map with `method`, `url`, `headers` and
/// `body`.
pub(super) async fn answer(pages: &dyn NodePages, request: &AdminRequest) -> Refused<AdminResponse> {
    request.caller.needs_all("a trace")?;
    let mut sent = request.json()?.unwrap_or_default();
    let members = sent.as_object_mut();
    let body = match members.and_then(|members| members.shift_remove("body")) {
        None => String::new(),
        Some(Value::String(body)) => body,
        Some(_) => return refuse("`body` is no text"),
    };
    let RequestDescription { method, url, headers, .. } = described(&sent).or_else(refuse)?;
    // `described` has written each field as `Name: value`.
    let pairs = headers.iter().filter_map(|field| field.split_once(": "));
    let headers = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Ok(pages.send(TracedRequest { method, url, headers, body }).await)
}
