//! The interface of stores of resources.

use std::collections::BTreeSet;
use std::sync::Arc;

pub use super::failure::{CommitFailure, StoreFailure};
use super::resources::{ResourceKey, ResourceSet, RevisionRecord};
use super::shared::SharedStore;
use crate::text::diagnostic::Diagnostic;

/// The most bytes of revisions that are read at once; a larger one is read alone.
pub const MOST_READ: u64 = 8 << 20;

/// Returns the new text of a resource; `None` leaves it as it is.
pub type RenewedText<'a> = dyn Fn(&ResourceKey, &Arc<str>) -> Option<Arc<str>> + 'a;

/// What is served in place of a resource that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Substitute {
    /// The text that was served last, if there is one and it is without faults.
    Last,
    Nothing,
    Text(Arc<str>),
}

/// Keeps resources and their history. Revisions increase; in a store of one node they are numbered from 1 without gaps. Any
/// thread may read; this process has one writer.
pub trait ResourceStore: Send + Sync {
    /// The name in diagnostics and in `/status`.
    fn name(&self) -> String;

    /// All resources in it.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load(&self) -> Result<ResourceSet, StoreFailure>;

    /// Writes revisions, all or none of them, and returns the number of the last one. They are durable when it returns. A shared
    /// store accepts one at a time, and assigns its number.
    ///
    /// # Errors
    /// If nothing was written.
    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure>;

    /// The latest revisions before `before`, the last one first, at most `count`, and not more after those that take [`MOST_READ`]
    /// bytes together. None, if there are no more.
    ///
    /// # Errors
    /// If they cannot be read.
    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure>;

    /// Whether the last change could be written to the file of the store; `None` without a file.
    fn is_writable(&self) -> Option<bool> {
        None
    }

    /// The additional operations, if other nodes use the store as well.
    fn shared(&self) -> Option<&dyn SharedStore> {
        None
    }

    /// Replaces the texts of resources, in the history as well, where `renew` returns another one. The old texts are erased from
    /// the store. This is not a change: revisions stay. A shared store does nothing.
    ///
    /// # Errors
    /// If nothing was written.
    fn rewrite(&self, renew: &RenewedText) -> Result<(), StoreFailure> {
        let _ = renew;
        Ok(())
    }

    /// What is served in place of a resource with this text, which cannot be served.
    fn substitute(&self, key: &ResourceKey, json: &str) -> Substitute {
        let _ = (key, json);
        Substitute::Last
    }

    /// What is told of a fault of a resource with this text: in logs, statuses and answers.
    fn told(&self, key: &ResourceKey, json: &str, fault: Diagnostic) -> Diagnostic {
        let _ = (key, json);
        fault
    }

    /// The resources whose stored form differs from how they would be written now.
    fn outdated(&self) -> BTreeSet<ResourceKey> {
        BTreeSet::new()
    }

    /// Releases the store's file for another process (`true`), or opens it again (`false`).
    ///
    /// # Errors
    /// If it cannot be opened again.
    fn lend(&self, lent: bool) -> Result<(), StoreFailure> {
        let _ = lent;
        Ok(())
    }
}
