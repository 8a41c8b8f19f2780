//! Metrics and identifiers of requests.

pub mod prometheus;
pub mod request_id;
pub mod trace;
