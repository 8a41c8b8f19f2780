//! The content of messages: its type and coding, JSON and XML, requests to language models, and recording a copy of it.

pub(crate) mod body_recorder;
pub(crate) mod chat;
pub(crate) mod coding;
pub(crate) mod content_type;
pub(crate) mod elsewhere;
pub mod graphql;
pub mod json;
pub(crate) mod streams;
pub mod xml;

use weir_plugin::{Exchange, Stop};

pub(crate) use weir_plugin::DIGESTS;

/// The most bytes of a text of a client in what is said about it.
const MOST_QUOTED: usize = 60;

/// The beginning of a text that a client has sent.
pub(crate) fn quoted(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_QUOTED)]
}

/// Removes what describes the content of a request that a plugin has replaced.
pub(crate) fn forget_request_content(exchange: &mut Exchange) {
    for name in std::iter::once(&b"Content-Encoding"[..]).chain(DIGESTS) {
        exchange.request.head.remove(name);
    }
}

/// Replaces the content of a response. The plugin that does so returns the result as an error.
pub(crate) fn replace_response_content(exchange: &mut Exchange, content: &[u8]) -> Stop {
    exchange.forget_response_content();
    exchange.body.clear();
    exchange.body.extend_from_slice(content);
    Stop::Answered
}
