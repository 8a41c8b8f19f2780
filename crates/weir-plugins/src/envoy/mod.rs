//! What the plugins that call services of Envoy's public API have in common.

pub mod fields;
pub mod messages;
pub mod names;
pub mod service;
