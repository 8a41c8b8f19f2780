//! A store in one file of this node (redb).
//!
//! A commit is durable when it returns. A file that is not a store, or damaged, is refused and not changed.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::resources::{ResourceChange, ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use super::store::{CommitFailure, RenewedText, ResourceStore, StoreFailure};

/// The version of the file's schema.
const FORMAT: u64 = 1;

/// From a resource's key to the resource, as JSON.
const RESOURCES: TableDefinition<&str, &[u8]> = TableDefinition::new("resources");
/// From a revision's number to its record, as JSON.
const REVISIONS: TableDefinition<u64, &[u8]> = TableDefinition::new("revisions");
const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("about");

/// The cache of pages, in bytes. Small, since resources are read only once.
const CACHE_BYTES: usize = 8 << 20;
/// How long to wait for the lock of the file: a previous process that ends, or hands over, releases it within this time.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_LOOK: Duration = Duration::from_millis(20);

/// A file with resources and their history.
pub struct EmbeddedStore {
    path: PathBuf,
    /// The number of revisions that are kept.
    kept: u64,
    /// `None` while the file is lent to another process.
    database: RwLock<Option<Database>>,
}

impl EmbeddedStore {
    /// Opens the file, or creates it. Keeps the last `kept` revisions.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn open(path: &Path, kept: u64) -> Result<EmbeddedStore, StoreFailure> {
        if !path.try_exists().map_err(|error| unusable(path, error))? {
            make(path, &StoreRows::default())?;
        }
        let database = RwLock::new(Some(opened(path)?));
        Ok(EmbeddedStore { path: path.to_owned(), kept: kept.max(1), database })
    }

    fn with<T>(&self, use_it: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreFailure> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = &*database else {
            return Err(StoreFailure::new(
                "the store is in use by another process during an upgrade",
                "try again in a moment",
            ));
        };
        use_it(database).map_err(|error| unusable(&self.path, error))
    }

    fn write(&self, database: &Database, revisions: &[RevisionRecord]) -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        {
            let mut resources = transaction.open_table(RESOURCES)?;
            let mut history = transaction.open_table(REVISIONS)?;
            for record in revisions {
                for change in &record.changes {
                    match &change.after {
                        Some(resource) => drop(resources.insert(change.key.as_str(), &*json(resource))?),
                        None => drop(resources.remove(change.key.as_str())?),
                    }
                }
                history.insert(record.revision, &*json(record))?;
            }
            let last = revisions.last().map_or(0, |record| record.revision);
            transaction.open_table(ABOUT)?.insert("revision", last)?;
            while history.len()? > self.kept && history.pop_first()?.is_some() {}
        }
        Ok(transaction.commit()?)
    }
}

impl ResourceStore for EmbeddedStore {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn load(&self) -> Result<ResourceSet, StoreFailure> {
        let rows = self.with(|database| {
            let transaction = database.begin_read()?;
            let revision = transaction.open_table(ABOUT)?.get("revision")?;
            let revision = revision.map_or(0, |revision| revision.value());
            let mut rows = Vec::new();
            for row in transaction.open_table(RESOURCES)?.iter()? {
                let (key, resource) = row?;
                rows.push((key.value().to_owned(), resource.value().to_vec()));
            }
            Ok((revision, rows))
        })?;
        let (revision, rows) = rows;
        let mut set = ResourceSet { revision, ..ResourceSet::default() };
        for (key, resource) in rows {
            let read: Option<StoredResource> = serde_json::from_slice(&resource).ok();
            let Some((key, resource)) = ResourceKey::parse(&key).zip(read) else {
                return Err(damaged(&self.path, &format!("the resource `{key}` cannot be read")));
            };
            set.all.insert(key, resource);
        }
        Ok(set)
    }

    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        self.with(|database| self.write(database, revisions))?;
        Ok(revisions.last().map_or(0, |record| record.revision))
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        let records = self.with(|database| {
            let transaction = database.begin_read()?;
            let history = transaction.open_table(REVISIONS)?;
            let rows = history.range(..before)?.rev().take(count);
            rows.map(|row| Ok(row?.1.value().to_vec())).collect::<Result<Vec<_>, redb::Error>>()
        })?;
        let read = |record: Vec<u8>| serde_json::from_slice(&record);
        records
            .into_iter()
            .map(|record| {
                read(record).map_err(|error| damaged(&self.path, &format!("a revision cannot be read: {error}")))
            })
            .collect()
    }

    fn rewrite(&self, renew: &RenewedText) -> Result<(), StoreFailure> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &*database else { return Ok(()) };
        let rows = renewed(&self.path, open, renew)?;
        if !rows.is_changed {
            return Ok(());
        }
        // Into a new file: redb does not erase freed pages, which would still contain the old texts.
        make(&self.path, &rows)?;
        *database = None;
        *database = Some(opened(&self.path)?);
        Ok(())
    }

    fn lend(&self, lent: bool) -> Result<(), StoreFailure> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        match lent {
            true => *database = None,
            false if database.is_none() => *database = Some(opened(&self.path)?),
            false => {}
        }
        Ok(())
    }
}

