//! Files that are never there in part, and that only their owner can read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Makes a file or replaces it: at any time it has either the old or the new content. It is written under another name first, which is
/// the name and `.new`.
///
/// # Errors
/// The file is as before.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    // One of a process that has died.
    gone(fs::remove_file(&unfinished))?;
    let written = write_synced(&unfinished, content).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Ignores the error that the file does not exist.
///
/// # Errors
/// All others.
pub fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use weir_testkit::TempDir;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_stays() {
        let directory = TempDir::new();
        let path = directory.write("a.json", "old");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("an own file");
        directory.write("a.json.new", "of a process that died");
        replace(&path, b"new").expect("a disk");
        assert_eq!(fs::read(&path).expect("a file"), b"new");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        assert!(replace(&directory.join("none/a.json"), b"new").is_err());
        // A directory cannot be replaced by a file, and what was written for it does not stay.
        fs::create_dir(directory.join("b")).expect("a disk");
        fs::write(directory.join("b/content"), "").expect("a disk");
        assert!(replace(&directory.join("b"), b"new").is_err());
        assert!(!directory.join("b.new").exists());
    }
}
