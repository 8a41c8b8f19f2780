//! A store in one file of this node (redb).
//!
//! A commit is durable when it returns. A file that is not a store, or damaged, is refused and not changed.

mod copy;
mod reopen;

use std::fs;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use self::copy::CopyThread;
use self::reopen::revision_of;
use super::resources::{ResourceChange, ResourceKey, ResourceSet, RevisionRecord, StoredResource};
use super::store::{CommitFailure, MOST_READ, RenewedText, ResourceStore, StoreFailure};

/// What is said of a store that a node has open.
pub(super) const IN_USE: &str = "is in use by another process";
/// The version of the file's schema.
const FORMAT: u64 = 1;

/// From a resource's key to the resource, as JSON.
const RESOURCES: TableDefinition<&str, &[u8]> = TableDefinition::new("resources");
/// From a revision's number to its record, as JSON.
const REVISIONS: TableDefinition<u64, &[u8]> = TableDefinition::new("revisions");
const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("about");

/// The cache of pages, in bytes. Small, since resources are read only once.
const CACHE_BYTES: usize = 8 << 20;
/// That of a copy, which is written in the background.
const COPY_CACHE_BYTES: usize = 1 << 20;
/// How long to wait for the lock of the file: a previous process that ends, or hands over, releases it within this time.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_LOOK: Duration = Duration::from_millis(20);

/// A file with resources and their history.
pub struct EmbeddedStore {
    file: Arc<StoreFile>,
    /// The number of revisions that are kept.
    kept: u64,
    /// The most bytes of them.
    kept_bytes: u64,
    /// The bytes of the history now; `None` if they have to be counted.
    history_bytes: Mutex<Option<u64>>,
    copies: Option<CopyThread>,
}

struct StoreFile {
    path: PathBuf,
    role: FileRole,
    /// `None` while the file is lent to another process.
    database: RwLock<Option<Database>>,
    /// The last revision that was committed as far as its author knows.
    acknowledged: AtomicU64,
    /// There was an I/O error, so that the file must be opened again.
    has_failed: AtomicBool,
    /// The last change could not be written.
    is_unwritable: AtomicBool,
}

/// What a file is to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileRole {
    Store,
    /// The copy of another store. That one has the history, and a commit that has failed is made again, so it need not be undone.
    Copy,
}

impl FileRole {
    fn cache_bytes(self) -> usize {
        match self {
            FileRole::Store => CACHE_BYTES,
            FileRole::Copy => COPY_CACHE_BYTES,
        }
    }
}

