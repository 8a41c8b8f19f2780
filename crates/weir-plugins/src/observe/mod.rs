//! Metrics, request ids, and traces.

pub(crate) mod collector;
pub(crate) mod opentelemetry;
pub(crate) mod otlp_logger;
pub(crate) mod prometheus;
pub(crate) mod request_id;
pub(crate) mod skywalking;
pub(crate) mod trace;
pub(crate) mod zipkin;
