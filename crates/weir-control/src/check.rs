//! Checking without publishing: what `weir check` does.

use weir_plugin::Registry;

use crate::compile::{Compiled, compile};
use crate::diagnostic::Diagnostic;
use crate::document::Document;
use crate::stores::file::FileStore;
use crate::yaml::Limits;

/// Checks a file, with the variables of this process. Names of hosts are not looked up.
///
/// # Errors
/// Everything that is wrong with it; what is in the `Ok` is accepted but probably not meant.
pub fn check_file(path: &std::path::Path, registry: &Registry) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let loaded = FileStore::new(path).read()?;
    compile(&loaded.document, registry).map(|Compiled { warnings, .. }| warnings)
}

/// Checks a text, with no variables set and no plugins. Never panics, whatever the text.
///
/// # Errors
/// As [`check_file`].
pub fn check_text(text: &str) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    let document = Document::parse("text", text, &|_| None, Limits::default())?;
    compile(&document, &Registry::new(&[])).map(|Compiled { warnings, .. }| warnings)
}
