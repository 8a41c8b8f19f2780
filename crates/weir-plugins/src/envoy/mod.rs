//! What the plugins that call services of Envoy's public API have in common.

pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod service;
