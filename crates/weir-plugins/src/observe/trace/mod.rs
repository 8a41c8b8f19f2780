//! Distributed tracing: trace contexts in header fields (W3C Trace Context and B3), sampling, the spans of an exchange,
//! and the formats they are sent in.

pub mod b3;
pub mod exchange_spans;
pub mod hex;
pub mod note;
pub mod sampler;
pub mod span_sink;
pub mod w3c;
pub mod zipkin_json;
