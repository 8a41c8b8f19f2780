//! What the gateway says about itself: metrics, access log, error log.
//!
//! Nothing here waits on the path of a request. A worker writes to cells and buffers that are its own; everything that
//! formats, sums or writes runs on another thread.

pub mod access_log;
pub mod cell;
pub mod error_log;
pub mod exposition;
pub mod log_file;
pub mod metrics;
pub mod price;
pub mod process;
mod room;
pub mod routes;
mod scrape;
pub mod stderr;
pub mod upstreams;
