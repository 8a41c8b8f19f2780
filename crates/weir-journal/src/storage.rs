//! The file layer under a journal.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory. Names are plain file names in it.
pub trait Storage: Send + Sync + 'static {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file; an error if the name exists.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;

    fn remove(&self, name: &str) -> io::Result<()>;

    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes creations, removals and renames survive a power loss.
    fn sync(&self) -> io::Result<()>;

    /// Bytes that an unprivileged process can still write to the file system.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// A file of a [`Storage`]. Readers and the writer use it concurrently, with explicit offsets.
pub trait File: Send + Sync {
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `buffer.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`. After an error any part of them may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes written bytes survive a power loss (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
}

/// Creates a directory and its missing parents, which then survive a power loss. Only their owner may read them: payloads may be secret.
pub fn create_private_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_private_directory(parent)?;
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::File::open(parent)?.sync_all()
}

/// A directory on a file system.
#[derive(Debug)]
pub struct Disk {
    directory: PathBuf,
}

impl Disk {
    /// Creates the directory and its parents if they are missing.
    ///
    /// # Errors
    /// It cannot be created, or is not a directory.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Disk> {
        let directory = directory.into();
        create_private_directory(&directory)?;
        Ok(Disk { directory })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Storage for Disk {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.file_name().into_string()));
        // A name that is not UTF-8 is not a file of the journal.
        names.filter_map(|name: io::Result<Result<String, OsString>>| name.map(Result::ok).transpose()).collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut options = std::fs::OpenOptions::new();
        Ok(Arc::new(options.read(true).write(true).create_new(true).mode(0o600).open(self.path(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(std::fs::OpenOptions::new().read(true).write(true).open(self.path(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn sync(&self) -> io::Result<()> {
        std::fs::File::open(&self.directory)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.directory)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl File for std::fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        std::fs::File::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
