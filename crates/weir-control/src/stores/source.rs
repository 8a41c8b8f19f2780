//! Where documents come from.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use super::seen::SeenFiles;
use crate::document::Document;
use crate::text::diagnostic::Diagnostic;

/// A file, an embedded store, etcd, an API: whatever holds the configuration. It yields documents with a revision. Names,
/// secrets, files and certificates, which a document only refers to, are brought along by [`super::DocumentLoader`], the
/// same way for every source.
///
/// A source is used on a thread that may wait, but not for ever: every call ends within a limit of the source's own.
pub trait Source: Send {
    /// The name that diagnostics begin with.
    fn name(&self) -> &Arc<str>;

    /// Where relative names of files in its documents start from.
    fn directory(&self) -> &Path;

    /// Another value whenever there may be another document. Called often; costs little.
    ///
    /// # Errors
    /// Where the source does not answer.
    fn version(&mut self) -> Result<SourceVersion, Diagnostic>;

    /// The document as it is now.
    ///
    /// # Errors
    /// Where there is none that can be parsed. Other faults are in the document.
    fn read(&mut self) -> Result<SourceDocument, Vec<Diagnostic>>;

    /// From now on `wake` is called when something may have happened. A source that can't tell is asked every second.
    fn notify(&mut self, wake: Wake);

    /// The document that was read last is served now.
    fn accepted(&mut self);
}

/// Tells a watch that there may be something new.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A document as a source holds it.
#[derive(Debug)]
pub struct SourceDocument {
    pub document: Document,
    /// From before it was read, so that what is written meanwhile is a change.
    pub version: SourceVersion,
    /// The files it includes, from before they were read.
    pub(super) included: SeenFiles,
    /// The same for the same content on every node.
    pub revision: String,
    /// Why the document may be part of one that is still being written. It is served only on request.
    pub incomplete: Option<Diagnostic>,
}

/// Which of its documents a source has. Equal versions hold the same document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceVersion(u64);

impl SourceVersion {
    pub fn of(what: &impl Hash) -> SourceVersion {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        SourceVersion(hasher.finish())
    }
}
