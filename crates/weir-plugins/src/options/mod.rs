//! Types of options that several plugins share.

pub(crate) mod addresses;
pub(crate) mod early_template;
pub(crate) mod headers;
pub(crate) mod host;
pub(crate) mod json_schema;
pub(crate) mod pattern;
