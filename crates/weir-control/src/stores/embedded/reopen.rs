//! Opening the file again after an I/O error: redb refuses everything after one, even when the disk has space again.

use std::sync::atomic::Ordering::{Acquire, Release};

use redb::{Database, ReadableDatabase, ReadableTable};

use super::{ABOUT, FileRole, RESOURCES, REVISIONS, StoreFile, json, opened, unusable};
use crate::stores::resources::{ResourceChange, RevisionRecord};
use crate::stores::store::StoreFailure;

impl StoreFile {
    /// Notes an error after which the file must be opened again.
    pub(super) fn note(&self, error: &redb::Error) {
        if matches!(error, redb::Error::Io(_) | redb::Error::PreviousIo) {
            self.has_failed.store(true, Release);
        }
    }

    /// Opens the file again if it has failed. A commit that has failed may be in the file nevertheless; it is undone, since its
    /// author was told that nothing was changed.
    pub(super) fn reopen_if_failed(&self) -> Result<(), StoreFailure> {
        if !self.has_failed.load(Acquire) {
            return Ok(());
        }
        let mut database = self.database_mut();
        if !self.has_failed.load(Acquire) {
            return Ok(());
        }
        // Closed first: a file can be open only once.
        *database = None;
        let again = opened(&self.path, self.role)?;
        if self.role == FileRole::Store {
            undo_after(&again, self.acknowledged.load(Acquire)).map_err(|error| unusable(&self.path, error))?;
        }
        *database = Some(again);
        self.has_failed.store(false, Release);
        Ok(())
    }
}

/// The revision of the last change.
pub(super) fn revision_of(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_read()?;
    Ok(transaction.open_table(ABOUT)?.get("revision")?.map_or(0, |revision| revision.value()))
}

/// Restores the state at a revision, and forgets the later ones.
fn undo_after(database: &Database, revision: u64) -> Result<(), redb::Error> {
    if revision_of(database)? <= revision {
        return Ok(());
    }
    let transaction = database.begin_write()?;
    {
        let mut resources = transaction.open_table(RESOURCES)?;
        let mut history = transaction.open_table(REVISIONS)?;
        let later = history.range(revision + 1..)?.rev();
        let later: Vec<(u64, Vec<u8>)> = later
            .map(|row| row.map(|(number, record)| (number.value(), record.value().to_vec())))
            .collect::<Result<_, _>>()?;
        for (number, record) in later {
            // The record was written by this process, so it can be read.
            let record: Option<RevisionRecord> = serde_json::from_slice(&record).ok();
            for ResourceChange { key, before, .. } in record.into_iter().flat_map(|record| record.changes).rev() {
                match before {
                    Some(before) => drop(resources.insert(key.as_str(), &*json(&before))?),
                    None => drop(resources.remove(key.as_str())?),
                }
            }
            history.remove(number)?;
        }
        transaction.open_table(ABOUT)?.insert("revision", revision)?;
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_testkit::TempDir;

    use super::super::EmbeddedStore;
    use super::*;
    use crate::stores::resources::{Author, ResourceKey, StoredResource};
    use crate::stores::store::ResourceStore;

    /// A revision that sets or removes resources, with their states before.
    fn revision(number: u64, changes: &[(&str, Option<u64>, Option<u64>)]) -> RevisionRecord {
        let stored = |of: &Option<u64>| {
            of.map(|at| StoredResource {
                json: format!("{{\"n\":{at}}}").into(),
                created: 1,
                modified: at,
                expires_ms: None,
            })
        };
        let change = |(key, before, after): &(&str, _, _)| ResourceChange {
            key: ResourceKey::parse(key).expect("a key"),
            before: stored(before),
            after: stored(after),
        };
        RevisionRecord {
            revision: number,
            at_ms: 5,
            author: Author::default(),
            changes: changes.iter().map(change).collect(),
        }
    }

    #[test]
    fn a_commit_that_failed_is_undone_when_the_file_is_opened_again() {
        let directory = TempDir::new();
        let store = EmbeddedStore::open(&directory.join("store.redb"), 10).expect("a new store");
        store.commit(&[revision(1, &[("routes/a", None, Some(1)), ("routes/b", None, Some(1))])]).expect("a disk");
        // These two are in the file, and their author was told that they are not.
        let lost = [
            revision(2, &[("routes/a", Some(1), Some(2)), ("routes/c", None, Some(2))]),
            revision(3, &[("routes/a", Some(2), None), ("routes/b", Some(1), None)]),
        ];
        store.commit(&lost).expect("a disk");
        store.file.acknowledged.store(1, Release);
        store.file.note(&redb::Error::PreviousIo);
        let set = store.load().expect("it is opened again");
        let found: BTreeMap<&str, u64> = set.all.iter().map(|(key, one)| (key.as_str(), one.modified)).collect();
        assert_eq!((set.revision, found), (1, [("routes/a", 1), ("routes/b", 1)].into()));
        assert_eq!(store.history(u64::MAX, 10).expect("a store").len(), 1);
        store.commit(&[revision(2, &[("routes/d", None, Some(2))])]).expect("a disk");
        assert_eq!(store.load().expect("a store").revision, 2);
    }

    #[test]
    fn a_commit_of_more_revisions_than_are_kept_can_be_undone() {
        let directory = TempDir::new();
        let store = EmbeddedStore::open(&directory.join("store.redb"), 1).expect("a new store");
        store.commit(&[revision(1, &[("routes/a", None, Some(1))])]).expect("a disk");
        let lost = [
            revision(2, &[("routes/a", Some(1), Some(2))]),
            revision(3, &[("routes/b", None, Some(3))]),
            revision(4, &[("routes/a", Some(2), Some(4))]),
        ];
        store.commit(&lost).expect("a disk");
        store.file.acknowledged.store(1, Release);
        store.file.note(&redb::Error::PreviousIo);
        let set = store.load().expect("it is opened again");
        let found: Vec<(&str, u64)> = set.all.iter().map(|(key, one)| (key.as_str(), one.modified)).collect();
        assert_eq!((set.revision, found), (1, vec![("routes/a", 1)]));
        store.commit(&[revision(2, &[("routes/c", None, Some(2))])]).expect("a disk");
        assert_eq!(store.history(u64::MAX, 10).expect("a store").len(), 1, "one is kept");
    }

    #[test]
    fn a_failed_commit_to_a_copy_stays_and_is_made_again() {
        let directory = TempDir::new();
        let store = EmbeddedStore::open_copy(&directory.join("copy.redb")).expect("a new store");
        store.commit(&[revision(1, &[("routes/a", None, Some(1))])]).expect("a disk");
        let failed = [revision(2, &[("routes/a", None, Some(2)), ("routes/b", None, Some(2))])];
        store.commit(&failed).expect("a disk");
        store.file.acknowledged.store(1, Release);
        store.file.note(&redb::Error::PreviousIo);
        let found = || {
            let set = store.load().expect("a store");
            (set.revision, set.all.values().map(|one| one.modified).collect::<Vec<_>>())
        };
        assert_eq!(found(), (2, vec![2, 2]));
        store.commit(&failed).expect("a disk");
        assert_eq!(found(), (2, vec![2, 2]), "it is made again");
    }
}
