//! Types of options that several plugins share.

pub mod addresses;
pub mod early_template;
pub mod headers;
pub mod json_schema;
pub mod pattern;
