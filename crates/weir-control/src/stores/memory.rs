//! Resources in memory only: they come from the API and are lost with the process (API-driven standalone mode).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::resources::{ResourceSet, RevisionRecord};
use super::store::{CommitFailure, ResourceStore, StoreFailure};

/// Keeps only a history of at most `kept` revisions.
#[derive(Debug)]
pub struct MemoryStore {
    history: Mutex<VecDeque<RevisionRecord>>,
    kept: usize,
}

impl MemoryStore {
    pub fn new(kept: usize) -> MemoryStore {
        MemoryStore { history: Mutex::default(), kept }
    }

    fn history_now(&self) -> MutexGuard<'_, VecDeque<RevisionRecord>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResourceStore for MemoryStore {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        Ok(ResourceSet::default())
    }

    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        let mut history = self.history_now();
        history.extend(revisions.iter().cloned());
        let surplus = history.len().saturating_sub(self.kept);
        history.drain(..surplus);
        Ok(revisions.last().map_or(0, |record| record.revision))
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        let history = self.history_now();
        Ok(history.iter().rev().filter(|record| record.revision < before).take(count).cloned().collect())
    }
}
