//! The configuration as written: the document that is read from a text, and the declarations of its keys.
//!
//! ```text
//! text -> TreeNode (weir-keys) -> WrittenDocument -> Document (with secrets) -> CompleteDocument (with files and names)
//! ```
//!
//! Nothing here reads files, knows plugins or compiles: `weir-control` does.

#![forbid(unsafe_code)]

pub mod document;

pub use document::Document;
pub use weir_keys::{Diagnostic, keys, text};
pub use weir_lua as lua;

/// The faults of a text, found without plugins.
#[cfg(test)]
fn check_text(text: &str) -> Result<(), Vec<Diagnostic>> {
    let written = document::WrittenDocument::parse("text", text, &|_| None, text::yaml::TextLimits::default())?;
    let document = written.without_secrets();
    if document.faults.is_empty() { Ok(()) } else { Err(document.faults) }
}
