//! Metrics, request ids, and traces.

pub mod collector;
pub mod metrics_export;
pub mod opentelemetry;
pub mod otlp_logger;
pub mod prometheus;
pub mod request_id;
pub mod trace;
pub mod zipkin;
