//! Distributed tracing: the contexts that tie the spans of one request together, as they stand in header fields (W3C
//! Trace Context and B3); what is sampled; the spans of an exchange, and the forms they are sent in.

pub mod b3;
pub mod exchange_spans;
pub mod hex;
pub mod note;
pub mod otlp;
pub mod sampler;
pub mod span;
pub mod span_sink;
pub mod w3c;
pub mod zipkin_json;