/// All rows of a store.
#[derive(Default)]
struct StoreRows {
    revision: u64,
    resources: Vec<(String, Vec<u8>)>,
    history: Vec<(u64, Vec<u8>)>,
    is_changed: bool,
}

/// All rows, with texts replaced as `renew` returns them.
fn renewed(path: &Path, database: &Database, renew: &RenewedText) -> Result<StoreRows, StoreFailure> {
    let read = || -> Result<StoreRows, redb::Error> {
        let transaction = database.begin_read()?;
        let revision = transaction.open_table(ABOUT)?.get("revision")?.map_or(0, |revision| revision.value());
        let mut rows = StoreRows { revision, ..StoreRows::default() };
        for row in transaction.open_table(RESOURCES)?.iter()? {
            let (key, resource) = row?;
            rows.resources.push((key.value().to_owned(), resource.value().to_vec()));
        }
        for row in transaction.open_table(REVISIONS)?.iter()? {
            let (revision, record) = row?;
            rows.history.push((revision.value(), record.value().to_vec()));
        }
        Ok(rows)
    };
    let mut rows = read().map_err(|error| unusable(path, error))?;
    let mut is_changed = false;
    let mut renew_one = |key: &ResourceKey, resource: &mut StoredResource| {
        if let Some(text) = renew(key, &resource.json) {
            resource.json = text;
            is_changed = true;
        }
    };
    for (key, row) in &mut rows.resources {
        let read: Option<StoredResource> = serde_json::from_slice(row).ok();
        let Some((key, mut resource)) = ResourceKey::parse(key).zip(read) else { continue };
        renew_one(&key, &mut resource);
        *row = json(&resource);
    }
    for (_, row) in &mut rows.history {
        let Ok(mut record) = serde_json::from_slice::<RevisionRecord>(row) else { continue };
        for ResourceChange { key, before, after } in &mut record.changes {
            [before, after].into_iter().flatten().for_each(|resource| renew_one(key, resource));
        }
        *row = json(&record);
    }
    rows.is_changed = is_changed;
    Ok(rows)
}

/// Created under another name first, so that the file of this name is always a complete store.
fn make(path: &Path, rows: &StoreRows) -> Result<(), StoreFailure> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory).map_err(|error| unusable(path, error))?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(path, error)),
        _ => {}
    }
    let made = || -> Result<(), redb::Error> {
        let database = Database::create(&new)?;
        only_for_the_owner(&new)?;
        let transaction = database.begin_write()?;
        {
            let mut resources = transaction.open_table(RESOURCES)?;
            for (key, resource) in &rows.resources {
                resources.insert(key.as_str(), &**resource)?;
            }
            let mut history = transaction.open_table(REVISIONS)?;
            for (revision, record) in &rows.history {
                history.insert(revision, &**record)?;
            }
            let mut about = transaction.open_table(ABOUT)?;
            about.insert("format", FORMAT)?;
            if rows.revision > 0 {
                about.insert("revision", rows.revision)?;
            }
        }
        transaction.commit()?;
        Ok(fs::rename(&new, path)?)
    };
    made().map_err(|error| unusable(path, error))
}

/// The file contains keys of consumers.
fn only_for_the_owner(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

/// Opens the file; waits if another process is about to close it.
fn opened(path: &Path) -> Result<Database, StoreFailure> {
    // redb would initialize an empty file as a new store.
    if fs::metadata(path).map_err(|error| unusable(path, error))?.len() == 0 {
        return Err(damaged(path, "the file is empty"));
    }
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        // A damaged file can make the library panic.
        let tried = catch_unwind(AssertUnwindSafe(|| {
            Builder::new().set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true).open(path)
        }));
        match tried {
            Ok(Ok(database)) => return checked(path, database),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) if Instant::now() < deadline => thread::sleep(LOCK_LOOK),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => {
                let problem = format!("the store {} is in use by another process", path.display());
                return Err(StoreFailure::new(problem, "stop that process, or configure a different `store.path`"));
            }
            Ok(Err(error)) => return Err(damaged(path, &error.to_string())),
            Err(_) => return Err(damaged(path, "its pages are inconsistent")),
        }
    }
}

