//! OpenTelemetry's protocol (OTLP): its messages for spans, log records and metrics, and the collectors they are sent to, over
//! HTTP or gRPC. Plugins send spans and log records; the node itself sends its metrics.

#![forbid(unsafe_code)]

pub mod answer;
pub mod grpc;
pub mod messages;
pub mod metrics;
pub mod metrics_collector;
pub mod resource;
pub mod service;
pub mod span;
