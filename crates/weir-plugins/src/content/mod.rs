//! The content of messages: its type and coding, JSON and XML, and recording a copy of it.

pub mod body_recorder;
pub mod coding;
pub mod content_type;
pub mod graphql;
pub mod json;
pub mod streams;
pub mod xml;

use weir_plugin::{Exchange, Stop};

/// Fields with digests of the content, encoded (RFC 9530 §2, RFC 1864, RFC 3230) or not (RFC 9530 §3). A plugin that changes the
/// content removes them.
pub const DIGESTS: [&[u8]; 4] = [b"Content-MD5", b"Content-Digest", b"Repr-Digest", b"Digest"];

/// Fields that describe content, besides its digests.
const OF_THE_CONTENT: [&[u8]; 6] =
    [b"Content-Length", b"Content-Encoding", b"Content-Range", b"ETag", b"Last-Modified", b"Accept-Ranges"];

/// Removes the fields of a response that describe its content, for a plugin that changes the content.
pub fn forget_response_content(exchange: &mut Exchange) {
    for name in OF_THE_CONTENT.into_iter().chain(DIGESTS) {
        exchange.response.head.remove(name);
    }
}

/// Replaces the content of a response. The plugin that does so returns the result as an error.
pub fn replace_response_content(exchange: &mut Exchange, content: &[u8]) -> Stop {
    forget_response_content(exchange);
    exchange.body.clear();
    exchange.body.extend_from_slice(content);
    Stop::Answered
}
