//! Values that stand in the options of several plugins.

pub mod addresses;
pub mod headers;
pub mod pattern;
