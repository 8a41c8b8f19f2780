//! The lab: load engine, backends, targets, scenarios, statistics and reports.

#![deny(unsafe_code)]

pub mod analysis;
pub mod backend;
mod chunked;
pub mod cli;
pub mod doctor;
pub mod engine;
mod errors;
pub mod export;
pub mod fuzzing;
pub mod jmx;
pub mod library;
pub mod manifest;
pub mod plot;
mod process_tree;
pub mod report;
pub mod result;
pub mod run;
pub mod sample;
pub mod scenario;
pub mod signature;
mod stacks;
pub mod stats;
pub mod target;
pub mod trials;
mod uri_characters;
