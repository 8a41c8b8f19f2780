//! The control plane: a configuration as written becomes a snapshot as meant, or a list of everything that is wrong
//! with it.

pub mod compile;
pub mod diagnostic;
pub mod document;
mod read;
mod substitute;
mod suggest;
pub mod tree;
mod units;
pub mod yaml;

pub use compile::{Compiled, compile};
pub use diagnostic::Diagnostic;
pub use document::Document;
pub use substitute::{Lookup, process_environment};
