//! The text of a configuration: YAML with variables replaced is parsed to a tree whose nodes have positions in the text, and
//! diagnostics refer to these positions. Only `foreign` knows what the keys of a configuration mean.

pub mod diagnostic;
pub mod edit;
pub mod fingerprint;
pub mod foreign;
pub mod json;
pub mod read;
pub mod substitute;
pub mod tree;
pub mod yaml;

pub use weir_plugin::units;
