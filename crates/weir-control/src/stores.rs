//! Where configurations come from. A source yields documents; the loader brings along whatever takes I/O, so that compiling
//! needs none; a watch publishes what changes.
//!
//! ```text
//! source (a file, …) ──> DocumentLoader: secrets, files, names ──Document──> compile ──> publish
//! ```

mod beside;
pub mod file;
pub mod file_access;
pub mod loader;
mod names;
mod secrets;
mod seen;
pub mod source;
mod trusted;
pub mod watch;

pub use file::FileSource;
pub use file_access::FileAccess;
pub use loader::{DocumentLoader, LoadedDocument};
pub use source::{Source, SourceDocument, SourceVersion, Wake};
pub use watch::{ConfigWatch, watch};
