//! Keys that a node makes at its first start, and keeps.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use weir_control::whole_file;

/// Reads the key that this file has, or makes one of `bytes` random bytes in a file that only its owner can read. Returns the key in
/// hexadecimal digits, and the path.
pub(super) fn generated(directory: &Path, name: &str, bytes: usize) -> io::Result<(String, PathBuf)> {
    let path = directory.join(name);
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok((text.trim().to_owned(), path)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir_all(directory)?;
    let mut random = vec![0; bytes];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| io::Error::other("the random number generator failed"))?;
    let key = hex::encode(random);
    whole_file::replace(&path, format!("{key}\n").as_bytes())?;
    Ok((key, path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use weir_testkit::TempDir;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        let directory = TempDir::new();
        let (key, path) = generated(&directory.join("data"), "a.key", 24).expect("a disk");
        assert_eq!(key.len(), 48);
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(generated(&directory.join("data"), "a.key", 24).expect("a disk"), (key, path));
    }
}
