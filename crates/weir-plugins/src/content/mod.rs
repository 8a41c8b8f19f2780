//! Content of messages: its type and coding, JSON and XML texts, keeping a copy of it.

pub mod body_recorder;
pub mod coding;
pub mod content_type;
pub mod json;
pub mod xml;
