//! The lab: load engine, backends, targets, scenarios, statistics and reports.

pub mod backend;
mod chunked;
pub mod cli;
pub mod cli_backend;
pub mod cli_load;
pub mod compare;
pub mod doctor;
pub mod engine;
pub mod export;
pub mod jmx;
pub mod knee;
pub mod library;
pub mod lint;
pub mod manifest;
pub mod pacing;
pub mod plan;
pub mod plot;
pub mod recovery;
pub mod report;
pub mod result;
pub mod run;
pub mod sample;
pub mod scenario;
pub mod search;
pub mod stats;
pub mod summary;
pub mod target;
