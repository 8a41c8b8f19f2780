//! Tests what becomes of log records, spans and metrics once they are made: spools, and real destinations.

mod kafka;
mod kafka_leader;
mod lab;
mod opensearch;
mod otlp;
mod otlp_collector;
mod otlp_grpc;
mod otlp_metrics;
mod real_kafka;
mod spool;
