//! The files that a configuration was read from, and their state at that time.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files of a configuration, each with its identity when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SeenFiles(Vec<(PathBuf, Option<FileIdentity>)>);

impl SeenFiles {
    /// Adds a file in its current state. Call it before reading, so that a write meanwhile is detected later.
    pub(super) fn add(&mut self, path: &Path) {
        self.0.push((path.to_owned(), FileIdentity::of(path)));
    }

    pub(super) fn append(&mut self, mut others: SeenFiles) {
        self.0.append(&mut others.0);
    }

    /// Adds those of `others` that are not here.
    pub(super) fn add_missing(&mut self, others: &SeenFiles) {
        let here: HashSet<&Path> = self.0.iter().map(|(path, _)| &**path).collect();
        let missing: Vec<_> = others.0.iter().filter(|(path, _)| !here.contains(&**path)).cloned().collect();
        self.0.extend(missing);
    }

    /// Takes these files back to what they were before: their present state is not used.
    pub(super) fn keep(&mut self, before: &SeenFiles, paths: &HashSet<PathBuf>) {
        for (path, identity) in self.0.iter_mut().filter(|(path, _)| paths.contains(path)) {
            if let Some((_, was)) = before.0.iter().find(|(known, _)| known == path) {
                *identity = *was;
            }
        }
    }

    pub(super) fn of<'p>(paths: impl IntoIterator<Item = &'p Path>) -> SeenFiles {
        let mut seen = SeenFiles::default();
        paths.into_iter().for_each(|path| seen.add(path));
        seen
    }

    /// The same files in their current state.
    pub(super) fn now(&self) -> SeenFiles {
        SeenFiles(self.0.iter().map(|(path, _)| (path.clone(), FileIdentity::of(path))).collect())
    }
}

/// Changes whenever the file does, also when a link on its path is replaced, as with Kubernetes' ConfigMaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileIdentity {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    fn of(path: &Path) -> Option<FileIdentity> {
        let metadata = fs::metadata(path).ok()?;
        Some(FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}
