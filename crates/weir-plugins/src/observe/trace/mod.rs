//! Distributed tracing: trace contexts in header fields (W3C Trace Context, B3 and SkyWalking's), sampling, the spans of an exchange,
//! and the formats they are sent in.

pub mod b3;
pub(crate) mod exchange_spans;
pub(crate) mod hex;
pub(crate) mod json_collector;
pub(crate) mod note;
pub(crate) mod sampler;
pub(crate) mod segment_json;
pub(crate) mod span_sink;
pub mod sw8;
pub mod w3c;
pub(crate) mod zipkin_json;
