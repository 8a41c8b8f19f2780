//! The copy of a shared store's resources on disk, which a node starts with while the store cannot be reached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::embedded::EmbeddedStore;
use super::live::now_ms;
use super::resources::{Author, ResourceChange, ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use super::store::{CommitFailure, ResourceStore};

/// The pause after a write that failed.
const RETRY: Duration = Duration::from_secs(2);

/// The copy, and what it lacks. Nothing is lost by a write that fails (a full disk, a file lent to another process): the next one
/// has it, too.
pub(super) struct DiskCopy {
    /// The shared store: `etcd`.
    of: &'static str,
    store: Option<Arc<EmbeddedStore>>,
    lacks: MissingContent,
    writing: Option<JoinHandle<Result<(), FailedWrite>>>,
    failed_at: Option<Instant>,
}

/// What the copy lacks.
#[derive(Default)]
struct MissingContent {
    revision: u64,
    /// If set, the copy must have these resources and no others, before `changes`.
    whole: Option<ResourceSet>,
    changes: BTreeMap<ResourceKey, Option<StoredResource>>,
}

/// A write that failed, with what was to be written.
struct FailedWrite {
    lacks: MissingContent,
    problem: String,
}

impl MissingContent {
    fn is_empty(&self) -> bool {
        self.whole.is_none() && self.changes.is_empty()
    }

    /// Adds what an earlier write has failed to write: everything here is newer.
    fn add_older(&mut self, older: MissingContent) {
        if self.whole.is_some() {
            return;
        }
        self.whole = older.whole;
        for (key, resource) in older.changes {
            self.changes.entry(key).or_insert(resource);
        }
    }

    /// Writes to `store` what it lacks.
    fn write(self, of: &str, store: &EmbeddedStore) -> Result<(), FailedWrite> {
        self.try_write(of, store).map_err(|problem| FailedWrite { lacks: self, problem })
    }

    fn try_write(&self, of: &str, store: &EmbeddedStore) -> Result<(), String> {
        let mut changes = BTreeMap::new();
        if let Some(whole) = &self.whole {
            let known = store.load().map_err(|failure| failure.to_string())?;
            let gone = known.all.keys().filter(|key| !whole.all.contains_key(*key)).map(|key| (key.clone(), None));
            let is_new = |(key, resource): &(&ResourceKey, &StoredResource)| known.all.get(*key) != Some(*resource);
            let new = whole.all.iter().filter(is_new).map(|(key, resource)| (key.clone(), Some(resource.clone())));
            changes.extend(gone.chain(new));
        }
        changes.extend(self.changes.iter().map(|(key, resource)| (key.clone(), resource.clone())));
        if changes.is_empty() {
            return Ok(());
        }
        let change = |(key, after)| ResourceChange { key, before: None, after };
        let changes = changes.into_iter().map(change).collect();
        let author = Author { name: of.to_owned(), ..Author::default() };
        let record = RevisionRecord { revision: self.revision, at_ms: now_ms(), author, changes };
        match store.commit(&[record]) {
            Ok(_) => Ok(()),
            Err(CommitFailure::Failed(failure)) => Err(failure.to_string()),
            Err(CommitFailure::MovedOn) => Err("another process has changed it".to_owned()),
        }
    }
}

impl DiskCopy {
    /// The copy in `store`, with the resources of `revision`. Without a store nothing is written.
    pub(super) fn new(of: &'static str, store: Option<Arc<EmbeddedStore>>, revision: u64) -> DiskCopy {
        let lacks = MissingContent { revision, ..MissingContent::default() };
        DiskCopy { of, store, lacks, writing: None, failed_at: None }
    }

    /// Called when everything has been read.
    pub(super) fn replace(&mut self, set: &ResourceSet) {
        if self.store.is_some() {
            let (revision, whole) = (set.revision, Some(set.clone()));
            self.lacks = MissingContent { revision, whole, changes: BTreeMap::new() };
        }
    }

    pub(super) fn add(&mut self, revision: u64, resources: &[(ResourceKey, Option<StoredResource>)]) {
        if self.store.is_some() {
            self.lacks.revision = revision;
            self.lacks.changes.extend(resources.iter().cloned());
        }
    }

    /// Writes what is missing on another thread, unless a write is in progress or has just failed.
    pub(super) async fn write(&mut self) {
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return;
        }
        self.end_write().await;
        if self.failed_at.is_none_or(|at| at.elapsed() >= RETRY) {
            self.begin_write();
        }
    }

    /// Writes everything that is missing, before the process ends.
    pub(super) async fn finish(&mut self) {
        self.end_write().await;
        self.begin_write();
        self.end_write().await;
    }

    fn begin_write(&mut self) {
        let Some(store) = self.store.clone().filter(|_| !self.lacks.is_empty()) else { return };
        let (of, revision) = (self.of, self.lacks.revision);
        let lacks = std::mem::replace(&mut self.lacks, MissingContent { revision, ..MissingContent::default() });
        self.writing = Some(tokio::task::spawn_blocking(move || lacks.write(of, &store)));
    }

    /// Waits for the write in progress.
    async fn end_write(&mut self) {
        let Some(writing) = self.writing.take() else { return };
        match writing.await {
            Ok(Err(FailedWrite { lacks, problem })) => {
                self.lacks.add_older(lacks);
                if self.failed_at.replace(Instant::now()).is_none() {
                    tracing::warn!(
                        %problem, store = self.of,
                        "the copy of the store's resources cannot be written; it is tried again, and until then a start without \
                         the store has older resources"
                    );
                }
            }
            // The outer error is a panic of the write, or the end of the runtime.
            Ok(Ok(())) | Err(_) => self.failed_at = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_testkit::TempDir;

    use super::*;

    fn resource(revision: u64) -> Option<StoredResource> {
        Some(StoredResource { json: "{}".into(), created: revision, modified: revision, expires_ms: None })
    }

    #[tokio::test]
    async fn a_write_that_fails_loses_nothing() {
        let directory = TempDir::new();
        let store = Arc::new(EmbeddedStore::open_copy(&directory.join("copy.redb")).expect("a new store"));
        let [kept, gone, new] = ["kept", "gone", "new"].map(|id| ResourceKey::new("routes", id));
        let mut copy = DiskCopy::new("etcd", Some(Arc::clone(&store)), 0);
        copy.add(1, &[(kept.clone(), resource(1)), (gone.clone(), resource(1))]);
        copy.finish().await;

        let all = [(kept.clone(), resource(2).expect("one"))].into();
        store.lend(true).expect("it is lent");
        copy.replace(&ResourceSet { revision: 2, all });
        copy.finish().await;
        copy.add(3, &[(new.clone(), resource(3))]);
        copy.finish().await;
        store.lend(false).expect("it is back");
        copy.add(4, &[(kept.clone(), resource(4))]);
        copy.finish().await;

        let ResourceSet { revision, all } = store.load().expect("the copy");
        assert_eq!(revision, 4);
        assert_eq!(all.get(&kept), resource(4).as_ref());
        assert_eq!(all.get(&new), resource(3).as_ref(), "a change whose write failed is there");
        assert!(!all.contains_key(&gone), "and so is a deletion");
    }
}
