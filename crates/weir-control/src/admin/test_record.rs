//! `POST /weir/v1/records/test`: a test record to one of the destinations of log records.

use serde_json::Value;

use super::answer::{AdminResponse, Refused, refuse};
use super::audit::audit_test_record;
use super::node_pages::NodePages;
use super::request::AdminRequest;

/// Sends a test record to the sink that the body names: `{"sink": "http-logger http://127.0.0.1:9000"}`.
pub(super) async fn answer(pages: &dyn NodePages, request: &AdminRequest) -> Refused<AdminResponse> {
    request.caller.needs_all("a test record")?;
    let mut body = request.json()?.unwrap_or_default();
    let Some(Value::String(sink)) = body.as_object_mut().and_then(|members| members.shift_remove("sink")) else {
        return refuse("`sink` is missing: write `{\"sink\": NAME}` with a name of `GET /weir/v1/records`");
    };
    let mut answer = pages.test_record(sink.clone()).await;
    audit_test_record(&mut answer, &sink);
    Ok(answer)
}
