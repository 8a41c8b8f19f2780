//! How the responses of an upstream are held to a definition.

use weir_plugin::proto::{Framing, Head, Method};
use weir_plugin::{Exchange, Stop};

use super::body::DeclaredBody;
use super::definition::ApiDefinition;
use super::faults::RequestFaults;
use super::{media_type, quoted_path};
use crate::answer::RefusalResponse;
use crate::content::content_type;
use crate::content::streams::StreamHandling;
use crate::rate_limited_log::RateLimitedLog;
use crate::security::request_validation::{BodyBounds, Fault};

/// What responses are held to.
pub(super) struct ResponseRules {
    pub bounds: BodyBounds,
    pub refuses: bool,
    pub log: RateLimitedLog,
}

impl ResponseRules {
    /// Whether the response is one of the upstream that the definition says something about. 304 is what a client asked for itself.
    fn is_judged(exchange: &Exchange) -> bool {
        let is_batch = exchange.responder().is_some_and(|responder| responder.asks_gateway());
        let status = exchange.response.status;
        !exchange.is_answered_here() && !is_batch && status >= 200 && status != 304
    }

    pub(super) fn check_head(&self, definition: Option<&ApiDefinition>, exchange: &mut Exchange) -> Result<(), Stop> {
        if !ResponseRules::is_judged(exchange) {
            return Ok(());
        }
        let mut faults = RequestFaults::new(true);
        match definition {
            Some(definition) => self.add_faults_of_head(definition, exchange, &mut faults),
            None => faults.add("status", "cannot be judged, since the definition has been replaced"),
        }
        self.answer(exchange, &faults)
    }

    fn add_faults_of_head(&self, definition: &ApiDefinition, exchange: &Exchange, faults: &mut RequestFaults) {
        let response = &exchange.response;
        let Ok(operation) = definition.operation(exchange) else { return };
        if operation.responses.are_none() {
            return;
        }
        let body = match operation.responses.of(response.status) {
            None => return faults.add("status", format!("{} is none of the operation", response.status)),
            Some(None) => return,
            Some(Some(body)) => body,
        };
        let kind = media_type(&response.head);
        match response.framing {
            _ if content_type::of(&response.head).is_err() => faults.add("body", "has no single valid Content-Type"),
            Framing::None | Framing::Sized(0) if kind.is_none() => {}
            Framing::Sized(length)
                if length > self.bounds.max_bytes && ResponseRules::is_read(exchange, body, &response.head) =>
            {
                faults.add("body", self.bounds.too_large());
            }
            _ => body.check_type(kind, faults),
        }
    }

    /// Whether the content is read. That of a stream has no end of its own, and a part of a content (206) is no value.
    fn is_read(exchange: &Exchange, body: &DeclaredBody, head: &Head) -> bool {
        let has_content = exchange.request.client_method() != Method::Head && exchange.response.status != 206;
        has_content && media_type(head).is_some_and(|kind| body.is_read(kind))
    }

    pub(super) fn whole(
        &self,
        definition: Option<&ApiDefinition>,
        exchange: &Exchange,
        plugin: &str,
    ) -> Result<Option<u64>, Stop> {
        let operation = definition.and_then(|definition| definition.operation(exchange).ok());
        let body = operation.and_then(|operation| operation.responses.of(exchange.response.status)?.as_ref());
        let head = &exchange.response.head;
        let Some(_) =
            body.filter(|body| ResponseRules::is_judged(exchange) && ResponseRules::is_read(exchange, body, head))
        else {
            return Ok(None);
        };
        // Only where it is not refused is it still here.
        match exchange.response.framing {
            Framing::Sized(length) if length > self.bounds.max_bytes => Ok(None),
            Framing::Sized(_) => StreamHandling::Pass.whole(plugin, exchange, self.bounds.max_bytes),
            // If there is more than is held, it is replaced, and this changes no response.
            _ if !self.refuses => Ok(None),
            _ => StreamHandling::Pass.whole(plugin, exchange, self.bounds.max_bytes),
        }
    }

    pub(super) fn check_body(
        &self,
        definition: Option<&ApiDefinition>,
        exchange: &mut Exchange,
        content: &[u8],
    ) -> Result<(), Stop> {
        let Some(definition) = definition else { return Ok(()) };
        let mut faults = RequestFaults::new(true);
        match self.add_faults_of_body(definition, exchange, content, &mut faults) {
            // Without the memory for it, the response could only be judged in part.
            Err(stop) if self.refuses => return Err(stop),
            Err(_) => {
                exchange.note_service_failure();
                faults.add("body", "cannot be judged, since it takes more memory than is left");
            }
            Ok(()) => {}
        }
        self.answer(exchange, &faults)
    }

    fn add_faults_of_body(
        &self,
        definition: &ApiDefinition,
        exchange: &Exchange,
        content: &[u8],
        faults: &mut RequestFaults,
    ) -> Result<(), Stop> {
        let Ok(operation) = definition.operation(exchange) else { return Ok(()) };
        let response = &exchange.response;
        let Some(Some(body)) = operation.responses.of(response.status) else { return Ok(()) };
        let plain = match self.bounds.plain(&response.head, content) {
            Ok(plain) => plain,
            Err(fault) => {
                faults.add(
                    "body",
                    match fault {
                        Fault::Problem(problem) => problem,
                        Fault::Stop(_) => "has a coding that cannot be read, or is not valid in it".to_owned(),
                    },
                );
                return Ok(());
            }
        };
        let kind = media_type(&response.head).unwrap_or_default();
        body.check(kind, &plain, &definition.schemas, (&self.bounds, exchange.client.addr), faults)
    }

    /// Lets a response pass, or refuses it.
    fn answer(&self, exchange: &mut Exchange, faults: &RequestFaults) -> Result<(), Stop> {
        if faults.told.is_empty() {
            return Ok(());
        }
        let (method, path) = quoted_path(exchange);
        self.log.error(format_args!(
            "oas-validator: the response {} to {method} {path:?} does not fit the definition: {:?}",
            exchange.response.status,
            faults.told.join("; ")
        ));
        match self.refuses {
            true => Err(RefusalResponse::new(502, "message", "failed to validate response.").send(exchange)),
            false => Ok(()),
        }
    }
}
