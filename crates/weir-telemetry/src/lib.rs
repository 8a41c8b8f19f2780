//! Metrics and log records.
