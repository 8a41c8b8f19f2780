//! Other gateways' configurations, written as ours.
//!
//! Text becomes text: nothing here knows how a configuration is loaded or served. What cannot be carried over is never left out
//! silently: each such place becomes a [`ConversionFinding`].

mod answer;
pub mod apisix;
pub mod asyncapi;
pub mod caddy;
mod char_reader;
mod conversion;
mod directive;
mod document;
mod hashing;
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

/// What somebody who carries a configuration over has to know of one place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionFinding {
    pub place: SourcePlace,
    pub kind: FindingKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// It has no counterpart in what was written.
    Lost,
    /// It was carried over, and behaves differently in the respect that the text names.
    Differs,
}

/// The file is not one of the kind it was said to be.
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