fn checked(path: &Path, database: Database) -> Result<Database, StoreFailure> {
    let format = || -> Result<Option<u64>, redb::Error> {
        let transaction = database.begin_read()?;
        let format = transaction.open_table(ABOUT)?.get("format")?;
        Ok(format.map(|format| format.value()))
    };
    match format() {
        Ok(Some(FORMAT)) => Ok(database),
        Ok(Some(other)) => {
            let problem =
                format!("the store {} has format {other}, and this version supports format {FORMAT}", path.display());
            Err(StoreFailure::new(problem, "start the version of weir that wrote it"))
        }
        Ok(None) => Err(damaged(path, "it has no format number")),
        Err(error) => Err(damaged(path, &error.to_string())),
    }
}

fn damaged(path: &Path, why: &str) -> StoreFailure {
    StoreFailure::new(
        format!("the store {} cannot be read: {why}", path.display()),
        "the file was not changed; replace it with a backup, or move it away and import an export with `weir store import`",
    )
}

fn unusable(path: &Path, error: impl std::fmt::Display) -> StoreFailure {
    let advice = "check the disk and the permissions of the file";
    StoreFailure::new(format!("the store {} cannot be used: {error}", path.display()), advice)
}

/// Serializing resources and records as JSON cannot fail.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("it has text keys alone")
}

#[cfg(test)]
mod tests {
    use weir_testkit::TempDir;

    use super::*;
    use crate::stores::resources::Author;

    fn put(revision: u64, key: &str) -> RevisionRecord {
        let after = StoredResource {
            json: format!("{{\"n\":{revision}}}").into(),
            created: 1,
            modified: revision,
            expires_ms: None,
        };
        let change = ResourceChange { key: ResourceKey::parse(key).expect("a key"), before: None, after: Some(after) };
        RevisionRecord { revision, at_ms: 5, author: Author::default(), changes: vec![change] }
    }

    fn deleted(revision: u64, key: &str) -> RevisionRecord {
        let mut record = put(revision, key);
        record.changes[0].after = None;
        record
    }

    #[test]
    fn what_was_committed_is_there_after_the_file_was_opened_again() {
        let directory = TempDir::new();
        let path = directory.join("data/store.redb");
        let store = EmbeddedStore::open(&path, 3).expect("a new store");
        assert_eq!(store.load(), Ok(ResourceSet::default()));
        store.commit(&[put(1, "routes/a"), put(2, "routes/b")]).expect("a disk");
        store.commit(&[put(3, "routes/c"), deleted(4, "routes/a")]).expect("a disk");
        drop(store);
        let store = EmbeddedStore::open(&path, 3).expect("the same store");
        let set = store.load().expect("a store");
        let keys: Vec<&str> = set.all.keys().map(ResourceKey::as_str).collect();
        assert_eq!((set.revision, keys), (4, vec!["routes/b", "routes/c"]));
        let history = store.history(u64::MAX, 10).expect("a store");
        let numbers: Vec<u64> = history.iter().map(|record| record.revision).collect();
        assert_eq!(numbers, [4, 3, 2], "the last three are kept");
        assert_eq!(history[2], put(2, "routes/b"));
        assert_eq!(store.history(4, 1).expect("a store")[0].revision, 3);
    }

    #[test]
    fn a_damaged_file_is_refused_and_left_alone() {
        let directory = TempDir::new();
        let path = directory.join("store.redb");
        let store = EmbeddedStore::open(&path, 10).expect("a new store");
        for revision in 1..50 {
            store.commit(&[put(revision, &format!("routes/{revision}"))]).expect("a disk");
        }
        drop(store);
        let good = fs::read(&path).expect("a file");
        let mut turned = good.clone();
        turned.iter_mut().skip(4096).for_each(|byte| *byte ^= 0x55);
        let texts: [&[u8]; 4] = [b"", b"routes: []\n", &good[..good.len() / 3], &turned];
        for text in texts {
            fs::write(&path, text).expect("a disk");
            let failure = EmbeddedStore::open(&path, 10).and_then(|store| store.load()).expect_err("it is damaged");
            assert!(failure.to_string().contains("the file was not changed"), "{failure}");
            assert!(fs::read(&path).expect("a file").starts_with(&text[..text.len().min(4)]));
        }
        fs::write(&path, &good).expect("a disk");
        let store = EmbeddedStore::open(&path, 10).expect("the good one");
        assert_eq!(store.load().expect("a store").revision, 49);
    }

    #[test]
    fn a_store_can_be_lent_to_another_process() {
        let directory = TempDir::new();
        let path = directory.join("store.redb");
        let mine = EmbeddedStore::open(&path, 10).expect("a new store");
        mine.lend(true).expect("it is only closed");
        assert!(mine.commit(&[put(1, "routes/a")]).is_err());
        let other = EmbeddedStore::open(&path, 10).expect("it is free");
        other.commit(&[put(1, "routes/b")]).expect("a disk");
        drop(other);
        mine.lend(false).expect("it is free again");
        assert_eq!(mine.load().expect("a store").revision, 1);
    }
}