impl EmbeddedStore {
    /// Opens the file, or creates it. Keeps the last `kept` revisions.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn open(path: &Path, kept: u64) -> Result<EmbeddedStore, StoreFailure> {
        EmbeddedStore::open_as(FileRole::Store, path, kept)
    }

    /// Opens the file of a copy of another store, or creates it. It has no history.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub(super) fn open_copy(path: &Path) -> Result<EmbeddedStore, StoreFailure> {
        EmbeddedStore::open_as(FileRole::Copy, path, 0)
    }

    fn open_as(role: FileRole, path: &Path, kept: u64) -> Result<EmbeddedStore, StoreFailure> {
        if !path.try_exists().map_err(|error| unusable(path, error))? {
            if let Some(copy) = copy::found(path) {
                let problem = format!("the store {} is missing, and {copy}", path.display());
                let advice = "rename the copy to the name of the store, or move it away to begin with an empty store or to import an export";
                return Err(StoreFailure::new(problem, advice));
            }
            make(path, |transaction| StoreRows::default().write(transaction))?;
        }
        let database = opened(path, role)?;
        let revision = revision_of(&database).map_err(|error| unusable(path, error))?;
        let file = Arc::new(StoreFile {
            path: path.to_owned(),
            role,
            database: RwLock::new(Some(database)),
            acknowledged: AtomicU64::new(revision),
            has_failed: AtomicBool::new(false),
            is_unwritable: AtomicBool::new(false),
        });
        Ok(EmbeddedStore {
            file,
            kept: if role == FileRole::Store { kept.max(1) } else { 0 },
            kept_bytes: u64::MAX,
            history_bytes: Mutex::default(),
            copies: None,
        })
    }

    /// Keeps at most this many bytes of history from the next change on.
    pub fn limit_history(&mut self, bytes: u64) {
        self.kept_bytes = bytes;
    }

    /// Keeps a copy of the store beside its file from now on.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn keep_copies(&mut self) -> Result<(), StoreFailure> {
        let started = CopyThread::start(Arc::clone(&self.file));
        self.copies = Some(started.map_err(|error| unusable(&self.file.path, error))?);
        Ok(())
    }

    fn with<T>(&self, use_it: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreFailure> {
        self.file.reopen_if_failed()?;
        let database = self.file.database();
        let Some(database) = &*database else {
            return Err(StoreFailure::new(
                "the store is in use by another process during an upgrade",
                "try again in a moment",
            ));
        };
        use_it(database).map_err(|error| {
            self.file.note(&error);
            unusable(&self.file.path, error)
        })
    }

    /// Logs that changes cannot be written, and that they can be again. The copy of another store is without copies, and is reported
    /// with that store.
    fn tell(&self, error: Option<&redb::Error>) {
        let was_unwritable = self.file.is_unwritable.swap(error.is_some(), AcqRel);
        if self.copies.is_none() {
            return;
        }
        let path = self.file.path.display();
        match error {
            Some(error) if !was_unwritable => {
                tracing::error!("the store {path} cannot be written, changes are refused: {error}");
            }
            None if was_unwritable => tracing::warn!("the store {path} can be written again"),
            _ => {}
        }
    }

    fn write(&self, database: &Database, revisions: &[RevisionRecord]) -> Result<(), redb::Error> {
        let mut counted = self.history_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // If this fails, they are counted again.
        let before = counted.take();
        let transaction = database.begin_write()?;
        let mut bytes;
        {
            let mut resources = transaction.open_table(RESOURCES)?;
            let mut history = transaction.open_table(REVISIONS)?;
            bytes = before.map_or_else(|| bytes_of(&history), Ok)?;
            for record in revisions {
                for change in &record.changes {
                    match &change.after {
                        Some(resource) => drop(resources.insert(change.key.as_str(), &*json(resource))?),
                        None => drop(resources.remove(change.key.as_str())?),
                    }
                }
                if self.file.role == FileRole::Store {
                    let record_json = json(record);
                    bytes += record_json.len() as u64;
                    history.insert(record.revision, &*record_json)?;
                }
            }
            let last = revisions.last().map_or(0, |record| record.revision);
            transaction.open_table(ABOUT)?.insert("revision", last)?;
            // None of this transaction is deleted: if the disk fails now, the records are needed to undo it.
            let own = if self.file.role == FileRole::Store { revisions.len() as u64 } else { 0 };
            while history.len()? > self.kept.max(own) || bytes > self.kept_bytes && history.len()? > own {
                let Some((_, record)) = history.pop_first()? else { break };
                bytes = bytes.saturating_sub(record.value().len() as u64);
            }
        }
        transaction.commit()?;
        *counted = Some(bytes);
        Ok(())
    }
}

