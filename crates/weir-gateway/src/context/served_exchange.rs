//! An exchange with what the gateway itself has to know while it serves it. Plugins see the exchange without that.

use std::ops::{Deref, DerefMut};

use weir_plugin::{Exchange, Filters, MessageFilter};

/// Used again for the next exchange, so that nothing is allocated on the plain path.
#[derive(Debug, Default)]
pub struct ServedExchange {
    exchange: Exchange,
    /// Something of the final response has left for the client, so nothing else can be its answer.
    pub response_begun: bool,
    /// How much of the request's content was taken from the client.
    pub body_taken: ContentTaken,
    /// A plugin has replaced the response on its way to the client. It passes no plugin a second time.
    pub response_replaced: bool,
    /// A responder of this process has sent it. It has no client, and no plugin sees it.
    pub is_subrequest: bool,
    /// What its plugins do is timed, since it is measured, or traced, or both.
    pub observed: bool,
    /// Chance has picked it: what its plugins cost is written down.
    pub measured: bool,
    /// What the request's content passes on its way upstream.
    pub request_filters: Filters,
    /// What the rest of a response's content would have passed, which its upstream has broken off.
    pub broken_filters: Filters,
    /// It may become a WebSocket whose messages plugins want to see.
    pub opening: Option<Box<WebSocketOpening>>,
}

/// A WebSocket whose messages plugins want to see, until it stands.
#[derive(Default)]
pub struct WebSocketOpening {
    pub filters: Vec<Box<dyn MessageFilter>>,
    /// The upstream may agree to compression.
    pub offers_compression: bool,
    /// It has.
    pub may_compress: bool,
    /// What it has sent at once with its agreement.
    pub early: Vec<u8>,
}

impl std::fmt::Debug for WebSocketOpening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WebSocketOpening").field(&self.filters.len()).finish()
    }
}

/// How much of a request's content was taken from its client. What was taken is gone: the request cannot be sent to
/// another endpoint. What was not has to be read, or the connection closed, before the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentTaken {
    #[default]
    Nothing,
    Part,
    All,
}

impl ServedExchange {
    /// Makes it ready for another exchange; memory is kept.
    pub fn clear(&mut self) {
        self.exchange.clear();
        self.response_begun = false;
        self.body_taken = ContentTaken::Nothing;
        self.response_replaced = false;
        self.is_subrequest = false;
        (self.observed, self.measured) = (false, false);
        self.opening = None;
        for filters in [&mut self.request_filters, &mut self.broken_filters] {
            if !filters.is_empty() {
                *filters = Filters::default();
            }
        }
    }
}

impl Deref for ServedExchange {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.exchange
    }
}

impl DerefMut for ServedExchange {
    fn deref_mut(&mut self) -> &mut Exchange {
        &mut self.exchange
    }
}
