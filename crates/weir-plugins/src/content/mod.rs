//! The content of messages: its type and coding, JSON and XML, and recording a copy of it.

pub mod body_recorder;
pub mod coding;
pub mod content_type;
pub mod json;
pub mod streams;
pub mod xml;

/// Fields with digests of the content, encoded (RFC 9530 §2, RFC 1864, RFC 3230) or not (RFC 9530 §3). A plugin that changes the
/// content removes them.
pub const DIGESTS: [&[u8]; 4] = [b"Content-MD5", b"Content-Digest", b"Repr-Digest", b"Digest"];
