//! Rehearses a migration: reads requests from the log of a gateway, sends them to the old and to the new gateway, and reports in
//! what the answers differ.
//!
//! It knows neither a configuration nor the data plane: the route that the new gateway chose is asked of the caller.

#![forbid(unsafe_code)]

mod answer;
mod cause;
mod compare;
mod findings;
pub mod log;
mod pace;
mod replay;
pub mod report;
mod secrets;
mod shape;
mod target;

pub use cause::{DifferenceCause, DifferenceKey};
pub use findings::{ExampleRequest, RehearsalFindings, RehearsalTotals};
pub use pace::Pace;
pub use replay::{Distinct, Rehearsal, RehearsalPlan, SAFE_METHODS, StopReason};
pub use report::RehearsalReport;
pub use secrets::is_secret;
pub use target::{GatewayTarget, TargetSettings};
