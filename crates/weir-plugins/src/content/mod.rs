//! The content of messages: its type and coding, JSON and XML, and recording a copy of it.

pub mod body_recorder;
pub mod coding;
pub mod content_type;
pub mod json;
pub mod xml;
