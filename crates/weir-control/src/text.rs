//! The text of a configuration: YAML with variables put in becomes a tree whose nodes know their place in the text, and
//! a diagnostic names such a place. Nothing here but `foreign` knows
//! what the keys of a configuration mean.

pub mod diagnostic;
pub(crate) mod fingerprint;
pub(crate) mod foreign;
pub(crate) mod json;
pub(crate) mod read;
pub(crate) mod substitute;
pub(crate) mod suggest;
pub mod tree;
mod units;
pub mod yaml;
