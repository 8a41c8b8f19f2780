//! Converts configurations of other gateways to Weir's.
//!
//! Text is converted to text: this crate does not load or serve configurations. Settings that cannot be converted are never left
//! out silently: each of them becomes a [`ConversionFinding`].

#![forbid(unsafe_code)]

mod answer;
pub mod apisix;
pub mod asyncapi;
pub mod caddy;
mod char_reader;
mod conversion;
mod directive;
mod document;
mod forwarding;
mod hashing;
pub mod ingress;
pub mod kong;
mod login;
pub mod nginx;
pub mod openapi;
mod output;
mod path;
mod pattern;
mod schema;
mod servers;
mod yaml;

use std::fmt;

pub use output::Converted;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePlace {
    pub file: String,
    pub line: usize,
}

/// A remark about one place of the original configuration, for the user who migrates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionFinding {
    pub place: SourcePlace,
    pub kind: FindingKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// The setting has no counterpart, and is not in the result.
    Lost,
    /// The setting was converted, but behaves differently in the respect that the text names.
    Differs,
}

/// The file does not have the given format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub place: SourcePlace,
    pub text: String,
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file, self.line)
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            FindingKind::Lost => "not converted",
            FindingKind::Differs => "behaves differently",
        })
    }
}

impl fmt::Display for ConversionFinding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}: {}", self.place, self.kind, self.text)
    }
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.text)
    }
}
