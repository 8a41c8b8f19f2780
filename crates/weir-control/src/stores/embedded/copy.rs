//! A copy of the store beside its file, in case the file gets damaged: made at the start, and again every hour if there were changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use jiff::Timestamp;
use redb::{Database, ReadableDatabase, ReadableTable, WriteTransaction};

use super::reopen::revision_of;
use super::{ABOUT, RESOURCES, REVISIONS, StoreFile, make};
use crate::stores::store::StoreFailure;

const EVERY: Duration = Duration::from_secs(3_600);

/// The thread that makes the copies. Dropping it ends the thread.
pub(super) struct CopyThread {
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CopyThread {
    pub(super) fn start(file: Arc<StoreFile>) -> io::Result<CopyThread> {
        let (wake, woken) = channel();
        let work = move || {
            let (mut copied, mut has_failed) = (None, false);
            loop {
                match file.copy(copied) {
                    Ok(revision) => (copied, has_failed) = (revision, false),
                    Err(failure) if !has_failed => {
                        has_failed = true;
                        tracing::warn!("the store could not be copied: {failure}");
                    }
                    Err(_) => {}
                }
                match woken.recv_timeout(EVERY) {
                    // The texts have been replaced, so the copy is gone.
                    Ok(()) => copied = None,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let thread = thread::Builder::new().name("store-copy".to_owned()).spawn(work)?;
        Ok(CopyThread { wake: Some(wake), thread: Some(thread) })
    }

    /// Makes a copy now.
    pub(super) fn wake(&self) {
        // Fails only if the thread has panicked, which has been logged.
        let _ = self.wake.as_ref().map(|wake| wake.send(()));
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
    }
}

impl StoreFile {
    /// Copies the store unless the last copy has the same revision. Returns the revision of the copy; `None` while the file is
    /// lent to another process, which makes copies itself.
    fn copy(&self, copied: Option<u64>) -> Result<Option<u64>, StoreFailure> {
        let database = self.database();
        let Some(open) = &*database else { return Ok(None) };
        let revision = revision_of(open).map_err(|error| super::unusable(&self.path, error))?;
        if copied != Some(revision) {
            make(&copy_of(&self.path), |copy| copy_rows(open, copy))?;
        }
        Ok(Some(revision))
    }
}

fn copy_rows(from: &Database, to: &WriteTransaction) -> Result<(), redb::Error> {
    let from = from.begin_read()?;
    let mut resources = to.open_table(RESOURCES)?;
    for row in from.open_table(RESOURCES)?.iter()? {
        let (key, resource) = row?;
        resources.insert(key.value(), resource.value())?;
    }
    let mut history = to.open_table(REVISIONS)?;
    for row in from.open_table(REVISIONS)?.iter()? {
        let (revision, record) = row?;
        history.insert(revision.value(), record.value())?;
    }
    let mut about = to.open_table(ABOUT)?;
    for row in from.open_table(ABOUT)?.iter()? {
        let (name, number) = row?;
        about.insert(name.value(), number.value())?;
    }
    Ok(())
}

/// The file of the copy: `store.redb.previous`.
pub(super) fn copy_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".previous");
    name.into()
}

/// The copy of a store and its time, as text; `None` if there is none.
pub(super) fn found(path: &Path) -> Option<String> {
    let copy = copy_of(path);
    let made = fs::metadata(&copy).ok()?.modified().ok()?;
    let at = Timestamp::try_from(made).ok()?.round(jiff::Unit::Second).ok()?;
    Some(format!("{} is a copy from {at}", copy.display()))
}

/// Removes the copy, for example since it contains texts that must not be kept.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(copy_of(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
