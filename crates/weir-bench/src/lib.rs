//! The lab: load engine, backends, targets, scenarios, statistics and reports.

pub mod backend;
mod chunked;
pub mod cli_backend;
pub mod cli_load;
pub mod engine;
pub mod library;
pub mod lint;
pub mod manifest;
pub mod pacing;
pub mod result;
pub mod sample;
pub mod scenario;
pub mod stats;
pub mod target;
