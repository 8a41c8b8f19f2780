//! The interface of sources of documents.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use super::seen::SeenFiles;
use super::trial::ChangeTrial;
pub use super::wake::Wake;
use crate::document::WrittenDocument;
use crate::text::diagnostic::Diagnostic;

/// A source of a configuration, such as a file, an embedded store, etcd or an API. It yields documents with a revision. What a
/// document only refers to (names, secrets, files, certificates) is added by [`super::DocumentLoader`], in the same way for every
/// source.
///
/// A source is used on a thread that may block, but not for ever: every call ends within a limit of the source's own.
pub trait Source: Send {
    /// The name in diagnostics.
    fn name(&self) -> &Arc<str>;

    /// The directory that relative file names in its documents start from.
    fn directory(&self) -> &Path;

    /// A version that changes whenever the document may have changed. Called often, so it must be cheap.
    ///
    /// # Errors
    /// If the source does not respond.
    fn version(&mut self) -> Result<SourceVersion, Diagnostic>;

    /// The current document. If its resources are in a store, they are those of `trial`.
    ///
    /// # Errors
    /// If there is no document that can be parsed. Other faults are in the document.
    fn read(&mut self, trial: Option<&mut ChangeTrial>) -> Result<SourceDocument, Vec<Diagnostic>>;

    /// Registers `wake`, which is called when something may have changed. `version` is called every second in any case.
    fn notify(&mut self, wake: Wake);

    /// Called when the document that was read last has been published.
    fn accepted(&mut self);
}

/// A document as read from a source.
#[derive(Debug)]
pub struct SourceDocument {
    pub document: WrittenDocument,
    /// The version from before reading, so that a write meanwhile counts as a change.
    pub version: SourceVersion,
    /// The included files, in their state from before reading.
    pub(super) included: SeenFiles,
    /// A revision that is equal on all nodes with the same content.
    pub revision: String,
    /// Set if the document may be part of a file that is still being written. It is then published only by a reload on request.
    pub incomplete: Option<Diagnostic>,
    /// The environment variables that a file uses, set or not.
    pub(super) variables: BTreeSet<Box<str>>,
}

/// The version of a source. Equal versions mean an unchanged document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceVersion(u64);

impl SourceVersion {
    pub fn of(what: &impl Hash) -> SourceVersion {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        SourceVersion(hasher.finish())
    }
}