impl ResourceStore for EmbeddedStore {
    fn name(&self) -> String {
        self.file.path.display().to_string()
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
                return Err(damaged(&self.file.path, &format!("the resource `{key}` cannot be read")));
            };
            set.all.insert(key, resource);
        }
        Ok(set)
    }

    fn commit(&self, revisions: &[RevisionRecord]) -> Result<u64, CommitFailure> {
        self.with(|database| {
            let written = self.write(database, revisions);
            self.tell(written.as_ref().err());
            written
        })?;
        let last = revisions.last().map_or(0, |record| record.revision);
        self.file.acknowledged.store(last, Release);
        Ok(last)
    }

    fn is_writable(&self) -> Option<bool> {
        Some(!self.file.is_unwritable.load(Acquire))
    }

    fn history(&self, before: u64, count: usize) -> Result<Vec<RevisionRecord>, StoreFailure> {
        let records = self.with(|database| {
            let transaction = database.begin_read()?;
            let history = transaction.open_table(REVISIONS)?;
            let (mut rows, mut bytes) = (Vec::new(), 0);
            for row in history.range(..before)?.rev().take(count) {
                let record = row?.1.value().to_vec();
                bytes += record.len() as u64;
                rows.push(record);
                if bytes >= MOST_READ {
                    break;
                }
            }
            Ok(rows)
        })?;
        let read = |record: Vec<u8>| serde_json::from_slice(&record);
        records
            .into_iter()
            .map(|record| {
                read(record).map_err(|error| damaged(&self.file.path, &format!("a revision cannot be read: {error}")))
            })
            .collect()
    }

    fn rewrite(&self, renew: &RenewedText) -> Result<(), StoreFailure> {
        let path = &self.file.path;
        let mut database = self.file.database_mut();
        *self.history_bytes.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let Some(open) = &*database else { return Ok(()) };
        let rows = renewed(path, open, renew)?;
        if !rows.is_changed {
            return Ok(());
        }
        // The copy contains the old texts.
        copy::remove(path).map_err(|error| unusable(path, error))?;
        // Into a new file: redb does not erase freed pages, which would still contain the old texts.
        make(path, |transaction| rows.write(transaction))?;
        // Opened again by the next use if it cannot be opened now.
        self.file.has_failed.store(true, Release);
        *database = None;
        *database = Some(opened(path, self.file.role)?);
        self.file.has_failed.store(false, Release);
        if let Some(copies) = &self.copies {
            copies.wake();
        }
        Ok(())
    }

    fn lend(&self, lent: bool) -> Result<(), StoreFailure> {
        let mut database = self.file.database_mut();
        *self.history_bytes.lock().unwrap_or_else(PoisonError::into_inner) = None;
        match lent {
            true => {
                *database = None;
                self.file.has_failed.store(false, Release);
            }
            false if database.is_none() => {
                let again = opened(&self.file.path, self.file.role)?;
                let revision = revision_of(&again).map_err(|error| unusable(&self.file.path, error))?;
                self.file.acknowledged.store(revision, Release);
                *database = Some(again);
            }
            false => {}
        }
        Ok(())
    }
}

