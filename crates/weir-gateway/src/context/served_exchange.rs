//! An exchange, with the state that the gateway needs to serve it. Plugins see only the [`Exchange`] within.

use std::ops::{Deref, DerefMut};

use weir_plugin::{BareExchange, Exchange, Filters, MessageFilter};
use weir_proto::websocket::DeflateTerms;
use weir_telemetry::routes::RouteSlot;

use super::kept_content::ResentContent;

/// Kept for the next exchange, so that an ordinary exchange allocates no memory.
#[derive(Debug, Default)]
pub(crate) struct ServedExchange {
    exchange: Exchange,
    /// Part of the final response has been sent to the client, so no other response is possible.
    pub response_begun: bool,
    /// How much of the request's content has been read from the client.
    pub body_taken: ContentTaken,
    /// All that has been read of the request's content, if an upstream has refused it and it can be sent again: the next attempt
    /// begins with it. Plugins and records do not see it.
    pub kept_content: Option<Box<ResentContent>>,
    /// A plugin has replaced the response on its way to the client. The replacement does not pass the plugins again.
    pub response_replaced: bool,
    /// A responder of this process has sent the request. The exchange has no client, and no plugin sees it.
    pub is_subrequest: bool,
    /// The time its plugins take is recorded, because the exchange is measured, or traced, or both.
    pub observed: bool,
    /// The meter has picked the exchange at random: the cost of its plugins is counted in the metrics.
    pub measured: bool,
    /// The filters that the request's content passes on its way to the upstream.
    pub request_filters: Filters,
    /// The filters of a response that its upstream broke off: they still get the end of the content.
    pub broken_filters: Filters,
    /// Set if the exchange may become a WebSocket whose messages plugins want to see.
    pub opening: Option<Box<WebSocketOpening>>,
    /// Bytes that the upstream sent right after its 101: the first of the tunnel.
    pub early: Vec<u8>,
}

/// The exchange of a stream while its bytes are carried. A connection may be open for days, so it is kept small.
pub(crate) struct CarriedExchange {
    pub bare: BareExchange,
    observed: bool,
    measured: bool,
}

/// The message filter of a plugin, and where its refusals are counted.
pub(crate) struct PolicyFilter {
    pub filter: Box<dyn MessageFilter>,
    pub name: &'static str,
    /// The plugin's number in the registry, and the metrics of the route.
    pub plugin: u16,
    pub slot: RouteSlot,
}

/// A WebSocket whose messages plugins want to see, before it is established.
#[derive(Default)]
pub(crate) struct WebSocketOpening {
    pub filters: Vec<PolicyFilter>,
    /// The client offers compression in the forwarded request, so the upstream may accept it.
    pub offers_compression: bool,
    /// A filter may leave messages out.
    pub may_drop: bool,
    /// How messages are compressed, if the upstream has accepted compression.
    pub compression: Option<DeflateTerms>,
}

impl std::fmt::Debug for WebSocketOpening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WebSocketOpening").field(&self.filters.len()).finish()
    }
}

/// How much of a request's content has been read from its client. With part of it read, the request can be sent to another
/// endpoint only if that part is kept. Content not read must be discarded, or the connection closed, before the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ContentTaken {
    #[default]
    Nothing,
    Part,
    All,
}

impl ServedExchange {
    /// Content that was read from the client for an earlier attempt is gone, so that no other attempt can follow.
    pub(crate) fn is_content_lost(&self) -> bool {
        self.body_taken != ContentTaken::Nothing && self.request_body().is_none() && self.kept_content.is_none()
    }

    /// Takes what a stream needs while its bytes are carried. It has no content, so all else is as in a new exchange.
    pub(crate) fn take_stream(&mut self) -> CarriedExchange {
        CarriedExchange { bare: self.exchange.take_bare(), observed: self.observed, measured: self.measured }
    }

    /// Puts back what was taken, into any empty exchange.
    pub(crate) fn put_back(&mut self, stream: CarriedExchange) {
        let CarriedExchange { bare, observed, measured } = stream;
        self.exchange.put_back(bare);
        (self.observed, self.measured) = (observed, measured);
    }

    /// Resets it for another exchange; its memory is kept.
    pub(crate) fn clear(&mut self) {
        self.exchange.clear();
        self.response_begun = false;
        self.body_taken = ContentTaken::Nothing;
        self.kept_content = None;
        self.response_replaced = false;
        self.is_subrequest = false;
        (self.observed, self.measured) = (false, false);
        self.opening = None;
        if !self.early.is_empty() {
            self.early = Vec::new();
        }
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
