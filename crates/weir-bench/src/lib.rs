//! The lab: load engine, backends, targets, scenarios, statistics and reports.

pub mod engine;
pub mod library;
pub mod manifest;
pub mod pacing;
pub mod result;
pub mod sample;
pub mod scenario;
pub mod stats;
pub mod target;
pub mod lint;
