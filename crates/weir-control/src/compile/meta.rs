//! `_meta.filter` and `_meta.error_response`: a wrapper around a plugin.

use std::sync::Arc;

use weir_plugin::{
    AnswersInPlace, Exchange, Expression, Filter, Flow, MessageFilter, MessageProtocol, NoteKey, Phases, Plugin, Stop,
};

use crate::document::ErrorResponse;

/// The plugin with its `_meta` applied.
pub(super) fn wrapped(
    step: Arc<dyn Plugin>,
    filter: Option<Expression>,
    error_response: Option<ErrorResponse>,
) -> Arc<dyn Plugin> {
    if filter.is_none() && error_response.is_none() {
        return step;
    }
    let meta = Meta { filter, note: NoteKey::unique(), error_response: error_response.map(Body::new) };
    Arc::new(PluginWithMeta { plugin: step, meta })
}

struct PluginWithMeta {
    plugin: Arc<dyn Plugin>,
    meta: Meta,
}

struct Meta {
    filter: Option<Expression>,
    /// The key under which an exchange keeps the result of the filter for its request.
    note: NoteKey,
    error_response: Option<Body>,
}

struct Body {
    content_type: &'static str,
    bytes: Box<[u8]>,
}

impl Body {
    fn new(response: ErrorResponse) -> Self {
        match response {
            ErrorResponse::Text(text) => {
                Body { content_type: "text/plain; charset=utf-8", bytes: text.as_bytes().into() }
            }
            // APISIX ends JSON bodies with a newline.
            ErrorResponse::Json(value) => {
                Body { content_type: "application/json", bytes: format!("{value}\n").into_bytes().into() }
            }
        }
    }
}

impl Meta {
    /// Evaluates the filter once per exchange for a plugin that sees the request, so that the later phases run for the same
    /// exchanges. The filter of a plugin that sees only the response is evaluated then, and may use the response.
    fn applies_to_request(&self, exchange: &mut Exchange) -> bool {
        let Some(filter) = &self.filter else { return true };
        let applies = filter.holds(exchange);
        exchange.notes.write(self.note, [u64::from(applies), 0, 0]);
        applies
    }

    fn applies(&self, exchange: &Exchange) -> bool {
        let Some(filter) = &self.filter else { return true };
        match exchange.notes.read(self.note) {
            Some([applies, ..]) => applies != 0,
            None => filter.holds(exchange),
        }
    }

    /// Replaces the body of an error response; its other fields, such as `WWW-Authenticate`, stay.
    fn ended(&self, exchange: &mut Exchange, end: Result<(), Stop>) -> Result<(), Stop> {
        end.map_err(|stop| self.replaced(exchange, stop))
    }

    fn replaced(&self, exchange: &mut Exchange, stop: Stop) -> Stop {
        let Some(body) = &self.error_response else { return stop };
        match stop {
            Stop::Respond(status) if status >= 400 => exchange.respond(status, body.content_type, &body.bytes),
            Stop::Answered if exchange.response.status >= 400 => {
                exchange.body.clear();
                exchange.body.extend_from_slice(&body.bytes);
                exchange.response.head.remove(b"Content-Type");
                match exchange.response.head.add(b"Content-Type", body.content_type.as_bytes()) {
                    Ok(()) => stop,
                    Err(_) => Stop::Internal,
                }
            }
            _ => stop,
        }
    }
}

impl Plugin for PluginWithMeta {
    fn phases(&self) -> Phases {
        self.plugin.phases()
    }

    fn answers_in_place(&self) -> AnswersInPlace {
        match &self.meta.filter {
            None => self.plugin.answers_in_place(),
            // It may leave out the requests that another plugin answers.
            Some(_) => AnswersInPlace::Never,
        }
    }

    fn answers_all(&self) -> bool {
        self.meta.filter.is_none() && self.plugin.answers_all()
    }

    fn start(&self) -> Result<(), String> {
        self.plugin.start()
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        if !self.meta.applies_to_request(exchange) {
            return Ok(Flow::Continue);
        }
        if self.meta.error_response.is_none() {
            return self.plugin.on_request(exchange);
        }
        Ok(Flow::wait(async move {
            let end = match self.plugin.on_request(exchange) {
                Ok(flow) => flow.finish().await,
                Err(stop) => Err(stop),
            };
            self.meta.ended(exchange, end)
        }))
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        if !self.meta.applies(exchange) {
            return Ok(None);
        }
        self.plugin.whole_request(exchange).map_err(|stop| self.meta.replaced(exchange, stop))
    }

    fn request_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        if !self.meta.applies(exchange) {
            return Ok(None);
        }
        self.plugin.request_filter(exchange).map_err(|stop| self.meta.replaced(exchange, stop))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        if self.meta.error_response.is_none() {
            return self.plugin.on_request_body(exchange, body);
        }
        Ok(Flow::wait(async move {
            let end = match self.plugin.on_request_body(exchange, body) {
                Ok(flow) => flow.finish().await,
                Err(stop) => Err(stop),
            };
            self.meta.ended(exchange, end)
        }))
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if !self.meta.applies(exchange) {
            return Ok(());
        }
        let end = self.plugin.on_response(exchange);
        self.meta.ended(exchange, end)
    }

    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        if !self.meta.applies(exchange) {
            return Ok(None);
        }
        self.plugin.whole_response(exchange).map_err(|stop| self.meta.replaced(exchange, stop))
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        if !self.meta.applies(exchange) {
            return Ok(None);
        }
        self.plugin.response_filter(exchange).map_err(|stop| self.meta.replaced(exchange, stop))
    }

    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        let end = self.plugin.on_response_body(exchange, body);
        self.meta.ended(exchange, end)
    }

    fn messages(
        &self,
        exchange: &mut Exchange,
        protocol: MessageProtocol,
    ) -> Result<Option<Box<dyn MessageFilter>>, Stop> {
        if !self.meta.applies(exchange) {
            return Ok(None);
        }
        self.plugin.messages(exchange, protocol).map_err(|stop| self.meta.replaced(exchange, stop))
    }

    fn kept_bytes(&self, exchange: &Exchange) -> usize {
        self.plugin.kept_bytes(exchange)
    }

    fn mask(&self, exchange: &Exchange, shown: &mut Exchange) {
        if self.meta.applies(exchange) {
            self.plugin.mask(exchange, shown);
        }
    }

    fn on_log(&self, exchange: &Exchange) {
        if self.meta.applies(exchange) {
            self.plugin.on_log(exchange);
        }
    }
}
