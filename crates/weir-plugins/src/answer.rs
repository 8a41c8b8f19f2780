//! The refusals that plugins send: short JSON objects, rendered when a plugin is built.

use serde_json::json;
use weir_plugin::{Exchange, Stop};

/// A refusal with its body already rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusalResponse {
    status: u16,
    /// If `None`, the gateway's own short answer for the status is sent.
    body: Option<Box<[u8]>>,
}

impl RefusalResponse {
    /// A response with this status and the body `{"member":"text"}`.
    pub(crate) fn new(status: u16, member: &str, text: &str) -> RefusalResponse {
        let body = format!("{}\n", json!({ member: text }));
        RefusalResponse { status, body: Some(body.into_bytes().into()) }
    }

    /// A response with this status, and the body `{"error_msg":"text"}` if there is a text.
    pub(crate) fn error(status: u16, text: Option<&str>) -> RefusalResponse {
        match text {
            Some(text) => RefusalResponse::new(status, "error_msg", text),
            None => RefusalResponse { status, body: None },
        }
    }

    pub(crate) fn send(&self, exchange: &mut Exchange) -> Stop {
        match &self.body {
            Some(body) => exchange.respond(self.status, "application/json", body),
            None => Stop::Respond(self.status),
        }
    }
}