impl StoreFile {
    fn database(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn database_mut(&self) -> RwLockWriteGuard<'_, Option<Database>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of all revisions in a history.
fn bytes_of(history: &impl ReadableTable<u64, &'static [u8]>) -> Result<u64, redb::Error> {
    let mut bytes = 0;
    for row in history.iter()? {
        bytes += row?.1.value().len() as u64;
    }
    Ok(bytes)
}

/// All rows of a store.
#[derive(Default)]
struct StoreRows {
    revision: u64,
    resources: Vec<(String, Vec<u8>)>,
    history: Vec<(u64, Vec<u8>)>,
    is_changed: bool,
}

impl StoreRows {
    fn write(&self, transaction: &WriteTransaction) -> Result<(), redb::Error> {
        let mut resources = transaction.open_table(RESOURCES)?;
        for (key, resource) in &self.resources {
            resources.insert(key.as_str(), &**resource)?;
        }
        let mut history = transaction.open_table(REVISIONS)?;
        for (revision, record) in &self.history {
            history.insert(revision, &**record)?;
        }
        let mut about = transaction.open_table(ABOUT)?;
        about.insert("format", FORMAT)?;
        if self.revision > 0 {
            about.insert("revision", self.revision)?;
        }
        Ok(())
    }
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
fn make(path: &Path, fill: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>) -> Result<(), StoreFailure> {
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
        let database = Builder::new().set_cache_size(CACHE_BYTES).create(&new)?;
        only_for_the_owner(&new)?;
        let transaction = database.begin_write()?;
        fill(&transaction)?;
        transaction.commit()?;
        fs::rename(&new, path)?;
        Ok(sync_directory_of(path)?)
    };
    made().map_err(|error| {
        // An incomplete file is of no use, and takes space on a full disk.
        let _ = fs::remove_file(&new);
        unusable(path, error)
    })
}

/// A commit syncs the file only: without this, the name of a new store could be lost with the power, and all commits with it.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match fs::File::open(directory)?.sync_all() {
        // Some file systems have no such operation.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

/// The file contains keys of consumers.
fn only_for_the_owner(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

/// Opens the file; waits if another process is about to close it.
fn opened(path: &Path, role: FileRole) -> Result<Database, StoreFailure> {
    // redb would initialize an empty file as a new store.
    if fs::metadata(path).map_err(|error| unusable(path, error))?.len() == 0 {
        return Err(damaged(path, "the file is empty"));
    }
    let deadline = Instant::now() + LOCK_PATIENCE;
    let mut told = false;
    loop {
        // A damaged file can make the library panic.
        let tried = catch_unwind(AssertUnwindSafe(|| {
            Builder::new().set_cache_size(role.cache_bytes()).set_check_integrity_on_open(true).open(path)
        }));
        match tried {
            Ok(Ok(database)) => return checked(path, database),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) if Instant::now() < deadline => {
                if !mem::replace(&mut told, true) {
                    let patience = LOCK_PATIENCE.as_secs();
                    tracing::warn!("another process has the store {} open; waiting up to {patience} s", path.display());
                }
                thread::sleep(LOCK_LOOK);
            }
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => {
                let problem = format!("the store {} {IN_USE}", path.display());
                return Err(StoreFailure::new(
                    problem,
                    "each node needs a `data_dir` of its own; or stop that process",
                ));
            }
            Ok(Err(DatabaseError::Storage(redb::StorageError::Io(error)))) if is_of_the_disk(&error) => {
                return Err(unusable(path, error));
            }
            Ok(Err(error)) => return Err(damaged(path, &error.to_string())),
            Err(_) => return Err(damaged(path, "its pages are inconsistent")),
        }
    }
}

/// Whether an error is one of the disk, and not of what is in the file.
fn is_of_the_disk(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem | PermissionDenied | FileTooLarge)
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
    let (copy, away) = match copy::found(path) {
        Some(copy) => (format!("{copy}: move the damaged file away and rename the copy to its name"), "both files"),
        None => ("replace it with a backup".to_owned(), "it"),
    };
    let advice = format!("or move {away} away and import an export with `weir store import`");
    StoreFailure::new(
        format!("the store {} cannot be read: {why}", path.display()),
        format!("the file was not changed; {copy}, {advice}"),
    )
}

fn unusable(path: &Path, error: impl std::fmt::Display) -> StoreFailure {
    let directory = path.parent().unwrap_or(path).display();
    let advice = format!("check the disk, and that the user of the process may write to {directory} and to the file");
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
    fn embedded_store_keeps_commits_when_its_file_is_opened_again() {
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
    fn the_history_is_bounded_in_bytes_and_read_in_parts() {
        let directory = TempDir::new();
        let path = directory.join("store.redb");
        let large = |revision: u64| {
            let mut record = put(revision, "routes/a");
            let after = record.changes[0].after.as_mut().expect("it is put");
            after.json = format!("{{\"desc\":\"{}\"}}", "x".repeat(3 << 20)).into();
            record
        };
        let numbers = |store: &EmbeddedStore, before: u64| -> Vec<u64> {
            store.history(before, 100).expect("a store").iter().map(|record| record.revision).collect()
        };
        let mut store = EmbeddedStore::open(&path, 100).expect("a new store");
        store.limit_history(16 << 20);
        (1..=4).for_each(|revision| _ = store.commit(&[large(revision)]).expect("a disk"));
        drop(store);
        let mut store = EmbeddedStore::open(&path, 100).expect("the same store");
        store.limit_history(16 << 20);
        (5..=8).for_each(|revision| _ = store.commit(&[large(revision)]).expect("a disk"));
        assert_eq!(numbers(&store, u64::MAX), [8, 7, 6], "a part");
        assert_eq!(numbers(&store, 6), [5, 4], "the rest: five are kept");
        assert_eq!(numbers(&store, 4), [0; 0]);
        store.limit_history(1);
        store.commit(&[large(9), large(10)]).expect("a disk");
        assert_eq!(numbers(&store, u64::MAX), [10, 9], "those of the last change are kept");
    }

    #[test]
    fn a_copy_has_each_text_once() {
        let directory = TempDir::new();
        let path = directory.join("copy.redb");
        let store = EmbeddedStore::open_copy(&path).expect("a new store");
        store.commit(&[put(1, "routes/a")]).expect("a disk");
        assert_eq!(store.load().expect("a store").all.len(), 1);
        assert_eq!(store.history(u64::MAX, 10).expect("a store"), []);
        drop(store);
        let bytes = fs::read(&path).expect("a file");
        // In the row it is escaped, as it would be in a record.
        let count = bytes.windows(6).filter(|part| part == b"\\\"n\\\":").count();
        assert_eq!(count, 1);
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
    fn a_damaged_store_has_a_copy_that_can_take_its_place() {
        let directory = TempDir::new();
        let path = directory.join("store.redb");
        let mut store = EmbeddedStore::open(&path, 10).expect("a new store");
        store.commit(&[put(1, "routes/a")]).expect("a disk");
        store.keep_copies().expect("a thread");
        store.commit(&[put(2, "routes/a")]).expect("a disk");
        // Ends the thread, which has made a copy before.
        drop(store);
        let copy = copy::copy_of(&path);
        let copied = fs::read(&copy).expect("a copy");
        fs::write(&path, vec![7; 10_000]).expect("a disk");
        let failure = EmbeddedStore::open(&path, 10).map(drop).expect_err("it is damaged").to_string();
        let offer = format!("{} is a copy from 2", copy.display());
        assert!(failure.contains(&offer) && failure.contains("was not changed"), "{failure}");
        fs::remove_file(&path).expect("a file");
        let failure = EmbeddedStore::open(&path, 10).map(drop).expect_err("it is missing").to_string();
        assert!(failure.contains("is missing") && failure.contains(&offer), "{failure}");
        assert_eq!(fs::read(&copy).expect("a copy"), copied, "it was not changed");
        fs::rename(&copy, &path).expect("a file");
        let store = EmbeddedStore::open(&path, 10).expect("the copy");
        let set = store.load().expect("a store");
        assert!((1..=2).contains(&set.revision) && set.all.len() == 1, "{set:?}");
        assert_eq!(store.history(u64::MAX, 10).expect("a store").len() as u64, set.revision);
    }

    #[test]
    fn renewed_texts_are_renewed_in_the_copy_too() {
        let directory = TempDir::new();
        let path = directory.join("store.redb");
        let mut store = EmbeddedStore::open(&path, 10).expect("a new store");
        store.commit(&[put(1, "routes/a")]).expect("a disk");
        store.keep_copies().expect("a thread");
        store.rewrite(&|_, json| Some(json.replace("\"n\"", "\"new\"").into())).expect("a disk");
        drop(store);
        for path in [&path, &copy::copy_of(&path)] {
            let bytes = fs::read(path).expect("a file");
            // The quotes are escaped in a row.
            let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(has("\"new\\") && !has("\"n\\"), "{}", path.display());
        }
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
