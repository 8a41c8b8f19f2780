//! What configurations are written in: texts, trees of values with their positions, and declarations of keys.
//!
//! ```text
//! text -> text (variables, YAML, JSON) -> TreeNode -> readers, by the declarations of keys
//! ```
//!
//! Nothing here knows which keys there are: `weir-document` and `weir-discovery` declare them.

#![forbid(unsafe_code)]

pub mod keys;
pub mod text;

pub use text::diagnostic::Diagnostic;
