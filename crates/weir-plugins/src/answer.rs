//! Answers that plugins give: short JSON objects, made when a plugin is built.

use serde_json::json;
use weir_plugin::{Exchange, Stop};

/// A refusal, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalResponse {
    status: u16,
    /// Without one, the gateway's own short answer is sent.
    body: Option<Box<[u8]>>,
}

impl RefusalResponse {
    /// `{"member":"text"}` with a status.
    pub fn new(status: u16, member: &str, text: &str) -> RefusalResponse {
        let body = format!("{}\n", json!({ member: text }));
        RefusalResponse { status, body: Some(body.into_bytes().into()) }
    }

    /// A status, and `{"error_msg":"text"}` where there is a text.
    pub fn error(status: u16, text: Option<&str>) -> RefusalResponse {
        match text {
            Some(text) => RefusalResponse::new(status, "error_msg", text),
            None => RefusalResponse { status, body: None },
        }
    }

    pub fn send(&self, exchange: &mut Exchange) -> Stop {
        match &self.body {
            Some(body) => exchange.respond(self.status, "application/json", body),
            None => Stop::Respond(self.status),
        }
    }
}
