//! Resources in memory only: they come from the API and are lost with the process (API-driven standalone mode).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::resources::{ResourceSet, RevisionRecord};
use super::store::{CommitFailure, MOST_READ, ResourceStore, StoreFailure};

/// Keeps only a history of at most `kept` revisions, which take at most `kept_bytes`.
#[derive(Debug)]
pub(super) struct MemoryStore {
    history: Mutex<KeptHistory>,
    kept: usize,
    kept_bytes: u64,
}

#[derive(Debug, Default)]
struct KeptHistory {
    records: VecDeque<RevisionRecord>,
    /// The bytes that they take together.
    bytes: u64,
}

impl MemoryStore {
    pub(super) fn new(kept: usize, kept_bytes: u64) -> MemoryStore {
        MemoryStore { history: Mutex::default(), kept: kept.max(1), kept_bytes }
    }

    fn history_now(&self) -> MutexGuard<'_, KeptHistory> {
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
        let history = &mut *self.history_now();
        history.bytes += revisions.iter().map(RevisionRecord::bytes).sum::<u64>();
        history.records.extend(revisions.iter().cloned());
        // The last one is kept, however large it is.
        while history.records.len() > self.kept || history.bytes > self.kept_bytes && history.records.len() > 1 {
            history.bytes -= history.records.pop_front().map_or(0, |record| record.bytes());
        }
        Ok(revisions.last().map_or(0, |record| record.revision))
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        let mut bytes = 0;
        let has_room = |record: &&RevisionRecord| {
            let had_room = bytes < MOST_READ;
            bytes += record.bytes();
            had_room
        };
        let history = self.history_now();
        let before = history.records.iter().rev().filter(|record| record.revision < before);
        Ok(before.take(count).take_while(has_room).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::resources::{Author, ResourceChange, ResourceKey, StoredResource};
    use super::*;

    #[test]
    fn the_history_is_bounded_in_bytes_and_read_in_parts() {
        let store = MemoryStore::new(100, 16 << 20);
        for revision in 1..=8 {
            let json = "x".repeat(3 << 20).into();
            let after = Some(StoredResource { json, created: revision, modified: revision, expires_ms: None });
            let changes = vec![ResourceChange { key: ResourceKey::new("routes", "a"), before: None, after }];
            let record = RevisionRecord { revision, at_ms: 5, author: Author::default(), changes };
            store.commit(&[record]).expect("memory");
        }
        let numbers = |before: u64| -> Vec<u64> {
            store.history(before, 100).expect("memory").iter().map(|record| record.revision).collect()
        };
        assert_eq!((numbers(u64::MAX), numbers(6), numbers(4)), (vec![8, 7, 6], vec![5, 4], vec![]));
    }
}
