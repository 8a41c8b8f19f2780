//! HTTP and WebSocket protocols, and the opening packet of MQTT: bytes to events and back. No sockets, no clock, no configuration.
//!
//! This crate decides what is *valid*; its callers decide what is *allowed*. Every rule cites its RFC section.

#![deny(unsafe_code)]

pub mod address;
pub mod authority;
pub mod decimal;
pub mod event_stream;
pub mod field;
pub mod field_sink;
pub mod grpc;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod head;
pub mod limits;
pub mod method;
pub mod mqtt;
pub mod path;
pub mod request;
pub mod trailers;
pub mod websocket;

mod scan;

pub use field::Known;
pub use field_sink::FieldSink;
pub use head::{Field, Framing, Head, RequestHead, ResponseHead, Version};
pub use method::Method;
pub use trailers::Trailers;
