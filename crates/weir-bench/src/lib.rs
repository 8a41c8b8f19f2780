//! The lab: load engine, backends, targets, scenarios, statistics and reports.

pub mod engine;
