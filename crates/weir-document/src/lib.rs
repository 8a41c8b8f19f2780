//! The configuration as written: text, trees of values with their positions, and the document that is read from them.
//!
//! ```text
//! text -> text (variables, YAML, JSON) -> TreeNode -> Document
//! ```
//!
//! Nothing here reads files, knows plugins or compiles: `weir-control` does.

#![forbid(unsafe_code)]

pub mod document;
pub mod keys;
pub mod text;

pub use document::Document;
pub use text::diagnostic::Diagnostic;

/// The faults of a text, found without plugins.
#[cfg(test)]
fn check_text(text: &str) -> Result<(), Vec<Diagnostic>> {
    let written = document::WrittenDocument::parse("text", text, &|_| None, text::yaml::TextLimits::default())?;
    let document = written.without_secrets();
    if document.faults.is_empty() { Ok(()) } else { Err(document.faults) }
}
