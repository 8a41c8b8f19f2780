//! Metrics, request ids, and traces.

pub mod collector;
pub mod opentelemetry;
pub mod otlp_logger;
pub mod prometheus;
pub mod request_id;
pub mod trace;
pub mod zipkin;
