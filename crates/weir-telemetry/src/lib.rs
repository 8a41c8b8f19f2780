//! Telemetry of the gateway: metrics, access log, error log.
//!
//! No request waits for telemetry. A worker writes to its own cells and buffers; formatting of metrics, summing and disk writes
//! run on other threads.

pub mod access_log;
pub mod cell;
pub mod error_log;
pub mod exemplar;
pub mod exposition;
pub mod log_file;
pub mod metrics;
pub mod page;
pub mod price;
pub mod process;
pub mod room;
pub mod routes;
mod scrape;
pub mod stderr;
pub mod upstreams;
