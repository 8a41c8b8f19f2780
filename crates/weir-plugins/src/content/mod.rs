//! Content of messages: its type and coding, JSON and XML texts, keeping a copy of it.

pub mod coding;
pub mod content_type;
pub mod json;
pub mod onlooker;
pub mod xml;
