//! What keeps resources, whatever it is: a file of this node, or memory.

use std::collections::BTreeSet;
use std::sync::Arc;

pub use super::failure::{CommitFailure, StoreFailure};
use super::resources::{ResourceKey, ResourceSet, RevisionRecord};
use super::shared::SharedStore;

/// From the text of a resource to another one for it; nothing leaves it as it is.
pub type RenewedText<'a> = dyn Fn(&ResourceKey, &Arc<str>) -> Option<Arc<str>> + 'a;

/// Keeps resources and their history. Revisions grow; those of a store that nobody else changes count from 1, one by one. Reads may
/// come from any thread; there is one writer in this process.
pub trait ResourceStore: Send + Sync {
    /// As diagnostics and `/status` name it.
    fn name(&self) -> String;

    /// Everything that is in it.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn load(&self) -> Result<ResourceSet, StoreFailure>;

    /// Writes revisions, all or none of them, and returns the number of the last one. They are durable when it returns. A store
    /// that others change as well takes one at a time, and gives it a number of its own.
    ///
    /// # Errors
    /// Where nothing was written.
    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure>;

    /// The latest revisions before `before`, the last one first, no more than `count`.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure>;

    /// What it can do where other nodes change it, too.
    fn shared(&self) -> Option<&dyn SharedStore> {
        None
    }

    /// Writes the text of resources anew, in the history as well, where `renew` has another one. Nothing of the old texts is left in
    /// what the store keeps. It is not a change: revisions stay. Stores that others use as well leave their texts as they are.
    ///
    /// # Errors
    /// Where nothing was written.
    fn rewrite(&self, renew: &RenewedText) -> Result<(), StoreFailure> {
        let _ = renew;
        Ok(())
    }

    /// The resources that would look different if they were written again as they are.
    fn outdated(&self) -> BTreeSet<ResourceKey> {
        BTreeSet::new()
    }

    /// Lets another process open what it keeps resources in, or takes it back.
    ///
    /// # Errors
    /// Where it cannot be taken back.
    fn lend(&self, lent: bool) -> Result<(), StoreFailure> {
        let _ = lent;
        Ok(())
    }
}
