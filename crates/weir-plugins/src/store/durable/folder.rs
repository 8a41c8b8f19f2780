//! The folder of a table on disk: the secret of its keys, a lock, and a journal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use weir_journal::{Disk, Storage, create_private_directory};

use crate::store::counters::SipKey;

const SECRET: &str = "secret";
const LOCK: &str = "lock";
pub(super) const JOURNAL: &str = "journal";

pub(super) struct CounterFolder(PathBuf);

/// Why a folder cannot be used now.
pub(super) enum FolderError {
    /// Another process, with this id if it is known, has locked it.
    InUse(Option<u32>),
    Io(io::Error),
}

impl From<io::Error> for FolderError {
    fn from(error: io::Error) -> Self {
        FolderError::Io(error)
    }
}

/// The secret of the table in a folder.
pub(super) fn secret(folder: &Path) -> Option<SipKey> {
    let bytes = fs::read(folder.join(SECRET)).ok()?;
    bytes.as_slice().try_into().ok().map(SipKey::of_bytes)
}

impl CounterFolder {
    pub(super) fn new(path: PathBuf) -> CounterFolder {
        CounterFolder(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the folder, and locks it for as long as the file is open.
    pub(super) fn lock(&self) -> Result<File, FolderError> {
        create_private_directory(&self.0)?;
        let path = self.0.join(LOCK);
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let id = fs::read_to_string(&path).ok().and_then(|id| id.trim().parse().ok());
                return Err(FolderError::InUse(id));
            }
            Err(error) => return Err(FolderError::Io(error.into())),
        }
        file.set_len(0)?;
        // For the message of another process only, so it may fail on a full disk.
        let _ = write!(file, "{}", std::process::id());
        Ok(file)
    }

    /// Makes this the secret of the folder.
    pub(super) fn keep_secret(&self, table: SipKey) -> io::Result<()> {
        if secret(&self.0).is_some_and(|kept| kept.bytes() == table.bytes()) {
            return Ok(());
        }
        const NEW: &str = "secret.new";
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(self.0.join(NEW))?;
        file.write_all(&table.bytes())?;
        file.sync_all()?;
        let storage = Disk::open(&self.0)?;
        storage.rename(NEW, SECRET)?;
        storage.sync()
    }
}
